"""Every request, and where it comes from."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from dashboard import charts, data, facts, style, tables
from dashboard.parts import chips, column_config, draw, escape, ink, read
from dashboard.rows import Origin, RunRow


@dataclass(frozen=True)
class Filter:
    """One choice that narrows the table; its key is also its name in the URL."""

    key: str
    title: str
    value_of: Callable[[RunRow], str | None]

    def chosen(self) -> str | None:
        value: str | None = st.session_state.get(self.key)
        return value

    def keeps(self, run: RunRow) -> bool:
        chosen = self.chosen()
        return chosen is None or self.value_of(run) == chosen


FILTERS = (
    Filter("model", "Model", lambda run: run.model),
    Filter("path", "Path", lambda run: run.path),
    Filter("rank", "Rank", lambda run: None if run.rank is None else str(run.rank)),
    Filter("status", "Status", lambda run: run.status),
    Filter("phase", "Phase", lambda run: "warm-up" if run.warmup else "measured"),
    Filter("campaign", "Campaign", lambda run: run.campaign_id),
)


_RUN = "run"

# Six beside each other on a desk, two on a telephone.
_FILTER_PX = 168


def main() -> None:
    st.title("Runs")
    runs = read(data.runs)
    if not runs:
        st.info("The store holds no runs yet; `make bench` fills it.")
        return
    show_filters(runs)
    shown = [run for run in runs if all(one.keeps(run) for one in FILTERS)]
    if not shown:
        st.info(why_empty(runs))
        return
    show_outcome(shown, len(runs))
    show_run(select(shown))


def show_filters(runs: Sequence[RunRow]) -> None:
    row = st.container(horizontal=True)
    for one in FILTERS:
        values = {one.value_of(run) for run in runs}
        row.selectbox(
            one.title,
            sorted((value for value in values if value is not None), key=natural),
            index=None,
            placeholder="any",
            key=one.key,
            bind="query-params",
            width=_FILTER_PX,
        )


def natural(value: str) -> tuple[int, str]:
    """Numbers by size, then words by letter."""
    return (int(value), "") if value.isdigit() else (0, value)


def why_empty(runs: Sequence[RunRow]) -> str:
    """Names the filter without which rows would remain, and the command that adds rows."""
    active = [one for one in FILTERS if one.chosen() is not None]
    guilty = [
        one for one in active if any(other_keeps(run, active, but=one) for run in runs)
    ] or active
    named = " or ".join(f"**{one.title}: {escape(one.chosen() or '')}**" for one in guilty)
    return f"No run matches; clear {named}, or measure such a run with `make bench`."


def other_keeps(run: RunRow, active: Sequence[Filter], *, but: Filter) -> bool:
    return all(one.keeps(run) for one in active if one is not but)


def show_outcome(shown: Sequence[RunRow], total: int) -> None:
    good = sum(run.status == "ok" for run in shown)
    badges = [
        chips([f"{len(shown)} of {total} runs"]),
        chips([f"{good / len(shown):.0%} succeeded"], "gray" if good == len(shown) else "red"),
        chips(sorted({tag for run in shown for tag in run.tags}), "orange"),
    ]
    st.markdown(" ".join(badges))


def select(shown: Sequence[RunRow]) -> RunRow | None:
    """Shows the table; the selected run, which the URL carries, so that it can be shared."""
    ids = [run.run_id for run in shown]
    linked = st.query_params.get(_RUN)
    table = tables.run_table(shown)
    state = st.dataframe(
        table,
        width="stretch",
        height=min(38 + 35 * len(shown), 420),
        hide_index=True,
        placeholder=style.ABSENT,
        on_select="rerun",
        selection_mode="single-row",
        selection_default={"selection": {"rows": [ids.index(linked)] if linked in ids else []}},
        # A selection is a position: other rows need a table of their own.
        key=f"table {zlib.crc32(' '.join(ids).encode())}",
        column_config=column_config(tables.RUN_COLUMNS),
    )
    st.download_button(
        "Download as CSV", tables.csv(table), file_name="weightless-runs.csv", mime="text/csv"
    )
    positions = state["selection"]["rows"]
    run = shown[positions[0]] if positions else None
    if run is not None:
        st.query_params[_RUN] = run.run_id
    elif linked in ids:
        del st.query_params[_RUN]
    return run


def show_run(run: RunRow | None) -> None:
    if run is None:
        st.caption("Select a row for its events, its environment and what really ran.")
        return
    st.subheader(escape(run.label))
    st.markdown(chips([run.run_id, run.status]) + " " + chips(run.tags, "orange"))
    if run.reason:
        st.error(escape(run.reason))
    times = read(lambda: data.token_times(run.run_id))
    if times:
        draw(charts.token_times(times, ink()), key="token times")
        st.caption("Both arms of this round; the first token is left out, it is the TTFT.")
    else:
        st.caption("This run has no token after the first, so there is no time per token.")
    show_origin(read(lambda: data.origin(run)))


def show_origin(origin: Origin) -> None:
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown("**What really ran**")
        if origin.arm is None:
            st.caption("This case failed before its graph could be read back.")
        else:
            show_facts(origin.arm)
    with right:
        st.markdown("**Campaign and environment**")
        show_facts(origin.campaign)


def show_facts(columns: Mapping[str, Any]) -> None:
    facts_shown = [(escape(name), escape(value)) for name, value in facts.describe(columns)]
    st.table(tables.fact_table(facts_shown), border="horizontal", hide_index=True)


main()
