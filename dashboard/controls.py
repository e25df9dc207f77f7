"""The sidebar: which run, how often to refresh, which steps. Every choice is in the address: a link shows the same."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from dashboard import formats
from dashboard.source import LATEST, Source
from server.store.reader import RunInfo

REFRESH_S: dict[str, float | None] = {"off": None, "2s": 2.0, "10s": 10.0}
# Query parameters that point into one run.
SELECTIONS = ("cell", "at", "step", "prompt", "receiver", "source")
# Parameters of the frozen range, and the keys of their widgets.
_RANGE = {"from": "from_step", "to": "to_step"}
WINDOWS = ("10", "25", "50", "100", "250", "500", "1000", "all")


@dataclass(frozen=True)
class Window:
    """The steps shown, both ends included."""

    first: int
    last: int

    def __str__(self) -> str:
        return formats.steps(self.first, self.last)


@dataclass(frozen=True)
class Choice:
    """What the sidebar says; `fixed` is the frozen range, None while the window follows the run."""

    run: str
    refresh_s: float | None
    newest: int | None
    fixed: tuple[int, int] | None

    def window(self, info: RunInfo) -> Window | None:
        """The chosen steps within those the run has; None while it has none. A range beyond it is moved inside."""
        if info.first_step is None or info.last_step is None:
            return None
        first, last = info.first_step, info.last_step
        if self.fixed is not None:
            low, high = (min(max(step, first), last) for step in sorted(self.fixed))
            return Window(low, high)
        return Window(first if self.newest is None else max(first, last - self.newest + 1), last)


def parameter(name: str) -> str | None:
    """A query parameter that no widget owns."""
    return st.query_params.get(name)


def integer_parameter(name: str) -> int | None:
    """A query parameter as a whole number; None where it is absent or something else."""
    value = st.query_params.get(name, "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 17 else None


def slot_parameter(name: str, members: int) -> int | None:
    """A query parameter that names a member by its slot."""
    slot = integer_parameter(name)
    return slot if slot is not None and slot < members else None


def cell_parameter(members: int) -> tuple[int, int] | None:
    """The selected pair, `cell=row-column`; None where it is absent or no pair of this run."""
    row, _, column = st.query_params.get("cell", "").partition("-")
    if not (row.isascii() and row.isdigit() and column.isascii() and column.isdigit()):
        return None
    pair = int(row), int(column)
    return pair if pair[0] != pair[1] and max(pair) < members else None


def sidebar(runs: list[RunInfo]) -> Choice:
    """Draw the controls and say what they say."""
    with st.sidebar:
        st.subheader(":material/hub: GRAFT population", anchor=False)
        run = _run_selector(runs)
        live = st.segmented_control(
            "Live refresh",
            list(REFRESH_S),
            default="2s",
            required=True,
            key="live",
            bind="query-params",
            help="How often the page reads the store again. Trajectories never refresh on their own.",
        )
        frozen = st.session_state.get("freeze", parameter("freeze") == "true")
        newest = st.select_slider(
            "Window (last steps)",
            WINDOWS,
            value="all",
            key="last",
            bind="query-params",
            disabled=frozen,
            help="Everything on the page is counted over these steps.",
        )
        choice = Choice(run, None, None if newest == "all" else int(newest), None)
        st.toggle(
            "Freeze the range",
            key="freeze",
            bind="query-params",
            on_change=_freeze,
            args=(choice,),
            help="Keep these steps while the run goes on; the picture stays still and the address names it.",
        )
        fixed = _range_inputs() if st.session_state.get("freeze") else None
    return Choice(run, REFRESH_S[live or "off"], choice.newest, fixed)


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
    for name in _RANGE:
        st.session_state.pop(_RANGE[name], None)
        st.query_params.pop(name, None)
    window = choice.window(Source.open(choice.run).info) if st.session_state.get("freeze") else None
    if window is not None:
        st.session_state[_RANGE["from"]], st.session_state[_RANGE["to"]] = window.first, window.last


def _range_inputs() -> tuple[int, int]:
    """The frozen range. Its parameters are written by hand: Streamlit binds no value that a callback sets."""
    picked = []
    for column, (name, key) in zip(st.columns(2), _RANGE.items(), strict=True):
        if key not in st.session_state:
            st.session_state[key] = max(1, integer_parameter(name) or 1)
        picked.append(int(column.number_input(f"{name.capitalize()} step", min_value=1, step=1, key=key) or 1))
        st.query_params[name] = str(picked[-1])
    return picked[0], picked[1]


def keep_range_in_address(choice: Choice) -> None:
    """Write the frozen range again where a refresh asked for before it stood there has lost it."""
    for name, step in zip(_RANGE, choice.fixed or (), strict=False):
        if parameter(name) != str(step):
            st.query_params[name] = str(step)


def link_parameters(**more: str | int) -> dict[str, str]:
    """Query parameters of a link to another page: the sidebar's as they are in the address, and `more`."""
    kept = {name: value for name in ("run", "live", "last", "freeze", "from", "to") if (value := parameter(name))}
    return kept | {key: str(value) for key, value in more.items()}
