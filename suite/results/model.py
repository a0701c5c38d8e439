"""The rows of the store as types. Field names are the columns of schema.sql."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from suite.plan import Case


class PairStatus(StrEnum):
    OK = "ok"
    FAILED = "failed"
    OOM = "oom"
    TIMEOUT = "timeout"
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"


class CampaignStatus(StrEnum):
    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class RunStatus(StrEnum):
    OK = "ok"
    FAILED = "failed"
    SHORT = "short"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where a campaign ran. Holds no user names, home paths or host names."""

    os_kernel: str
    cpu_model: str
    cpu_flags_sha256: str | None
    cpus_online: int
    cpus_allowed: tuple[int, ...]
    governor: str | None
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Which code measured."""

    git_commit: str | None
    git_dirty: bool | None
    code_sha256: str
    """Hash of the suite's sources as they ran."""
    lock_sha256: str | None
    image: str
    packages: Mapping[str, str]
    argv: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """One start of the harness on one machine."""

    campaign_id: str
    series_id: str
    plan: str
    plan_key: str
    method_version: int
    engine: str
    started_at: datetime
    ended_at: datetime | None
    status: CampaignStatus
    model_name: str
    model_weights: str
    weights_sha256: str
    machine: Machine
    provenance: Provenance
    load_start: float | None
    load_end: float | None
    stream_bytes_s: float | None = None
    """Measured stream bandwidth; None if it was not measured."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What really ran for a case, read back from the built graph, and its checks."""

    case: Case
    path_ran: str
    path_reason: str
    groups_ran: int | None
    """Bands of the built graph; None for native dense."""
    dtype: str
    compile_s: float
    load_s: float
    check_s: float
    graph_ops: Mapping[str, int]
    custom_ops: Mapping[str, int]
    weight_shapes: Mapping[str, str]
    resident_bytes: int
    bytes_per_token_terms: Mapping[str, int]
    agreement: float
    agreement_perturbed: float | None
    perturbation_effect: float | None
    tolerance: float
    zero_factors: bool | None
    greedy_text: str | None
    tags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One request. ``events`` are (seconds on the monotonic clock, tokens)."""

    case: Case
    pair_case: Case
    round: int
    slot: int
    warmup: bool
    started_at: datetime
    t_send: float
    events: tuple[tuple[float, int], ...]
    prompt_tokens: int
    cached_tokens: int | None
    prompt_ids_sha256: str
    output_ids_sha256: str
    status: RunStatus
    reason: str | None

    def __post_init__(self) -> None:
        if (self.status is RunStatus.OK) != (self.reason is None):
            raise ValueError(f"a run with status {self.status} and reason {self.reason!r}")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The outcome of one case against native dense, with all its runs."""

    case: Case
    status: PairStatus
    reason: str | None
    rounds: int
    finished_at: datetime
    arms: tuple[Arm, ...]
    runs: tuple[Run, ...]

    def __post_init__(self) -> None:
        if (self.status is PairStatus.OK) != (self.reason is None):
            raise ValueError(f"a pair with status {self.status} and reason {self.reason!r}")
        if self.status is PairStatus.OK and self.rounds < 1:
            raise ValueError("a pair without a complete round is not ok")
