"""Which path wins, and by how much?"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from dashboard import charts, data, style, tables
from dashboard.headline import headline, success
from dashboard.parts import chips, column_config, draw, escape, ink, legend, read
from dashboard.settings import Setting, by_setting, differences
from suite.plan import ArmPath
from suite.results.summary import CaseSummary


def main() -> None:
    st.title("Which path wins, by how much?")
    answer = st.container()
    groups = by_setting(read(data.summaries))
    if not groups:
        st.info("The store holds no results yet; `make bench` fills it.")
        show_published()
        return
    setting = choose(list(groups))
    rows = groups[setting]
    common = [tag for tag in sorted(set(rows[0].tags)) if all(tag in row.tags for row in rows)]
    notes = style.note_letters(tag for row in rows for tag in row.tags if tag not in common)
    answer.markdown(f"#### {escape(headline(rows))}")
    show_conditions(setting, rows, common)
    if not any(row.path == ArmPath.NATIVE and row.status == "ok" for row in rows):
        st.warning("Native dense was not measured here, so nothing below is compared with it.")
    show_ratios(rows, notes, common)
    show_absolutes(rows, notes, common)
    show_reasons(rows)
    show_published()
    show_table(rows)


def choose(settings: Sequence[Setting]) -> Setting:
    """The model, then the conditions, where the store holds more than one."""
    models = list(dict.fromkeys(setting.model for setting in settings))
    model = models[0]
    line = st.container(horizontal=True)
    if len(models) > 1:
        model = (
            line.selectbox(
                "Model",
                models,
                index=None,
                placeholder=model,
                key="model",
                bind="query-params",
                width=340,
            )
            or model
        )
    names = differences([setting for setting in settings if setting.model == model])
    first = next(iter(names))
    if len(names) > 1:
        chosen = line.selectbox(
            "Conditions",
            list(names),
            index=None,
            placeholder=first,
            key="conditions",
            bind="query-params",
            width=340,
        )
        return names[chosen or first]
    return names[first]


def show_conditions(setting: Setting, rows: Sequence[CaseSummary], common: Sequence[str]) -> None:
    dtypes = sorted({row.dtype for row in rows if row.dtype})
    conditions = [*setting.words().values(), *(f"dtype {dtype}" for dtype in dtypes)]
    st.markdown(" ".join([success_chip(rows), chips(conditions), chips(common, "orange")]))


def success_chip(rows: Sequence[CaseSummary]) -> str:
    finished, total = success(rows)
    text = f"{finished} of {total} case{'' if total == 1 else 's'} succeeded"
    if finished == total:
        return chips([text])
    return chips([f"{text} ({finished / total:.0%})"], "red")


def show_ratios(rows: Sequence[CaseSummary], notes: dict[str, str], common: Sequence[str]) -> None:
    if all(row.ratio is None for row in rows):
        return
    draw(charts.forest(rows, notes, ink()), key="ratios")
    floors = [row.noise_floor for row in rows if row.noise_floor is not None]
    st.caption(f"Mark: paired ratio. Bar: 95% interval over rounds. {words_on_noise(floors)}")
    legend(notes, common)


def words_on_noise(floors: Sequence[float]) -> str:
    if not floors:
        return (
            "FASTER and SLOWER: the interval is clear of 1; this machine has no audit of "
            "native dense against itself, so nothing is called SAME. UNCLEAR: anything else."
        )
    return (
        f"Native dense differs from itself by up to {max(floors):.1%} here: FASTER and SLOWER "
        "lie beyond that, SAME within it. UNCLEAR: anything else."
    )


def show_absolutes(
    rows: Sequence[CaseSummary], notes: dict[str, str], common: Sequence[str]
) -> None:
    ordered = [
        row
        for row in charts.in_order(rows)
        if row.status == "ok" and any(metric.of(row) is not None for metric in charts.METRICS)
    ]
    if not ordered:
        return
    st.subheader("Absolute numbers")
    columns = [*st.columns(2, gap="medium"), *st.columns(2, gap="medium")]
    for column, metric in zip(columns, charts.METRICS, strict=True):
        with column:
            draw(charts.absolute(ordered, metric, notes, ink()), key=metric.field)
    legend(notes, common)


def show_reasons(rows: Sequence[CaseSummary]) -> None:
    """Every case that failed, is invalid or could not be compared, native dense too."""
    troubled = [row for row in rows if row.reason is not None]
    if not troubled:
        return
    st.subheader("Cases without a full result")
    for row in troubled:
        tags = f" ({'; '.join(row.tags)})" if row.tags else ""
        status = chips([row.status], "gray" if row.status == "ok" else "red")
        st.markdown(f"- **{escape(row.label)}**{escape(tags)} {status} {escape(row.reason or '')}")


def show_published() -> None:
    references = read(data.references)
    if not references:
        return
    st.subheader("Published, other hardware, never compared")
    for source in dict.fromkeys(reference.source for reference in references):
        for hardware, model in dict.fromkeys(
            (reference.hardware, reference.model)
            for reference in references
            if reference.source == source
        ):
            there = [
                reference
                for reference in references
                if (reference.source, reference.hardware, reference.model)
                == (source, hardware, model)
            ]
            st.markdown(chips([hardware, model]) + f" {escape(source)}")
            draw(charts.published(there, ink()), key=f"published {source} {hardware} {model}")


def show_table(rows: Sequence[CaseSummary]) -> None:
    st.subheader("All cases")
    table = tables.case_table(charts.in_order(rows))
    st.dataframe(
        table,
        width="stretch",
        hide_index=True,
        placeholder=style.ABSENT,
        key="cases",
        column_config=column_config(tables.CASE_COLUMNS),
    )
    st.download_button(
        "Download as CSV", tables.csv(table), file_name="weightless-cases.csv", mime="text/csv"
    )


main()
