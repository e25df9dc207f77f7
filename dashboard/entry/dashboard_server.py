"""What `streamlit run` is given: the app of `streamlit_app.py` behind the door of `dashboard.door`.

It lies apart from `dashboard/pages`: Streamlit takes any folder of that name beside its script for pages of its own,
and would run them bare when a link leads there first.
"""

import os
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware

from dashboard.door import Door
from dashboard.launch import NAMES_VARIABLE

app = st.App(
    Path(__file__).with_name("streamlit_app.py"),
    middleware=[Middleware(Door, names=os.environ[NAMES_VARIABLE].split(","))],
)
