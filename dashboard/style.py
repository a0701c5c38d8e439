"""How things look: one colour and one mark shape per path, one way to write a number."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime

from suite.plan import ArmPath
from suite.stats import Verdict

NOT_STATED = "not stated"
"""Path of a published figure whose document does not name it."""

PATHS = (*(str(path) for path in ArmPath), NOT_STATED)
"""The domain of colour and shape: fixed, so that a filter never recolours a path."""

_COLOURS = {
    ArmPath.NATIVE: "#767676",
    ArmPath.CUSTOM_OP: "#D55E00",
    ArmPath.GEMM: "#0072B2",
    ArmPath.PRECOMPUTE: "#009E73",
    ArmPath.AUTO: "#CC79A7",
}
COLOURS = (*(_COLOURS[path] for path in ArmPath), "#8C6D46")
"""Told apart with any colour vision; each has a contrast of 3:1 on both backgrounds."""

_SHAPES = {
    ArmPath.NATIVE: "square",
    ArmPath.CUSTOM_OP: "triangle-up",
    ArmPath.GEMM: "circle",
    ArmPath.PRECOMPUTE: "diamond",
    ArmPath.AUTO: "cross",
}
SHAPES = (*(_SHAPES[path] for path in ArmPath), "triangle-down")

VERDICT_SIGNS = {
    Verdict.FASTER: "▲",
    Verdict.SLOWER: "▼",
    Verdict.SAME: "=",
    Verdict.UNCLEAR: "?",
}

INK = {"light": "#1B1F24", "dark": "#E8EAED"}
"""Text inside a chart; axis text is coloured by Streamlit itself."""

QUIET = "#808080"
"""Rules and stems, on both backgrounds."""

ABSENT = "–"
"""What a table or a sentence shows where there is no value."""

_NARROW = 0.02


def number(value: float | None, digits: int = 3) -> str:
    """``value`` with at least that many significant digits, thousands separated."""
    if value is None:
        return ABSENT
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(decimals, 0)}f}"


def megabytes(size: float | None) -> float | None:
    """Bytes in units of 10^6 bytes."""
    return None if size is None else size / 1e6


def ratio(value: float, low: float | None, high: float | None) -> str:
    """``0.93× [0.91, 0.95]``, with a third decimal where the interval is narrow."""
    if low is None or high is None:
        return f"{_plain_ratio(value, 2)}×"
    decimals = 3 if high - low < _NARROW else 2
    bounds = ", ".join(_plain_ratio(bound, decimals) for bound in (low, high))
    return f"{_plain_ratio(value, decimals)}× [{bounds}]"


def _plain_ratio(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}" if value >= 0.1 else f"{value:.2g}"


def verdict(value: Verdict) -> str:
    """``▲ FASTER``: the word and its sign."""
    return f"{VERDICT_SIGNS[value]} {value.name}"


def utc(moment: datetime | None) -> str:
    """``2025-01-31 12:00 UTC``; the store holds UTC without saying so in each value."""
    return ABSENT if moment is None else f"{moment:%Y-%m-%d %H:%M} UTC"


def note_letters(tags: Iterable[str]) -> dict[str, str]:
    """A footnote letter for each distinct tag, in alphabetical order."""
    return {tag: _letter(index) for index, tag in enumerate(sorted(set(tags)))}


def _letter(index: int) -> str:
    prefix = "" if index < 26 else _letter(index // 26 - 1)
    return prefix + chr(ord("a") + index % 26)
