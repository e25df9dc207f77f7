"""Carrying out the transfers: a peer's group in the receiver's tokens, its compatibility, its admission and its
advantages (paper eq. 1 and 6-8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graft.admission import Arrivals
from graft.compatibility import mean_bytes_per_token, normalised_compatibility
from graft.groups import Group, Response
from graft.methods import How
from graft.retokenize import Fingerprinted, Refusal, Retokenized, retokenize
from graft.selection import Transfer
from population.capability import Capability
from population.config import ExchangeConfig
from population.member import Member
from population.packing import Pair
from population.router import keyed_seed
from server.rollouts.tokenizer import MemberTokenizer

Slot = tuple[str, int]
Place = tuple[str, int, str]
"""(receiver, prompt, source)."""

Scorer = Callable[[int, Mapping[str, Sequence[Pair]]], Mapping[str, Sequence[np.ndarray]]]
"""(step, {member: pairs of prompt and response ids}) -> {member: log-probs [T_i] under its trainer's weights}."""


@dataclass(frozen=True)
class GraftedResponse:
    """One response of a transferred group as the receiver sees it.

    ``ids`` and ``old_logprobs`` [T] are the receiver's tokens and its theta_old log-probabilities; both are empty
    when the text could not cross. ``weight`` is 0 exactly when ``refusal`` names a reason. ``advantage`` is what the
    method makes of the source's rewards.
    """

    ids: np.ndarray
    old_logprobs: np.ndarray
    s: float | None
    weight: float
    advantage: float
    refusal: str | None
    source_logprob: float
    source_tokens: int

    @property
    def source_mean(self) -> float:
        """Mean log-probability per token under the source's theta_old, in the source's own tokens."""
        return self.source_logprob / self.source_tokens


@dataclass(frozen=True)
class Graft:
    """A transferred group: all n responses of the source, admitted or refused.

    ``own_advantages`` [n] are those of the receiver's own group on the prompt, where the method keeps it beside the
    source's; None where the source's group takes its place.
    """

    transfer: Transfer
    responses: tuple[GraftedResponse, ...]
    own_advantages: np.ndarray | None = None

    @property
    def admitted(self) -> list[GraftedResponse]:
        """The responses that take part in the update."""
        return [response for response in self.responses if response.refusal is None]

    @property
    def mean_weight(self) -> float:
        """Mean weight over all n responses (refused = 0)."""
        return float(np.mean([response.weight for response in self.responses]))


class Exchange:
    """Re-encodes, scores and admits transferred groups.

    Keeps what it has to remember: the frozen scale of the ``reference`` normaliser, and the members' capability where
    the method weighs members by it.
    """

    def __init__(
        self,
        members: Mapping[str, Member],
        how: How,
        settings: ExchangeConfig,
        *,
        score: Scorer,
        max_tokens: int,
        seed: int,
        recorded: Mapping[str, Fingerprinted] | None = None,
    ) -> None:
        """``recorded``: the members that give from a record, of whom no model is there."""
        self._members = members
        self._recorded = recorded or {}
        self._how = how
        self._settings = settings
        self._max_tokens = max_tokens
        self._score = score
        self._seed = seed
        self._capability = Capability(settings.capability_batches) if how.needs_capability else None
        self.bytes_per_token: float | None = None
        self._observed: tuple[int, Mapping[str, Any]] = (0, {})

    def observe(self, step: int, groups: Mapping[str, Mapping[int, Group]]) -> None:
        """Measure what needs a whole step: mean UTF-8 bytes per token over the population's rollouts, on the first
        batch and then frozen; capability, on every batch. The same step again replaces what was measured in it.
        """
        if self._observed[0] == step:
            self.restore(self._observed[1])
        self._observed = (step, self.state())
        if self.bytes_per_token is None:
            responses = [response for own in groups.values() for group in own.values() for response in group.responses]
            self.bytes_per_token = mean_bytes_per_token((r.text, len(r.ids)) for r in responses)
        if self._capability is not None:
            self._capability.observe(groups)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        capability = None if self._capability is None else self._capability.state()
        return {"bytes_per_token": self.bytes_per_token, "capability": capability}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        self.bytes_per_token = state["bytes_per_token"]
        if self._capability is not None:
            self._capability.restore(state["capability"])

    def score(
        self,
        step: int,
        transfers: Sequence[Transfer],
        groups: Mapping[str, Mapping[int, Group]],
        prompt_ids: Mapping[str, Mapping[int, Sequence[int]]],
    ) -> dict[Place, list[GraftedResponse]]:
        """The transfers' groups in the receivers' tokens, with s and not yet a weight; every receiver scores all of
        its own in one pass.
        """
        source_logprobs = self._source_logprobs(step, transfers, groups, prompt_ids)
        crossed = {
            t: [
                self._cross(r, self._codec(t.source), self._members[t.receiver].tokenizer)
                for r in groups[t.source][t.prompt].responses
            ]
            for t in transfers
        }
        rows: dict[str, list[Pair]] = {name: [] for name in self._members}
        for t in transfers:
            prompt = _array(prompt_ids[t.receiver][t.prompt])
            rows[t.receiver] += [(prompt, c.ids) for c in crossed[t] if not isinstance(c, Refusal)]
        found = {name: iter(values) for name, values in self._score(step, rows).items()}
        return {
            place_of(t): [
                _refused(c.reason, source)
                if isinstance(c, Refusal)
                else self._scored(c.ids, next(found[t.receiver]), source, response.text)
                for c, source, response in zip(
                    crossed[t], source_logprobs[(t.source, t.prompt)], groups[t.source][t.prompt].responses, strict=True
                )
            ]
            for name in self._members
            for t in transfers
            if t.receiver == name
        }

    def values(
        self, step: int, scored: Mapping[Place, list[GraftedResponse]], groups: Mapping[str, Mapping[int, Group]]
    ) -> dict[Place, float]:
        """v of scored candidates: the sum of the weights of the group's successes over all its n responses."""
        values = {}
        for name in self._members:
            own = {place: responses for place, responses in scored.items() if place[0] == name}
            for place, responses in self._admit(step, f"value {name}", own, groups).items():
                solved = groups[place[2]][place[1]].rewards > 0
                values[place] = float(solved @ np.array([response.weight for response in responses])) / len(responses)
        return values

    def carry_out(
        self,
        step: int,
        transfers: Sequence[Transfer],
        groups: Mapping[str, Mapping[int, Group]],
        prompt_ids: Mapping[str, Mapping[int, Sequence[int]]],
        scored: Mapping[Place, list[GraftedResponse]] | None = None,
    ) -> dict[str, list[Graft]]:
        """{receiver: grafts}, in the order of the transfers. What is in ``scored`` already is not scored again."""
        known = dict(scored or {})
        known |= self.score(step, [t for t in transfers if place_of(t) not in known], groups, prompt_ids)
        grafts = {}
        for name in self._members:
            own = [t for t in transfers if t.receiver == name]
            admitted = self._admit(step, f"admit {name}", {place_of(t): known[place_of(t)] for t in own}, groups)
            grafts[name] = self._with_advantages(name, {t: admitted[place_of(t)] for t in own}, groups)
        return grafts

    def _source_logprobs(
        self,
        step: int,
        transfers: Sequence[Transfer],
        groups: Mapping[str, Mapping[int, Group]],
        prompt_ids: Mapping[str, Mapping[int, Sequence[int]]],
    ) -> dict[Slot, list[np.ndarray]]:
        """Log-probs of every sent group under its own source: those of sampling, or the trainer's own where they may
        differ.
        """
        needed = list(dict.fromkeys((t.source, t.prompt) for t in transfers))
        rows: dict[str, list[Pair]] = {name: [] for name in self._members}
        found: dict[Slot, list[np.ndarray]] = {}
        for slot in needed:
            name, prompt = slot
            mode, member = self._settings.source_logprobs, self._members.get(name)
            responses = groups[name][prompt].responses
            if member is None or mode == "engine" or (mode == "auto" and member.exact_logprobs):
                found[slot] = [r.logprobs for r in responses]
            else:
                rows[name] += [(_array(prompt_ids[name][prompt]), r.ids) for r in responses]
        scored = {name: iter(values) for name, values in self._score(step, rows).items()}
        for slot in needed:
            if slot not in found:
                found[slot] = [next(scored[slot[0]]) for _ in groups[slot[0]][slot[1]].responses]
        return found

    def _admit(
        self,
        step: int,
        purpose: str,
        arrived: Mapping[Place, list[GraftedResponse]],
        groups: Mapping[str, Mapping[int, Group]],
    ) -> dict[Place, list[GraftedResponse]]:
        """The weight of every response that crossed, decided over all that one receiver got in the step."""
        spots = [(place, i) for place, responses in arrived.items() for i, r in enumerate(responses) if not r.refusal]
        slots = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompt for _, prompt, _ in arrived))}
        arrivals = Arrivals(
            s=np.array([arrived[place][i].s for place, i in spots], np.float64),
            rewards=np.array([groups[source][prompt].rewards[i] for (_, prompt, source), i in spots], np.float64),
            slot=np.array([slots[prompt] for (_, prompt, _), _ in spots], np.int64),
        )
        rng = np.random.default_rng(keyed_seed(self._seed, step, purpose))
        admission = self._how.admit(arrivals, self._settings.floor, rng)
        admitted = {place: list(responses) for place, responses in arrived.items()}
        for (place, i), weight, reason in zip(spots, admission.weights.tolist(), admission.reasons, strict=True):
            admitted[place][i] = replace(admitted[place][i], weight=weight, refusal=reason)
        return admitted

    def _with_advantages(
        self,
        name: str,
        admitted: Mapping[Transfer, list[GraftedResponse]],
        groups: Mapping[str, Mapping[int, Group]],
    ) -> list[Graft]:
        """Advantages by the method's rule over the receiver's group and those of all its sources on a prompt.

        They are those of whole groups: what the gate refused changes none of the others.
        """
        slots: dict[int, list[Transfer]] = {}
        for t in admitted:
            slots.setdefault(t.prompt, []).append(t)
        grafts: dict[Transfer, Graft] = {}
        for prompt, arrivals in slots.items():
            sources = [t.source for t in arrivals]
            ratios = [1.0] * len(sources) if self._capability is None else self._capability.ratios(name, sources)
            own, peers = self._how.advantages(
                groups[name][prompt].rewards, [groups[source][prompt].rewards for source in sources], ratios
            )
            for t, advantages in zip(arrivals, peers, strict=True):
                responses = tuple(replace(r, advantage=float(a)) for r, a in zip(admitted[t], advantages, strict=True))
                grafts[t] = Graft(t, responses, None if self._how.replaces else own)
        return [grafts[t] for t in admitted]

    def _codec(self, source: str) -> Fingerprinted:
        return self._recorded[source] if source in self._recorded else self._members[source].tokenizer

    def _cross(self, response: Response, source: Fingerprinted, receiver: MemberTokenizer) -> Retokenized | Refusal:
        if not response.text and self._settings.normaliser != "own":
            return Refusal("empty")  # no bytes to normalise by
        return retokenize(response, source, receiver, max_tokens=self._max_tokens)

    def _scored(self, ids: np.ndarray, own: np.ndarray, source: np.ndarray, text: str) -> GraftedResponse:
        """A response with its compatibility; its weight and its advantage are decided once all have arrived."""
        s = normalised_compatibility(
            own,
            source,
            normaliser=self._settings.normaliser,
            text_bytes=len(text.encode()),
            bytes_per_token=self.bytes_per_token,
        )
        return GraftedResponse(ids, own, s, 0.0, 0.0, None, log_likelihood(source), len(source))


def place_of(transfer: Transfer) -> Place:
    """Whose group goes where."""
    return transfer.receiver, transfer.prompt, transfer.source


def log_likelihood(logprobs: np.ndarray) -> float:
    """Sum of a response's log-probs in double precision, so that s can be computed again from the record."""
    return float(logprobs.astype(np.float64).sum())


def _array(ids: Sequence[int]) -> np.ndarray:
    return np.asarray(ids, dtype=np.int32)


def _refused(reason: str, source: np.ndarray) -> GraftedResponse:
    nothing = np.zeros(0, np.float32)
    return GraftedResponse(
        nothing.astype(np.int32), nothing, None, 0.0, 0.0, reason, log_likelihood(source), len(source)
    )
