"""Is the population well? What one step shows of it, and warnings: of a step, and of every ``PERIOD`` steps.

Warnings of a period are a function of what the store has of the run up to that step, so they need no state of their
own: a run that was killed and resumed gives those of a run that never stopped. docs/health.md says how each is decided.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graft.complementarity import effective_sources, mixing_modulus, phi_coefficient, phi_standard_error, uptake
from population.exchange import Graft
from population.rollouts import Rollout, StepRollouts
from population.updates import FAR, UpdateReport
from server.store.reader import Reader
from server.store.records import EventRecord, MetricRecord

TRUNCATED_SHARE = 0.5
UNGRADED_SHARE = 0.01

# Steps between two looks at the population, and the window of what one step is too sparse for.
PERIOD = 20
# A change counts from this many standard errors: a handful of comparisons every PERIOD steps, over hundreds of steps,
# then gives a false alarm in few runs.
SIGNIFICANT = 3.0
# The union stalls when it took less than this share of the mean's rise ...
STALL_SHARE = 0.25
# ... and is not simply full: at least this share of the prompts is still solved by nobody.
UNION_ROOM = 0.02
# exp(entropy) of the out-shares when one of two sources gives 95 % of the groups.
ONE_SOURCE = 1.22
# Fewer groups than this say nothing about shares.
FEWEST_GROUPS = 20
# A comparison of next visits needs this many on both sides.
FEWEST_VISITS = 10
# An edge's admission collapses when it falls below this share of what it was.
COLLAPSE_SHARE = 0.5


def warnings(step: int, rollouts: StepRollouts, prompts_per_step: int) -> list[EventRecord]:
    """Named warnings of a step, one per member and cause."""
    events = []
    for name, own in rollouts.rollouts.items():
        if any(rollout.recorded is not None for rollout in own.values()):
            events += _changed_rewards(step, name, list(own.values()))
            continue
        rewards = [float(reward) for rollout in own.values() for reward in rollout.group.rewards]
        finishes = [finish for rollout in own.values() for finish in rollout.finishes]
        ungraded = sum(rollout.group.errors for rollout in own.values())
        truncated = finishes.count("length")
        if truncated > TRUNCATED_SHARE * len(finishes):
            text = f"truncated: {truncated} of {len(finishes)} responses reached rollouts.max_response_tokens; raise it"
            events.append(EventRecord("warning", text, name, step))
        if len(set(rewards)) == 1:
            text = (
                f"constant reward: all {len(rewards)} responses got {rewards[0]:g}; own groups teach nothing this step"
            )
            events.append(EventRecord("warning", text, name, step))
        if ungraded > UNGRADED_SHARE * len(rewards):
            text = f"ungraded: the verifier failed on {ungraded} of {len(rewards)} responses; see their verdicts"
            events.append(EventRecord("warning", text, name, step))
        kept = len(rollouts.trained(name))
        if name in rollouts.left_out and kept < prompts_per_step:
            text = (
                f"dynamic sampling: {kept} of {prompts_per_step} groups of mixed outcome after {len(own)} prompts; "
                "the step is short, raise rollouts.dynamic_sampling_rounds"
            )
            events.append(EventRecord("warning", text, name, step))
    return events


def mismatches(step: int, updates: Mapping[str, UpdateReport], alarm: float) -> list[EventRecord]:
    """A warning for each member whose engine and trainer disagree by ``alarm`` nats a token or more on average.

    Both hold the same weights, so what differs is arithmetic, or a sync that did not land.
    """
    events = []
    for name, update in updates.items():
        found = update.mismatch
        if found.tokens and found.gap / found.tokens >= alarm:
            text = (
                f"engine mismatch: mean |trainer - engine| is {found.gap / found.tokens:.3g} nats over {found.tokens} "
                f"tokens, {found.far} of them more than {FAR:g} apart; see update.importance_cap and docs/health.md"
            )
            events.append(EventRecord("warning", text, name, step))
    return events


def recent_transfers(reader: Reader, run: str, step: int) -> NDArray[np.int64]:
    """Groups carried [N, N] (receiver, source) in the PERIOD - 1 steps before ``step``."""
    return reader.pair_counts(run, step - PERIOD + 1, step - 1)["routed"].astype(np.int64)


def _changed_rewards(step: int, name: str, own: Sequence[Rollout]) -> list[EventRecord]:
    """A recorded member's rewards are verified anew; what differs from the record is said."""
    changed, responses = sum(rollout.changed for rollout in own), sum(rollout.group.n for rollout in own)
    if not changed:
        return []
    text = f"rewards: {changed} of {responses} recorded rewards differ from today's verdicts, which are used"
    return [EventRecord("warning", text, name, step)]


def measures(
    rollouts: StepRollouts, grafts: Mapping[str, Sequence[Graft]], recent: NDArray[np.int64]
) -> list[MetricRecord]:
    """Health metrics of a step, beside the pair counts the store keeps by itself.

    ``recent`` [N, N] are the groups carried from each source (column) to each receiver in the PERIOD - 1 steps before.
    """
    groups = rollouts.groups
    members = list(groups)
    common = [q for q in next(iter(groups.values())) if all(q in own and not own[q].errors for own in groups.values())]
    solved = np.array([[groups[name][prompt].successes > 0 for prompt in common] for name in members], bool)
    records = []
    if common:
        records.append(MetricRecord(None, "union_solved", float(solved.any(axis=0).sum()), len(common)))
        records += [
            MetricRecord(name, "solved", float(own.sum()), len(common))
            for name, own in zip(members, solved, strict=True)
        ]
    carried = np.array(recent, np.int64)
    for receiver, arrivals in grafts.items():
        for graft in arrivals:
            carried[members.index(receiver), members.index(graft.transfer.source)] += 1
        records += _log_likelihoods(receiver, arrivals)
    if carried.any():
        records.append(MetricRecord(None, "effective_sources", effective_sources(carried)))
        records.append(MetricRecord(None, "mixing_modulus", mixing_modulus(carried)))
    return records


def _log_likelihoods(receiver: str, arrivals: Sequence[Graft]) -> Iterator[MetricRecord]:
    """The two terms of s apart, by source: the sum over scored responses of each mean log-probability per token."""
    terms: dict[str, list[tuple[float, float]]] = {}
    for graft in arrivals:
        terms.setdefault(graft.transfer.source, []).extend(
            (float(response.old_logprobs.mean(dtype=np.float64)), response.source_logprob / response.source_tokens)
            for response in graft.responses
            if len(response.ids)
        )
    for source, pairs in sorted(terms.items()):
        if pairs:
            own, theirs = (math.fsum(values) for values in zip(*pairs, strict=True))
            yield MetricRecord(receiver, f"receiver_logprob/{source}", own, len(pairs))
            yield MetricRecord(receiver, f"source_logprob/{source}", theirs, len(pairs))


def look(reader: Reader, run: str, step: int) -> list[EventRecord]:
    """The warnings that the period which ends with ``step`` gives and the one before did not; none inside a period."""
    if step % PERIOD:
        return []
    members = [member.name for member in reader.run(run).members]
    now = _findings(reader, run, members, step)
    before = _findings(reader, run, members, step - PERIOD) if step > PERIOD else {}
    return [
        EventRecord("warning", text, receiver, step)
        for (cause, receiver, source), text in now.items()
        if (cause, receiver, source) not in before
    ]


Finding = tuple[str, str | None, str | None]


def _findings(reader: Reader, run: str, members: Sequence[str], step: int) -> dict[Finding, str]:
    """What is wrong at the end of a period: (cause, receiver, source) and its text."""
    periods = _Periods.read(reader, run, step)
    found: dict[Finding, str] = {}
    for finding, text in (
        *_copies(periods),
        *_one_source(periods, members),
        *_collapsed_edges(periods, members),
        *_negative_uptake(reader, run, members, step),
    ):
        found[finding] = text
    return found


@dataclass(frozen=True)
class _Periods:
    """A run in periods, B of them: pair counts [B, N, N], and prompts solved and asked."""

    pairs: Mapping[str, NDArray[Any]]
    union: tuple[NDArray[np.float64], NDArray[np.float64]]  # (solved by anybody, prompts), [B]
    solved: tuple[NDArray[np.float64], NDArray[np.float64]]  # (solved by the member, prompts), [B, N]

    @classmethod
    def read(cls, reader: Reader, run: str, step: int) -> _Periods:
        edges = range(0, step + 1, PERIOD)
        return cls(
            reader.pair_history(run, edges),
            reader.run_metric_history(run, "union_solved", edges),
            reader.metric_history(run, "solved", edges),
        )

    def steps(self, period: int) -> str:
        return f"{period * PERIOD + 1}-{(period + 1) * PERIOD}"


def _copies(periods: _Periods) -> Iterator[tuple[Finding, str]]:
    """Since some earlier period the mean coverage and the failure correlation rose and the union did not follow.

    Every earlier period is tried, so that a slow drift is seen too; the most recent one that shows it is named.
    """
    (union, prompts), (solved, asked) = periods.union, periods.solved
    if solved.shape[1] < 2 or not (prompts > 0).all() or not (asked > 0).all():
        return
    share, mean = union / prompts, (solved / asked).mean(axis=1)
    counts = [periods.pairs[name] for name in ("both_graded", "failed_beside", "failed_together")]
    upper = np.triu_indices(solved.shape[1], 1)
    phis, errors = (estimate(*counts)[:, *upper].mean(axis=1) for estimate in (phi_coefficient, phi_standard_error))
    now = len(share) - 1
    for then in range(now - 1, -1, -1):
        rise = mean[now] - mean[then]
        if (
            1 - share[now] >= UNION_ROOM
            and _z(mean[now], prompts[now], mean[then], prompts[then]) >= SIGNIFICANT
            and share[now] - share[then] < STALL_SHARE * rise
            and phis[now] - phis[then] >= SIGNIFICANT * math.hypot(errors[now], errors[then])
        ):
            yield (
                ("copies", None, None),
                f"becoming copies: from steps {periods.steps(then)} to {periods.steps(now)} the members' mean coverage "
                f"went from {mean[then]:.1%} to {mean[now]:.1%} and that of all together only from {share[then]:.1%} "
                f"to {share[now]:.1%}, while their failures came to coincide (phi {phis[then]:.2f} to {phis[now]:.2f})",
            )
            return


def _one_source(periods: _Periods, members: Sequence[str]) -> Iterator[tuple[Finding, str]]:
    """One member gave nearly all groups of the period although others had some to give."""
    given = periods.pairs["routed"][-1]
    # A member that never received anything, as a recorded one, leaves the others nobody else to give to.
    receivers = periods.pairs["routed"].sum(axis=(0, 2)) > 0
    able = periods.pairs["solved"][-1][receivers].sum(axis=0) > 0
    total = int(given.sum())
    if total < FEWEST_GROUPS or able.sum() < 2 or effective_sources(given) >= ONE_SOURCE:
        return
    most = int(given.sum(axis=0).argmax())
    yield (
        ("one source", None, None),
        f"one source: {members[most]} gave {int(given[:, most].sum())} of the {total} groups of steps "
        f"{periods.steps(len(periods.pairs['routed']) - 1)}; exchange.max_source_share bounds a source's share",
    )


def _collapsed_edges(periods: _Periods, members: Sequence[str]) -> Iterator[tuple[Finding, str]]:
    """The gate of a receiver admits far less of a source than in all periods before."""
    admitted, responses, routed = (periods.pairs[name] for name in ("admitted", "responses", "routed"))
    for i, j in zip(*np.nonzero(routed[-1]), strict=True):
        k, n = int(admitted[:-1, i, j].sum()), int(responses[:-1, i, j].sum())
        late_k, late_n = int(admitted[-1, i, j]), int(responses[-1, i, j])
        if not n or not late_n or late_k / late_n >= COLLAPSE_SHARE * k / n:
            continue
        # The responses of a group stand or fall together, so groups are counted as the independent draws.
        groups, late_groups = int(routed[:-1, i, j].sum()), int(routed[-1, i, j])
        if _z(late_k / late_n, late_groups, k / n, groups) <= -SIGNIFICANT:
            yield (
                ("admission", members[i], members[j]),
                f"admission collapsed: of {members[j]}'s responses {late_k} of {late_n} passed the gate in steps "
                f"{periods.steps(len(routed) - 1)}, {k} of {n} before; s says which of the two drifted",
            )


def _negative_uptake(reader: Reader, run: str, members: Sequence[str], step: int) -> Iterator[tuple[Finding, str]]:
    """A receiver does significantly worse at the next visit after a graft than after a withheld one."""
    edges, total = reader.uptake(run, 1, step, until=step)
    places: list[tuple[str | None, str | None, Mapping[str, int]]] = [(None, None, total)]
    places += [
        (members[i], members[j], {name: int(counts[i, j]) for name, counts in edges.items()})
        for i, j in zip(*np.nonzero(edges["held_out_seen"]), strict=True)
    ]
    for receiver, source, counts in places:
        k, n, held_k, held_n = (
            counts[name] for name in ("grafted_solved", "grafted_seen", "held_out_solved", "held_out_seen")
        )
        if min(n, held_n) < FEWEST_VISITS or _z(k / n, n, held_k / held_n, held_n) > -SIGNIFICANT:
            continue
        change = uptake(k, n, held_k, held_n)
        whom = f"groups of {source}" if source else "peers' groups"
        yield (
            ("uptake", receiver, source),
            f"negative uptake: after {whom} {k} of {n} prompts were solved at the next visit, after withheld ones "
            f"{held_k} of {held_n} ({100 * change.difference:+.1f} points, standard error "
            f"{100 * change.standard_error:.1f})",
        )


def _z(now: float, n_now: float, then: float, n_then: float) -> float:
    """Difference of two shares in standard errors of no difference: the pooled two-sample test of proportions."""
    pooled = (now * n_now + then * n_then) / (n_now + n_then)
    variance = pooled * (1 - pooled) * (1 / n_now + 1 / n_then)
    return float((now - then) / math.sqrt(variance)) if variance > 0 else 0.0
