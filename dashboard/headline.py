"""What the rows of one setting support, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard import style
from suite.plan import ArmPath
from suite.results.summary import CaseSummary
from suite.stats import Verdict


def measured_cases(rows: Sequence[CaseSummary]) -> list[CaseSummary]:
    """Every case but native dense."""
    return [row for row in rows if row.path != ArmPath.NATIVE]


def headline(rows: Sequence[CaseSummary]) -> str:
    """Which path wins and by how much, or why nothing can be said."""
    cases = measured_cases(rows)
    if not cases:
        return "Only native dense was measured here: there is nothing to compare with it."
    compared = [row for row in cases if row.ratio is not None]
    if not compared:
        if all(row.status != "ok" for row in cases):
            return f"{_all(len(cases))} failed: nothing can be said about speed."
        return "No case here was measured against native dense: nothing can be compared."
    faster = [row for row in compared if row.verdict is Verdict.FASTER]
    best = max(faster or compared, key=lambda row: row.ratio or 0.0)
    return f"{_claim(best)}; {_field(compared, faster)}."


def _claim(row: CaseSummary) -> str:
    assert row.ratio is not None
    interval = style.ratio(row.ratio, row.ratio_low, row.ratio_high)
    number, _, bounds = interval.partition(" ")
    parts = [f"{row.label} decodes at {number} native dense", bounds]
    claim = " ".join(part for part in parts if part)
    if row.verdict is not None:
        claim += f", {row.verdict.name}"
    return f"{claim} ({'; '.join(row.tags)})" if row.tags else claim


def _field(compared: Sequence[CaseSummary], faster: Sequence[CaseSummary]) -> str:
    if not faster:
        if any(row.verdict is Verdict.UNCLEAR for row in compared):
            return "no configuration measured here is shown to beat native dense"
        return "no configuration measured here beats native dense"
    if len(compared) == 1:
        return "it is the only configuration measured here"
    verb = "beats" if len(faster) == 1 else "beat"
    return f"{len(faster)} of {len(compared)} configurations measured here {verb} native dense"


def success(rows: Sequence[CaseSummary]) -> tuple[int, int]:
    """Cases with a valid result, and all cases; native dense is neither."""
    cases = measured_cases(rows)
    return sum(row.status == "ok" for row in cases), len(cases)


def _all(count: int) -> str:
    return "The one case here" if count == 1 else f"All {count} cases here"
