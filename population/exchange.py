"""Carrying out the transfers: a peer's group in the receiver's tokens, its compatibility and its weight (paper eq.
6-8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graft.admission import Arrivals
from graft.compatibility import mean_bytes_per_token, normalised_compatibility
from graft.groups import Group, Response
from graft.methods import How
from graft.retokenize import Refusal, Retokenized, retokenize
from graft.selection import Transfer
from population.config import ExchangeConfig
from population.member import Member
from population.placement import wait
from population.router import keyed_seed
from server.rollouts.tokenizer import MemberTokenizer

Slot = tuple[str, int]


@dataclass(frozen=True)
class GraftedResponse:
    """One response of a transferred group as the receiver sees it.

    ``ids`` and ``old_logprobs`` [T] are the receiver's tokens and its theta_old log-probabilities; both are empty
    when the text could not cross. ``weight`` is 0 exactly when ``refusal`` names a reason. ``advantage`` is the
    source's own.
    """

    ids: np.ndarray
    old_logprobs: np.ndarray
    s: float | None
    weight: float
    advantage: float
    refusal: str | None
    source_logprob: float
    source_tokens: int


@dataclass(frozen=True)
class Graft:
    """A transferred group: all n responses of the source, admitted or refused."""

    transfer: Transfer
    responses: tuple[GraftedResponse, ...]

    @property
    def admitted(self) -> list[GraftedResponse]:
        """The responses that take part in the update."""
        return [response for response in self.responses if response.refusal is None]

    @property
    def mean_weight(self) -> float:
        """Mean weight over all n responses (refused = 0)."""
        return float(np.mean([response.weight for response in self.responses]))


class Exchange:
    """Re-encodes, scores and gates transferred groups. Keeps the frozen scale of the ``reference`` normaliser."""

    def __init__(
        self,
        members: Mapping[str, Member],
        how: How,
        settings: ExchangeConfig,
        *,
        max_tokens: int,
        deadline_s: float,
        seed: int = 0,
    ) -> None:
        self._members = members
        self._how = how
        self._settings = settings
        self._max_tokens = max_tokens
        self._deadline_s = deadline_s
        self._seed = seed
        self.bytes_per_token: float | None = None

    def observe_scale(self, groups: Mapping[str, Mapping[int, Group]]) -> float:
        """Mean UTF-8 bytes per token over the population's rollouts; measured on the first batch, then frozen."""
        if self.bytes_per_token is None:
            responses = [response for own in groups.values() for group in own.values() for response in group.responses]
            self.bytes_per_token = mean_bytes_per_token((r.text, len(r.ids)) for r in responses)
        return self.bytes_per_token

    def carry_out(
        self,
        step: int,
        transfers: Sequence[Transfer],
        groups: Mapping[str, Mapping[int, Group]],
        prompt_ids: Mapping[str, Mapping[int, Sequence[int]]],
    ) -> dict[str, list[Graft]]:
        """{receiver: grafts}, in the order of the transfers. Every receiver scores all it receives in one pass."""
        source_logprobs = self._source_logprobs(step, transfers, groups, prompt_ids)
        return {
            name: self._receive(
                step, name, [t for t in transfers if t.receiver == name], groups, prompt_ids[name], source_logprobs
            )
            for name in self._members
        }

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
        found: dict[Slot, list[np.ndarray]] = {}
        for name, member in self._members.items():
            slots = [slot for slot in needed if slot[0] == name]
            mode = self._settings.source_logprobs
            if mode == "engine" or (mode == "auto" and member.exact_logprobs):
                found |= {slot: [r.logprobs for r in groups[name][slot[1]].responses] for slot in slots}
                continue
            rows = [
                (_array(prompt_ids[name][prompt]), r.ids) for _, prompt in slots for r in groups[name][prompt].responses
            ]
            scored = iter(self._score(step, name, rows))
            found |= {slot: [next(scored) for _ in groups[name][slot[1]].responses] for slot in slots}
        return found

    def _receive(
        self,
        step: int,
        name: str,
        transfers: Sequence[Transfer],
        groups: Mapping[str, Mapping[int, Group]],
        prompt_ids: Mapping[int, Sequence[int]],
        source_logprobs: Mapping[Slot, list[np.ndarray]],
    ) -> list[Graft]:
        receiver = self._members[name].tokenizer
        crossed = {
            t: [
                self._cross(r, self._members[t.source].tokenizer, receiver)
                for r in groups[t.source][t.prompt].responses
            ]
            for t in transfers
        }
        rows = [
            (_array(prompt_ids[t.prompt]), c.ids) for t in transfers for c in crossed[t] if not isinstance(c, Refusal)
        ]
        scored = iter(self._score(step, name, rows))
        arrived = [
            (slot, i, next(scored))
            for slot, t in enumerate(transfers)
            for i, c in enumerate(crossed[t])
            if not isinstance(c, Refusal)
        ]
        peers = [groups[t.source][t.prompt] for t in transfers]
        s = [
            self._compatibility(own, source_logprobs[(t.source, t.prompt)][i], peers[slot].responses[i].text)
            for slot, i, own in arrived
            for t in (transfers[slot],)
        ]
        arrivals = Arrivals(
            np.array(s, np.float64),
            np.array([peers[slot].rewards[i] for slot, i, _ in arrived], np.float64),
            np.array([transfers[slot].prompt for slot, _, _ in arrived], np.int64),
        )
        rng = np.random.default_rng(keyed_seed(self._seed, step, f"admit {name}"))
        admission = self._how.admit(arrivals, self._settings.floor, rng)
        admitted = {(slot, i): number for number, (slot, i, _) in enumerate(arrived)}
        grafts = []
        for slot, t in enumerate(transfers):
            _, (advantages,) = self._how.advantages(groups[name][t.prompt].rewards, [peers[slot].rewards], [1.0])
            responses = []
            for i, arrival in enumerate(crossed[t]):
                source, advantage = source_logprobs[(t.source, t.prompt)][i], float(advantages[i])
                if isinstance(arrival, Refusal):
                    responses.append(_refused(arrival.reason, advantage, source))
                    continue
                number = admitted[slot, i]
                responses.append(
                    GraftedResponse(
                        arrival.ids,
                        arrived[number][2],
                        s[number],
                        float(admission.weights[number]),
                        advantage,
                        admission.reasons[number],
                        log_likelihood(source),
                        len(source),
                    )
                )
            grafts.append(Graft(t, tuple(responses)))
        return grafts

    def _cross(self, response: Response, source: MemberTokenizer, receiver: MemberTokenizer) -> Retokenized | Refusal:
        if not response.text and self._settings.normaliser != "own":
            return Refusal("empty")  # no bytes to normalise by
        return retokenize(response, source, receiver, max_tokens=self._max_tokens)

    def _compatibility(self, own: np.ndarray, source: np.ndarray, text: str) -> float:
        return normalised_compatibility(
            own,
            source,
            normaliser=self._settings.normaliser,
            text_bytes=len(text.encode()),
            bytes_per_token=self.bytes_per_token,
        )

    def _score(self, step: int, name: str, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        if not rows:
            return []
        future = self._members[name].trainer.call("score", rows)
        return wait(future, self._deadline_s, member=name, phase="exchange", step=step)


def log_likelihood(logprobs: np.ndarray) -> float:
    """Sum of a response's log-probs in double precision, so that s can be computed again from the record."""
    return float(logprobs.astype(np.float64).sum())


def _array(ids: Sequence[int]) -> np.ndarray:
    return np.asarray(ids, dtype=np.int32)


def _refused(reason: str, advantage: float, source: np.ndarray) -> GraftedResponse:
    nothing = np.zeros(0, np.float32)
    return GraftedResponse(
        nothing.astype(np.int32), nothing, None, 0.0, advantage, reason, log_likelihood(source), len(source)
    )
