"""Generated problems: the same everywhere, scored by their own generators, in the workers of the reward service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice

import pytest

pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed: pip install '.[gym]'")

from population.config import DataConfig
from population.data.gym import parse_source
from population.errors import DataError
from population.prompts import Problem, load_problems
from server.rewards import Item, RewardService, VerdictCode
from server.rewards.gym import final_answer, score

SOURCE = "gym:spell_backward,number_sorting?size=6&seed=3"
GOLDEN_KEYS = [8576239141863491, 7088261323195947, 6286343471483931]


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return load_problems(DataConfig(source=SOURCE), lambda answers: [])[0]


@pytest.fixture(scope="module")
def rewards() -> Iterator[RewardService]:
    with RewardService(timeout_s=60) as service:
        yield service


def test_a_source_gives_so_many_problems_of_every_generator_with_their_scorer(problems: list[Problem]) -> None:
    assert [p.subject for p in problems] == ["spell_backward"] * 6 + ["number_sorting"] * 6
    assert {p.reward for p in problems} == {"server.rewards.gym:score"}
    assert problems[0].prompt == "Spell this word backward (example: sun -> nus): canroyer"
    reference = json.loads(problems[0].answer)
    assert (reference["generator"], reference["answer"], reference["metadata"]["word"]) == (
        "spell_backward", "reyornac", "canroyer",
    )  # fmt: skip


def test_the_same_source_gives_the_same_problems_even_where_a_generator_depends_on_hashing() -> None:
    # What this one chooses depends on the order of a set of strings.
    source = DataConfig(source="gym:isomorphic_strings?size=3&seed=1")
    found = [load_problems(source, lambda answers: [])[0] for _ in range(2)]
    assert found[0] == found[1]
    assert [p.key for p in found[0]] == GOLDEN_KEYS


def test_parameters_go_to_the_generator() -> None:
    data = DataConfig(source="gym:spell_backward?size=5&seed=0&min_word_len=4&max_word_len=4")
    found, _ = load_problems(data, lambda answers: [])
    assert {json.loads(p.answer)["metadata"]["word_len"] for p in found} == {4}


def test_a_reward_that_is_given_stands() -> None:
    assert DataConfig(source=SOURCE, reward="server.rewards.choice:score").reward == "server.rewards.choice:score"


def test_own_answers_are_right_and_others_wrong_in_the_workers(problems: list[Problem], rewards: RewardService) -> None:
    rewards.load_reward("server.rewards.gym:score")
    picked = [problems[0], problems[6]]
    answers = [json.loads(p.answer)["answer"] for p in picked]
    items = [
        Item(p.answer, f"So <answer>{a}</answer>", p.prompt, p.reward) for p, a in zip(picked, answers, strict=True)
    ]
    items += [Item(p.answer, "So <answer>no</answer>", p.prompt, p.reward) for p in picked]
    items.append(Item(picked[0].answer, f"So <answer>{answers[0]}", picked[0].prompt, picked[0].reward))
    assert [v.code for v in rewards.grade(items)] == [VerdictCode.RIGHT] * 2 + [VerdictCode.WRONG] * 3


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("<answer>a</answer> no, <answer> b\nc </answer>", "b\nc"),
        ("<answer>a</answer> no, <answer>b", None),
        (r"<answer>a</answer> and \boxed{b}", "a"),
        (r"so \boxed{olleh}", "olleh"),
        (r"so \boxed{\text{olleh you}}", "olleh you"),
        ("The answer is olleh.", "olleh"),
        (r"cut off \boxed{olle", None),
        ("olleh", None),
        ("<answer></answer>", None),
    ],
)
def test_the_final_answer_of_a_response_is_found(response: str, expected: str | None) -> None:
    assert final_answer(response) == expected


def test_only_full_marks_count(problems: list[Problem]) -> None:
    problem = problems[0]
    assert score(problem.prompt, r"\boxed{reyornac}", problem.answer) == 1.0
    assert score(problem.prompt, r"\boxed{reyornaC!}", problem.answer) == 0.0


def test_a_reference_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not one of a gym: data set; check data\.reward"):
        score("p", r"\boxed{1}", "1")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("gym:", "names no generator"),
        ("gym:spell_backward?size", "expected key=value"),
        ("gym:spell_backward?size=0", "size is 0; it must be a whole number, 1 or more"),
        ("gym:spell_backward?seed=x", "seed is 'x'"),
        ("gym:spel_backward?size=1", "there is no generator 'spel_backward'; did you mean 'spell_backward'"),
        ("gym:spell_backward?size=1&words=3", "spell_backward refuses its parameters"),
        ("gym:rush_hour?size=1", "the generator's own answer 'None' does not get full marks"),
    ],
)
def test_a_source_that_cannot_be_made_is_refused_with_the_reason(source: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_problems(DataConfig(source=source), lambda answers: [])


def test_generators_that_take_too_long_are_stopped() -> None:
    with pytest.raises(DataError, match=r"was not made within 0\.01 s; ask for fewer or raise load_s"):
        load_problems(DataConfig(source="gym:spell_backward?size=5", load_s=0.01), lambda answers: [])


def test_values_of_parameters_are_read_as_yaml() -> None:
    wanted = parse_source("gym:a, b?size=3&flag=true&name=x&list=[1,2]&text=")
    assert wanted.generators == ("a", "b")
    assert (wanted.size, wanted.seed) == (3, 0)
    assert dict(islice(wanted.parameters.items(), 4)) == {"flag": True, "name": "x", "list": [1, 2], "text": None}
