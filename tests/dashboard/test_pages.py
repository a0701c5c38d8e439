"""Both pages over every kind of store, without a browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from dashboard import data
from suite.plan import ArmPath
from suite.results.store import publish
from tests import builders
from tests.dashboard import stores

APP = Path(__file__).parents[2] / "dashboard" / "app.py"
RUNS = "views/runs.py"


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "results.duckdb"
    monkeypatch.setenv("WEIGHTLESS_DB", str(path))
    return path


def opened(page: str | None = None, **query: str) -> AppTest:
    app = AppTest.from_file(APP, default_timeout=60)
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    if page is not None:
        app.switch_page(page).run()
    assert [error.value for error in app.exception] == []
    return app


def said(app: AppTest) -> str:
    """All text of a page, without the escapes of Markdown."""
    elements = [*app.markdown, *app.caption, *app.info, *app.warning, *app.subheader, *app.error]
    return "\n".join(element.value for element in elements).replace("\\", "")


def charts_of(app: AppTest) -> int:
    return len(app.get("vega_lite_chart"))


def test_overview_of_a_full_store(database: Path) -> None:
    stores.full(database)
    app = opened()
    text = said(app)
    assert "precompute r=4 G=layers decodes at 0.980× native dense" in text
    assert "no configuration measured here beats native dense" in text
    assert ":red-badge[6 of 7 cases succeeded (86%)]" in text
    assert stores.OUT_OF_MEMORY in text
    assert f"[a] {stores.ZERO} · [b] {stores.INCOHERENT}" in text
    assert "gemma-3-270m, dequantised Q4_K_M" in text
    assert "Published, other hardware, never compared" in text
    assert charts_of(app) == 6


def test_overview_of_another_model(database: Path) -> None:
    stores.full(database)
    app = opened()
    app.selectbox(key="model").select("synthetic:gemma-3-tiny").run()
    text = said(app)
    assert "decodes at 0.800× native dense" in text
    assert f":orange-badge[{stores.RANDOM}]" in text
    assert f"All rows: {stores.RANDOM}" in text


def test_overview_of_one_case(database: Path) -> None:
    stores.one_row(database)
    app = opened()
    assert "it is the only configuration measured here" in said(app)
    assert ":gray-badge[1 of 1 case succeeded]" in said(app)
    assert not app.selectbox


def test_overview_where_everything_failed(database: Path) -> None:
    stores.all_failed(database)
    app = opened()
    text = said(app)
    assert "All 2 cases here failed" in text
    assert ":red-badge[0 of 2 cases succeeded (0%)]" in text
    assert "Native dense was not measured here" in text
    assert "the graph did not compile" in text and stores.OUT_OF_MEMORY in text
    table = app.dataframe[0].value
    assert table["decode (tok/s)"].isna().all()


@pytest.mark.parametrize("page", [None, RUNS])
def test_an_empty_store_names_the_command_that_fills_it(database: Path, page: str | None) -> None:
    stores.empty(database)
    assert "`make bench` fills it" in said(opened(page))


@pytest.mark.parametrize("page", [None, RUNS])
@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda path: None, "`make bench`"),
        (stores.corrupt, "`make bench`"),
        (stores.newer, "`git pull && make setup`"),
    ],
    ids=["missing", "corrupt", "newer"],
)
def test_an_unreadable_store_is_one_sentence_with_a_remedy(
    database: Path, page: str | None, make: Callable[[Path], None], remedy: str
) -> None:
    make(database)
    app = opened(page)
    (warning,) = app.warning
    assert remedy in warning.value
    assert warning.value.endswith(".") and "\n" not in warning.value
    assert "--db" not in warning.value


def test_runs_of_a_full_store(database: Path) -> None:
    stores.full(database)
    app = opened(RUNS)
    assert "84 of 84 runs" in said(app)
    for tag in (stores.ZERO, stores.INCOHERENT, stores.RANDOM):
        assert f":orange-badge[{tag}]" in said(app).replace("\\", "")
    table = app.dataframe[0].value
    assert {"decode (tok/s)", "TTFT (ms)", "run id", "tags"} <= set(table.columns)
    assert table["decode (tok/s)"].notna().all()


def test_filters_narrow_the_table(database: Path) -> None:
    stores.full(database)
    app = opened(RUNS)
    app.selectbox(key="path").select("custom-op")
    app.selectbox(key="rank").select("32")
    app.selectbox(key="phase").select("measured").run()
    assert set(app.dataframe[0].value["case"]) == {"custom-op r=32 G=layers"}
    assert len(app.dataframe[0].value) == 5


def test_an_empty_table_names_the_filter_that_emptied_it(database: Path) -> None:
    stores.full(database)
    app = opened(RUNS)
    app.selectbox(key="model").select("gemma-3-270m")
    app.selectbox(key="path").select("precompute")
    app.selectbox(key="rank").select("32").run()
    (info,) = app.info
    assert "Path: precompute" in info.value and "Rank: 32" in info.value
    assert "Model" not in info.value
    assert "`make bench`" in info.value


def test_ranks_are_offered_by_size(database: Path) -> None:
    publish(
        database,
        builders.campaign(),
        [builders.pair(builders.case(rank=rank)) for rank in (16, 4, 32)],
    )
    assert opened(RUNS).selectbox(key="rank").options == ["4", "16", "32"]


def test_a_linked_run_shows_what_ran_and_where(database: Path) -> None:
    of = builders.case(ArmPath.CUSTOM_OP)
    publish(database, builders.campaign(), [builders.pair(of)])
    (run, *_) = [run for run in data.runs() if run.path == ArmPath.CUSTOM_OP]
    app = opened(RUNS, run=run.run_id)
    facts = {row.fact: row.value for table in app.table for row in table.value.itertuples()}
    assert facts["custom ops"] == "generated\\_linear ×126"
    assert facts["CPU"] == "Example CPU" and facts["memory"] == "8.59 GB"
    assert charts_of(app) == 1


def test_a_replaced_store_shows_at_the_next_rerun(database: Path) -> None:
    stores.one_row(database)
    app = opened()
    assert "decodes at 1.25" in said(app)
    other = database.with_name("other.duckdb")
    stores.one_row(other, ratio=1.5)
    other.replace(database)
    app.run()
    assert "decodes at 1.50" in said(app)


def test_events_without_tokens_and_with_several(database: Path) -> None:
    of = builders.case()
    run = builders.run(of, of, events=((1000.1, 1), (1000.4, 3), (1000.5, 0), (1000.6, 2)))
    publish(database, builders.campaign(), [builders.pair(of, runs=(run,), rounds=1)])
    (shown,) = data.runs()
    times = data.token_times(shown.run_id)
    assert [(time.token, round(time.ms, 6)) for time in times] == [(4, 100.0), (6, 100.0)]


def test_many_tokens_become_medians_over_neighbours(database: Path) -> None:
    of = builders.case()
    run = builders.run(of, of, new_tokens=5000)
    publish(database, builders.campaign(), [builders.pair(of, runs=(run,), rounds=1)])
    times = data.token_times(data.runs()[0].run_id)
    assert 900 <= len(times) <= data.MAX_POINTS + 1
    assert all(time.ms == pytest.approx(10.0) for time in times)


def test_the_store_in_the_root_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEIGHTLESS_DB", raising=False)
    assert data.database() == APP.parents[1] / "results.duckdb"
