"""One learner's minibatch made of loose pieces, its loss under a `How`, and the same loss written out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graft.admission import Arrivals
from graft.compatibility import compatibility
from graft.losses import LossTokens
from graft.methods import How
from graft.objective import minibatch_denominator, response_scale


@dataclass(frozen=True)
class Reply:
    """A response: log-probs [T] in the learner's tokens under theta and theta_old; a peer's has its source's [S]."""

    logprobs: Tensor
    old: Tensor
    reward: float
    source: Tensor | None = None

    @property
    def s(self) -> float:
        assert self.source is not None
        return float((self.old.mean() - self.source.mean()).exp())


@dataclass(frozen=True)
class Prompt:
    """The learner's group on a prompt, and those of the peers that reached it."""

    own: Sequence[Reply]
    peers: Sequence[Sequence[Reply]] = ()


@dataclass(frozen=True)
class Piece:
    """One response that the update keeps."""

    reply: Reply
    advantage: float
    weight: float


def random_prompt(generator: torch.Generator, own: Sequence[float], *peers: Sequence[float]) -> Prompt:
    """Random lengths and log-probs; ratios on both sides of the clip, s on both sides of the floor."""

    def reply(reward: float, foreign: bool) -> Reply:
        tokens, source_tokens = torch.randint(1, 7, (2,), generator=generator).tolist()
        old = -torch.rand(tokens, generator=generator, dtype=torch.float64)
        logprobs = old + 0.3 * torch.randn(tokens, generator=generator, dtype=torch.float64)
        source = -torch.rand(source_tokens, generator=generator, dtype=torch.float64)
        return Reply(logprobs.requires_grad_(), old, reward, source if foreign else None)

    return Prompt([reply(r, False) for r in own], [[reply(r, True) for r in peer] for peer in peers])


def leaves(prompts: Sequence[Prompt]) -> list[Tensor]:
    """The log-probs of every reply, which gradients are taken of."""
    return [reply.logprobs for prompt in prompts for group in (prompt.own, *prompt.peers) for reply in group]


def gradients(loss: Tensor, prompts: Sequence[Prompt]) -> Tensor:
    """d loss / d log-prob of every token, end to end; 0 where the loss does not reach."""
    inputs = leaves(prompts)
    found = torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)
    return torch.cat([torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)])


def admission_of(how: How, prompts: Sequence[Prompt], floor: float, seed: int) -> list[list[list[float]]]:
    """Weights by prompt, peer and response."""
    found = [(slot, reply) for slot, prompt in enumerate(prompts) for peer in prompt.peers for reply in peer]
    arrivals = Arrivals(
        np.array([compatibility(reply.old.numpy(), reply.source.numpy()) for _, reply in found], np.float64),
        np.array([reply.reward for _, reply in found], np.float64),
        np.array([slot for slot, _ in found], np.int64),
    )
    weights = iter(how.admit(arrivals, floor, np.random.default_rng(seed)).weights.tolist())
    return [[[next(weights) for _ in peer] for peer in prompt.peers] for prompt in prompts]


def kept_pieces(
    how: How, prompts: Sequence[Prompt], *, floor: float, ratios: Sequence[float], seed: int
) -> tuple[list[Piece], list[Piece]]:
    """Own and peer responses that the update keeps, with their advantages and weights."""
    own, peers = [], []
    weights = admission_of(how, prompts, floor, seed)
    for prompt, admitted in zip(prompts, weights, strict=True):
        own_advantages, peer_advantages = how.advantages(
            [reply.reward for reply in prompt.own],
            [[reply.reward for reply in peer] for peer in prompt.peers],
            ratios[: len(prompt.peers)],
        )
        if not (how.replaces and prompt.peers):
            own += [Piece(reply, float(a), 1.0) for reply, a in zip(prompt.own, own_advantages, strict=True)]
        for peer, advantages, weight in zip(prompt.peers, peer_advantages, admitted, strict=True):
            peers += [Piece(r, float(a), w) for r, a, w in zip(peer, advantages, weight, strict=True) if w != 0]
    return own, peers


def loss_of(
    how: How,
    prompts: Sequence[Prompt],
    *,
    floor: float = 0.8,
    ratios: Sequence[float] = (),
    clip: tuple[float, float] = (0.2, 0.28),
    aggregation: str = "token-mean",
    updates: int = 0,
    seed: int = 0,
) -> Tensor:
    """Loss of one minibatch with all these prompts."""
    own, peers = kept_pieces(how, prompts, floor=floor, ratios=ratios, seed=seed)
    total = torch.zeros((), dtype=torch.float64)
    for pieces, term, coefficient in ((own, how.own_loss, 1.0), (peers, how.peer_loss, how.coefficient)):
        if not pieces:
            continue
        counted = own + peers if how.shared_denominator else pieces
        denominator = minibatch_denominator(lengths_of(counted), aggregation)
        lengths = lengths_of(pieces)
        weights = torch.tensor([piece.weight for piece in pieces], dtype=torch.float64)
        scale = weights * response_scale(lengths, aggregation, dtype=torch.float64) / denominator * coefficient
        means = [np.nan if p.reply.source is None else float(p.reply.source.mean()) for p in pieces]
        tokens = LossTokens(
            old_logprobs=torch.cat([piece.reply.old for piece in pieces]),
            advantages=spread([piece.advantage for piece in pieces], lengths),
            scale=scale.repeat_interleave(lengths),
            response=torch.arange(len(pieces)).repeat_interleave(lengths),
            source_mean=spread(means, lengths),
            responses=len(pieces),
            clip_low=clip[0],
            clip_high=clip[1],
            updates=updates,
        )
        total = total + term(torch.cat([piece.reply.logprobs for piece in pieces]), tokens)[0].sum()
    return total


def lengths_of(pieces: Sequence[Piece]) -> Tensor:
    return torch.tensor([len(piece.reply.old) for piece in pieces], dtype=torch.int64)


def spread(values: Sequence[float], lengths: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).repeat_interleave(lengths)
