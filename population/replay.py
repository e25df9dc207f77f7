"""A recorded run routed and gated again under other settings, without training and without loading any model.

The record holds the counts of every group, so routing is the router's own. A transfer that was carried out has the
sums of both log-probabilities of each response, so it can be gated under any normaliser and floor. A transfer that the
record does not hold has no s: its responses are unknown, and nothing is made up for them.

The groups are those of the recorded run. Under other settings its members would have learned from other groups and
would have said other things from the second step on: a replay tells what these settings would have moved, not what
would have become of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graft.admission import Arrivals
from graft.compatibility import compatibility_of_sums, mean_bytes_per_token
from graft.methods import METHODS
from graft.selection import Transfer
from population.replay_settings import Settings
from population.router import Router, keyed_seed
from population.success_graph import StepCounts
from server.store.reader import GraftedRecord, GroupCounts, GroupRecord, Reader, ResponseRecord, RunInfo, TransferRecord

Edge = tuple[str, str]
Place = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one transferred response: s (None: it could not cross), its weight, why it was refused."""

    s: float | None
    weight: float
    refusal: str | None


@dataclass(frozen=True, slots=True)
class Moved:
    """One transfer. ``responses`` holds None where the record has no s, and is empty for one that was held out."""

    receiver: str
    prompt: int
    source: str
    value: float
    tie: bool
    held_out: bool
    responses: tuple[Outcome | None, ...]

    @property
    def place(self) -> Place:
        """(receiver, prompt, source)."""
        return self.receiver, self.prompt, self.source


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """One step: its transfers as recorded and as they would be now.

    ``exact``: the edge rates that routed it rest on known weights alone.
    """

    step: int
    then: tuple[Moved, ...]
    now: tuple[Moved, ...]
    exact: bool


def replay(reader: Reader, run: RunInfo, settings: Settings, first: int, last: int) -> Iterator[ReplayedStep]:
    """Route and gate steps ``first`` to ``last`` (both included) again.

    Edge rates start from those recorded before ``first`` and then follow from the replayed admission; an edge all of
    whose responses are unknown in a step keeps its rate, as one that was not used.
    """
    wanted = settings.wanted
    router = Router(METHODS[wanted.method], wanted.exchange, wanted.seed, receivers=settings.receivers)
    router.edge_rates = recorded_edge_rates(reader, run, first - 1)
    gate = Gate(reader, run, settings)
    exact = True
    for step in range(first, last + 1):
        then = reader.step_transfers(run.uid, step)
        routing = router.route(step, step_counts(reader.group_counts(run.uid, step), settings.members))
        held = [t for t in routing.transfers if (t.receiver, t.prompt) in routing.held_out]
        outcomes = gate.outcomes(step, routing.grafted, then)
        now = [_moved(t, False, outcomes[t.receiver, t.prompt, t.source]) for t in routing.grafted]
        yield ReplayedStep(
            step, tuple(_recorded(one) for one in then), tuple(now + [_moved(t, True, ()) for t in held]), exact
        )
        router.observe(known_weights(now))
        exact = exact and not any(None in one.responses for one in now)


def step_counts(found: Mapping[str, Mapping[int, GroupCounts]], members: Sequence[str]) -> StepCounts:
    """k and n of the step as the router reads them: a group with an ungraded response takes no part."""
    graded = {name: {q: c for q, c in found[name].items() if not c.errors} for name in members}
    return StepCounts(
        {name: {q: c.successes for q, c in own.items()} for name, own in graded.items()},
        {name: {q: c.n for q, c in own.items()} for name, own in graded.items()},
    )


def recorded_edge_rates(reader: Reader, run: RunInfo, step: int) -> dict[Edge, float]:
    """{(receiver, source): g} after a step; empty before the first."""
    if step < (run.first_step or 1):
        return {}
    rates = {}
    for name in reader.metric_names(run.uid):
        prefix, _, source = name.partition("/")
        if prefix == "edge_rate":
            _, numerator, denominator = reader.metric_series(run.uid, name, step, step)
            for member, rate in zip(run.members, (numerator / denominator).reshape(-1), strict=False):
                if np.isfinite(rate):
                    rates[member.name, source] = float(rate)
    return rates


def known_weights(moved: Sequence[Moved]) -> dict[Edge, list[float]]:
    """The known weights of all responses that moved over each edge (receiver, source), refused = 0."""
    weights: dict[Edge, list[float]] = {}
    for one in moved:
        known = [response.weight for response in one.responses if response is not None]
        if known:
            weights.setdefault((one.receiver, one.source), []).extend(known)
    return weights


@dataclass(frozen=True, slots=True)
class Known:
    """What the record tells of a response under the wanted normaliser: its s, or why it cannot cross."""

    s: float | None
    refusal: str | None
    reward: float


class Gate:
    """Admits recorded responses under the wanted settings."""

    def __init__(self, reader: Reader, run: RunInfo, settings: Settings) -> None:
        self._reader = reader
        self._run = run
        self._settings = settings
        self._scale = self._reference_scale() if settings.wanted.exchange.normaliser == "reference" else None

    def _reference_scale(self) -> float:
        """Mean UTF-8 bytes per token over the members' responses of the run's first step."""
        first = self._run.first_step or 1
        groups = [g for name in self._settings.members for g in self._reader.groups(self._run.uid, first, name)]
        return mean_bytes_per_token((r.text, len(r.token_ids)) for g in groups for r in g.responses)

    def outcomes(
        self, step: int, grafted: Sequence[Transfer[int]], recorded: Sequence[TransferRecord]
    ) -> dict[Place, tuple[Outcome | None, ...]]:
        """What becomes of every response of the step's transfers; None where the record does not tell."""
        known = self._known(step, grafted, recorded)
        found: dict[Place, tuple[Outcome | None, ...]] = {}
        for receiver in dict.fromkeys(t.receiver for t in grafted):
            arrived = {place: own for place, own in known.items() if place[0] == receiver}
            found |= self._admit(step, receiver, arrived)
        return found

    def _known(
        self, step: int, grafted: Sequence[Transfer[int]], recorded: Sequence[TransferRecord]
    ) -> dict[Place, list[Known | None]]:
        """{place: known responses} in the order of the transfers."""
        carried_out = {(one.receiver, one.prompt, one.source): one for one in recorded if not one.held_out}
        texts: dict[str, dict[int, GroupRecord]] = {}
        for source in {t.source for t in grafted}:
            prompts = {t.prompt for t in grafted if t.source == source}
            texts[source] = {g.prompt: g for g in self._reader.groups(self._run.uid, step, source, prompts)}
        found: dict[Place, list[Known | None]] = {}
        for t in grafted:
            place = (t.receiver, t.prompt, t.source)
            responses = texts[t.source][t.prompt].responses
            moved = {one.index: one for one in carried_out[place].responses} if place in carried_out else {}
            found[place] = [self._read(moved.get(i), response) for i, response in enumerate(responses)]
        return found

    def _read(self, moved: GraftedRecord | None, response: ResponseRecord) -> Known | None:
        """A recorded response under the wanted normaliser."""
        then, wanted = self._settings.recorded.exchange.normaliser, self._settings.wanted.exchange.normaliser
        if moved is None:
            return None
        if wanted != "own" and not response.text:
            return Known(None, "empty", response.reward)
        if moved.s is None:
            # Without text there is nothing to divide by, so such a response was never scored; `own` would score it.
            never_scored = moved.refusal == "empty" and then != "own" and wanted == "own"
            return None if never_scored else Known(None, moved.refusal, response.reward)
        if wanted == then:
            return Known(moved.s, None, response.reward)
        if moved.source_logprob is None:
            return None
        # A receiver that finds the text impossible has no finite sum, which the store keeps as missing.
        receiver = -np.inf if moved.receiver_logprob is None else moved.receiver_logprob
        s = compatibility_of_sums(
            (receiver, moved.receiver_tokens),
            (moved.source_logprob, moved.source_tokens),
            normaliser=wanted,
            text_bytes=len(response.text.encode()),
            bytes_per_token=self._scale,
        )
        return Known(s, None, response.reward)

    def _admit(
        self, step: int, receiver: str, arrived: Mapping[Place, Sequence[Known | None]]
    ) -> dict[Place, tuple[Outcome | None, ...]]:
        """The method's own admission over the known responses that crossed."""
        wanted = self._settings.wanted
        slots = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompt for _, prompt, _ in arrived))}
        scored = [
            (one.s, one.reward, slots[place[1]])
            for place, own in arrived.items()
            for one in own
            if one is not None and one.s is not None
        ]
        s, rewards, slot = zip(*scored, strict=True) if scored else ((), (), ())
        admission = METHODS[wanted.method].how.admit(
            Arrivals(np.array(s, np.float64), np.array(rewards, np.float64), np.array(slot, np.int64)),
            wanted.exchange.floor,
            np.random.default_rng(keyed_seed(wanted.seed, step, f"admit {receiver}")),
        )
        judged = iter(zip(admission.weights.tolist(), admission.reasons, strict=True))

        def outcome(one: Known | None) -> Outcome | None:
            if one is None or one.s is None:
                return None if one is None else Outcome(None, 0.0, one.refusal)
            return Outcome(one.s, *next(judged))

        return {place: tuple(outcome(one) for one in own) for place, own in arrived.items()}


def _moved(transfer: Transfer[int], held_out: bool, responses: tuple[Outcome | None, ...]) -> Moved:
    return Moved(transfer.receiver, transfer.prompt, transfer.source, transfer.value, transfer.tie, held_out, responses)


def _recorded(record: TransferRecord) -> Moved:
    responses = tuple(Outcome(one.s, one.weight, one.refusal) for one in record.responses)
    return Moved(record.receiver, record.prompt, record.source, record.value, record.tie, record.held_out, responses)
