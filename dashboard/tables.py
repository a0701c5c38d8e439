"""Rows as tables, for the screen and for CSV: every header names its unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from dashboard import style
from dashboard.rows import RunRow
from suite.results.summary import CaseSummary

Column = tuple[str, str, Callable[[Any], Any]]

_TIME = "datetime64[ms]"
"""UTC without a zone, as the header says."""

RUN_COLUMNS: tuple[Column, ...] = (
    ("case", "string", lambda run: run.label),
    ("tags", "string", lambda run: _joined(run.tags)),
    ("status", "string", lambda run: run.status),
    ("decode (tok/s)", "Float64", lambda run: run.decode_tok_s),
    ("TTFT (ms)", "Float64", lambda run: run.ttft_ms),
    ("TPOT (ms)", "Float64", lambda run: run.tpot_ms),
    ("measured for", "string", lambda run: run.pair_label),
    ("round", "Int64", lambda run: run.round),
    ("slot", "Int64", lambda run: run.slot),
    ("warm-up", "boolean", lambda run: run.warmup),
    ("generated (tokens)", "Int64", lambda run: run.tokens),
    ("prompt (tokens)", "Int64", lambda run: run.prompt_tokens),
    ("prefill (tok/s)", "Float64", lambda run: run.prefill_tok_s),
    ("end to end (ms)", "Float64", lambda run: run.e2e_ms),
    ("started (UTC)", _TIME, lambda run: run.started_at),
    ("model", "string", lambda run: run.model),
    ("weights", "string", lambda run: run.model_weights),
    ("device", "string", lambda run: run.device),
    ("reason", "string", lambda run: run.reason),
    ("campaign id", "string", lambda run: run.campaign_id),
    ("run id", "string", lambda run: run.run_id),
)

CASE_COLUMNS: tuple[Column, ...] = (
    ("case", "string", lambda row: row.label),
    ("tags", "string", lambda row: _joined(row.tags)),
    ("status", "string", lambda row: row.status),
    ("verdict", "string", lambda row: row.verdict and row.verdict.name),
    ("ratio to native dense", "Float64", lambda row: row.ratio),
    ("ratio, low", "Float64", lambda row: row.ratio_low),
    ("ratio, high", "Float64", lambda row: row.ratio_high),
    ("rounds", "Int64", lambda row: row.rounds),
    ("decode (tok/s)", "Float64", lambda row: row.decode_tok_s),
    ("TTFT (ms)", "Float64", lambda row: row.ttft_ms),
    ("TPOT (ms)", "Float64", lambda row: row.tpot_ms),
    ("read per token (MB)", "Float64", lambda row: style.megabytes(row.bytes_per_token)),
    ("MBU", "Float64", lambda row: row.mbu),
    ("KL (nat)", "Float64", lambda row: row.kl),
    ("top-1 agreement", "Float64", lambda row: row.top1),
    ("perplexity ratio", "Float64", lambda row: row.ppl_ratio),
    ("path that ran", "string", lambda row: row.path_ran),
    ("bands", "Int64", lambda row: row.groups),
    ("fusions", "string", lambda row: _joined(row.fusions or ())),
    ("quantisation", "string", lambda row: row.quant),
    ("dtype", "string", lambda row: row.dtype),
    ("compile (s)", "Float64", lambda row: row.compile_s),
    ("load (s)", "Float64", lambda row: row.load_s),
    ("check (s)", "Float64", lambda row: row.check_s),
    ("timing (s)", "Float64", lambda row: row.timing_s),
    ("reason", "string", lambda row: row.reason),
    ("measured (UTC)", _TIME, lambda row: row.measured_at.replace(tzinfo=None)),
    ("engine", "string", lambda row: row.engine),
    ("commit", "string", lambda row: row.commit),
    ("campaign id", "string", lambda row: row.campaign_id),
    ("case id", "string", lambda row: row.case_id),
)


def run_table(runs: Sequence[RunRow]) -> pd.DataFrame:
    """One row per run; blank where the store has no value."""
    return _table(runs, RUN_COLUMNS)


def case_table(rows: Sequence[CaseSummary]) -> pd.DataFrame:
    """One row per case; blank where the store has no value."""
    return _table(rows, CASE_COLUMNS)


def fact_table(facts: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """Names and values side by side."""
    return pd.DataFrame(facts, columns=["fact", "value"])


def csv(table: pd.DataFrame) -> bytes:
    """The table as UTF-8, times in ISO 8601, blank for absent."""
    return table.to_csv(index=False, date_format="%Y-%m-%dT%H:%M:%SZ").encode()


def _table(rows: Sequence[Any], columns: tuple[Column, ...]) -> pd.DataFrame:
    series = {
        name: pd.Series([value(row) for row in rows], dtype=kind) for name, kind, value in columns
    }
    return pd.DataFrame(series)


def _joined(tags: Sequence[str]) -> str | None:
    return "; ".join(tags) or None
