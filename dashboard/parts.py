"""Pieces that both pages use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import altair as alt
import streamlit as st

from dashboard import style
from dashboard.data import UnreadableStoreError
from dashboard.tables import Column

_TAGS_PX = 270

Answer = TypeVar("Answer")


def read(query: Callable[[], Answer]) -> Answer:
    """The answer of ``query``; where the store cannot be read, says so and ends the page."""
    try:
        return query()
    except UnreadableStoreError as error:
        st.warning(str(error))
        st.stop()


def ink() -> str:
    """Text colour for charts in the reader's mode."""
    return style.INK.get(st.context.theme.type or "light", style.INK["light"])


def draw(chart: alt.LayerChart, key: str) -> None:
    """A chart over the full width; its description is its text alternative."""
    st.altair_chart(chart, width="stretch", key=key)


def chips(values: Iterable[str], colour: str = "gray") -> str:
    """Markdown badges in one line."""
    return " ".join(f":{colour}-badge[{escape(value)}]" for value in values)


def escape(text: str) -> str:
    """Text from a store, without meaning to Markdown."""
    return "".join("\\" + mark if mark in "\\`*_{}[]()<>#|$~:!" else mark for mark in text)


def legend(notes: Mapping[str, str], common: Iterable[str]) -> None:
    """What the letters stand for, and what holds for every row."""
    lines = [f"All rows: {escape(tag)}" for tag in common]
    lines += [f"\\[{letter}\\] {escape(tag)}" for tag, letter in notes.items()]
    if lines:
        st.caption(" · ".join(lines))


def column_config(columns: Iterable[Column]) -> dict[str, Any]:
    """Four significant digits on the screen; the CSV has them all."""
    config: dict[str, Any] = {
        name: st.column_config.NumberColumn(format="%.4g")
        for name, kind, _ in columns
        if kind == "Float64"
    }
    return {**config, "tags": st.column_config.TextColumn(width=_TAGS_PX)}
