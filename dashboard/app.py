"""Navigation only. From the root: ``python -m streamlit run dashboard/app.py``."""

from __future__ import annotations

import streamlit as st

LAYOUT = """<style>
.stMainBlockContainer { padding-top: 4.5rem; padding-bottom: 3rem }
[data-testid="stTable"] td, [data-testid="stTable"] td * {
    overflow-wrap: anywhere !important
}
</style>"""

st.set_page_config(page_title="weightless", layout="wide")
st.html(LAYOUT)
st.navigation(
    [
        st.Page("views/overview.py", title="Overview", default=True),
        st.Page("views/runs.py", title="Runs", url_path="runs"),
    ],
    position="top",
).run()
