"""Places to look at: filters and search find what a walk through the raw records finds, and say their bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from server.store import read_places
from server.store.reader import Found, GroupRecord, PlaceFilter, Reader
from tests.store.conftest import SHARED_STEPS
from tests.store.synthetic import Scenario

SCENARIO = Scenario(steps=SHARED_STEPS, prompts=16, nan_loss_at=5)
STEPS = {step: SCENARIO.step(step) for step in range(1, SHARED_STEPS + 1)}
NAMES = [member.name for member in SCENARIO.run().members]
PROMPTS = {prompt.key: prompt for step in STEPS.values() for prompt in step.prompts}


def found(reader: Reader, first: int = 1, last: int = SHARED_STEPS, **wanted: Any) -> Found:
    return reader.places("latest", first, last, wanted=PlaceFilter(**wanted))


def keys(result: Found) -> list[tuple[int, int, str, str | None]]:
    return [(place.step, place.prompt, place.receiver, place.source) for place in result.places]


def transfers(first: int = 1, last: int = SHARED_STEPS) -> list[Any]:
    return [(step, one) for step in range(last, first - 1, -1) for one in STEPS[step].transfers]


def test_transfers_are_found_newest_first_and_counted(reader: Reader) -> None:
    result = found(reader, 4, 20)
    expected = sorted(
        ((step, one.prompt, one.receiver, one.source) for step, one in transfers(4, 20)),
        key=lambda row: (-row[0], NAMES.index(row[2]), row[1], NAMES.index(row[3])),
    )
    assert keys(result) == expected
    assert result.looked_at == result.total == len(expected) > 0


@pytest.mark.parametrize("outcome", ["admitted", "refused", "held out"])
def test_transfers_are_filtered_by_the_gates_verdict_and_both_members(reader: Reader, outcome: str) -> None:
    def passes(one: Any) -> bool:
        admitted = any(response.refusal is None for response in one.responses)
        verdict = "held out" if one.held_out else "admitted" if admitted else "refused"
        return verdict == outcome and one.receiver == NAMES[1] and one.source == NAMES[0]

    expected = {(step, one.prompt, one.receiver, one.source) for step, one in transfers() if passes(one)}
    result = found(reader, member=NAMES[1], source=NAMES[0], outcome=outcome)
    assert set(keys(result)) == expected
    assert result.total == len(expected)


@pytest.mark.parametrize("refusal", ["floor", "too_long", "nothing"])
def test_transfers_are_filtered_by_why_a_response_was_refused(reader: Reader, refusal: str) -> None:
    expected = {
        (step, one.prompt, one.receiver, one.source)
        for step, one in transfers()
        if any(response.refusal == refusal for response in one.responses)
    }
    result = found(reader, refusal=refusal)
    assert set(keys(result)) == expected
    assert result.looked_at == len(transfers())


def test_the_subjects_of_the_prompts_are_known_and_filter(reader: Reader) -> None:
    subjects = {prompt.subject for prompt in PROMPTS.values() if prompt.subject}
    assert reader.subjects("latest", 1, SHARED_STEPS) == sorted(subjects)
    subject = min(subjects)
    places = {place.prompt for place in found(reader, transfers=False, subject=subject).places}
    seen = {group.prompt for step in STEPS.values() for group in step.groups}
    assert places == {key for key in seen if PROMPTS[key].subject == subject}


@pytest.mark.parametrize(
    ("outcome", "holds"),
    [
        (None, lambda group: True),
        ("all fail", lambda group: group.all_fail),
        ("mixed", lambda group: group.mixed),
        ("all solved", lambda group: group.all_solved),
        ("ungraded", lambda group: group.errors > 0),
    ],
)
def test_groups_are_filtered_by_their_outcome(reader: Reader, outcome: Any, holds: Any) -> None:
    groups = [(step, group) for step in STEPS for group in STEPS[step].groups]
    expected = {(step, group.prompt, group.member) for step, group in groups if holds(group)}
    result = found(reader, transfers=False, outcome=outcome)
    assert {key[:3] for key in keys(result)} == expected
    assert result.total == len(expected)
    mine = found(reader, transfers=False, outcome=outcome, member=NAMES[2])
    assert {key[:3] for key in keys(mine)} == {key for key in expected if key[2] == NAMES[2]}


def test_groups_are_filtered_by_the_grade_of_a_response(reader: Reader) -> None:
    groups = [(step, group) for step in STEPS for group in STEPS[step].groups]
    codes = {response.verdict for _, group in groups for response in group.responses}
    assert len(codes) > 1
    for code in codes:
        expected = {
            (step, group.prompt, group.member)
            for step, group in groups
            if any(response.verdict == code for response in group.responses)
        }
        assert {key[:3] for key in keys(found(reader, transfers=False, verdict=code))} == expected


def _says(group: GroupRecord, text: str) -> bool:
    return any(text in response.text.casefold() for response in group.responses)


def test_a_text_is_found_in_prompts_and_in_what_was_said(reader: Reader) -> None:
    groups = {(step, group.prompt, group.member): group for step in STEPS for group in STEPS[step].groups}
    said = groups[SHARED_STEPS, STEPS[SHARED_STEPS].groups[0].prompt, STEPS[SHARED_STEPS].groups[0].member]
    for text in (said.responses[0].text[:12], PROMPTS[said.prompt].text):
        needle = text.casefold()
        expected = {
            key
            for key, group in groups.items()
            if _says(group, needle) or needle in PROMPTS[group.prompt].text.casefold()
        }
        result = found(reader, 10, SHARED_STEPS, transfers=False, text=text.upper())
        wanted = {key for key in expected if key[0] >= 10}
        read = {key[:3] for key in keys(result)}
        assert read <= wanted
        assert read
        if result.looked_at == result.total:
            assert read == wanted
    assert not found(reader, text="in no text at all").places


def test_a_search_says_how_much_it_read_and_stops_there(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_places, "MOST_READ", 7)
    result = found(reader, transfers=False, text="a")
    assert (result.looked_at, len(result.places) <= 7) == (7, True)
    assert result.total == sum(len(step.groups) for step in STEPS.values())
    monkeypatch.setattr(read_places, "MOST_CANDIDATES", 9)
    bounded = found(reader, transfers=False)
    assert (len(bounded.places), bounded.looked_at) == (9, 9)
    assert bounded.total == result.total
    assert found(reader, transfers=False, outcome="ungraded").total in (None, *range(9))
    assert found(reader).total == len(transfers())


def test_a_place_of_a_transfer_names_both_members(reader: Reader) -> None:
    place = found(reader).places[0]
    assert replace(place, source=None) != place
    assert reader.trajectory("latest", place.step, place.prompt, place.receiver).peer(place.source) is not None
