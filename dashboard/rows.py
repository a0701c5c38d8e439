"""The rows that the dashboard reads besides the case summaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A figure published elsewhere, as published."""

    source: str
    hardware: str
    model: str
    path: str
    rank: int | None
    groups: int | None
    quant: str
    capture: bool | None
    decode_tok_s: float
    native_decode_tok_s: float | None
    note: str | None

    @property
    def label(self) -> str:
        """Unlike a case's label, it names only what the source states."""
        parts = [self.path]
        parts += [] if self.rank is None else [f"r={self.rank}"]
        parts += [] if self.groups is None else [f"G={self.groups}"]
        parts += [] if self.quant == "none" else [self.quant]
        parts += ["capture"] if self.capture else []
        return " ".join(parts)


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One request, with the metrics that the store derives from its events."""

    run_id: str
    campaign_id: str
    pair_case_id: str
    case_id: str
    pair_label: str
    """The case this run was measured for: the pair's case, also where native dense ran."""
    started_at: datetime
    model: str
    model_weights: str
    device: str
    label: str
    path: str
    rank: int | None
    groups: int | None
    round: int
    slot: int
    warmup: bool
    status: str
    reason: str | None
    tokens: int
    prompt_tokens: int
    decode_tok_s: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    prefill_tok_s: float | None
    e2e_ms: float | None
    tags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TokenTime:
    """Time of one generated token, or the median over a few neighbouring ones."""

    label: str
    path: str
    token: int
    ms: float


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a run comes from and what really ran, by the columns of the store."""

    campaign: Mapping[str, Any]
    arm: Mapping[str, Any] | None
    """None where the case failed before its graph was read back."""
