"""The sidebar: which run, how often to refresh, which steps, which members. All of it is in the address."""

from __future__ import annotations

from functools import partial

import streamlit as st

from dashboard import formats
from dashboard.controls import (
    SELECTIONS,
    Choice,
    integer_parameter,
    member_labels,
    note,
    parameter,
    pick,
    pick_several,
    refusal,
    switch,
)
from dashboard.source import LATEST, Source
from server.store.reader import RunInfo

REFRESH_S: dict[str, float | None] = {"off": None, "2s": 2.0, "10s": 10.0}
WINDOWS = ("10", "25", "50", "100", "250", "500", "1000", "all")
# Parameters of the frozen range, and the keys of their widgets.
_RANGE = {"from": "from_step", "to": "to_step"}
_SLIDER = "range_slider"
# A pair has two curves: nobody needs to hide one of them.
_CHOOSER_MEMBERS = 3


def sidebar(runs: list[RunInfo]) -> Choice:
    """Draw the controls and say what they say."""
    with st.sidebar:
        st.subheader(":material/hub: GRAFT population", anchor=False)
        run = _run_selector(runs)
        info = next((info for info in runs if info.uid == run), runs[0])
        live = pick(
            "Live refresh",
            list(REFRESH_S),
            key="live",
            default="2s",
            segments=True,
            help="How often the page reads the store again. Trajectories never refresh on their own.",
        )
        newest = _window_slider()
        following = Choice(run, None, newest, None)
        frozen = switch(
            "Freeze the range",
            key="freeze",
            on_change=partial(_freeze, following),
            help="Keep these steps while the run goes on; the picture stays still and the address names it.",
        )
        fixed = _range_inputs(info) if frozen else None
        members: list[str] = []
        if len(info.members) >= _CHOOSER_MEMBERS:
            members = pick_several(
                "Members",
                member_labels(info),
                key="m",
                keep=False,
                placeholder=f"all {len(info.members)}",
                help="Whose curves and rows are drawn. What is counted over the population stays the same.",
            )
    return Choice(run, REFRESH_S[live], newest, fixed, tuple(members))


def _window_slider() -> int | None:
    """How many of the newest steps; None for all."""
    frozen = st.session_state.get("freeze", parameter("freeze") == "true")
    asked = parameter("last") if "last" not in st.session_state else None
    chosen = st.select_slider(
        "Window (last steps)",
        WINDOWS,
        value="all",
        key="last",
        bind="query-params",
        disabled=frozen,
        help="Everything on the page is counted over these steps.",
    )
    note("last", asked if asked and asked not in WINDOWS else "", chosen, "all")
    return None if chosen == "all" else int(chosen)


def _run_selector(runs: list[RunInfo]) -> str:
    known = {info.uid: info for info in runs}
    options = [LATEST, *known]
    wanted = st.session_state.get("run_choice") or parameter("run") or LATEST
    if wanted not in options:
        st.warning("The run in the address is not in this store; showing the latest.", icon=":material/info:")
        wanted = LATEST

    def label(uid: str) -> str:
        if uid == LATEST:
            return "latest run"
        info = known[uid]
        same = sum(other.name == info.name for other in runs) > 1
        return formats.clean(info.name, 40) + (f" · {formats.clean(uid, 60)[-13:]}" if same else "")

    run = st.selectbox(
        "Run", options, index=options.index(wanted), format_func=label, key="run_choice", on_change=_forget_selection
    )
    if run == LATEST:
        st.query_params.pop("run", None)
    else:
        st.query_params["run"] = run
    return run


def _forget_selection() -> None:
    """Another run has other members, steps and prompts."""
    for name in SELECTIONS:
        st.query_params.pop(name, None)


def _freeze(choice: Choice) -> None:
    """Turning Freeze on takes over the steps that are shown at this moment; off, the range is forgotten."""
    for name, key in _RANGE.items():
        st.session_state.pop(key, None)
        st.query_params.pop(name, None)
    st.session_state.pop(_SLIDER, None)
    window = choice.window(Source.open(choice.run).info) if st.session_state.get("freeze") else None
    if window is not None:
        st.session_state[_RANGE["from"]], st.session_state[_RANGE["to"]] = window.first, window.last


def _range_inputs(info: RunInfo) -> tuple[int, int]:
    """The frozen range, as a slider over the whole run and as two numbers.

    Its parameters are written by hand: Streamlit binds no value that a callback sets. The slider's ends are the run's
    planned ones: ends that moved with the data would make it another slider each time.
    """
    wrong = []
    ends = {"from": info.first_step or 1, "to": info.last_step or 1}
    for name, key in _RANGE.items():
        if key not in st.session_state:
            asked = integer_parameter(name)
            st.session_state[key] = asked or ends[name]
            wrong += [name] if parameter(name) is not None and not asked else []
    low, high = (int(st.session_state[key]) for key in _RANGE.values())
    last = max(info.total_steps, info.last_step or 1, 2)
    st.session_state[_SLIDER] = min(low, high, last), min(max(low, high), last)
    st.slider("Steps", 1, last, key=_SLIDER, on_change=_take_slider, label_visibility="collapsed")
    picked = []
    for column, (name, key) in zip(st.columns(2), _RANGE.items(), strict=True):
        picked.append(int(column.number_input(f"{name.capitalize()} step", min_value=1, step=1, key=key) or 1))
        st.query_params[name] = str(picked[-1])
    for name in wrong:
        st.caption(f":orange[:material/info:] {refusal(name, 'no step number')}")
    return picked[0], picked[1]


def _take_slider() -> None:
    st.session_state[_RANGE["from"]], st.session_state[_RANGE["to"]] = st.session_state[_SLIDER]


def keep_range_in_address(choice: Choice) -> None:
    """Write the frozen range again where a refresh asked for before it stood there has lost it."""
    for name, step in zip(_RANGE, choice.fixed or (), strict=False):
        if parameter(name) != str(step):
            st.query_params[name] = str(step)
