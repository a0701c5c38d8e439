"""Second moments of every projection's inputs, from a text.

Hidden states of all chunks advance one layer at a time, so what is in memory
is those states and one layer's weights and moments, however large the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weightless_fw.core.factors import Array
from weightless_fw.core.whitening import Array64

CHUNK_TOKENS = 256
"""Tokens of one sequence, the begin-of-text token among them."""

DEFAULT_TOKENS = 8192

_CHARACTERS_PER_TOKEN = 16
"""More than any text needs: only so much of a long file is tokenised."""

Observe = Callable[[int, str, Array], None]
Advance = Callable[[int, Array, Observe], Array]
"""(layer, hidden states [T, hidden] of one sequence, observe) -> the states after it."""


class CalibrationError(ValueError):
    """The calibration text cannot be used; the message says why."""


@dataclass(frozen=True)
class CalibrationText:
    """A text, tokenised and cut into sequences."""

    chunks: tuple[tuple[int, ...], ...]
    """Token ids, each sequence beginning with the begin-of-text token."""

    sha256: str
    """Of the file's bytes."""

    @property
    def tokens(self) -> int:
        return sum(len(chunk) for chunk in self.chunks)


def read_calibration(
    path: Path, encode: Callable[[str], Sequence[int]], *, bos: int, limit_tokens: int
) -> CalibrationText:
    """Reads a UTF-8 text file as sequences of ``CHUNK_TOKENS``.

    Args:
        path: The text.
        encode: Text to token ids, without special tokens.
        bos: The begin-of-text token.
        limit_tokens: At most this many tokens, begin-of-text included.

    Raises:
        CalibrationError: The file is missing, is no text, or is too short.
    """
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CalibrationError(
            f"--calibration {path}: byte {error.start} is not UTF-8; give a plain text file"
        ) from None
    except OSError as error:
        raise CalibrationError(f"--calibration {path}: {error.strerror}") from None
    if limit_tokens < CHUNK_TOKENS:
        raise CalibrationError(
            f"--calibration-tokens {limit_tokens}: must be at least {CHUNK_TOKENS}"
        )
    ids = list(encode(text[: limit_tokens * _CHARACTERS_PER_TOKEN]))
    body, count = CHUNK_TOKENS - 1, limit_tokens // CHUNK_TOKENS
    whole = min(count, len(ids) // body)
    if whole == 0:
        raise CalibrationError(
            f"--calibration {path}: {len(ids)} tokens; at least {body} are needed, "
            f"{DEFAULT_TOKENS} or more are better"
        )
    chunks = tuple((bos, *ids[i * body : (i + 1) * body]) for i in range(whole))
    return CalibrationText(chunks, hashlib.sha256(raw).hexdigest())


class SecondMoments:
    """E[x x^T] of the inputs of one layer's projections, by name."""

    def __init__(self) -> None:
        self._sums: dict[str, Array64] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, x: Array) -> None:
        """Adds the inputs [T, K] of one sequence.

        Raises:
            CalibrationError: They hold NaN or infinity.
        """
        wide = x.astype(np.float64)
        product = wide.T @ wide
        if not np.isfinite(product).all():
            raise CalibrationError(f"the inputs of {name} are NaN or infinite on this text")
        if name in self._sums:
            self._sums[name] += product
        else:
            self._sums[name] = product
        self._counts[name] = self._counts.get(name, 0) + len(x)

    def means(self) -> dict[str, Array64]:
        """[K, K] by name; empty before anything was added."""
        return {name: total / self._counts[name] for name, total in self._sums.items()}


def layer_moments(
    states: list[Array], layers: Iterable[int], advance: Advance
) -> Iterator[tuple[int, dict[str, Array64]]]:
    """Yields (layer, moments by input) and moves ``states`` through the model.

    Args:
        states: [T, hidden] of each sequence before the first of ``layers``;
            replaced in place, layer by layer.
        layers: Consecutive layers, in order.
        advance: Applies one layer to one sequence.
    """
    for layer in layers:
        moments = SecondMoments()

        def observe(_: int, name: str, x: Array, moments: SecondMoments = moments) -> None:
            moments.add(name, x)

        for index, state in enumerate(states):
            states[index] = advance(layer, state, observe)
        yield layer, moments.means()
