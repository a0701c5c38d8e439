"""The row that terminal, Markdown, JSON and dashboard show for a case."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from suite.stats import Verdict

INVALID = "invalid"
"""Status of a row whose numbers cannot be true."""

CONTRACT = (
    "model",
    "device",
    "path",
    "groups",
    "rank",
    "quant",
    "fusions",
    "capture",
    "workload",
    "status",
    "reason",
    "rounds",
    "decode_tok_s",
    "ttft_ms",
    "tpot_ms",
    "ratio",
    "ratio_low",
    "ratio_high",
    "verdict",
    "bytes_per_token",
    "mbu",
    "kl",
    "top1",
    "ppl_ratio",
    "engine",
    "measured_at",
    "commit",
)
"""Keys of one row of the JSON output, in order."""


@dataclass(frozen=True, kw_only=True)
class SummaryWorkload:
    """The request, as measured."""

    prompt_tokens: int | None
    new_tokens: int
    concurrency: int = 1


@dataclass(frozen=True, kw_only=True)
class CaseSummary:
    """A case in the newest series in which it ended. None is "not measured"."""

    model: str
    device: str
    path: str
    """As asked for; `path_ran` is what the graph held."""
    groups: int | None
    """Bands of the built graph; None for native dense and where nothing was built."""
    rank: int | None
    quant: str
    fusions: tuple[str, ...] | None
    """Projections in one matrix, by the names of the bound weights; None where
    nothing was built and for native dense, whose weights do not tell."""
    capture: bool
    workload: SummaryWorkload
    status: str
    """That of the pair, or INVALID."""
    reason: str | None
    rounds: int
    """Measured runs in the medians."""
    decode_tok_s: float | None
    """Median over measured rounds, as are the next two."""
    ttft_ms: float | None
    tpot_ms: float | None
    ratio: float | None
    """Speed-up over native dense of the same pair, see `suite.stats.paired_ratio`."""
    ratio_low: float | None
    ratio_high: float | None
    verdict: Verdict | None
    """None where there is no ratio: native dense itself, and rows that are not ok."""
    bytes_per_token: int | None
    mbu: float | None
    """Share of the machine's stream bandwidth that the decode rate needs."""
    kl: float | None
    top1: float | None
    ppl_ratio: float | None
    engine: str
    measured_at: datetime
    """UTC."""
    commit: str | None
    """Ends in "-dirty" where tracked files differed."""
    label: str
    case_id: str
    campaign_id: str
    weights: str
    tags: tuple[str, ...]
    path_ran: str | None
    dtype: str | None
    compile_s: float | None
    load_s: float | None
    check_s: float | None
    timing_s: float | None
    """Sum of the end-to-end times of all its runs, warm-up too."""
    cpu_model: str
    noise_floor: float | None
    """Relative difference of native dense against itself on this machine."""
    decode_tok_s_n: int
    """How many values stand behind the median, as do the next two."""
    ttft_ms_n: int
    tpot_ms_n: int


def to_json(summaries: Sequence[CaseSummary]) -> str:
    """Strict JSON: an array of objects with the keys of `CONTRACT`, null where not measured."""
    rows = []
    for summary in summaries:
        row = {key: getattr(summary, key) for key in CONTRACT}
        row["workload"] = asdict(summary.workload)
        row["measured_at"] = summary.measured_at.strftime("%Y-%m-%dT%H:%M:%SZ")
        rows.append(row)
    return json.dumps(rows, indent=2, allow_nan=False)
