"""Which path runs: the rule, and why it chose."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from weightless_fw.settings import Settings

METAL_CROSSOVER_RANK = 8
"""Rank from which stock matmuls beat the custom op on Metal (published)."""


class Path(StrEnum):
    """How y = s * (W0 x) + U (V^T x) is executed."""

    CUSTOM_OP = "custom-op"
    GEMM = "gemm"
    PRECOMPUTE = "precompute"


@dataclass(frozen=True)
class Selection:
    path: Path
    reason: str


def select_path(settings: Settings, accelerator_api: str) -> Selection:
    """Chooses the path from the switches and the accelerator.

    Args:
        settings: The switches.
        accelerator_api: ``max.driver.accelerator_api()``: "cuda", "hip",
            "metal", or "cpu" where there is no accelerator.
    """
    if settings.precompute_outside:
        return Selection(Path.PRECOMPUTE, "WEIGHTLESS_PRECOMPUTE_OUTSIDE is set")
    if settings.gemm is not None:
        path = Path.GEMM if settings.gemm else Path.CUSTOM_OP
        return Selection(path, f"WEIGHTLESS_GEMM={int(settings.gemm)}")
    if accelerator_api not in ("metal", "cpu", ""):
        return Selection(Path.GEMM, f"accelerator {accelerator_api}: GEMM at any rank")
    where = "Metal" if accelerator_api == "metal" else "no known accelerator"
    path = Path.GEMM if settings.rank >= METAL_CROSSOVER_RANK else Path.CUSTOM_OP
    side = ">=" if path is Path.GEMM else "<"
    return Selection(path, f"{where}: rank {settings.rank} {side} {METAL_CROSSOVER_RANK}")
