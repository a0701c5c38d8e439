"""One row per case: which campaign speaks, what is measured, and what is not."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suite.errors import UserError
from suite.plan import ArmPath, Case
from suite.results.model import Campaign, Machine, Pair, PairStatus, Provenance, RunStatus
from suite.results.store import create_empty, publish
from suite.results.summary import CaseSummary, summarise, to_json
from suite.stats import Verdict
from tests.builders import RATES, START, WORKLOAD, arm, campaign, case, pair, run, runs

GEMM, CUSTOM, NATIVE = case(), case(ArmPath.CUSTOM_OP), case(ArmPath.NATIVE)

FAILED: dict[str, Any] = {"status": PairStatus.TIMEOUT, "reason": "no token for 600 s"}

KEYS = [
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
]

NUMBERS = [
    "decode_tok_s",
    "ttft_ms",
    "tpot_ms",
    "ratio",
    "ratio_low",
    "ratio_high",
    "bytes_per_token",
    "mbu",
    "kl",
    "top1",
    "ppl_ratio",
]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "results.duckdb"


def summaries(database: Path, *pairs: Pair, of: Campaign | None = None) -> dict[str, CaseSummary]:
    publish(database, of or campaign(), pairs)
    return {row.label: row for row in summarise(database)}


def later(days: int, campaign_id: str, **fields: Any) -> Campaign:
    return campaign(campaign_id, started_at=START + timedelta(days=days), **fields)


def on(days: int, of: Case = GEMM, **fields: Any) -> Pair:
    return pair(of, finished_at=START + timedelta(days=days, hours=1), **fields)


def with_rates(arm_tok_s: list[float], native_tok_s: list[float], **fields: Any) -> Pair:
    made = runs(GEMM, arm_tok_s=arm_tok_s, native_tok_s=native_tok_s, **fields)
    return pair(rounds=len(arm_tok_s), runs=made)


def test_medians_are_over_measured_rounds(database: Path) -> None:
    row = summaries(database, with_rates([90.0, 120.0, 100.0, 70.0], list(RATES[:4])))[GEMM.label]
    assert row.decode_tok_s == pytest.approx(95.0)
    assert row.ttft_ms == pytest.approx(np.median([5000 / r for r in (90, 120, 100, 70)]))
    assert row.tpot_ms == pytest.approx(np.median([1000 / r for r in (90, 120, 100, 70)]))
    assert (row.rounds, row.decode_tok_s_n, row.ttft_ms_n, row.tpot_ms_n) == (4, 4, 4, 4)


def test_native_dense_is_a_row_over_all_pairs_and_has_no_ratio(database: Path) -> None:
    slow = pair(CUSTOM, native_tok_s=[80.0, 81.0, 79.0, 80.5, 79.5])
    row = summaries(database, pair(), slow)["native-dense"]
    assert row.rounds == 10
    assert row.decode_tok_s == pytest.approx((99.0 + 81.0) / 2)
    assert (row.ratio, row.verdict, row.rank, row.groups, row.fusions) == (None,) * 5
    assert row.status == "ok"


def test_rows_come_with_native_dense_first(database: Path) -> None:
    assert list(summaries(database, pair(), pair(CUSTOM))) == [
        "native-dense",
        CUSTOM.label,
        GEMM.label,
    ]


def test_the_ratio_is_that_of_the_pair_itself(database: Path) -> None:
    slow = pair(CUSTOM, ratio=0.8, native_tok_s=[50.0, 51.0, 49.0, 50.5, 49.5])
    rows = summaries(database, pair(ratio=1.25), slow)
    assert rows[GEMM.label].ratio == pytest.approx(1.25, rel=1e-3)
    assert rows[CUSTOM.label].ratio == pytest.approx(0.8, rel=1e-3)
    assert rows[GEMM.label].verdict is Verdict.FASTER
    assert rows[CUSTOM.label].verdict is Verdict.SLOWER


def test_a_slow_warm_up_moves_nothing(tmp_path: Path) -> None:
    normal = pair()
    slowed = tuple(
        replace(r, events=tuple((1000 + 100 * (t - 1000), n) for t, n in r.events))
        if r.warmup
        else r
        for r in normal.runs
    )
    before = summaries(tmp_path / "a.duckdb", normal)
    after = summaries(tmp_path / "b.duckdb", replace(normal, runs=slowed))
    assert to_json(tuple(before.values())) == to_json(tuple(after.values()))


def test_time_spent_counts_every_run(database: Path) -> None:
    row = summaries(database, with_rates([100.0, 50.0], [80.0, 81.0]))[GEMM.label]
    # 20 intervals to the last token; the warm-up runs at half the rate of round 0.
    assert row.timing_s == pytest.approx(20 / 50 + 20 / 100 + 20 / 50)
    assert (row.compile_s, row.load_s, row.check_s) == (3.0, 2.0, 1.0)


def test_a_failed_pair_is_a_row_with_its_reason_and_no_number(database: Path) -> None:
    partial = tuple(r for r in pair().runs if r.round == 0)
    row = summaries(database, pair(**FAILED, runs=partial), pair(CUSTOM))[GEMM.label]
    assert (row.status, row.reason) == ("timeout", "no token for 600 s")
    assert (row.decode_tok_s, row.ratio, row.verdict, row.rounds) == (None, None, None, 0)


def test_when_everything_failed_nothing_is_zero(database: Path) -> None:
    rows = summaries(database, pair(**FAILED), pair(CUSTOM, **FAILED))
    assert list(rows) == [CUSTOM.label, GEMM.label]
    for row in json.loads(to_json(tuple(rows.values()))):
        assert [row[name] for name in NUMBERS] == [None] * len(NUMBERS)
        assert row["status"] == "timeout"


def test_native_dense_that_never_finished_a_run_is_failed(database: Path) -> None:
    native = run(NATIVE, GEMM, events=(), status=RunStatus.FAILED, reason="lost")
    row = summaries(database, pair(**FAILED, runs=(native,)))["native-dense"]
    assert (row.status, row.reason, row.decode_tok_s) == ("failed", "lost", None)


def test_an_empty_store_has_no_rows(database: Path) -> None:
    create_empty(database)
    assert summarise(database) == ()
    assert json.loads(to_json(())) == []


def test_a_missing_store_is_an_error(database: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        summarise(database)


# Which campaign speaks


def test_the_newest_series_speaks(database: Path) -> None:
    summaries(database, on(0, ratio=1.25), on(0, CUSTOM))
    rows = summaries(database, on(1, ratio=2.0), of=later(1, "c2"))
    assert rows[GEMM.label].ratio == pytest.approx(2.0, rel=1e-3)
    assert (rows[GEMM.label].campaign_id, rows[GEMM.label].rounds) == ("c2", 5)
    assert rows[CUSTOM.label].campaign_id == "c1"
    assert (rows["native-dense"].campaign_id, rows["native-dense"].rounds) == ("c2", 5)


def test_the_order_of_publishing_is_not_the_order_of_time(database: Path) -> None:
    summaries(database, on(1, ratio=2.0), of=later(1, "c2"))
    rows = summaries(database, on(0, ratio=1.25))
    assert rows[GEMM.label].ratio == pytest.approx(2.0, rel=1e-3)


def test_a_newer_failure_is_shown(database: Path) -> None:
    summaries(database, on(0))
    rows = summaries(database, on(1, **FAILED), of=later(1, "c2"))
    assert rows[GEMM.label].status == "timeout"
    assert rows["native-dense"].campaign_id == "c1"


def test_an_interrupted_pair_gives_way_to_one_that_ended(database: Path) -> None:
    stopped: dict[str, Any] = {"status": PairStatus.INTERRUPTED, "reason": "stopped by the user"}
    assert summaries(database, on(0, **stopped))[GEMM.label].status == "interrupted"
    summaries(database, on(1), of=later(1, "c2"))
    rows = summaries(database, on(2, **stopped), of=later(2, "c3"))
    assert (rows[GEMM.label].status, rows[GEMM.label].campaign_id) == ("ok", "c2")


def test_a_continued_series_is_one(database: Path) -> None:
    summaries(database, on(0))
    rows = summaries(database, on(1, CUSTOM), of=later(1, "c2", series_id="c1"))
    assert rows["native-dense"].rounds == 10
    assert rows["native-dense"].campaign_id == "c2"
    assert rows["native-dense"].measured_at == START + timedelta(days=1, hours=1)


def test_a_failed_retry_within_a_series_hides_nothing(database: Path) -> None:
    summaries(database, on(0))
    rows = summaries(database, on(1, **FAILED), of=later(1, "c2", series_id="c1"))
    assert (rows[GEMM.label].status, rows[GEMM.label].campaign_id) == ("ok", "c1")


# What cannot be compared, or cannot be true


def test_a_pair_without_native_dense_says_so(database: Path) -> None:
    alone = tuple(r for r in pair().runs if r.case == GEMM)
    row = summaries(database, pair(runs=alone, arms=(arm(GEMM),)))[GEMM.label]
    assert (row.status, row.ratio, row.verdict) == ("ok", None, None)
    assert row.decode_tok_s is not None
    assert row.reason == "no native dense was measured with it, so there is no ratio"


def test_one_round_has_no_ratio_and_few_rounds_no_verdict(tmp_path: Path) -> None:
    one = summaries(tmp_path / "1.duckdb", with_rates([120.0], [100.0]))[GEMM.label]
    assert (one.ratio, one.verdict) == (None, Verdict.UNCLEAR)
    assert one.reason == "1 complete round, a ratio needs 2"
    four = pair(native_tok_s=RATES[:4])
    row = summaries(tmp_path / "4.duckdb", four)[GEMM.label]
    assert row.ratio == pytest.approx(1.25, rel=1e-2)
    assert row.verdict is Verdict.UNCLEAR


def test_rates_that_are_all_equal_are_invalid(database: Path) -> None:
    rows = summaries(database, with_rates([120.0, 120.0, 120.0], [100.0, 101.0, 102.0]))
    row = rows[GEMM.label]
    assert row.status == "invalid"
    assert row.reason is not None
    assert "3 rounds of the arm gave exactly 120" in row.reason
    assert (row.ratio, row.verdict) == (None, None)


def test_native_rates_that_are_all_equal_are_invalid(database: Path) -> None:
    rows = summaries(database, with_rates([120.0, 121.0], [100.0, 100.0]))
    assert {row.status for row in rows.values()} == {"invalid"}


def test_use_of_bandwidth_is_not_clamped(tmp_path: Path) -> None:
    rate = 124.75 * 1_001_000_000
    for share, status in ((0.5, "ok"), (1.01, "ok"), (1.5, "invalid")):
        machine = campaign(stream_bytes_s=rate / share)
        row = summaries(tmp_path / f"{share}.duckdb", pair(), of=machine)[GEMM.label]
        assert row.mbu == pytest.approx(share, rel=1e-2)
        assert row.status == status
        assert (row.verdict is None) == (row.reason is not None) == (status == "invalid")
    assert row.reason == "decode needs 1.50 times the measured stream bandwidth, more than 1.02"


def test_unknown_bandwidth_leaves_no_share(database: Path) -> None:
    row = summaries(database, pair())[GEMM.label]
    assert (row.mbu, row.bytes_per_token) == (None, 1_001_000_000)


def test_short_runs_leave_the_aggregates(database: Path) -> None:
    normal = pair()
    short: dict[str, Any] = {"status": RunStatus.SHORT, "reason": "3 tokens instead of 16"}
    cut = tuple(
        replace(r, events=r.events[:3], **short) if r.round == 1 and not r.warmup else r
        for r in normal.runs
    )
    row = summaries(database, replace(normal, runs=cut))[GEMM.label]
    assert row.rounds == 4
    nothing = tuple(replace(r, events=r.events[:1], **short) for r in normal.runs)
    row = summaries(database, replace(normal, runs=nothing))[GEMM.label]
    assert (row.status, row.reason) == ("invalid", "no measured round was complete")


@pytest.mark.parametrize(
    ("cached_tokens", "tag"),
    [(0, ()), (4, ("warm prefix cache",)), (None, ("prefix cache use unknown",))],
)
def test_a_warm_prefix_cache_shows(
    database: Path, cached_tokens: int | None, tag: tuple[str, ...]
) -> None:
    made = with_rates([120.0, 121.0], [100.0, 101.0], cached_tokens=cached_tokens)
    made = replace(made, arms=(arm(GEMM, tags=("random weights",)), arm(NATIVE)))
    rows = summaries(database, made)
    assert rows[GEMM.label].tags == ("random weights", *tag)
    assert rows["native-dense"].tags == tag


# The noise floor


def audit(spread: float = 0.01) -> Pair:
    """Native dense against itself, give or take `spread`."""
    rates = [100.0, 100.0 * (1 + spread), 101.0, 101.0 * (1 - spread), 102.0]
    made = runs(NATIVE, arm_tok_s=rates[::-1], native_tok_s=rates)
    return pair(NATIVE, runs=made, finished_at=START)


def test_an_audit_of_this_machine_sets_the_noise_floor(database: Path) -> None:
    rows = summaries(database, audit(), pair(ratio=1.0))
    floor = rows[GEMM.label].noise_floor
    assert floor is not None
    assert 0.005 < floor < 0.1
    assert rows[GEMM.label].verdict is Verdict.SAME
    assert len(rows) == 2
    assert rows["native-dense"].rounds == 15


def test_an_audit_of_another_machine_does_not_count(database: Path) -> None:
    publish(database, campaign("c0"), [audit()])
    other: Machine = replace(campaign().machine, cpu_model="Other CPU")
    rows = summaries(database, pair(ratio=1.0), of=campaign("c1", machine=other))
    assert rows[GEMM.label].noise_floor is None
    assert rows[GEMM.label].verdict is Verdict.UNCLEAR


# What ran


@pytest.mark.parametrize(
    ("of", "fusions"),
    [
        (GEMM, ("qkv", "gate_up")),
        (case(qkv_fuse=False), ("gate_up",)),
        (case(gate_up_fuse=False), ("qkv",)),
        (CUSTOM, ()),
    ],
)
def test_fusions_are_those_of_the_bound_weights(
    database: Path, of: Case, fusions: tuple[str, ...]
) -> None:
    assert summaries(database, pair(of))[of.label].fusions == fusions


def test_what_was_never_built_is_unknown(database: Path) -> None:
    row = summaries(database, pair(**FAILED))[GEMM.label]
    assert (row.fusions, row.groups, row.path_ran, row.dtype) == (None,) * 4
    assert row.workload.prompt_tokens is None


def test_one_band_per_layer_is_a_number_once_built(database: Path) -> None:
    two = case(groups=2)
    rows = summaries(database, pair(), pair(two))
    assert rows[GEMM.label].groups == 18
    assert rows[two.label].groups == 2


def test_an_automatic_choice_shows_what_ran(database: Path) -> None:
    auto = case(ArmPath.AUTO)
    built = (arm(auto, path_ran="gemm"), arm(NATIVE))
    row = summaries(database, pair(auto, arms=built))[auto.label]
    assert (row.path, row.path_ran) == ("auto", "gemm")


@pytest.mark.parametrize(
    ("commit", "dirty", "shown"),
    [("abc", False, "abc"), ("abc", True, "abc-dirty"), (None, None, None)],
)
def test_the_commit_says_whether_it_was_clean(
    database: Path, commit: str | None, dirty: bool | None, shown: str | None
) -> None:
    provenance: Provenance = replace(campaign().provenance, git_commit=commit, git_dirty=dirty)
    row = summaries(database, pair(), of=campaign(provenance=provenance))[GEMM.label]
    assert row.commit == shown


# JSON


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_json_holds_the_contract_and_nothing_else(database: Path) -> None:
    rows = summaries(database, pair(), pair(CUSTOM, **FAILED))
    parsed = json.loads(to_json(tuple(rows.values())), parse_constant=no_constant)
    assert [list(row) for row in parsed] == [KEYS] * 3
    gemm = next(row for row in parsed if row["path"] == "gemm")
    assert gemm["workload"] == {
        "prompt_tokens": 6,
        "new_tokens": WORKLOAD.new_tokens,
        "concurrency": 1,
    }
    assert gemm["measured_at"] == "2026-03-01T12:30:00Z"
    assert gemm["fusions"] == ["qkv", "gate_up"]
    assert gemm["verdict"] == "FASTER"
    assert gemm["capture"] is False


def test_json_refuses_what_is_not_a_number(database: Path) -> None:
    row = summaries(database, pair())[GEMM.label]
    with pytest.raises(ValueError, match="JSON"):
        to_json((replace(row, mbu=float("nan")),))
