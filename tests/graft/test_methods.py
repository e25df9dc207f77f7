"""Methods as pairs: each row selects, admits and trains as the paper's table says, down to value and gradient."""

from __future__ import annotations

import math
import pickle
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graft.losses import LossTokens, clipped_ratio
from graft.methods import METHODS
from graft.minibatches import order_prompts
from graft.selection import any_success, every_success, everyone, exchange, random_prompts
from tests.graft.steps import Prompt, Reply, admission_of, gradients, kept_pieces, leaves, loss_of, random_prompt

HACPO = {
    "update.clip_low": 3e-4,
    "update.clip_high": 4e-4,
    "update.aggregation": "seq-mean-token-mean",
    "update.kl_coefficient": 1e-3,
}
NO_BALANCE = {"exchange.balance": "none"}
# name: (which, settings)
ROWS = {
    "grpo": (None, {}),
    "grpo-16": (None, {"rollouts.rollouts_per_prompt": 16}),
    "grpo-32": (None, {"rollouts.rollouts_per_prompt": 32}),
    "grpo-dynamic": (None, {"rollouts.dynamic_sampling": True}),
    "graft": (exchange, {}),
    "graft-no-gate": (exchange, {}),
    "graft-no-floor": (exchange, {"exchange.floor": 0.0}),
    "graft-floor-0.7": (exchange, {"exchange.floor": 0.7}),
    "graft-floor-0.9": (exchange, {"exchange.floor": 0.9}),
    "graft-no-balance": (any_success, NO_BALANCE),
    "graft-no-token-ratio": (exchange, {}),
    "graft-random-prompts": (random_prompts, {}),
    "graft-random-admission": (exchange, {}),
    "graft-peer-first": (exchange, {}),
    "graft-peer-uniform": (exchange, {}),
    "graft-pooled": (exchange, {}),
    "graft-success-only": (exchange, {}),
    "graft-success-only-no-floor": (exchange, {"exchange.floor": 0.0}),
    "graft-luffy": (exchange, {}),
    "sgt": (every_success, NO_BALANCE),
    "graft-sgt": (exchange, {}),
    "hacpo": (everyone, {**NO_BALANCE, **HACPO}),
    "graft-hacpo": (exchange, {}),
    "stored": (exchange, NO_BALANCE),
}
EXCHANGING = [name for name, (which, _) in ROWS.items() if which]
RATIOS = (2.0, 0.5)
seeds = st.integers(0, 100_000)


def floor_of(name):
    return METHODS[name].settings.get("exchange.floor", 0.8)


def options_of(name):
    fixed = METHODS[name].settings
    return {
        "floor": floor_of(name),
        "clip": (fixed.get("update.clip_low", 0.2), fixed.get("update.clip_high", 0.28)),
        "aggregation": fixed.get("update.aggregation", "token-mean"),
        "ratios": RATIOS,
        "updates": 2,
        "seed": 7,
    }


def minibatch(seed):
    """Two own prompts, two lost ones with one peer's group each."""
    generator = torch.Generator().manual_seed(seed)
    return [
        random_prompt(generator, [1, 0, 1, 0]),
        random_prompt(generator, [1, 1, 1, 1]),
        random_prompt(generator, [0, 0, 0, 0], [1, 0, 0, 1]),
        random_prompt(generator, [0, 0, 0, 0], [1, 1, 0, 1]),
    ]


def standardised(rewards):
    """Eq. 1 by hand."""
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return [(r - mean) / (deviation + 1e-6) for r in rewards]


def rewards_of(group):
    return [reply.reward for reply in group]


def clip(x, low, high):
    return torch.minimum(torch.maximum(x, torch.full_like(x, low)), torch.full_like(x, high))


def ppo(reply, a, low=0.2, high=0.28):
    """Sum over the tokens of min(rho a, clip(rho) a)."""
    rho = torch.exp(reply.logprobs - reply.old)
    return torch.minimum(rho * a, clip(rho, 1 - low, 1 + high) * a).sum()


def sequence(reply, a, low=0.2, high=0.28):
    """The same for one ratio per response, once."""
    s = torch.exp((reply.logprobs - reply.old).sum() / len(reply.old))
    return torch.minimum(s * a, clip(s, 1 - low, 1 + high) * a)


def hacpo_peer(reply, a, updates):
    s = torch.exp(reply.logprobs.sum() / len(reply.old) - reply.source.sum() / len(reply.source))
    inside = clip(s, 0.8 + 0.025 * updates, 1.0)
    return inside * inside.detach() * a


def hacpo_advantages(own, peer, ratio):
    """For one peer of capability ratio omega(k, j) to the learner: (own, peer)."""
    everything = own + peer
    mu = (sum(own) + ratio * sum(peer)) / len(everything)
    mean = sum(everything) / len(everything)
    deviation = math.sqrt(sum((r - mean) ** 2 for r in everything) / (len(everything) - 1)) + 1e-6
    return [(r - mu) / deviation for r in own], [(r - mu) / deviation / ratio for r in peer]


def token_count(replies):
    return sum(len(reply.old) for reply in replies)


def by_hand(name, prompts):
    """The row's loss as its paper writes it, response by response; only random draws are asked of the row itself."""
    how, floor = METHODS[name].how, floor_of(name)
    drawn = admission_of(how, prompts, floor, seed=7)
    terms, kept = [], []
    for prompt, admitted in zip(prompts, drawn, strict=True):
        own_a = standardised(rewards_of(prompt.own))
        if not prompt.peers:
            whole = sequence if name == "graft-no-token-ratio" else None
            for reply, a in zip(prompt.own, own_a, strict=True):
                terms.append(whole(reply, a) * len(reply.old) if whole else ppo(reply, a))
                kept.append(reply)
            continue
        (peer,) = prompt.peers
        if name == "graft-pooled":
            both = standardised(rewards_of(prompt.own) + rewards_of(peer))
            own_a, peer_a = both[: len(prompt.own)], both[len(prompt.own) :]
        elif name == "graft-hacpo":
            own_a, peer_a = hacpo_advantages(rewards_of(prompt.own), rewards_of(peer), RATIOS[0])
        else:
            peer_a = standardised(rewards_of(peer))
        if name in ("graft-pooled", "graft-hacpo"):
            terms += [ppo(reply, a) for reply, a in zip(prompt.own, own_a, strict=True)]
            kept += prompt.own
        for reply, a, given_weight in zip(peer, peer_a, admitted[0], strict=True):
            if name in ("graft-no-gate", "graft-luffy", "graft-hacpo"):
                weight = 1.0
            elif name == "graft-random-admission":
                weight = min(reply.s, 1.0) if given_weight else 0.0
            elif name.startswith("graft-success-only"):
                weight = min(reply.s, 1.0) if reply.s > floor and reply.reward else 0.0
            else:
                weight = min(reply.s, 1.0) if reply.s > floor else 0.0
            if weight == 0.0:
                continue
            kept.append(reply)
            if name == "graft-luffy":
                pi = reply.logprobs.exp()
                terms.append((pi / (pi + 0.1) * a).sum())
            elif name == "graft-no-token-ratio":
                terms.append(weight * sequence(reply, a) * len(reply.old))
            elif name == "graft-hacpo":
                terms.append(hacpo_peer(reply, a, updates=2) * len(reply.old))
            else:
                terms.append(weight * ppo(reply, a))
    return -torch.stack(terms).sum() / token_count(kept)


def assert_same(found, expected, prompts):
    assert found.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)
    torch.testing.assert_close(gradients(found, prompts), gradients(expected, prompts), rtol=1e-9, atol=1e-12)


def test_the_table_is_complete_and_fixes_exactly_these_settings():
    assert {name: (m.which, dict(m.settings)) for name, m in METHODS.items()} == ROWS
    assert all(name == method.name for name, method in METHODS.items())
    assert [name for name, method in METHODS.items() if method.exchanges] == EXCHANGING


def test_every_row_explains_itself():
    assert all(m.description and m.how.description and m.how.equation for m in METHODS.values())
    assert len({method.description for method in METHODS.values()}) == len(METHODS)


def test_rows_can_be_sent_to_other_processes():
    assert pickle.loads(pickle.dumps(METHODS)) == METHODS


@pytest.mark.parametrize("name", [name for name in EXCHANGING if name not in ("sgt", "graft-sgt", "hacpo")])
@settings(max_examples=10)
@given(seed=seeds)
def test_loss_and_gradient_of_a_row_are_the_papers(name, seed):
    prompts = minibatch(seed)
    assert_same(loss_of(METHODS[name].how, prompts, **options_of(name)), by_hand(name, prompts), prompts)


@pytest.mark.parametrize("name", ["sgt", "graft-sgt"])
@settings(max_examples=10)
@given(seed=seeds)
def test_the_gradient_of_sgt_is_grpos_plus_a_tenth_of_the_likelihoods(name, seed):
    prompts = minibatch(seed)
    how = METHODS[name].how
    own_alone = [Prompt(prompt.own) for prompt in prompts]
    grpo = loss_of(METHODS["grpo"].how, own_alone)
    weights = admission_of(how, prompts, 0.8, seed=7)
    drawn = [
        reply
        for prompt, admitted in zip(prompts, weights, strict=True)
        for peer, given_weights in zip(prompt.peers, admitted, strict=True)
        for reply, weight in zip(peer, given_weights, strict=True)
        if weight
    ]
    assert len(drawn) == 2
    assert all(reply.reward == 1 for reply in drawn)
    nll = -torch.cat([reply.logprobs for reply in drawn]).mean()
    found = loss_of(how, prompts, **options_of(name))
    assert_same(found, grpo + 0.1 * nll, prompts)
    torch.testing.assert_close(
        gradients(found, prompts), gradients(grpo, prompts) + 0.1 * gradients(nll, prompts), rtol=1e-12, atol=1e-15
    )


def test_sgt_imitates_sources_that_solved_everything_although_their_advantage_is_zero():
    prompts = [random_prompt(torch.Generator().manual_seed(1), [0, 0], [1, 1])]
    loss = loss_of(METHODS["sgt"].how, prompts)
    assert (gradients(loss, prompts) != 0).any()


@settings(max_examples=10)
@given(seed=seeds)
def test_hacpo_of_two_agents_is_its_papers_loss(seed):
    generator = torch.Generator().manual_seed(seed)
    prompts = [random_prompt(generator, [1, 0, 0], [1, 1, 0]), random_prompt(generator, [0, 0, 0], [0, 1, 0])]
    terms = []
    for prompt in prompts:
        own_a, peer_a = hacpo_advantages(rewards_of(prompt.own), rewards_of(prompt.peers[0]), RATIOS[0])
        terms += [sequence(reply, a, 3e-4, 4e-4) for reply, a in zip(prompt.own, own_a, strict=True)]
        terms += [hacpo_peer(reply, a, updates=2) for reply, a in zip(prompt.peers[0], peer_a, strict=True)]
    assert_same(loss_of(METHODS["hacpo"].how, prompts, **options_of("hacpo")), -torch.stack(terms).mean(), prompts)


@settings(max_examples=6)
@given(seed=seeds)
def test_hacpo_of_three_agents_averages_over_all_their_responses(seed):
    prompts = [random_prompt(torch.Generator().manual_seed(seed), [1, 0], [1, 1], [0, 1])]
    own, first, second = prompts[0].own, *prompts[0].peers
    mu = (1 + 2.0 * 2 + 0.5 * 1) / 6
    deviation = math.sqrt(6 * (4 / 6) * (2 / 6) / 5) + 1e-6
    terms = [sequence(reply, (reply.reward - mu) / deviation, 3e-4, 4e-4) for reply in own]
    for group, omega in ((first, 2.0), (second, 0.5)):
        terms += [hacpo_peer(reply, (reply.reward - mu) / deviation / omega, updates=2) for reply in group]
    assert_same(loss_of(METHODS["hacpo"].how, prompts, **options_of("hacpo")), -torch.stack(terms).mean(), prompts)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("hacpo", "graft-no-token-ratio")])
@settings(max_examples=6)
@given(seed=seeds)
def test_without_peers_every_row_is_grpo_bit_for_bit(name, seed):
    prompts = [Prompt(prompt.own) for prompt in minibatch(seed)]
    found, grpo = loss_of(METHODS[name].how, prompts), loss_of(METHODS["grpo"].how, prompts)
    assert found.item() == grpo.item()
    assert torch.equal(gradients(found, prompts), gradients(grpo, prompts))


@pytest.mark.parametrize("name", ["graft", "graft-no-floor", "graft-random-admission", "stored"])
def test_identical_twins_are_grafted_as_if_the_group_were_the_receivers_own(name):
    generator = torch.Generator().manual_seed(5)
    source = random_prompt(generator, [1, 0, 0, 1])
    twin = [Reply(reply.logprobs, reply.old, reply.reward, reply.old) for reply in source.own]
    lost = random_prompt(generator, [0, 0, 0, 0])
    prompts = [Prompt(lost.own, [twin])]
    assert all(reply.s == 1.0 for reply in twin)
    assert admission_of(METHODS[name].how, prompts, 0.8, seed=0) == [[[1.0] * 4]]
    found, own = loss_of(METHODS[name].how, prompts), loss_of(METHODS["grpo"].how, [source])
    assert found.item() == own.item()
    assert torch.equal(gradients(found, [Prompt(twin)]), gradients(own, [source]))


@pytest.mark.parametrize("name", ["graft", "graft-random-admission", "graft-success-only"])
@settings(max_examples=10)
@given(seed=seeds)
def test_dropped_responses_leave_the_others_advantages_unchanged(name, seed):
    prompts = minibatch(seed)
    how = METHODS[name].how
    _, peers = kept_pieces(how, prompts, floor=0.8, ratios=RATIOS, seed=0)
    full = {id(r): a for p in prompts for g in p.peers for r, a in zip(g, standardised(rewards_of(g)), strict=True)}
    assert all(piece.advantage == pytest.approx(full[id(piece.reply)], rel=1e-12) for piece in peers)


def test_pooled_keeps_the_lost_group_and_counts_all_tokens():
    prompts = minibatch(3)[2:]
    own, peers = kept_pieces(METHODS["graft-pooled"].how, prompts, floor=0.0, ratios=RATIOS, seed=0)
    assert len(own) == len(peers) == 8
    assert all(piece.weight == 1.0 for piece in own)
    assert all(piece.advantage < 0 for piece in own)
    kept, _ = kept_pieces(METHODS["graft"].how, prompts, floor=0.0, ratios=RATIOS, seed=0)
    assert kept == []


@pytest.mark.parametrize(
    ("name", "position"),
    [("graft", "last"), ("graft-peer-first", "first"), ("graft-peer-uniform", "uniform"), ("graft-luffy", "last")],
)
def test_rows_put_peers_where_the_table_says(name, position):
    assert METHODS[name].how.position == position


def test_only_the_position_and_the_words_tell_peer_first_and_uniform_from_graft():
    reference = METHODS["graft"].how
    for name in ("graft-peer-first", "graft-peer-uniform"):
        how = METHODS[name].how
        changed = {f.name for f in fields(how) if getattr(how, f.name) != getattr(reference, f.name)}
        assert changed == {"position", "description"}


def test_methods_that_add_to_grpo_leave_its_batch_order_alone():
    prompts, grafted = list(range(16)), {3, 5, 8}
    for name in ("grpo", "sgt", "graft-sgt", "hacpo"):
        batches = order_prompts(prompts, grafted, 4, position=METHODS[name].how.position)
        assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_peer_first_clips_no_peer_token_in_the_first_minibatch():
    # The first minibatch is trained at theta_old itself: every ratio is exactly 1.
    first = order_prompts(list(range(8)), {2, 5}, 2, position=METHODS["graft-peer-first"].how.position)[0]
    assert first == [2, 5]
    reply = leaves(minibatch(0))[0].detach()
    tokens = LossTokens(
        old_logprobs=reply, advantages=torch.ones_like(reply), scale=torch.ones_like(reply),
        response=torch.zeros(len(reply), dtype=torch.int64), source_mean=torch.full_like(reply, np.nan), responses=1,
        clip_low=0.2, clip_high=0.28, updates=0,
    )  # fmt: skip
    assert not clipped_ratio(reply, tokens)[1].any()


def test_two_members_under_the_default_row_exchange_as_the_paper_selects():
    successes = {"a": {0: 0, 1: 0, 2: 0, 3: 5}, "b": {0: 3, 1: 1, 2: 8, 3: 0}}
    attempts = {member: dict.fromkeys(range(4), 8) for member in "ab"}
    found = METHODS["graft"].which(successes, attempts)
    assert {(t.receiver, t.prompt, t.source) for t in found} == {("a", 0, "b"), ("b", 3, "a")}
