"""The terminal table and the README block."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suite.errors import UserError
from suite.plan import ArmPath
from suite.report import BEGIN, END, NO_NATIVE, markdown, table, write_readme
from suite.results.model import PairStatus
from suite.results.store import create_empty, publish
from suite.results.summary import CaseSummary, summarise
from tests.builders import arm, campaign, case, pair

GEMM, CUSTOM = case(), case(ArmPath.CUSTOM_OP)
OOM: dict[str, Any] = {"status": PairStatus.OOM, "reason": "out of memory"}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "results.duckdb"
    tagged = pair(CUSTOM, ratio=0.5, arms=(arm(CUSTOM, tags=("random weights",)), arm(GEMM.native)))
    failed = pair(case(ArmPath.PRECOMPUTE), **OOM)
    publish(path, campaign(), [pair(), tagged, failed])
    return path


@pytest.fixture(scope="module")
def rows(database: Path) -> tuple[CaseSummary, ...]:
    return summarise(database)


def line(text: str, label: str) -> str:
    return next(each for each in text.splitlines() if each.lstrip("| ").startswith(label))


def test_the_table_has_a_line_per_case_and_native_dense_first(
    rows: tuple[CaseSummary, ...],
) -> None:
    lines = table(rows[::-1]).splitlines()
    assert lines[1].split("  ")[0] == "case"
    assert lines[2].startswith("native-dense ")
    assert re.split(r"\s{2,}", line(table(rows), GEMM.label)) == [
        GEMM.label,
        "124.8",
        "40.1",
        "8.02",
        "1.250 [1.246, 1.252] FASTER",
        "1001.0",
        "3.0",
        "2.0",
        "1.1",
        "ok",
    ]


def test_the_heading_names_the_conditions(rows: tuple[CaseSummary, ...]) -> None:
    assert table(rows).splitlines()[0] == (
        "gemma-3-270m (dequantised Q4_K_M), cpu: Example CPU, max 26.7.0, 6 prompt tokens, "
        "16 new tokens, capture off, 2026-03-01, commit 0123456789ab"
    )


@pytest.mark.parametrize("render", [table, markdown])
def test_failures_are_counted_and_explained(render: Any, rows: tuple[CaseSummary, ...]) -> None:
    text = render(rows)
    assert "3 of 4 cases ok" in text
    assert "precompute r=4 G=layers: oom, out of memory" in text
    assert not re.search(r"\d", line(text, "precompute r=4").split("layers", 1)[1].rstrip("okm| 0"))
    assert "nan" not in text.lower()
    assert "None" not in text


@pytest.mark.parametrize("render", [table, markdown])
def test_tags_show_wherever_their_rows_do(render: Any, rows: tuple[CaseSummary, ...]) -> None:
    assert f"random weights: {CUSTOM.label}" in render(rows)


@pytest.mark.parametrize("render", [table, markdown])
def test_missing_native_dense_is_said(render: Any, rows: tuple[CaseSummary, ...]) -> None:
    assert NO_NATIVE not in render(rows)
    assert NO_NATIVE in render(tuple(row for row in rows if row.path != "native-dense"))


@pytest.mark.parametrize("render", [table, markdown])
def test_rows_of_other_conditions_stand_apart(render: Any, rows: tuple[CaseSummary, ...]) -> None:
    other = tuple(replace(row, cpu_model="Other CPU") for row in rows)
    text = render(rows + other)
    assert text.count("Example CPU") == text.count("Other CPU") == 1
    assert "6 of 8 cases ok" in text


def test_what_ran_instead_is_said(rows: tuple[CaseSummary, ...]) -> None:
    auto = replace(rows[-1], path="auto", label="auto r=4", path_ran="gemm")
    assert "auto r=4: ran as gemm" in table((auto,))


def test_nothing_measured_names_the_command() -> None:
    assert "`make bench`" in table(())
    assert markdown(()) == "No results yet; `make bench` measures the default plan."


def test_markdown_is_a_table_with_units(rows: tuple[CaseSummary, ...]) -> None:
    lines = markdown(rows).splitlines()
    assert lines[2] == (
        "| case | decode tok/s | TTFT ms | TPOT ms | against native dense | MB/token | rounds "
        "| status |"
    )
    assert lines[3] == "|---|---:|---:|---:|---:|---:|---:|---|"
    assert lines[4] == (
        "| native-dense | 100.0 | 50.0 | 10.00 | 1, the reference | 1001.0 | 10 | ok |"
    )


def test_a_bar_in_a_reason_does_not_break_the_table(rows: tuple[CaseSummary, ...]) -> None:
    broken = replace(rows[-1], label="a|b", reason="x | y")
    text = markdown((broken,))
    assert r"| a\|b |" in text
    assert r"- a\|b: " in text


def test_the_readme_keeps_all_but_its_block(tmp_path: Path, database: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nThe rest.\n")
    write_readme(readme, database)
    text = readme.read_text()
    assert text.startswith(f"# Title\n\n{BEGIN}\n")
    assert text.endswith(f"{END}\n\nThe rest.\n")
    assert markdown(summarise(database)) in text
    assert "old" not in text
    write_readme(readme, database)
    assert readme.read_text() == text


def test_the_readme_of_an_empty_store(tmp_path: Path) -> None:
    create_empty(tmp_path / "results.duckdb")
    readme = tmp_path / "README.md"
    readme.write_text(f"{BEGIN}{END}")
    write_readme(readme, tmp_path / "results.duckdb")
    assert "No results yet" in readme.read_text()


@pytest.mark.parametrize("text", ["# Title\n", f"{BEGIN}\n", f"{END}\n{BEGIN}\n"])
def test_a_readme_without_markers_is_left_alone(tmp_path: Path, database: Path, text: str) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(text)
    with pytest.raises(UserError, match="has no place for the results"):
        write_readme(readme, database)
    assert readme.read_text() == text


def test_a_missing_readme_is_named(tmp_path: Path, database: Path) -> None:
    with pytest.raises(UserError, match=r"README\.md cannot be read"):
        write_readme(tmp_path / "README.md", database)


@pytest.mark.parametrize("render", [table, markdown])
def test_the_noise_floor_behind_the_verdicts_is_named(
    render: Any, rows: tuple[CaseSummary, ...]
) -> None:
    assert "no noise audit on this machine" in render(rows)
    audited = [replace(row, noise_floor=0.042) for row in rows]
    assert "noise floor: native dense differs from itself by up to 4.2 %" in render(audited)
