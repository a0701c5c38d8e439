"""tokenizer.json: made from a GGUF's vocabulary, and used to encode prompts."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE

from suite.errors import UserError
from suite.models.config_json import write_json
from suite.models.gguf_file import GgufFile

WORD_BOUNDARY = "\u2581"
"""What SentencePiece vocabularies write for a space."""


class TokenType(IntEnum):
    """Kinds of vocabulary entry that need care, numbered as in GGUF."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4


def write_tokenizer(gguf: GgufFile, folder: Path) -> None:
    """Writes tokenizer.json and its companions from the vocabulary in `gguf`.

    The result gives the ids that llama.cpp gives on the same file. Raises
    UserError where the vocabulary is not SentencePiece's with scores.
    """
    if gguf.metadata.get("tokenizer.ggml.model") != "llama":
        found = gguf.metadata.get("tokenizer.ggml.model")
        raise UserError(
            f"gguf {gguf.path} has a {found!r} tokenizer;"
            " only SentencePiece's ('llama') is supported"
        )
    tokens = [str(token) for token in gguf.array("tokenizer.ggml.tokens")]
    types = [int(str(kind)) for kind in gguf.array("tokenizer.ggml.token_type")]
    scores = [float(str(score)) for score in gguf.array("tokenizer.ggml.scores")]
    bos, eos, unknown, pad = (
        tokens[gguf.integer(f"tokenizer.ggml.{role}_token_id", default)]
        for role, default in (("bos", 2), ("eos", 1), ("unknown", 3), ("padding", 0))
    )
    tokenizer = Tokenizer(
        BPE(
            vocab={token: number for number, token in enumerate(tokens)},
            merges=merges(tokens, types, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", WORD_BOUNDARY)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(WORD_BOUNDARY, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    # Before normalising: GGUF spells the spaces of user-defined tokens as spaces.
    added = [
        AddedToken(token, normalized=False, special=kind != TokenType.USER_DEFINED)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
    save_tokenizer(tokenizer, folder, bos=bos, eos=eos, unknown=unknown, pad=pad)


def merges(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """The merge list that byte-pair encoding needs, best first, from SentencePiece's scores.

    SentencePiece joins two neighbours whenever the result is in the vocabulary,
    the best score first, so every split of a token into two tokens is a merge
    with that token's rank.
    """
    normal = [number for number, kind in enumerate(types) if kind == TokenType.NORMAL]
    known = {tokens[number] for number in normal}
    normal.sort(key=lambda number: -scores[number])
    return [
        (left, right)
        for token in map(tokens.__getitem__, normal)
        for cut in range(1, len(token))
        if (left := token[:cut]) in known and (right := token[cut:]) in known
    ]


def save_tokenizer(
    tokenizer: Tokenizer, folder: Path, *, bos: str, eos: str, unknown: str, pad: str
) -> None:
    """Writes the files that transformers' AutoTokenizer and `encode` read.

    Encoding puts `bos` first.
    """
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A",
        pair=f"{bos} $A {bos}:1 $B:1",
        special_tokens=[(bos, tokenizer.token_to_id(bos))],
    )
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    special = {"bos_token": bos, "eos_token": eos, "unk_token": unknown, "pad_token": pad}
    write_json(folder / "special_tokens_map.json", special)
    write_json(
        folder / "tokenizer_config.json",
        {
            # Not GemmaTokenizer, which would rebuild normaliser and merges its own way.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": True,
            "add_eos_token": False,
            "clean_up_tokenization_spaces": False,
            "padding_side": "left",
            **special,
        },
    )


def encode(folder: Path, text: str) -> tuple[int, ...]:
    """Token ids of `text`, the beginning-of-sequence id first.

    Raises UserError where the folder has no readable tokenizer.json.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError(
            f"model folder {folder} has no tokenizer.json;"
            " pass the folder of a Hugging Face checkpoint"
        )
    tokenizer, bos_id = load_tokenizer(path, path.stat().st_mtime_ns)
    ids = tuple(tokenizer.encode(text).ids)
    if bos_id is None or ids[:1] == (bos_id,):
        return ids
    return (bos_id, *ids)


def decode(folder: Path, ids: Sequence[int]) -> str:
    """The text of `ids`, special tokens left out.

    Raises UserError where the folder has no readable tokenizer.json.
    """
    path = folder / "tokenizer.json"
    tokenizer, _ = load_tokenizer(path, path.stat().st_mtime_ns)
    text: str = tokenizer.decode(list(ids))
    return text


@functools.lru_cache(maxsize=2)
def load_tokenizer(path: Path, mtime_ns: int) -> tuple[Tokenizer, int | None]:
    """The tokenizer at `path` and its model's BOS id, read once per version of the file."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    # The package raises a bare Exception for whatever it cannot parse.
    except Exception as problem:
        raise UserError(f"{path} cannot be read ({problem}); fetch the checkpoint again") from None
    config = path.with_name("config.json")
    bos_id = (
        json.loads(config.read_text(encoding="utf-8")).get("bos_token_id")
        if config.is_file()
        else None
    )
    return tokenizer, bos_id
