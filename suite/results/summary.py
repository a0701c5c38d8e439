"""One row per case, made from the newest series in which it ended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

import duckdb

from suite import stats
from suite.plan import ArmPath
from suite.results.case_summary import CONTRACT, INVALID, CaseSummary, SummaryWorkload, to_json
from suite.results.store import connect
from suite.stats import PairedRatio

__all__ = ["CONTRACT", "INVALID", "CaseSummary", "SummaryWorkload", "summarise", "to_json"]

MAX_MBU = 1.02
"""Above, a path would read memory faster than the machine can."""

BOOTSTRAP_SEED = 20260101

Table = Sequence[Mapping[str, Any]]

_FUSED = {"qkv_proj": "qkv", "gate_up_proj": "gate_up"}


@dataclass(frozen=True)
class _Store:
    """What the summary reads: rows in key order, by column."""

    pairs: Table
    """Each with its campaign's columns."""
    cases: Mapping[str, Mapping[str, Any]]
    arms: Table
    runs: Table
    """Of the view run_metrics."""


def summarise(database: Path) -> tuple[CaseSummary, ...]:
    """One row per case, native dense before the cases compared with it.

    Raises:
        UserError: The store cannot be read, see `suite.results.store.connect`.
    """
    with connect(database) as connection:
        store = _read(connection)
    natives = {pair["reference_case_id"] for pair in store.pairs}
    measured = {pair["case_id"] for pair in store.pairs} - natives
    rows = [_case_summary(store, case_id) for case_id in measured]
    rows += [row for case_id in natives if (row := _native_summary(store, case_id))]
    return tuple(sorted(rows, key=_order))


def _read(connection: duckdb.DuckDBPyConnection) -> _Store:
    def table(query: str) -> Table:
        cursor = connection.execute(query)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    return _Store(
        pairs=table(
            "SELECT p.*, c.* EXCLUDE (campaign_id, status) FROM pair p"
            " JOIN campaign c USING (campaign_id) ORDER BY p.finished_at, campaign_id, case_id"
        ),
        cases={row["case_id"]: row for row in table('SELECT * FROM "case"')},
        arms=table("SELECT * FROM arm ORDER BY campaign_id, pair_case_id, case_id"),
        runs=table(
            "SELECT m.*, measured_runs.run_id IS NOT NULL AS measured FROM run_metrics m"
            " LEFT JOIN measured_runs USING (run_id) ORDER BY run_id"
        ),
    )


def _case_summary(store: _Store, case_id: str) -> CaseSummary:
    pair = _newest([pair for pair in store.pairs if pair["case_id"] == case_id])
    native_id = pair["reference_case_id"]
    runs = [
        run
        for run in store.runs
        if run["campaign_id"] == pair["campaign_id"] and run["pair_case_id"] == case_id
    ]
    own = [run for run in runs if run["case_id"] == case_id]
    measured = [run for run in own if run["measured"]] if pair["status"] == "ok" else []
    native = [run for run in runs if run["case_id"] == native_id and run["measured"]]
    floor = _noise_floor(store, pair, native_id)
    status, reason, paired = pair["status"], pair["reason"], None
    if status == "ok":
        status, reason, paired = _compare(native, measured)
    row = _row(store, case_id, [pair], own, measured, status=status, reason=reason)
    if row["status"] != "ok":
        paired = None
    compared = row["status"] == "ok" and bool(native)
    return CaseSummary(
        **row,
        ratio=paired.ratio if paired else None,
        ratio_low=paired.low if paired else None,
        ratio_high=paired.high if paired else None,
        verdict=stats.verdict(paired, noise_floor=floor) if compared else None,
        noise_floor=floor,
    )


def _native_summary(store: _Store, case_id: str) -> CaseSummary | None:
    """Native dense over all pairs of the newest series that measured it; None if it never ran."""
    pairs = [pair for pair in store.pairs if pair["reference_case_id"] == case_id]
    runs = [run for run in store.runs if run["case_id"] == case_id]
    ran = {(run["campaign_id"], run["pair_case_id"]) for run in runs}
    best = {(run["campaign_id"], run["pair_case_id"]) for run in runs if run["measured"]} or ran
    candidates = [pair for pair in pairs if (pair["campaign_id"], pair["case_id"]) in best]
    if not candidates:
        return None
    series_id = max(candidates, key=lambda pair: pair["finished_at"])["series_id"]
    pairs = [pair for pair in candidates if pair["series_id"] == series_id]
    campaigns = {pair["campaign_id"] for pair in pairs}
    own = [run for run in runs if run["campaign_id"] in campaigns]
    measured = [run for run in own if run["measured"]]
    status, reason = "ok", None
    if not measured:
        reasons = [run["reason"] for run in own if run["reason"]]
        status, reason = "failed", reasons[0] if reasons else "no measured round was complete"
    elif constant := _constant(measured):
        status, reason = INVALID, constant
    return CaseSummary(
        **_row(store, case_id, pairs, own, measured, status=status, reason=reason),
        ratio=None,
        ratio_low=None,
        ratio_high=None,
        verdict=None,
        noise_floor=_noise_floor(store, pairs[-1], case_id),
    )


def _row(
    store: _Store,
    case_id: str,
    pairs: Table,
    runs: Table,
    measured: Table,
    *,
    status: str,
    reason: str | None,
) -> dict[str, Any]:
    """The fields that native dense and the other cases share, from what ran of it."""
    case, newest = store.cases[case_id], pairs[-1]
    campaigns = {pair["campaign_id"] for pair in pairs}
    arms = [a for a in store.arms if a["case_id"] == case_id and a["campaign_id"] in campaigns]
    arm: Mapping[str, Any] = arms[-1] if arms else {}
    terms = json.loads(arm.get("bytes_per_token_terms", "{}"))
    bytes_per_token = sum(terms.values()) or None
    rates = _values(measured, "decode_tok_s")
    decode_tok_s = stats.median(rates)
    mbu = _mbu(decode_tok_s, bytes_per_token, newest["stream_bytes_s"])
    if mbu is not None and mbu > MAX_MBU and status == "ok":
        status = INVALID
        reason = f"decode needs {mbu:.2f} times the measured stream bandwidth, more than {MAX_MBU}"
    e2e = _values(runs, "e2e_ms")
    prompts = {run["prompt_tokens"] for run in runs}
    ttft, tpot = _values(measured, "ttft_ms"), _values(measured, "tpot_ms")
    return {
        **{key: case[key] for key in ("model", "device", "path", "rank", "quant", "capture")},
        "groups": arm.get("groups_ran") or case["groups"],
        "fusions": _fusions(arm),
        "workload": SummaryWorkload(
            prompt_tokens=prompts.pop() if len(prompts) == 1 else None,
            new_tokens=case["new_tokens"],
        ),
        "status": status,
        "reason": reason,
        "rounds": len(measured),
        "decode_tok_s": decode_tok_s,
        "ttft_ms": stats.median(ttft),
        "tpot_ms": stats.median(tpot),
        "bytes_per_token": bytes_per_token,
        "mbu": mbu,
        "kl": None,
        "top1": None,
        "ppl_ratio": None,
        "engine": newest["engine"],
        "measured_at": newest["finished_at"].replace(tzinfo=UTC),
        "commit": _commit(newest),
        "label": case["label"],
        "case_id": case_id,
        "campaign_id": newest["campaign_id"],
        "weights": newest["model_weights"],
        "tags": (*json.loads(arm.get("tags", "[]")), *_cache_tags(measured)),
        "path_ran": arm.get("path_ran"),
        "dtype": arm.get("dtype"),
        **{key: stats.median([a[key] for a in arms]) for key in ("compile_s", "load_s", "check_s")},
        "timing_s": sum(e2e) / 1000 if e2e else None,
        "cpu_model": newest["cpu_model"],
        "decode_tok_s_n": len(rates),
        "ttft_ms_n": len(ttft),
        "tpot_ms_n": len(tpot),
    }


def _newest(pairs: Table) -> Mapping[str, Any]:
    """The pair that speaks for a case: of the newest series in which it ended.

    Within a series a pair that is ok comes before one that is not, so that a
    failed retry hides nothing.
    """
    ended = [pair for pair in pairs if pair["status"] != "interrupted"] or pairs
    series_id = max(ended, key=lambda pair: pair["finished_at"])["series_id"]
    series = [pair for pair in ended if pair["series_id"] == series_id]
    return max(series, key=lambda pair: (pair["status"] == "ok", pair["finished_at"]))


def _compare(native: Table, arm: Table) -> tuple[str, str | None, PairedRatio | None]:
    """Status, reason and speed-up of a pair that ended ok."""
    if not arm:
        return INVALID, "no measured round was complete", None
    if not native:
        return "ok", "no native dense was measured with it, so there is no ratio", None
    rates = [{run["round"]: run["decode_tok_s"] for run in side} for side in (native, arm)]
    rounds = sorted(rates[0].keys() & rates[1].keys())
    try:
        paired = stats.paired_ratio(
            [rates[0][r] for r in rounds], [rates[1][r] for r in rounds], seed=BOOTSTRAP_SEED
        )
    except ValueError as error:
        return INVALID, str(error), None
    if paired is None:
        return "ok", f"{len(rounds)} complete round, a ratio needs 2", None
    return "ok", None, paired


def _noise_floor(store: _Store, pair: Mapping[str, Any], native_id: str) -> float | None:
    """From the newest audit of this machine: a pair of native dense with itself.

    Its first side is the one that the interleaving A B B A starts with.
    """
    machine = ("cpu_model", "cpus_online", "cpus_allowed", "memory_bytes")
    audits = [
        audit
        for audit in store.pairs
        if audit["case_id"] == audit["reference_case_id"] == native_id
        and audit["status"] == "ok"
        and all(audit[key] == pair[key] for key in machine)
    ]
    if not audits:
        return None
    runs = [
        run
        for run in store.runs
        if run["campaign_id"] == audits[-1]["campaign_id"]
        and run["pair_case_id"] == native_id
        and run["measured"]
    ]
    sides = [[run for run in runs if run["slot"] == (run["round"] + b) % 2] for b in (0, 1)]
    _, _, paired = _compare(*sides)
    return stats.noise_floor(paired) if paired else None


def _constant(measured: Table) -> str | None:
    rates = _values(measured, "decode_tok_s")
    if len(rates) > 1 and min(rates) == max(rates):
        return f"{len(rates)} rounds gave exactly {rates[0]:g} tokens per second each"
    return None


def _mbu(
    decode_tok_s: float | None, bytes_per_token: int | None, stream_bytes_s: float | None
) -> float | None:
    if decode_tok_s is None or bytes_per_token is None or stream_bytes_s is None:
        return None
    return decode_tok_s * bytes_per_token / stream_bytes_s


def _fusions(arm: Mapping[str, Any]) -> tuple[str, ...] | None:
    if not arm:
        return None
    parts = {part for name in json.loads(arm["weight_shapes"]) for part in name.split(".")}
    found = tuple(fusion for weight, fusion in _FUSED.items() if weight in parts)
    return found if found or arm["path_ran"] != ArmPath.NATIVE else None


def _cache_tags(measured: Table) -> tuple[str, ...]:
    """Says so where a run may have found its prompt in a prefix cache."""
    cached = {run["cached_tokens"] for run in measured}
    unknown = ("prefix cache use unknown",) if None in cached else ()
    return unknown + (("warm prefix cache",) if cached - {0, None} else ())


def _commit(campaign: Mapping[str, Any]) -> str | None:
    commit: str | None = campaign["git_commit"]
    return f"{commit}-dirty" if commit and campaign["git_dirty"] else commit


def _values(runs: Table, column: str) -> list[float]:
    return [run[column] for run in runs if run[column] is not None]


def _order(summary: CaseSummary) -> tuple[object, ...]:
    work = summary.workload
    setting = (summary.model, summary.device, summary.capture, work.new_tokens)
    native = summary.path == ArmPath.NATIVE
    return (*setting, not native, summary.path, summary.rank or 0, summary.label, summary.case_id)
