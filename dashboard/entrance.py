"""The page of a server with login for who has not logged in, or may not come in."""

from __future__ import annotations

import os
from pathlib import Path

import streamlit as st

from dashboard import formats, safe_text
from dashboard.launch import SECRETS_VARIABLE
from dashboard.login import check, may_enter


def passed() -> bool:
    """Whether this session may see the store; otherwise what is in the way has been drawn."""
    secrets = os.environ.get(SECRETS_VARIABLE)
    if secrets is None:
        return True
    user = st.user.to_dict()
    if not user.get("is_logged_in"):
        _say("Log in to see this population", "Its runs are shown to people who have been let in.")
        st.button("Log in", type="primary", icon=":material/login:", on_click=st.login)
        return False
    if not may_enter(user, check(Path(secrets), insecure=True).allow):
        who = safe_text.inline(formats.clean(str(user.get("email") or "This account"), 80))
        _say("Not let in", f"{who} is not on the list of this dashboard, or its address is not verified\\.")
        st.button("Log out", icon=":material/logout:", on_click=st.logout)
        return False
    with st.sidebar:
        st.button("Log out", icon=":material/logout:", on_click=st.logout, type="tertiary")
    return True


def _say(what: str, why: str) -> None:
    with st.container(border=True):
        st.subheader(f":material/lock: {what}", anchor=False)
        st.markdown(why)
