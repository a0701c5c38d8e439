"""Metrics of one run, against hand-computed values and against the store's view."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.metrics import Event, RunMetrics, itl_ms, run_metrics
from suite.results.model import RunStatus
from suite.results.rows import Row, campaign_row, case_row, pair_row, run_row
from suite.results.store import SCHEMA
from tests.builders import campaign, case, pair, run

GOLDEN = [(10.5, 1), (10.75, 3), (10.8, 0), (11.0, 2)]
"""Sent at 10.0: 6 tokens, the first after 0.5 s, 5 more in 0.5 s."""

NOTHING = dict.fromkeys(("ttft_ms", "tpot_ms", "decode_tok_s", "prefill_tok_s", "e2e_ms"))


def of(events: list[Event], *, cached_tokens: int | None = 2, failed: bool = False) -> RunMetrics:
    return run_metrics(10.0, events, prompt_tokens=6, cached_tokens=cached_tokens, failed=failed)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens", 6),
        ("ttft_ms", 500.0),
        ("tpot_ms", 100.0),
        ("decode_tok_s", 10.0),
        ("prefill_tok_s", 8.0),
        ("e2e_ms", 1000.0),
    ],
)
def test_each_metric_has_its_defined_value(name: str, value: float) -> None:
    assert getattr(of(GOLDEN), name) == pytest.approx(value)


def test_gaps_are_split_over_tokens_and_empty_events_have_none() -> None:
    gaps = itl_ms(GOLDEN)
    assert gaps == pytest.approx([250 / 3] * 3 + [125.0] * 2)
    assert sum(gaps) == pytest.approx(1000 * (11.0 - 10.5))
    assert 500.0 not in gaps


@pytest.mark.parametrize("events", [[], [(10.5, 0)], [(10.5, 1)], [(10.5, 2)]])
def test_runs_without_a_second_event_have_no_gap(events: list[Event]) -> None:
    assert itl_ms(events) == ()


def test_no_token_is_nothing_measured() -> None:
    assert asdict(of([])) == {"tokens": 0, **NOTHING}
    assert asdict(of([(10.5, 0)])) == {"tokens": 0, **NOTHING}


def test_one_token_has_no_decode_rate_and_two_have() -> None:
    one, two = of([(10.5, 1)]), of([(10.5, 1), (10.75, 1)])
    assert (one.ttft_ms, one.tpot_ms, one.decode_tok_s) == (500.0, None, None)
    assert (two.tpot_ms, two.decode_tok_s) == (250.0, 4.0)


def test_tokens_of_the_first_event_are_not_decoded() -> None:
    assert of([(10.5, 8), (10.75, 1), (11.0, 1)]).tpot_ms == 250.0


@pytest.mark.parametrize("last", [10.5, 10.4])
def test_a_time_per_token_is_positive_or_missing(last: float) -> None:
    metrics = of([(10.5, 1), (last, 1)])
    assert metrics.tpot_ms is None
    assert metrics.decode_tok_s is None


def test_unknown_cache_use_leaves_no_prefill_rate() -> None:
    assert of(GOLDEN, cached_tokens=None).prefill_tok_s is None


def test_a_failed_run_has_no_end() -> None:
    assert of(GOLDEN, failed=True).e2e_ms is None


def test_decode_rate_holds_no_prefill() -> None:
    rates = set()
    for prefill_s in (0.5, 8.0):
        events = [(10.0 + prefill_s + 0.25 * i, 1) for i in range(5)]
        metrics = run_metrics(10.0, events, prompt_tokens=int(64 * prefill_s), cached_tokens=0)
        rates.add(metrics.decode_tok_s)
    assert rates == {4.0}


@pytest.fixture(scope="module")
def store() -> Iterator[duckdb.DuckDBPyConnection]:
    """The schema in memory with one pair and no run."""
    with duckdb.connect() as connection:
        connection.execute(SCHEMA.read_text())
        rows = {
            "campaign": [campaign_row(campaign())],
            "case": [case_row(case()), case_row(case().native)],
            "pair": [pair_row(campaign(), pair())],
        }
        for table, content in rows.items():
            for row in content:
                insert(connection, table, row)
        yield connection


def insert(connection: duckdb.DuckDBPyConnection, table: str, row: Row) -> None:
    marks = ", ".join("?" * len(row))
    connection.execute(
        f'INSERT INTO "{table}" ({", ".join(row)}) VALUES ({marks})', list(row.values())
    )


steps = st.tuples(st.floats(0, 10).filter(lambda s: s == 0 or s > 1e-6), st.integers(0, 9))


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(steps, max_size=6),
    cached_tokens=st.none() | st.integers(0, 6),
    status=st.sampled_from(RunStatus),
)
def test_the_view_of_the_store_agrees(
    store: duckdb.DuckDBPyConnection,
    steps: list[tuple[float, int]],
    cached_tokens: int | None,
    status: RunStatus,
) -> None:
    now, events = 10.0, []
    for seconds, tokens in steps:
        now += seconds
        events.append((now, tokens))
    one = run(
        case(),
        case(),
        t_send=10.0,
        events=tuple(events),
        cached_tokens=cached_tokens,
        status=status,
        reason=None if status is RunStatus.OK else "because",
    )
    store.begin()
    insert(store, "run", run_row(campaign(), one))
    expected = asdict(of(events, cached_tokens=cached_tokens, failed=status is RunStatus.FAILED))
    found = store.execute(f"SELECT {', '.join(expected)} FROM run_metrics").fetchone()
    counted = store.execute("SELECT count(*) FROM measured_runs").fetchone()
    store.rollback()
    assert found is not None
    for (name, value), other in zip(expected.items(), found, strict=True):
        assert (value is None) == (other is None), name
        assert value is None or math.isclose(value, other, rel_tol=1e-12), name
    usable = status is RunStatus.OK and expected["tpot_ms"] is not None
    assert counted == (int(usable),)
