"""The script that `dashboard.export.collect` runs for one view of one page: as a browser's session, without a browser.

The session's state says which page and which theme, its address what is shown; the sheet is left in the state.
"""

import streamlit as st

from dashboard.app import kept_page

st.session_state["sheet"] = kept_page(st.session_state["export_page"], st.session_state["export_theme"])
