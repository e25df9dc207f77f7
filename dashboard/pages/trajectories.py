"""Trajectories: a failed group beside the peer's group that was chosen for its place, response by response."""

from __future__ import annotations

from dataclasses import dataclass, replace

import streamlit as st

from dashboard import charts, formats, frames, parts, responses, safe_text
from dashboard.controls import Choice, Window, integer_parameter, parameter, slot_parameter
from dashboard.source import Source
from server.store.reader import GroupRecord, PeerGroup, StoreError, Trajectory, TransferRow

ANY = "any"
VERDICTS = ("admitted", "refused", "held out")
STEP_ROWS = 5_000


@dataclass(frozen=True)
class Filters:
    """Which transfers the reader walks through; names as in the store, None for any."""

    receiver: str | None
    source: str | None
    verdict: str | None

    def options(self) -> dict[str, str]:
        return {key: value for key, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Place:
    """One group, and where it lies among the filtered transfers (newest first; None: it is not one of them)."""

    step: int
    prompt: int
    receiver: str
    source: str | None
    position: int | None
    newer: TransferRow | None
    older: TransferRow | None


def draw(source: Source, choice: Choice) -> None:
    """The whole page; it never refreshes on its own, so a reader keeps the place."""
    window = choice.window(source.info)
    parts.status_line(source, window)
    if window is None:
        parts.no_steps(source.info)
        return
    filters, raw = _filters(source)
    with parts.guarded():
        place, total = _find(source, window, filters)
        if place is None:
            with st.container(border=True):
                parts.nothing(_why_none(source, filters))
            return
        if parts.exchanges(source.info):
            _navigation(source, place, total)
        _group(source, place, raw)


def _why_none(source: Source, filters: Filters) -> str:
    if not parts.exchanges(source.info):
        return (
            f"The method {safe_text.inline(formats.clean(source.info.method, 40))} has no exchange: no group moves. "
            "Complementarity links to single groups."
        )
    if filters.options():
        return "No transfer matches these filters in these steps."
    return (
        "No group was transferred in these steps. One moves where a member fails every rollout and a peer solves some."
    )


def _filters(source: Source) -> tuple[Filters, bool]:
    names = [member.name for member in source.info.members]
    labels = parts.labels(source.info, 28)
    by_label = dict(zip(labels, names, strict=True))
    with st.container(horizontal=True, vertical_alignment="bottom"):
        options = [ANY, *labels]
        receiver = st.selectbox("Receiver", options, key="rx", bind="query-params", on_change=_newest, width=200)
        giver = st.selectbox("Source", options, key="tx", bind="query-params", on_change=_newest, width=200)
        verdict = st.selectbox("Gate", [ANY, *VERDICTS], key="gate", bind="query-params", on_change=_newest, width=140)
        view = st.segmented_control(
            "View",
            ["Math", "Raw"],
            default="Math",
            required=True,
            key="view",
            bind="query-params",
            help="Math typesets formulas; Raw shows exactly what the member wrote.",
        )
    picked = [None if label == ANY else by_label.get(label) for label in (receiver, giver)]
    return Filters(picked[0], picked[1], None if verdict == ANY else verdict), view == "Raw"


def _newest() -> None:
    for name in ("step", "prompt", "receiver", "source"):
        st.query_params.pop(name, None)


def _go(row: TransferRow, slots: dict[str, int]) -> None:
    places = {"receiver": slots[row.receiver], "source": slots[row.source]}
    st.query_params.update(step=str(row.step), prompt=str(row.prompt), **{key: str(at) for key, at in places.items()})


def _find(source: Source, window: Window, filters: Filters) -> tuple[Place | None, int]:
    """The group the address names, else the newest transfer that matches; with its neighbours among the matches."""
    total = source.ask("transfers", window.first, window.last, limit=1, **filters.options())[1]
    step, prompt = integer_parameter("step"), integer_parameter("prompt")
    slot = slot_parameter("receiver", len(source.info.members))
    if step is None or prompt is None or slot is None:
        newest = _at(source, window, filters, 0)
        if newest is None:
            return None, total
        older = _at(source, window, filters, 1)
        return Place(newest.step, newest.prompt, newest.receiver, newest.source, 0, None, older), total
    receiver = source.info.members[slot].name
    peer = slot_parameter("source", len(source.info.members))
    giver = None if peer is None else source.info.members[peer].name
    later = 0
    if step < window.last:
        later = source.ask("transfers", step + 1, window.last, limit=1, **filters.options())[1]
    same, _ = source.ask("transfers", step, step, limit=STEP_ROWS, **filters.options())
    here = [at for at, row in enumerate(same) if (row.prompt, row.receiver) == (prompt, receiver)]
    inside = next((at for at in here if same[at].source == giver), here[0] if here else None)
    if inside is None or not window.first <= step <= window.last:
        newer, older = _at(source, window, filters, later - 1), _at(source, window, filters, later)
        return Place(step, prompt, receiver, giver, None, newer, older), total
    at = later + inside
    newer, older = _at(source, window, filters, at - 1), _at(source, window, filters, at + 1)
    return Place(step, prompt, receiver, same[inside].source, at, newer, older), total


def _at(source: Source, window: Window, filters: Filters, position: int) -> TransferRow | None:
    if position < 0:
        return None
    rows, _ = source.ask("transfers", window.first, window.last, offset=position, limit=1, **filters.options())
    return rows[0] if rows else None


def _navigation(source: Source, place: Place, total: int) -> None:
    slots = {member.name: slot for slot, member in enumerate(source.info.members)}
    where = (
        f"transfer {formats.count(place.position + 1)} of {formats.count(total)}"
        if place.position is not None
        else (f"not among the {formats.count(total)} transfers listed")
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        for key, label, row in (("newer", "Newer", place.newer), ("older", "Older", place.older)):
            st.button(
                label,
                icon=":material/chevron_left:" if key == "newer" else ":material/chevron_right:",
                icon_position="left" if key == "newer" else "right",
                key=f"trajectory_{key}",
                on_click=_go,
                args=(row, slots),
                disabled=row is None,
            )
        st.caption(f"{where}, newest first", width="content")
        if integer_parameter("step") is None or parameter("run") is None:
            help_text = "Put run and group into the address: the page stays on them, and the link can be shared."
            st.button(
                "Link to this group",
                icon=":material/link:",
                key="trajectory_link",
                type="tertiary",
                on_click=_pin,
                args=(source.info.uid, place, slots),
                help=help_text,
            )


def _pin(run: str, place: Place, slots: dict[str, int]) -> None:
    st.session_state["run_choice"] = run
    _put_in_address(place, slots)


def _put_in_address(place: Place, slots: dict[str, int]) -> None:
    st.query_params.update(step=str(place.step), prompt=str(place.prompt), receiver=str(slots[place.receiver]))
    if place.source is not None:
        st.query_params["source"] = str(slots[place.source])


def _group(source: Source, place: Place, raw: bool) -> None:
    trajectory: Trajectory = source.ask("trajectory", place.step, place.prompt, place.receiver)
    labels = {
        member.name: label for member, label in zip(source.info.members, parts.labels(source.info, 28), strict=True)
    }
    _prompt(trajectory, place, raw)
    if len(trajectory.peers) > 1:
        _peer_choice(source, place, trajectory, labels)
    peer = trajectory.peer(place.source)
    transfer = None if peer is None else peer.transfer
    if peer is not None:
        _gate(source, peer, labels)
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
            none = "No group was routed to this place in this step."
            st.caption(none if parts.exchanges(source.info) else "The run's method has no exchange.")
        else:
            responses.peer_group(group, labels[giver], transfer, floor, raw)


def _peer_choice(source: Source, place: Place, trajectory: Trajectory, labels: dict[str, str]) -> None:
    """Which of several peers' groups is shown beside the receiver's."""
    slots = {member.name: slot for slot, member in enumerate(source.info.members)}
    names = [peer.transfer.source for peer in trajectory.peers]
    shown = trajectory.peer(place.source)
    assert shown is not None
    key = f"peer_{place.step}_{place.prompt}_{slots[place.receiver]}_{slots[shown.transfer.source]}"
    st.segmented_control(
        f"Peers ({len(names)})",
        names,
        default=shown.transfer.source,
        format_func=lambda name: labels[name],
        required=True,
        key=key,
        on_change=_show_peer,
        args=(key, place, slots),
        help="Several peers' groups were chosen for this place; each has its own gate.",
    )


def _show_peer(key: str, place: Place, slots: dict[str, int]) -> None:
    _put_in_address(replace(place, source=st.session_state[key]), slots)


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
        responses.text(prompt.text, raw)


def _gate(source: Source, peer: PeerGroup, labels: dict[str, str]) -> None:
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
            st.markdown(
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
            st.caption("  \n".join(lines))
        with strip:
            rewards = [response.reward for response in peer.group.responses] if peer.group else []
            shown = frames.gate_frames(transfer, rewards, floor)
            if len(shown["responses"]):
                parts.chart(charts.gate_strip(parts.colours()), key="trajectory_gate", **shown)
            else:
                parts.nothing(
                    "Held out groups are not scored." if transfer.held_out else "No response could be scored."
                )


def _transfer_badge(held_out: bool, admitted: int, responses: int) -> str:
    if held_out:
        return ":violet-badge[held out]"
    return ":green-badge[grafted]" if admitted else f":orange-badge[refused: none of {responses} admitted]"
