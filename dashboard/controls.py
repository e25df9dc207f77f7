"""What the reader chose, and controls for it. Every choice stands in the address: a link shows the same.

A page is `draw(source, choice)`, runs in one fragment that may refresh, and uses this file so:

    window = choice.window(source.info)          # Window(first, last), both included; None before the first step
    slots = choice.slots(source.info)            # members to draw, by slot; all where the reader picked none
    peer = pick("Peer", labels, key="peer")      # one of the options; the first is the default and not in the address
    shown = pick_several("Pairs", labels, key="pairs")                # any of them, [] where none is picked
    by = pick("By", ("step", "tokens"), key="by", segments=True)      # as buttons in a row
    text = search("Text contains", key="q")      # free text, "" where there is none
    on = switch("Distinct prompts", key="distinct")

`key` is both the widget's key and the name in the address: short, lower case, and unlike `RESERVED` and other pages'
keys. A value in the address that is no option is refused in a note under the control, never a crash. Options may grow
with the data: a choice stays, even when its option is gone (pass `keep=False` where it should go). Parameters without a
widget (a selected cell, a place) are read with `parameter`, `integer_parameter`, `slot_parameter`, written with
`st.query_params`, and listed in `SELECTIONS` when they point into one run. `link_parameters(...)` makes the query of a
link to another page that keeps run and window. Questions to the store go through `source.ask`, which answers from its
cache until the steps that were asked for change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import streamlit as st

from dashboard import formats, safe_text
from server.store.reader import RunInfo

# Query parameters that point into one run: another run has other members, steps and prompts.
SELECTIONS = ("cell", "at", "step", "prompt", "receiver", "source")
# The sidebar's own parameters.
SHARED = ("run", "live", "last", "freeze", "from", "to", "m")
RESERVED = (*SHARED, *SELECTIONS)
LABEL_LIMIT = 28
_FALLBACKS = "refused_in_address"


@dataclass(frozen=True)
class Window:
    """The steps shown, both ends included."""

    first: int
    last: int

    def __str__(self) -> str:
        return formats.steps(self.first, self.last)


@dataclass(frozen=True)
class Choice:
    """What the sidebar says; `fixed` is the frozen range, None while the window follows the run; `members` are labels
    as `member_labels` makes them, empty for all."""

    run: str
    refresh_s: float | None
    newest: int | None
    fixed: tuple[int, int] | None
    members: tuple[str, ...] = ()

    def window(self, info: RunInfo) -> Window | None:
        """The chosen steps within those the run has; None while it has none. A range beyond it is moved inside."""
        if info.first_step is None or info.last_step is None:
            return None
        first, last = info.first_step, info.last_step
        if self.fixed is not None:
            low, high = (min(max(step, first), last) for step in sorted(self.fixed))
            return Window(low, high)
        return Window(first if self.newest is None else max(first, last - self.newest + 1), last)

    def slots(self, info: RunInfo) -> list[int]:
        """The chosen members of a run by slot, ascending; all where none is chosen, or none of them is of this run."""
        chosen = [slot for slot, label in enumerate(member_labels(info)) if label in self.members]
        return chosen or list(range(len(info.members)))


def member_labels(info: RunInfo) -> list[str]:
    """Distinct names of the members as controls and addresses write them, in slot order."""
    return formats.abbreviate([member.name for member in info.members], LABEL_LIMIT)


def pick(
    label: str,
    options: Sequence[str],
    *,
    key: str,
    default: str | None = None,
    segments: bool = False,
    keep: bool = True,
    help: str | None = None,
    width: int | None = None,
    hide_label: bool = False,
    on_change: Callable[[], None] | None = None,
) -> str:
    """One of the options; by itself `default`, or else the first. With `segments`, as buttons in a row: only for
    constant options, whose text is Markdown there."""
    options = _with_chosen(options, key) if keep and not segments else list(options)
    default = options[0] if default is None else default
    refused = _refused(key, [parameter(key)], options)
    visibility = "collapsed" if hide_label else "visible"
    if segments:
        chosen = st.segmented_control(
            label, options, default=default, required=True, key=key, bind="query-params", help=help,
            on_change=on_change, label_visibility=visibility,
        )  # fmt: skip
    else:
        chosen = st.selectbox(
            label, options, index=options.index(default), key=key, bind="query-params", help=help,
            width=width or "stretch", on_change=on_change, label_visibility=visibility,
        )  # fmt: skip
    note(key, refused, chosen, default)
    return chosen or default


def pick_several(
    label: str,
    options: Sequence[str],
    *,
    key: str,
    keep: bool = True,
    most: int | None = None,
    placeholder: str = "all",
    help: str | None = None,
    on_change: Callable[[], None] | None = None,
) -> list[str]:
    """Any of the options, at most `most` of them, in their order; [] where none is picked, which `placeholder` explains
    in the empty box."""
    options = _with_chosen(options, key) if keep else list(options)
    refused = _refused(key, st.query_params.get_all(key), options)
    chosen = st.multiselect(
        label, options, key=key, bind="query-params", max_selections=most, placeholder=placeholder, help=help,
        on_change=on_change,
    )  # fmt: skip
    note(key, refused, chosen, [])
    return [option for option in options if option in chosen]


def search(
    label: str, *, key: str, help: str | None = None, placeholder: str = "", on_change: Callable[[], None] | None = None
) -> str:
    """Free text of at most 200 characters, without blanks around it."""
    found = st.text_input(
        label, key=key, bind="query-params", max_chars=200, help=help, placeholder=placeholder, on_change=on_change
    )
    return (found or "").strip()


def switch(label: str, *, key: str, help: str | None = None, on_change: Callable[[], None] | None = None) -> bool:
    """On or off, off by default."""
    refused = _refused(key, [(parameter(key) or "false").lower()], ("true", "false"))
    on = st.toggle(label, key=key, bind="query-params", help=help, on_change=on_change)
    note(key, refused, on, False)
    return on


def _with_chosen(options: Sequence[str], key: str) -> list[str]:
    """The options, and what is chosen at this moment even where the data no longer offer it."""
    chosen = st.session_state.get(key) or []
    chosen = [chosen] if isinstance(chosen, str) else chosen
    return [*options, *(one for one in chosen if one not in options)]


def _refused(key: str, asked: Sequence[str | None], options: Sequence[str]) -> str:
    """What the address asks for that does not exist; only before the control has a value of its own."""
    if key in st.session_state:
        return ""
    wrong = [one for one in asked if one and one not in options]
    return formats.clean(", ".join(wrong), 60) if wrong else ""


def note(key: str, refused: str, chosen: object, default: object) -> None:
    """Say what was refused, until the reader chooses something."""
    notes = st.session_state.setdefault(_FALLBACKS, {})
    if refused:
        notes[key] = refused
    if key in notes and chosen != default:
        del notes[key]
    if key in notes:
        st.caption(f":orange[:material/info:] {refusal(key, notes[key])}")


def refusal(key: str, asked: str) -> str:
    """The note on a value in the address that cannot be."""
    return f"The address asks for {key} = “{safe_text.inline(asked)}”, which is not there; the default is shown\\."


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


def link_parameters(**more: str | int) -> dict[str, str]:
    """Query parameters of a link to another page: the sidebar's as they are in the address, and `more`."""
    kept = {name: value for name in SHARED if name != "m" and (value := parameter(name))}
    return kept | {key: str(value) for key, value in more.items()}
