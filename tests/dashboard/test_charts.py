"""Charts, tables and sentences as pure functions of their rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import altair as alt
import pytest
import vl_convert

from dashboard import charts, facts, style, tables
from dashboard.headline import headline, success
from dashboard.rows import Reference, TokenTime
from dashboard.settings import by_setting, differences
from suite.results.rows import reference_rows
from suite.results.summary import CaseSummary, SummaryWorkload
from suite.stats import Verdict

INK = style.INK["light"]


def row(path: str = "gemm", ratio: float | None = 0.93, **fields: Any) -> CaseSummary:
    """A measured case; an interval of 2 % on either side of its ratio."""
    native = path == "native-dense"
    ratio = None if native else ratio
    label = path if native else f"{path} r=4 G=layers"
    defaults: dict[str, Any] = {
        "model": "gemma-3-270m",
        "device": "cpu",
        "groups": None if native else 18,
        "rank": None if native else 4,
        "quant": "none",
        "fusions": ("qkv",),
        "capture": False,
        "workload": SummaryWorkload(prompt_tokens=6, new_tokens=128),
        "status": "ok",
        "reason": None,
        "rounds": 5,
        "decode_tok_s": 25.0 * (ratio or 1.0),
        "ttft_ms": 80.0,
        "tpot_ms": 40.0,
        "ratio_low": ratio and ratio * 0.98,
        "ratio_high": ratio and ratio * 1.02,
        "verdict": None if ratio is None else Verdict.SLOWER if ratio < 1 else Verdict.FASTER,
        "bytes_per_token": 1_076_000_000,
        "mbu": None,
        "kl": None,
        "top1": None,
        "ppl_ratio": None,
        "engine": "max 26.7.0",
        "measured_at": datetime(2026, 3, 1, 12, 30, tzinfo=UTC),
        "commit": "0123abc",
        "label": label,
        "case_id": fields.get("label", label),
        "campaign_id": "c1",
        "weights": "dequantised Q4_K_M",
        "tags": (),
        "path_ran": path,
        "dtype": "float32",
        "compile_s": 3.0,
        "load_s": 2.0,
        "check_s": 1.0,
        "timing_s": 30.0,
        "cpu_model": "Example CPU",
        "noise_floor": None,
        "decode_tok_s_n": 5,
        "ttft_ms_n": 5,
        "tpot_ms_n": 5,
    }
    return CaseSummary(path=path, ratio=ratio, **defaults | fields)


def failed(path: str = "custom-op", reason: str = "out of memory") -> CaseSummary:
    nothing = dict.fromkeys(("decode_tok_s", "ttft_ms", "tpot_ms", "bytes_per_token", "dtype"))
    work = SummaryWorkload(prompt_tokens=None, new_tokens=128)
    return row(path, None, status="oom", reason=reason, rounds=0, workload=work, **nothing)


NATIVE = row("native-dense")


def values(chart: alt.LayerChart, key: str) -> list[dict[str, Any]]:
    """The distinct rows of a chart's data that have ``key``."""
    found: list[dict[str, Any]] = []
    for data in chart.to_dict()["datasets"].values():
        found += [value for value in data if key in value and value not in found]
    return found


def spec(chart: alt.LayerChart) -> dict[str, Any]:
    made: dict[str, Any] = chart.to_dict()
    return made


def layers(chart: alt.LayerChart, mark: str) -> list[dict[str, Any]]:
    return [layer for layer in spec(chart)["layer"] if layer["mark"]["type"] == mark]


def forest(*rows: CaseSummary, notes: dict[str, str] | None = None) -> alt.LayerChart:
    return charts.forest(rows, notes or {}, INK)


def test_forest_orders_by_ratio_with_native_dense_at_one() -> None:
    chart = forest(NATIVE, row("gemm", 0.93), row("precompute", 1.2), row("custom-op", 0.4))
    paths = [value["path"] for value in values(chart, "ratio")]
    assert paths == ["precompute", "native-dense", "gemm", "custom-op"]
    assert [value["ratio"] for value in values(chart, "ratio")] == [1.2, 1.0, 0.93, 0.4]


def test_forest_says_verdicts_in_words_and_signs() -> None:
    chart = forest(NATIVE, row("gemm", 0.93), row("precompute", 1.0, verdict=Verdict.SAME))
    texts = [value["long"] for value in values(chart, "ratio")]
    assert texts == [
        "1, the reference",
        "1.00× [0.98, 1.02]  = SAME",
        "0.93× [0.91, 0.95]  ▼ SLOWER",
    ]
    assert "gemm r=4 G=layers 0.93× [0.91, 0.95]  ▼ SLOWER" in spec(chart)["description"]


def test_forest_leaves_out_what_has_no_ratio() -> None:
    chart = forest(NATIVE, row("gemm"), failed())
    assert [value["path"] for value in values(chart, "ratio")] == ["native-dense", "gemm"]


@pytest.mark.parametrize(("ratio", "kind"), [(0.5, None), (0.1, "log")])
def test_forest_is_logarithmic_over_a_wide_range(ratio: float, kind: str | None) -> None:
    scale = layers(forest(NATIVE, row("gemm", ratio)), "point")[0]["encoding"]["x"]["scale"]
    assert scale.get("type") == kind
    low, high = scale["domain"]
    assert 0 < low < ratio * 0.98 and high > 1


def test_forest_draws_a_ratio_without_interval() -> None:
    chart = forest(NATIVE, row("gemm", 0.9, ratio_low=None, ratio_high=None))
    assert values(chart, "ratio")[1]["low"] is None
    assert values(chart, "ratio")[1]["long"].startswith("0.90×  ")


def test_colour_and_shape_of_a_path_do_not_depend_on_the_others() -> None:
    alone, together = forest(row("precompute")), forest(NATIVE, row("gemm"), row("precompute"))
    for channel in ("color", "shape"):
        seen = {str(layers(c, "point")[0]["encoding"][channel]) for c in (alone, together)}
        assert len(seen) == 1
    scale = layers(alone, "point")[0]["encoding"]["color"]["scale"]
    assert scale["domain"] == [
        "native-dense",
        "custom-op",
        "gemm",
        "precompute",
        "auto",
        "not stated",
    ]
    assert len(set(scale["range"])) == len(scale["domain"])


def test_colours_stand_out_on_both_backgrounds() -> None:
    for colour in style.COLOURS:
        assert min(contrast(colour, "#FFFFFF"), contrast(colour, "#0E1117")) >= 3
    assert contrast(style.INK["light"], "#FFFFFF") >= 7
    assert contrast(style.INK["dark"], "#0E1117") >= 7


def contrast(one: str, other: str) -> float:
    """By WCAG 2.2, of two sRGB colours."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_tags_are_letters_wherever_their_row_is() -> None:
    tagged = row("gemm", tags=("incoherent", "zero"))
    notes = style.note_letters(tagged.tags)
    assert notes == {"incoherent": "a", "zero": "b"}
    for chart in (
        charts.forest([NATIVE, tagged], notes, INK),
        charts.absolute([NATIVE, tagged], charts.METRICS[0], notes, INK),
    ):
        assert [value["name"] for value in values(chart, "path")] == [
            "native-dense",
            "gemm r=4 G=layers [a] [b]",
        ]


def test_absent_is_null_and_never_zero() -> None:
    chart = charts.absolute([NATIVE, row("gemm", ttft_ms=None)], charts.METRICS[1], {}, INK)
    assert [value["value"] for value in values(chart, "value")] == [80.0, None]
    assert [value["text"] for value in values(chart, "value")] == ["80.0", "–"]
    for mark in ("rule", "point"):
        assert all(
            {"filter": "isValid(datum.value)"} in layer["transform"]
            for layer in layers(chart, mark)
        )


def test_metrics_are_in_the_unit_of_their_title() -> None:
    shown = {metric.title: metric.of(NATIVE) for metric in charts.METRICS}
    assert shown == {
        "Decode rate (tok/s)": 25.0,
        "Time to first token, TTFT (ms)": 80.0,
        "Time per output token, TPOT (ms)": 40.0,
        "Bytes read per token (MB)": 1076.0,
    }


def test_two_cases_of_one_label_keep_a_row_each() -> None:
    chart = forest(row("gemm", 0.9, case_id="x"), row("gemm", 0.8, case_id="y"))
    assert spec(chart)["layer"][0]["encoding"]["y"]["sort"] == ["x", "y"]


def reference(**fields: Any) -> Reference:
    defaults: dict[str, Any] = {
        "source": "A document",
        "hardware": "B200",
        "model": "Gemma 3 1B",
        "path": "gemm",
        "rank": 4,
        "groups": None,
        "quant": "none",
        "capture": None,
        "decode_tok_s": 213.9,
        "native_decode_tok_s": None,
        "note": None,
    }
    return Reference(**defaults | fields)


def test_published_figures_are_hollow_and_as_published() -> None:
    chart = charts.published([reference(), reference(path="custom-op", capture=True)], INK)
    assert all(layer["mark"]["filled"] is False for layer in layers(chart, "point"))
    assert [value["text"] for value in values(chart, "text")] == ["213.9", "213.9"]
    assert values(chart, "text")[1]["name"] == "custom-op r=4 capture"
    assert "never compared" in spec(chart)["description"]


def token_times(count: int) -> Sequence[TokenTime]:
    arms = (("native-dense", 40.0), ("gemm", 43.0))
    return [
        TokenTime(label=path, path=path, token=token, ms=ms)
        for path, ms in arms
        for token in range(2, count)
    ]


def test_token_times_start_at_zero_and_name_their_arms() -> None:
    chart = charts.token_times(token_times(20), INK)
    assert layers(chart, "line")[0]["encoding"]["y"]["scale"]["zero"] is True
    assert [value["name"] for value in values(chart, "row")] == ["gemm", "native-dense"]
    assert "slowest token took 43.0 ms" in spec(chart)["description"]


@pytest.mark.parametrize(
    "chart",
    [
        forest(NATIVE, row("gemm"), row("precompute", 1.3)),
        forest(),
        charts.absolute([NATIVE, row("gemm", ttft_ms=None)], charts.METRICS[1], {}, INK),
        charts.published([reference()], INK),
        charts.token_times(token_times(200), INK),
        charts.token_times([], INK),
    ],
    ids=["forest", "forest of nothing", "absolute", "published", "tokens", "no tokens"],
)
def test_every_chart_compiles_and_renders(chart: alt.LayerChart) -> None:
    svg = vl_convert.vegalite_to_svg(chart.properties(width=600).to_dict())
    assert svg.startswith("<svg") and "NaN" not in svg


def test_headline_names_the_best_that_is_not_faster() -> None:
    rows = [NATIVE, row("gemm", 0.93), row("custom-op", 0.4)]
    assert headline(rows) == (
        "gemm r=4 G=layers decodes at 0.93× native dense [0.91, 0.95], SLOWER; "
        "no configuration measured here beats native dense."
    )


def test_headline_claims_no_more_than_the_verdict() -> None:
    unclear = row("gemm", 1.3, verdict=Verdict.UNCLEAR)
    assert "no configuration measured here is shown to beat" in headline([NATIVE, unclear])
    winner = row("precompute", 1.1)
    assert headline([NATIVE, unclear, winner]) == (
        "precompute r=4 G=layers decodes at 1.10× native dense [1.08, 1.12], FASTER; "
        "1 of 2 configurations measured here beats native dense."
    )


def test_headline_carries_the_tags_of_its_row() -> None:
    assert "(incoherent)" in headline([NATIVE, row("gemm", 1.5, tags=("incoherent",))])


def test_headline_without_anything_to_say() -> None:
    assert headline([NATIVE]).startswith("Only native dense")
    assert headline([failed(), failed("gemm")]).startswith("All 2 cases here failed")
    assert headline([failed()]).startswith("The one case here failed")
    assert "nothing can be compared" in headline([row("gemm", None)])


def test_success_counts_cases_and_not_native_dense() -> None:
    assert success([NATIVE, row("gemm"), failed()]) == (1, 2)


def test_a_failed_case_joins_the_setting_of_its_kind() -> None:
    other = row("gemm", 0.9, engine="max 27.0.0", case_id="other")
    groups = by_setting([NATIVE, row("gemm"), failed(), other])
    assert sorted(len(rows) for rows in groups.values()) == [1, 3]
    assert sorted(differences(list(groups))) == ["max 26.7.0", "max 27.0.0"]


def test_csv_names_units_holds_ids_and_leaves_blanks() -> None:
    text = tables.csv(tables.case_table([row("gemm"), failed()])).decode()
    first, second = csv.DictReader(io.StringIO(text))
    assert first["decode (tok/s)"] == "23.25" and first["read per token (MB)"] == "1076.0"
    assert first["measured (UTC)"] == "2026-03-01T12:30:00Z"
    assert first["campaign id"] == "c1" and first["case id"]
    assert second["decode (tok/s)"] == "" and second["status"] == "oom"


def test_facts_leave_nothing_out_and_name_units() -> None:
    described = dict(
        facts.describe(
            {
                "bytes_per_token_terms": {"head": 600_000_000, "kv": 1_000_000},
                "custom_ops": {"generated_linear": 126},
                "governor": None,
                "git_dirty": False,
                "memory_bytes": 8_589_934_592,
                "something_new": 3,
            }
        )
    )
    assert described == {
        "read per token": "601 MB = head 600 MB, kv 1.00 MB",
        "custom ops": "generated_linear ×126",
        "governor": "–",
        "tracked files changed": "no",
        "memory": "8.59 GB",
        "something new": "3",
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0, "0"), (1076.2, "1,076"), (9.899, "9.90"), (0.01234, "0.0123")],
)
def test_numbers_keep_three_significant_digits(value: float | None, text: str) -> None:
    assert style.number(value) == text


def test_a_published_path_that_is_not_stated_still_has_a_mark() -> None:
    """Outside the domain of colour and shape it would be drawn with neither."""
    published_paths = {str(row["path"]) for row in reference_rows()}
    assert published_paths <= set(style.PATHS)
    assert len(style.PATHS) == len(style.COLOURS) == len(style.SHAPES)
