"""Trajectories: a failed group beside the peer's group that was chosen for its place, response by response."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import streamlit as st

from dashboard import charts, formats, frames, parts, places, responses, safe_text
from dashboard.controls import Choice, Window, member_labels
from dashboard.source import Source
from server.store.reader import Found, GroupRecord, PeerGroup, Place, PlaceFilter, StoreError, Trajectory

# From this many peers on, a list instead of buttons.
MOST_BUTTONS = 6
# Places in an export, the newest.
FILE_PLACES = 3


def views(source: Source, window: Window) -> list[dict[str, str]]:
    """The newest places, those of transfers where there is an exchange."""
    wanted = PlaceFilter(parts.exchanges(source.info))
    found: Found = source.ask("places", window.first, window.last, wanted=wanted)
    return [places.address(place, source.info) for place in found.places[:FILE_PLACES]] or [{}]


def draw(source: Source, choice: Choice) -> None:
    """The whole page; it never refreshes on its own, so a reader keeps the place."""
    window = choice.window(source.info)
    parts.status_line(source, window)
    if window is None:
        parts.no_steps(source.info)
        return
    wanted, raw = places.filters(source, window)
    with parts.guarded():
        here, found = places.stand(source, window, wanted)
        if here is None:
            with st.container(border=True):
                parts.nothing(_why_none(found, wanted))
            return
        places.navigation(source, here, found, wanted)
        _group(source, here.place, raw)


def _why_none(found: Found, wanted: PlaceFilter) -> str:
    if wanted != PlaceFilter(wanted.transfers):
        what = "transfer" if wanted.transfers else "group"
        return f"No {what} matches these filters in these steps{places.bounds(found, wanted)}."
    if not wanted.transfers:
        return "No group is stored for these steps."
    return (
        "No group was transferred in these steps. One moves where a member fails every rollout and a peer solves some."
    )


def _group(source: Source, place: Place, raw: bool) -> None:
    trajectory: Trajectory = source.ask("trajectory", place.step, place.prompt, place.receiver)
    labels = dict(zip((member.name for member in source.info.members), member_labels(source.info), strict=True))
    _prompt(trajectory, place, raw)
    _peer_choice(source, place, trajectory, labels)
    peer = trajectory.peer(place.source)
    transfer = None if peer is None else peer.transfer
    if peer is not None:
        _gate(source, place, peer, labels)
    giver = place.source if peer is None else peer.transfer.source
    group = _asked_group(source, place) if peer is None else peer.group
    floor = responses.gate_floor(responses.exchange_settings(source.info.config)[0], transfer)
    left, right = st.columns(2)
    with left:
        routed = [one.transfer for one in trajectory.peers]
        responses.own_group(trajectory.own, labels[place.receiver], routed, raw)
    with right:
        if giver is None or group is None:
            st.subheader("No peer group", anchor=False)
            method = safe_text.inline(formats.clean(source.info.method, 40))
            none = "No group was routed to this place in this step."
            parts.caption(none if parts.exchanges(source.info) else f"The method {method} has no exchange: none moves.")
        else:
            responses.peer_group(group, labels[giver], transfer, floor, source.info.method, raw)


def _peer_choice(source: Source, place: Place, trajectory: Trajectory, labels: dict[str, str]) -> None:
    """Which of several peers' groups, or of the other members', is shown beside the receiver's."""
    slots = {member.name: slot for slot, member in enumerate(source.info.members)}
    peer = trajectory.peer(place.source)
    if peer is None:
        names, shown = [name for name in labels if name != place.receiver], place.source
        label, about = "Beside", "No group came to this place; what another member said to the same prompt."
    else:
        names, shown = [one.transfer.source for one in trajectory.peers], peer.transfer.source
        label = f"Peers ({len(names)})"
        about = "Several peers' groups were chosen for this place; each has its own gate."
    if not names or names == [shown]:
        return
    key = f"peer_{place.step}_{place.prompt}_{slots[place.receiver]}_{slots.get(shown or '', 'none')}"
    changed: dict[str, Any] = {"key": key, "on_change": _show_peer, "args": (key, place, source), "help": about}
    if len(names) <= MOST_BUTTONS:
        # A button's text is Markdown.
        st.segmented_control(
            label, names, default=shown, format_func=lambda name: safe_text.inline(labels[name]), **changed
        )
    else:
        index = names.index(shown) if shown in names else None
        st.selectbox(label, names, index=index, format_func=labels.__getitem__, width=300, **changed)


def _show_peer(key: str, place: Place, source: Source) -> None:
    places.go(replace(place, source=st.session_state[key] or place.source), source.info)


def _asked_group(source: Source, place: Place) -> GroupRecord | None:
    """The group of the peer the address names, when nothing was routed here."""
    if place.source is None or place.source == place.receiver:
        return None
    try:
        return source.ask("trajectory", place.step, place.prompt, place.source).own
    except StoreError:
        return None


def _prompt(trajectory: Trajectory, place: Place, raw: bool) -> None:
    prompt = trajectory.prompt
    badges = [f":gray-badge[step {formats.count(place.step)}]"]
    if prompt.subject:
        badges.append(f":gray-badge[{safe_text.inline(formats.clean(prompt.subject, 40))}]")
    if prompt.level is not None:
        badges.append(f":gray-badge[level {prompt.level}]")
    answer = formats.clean(prompt.answer, 60)
    badges.append(f":blue-badge[answer {safe_text.inline(answer)}]")
    with st.container(border=True, gap="xsmall"):
        st.markdown(f"**Prompt {prompt.key}** &nbsp;{' '.join(badges)}")
        responses.text(prompt.text, raw, "prompt")
    parts.begin(f"Prompt {prompt.key}")
    parts.quote(" ".join(badges), prompt.text)


def _gate(source: Source, place: Place, peer: PeerGroup, labels: dict[str, str]) -> None:
    """What was transferred, why, and what the gate made of it."""
    transfer = peer.transfer
    receiver, giver = (safe_text.inline(labels[name]) for name in (transfer.receiver, transfer.source))
    floor, normaliser = responses.exchange_settings(source.info.config)
    floor = responses.gate_floor(floor, transfer)
    with st.container(border=True):
        facts, strip = st.columns([4, 7], vertical_alignment="center")
        admitted = sum(response.refusal is None for response in transfer.responses)
        scores = [response.s for response in transfer.responses if response.s is not None]
        with facts:
            parts.text(
                f"**{receiver} ← {giver}** &nbsp;"
                + _transfer_badge(transfer.held_out, admitted, len(transfer.responses))
            )
            tie = " · joined by a tie" if transfer.tie else ""
            lines = [f"expected useful share v = {formats.number(transfer.value)}{tie}"]
            if transfer.held_out:
                lines.append("held out: chosen, but withheld as a control")
            else:
                mean = formats.number(sum(scores) / len(scores)) if scores else formats.MISSING
                lines.append(f"{admitted} of {len(transfer.responses)} responses admitted · mean s = {mean}")
            gate = "no floor applied" if floor is None else f"floor {formats.number(floor, 2)}"
            lines += [f"s normalised by: {normaliser}", gate]
            parts.caption("  \n".join(lines))
        with strip:
            rewards = [response.reward for response in peer.group.responses] if peer.group else []
            shown = frames.gate_frames(transfer, rewards, floor)
            if len(shown["responses"]):
                slots = "_".join(str([*labels].index(name)) for name in (transfer.receiver, transfer.source))
                key = f"trajectory_gate_{place.step}_{place.prompt}_{slots}"
                parts.chart(charts.gate_strip(parts.colours()), key=key, **shown)
            else:
                parts.nothing(
                    "Held out groups are not scored." if transfer.held_out else "No response could be scored."
                )


def _transfer_badge(held_out: bool, admitted: int, responses: int) -> str:
    if held_out:
        return ":violet-badge[held out]"
    return ":green-badge[grafted]" if admitted else f":orange-badge[refused: none of {responses} admitted]"
