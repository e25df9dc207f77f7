"""Which groups a reader of Trajectories walks through: filters, search in text, where one is, and what comes next."""

from __future__ import annotations

from dataclasses import dataclass, replace

import streamlit as st

from dashboard import formats, parts
from dashboard.controls import Window, integer_parameter, member_labels, parameter, pick, search, slot_parameter
from dashboard.responses import REFUSALS, VERDICTS
from dashboard.source import Source
from server.store.reader import Found, Place, PlaceFilter, RunInfo

ANY = "any"
TRANSFERS, GROUPS = "transfers", "all groups"
OUTCOMES: dict[bool, tuple[str, ...]] = {
    True: ("admitted", "refused", "held out"),
    False: ("all fail", "mixed", "all solved", "ungraded"),
}
_REFUSED_FOR = {words: name for name, words in (("floor", "s under the floor"), *REFUSALS.items())}
_GRADED = {words: code for code, words in VERDICTS.items()}


@dataclass(frozen=True)
class Stand:
    """One place, where it lies among those found (newest first; None: it is not one of them), and its neighbours."""

    place: Place
    position: int | None
    newer: Place | None
    older: Place | None


def filters(source: Source, window: Window) -> tuple[PlaceFilter, bool]:
    """(what the reader walks through, whether texts are shown raw)."""
    info = source.info
    names = dict(zip(member_labels(info), (member.name for member in info.members), strict=True))
    with st.container(horizontal=True, vertical_alignment="bottom"):
        exchange = parts.exchanges(info)
        transfers = exchange and (
            pick("Show", (TRANSFERS, GROUPS), key="show", segments=True, on_change=forget_place) == TRANSFERS
        )
        member = _one("Receiver" if transfers else "Member", [*names], "rx", 150)
        giver = _one("Source", [*names], "tx", 150) if transfers else None
        outcome = _one("Gate" if transfers else "Outcome", OUTCOMES[transfers], "gate" if transfers else "out", 125)
        subject = _one("Subject", source.ask("subjects", window.first, window.last), "subj", 150)
        refused = _one("Refused because", [*_REFUSED_FOR], "why", 185) if transfers else None
        graded = None if transfers else _one("Graded", [*_GRADED], "graded", 185)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = search(
            "Search in prompts and responses",
            key="q",
            placeholder="some words, as they were written",
            help="Reads the text of the newest 500 places that pass the other filters, and says so.",
            on_change=forget_place,
        )
        view = pick(
            "View",
            ("Math", "Raw"),
            key="view",
            segments=True,
            help="Math typesets formulas; Raw shows what the member wrote, hidden characters by their number.",
        )
    wanted = PlaceFilter(
        transfers,
        names.get(member or ""),
        names.get(giver or ""),
        outcome,  # type: ignore[arg-type]
        subject,
        _REFUSED_FOR.get(refused or ""),
        _GRADED.get(graded or ""),
        text,
    )
    return wanted, view == "Raw"


def _one(label: str, options: list[str] | tuple[str, ...], key: str, width: int) -> str | None:
    """The chosen option, None for any."""
    chosen = pick(label, [ANY, *options], key=key, width=width, on_change=forget_place)
    return None if chosen == ANY else chosen


def forget_place() -> None:
    """Go to the newest place: what is walked through has changed."""
    for name in ("step", "prompt", "receiver", "source"):
        st.query_params.pop(name, None)


def asked(info: RunInfo) -> Place | None:
    """The place the address names."""
    step, prompt = integer_parameter("step"), integer_parameter("prompt")
    slot, giver = (slot_parameter(name, len(info.members)) for name in ("receiver", "source"))
    if step is None or prompt is None or slot is None:
        return None
    return Place(step, prompt, info.members[slot].name, None if giver is None else info.members[giver].name)


def stand(source: Source, window: Window, wanted: PlaceFilter) -> tuple[Stand | None, Found]:
    """The place of the address, else the newest that passes the filters; and what was found around it.

    Only the newest places are listed. Where the address names an older one, the list begins at its step.
    """
    found: Found = source.ask("places", window.first, window.last, wanted=wanted)
    place = asked(source.info)
    if place is None:
        return (_at(found, 0) if found.places else None), found
    position = _position(found, place)
    bounded = found.total is None or found.total > found.looked_at
    if position is None and bounded and window.first <= place.step < window.last:
        earlier: Found = source.ask("places", window.first, place.step, wanted=wanted)
        if _position(earlier, place) is not None:
            found, position = earlier, _position(earlier, place)
    if position is not None:
        return _at(found, position), found
    newer = [one for one in found.places if one.step > place.step]
    older = next((one for one in found.places if one.step <= place.step), None)
    return Stand(place, None, newer[-1] if newer else None, older), found


def _position(found: Found, place: Place) -> int | None:
    """Where a place is listed; a transfer's place without a source is its first source's."""
    same = [at for at, one in enumerate(found.places) if replace(one, source=None) == replace(place, source=None)]
    return next((at for at in same if found.places[at].source == place.source), same[0] if same else None)


def _at(found: Found, position: int) -> Stand:
    def other(at: int) -> Place | None:
        return found.places[at] if 0 <= at < len(found.places) else None

    return Stand(found.places[position], position, other(position - 1), other(position + 1))


def go(place: Place, info: RunInfo) -> None:
    """Put a place into the address."""
    st.query_params.pop("source", None)
    st.query_params.update(address(place, info))


def address(place: Place, info: RunInfo) -> dict[str, str]:
    """The query parameters that name a place."""
    slots = {member.name: str(slot) for slot, member in enumerate(info.members)}
    where = {"step": str(place.step), "prompt": str(place.prompt), "receiver": slots[place.receiver]}
    return where if place.source is None else where | {"source": slots[place.source]}


def navigation(source: Source, here: Stand, found: Found, wanted: PlaceFilter) -> None:
    """Newer and older, where this place is among those found, and its link."""
    with st.container(horizontal=True, vertical_alignment="center"):
        for key, label, place, shortcut in (("newer", "Newer", here.newer, "K"), ("older", "Older", here.older, "J")):
            st.button(
                label,
                icon=":material/chevron_left:" if key == "newer" else ":material/chevron_right:",
                icon_position="left" if key == "newer" else "right",
                key=f"trajectory_{key}",
                on_click=go,
                args=(place, source.info),
                disabled=place is None,
                shortcut=shortcut,
            )
        st.caption(where(here, found, wanted), width="content")
        if integer_parameter("step") is None or parameter("run") is None:
            st.button(
                "Link to this group",
                icon=":material/link:",
                key="trajectory_link",
                type="tertiary",
                on_click=_pin,
                args=(here.place, source.info),
                help="Put run and group into the address: the page stays on them, and the link can be shared.",
            )


def _pin(place: Place, info: RunInfo) -> None:
    st.session_state["run_choice"] = info.uid
    go(place, info)


def where(here: Stand, found: Found, wanted: PlaceFilter) -> str:
    """Which of how many, newest first, and how many were looked at where not all were."""
    noun = "transfer" if wanted.transfers else "group"
    narrowed = wanted.subject or wanted.refusal or wanted.verdict is not None or wanted.text
    everything = len(found.places) if narrowed else found.total
    many = f"more than {found.looked_at:,}" if everything is None else formats.count(everything)
    if here.position is None:
        return f"not among the {many} {noun}s listed{bounds(found, wanted)}"
    return f"{noun} {formats.count(here.position + 1)} of {many}, newest first{bounds(found, wanted)}"


def bounds(found: Found, wanted: PlaceFilter) -> str:
    """What was not looked at; empty where everything was."""
    if found.total is not None and found.looked_at >= found.total and not wanted.text:
        return ""
    total = "more" if found.total is None else formats.count(found.total)
    if wanted.text:
        return f" · searched the text of {formats.count(found.looked_at)} of {total} places, the newest"
    return f" · the newest {formats.count(found.looked_at)} of {total} are listed"
