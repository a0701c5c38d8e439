"""Weightless layers for MAX: ``max generate --custom-architectures weightless_fw``."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    # Built when MAX asks: the numpy parts and the commands start without MAX.
    if name != "ARCHITECTURES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from weightless_fw.models.gemma3.arch import weightless_gemma3_arch

    return [weightless_gemma3_arch]
