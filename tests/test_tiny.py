"""The whole way on one page: plan, fake engine, store, report, dashboard."""

import io
import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from suite.campaign import BenchRequest, bench
from suite.engines.fake_engine import FakeEngine
from suite.plan import ArmPath, Case
from suite.progress import Progress
from suite.report import table
from suite.results.summary import summarise, to_json

ROOT = Path(__file__).parents[1]

PLAN = """
model: synthetic:gemma-3-tiny
rounds: 6
workload: {prompt: weightless, new_tokens: 16}
cases:
  - {path: precompute, rank: 4}
  - {path: gemm, rank: 4}
"""

SECONDS_PER_TOKEN = {ArmPath.NATIVE: 0.010, ArmPath.PRECOMPUTE: 0.008, ArmPath.GEMM: 0.020}


def pace(case: Case, run: int) -> float:
    """A little slower with every run, the same for every arm."""
    return SECONDS_PER_TOKEN[case.path] * (1 + 0.001 * run)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    plan = tmp_path / "tiny.yaml"
    plan.write_text(PLAN)
    request = BenchRequest(
        plan=str(plan),
        case=None,
        model=None,
        rounds=None,
        database=tmp_path / "results.duckdb",
        bundles=tmp_path / "bundles",
        argv=("suite", "bench"),
    )
    assert bench(request, Progress(io.StringIO()), lambda log: FakeEngine(pace))
    return request.database


def test_the_summary_says_what_the_engine_did(database: Path) -> None:
    rows = {row.path: row for row in summarise(database)}
    assert rows.keys() == {"native-dense", "precompute", "gemm"}
    assert rows["precompute"].ratio == pytest.approx(10 / 8, rel=0.01)
    assert rows["precompute"].verdict == "FASTER"
    assert rows["gemm"].ratio == pytest.approx(10 / 20, rel=0.01)
    assert rows["gemm"].verdict == "SLOWER"
    assert rows["native-dense"].ratio is None
    assert rows["gemm"].tpot_ms == pytest.approx(20, rel=0.02)
    assert rows["gemm"].rounds == 6


def test_the_json_is_strict_and_has_every_key(database: Path) -> None:
    def refuse(text: str) -> None:
        raise AssertionError(text)

    rows = json.loads(to_json(summarise(database)), parse_constant=refuse)
    keys = (
        "model device path groups rank quant fusions capture workload status reason rounds "
        "decode_tok_s ttft_ms tpot_ms ratio ratio_low ratio_high verdict bytes_per_token mbu kl "
        "top1 ppl_ratio engine measured_at commit"
    )
    assert [list(row) for row in rows] == [keys.split()] * 3
    assert all(row["kl"] is None and row["mbu"] is None for row in rows)


def test_the_table_has_a_line_per_case_and_counts_them(database: Path) -> None:
    text = table(summarise(database))
    for label in ("native-dense", "precompute r=4 G=layers", "gemm r=4 G=layers"):
        assert label in text
    assert "3 of 3 cases ok" in text


def test_the_dashboard_shows_them(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIGHTLESS_DB", str(database))
    app = AppTest.from_file(ROOT / "dashboard" / "app.py", default_timeout=60).run()
    assert not app.exception
    shown = " ".join(str(element.value) for element in [*app.markdown, *app.title, *app.header])
    assert "precompute" in shown
