"""The metrics of one step of a big run, under the names that `population.recording` and `population.health` write."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from server.store.counts import Bools, Floats, Ints

Parts = tuple[Floats, Floats]

MINIBATCHES = 4
# Mean log-probability of a sampled token, nats; mean tokens of a response.
TOKEN_LOGPROB, TOKENS = -0.4, 60
STEP_SECONDS = 30.0
# Means in seconds of what a member does and waits for, and of the run's phases as shares of a step.
_SPENT = {"sample": 12.0, "grade": 1.0, "score": 2.0, "update": 8.0, "sync": 1.0}
_IDLE = {"turn": 2.0, "barrier": 3.0, "grading": 0.5, "other": 0.5}
_PHASES = {
    "sample": 0.5,
    "route": 0.001,
    "score": 0.05,
    "exchange": 0.02,
    "update": 0.4,
    "sync": 0.025,
    "commit": 0.004,
}


class Measured(NamedTuple):
    """Numerator and denominator of every metric: of members [N] each, of pairs [N, N] each (row receives), of the run.
    Where a denominator is 0 or NaN none was recorded."""

    own: Mapping[str, Parts]
    pairs: Mapping[str, Parts]
    run: Mapping[str, tuple[float, float]]

    def series(self, names: Sequence[str]) -> list[tuple[str, str | None]]:
        """(metric, member or None for the run) of every series [S]; one of a pair carries its source in its name."""
        return [
            *((metric, member) for metric in self.own for member in names),
            *(
                (f"{metric}/{source}", receiver)
                for metric in self.pairs
                for receiver in names
                for source in names
                if source != receiver
            ),
            *((metric, None) for metric in self.run),
        ]

    def flat(self) -> Parts:
        """(numerator [S], denominator [S], NaN where nothing was recorded) in the order of `series`."""
        sides = []
        for side in range(2):
            pairs = [part[side][~np.eye(len(part[side]), dtype=bool)] for part in self.pairs.values()]
            own = [part[side] for part in self.own.values()]
            sides.append(np.concatenate([*own, *pairs, [part[side] for part in self.run.values()]]))
        return sides[0], np.where(sides[1] > 0, sides[1], np.nan)


def measure(
    rng: np.random.Generator, step: int, progress: float, right: Bools, cut: Bools, tokens: Ints, routed: Floats | None
) -> Measured:
    """From what was sampled [N, P, n] and the groups that were carried out [N, N]; `routed` None: nothing ever is."""
    members = _of_members(rng, step, progress, right, cut, tokens, routed)
    pairs = {} if routed is None else _of_pairs(rng, routed, right.shape[2])
    return Measured(members, pairs, _of_run(rng, right, routed))


def _of_members(
    rng: np.random.Generator, step: int, progress: float, right: Bools, cut: Bools, tokens: Ints, routed: Floats | None
) -> dict[str, Parts]:
    members, prompts, n = right.shape
    one, sampled = np.ones(members), tokens.sum(axis=(1, 2)).astype(float)
    responses = np.full(members, float(prompts * n))
    peer = np.zeros(members) if routed is None else routed.sum(axis=1) * n * TOKENS
    broken = np.where(rng.random(members) < 2e-4, np.nan, 1.0)

    def noisy(mean: float, spread: float = 0.15) -> Floats:
        return np.asarray(mean * rng.lognormal(0.0, spread, members), np.float64)

    own: dict[str, Parts] = {
        "response_tokens": (sampled, responses),
        "truncated": (cut.sum(axis=(1, 2)).astype(float), responses),
        "entropy": (sampled * noisy(0.3 + 0.5 * math.exp(-progress)), sampled),
        "tokens_per_second_rollout": (sampled, noisy(sampled.mean() / 2200)),
        "loss": (MINIBATCHES * noisy(0.02) - 0.06, MINIBATCHES * one),
        "grad_norm": (MINIBATCHES * noisy(0.3, 0.5) * broken, MINIBATCHES * one),
        "learning_rate": (1e-6 * min(1.0, step / 20) * one, one),
        "clip_own": (rng.poisson(sampled * 4e-4).astype(float), sampled),
        "clip_peer": (rng.poisson(peer * 9e-4).astype(float), peer),
        "peer_token_share": (peer, sampled + peer),
        "skipped_token_share": (0.4 * sampled, sampled + peer),
        "engine_trainer_gap": (0.004 * sampled / MINIBATCHES * noisy(1.0), sampled / MINIBATCHES),
        "mismatch_kl": (2e-5 * sampled / MINIBATCHES * noisy(1.0), sampled / MINIBATCHES),
        "mismatch_far": (rng.poisson(sampled * 5e-4).astype(float), sampled / MINIBATCHES),
        "mismatch_capped": (rng.poisson(sampled * 2e-5).astype(float), sampled),
        "solved": (right.any(axis=2).sum(axis=1).astype(float), np.full(members, float(prompts))),
    }
    own |= {f"seconds_{what}": (noisy(mean), one) for what, mean in _SPENT.items()}
    own |= {f"idle_{what}": (noisy(mean), one) for what, mean in _IDLE.items()}
    for place in range(MINIBATCHES):
        # Grafted groups come last, and the first minibatch is at the weights that sampled.
        theirs = peer * max(0, place - 1) / (MINIBATCHES - 1)
        own[f"clip_own_mb{place}"] = rng.poisson(sampled * 1e-4 * place).astype(float), sampled / MINIBATCHES
        own[f"clip_peer_mb{place}"] = rng.poisson(theirs * 9e-4).astype(float), theirs
    return own


def _of_pairs(rng: np.random.Generator, routed: Floats, n: int) -> dict[str, Parts]:
    scored = np.where(routed > 0, routed * n, np.nan)
    return {
        "edge_rate": (rng.random(routed.shape), np.ones(routed.shape)),
        "receiver_logprob": (scored * (TOKEN_LOGPROB - 0.1), scored),
        "source_logprob": (scored * TOKEN_LOGPROB, scored),
    }


def _of_run(rng: np.random.Generator, right: Bools, routed: Floats | None) -> dict[str, tuple[float, float]]:
    run = {
        f"seconds_{what}": (STEP_SECONDS * part * float(rng.lognormal(0, 0.1)), 1.0) for what, part in _PHASES.items()
    }
    whole = sum(seconds for seconds, _ in run.values())
    run["step_seconds"], run["seconds_cpu"], run["gpu_seconds"] = (whole, 1.0), (1.7 * whole, 1.0), (8 * whole, 1.0)
    run["bytes_per_token"] = 3.7, 1.0
    run["union_solved"] = float(right.any(axis=(0, 2)).sum()), float(right.shape[1])
    if routed is not None:
        run["grafted_per_scored"] = float(routed.sum()), 1.2 * float(routed.sum())
        run["effective_sources"] = 3.0 + float(rng.random()), 1.0
        run["mixing_modulus"] = 0.5 + 0.1 * float(rng.random()), 1.0
    return run
