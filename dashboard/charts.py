"""Charts as pure functions: rows in, Altair out. Nothing here knows Streamlit.

Names and values are text inside the plot. Where it is narrow they stand above
the marks, so that no label takes width from the plot; a wide forest plot has
them beside the marks. The width is known in the browser alone, hence the
expressions over ``width``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from dashboard import style
from dashboard.rows import Reference, TokenTime
from suite.plan import ArmPath
from suite.results.summary import CaseSummary

ROW_PX = 38
"""Height of one row: a line of text and the mark below it."""

_TEXT_DY, _MARK_DY = -9, 9
_WIDE = "width >= 640"
_NAMES_PX, _VALUES_PX = 310, 225
_LOG_FROM = 5.0
_SHORT_NAME = 24
_MANY_TOKENS = 48

_AXIS_PX = 64
_PADDING = {"left": 0, "top": 4, "right": 8, "bottom": 4}

_COLOUR = alt.Color(
    "path:N", scale=alt.Scale(domain=list(style.PATHS), range=list(style.COLOURS)), legend=None
)
_SHAPE = alt.Shape(
    "path:N", scale=alt.Scale(domain=list(style.PATHS), range=list(style.SHAPES)), legend=None
)


@dataclass(frozen=True)
class Metric:
    """One absolute number of a case, in the unit that its title names."""

    field: str
    name: str
    unit: str
    scale: float
    more_is_better: bool

    @property
    def title(self) -> str:
        return f"{self.name} ({self.unit})"

    def of(self, row: CaseSummary) -> float | None:
        value: float | None = getattr(row, self.field)
        return None if value is None else value * self.scale


METRICS = (
    Metric("decode_tok_s", "Decode rate", "tok/s", 1.0, True),
    Metric("ttft_ms", "Time to first token, TTFT", "ms", 1.0, False),
    Metric("tpot_ms", "Time per output token, TPOT", "ms", 1.0, False),
    Metric("bytes_per_token", "Bytes read per token", "MB", 1e-6, False),
)


def name_of(row: CaseSummary, notes: Mapping[str, str]) -> str:
    """The label of a case, with the letters of its footnotes."""
    letters = " ".join(f"[{notes[tag]}]" for tag in row.tags if tag in notes)
    return f"{row.label} {letters}".rstrip()


def in_order(rows: Sequence[CaseSummary]) -> list[CaseSummary]:
    """Best ratio first, native dense at its place of 1, cases without a ratio last."""
    return sorted(rows, key=lambda row: -(_ratio(row) or 0.0))


def forest(rows: Sequence[CaseSummary], notes: Mapping[str, str], ink: str) -> alt.LayerChart:
    """Ratio to native dense with its interval, one row per case that has one; best first."""
    values = [_forest_value(row, notes) for row in in_order(rows) if _ratio(row) is not None]
    scale = _ratio_scale(values)
    axis = alt.Axis(
        title="decode speed ÷ native dense’s (right of 1: faster)",
        titleAnchor="start",
        titleX=alt.expr(f"{_WIDE} ? {_NAMES_PX} : 0"),
        orient="top",
        tickCount=5,
        format="~g",
        grid=False,
    )
    base = alt.Chart(alt.InlineData(values=values)).encode(
        y=_rows_axis(values),
        tooltip=[
            alt.Tooltip("name:N", title="case"),
            alt.Tooltip("long:N", title="speed ÷ native dense"),
            alt.Tooltip("rounds:Q", title="rounds"),
            alt.Tooltip("tags:N", title="tags"),
        ],
    )
    down = alt.expr(f"{_WIDE} ? 0 : {_MARK_DY}")
    rule = base.mark_tick(
        orient="vertical",
        color=style.QUIET,
        thickness=1.5,
        size=alt.expr(f"{_WIDE} ? {ROW_PX} : 18"),
        yOffset=down,
        tooltip=None,
    )
    interval = base.mark_rule(yOffset=down, y2Offset=down, strokeWidth=3)
    dot = base.mark_point(yOffset=down, filled=True, size=120, opacity=1)
    return alt.layer(
        rule.encode(x=alt.X(datum=1, type="quantitative", scale=scale, axis=axis)),
        interval.transform_filter("isValid(datum.low)").encode(
            x=alt.X("low:Q", scale=scale, axis=axis), x2="high:Q", color=_COLOUR
        ),
        dot.encode(x=alt.X("ratio:Q", scale=scale, axis=axis), color=_COLOUR, shape=_SHAPE),
        *_row_texts(
            base, ink, f"{_WIDE} ? datum.long : datum.short", dy=f"{_WIDE} ? 0 : {_TEXT_DY}"
        ),
    ).properties(height=_height(values), padding=_PADDING, description=_forest_finding(values))


def _ratio(row: CaseSummary) -> float | None:
    if row.path == ArmPath.NATIVE and row.status == "ok":
        return 1.0
    return row.ratio


def _forest_value(row: CaseSummary, notes: Mapping[str, str]) -> dict[str, Any]:
    ratio = _ratio(row)
    assert ratio is not None
    native = row.path == ArmPath.NATIVE
    verdict = style.verdict(row.verdict) if row.verdict else ""
    interval = style.ratio(ratio, row.ratio_low, row.ratio_high)
    return {
        "key": row.case_id,
        "name": name_of(row, notes),
        "path": row.path,
        "ratio": ratio,
        "low": row.ratio_low,
        "high": row.ratio_high,
        "rounds": row.rounds,
        "tags": ", ".join(row.tags) or style.ABSENT,
        "short": "reference" if native else _short(row, ratio, verdict),
        "long": "1, the reference" if native else f"{interval}  {verdict}",
    }


def _short(row: CaseSummary, ratio: float, verdict: str) -> str:
    room = len(row.label) <= _SHORT_NAME
    return f"{style.ratio(ratio, None, None)}  {verdict}" if room else verdict


def _forest_finding(values: Sequence[Mapping[str, Any]]) -> str:
    parts = [f"{value['name']} {value['long']}" for value in values]
    return "Decode speed relative to native dense, best first: " + "; ".join(parts) + "."


def _ratio_scale(values: Sequence[Mapping[str, Any]]) -> alt.Scale:
    """Linear, or logarithmic where the ratios span a factor of five or more."""
    seen = [1.0]
    for value in values:
        seen += [value[key] for key in ("ratio", "low", "high") if value[key] is not None]
    low, high = min(seen), max(seen)
    ends = [
        alt.expr(f"{_WIDE} ? {_NAMES_PX} : 0"),
        alt.expr(f"{_WIDE} ? width - {_VALUES_PX} : width"),
    ]
    if low > 0 and high / low >= _LOG_FROM:
        pad = (high / low) ** 0.06
        return alt.Scale(type="log", domain=[low / pad, high * pad], range=ends, nice=False)
    pad = 0.08 * ((high - low) or 0.1)
    domain = [max(low - pad, 0.0), high + pad]
    return alt.Scale(domain=domain, range=ends, zero=False, nice=False)


def absolute(
    rows: Sequence[CaseSummary], metric: Metric, notes: Mapping[str, str], ink: str
) -> alt.LayerChart:
    """One absolute number per case as a dot on a stem from zero; a missing one has no dot."""
    values = [
        {
            "key": row.case_id,
            "name": name_of(row, notes),
            "path": row.path,
            "value": metric.of(row),
            "text": style.number(metric.of(row)),
            "tags": ", ".join(row.tags) or style.ABSENT,
        }
        for row in rows
    ]
    tooltip = [
        alt.Tooltip("name:N", title="case"),
        alt.Tooltip("text:N", title=metric.title),
        alt.Tooltip("tags:N", title="tags"),
    ]
    base = alt.Chart(alt.InlineData(values=values)).encode(y=_rows_axis(values), tooltip=tooltip)
    parts = [f"{value['name']} {value['text']}" for value in values]
    title = f"{metric.title}, {'more' if metric.more_is_better else 'less'} is better"
    return _stems(base, title, ink).properties(
        height=_height(values),
        padding=_PADDING,
        description=f"{title}: " + "; ".join(parts) + ".",
    )


def published(references: Sequence[Reference], ink: str) -> alt.LayerChart:
    """Figures published elsewhere, hollow, as published."""
    values = [
        {
            "key": str(index),
            "name": reference.label,
            "path": reference.path,
            "value": reference.decode_tok_s,
            "text": f"{reference.decode_tok_s:g}",
            "source": reference.source,
            "hardware": reference.hardware,
            "note": reference.note or style.ABSENT,
        }
        for index, reference in enumerate(references)
    ]
    tooltip = [
        alt.Tooltip("name:N", title="case"),
        alt.Tooltip("text:N", title="decode rate (tok/s)"),
        alt.Tooltip("hardware:N"),
        alt.Tooltip("source:N"),
        alt.Tooltip("note:N"),
    ]
    base = alt.Chart(alt.InlineData(values=values)).encode(y=_rows_axis(values), tooltip=tooltip)
    parts = [f"{value['hardware']}, {value['name']} {value['text']}" for value in values]
    return _stems(base, "Decode rate as published (tok/s)", ink, hollow=True).properties(
        height=_height(values),
        padding=_PADDING,
        description="Published on other hardware, never compared, tok/s: " + "; ".join(parts) + ".",
    )


def token_times(times: Sequence[TokenTime], ink: str) -> alt.LayerChart:
    """Time of each generated token after the first; the arms of one round together."""
    values = [
        {"token": time.token, "ms": time.ms, "path": time.path, "name": time.label}
        for time in times
    ]
    names = dict.fromkeys((time.label, time.path) for time in times)
    key = [
        {"name": name, "path": path, "row": row} for row, (name, path) in enumerate(reversed(names))
    ]
    base = alt.Chart(alt.InlineData(values=values)).encode(
        x=alt.X("token:Q", title="generated token", axis=alt.Axis(tickMinStep=1, grid=False)),
        y=alt.Y("ms:Q", scale=alt.Scale(zero=True), axis=_axis_title_above("ms per token")),
        color=_COLOUR,
        detail="name:N",
        tooltip=[
            alt.Tooltip("name:N", title="case"),
            alt.Tooltip("token:Q", title="generated token"),
            alt.Tooltip("ms:Q", title="ms per token", format=".4~g"),
        ],
    )
    few = len(values) <= _MANY_TOKENS * len(names)
    below = alt.Chart(alt.InlineData(values=key)).encode(
        y=alt.value(alt.expr("height - 16 - 20 * datum.row"))
    )
    slowest = max((time.ms for time in times), default=None)
    shown = " and ".join(name for name, _ in names)
    return alt.layer(
        base.mark_line(strokeWidth=1.5),
        base.mark_point(filled=True, size=30, opacity=1 if few else 0).encode(shape=_SHAPE),
        below.mark_point(filled=True, size=90, opacity=1).encode(
            x=alt.value(16), color=_COLOUR, shape=_SHAPE
        ),
        below.mark_text(align="left", fontSize=12.5, color=ink).encode(
            x=alt.value(28), text="name:N"
        ),
    ).properties(
        height=240,
        padding=_PADDING,
        description=f"Time per generated token of {shown}; "
        f"the slowest token took {style.number(slowest)} ms.",
    )


def _axis_title_above(title: str) -> alt.Axis:
    return alt.Axis(
        title=title,
        titleAngle=0,
        titleAlign="left",
        titleAnchor="start",
        titleX=0,
        titleY=-14,
        labelFlush=False,
    )


def _height(values: Sequence[Mapping[str, Any]]) -> int:
    """Room for the rows and for the axis, which Streamlit fits into the height."""
    return ROW_PX * len(values) + _AXIS_PX


def _rows_axis(values: Sequence[Mapping[str, Any]]) -> alt.Y:
    return alt.Y("key:N", sort=[value["key"] for value in values], axis=None)


def _stems(base: alt.Chart, title: str, ink: str, *, hollow: bool = False) -> alt.LayerChart:
    axis = alt.Axis(
        title=title, titleAnchor="start", titleX=0, orient="top", tickCount=5, grid=False
    )
    x = alt.X("value:Q", scale=alt.Scale(zero=True), axis=axis)
    known = base.transform_filter("isValid(datum.value)")
    stem = known.mark_rule(yOffset=_MARK_DY, y2Offset=_MARK_DY, strokeWidth=2, opacity=0.6)
    dot = known.mark_point(yOffset=_MARK_DY, filled=not hollow, size=100, opacity=1, strokeWidth=2)
    return alt.layer(
        stem.encode(x=x, x2=alt.datum(0), color=_COLOUR),
        dot.encode(x=x, color=_COLOUR, shape=_SHAPE),
        *_row_texts(base, ink, "datum.text", dy=str(_TEXT_DY)),
    )


def _row_texts(base: alt.Chart, ink: str, right: str, *, dy: str) -> tuple[alt.Chart, alt.Chart]:
    """The name on the left and the value, an expression over ``datum``, on the right."""
    base = base.encode(tooltip=alt.value(None))
    size, down = alt.expr(f"{_WIDE} ? 13 : 12"), alt.expr(dy)
    room = alt.expr("max(width - 70, 200)")
    name = base.mark_text(align="left", limit=room, dy=down, fontSize=size, color=ink)
    value = base.mark_text(align="right", text=alt.expr(right), dy=down, fontSize=size, color=ink)
    return (
        name.encode(x=alt.value(0), text="name:N"),
        value.encode(x=alt.value("width")),
    )
