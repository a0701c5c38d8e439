"""The only SQL of the dashboard: one short read-only connection for each query.

Answers are cached by what identifies the file on disk, so a store that was
replaced shows up at the next rerun, and no connection hinders the writer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import streamlit as st

from dashboard.rows import Origin, Reference, RunRow, TokenTime
from suite.errors import UserError
from suite.results.store import connect
from suite.results.summary import CaseSummary, summarise

DATABASE_VARIABLE = "WEIGHTLESS_DB"
MAX_POINTS = 1000
"""Points of one line; longer answers are shown as medians over neighbours."""

_ROOT = Path(__file__).resolve().parent.parent
_JSON_COLUMNS = {
    "packages",
    "argv",
    "cpus_allowed",
    "graph_ops",
    "custom_ops",
    "weight_shapes",
    "bytes_per_token_terms",
    "tags",
}

Identity = tuple[int, int, int]
Answer = TypeVar("Answer")


class UnreadableStoreError(Exception):
    """The store cannot be shown; the message is one sentence with the remedy."""


def database() -> Path:
    """The file named by WEIGHTLESS_DB, else results.duckdb beside this package."""
    return Path(os.environ.get(DATABASE_VARIABLE) or _ROOT / "results.duckdb")


def summaries() -> tuple[CaseSummary, ...]:
    """One row per case, native dense included."""
    return _ask(_summaries)


def runs() -> tuple[RunRow, ...]:
    """Every request, warm-up included, newest first."""
    return _ask(_runs)


def references() -> tuple[Reference, ...]:
    """Figures published elsewhere."""
    return _ask(_references)


def origin(run: RunRow) -> Origin:
    """Environment of a run's campaign and proof of the path it took."""
    return _ask(_origin, run.campaign_id, run.pair_case_id, run.case_id)


def token_times(run_id: str) -> tuple[TokenTime, ...]:
    """Time per token after the first, of this run and of the other arm in its round."""
    return _ask(_token_times, run_id)


def _ask(query: Callable[..., Answer], *arguments: str) -> Answer:
    path = database()
    try:
        stat = path.stat()
        return query(str(path), (stat.st_ino, stat.st_mtime_ns, stat.st_size), *arguments)
    except FileNotFoundError:
        raise UnreadableStoreError(
            f"There is no result store {path.name} yet; `make bench` measures and writes it."
        ) from None
    except UserError as error:
        raise UnreadableStoreError(_sentence(str(error))) from None
    except (duckdb.Error, OSError) as error:
        raise UnreadableStoreError(
            f"{path.name} cannot be read as a result store ({type(error).__name__}); "
            "move it away and run `make bench` to measure anew."
        ) from None


def _sentence(message: str) -> str:
    message = message.strip().replace("--db", DATABASE_VARIABLE)
    remedy = "" if "make " in message else ", or move it away and run `make bench`"
    return f"{message[:1].upper()}{message[1:].rstrip('.')}{remedy}."


@st.cache_data(show_spinner=False, max_entries=2)
def _summaries(path: str, identity: Identity) -> tuple[CaseSummary, ...]:
    return summarise(Path(path))


@st.cache_data(show_spinner=False, max_entries=2)
def _runs(path: str, identity: Identity) -> tuple[RunRow, ...]:
    rows = _rows(
        path,
        """
        SELECT m.run_id, m.campaign_id, m.pair_case_id, m.case_id, m.started_at,
            pair.label AS pair_label, c.model, k.model_weights, c.device, c.label, c.path,
            c.rank, c.groups,
            m.round, m.slot, m.warmup, m.status, m.reason, m.tokens, m.prompt_tokens,
            m.decode_tok_s, m.ttft_ms, m.tpot_ms, m.prefill_tok_s, m.e2e_ms, a.tags
        FROM run_metrics m
        JOIN "case" c ON c.case_id = m.case_id
        JOIN "case" pair ON pair.case_id = m.pair_case_id
        JOIN campaign k ON k.campaign_id = m.campaign_id
        LEFT JOIN arm a ON a.campaign_id = m.campaign_id
            AND a.pair_case_id = m.pair_case_id AND a.case_id = m.case_id
        ORDER BY m.started_at DESC, m.run_id DESC
        """,
    )
    return tuple(RunRow(**{**row, "tags": tuple(row["tags"] or ())}) for row in rows)


@st.cache_data(show_spinner=False, max_entries=2)
def _references(path: str, identity: Identity) -> tuple[Reference, ...]:
    rows = _rows(
        path,
        """
        SELECT source, hardware, model, path, rank, groups, quant, capture,
            decode_tok_s, native_decode_tok_s, note
        FROM reference ORDER BY source, model, reference_id
        """,
    )
    return tuple(Reference(**row) for row in rows)


@st.cache_data(show_spinner=False, max_entries=32)
def _origin(
    path: str, identity: Identity, campaign_id: str, pair_case_id: str, case_id: str
) -> Origin:
    campaigns = _rows(path, "SELECT * FROM campaign WHERE campaign_id = ?", campaign_id)
    arms = _rows(
        path,
        "SELECT * FROM arm WHERE campaign_id = ? AND pair_case_id = ? AND case_id = ?",
        campaign_id,
        pair_case_id,
        case_id,
    )
    return Origin(campaign=campaigns[0], arm=arms[0] if arms else None)


@st.cache_data(show_spinner=False, max_entries=32)
def _token_times(path: str, identity: Identity, run_id: str) -> tuple[TokenTime, ...]:
    rows = _rows(
        path,
        """
        WITH round AS (
            SELECT other.* FROM run one
            JOIN run other USING (campaign_id, pair_case_id, round, warmup)
            WHERE one.run_id = ?
        ), event AS (
            SELECT run_id, case_id, unnest(event_t) AS t, unnest(event_n) AS n,
                generate_subscripts(event_t, 1) AS position
            FROM round
        ), gap AS (
            SELECT run_id, case_id,
                sum(n) OVER through AS token,
                1000 * (t - lag(t) OVER through) / n AS ms,
                sum(n) OVER (PARTITION BY run_id) AS tokens
            FROM event WHERE n > 0
            WINDOW through AS (PARTITION BY run_id ORDER BY position)
        )
        SELECT c.label, c.path, min(token)::INTEGER AS token, median(ms) AS ms
        FROM gap JOIN "case" c USING (case_id)
        WHERE ms IS NOT NULL
        GROUP BY run_id, c.label, c.path, token // greatest(1, ceil(tokens / ?)::INTEGER)
        ORDER BY c.path <> 'native-dense', c.label, run_id, 3
        """,
        run_id,
        MAX_POINTS,
    )
    return tuple(TokenTime(**row) for row in rows)


def _rows(path: str, query: str, *parameters: Any) -> list[dict[str, Any]]:
    with connect(Path(path)) as connection:
        cursor = connection.execute(query, list(parameters))
        names = [column[0] for column in cursor.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    for row in rows:
        for name in _JSON_COLUMNS & row.keys():
            row[name] = None if row[name] is None else json.loads(row[name])
    return rows
