"""Made-up runs whose transfers are routed by the router and gated by the formulas: for tests of replay and recorded
peers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from graft.admission import Arrivals
from graft.compatibility import mean_bytes_per_token, normalised_compatibility
from graft.methods import METHODS
from graft.selection import Transfer
from population.config import RunConfig, as_dict, parse
from population.prompts import Problem, PromptBatches
from population.replay import step_counts
from population.router import Router, keyed_seed
from server.store.reader import GroupCounts
from server.store.records import (
    GraftedRecord,
    GroupRecord,
    MemberRecord,
    MetricRecord,
    PromptRecord,
    ResponseRecord,
    RunRecord,
    StepRecord,
    TransferRecord,
)
from server.store.writer import open_writer

PROBLEMS = [Problem(key, f"problem {key}?", str(key), "made-up") for key in range(100, 130)]
LIKELY = (0, 0, 0, 1, 2, 3, 4, 4)


def configuration(method: str = "graft", members: tuple[str, ...] = ("a", "b", "c"), **exchange: Any) -> RunConfig:
    """A configuration with 4 responses per prompt."""
    return parse(
        {
            "name": "made-up",
            "method": method,
            "steps": 6,
            "seed": 3,
            "members": [{"name": name, "model": f"models/{name}"} for name in members],
            "data": {"source": "made-up.jsonl", "prompts_per_step": 20},
            "rollouts": {"rollouts_per_prompt": 4},
            "update": {"prompts_per_minibatch": 5},
            "exchange": {"holdout": 0.15, **exchange},
        }
    )


def batches(seed: int) -> PromptBatches:
    """The order in which a made-up run asks its 30 problems, 20 a step."""
    return PromptBatches(PROBLEMS, 20, seed)


class Recorder:
    """Makes and keeps one run; ``receiver_logprobs`` remembers what every response was to its receiver."""

    def __init__(self, config: RunConfig, folder: Path, uid: str = "run") -> None:
        self.config = config
        self.url = f"sqlite:///{folder / 'store.db'}"
        self.uid = uid
        self.steps: list[StepRecord] = []
        self.logprobs: dict[tuple[int, str, int, str, int], tuple[np.ndarray, np.ndarray, str]] = {}
        self.rates: list[dict[tuple[str, str], float]] = []
        self._router = Router(METHODS[config.method], config.exchange, config.seed)
        self._scale: float | None = None

    def write(self, steps: int = 6) -> Recorder:
        """Record the run."""
        names = [member.name for member in self.config.members]
        members = tuple(MemberRecord(name, f"models/{name}", "family", f"sha of {name}", 9) for name in names)
        with open_writer(self.url) as writer:
            writer.start_run(
                RunRecord(self.uid, "made-up", self.config.method, members, steps, 3, as_dict(self.config))
            )
            for step in range(1, steps + 1):
                self.steps.append(self._step(step, names))
                writer.commit(self.steps[-1])
            writer.finish("finished")
        return self

    def _step(self, step: int, names: list[str]) -> StepRecord:
        rng = np.random.default_rng([step, 77])
        batch = batches(self.config.seed).batch(step)
        prompts = [PromptRecord(p.key, p.prompt, p.answer, p.dataset) for p in batch]
        groups = {name: {p.key: _group(rng, name, p.key) for p in prompts} for name in names}
        if self._scale is None:
            said = [r for own in groups.values() for group in own.values() for r in group.responses]
            self._scale = mean_bytes_per_token((r.text, len(r.token_ids)) for r in said)
        counts = {
            name: {q: GroupCounts(g.n, g.successes, g.errors) for q, g in own.items()} for name, own in groups.items()
        }
        routing = self._router.route(step, step_counts(counts, names))
        moved = {
            name: self._receive(rng, step, name, [t for t in routing.grafted if t.receiver == name], groups)
            for name in names
        }
        transfers = tuple(
            TransferRecord(t.receiver, t.source, t.prompt, t.value, t.tie, held, () if held else moved[t.receiver][t])
            for t in routing.transfers
            for held in ((t.receiver, t.prompt) in routing.held_out,)
        )
        weights: dict[tuple[str, str], list[float]] = {}
        for own in moved.values():
            for t, responses in own.items():
                weights.setdefault((t.receiver, t.source), []).extend(r.weight for r in responses)
        self._router.observe(weights)
        self.rates.append(dict(self._router.edge_rates))
        metrics = tuple(MetricRecord(r, f"edge_rate/{s}", rate, 1) for (r, s), rate in self._router.edge_rates.items())
        return StepRecord(
            step, tuple(prompts), tuple(g for own in groups.values() for g in own.values()), transfers, metrics
        )

    def _receive(
        self,
        rng: np.random.Generator,
        step: int,
        name: str,
        transfers: list[Transfer[int]],
        groups: dict[str, dict[int, GroupRecord]],
    ) -> dict[Transfer[int], tuple[GraftedRecord, ...]]:
        exchange = self.config.exchange
        refusals: dict[tuple[Transfer[int], int], str] = {}
        scores: dict[tuple[Transfer[int], int], float] = {}
        for t in transfers:
            for i, response in enumerate(groups[t.source][t.prompt].responses):
                own = (-rng.exponential(0.5, len(response.token_ids) + 2)).astype(np.float32)
                if rng.random() < 0.05:
                    refusals[t, i] = "too_long"
                elif not response.text and exchange.normaliser != "own":
                    refusals[t, i] = "empty"
                else:
                    self.logprobs[step, name, t.prompt, t.source, i] = (own, response.logprobs, response.text)
                    scores[t, i] = normalised_compatibility(
                        own,
                        response.logprobs,
                        normaliser=exchange.normaliser,
                        text_bytes=len(response.text.encode()),
                        bytes_per_token=self._scale,
                    )
        rewards = [groups[t.source][t.prompt].responses[i].reward for t, i in scores]
        places = list(dict.fromkeys(t.prompt for t in transfers))
        arrivals = Arrivals(
            np.array(list(scores.values()), np.float64),
            np.array(rewards, np.float64),
            np.array([places.index(t.prompt) for t, _ in scores], np.int64),
        )
        rng_of_admission = np.random.default_rng(keyed_seed(self.config.seed, step, f"admit {name}"))
        admission = METHODS[self.config.method].how.admit(arrivals, exchange.floor, rng_of_admission)
        judged = dict(zip(scores, zip(admission.weights.tolist(), admission.reasons, strict=True), strict=True))
        found = {}
        for t in transfers:
            records = []
            for i, response in enumerate(groups[t.source][t.prompt].responses):
                total = float(response.logprobs.astype(np.float64).sum())
                size = len(response.token_ids)
                if (t, i) in refusals:
                    records.append(GraftedRecord(i, None, 0.0, refusals[t, i], 0, None, size, total))
                    continue
                own = self.logprobs[step, name, t.prompt, t.source, i][0]
                weight, reason = judged[t, i]
                receiver = float(own.astype(np.float64).sum())
                records.append(GraftedRecord(i, scores[t, i], weight, reason, len(own), receiver, size, total))
            found[t] = tuple(records)
        return found


def _group(rng: np.random.Generator, member: str, prompt: int) -> GroupRecord:
    successes = int(rng.choice(LIKELY))
    right = rng.permutation(4) < successes
    late = bool(rng.random() < 0.03)
    responses = []
    for i, reward in enumerate(right.astype(float).tolist()):
        size = int(rng.integers(1, 12))
        text = "" if rng.random() < 0.04 else "ä" * int(rng.integers(1, 9)) + "=" * size
        verdict = -2 if late and i == 0 else int(reward)
        reward = 0.0 if verdict == -2 else reward
        ids, logprobs = rng.integers(0, 99, size).astype(np.int32), (-rng.exponential(0.5, size)).astype(np.float32)
        responses.append(ResponseRecord(text, ids, logprobs, reward, 0.0, verdict, "stop", 0))
    return GroupRecord(member, prompt, tuple(responses))
