"""The tokenizer of synthetic:gemma-3-tiny: any text, 512 entries, no download."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from suite.models.tokenizer import save_tokenizer

SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>")
"""In the order of their ids, which are those of Gemma."""

WORDS = (
    "the of and to in is that it was for on are as with his they at be this from have or by one"
    " had not but"
    " what all were when we there can an your which their said if do will each about how up out"
    " them then she"
    " many some so these would other into has more her two like him see time could no make than"
    " first been"
    " its who now people my made over did down only way find use may water long little very"
    " after words"
)


def write_tiny_tokenizer(folder: Path, size: int) -> None:
    """Writes a byte-level BPE tokenizer of `size` entries, at least 260, into `folder`.

    Four special tokens, 256 bytes, then the beginnings of common English words
    until the vocabulary is full.
    """
    vocab = {
        token: number
        for number, token in enumerate((*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())))
    }
    merges: list[tuple[str, str]] = []
    for word in WORDS.split():
        # Byte-level vocabularies write a space as this letter.
        start = "\u0120"
        for letter in word:
            if start + letter not in vocab and len(vocab) < size:
                vocab[start + letter] = len(vocab)
                merges.append((start, letter))
            start += letter
    for number in range(size - len(vocab)):
        vocab[f"<unused{number}>"] = len(vocab)
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in SPECIAL]
    )
    pad, eos, bos, unknown = SPECIAL
    save_tokenizer(tokenizer, folder, bos=bos, eos=eos, unknown=unknown, pad=pad)
