"""Transferred groups: re-encoded, scored in one pass, gated, and put in the place of the groups they rescue."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from graft.advantages import group_advantages
from graft.groups import Group, Response
from graft.methods import METHODS
from graft.selection import Transfer
from population.config import ExchangeConfig
from population.coordinator import edge_weights
from population.exchange import Exchange, Graft
from population.training_batch import training_batch

PROMPT = {1: (7,), 2: (7, 7), 3: (7, 8), 4: (9,)}


@dataclass
class Letters:
    """A tokenizer of one id per `width` letters; id 0 ends a response."""

    fingerprint: str
    width: int = 1
    end_id: int = 0

    def encode_text(self, text: str) -> list[int]:
        pieces = [text[i : i + self.width] for i in range(0, len(text), self.width)]
        return [sum((ord(c) - 96) * 27**k for k, c in enumerate(piece)) for piece in pieces]

    def decode(self, ids: Sequence[int]) -> str:
        text = ""
        for token in ids:
            while token:
                text, token = text + chr(96 + token % 27), token // 27
        return text


@dataclass
class FlatScorer:
    """Stands where a trainer does: every token has the same log-prob. Counts its calls."""

    logprob: float
    calls: list[int] = field(default_factory=list)

    def score(self, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        self.calls.append(len(rows))
        return [np.full(len(ids), self.logprob, np.float32) for _, ids in rows]


@dataclass
class FakeMember:
    tokenizer: Letters
    trainer: FlatScorer
    exact_logprobs: bool = True


def response(codec: Letters, text: str, logprob: float, finished: bool = True) -> Response:
    ids = codec.encode_text(text) + ([codec.end_id] if finished else [])
    return Response(np.array(ids, np.int32), text, np.full(len(ids), logprob, np.float32), finished, 3)


def group(
    member: str, codec: Letters, prompt: int, rewards: Sequence[int], texts: Sequence[str], logprob: float = -0.1
) -> Group:
    return Group(
        member,
        prompt,
        tuple(response(codec, text, logprob) for text in texts),
        np.array(rewards, np.float64),
        np.ones(len(rewards), bool),
    )


def population(receiver_logprob: float = -0.2) -> dict[str, FakeMember]:
    return {
        "a": FakeMember(Letters("one"), FlatScorer(receiver_logprob)),
        "b": FakeMember(Letters("two", width=2), FlatScorer(-0.4)),
    }


def exchange(
    members: Mapping[str, FakeMember], method: str = "graft", max_tokens: int = 10, **settings: Any
) -> Exchange:
    def score(step: int, rows: Mapping[str, Sequence[Any]]) -> dict[str, list[np.ndarray]]:
        return {name: members[name].trainer.score(own) if own else [] for name, own in rows.items()}

    how = METHODS[method].how
    return Exchange(members, how, ExchangeConfig(**settings), score=score, max_tokens=max_tokens, seed=0)  # type: ignore[arg-type]


def carried(members: Mapping[str, FakeMember], own: Exchange, texts: Sequence[str], rewards: Sequence[int]) -> Graft:
    """b's group on prompt 1 as a receives it."""
    source = group("b", members["b"].tokenizer, 1, rewards, texts)
    failed = group("a", members["a"].tokenizer, 1, [0] * len(rewards), ["zz"] * len(rewards))
    transfers = [Transfer("a", 1, "b", 0.5)]
    ids = {"a": PROMPT, "b": PROMPT}
    return own.carry_out(5, transfers, {"a": {1: failed}, "b": {1: source}}, ids)["a"][0]


def test_a_response_crosses_as_text_in_the_receivers_tokens_with_its_own_end_token() -> None:
    members = population()
    graft = carried(members, exchange(members), ["abcd", "ab", "b", "ba"], [1, 0, 0, 1])
    assert graft.responses[0].ids.tolist() == [1, 2, 3, 4, 0]
    assert members["a"].trainer.calls == [4]


def test_s_and_weight_follow_the_papers_formula_and_advantages_are_the_sources() -> None:
    members = population(receiver_logprob=-0.2)
    graft = carried(members, exchange(members), ["abcd", "ab", "b", "ba"], [1, 0, 0, 1])
    s = math.exp(-0.2 + 0.1)
    for received, advantage in zip(graft.responses, group_advantages([1, 0, 0, 1]), strict=True):
        assert received.s == pytest.approx(s, rel=1e-6)
        assert received.weight == pytest.approx(s, rel=1e-6)
        assert received.advantage == advantage
        assert received.refusal is None


def test_the_bytes_normaliser_divides_the_difference_of_sums_by_the_text() -> None:
    members = population(receiver_logprob=-0.2)
    graft = carried(members, exchange(members, normaliser="bytes"), ["abcd", "ab", "ab", "ba"], [1, 0, 0, 1])
    assert graft.responses[0].s == pytest.approx(math.exp((5 * -0.2 - 3 * -0.1) / 4), rel=1e-6)


def test_the_reference_scale_is_measured_once_over_the_population_and_frozen() -> None:
    members = population()
    own = exchange(members, normaliser="reference")
    groups = {
        "a": {1: group("a", members["a"].tokenizer, 1, [0, 0], ["abcd", "ab"])},
        "b": {1: group("b", members["b"].tokenizer, 1, [0, 1], ["abcd", "ab"])},
    }
    own.observe(1, {"a": groups["a"]})
    own.observe(1, groups)  # the step is begun again: what it showed first does not count
    assert own.bytes_per_token == pytest.approx(12 / (5 + 3 + 3 + 2))
    own.observe(2, {"a": groups["a"]})
    assert own.bytes_per_token == pytest.approx(12 / 13)


def test_what_lies_at_or_below_the_floor_is_refused_right_or_wrong() -> None:
    members = population(receiver_logprob=-2.0)
    graft = carried(members, exchange(members), ["ab", "ab"], [1, 0])
    assert [r.refusal for r in graft.responses] == ["floor", "floor"]
    assert [r.weight for r in graft.responses] == [0.0, 0.0]
    assert graft.admitted == []


def test_without_the_gate_everything_that_can_be_read_is_admitted_at_weight_one() -> None:
    members = population(receiver_logprob=-2.0)
    graft = carried(members, exchange(members, "graft-no-gate", max_tokens=3), ["ab", "abcd"], [1, 0])
    assert [(r.weight, r.refusal) for r in graft.responses] == [(1.0, None), (0.0, "too_long")]


def test_text_that_cannot_cross_is_refused_with_its_reason_and_never_scored() -> None:
    members = population()
    graft = carried(members, exchange(members, max_tokens=4), ["abcdef", "", "a\ufffd", "ab"], [1, 0, 0, 0])
    assert [r.refusal for r in graft.responses] == ["too_long", None, "undecodable", None]
    assert graft.responses[1].ids.tolist() == [0]
    assert members["a"].trainer.calls == [2]


def test_an_inexact_engine_makes_the_source_score_its_own_group() -> None:
    members = population(receiver_logprob=-0.4)
    members["b"].exact_logprobs = False
    graft = carried(members, exchange(members), ["ab", "ba"], [1, 0])
    assert members["b"].trainer.calls == [2]
    assert graft.responses[0].s == pytest.approx(1.0)


def test_edge_weights_hold_every_routed_response_with_refused_ones_at_zero() -> None:
    members = population()
    graft = carried(members, exchange(members, max_tokens=4), ["abcdef", "ab"], [1, 0])
    assert edge_weights({"a": [graft], "b": []}) == {("a", "b"): [0.0, pytest.approx(math.exp(-0.1), rel=1e-6)]}


def own_groups(codec: Letters) -> dict[int, Group]:
    return {
        1: group("a", codec, 1, [0, 0], ["zz", "zz"]),
        2: group("a", codec, 2, [1, 0], ["ab", "ba"]),
        3: group("a", codec, 3, [1, 1], ["ab", "ba"]),
        4: group("a", codec, 4, [0, 1], ["ab", "ba"]),
    }


def batches(grafts: Sequence[Graft], method: str = "graft", engine_logprobs: bool = True) -> list[list[Any]]:
    return training_batch(
        own_groups(Letters("one")),
        grafts,
        PROMPT,
        METHODS[method].how,
        prompts_per_minibatch=2,
        seed=0,
        engine_logprobs=engine_logprobs,
    )


def test_the_grafted_group_takes_the_failed_ones_place_and_comes_last() -> None:
    members = population()
    graft = carried(members, exchange(members), ["abcd", "ab"], [1, 0])
    minibatches = batches([graft])
    assert [[tuple(r.prompt_ids) for r in batch[::2]] for batch in minibatches] == [
        [PROMPT[2], PROMPT[3]],
        [PROMPT[4], PROMPT[1]],
    ]
    received = minibatches[-1][2:]
    assert all(r.grafted for r in received)
    assert [r.advantage for r in received] == group_advantages([1, 0]).tolist()
    np.testing.assert_array_equal(received[0].old_logprobs, np.full(5, -0.2, np.float32))


def test_a_refused_response_leaves_and_the_others_keep_advantage_and_weight() -> None:
    members = population()
    whole = carried(members, exchange(members), ["ab", "ba", "abcdef"], [1, 0, 0])
    cut = carried(members, exchange(members, max_tokens=4), ["ab", "ba", "abcdef"], [1, 0, 0])
    kept = [r for batch in batches([cut]) for r in batch if r.grafted]
    assert [(r.advantage, r.weight) for r in kept] == [(r.advantage, r.weight) for r in whole.responses[:2]]


def test_a_prompt_whose_graft_was_refused_whole_leaves_the_update() -> None:
    members = population(receiver_logprob=-2.0)
    graft = carried(members, exchange(members), ["ab", "ba"], [1, 0])
    prompts = [tuple(r.prompt_ids) for batch in batches([graft]) for r in batch[::2]]
    assert prompts == [PROMPT[2], PROMPT[3], PROMPT[4]]


def test_without_grafts_the_batch_is_grpos_in_batch_order() -> None:
    minibatches = batches([])
    assert [tuple(r.prompt_ids) for batch in minibatches for r in batch[::2]] == list(PROMPT.values())
    assert all(r.weight == 1.0 and not r.grafted for batch in minibatches for r in batch)


def test_theta_old_of_own_tokens_is_the_engines_or_left_to_the_trainer() -> None:
    own = [r for batch in batches([], engine_logprobs=False) for r in batch]
    assert all(r.old_logprobs is None for r in own)
    assert all(r.engine_logprobs is not None for r in own)
    np.testing.assert_array_equal(batches([])[0][0].old_logprobs, own[0].engine_logprobs)


def test_several_sources_put_the_most_compatible_group_first_among_the_grafted() -> None:
    members = population()
    own = exchange(members, max_tokens=4)
    weak = carried(members, own, ["abcdef", "ab"], [1, 0])
    strong = carried(members, own, ["ab", "ba"], [1, 0])
    weak = Graft(Transfer("a", 1, "b", 0.5), weak.responses)
    strong = Graft(Transfer("a", 4, "c", 0.5), strong.responses)
    prompts = [tuple(r.prompt_ids) for batch in batches([weak, strong]) for r in batch if r.grafted]
    assert list(dict.fromkeys(prompts)) == [PROMPT[4], PROMPT[1]]


def test_a_method_that_keeps_both_groups_trains_on_them_side_by_side_with_pooled_advantages() -> None:
    members = population()
    graft = carried(members, exchange(members, "graft-pooled"), ["abcd", "ab"], [1, 0])
    last = batches([graft], "graft-pooled")[-1]
    assert [(tuple(r.prompt_ids), r.grafted) for r in last] == [
        (PROMPT[4], False),
        (PROMPT[4], False),
        (PROMPT[1], False),
        (PROMPT[1], False),
        (PROMPT[1], True),
        (PROMPT[1], True),
    ]
    pooled = group_advantages([0, 0, 1, 0])
    np.testing.assert_array_equal([r.advantage for r in last[2:]], pooled)
    assert [r.weight for r in last[2:4]] == [1.0, 1.0]


def test_a_term_beside_grpo_leaves_grpos_minibatches_as_they_are() -> None:
    members = population()
    graft = carried(members, exchange(members, "sgt"), ["abcd", "ab"], [1, 0])
    own = [[r for r in batch if not r.grafted] for batch in batches([graft], "sgt")]
    plain = batches([], "grpo")
    for mine, theirs in zip(own, plain, strict=True):
        assert [(tuple(r.prompt_ids), r.advantage) for r in mine] == [
            (tuple(r.prompt_ids), r.advantage) for r in theirs
        ]
    taught = [r for batch in batches([graft], "sgt") for r in batch if r.grafted]
    assert [(r.response_ids.tolist(), r.weight, r.advantage) for r in taught] == [([1, 2, 3, 4, 0], 1.0, 1.0)]


def test_every_source_of_a_slot_enters_hacpos_pool_and_its_capability_weighs_it() -> None:
    members = population() | {"c": FakeMember(Letters("one"), FlatScorer(-0.3))}
    own = exchange(members, "hacpo")
    groups = {
        "a": {1: group("a", members["a"].tokenizer, 1, [0, 1], ["zz", "zz"])},
        "b": {1: group("b", members["b"].tokenizer, 1, [1, 1], ["ab", "ba"])},
        "c": {1: group("c", members["c"].tokenizer, 1, [0, 0], ["ab", "ba"])},
    }
    own.observe(1, {name: groups[name] for name in "ab"})
    own.observe(1, groups)
    transfers = [Transfer("a", 1, "b", 1.0), Transfer("a", 1, "c", 0.0)]
    grafts = own.carry_out(1, transfers, groups, {name: PROMPT for name in groups})["a"]
    ratio_b, ratio_c = 0.5, 10.0  # P_a = 1/2, P_b = 1, P_c = 0
    baseline = (1 + 2 * ratio_b) / 6
    deviation = np.std([0, 1, 1, 1, 0, 0], ddof=1) + 1e-6
    np.testing.assert_allclose(grafts[0].own_advantages, (np.array([0, 1]) - baseline) / deviation)
    np.testing.assert_allclose([r.advantage for r in grafts[0].responses], (1 - baseline) / deviation / ratio_b)
    np.testing.assert_allclose([r.advantage for r in grafts[1].responses], (0 - baseline) / deviation / ratio_c)
    restored = exchange(members, "hacpo")
    restored.restore(json.loads(json.dumps(own.state())))
    assert restored.state() == own.state()


def scored_slot(method: str) -> tuple[dict[str, FakeMember], Exchange, dict[str, Any], list[Transfer]]:
    """a failed prompt 1; b's group of three texts fits a well, c's of two badly in part."""
    members = population(receiver_logprob=-0.2) | {"c": FakeMember(Letters("one"), FlatScorer(-0.3))}
    own = exchange(members, method, max_tokens=4)
    c = members["c"].tokenizer
    loose, tight = response(c, "ab", -0.1), response(c, "ba", 0.3)
    groups = {
        "a": {1: group("a", members["a"].tokenizer, 1, [0, 0, 0], ["zz"] * 3)},
        "b": {1: group("b", members["b"].tokenizer, 1, [1, 0, 1], ["ab", "b", "abcdef"], logprob=-0.15)},
        "c": {1: Group("c", 1, (tight, loose), np.array([1.0, 1.0]), np.ones(2, bool))},
    }
    return members, own, groups, [Transfer("a", 1, "b", 0.5), Transfer("a", 1, "c", 0.5)]


@pytest.mark.parametrize(("method", "weigh"), [("graft", True), ("graft-no-gate", False)])
def test_a_measured_value_is_the_weight_of_the_successes_over_all_responses(method: str, weigh: bool) -> None:
    members, own, groups, transfers = scored_slot(method)
    ids = {name: PROMPT for name in members}
    values = own.values(3, own.score(3, transfers, groups, ids), groups)
    # b: "ab" fits at s = exp(-0.05), "abcdef" is too long; c: s = exp(-0.5) lies under the floor, exp(-0.1) does not.
    fits = [math.exp(-0.05), math.exp(-0.1)] if weigh else [1.0, 2.0]
    assert values == {
        ("a", 1, "b"): pytest.approx(fits[0] / 3, rel=1e-6),
        ("a", 1, "c"): pytest.approx(fits[1] / 2, rel=1e-6),
    }


def test_what_was_scored_for_its_value_is_not_scored_again_and_is_admitted_the_same() -> None:
    members, own, groups, transfers = scored_slot("graft")
    ids = {name: PROMPT for name in members}
    scored = own.score(3, transfers, groups, ids)
    assert members["a"].trainer.calls == [4]
    both = [own.carry_out(3, transfers, groups, ids, known)["a"] for known in (scored, None)]
    assert members["a"].trainer.calls == [4, 4]
    for one, other in zip(*both, strict=True):
        assert one.transfer == other.transfer
        for a, b in zip(one.responses, other.responses, strict=True):
            assert (a.s, a.weight, a.advantage, a.refusal) == (b.s, b.weight, b.advantage, b.refusal)
    part = {place: responses for place, responses in scored.items() if place[2] == "b"}
    own.carry_out(3, transfers, groups, ids, part)
    assert members["a"].trainer.calls == [4, 4, 2]


def test_random_admission_is_drawn_anew_every_step_and_again_the_same_on_replay() -> None:
    members = population(receiver_logprob=-0.2)
    source = group("b", members["b"].tokenizer, 1, [1, 0, 0, 1], ["abcdef", "ab", "b", "ba"], logprob=-0.1)
    mixed = Group(
        "b", 1, (*source.responses[:3], response(members["b"].tokenizer, "ba", 1.0)), source.rewards, source.graded
    )
    failed = group("a", members["a"].tokenizer, 1, [0] * 4, ["zz"] * 4)
    own = exchange(members, "graft-random-admission")

    def admitted(step: int) -> list[int]:
        grafts = own.carry_out(
            step, [Transfer("a", 1, "b", 0.5)], {"a": {1: failed}, "b": {1: mixed}}, {"a": PROMPT, "b": PROMPT}
        )["a"]
        return [i for i, r in enumerate(grafts[0].responses) if r.refusal is None]

    drawn = [admitted(step) for step in range(1, 40)]
    assert {len(chosen) for chosen in drawn} == {3}
    assert len({tuple(chosen) for chosen in drawn}) == 4
    assert [admitted(step) for step in range(1, 40)] == drawn
