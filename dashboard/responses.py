"""One group of responses as cards: what was written, what it earned, and what the gate said about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from dashboard import formats, parts, safe_text
from server.store.reader import GraftedRecord, GroupRecord, ResponseRecord, TransferRecord

# Longer responses scroll inside their card; still longer ones are cut, and can be had whole as a file.
SCROLL_CHARACTERS = 1_100
SCROLL_HEIGHT = 300
MATH_CHARACTERS = 6_000
RAW_CHARACTERS = 20_000

VERDICTS = {
    -1: "no answer found",
    -2: "grading timed out",
    -3: "grader crashed",
    -4: "grading error",
    -5: "unreadable reference answer",
    -6: "too long to grade",
}
REFUSALS = {
    "too_long": "too long for the receiver",
    "round_trip": "text does not survive the receiver's tokens",
    "undecodable": "undecodable text",
    "empty": "empty response",
}

# Methods under which a peer's response is measured against rewards of several groups.
SHARED_BASELINE = frozenset({"graft-pooled", "graft-hacpo", "graft-sgt", "hacpo", "sgt"})
SHARED_NOTE = (
    " In the receiver's update it has another one, over rewards of several groups; the store does not record that one "
    "(A here)."
)


def exchange_settings(config: object) -> tuple[float | None, str]:
    """(floor, normaliser in words) of a run's configuration; (None, "not recorded") where it does not say."""
    exchange = config.get("exchange") if isinstance(config, Mapping) else None
    exchange = exchange if isinstance(exchange, Mapping) else {}
    floor = exchange.get("floor")
    words = {
        "own": "own (each model's mean over its own tokens)",
        "bytes": "bytes (both sums over the text's UTF-8 bytes)",
        "reference": "reference (both sums over bytes, at the population's bytes per token)",
    }
    normaliser = exchange.get("normaliser")
    return (
        float(floor) if isinstance(floor, int | float) else None,
        words.get(
            str(normaliser), safe_text.inline(formats.clean(str(normaliser), 40)) if normaliser else "not recorded"
        ),
    )


def own_group(group: GroupRecord, label: str, transfers: Sequence[TransferRecord], raw: bool) -> None:
    """The receiver's own responses, and what the peers' groups chosen for the same place mean for the update."""
    _subheader(f"{safe_text.inline(label)} · own group · {group.successes}/{group.n} solved")
    if group.errors:
        note = f"{group.errors} responses could not be graded: the group never moves."
    elif any(not transfer.held_out for transfer in transfers):
        admitted = any(response.refusal is None for transfer in transfers for response in transfer.responses)
        note = (
            "Admitted peer responses enter the update for this prompt."
            if admitted
            else "No peer response was admitted for this prompt."
        )
    elif group.mixed:
        note = "Part of the update."
    else:
        note = "No reward differs, so every advantage is zero."
    parts.caption(note)
    for index, response in enumerate(group.responses):
        _response(f"own_{index}", index, response, raw)


def peer_group(
    group: GroupRecord, label: str, transfer: TransferRecord | None, floor: float | None, method: str, raw: bool
) -> None:
    """A peer's responses, with what the gate made of each."""
    kind = "peer's group, not routed" if transfer is None else "held-out group" if transfer.held_out else "peer's group"
    _subheader(f"{safe_text.inline(label)} · {kind} · {group.successes}/{group.n} solved")
    shared = transfer is not None and not transfer.held_out and method in SHARED_BASELINE
    parts.caption(_peer_note(group, transfer, floor) + (SHARED_NOTE if shared else ""))
    gate = {response.index: response for response in transfer.responses} if transfer is not None else {}
    for index, response in enumerate(group.responses):
        _response(f"peer_{index}", index, response, raw, gate.get(index), floor, shared)


def _peer_note(group: GroupRecord, transfer: TransferRecord | None, floor: float | None) -> str:
    """What became of a peer's group, in one sentence that holds for every method."""
    if transfer is None:
        if group.mixed:
            return "It solved the prompt, but the exchange did not choose it for this place."
        return "No candidate: only a group with right and wrong responses has advantages to give."
    if transfer.held_out:
        return "Withheld as a control: not scored, not trained on."
    gate = "each response has its weight beside it" if floor is None else "the weight is min(s, 1) above the floor"
    return f"A is the advantage in its own member's update; {gate}."


def gate_floor(floor: float | None, transfer: TransferRecord | None) -> float | None:
    """The floor that decided a transfer; None where an admitted response's weight is not the gate's, so none ran."""
    if floor is None or transfer is None:
        return floor
    admitted = [(one.s, one.weight) for one in transfer.responses if one.refusal is None and one.s is not None]
    return floor if all(s > floor and weight <= min(s, 1.0) + 1e-9 for s, weight in admitted) else None


def _reward_badge(reward: float) -> str:
    """A reward in full: above 0 it counts as solved, whatever its size."""
    shown = formats.number(reward, 0 if reward in (0.0, 1.0) else 2)
    return f":green-badge[✓ reward {shown}]" if reward > 0 else f":gray-badge[✗ reward {shown}]"


def _response(
    key: str,
    index: int,
    response: ResponseRecord,
    raw: bool,
    gate: GraftedRecord | None = None,
    floor: float | None = None,
    shared_baseline: bool = False,
) -> None:
    badges = [
        _reward_badge(response.reward),
        f":gray-badge[A = {formats.signed(response.advantage)}]",
        *([f":gray-badge[A here = {formats.MISSING}]"] if shared_baseline else []),
    ]
    if response.verdict in VERDICTS:
        badges.append(f":orange-badge[{VERDICTS[response.verdict]}]")
    if response.finish != "stop":
        badges.append(
            ":orange-badge[cut at the length limit]" if response.finish == "length" else ":orange-badge[aborted]"
        )
    if gate is not None:
        badges += gate_badges(gate, floor)
    tokens = f":small[:gray[{formats.counted(len(response.token_ids), 'token')}]]"
    with st.container(border=True, gap="xsmall"):
        st.markdown(f"**#{index}** &nbsp;{' '.join(badges)} {tokens}")
        text(response.text, raw, f"response_{key}")
    parts.quote(f"**#{index}** {' '.join(badges)} {tokens}", response.text)


def _subheader(markdown: str) -> None:
    st.subheader(markdown, anchor=False)
    parts.begin(markdown)


def gate_badges(gate: GraftedRecord, floor: float | None) -> list[str]:
    """What the gate said about one response: s, then its weight or the reason of its refusal."""
    badges = [] if gate.s is None else [f":blue-badge[s = {formats.number(gate.s)}]"]
    if gate.refusal is None:
        return [*badges, f":green-badge[weight {formats.number(gate.weight, 2)}]"]
    if gate.refusal == "floor":
        limit = "the floor" if floor is None else f"floor {formats.number(floor, 2).rstrip('0').rstrip('.')}"
        return [f":orange-badge[refused: s = {formats.number(gate.s)} ≤ {limit}]"]
    reason = REFUSALS.get(gate.refusal, safe_text.inline(formats.clean(gate.refusal, 40)))
    return [*badges, f":orange-badge[refused: {reason}]"]


def text(written: str, raw: bool, key: str) -> None:
    """Model output: formulas typeset and everything else literal, or the text itself in a code block.

    What is too long to show is cut, with its length and the whole of it as a file; `key` tells the page's texts apart.
    """
    if not written.strip():
        st.caption("(empty)")
        return
    long = len(written) > SCROLL_CHARACTERS
    limit = RAW_CHARACTERS if raw else MATH_CHARACTERS
    with st.container(height=SCROLL_HEIGHT if long else "content", border=False):
        if raw:
            st.code(safe_text.visible(written[:limit]), language=None, wrap_lines=True)
        else:
            st.markdown(safe_text.math(written, limit))
    if len(written) > limit:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(f"{limit:,} of {len(written):,} characters", width="content")
            st.download_button(
                "All of it",
                lambda: written.encode("utf-8", "replace"),
                file_name=f"{key}.txt",
                mime="text/plain",
                on_click="ignore",
                icon=":material/download:",
                type="tertiary",
                key=f"{key}_whole",
            )
