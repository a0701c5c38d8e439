"""Tokenizers made here: from a GGUF's vocabulary, and the tiny one."""

from __future__ import annotations

import json
import random
import re
from itertools import pairwise

import pytest
from tokenizers import Tokenizer

from suite.errors import UserError
from suite.models.gguf_file import read_gguf
from suite.models.tiny_tokenizer import write_tiny_tokenizer
from suite.models.tokenizer import encode, merges, write_tokenizer


@pytest.fixture
def folder(tmp_path, write_gguf):
    write_gguf(tmp_path / "a.gguf")
    folder = tmp_path / "folder"
    folder.mkdir()
    write_tokenizer(read_gguf(tmp_path / "a.gguf"), folder)
    return folder


def spell(folder, text):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tokenizer.id_to_token(number) for number in encode(folder, text)]


def join_best_pair_first(text, rank):
    """SentencePiece's rule, as slowly as it can be said."""
    parts = list(text)
    while True:
        pairs = [(rank[a + b], at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in rank]
        if not pairs:
            return parts
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def test_pieces_join_by_score(folder):
    assert spell(folder, " the cat in") == ["<bos>", "\u2581the", "\u2581cat", "\u2581", "in"]


def test_no_space_is_put_in_front(folder):
    assert spell(folder, "the") == ["<bos>", "t", "he"]


def test_user_defined_tokens_come_before_the_rest(folder):
    assert spell(folder, "a  \nt") == ["<bos>", "a", "  ", "\n", "t"]


def test_unknown_characters_become_their_bytes(folder):
    robot = [f"<0x{byte:02X}>" for byte in "\U0001f916".encode()]
    assert spell(folder, "a\U0001f916") == ["<bos>", "a", *robot]


def test_random_text_agrees_with_the_rule(folder):
    pieces = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    first = min(number for piece, number in pieces.items() if piece == "\u2581t")
    rank = {piece: number for piece, number in pieces.items() if number >= first}
    generator = random.Random(3)
    for _ in range(300):
        text = re.sub(" +", " ", "".join(generator.choices(" abcdehint.,", k=30)))
        expected = join_best_pair_first(text.replace(" ", "\u2581"), rank)
        assert spell(folder, text) == ["<bos>", *expected], text


@pytest.mark.parametrize(
    "text", ["", " a  the\n\n cat \U0001f916 é\t.", "  leading and trailing  "]
)
def test_decoding_gives_the_text_back(folder, text):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.decode(encode(folder, text)) == text


def test_transformers_agrees(folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = " the cat\n\U0001f916  in"
    assert tuple(tokenizer(text).input_ids) == encode(folder, text)
    assert tokenizer.decode(encode(folder, text), skip_special_tokens=True) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 1, 0)


def test_merges_are_every_split_best_first():
    tokens = ["a", "b", "ab", "aab", "aa", "<s>"]
    types = [1, 1, 1, 1, 1, 3]
    scores = [-10.0, -11.0, -2.0, -3.0, -1.0, -1000.0]
    assert merges(tokens, types, scores) == [("a", "a"), ("a", "b"), ("a", "ab"), ("aa", "b")]


def test_another_tokenizer_model_is_refused(tmp_path, write_gguf):
    path = tmp_path / "a.gguf"
    write_gguf(path)
    path.write_bytes(path.read_bytes().replace(b"\5\0\0\0\0\0\0\0llama", b"\5\0\0\0\0\0\0\0gpt-2"))
    with pytest.raises(UserError, match="'gpt-2' tokenizer"):
        write_tokenizer(read_gguf(path), tmp_path)


def test_encode_adds_bos_where_the_tokenizer_does_not(tmp_path):
    write_tiny_tokenizer(tmp_path, 512)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"post_processor": None}))
    without = encode(tmp_path, "the")
    (tmp_path / "config.json").write_text('{"bos_token_id": 2}')
    file.write_text(file.read_text() + " ")
    assert encode(tmp_path, "the") == (2, *without)


def test_encode_names_what_is_missing(tmp_path):
    with pytest.raises(UserError, match=r"no tokenizer\.json"):
        encode(tmp_path, "a")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read"):
        encode(tmp_path, "a")


def test_the_tiny_tokenizer_takes_any_text(tmp_path):
    write_tiny_tokenizer(tmp_path, 512)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 512
    assert [tokenizer.token_to_id(token) for token in ("<pad>", "<eos>", "<bos>", "<unk>")] == [
        0,
        1,
        2,
        3,
    ]
    text = "The cat of the  house\n\tsaid \U0001f916 é."
    ids = encode(tmp_path, text)
    assert ids[0] == 2
    assert max(ids) < 512
    assert len(ids) < len(text.encode())
    assert tokenizer.decode(ids) == text
