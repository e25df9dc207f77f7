"""The co-training loop: Algorithm 1 of the GRAFT paper for N members.

``Coordinator.step`` is the algorithm, line by line; everything it calls is in the modules beside it. Everything
random is keyed by (seed, step, member, purpose), so a step replays: a resumed run is the run that was never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from graft.methods import METHODS
from population import health, recording
from population.best import BestCheckpoints, evaluate_best
from population.calls import all_of, begin
from population.checkpoints import Checkpoints
from population.config import RunConfig
from population.encoding import PromptIds
from population.evaluation import Benchmark, evaluate
from population.exchange import Exchange, Graft
from population.grading import Rewards
from population.member import Member
from population.placement import gather
from population.processes import choose_device
from population.prompts import PromptBatches
from population.recorded import RecordedMember
from population.rollouts import Sampler, StepRollouts
from population.router import Router, Routing, keyed_seed
from population.success_graph import SuccessGraph
from population.sync import sync_member
from population.trainer import TrainingResponse, UpdateReport
from population.training_batch import training_batch
from server.store.reader import open_reader
from server.store.records import EvaluationRecord, EventRecord, MetricRecord
from server.store.writer import Writer


@dataclass
class StepReport:
    """What one step did, for the record and for whoever watches.

    ``seconds`` is wall time by phase; ``commit`` and the CPU seconds include the commit of the step before.
    ``scored_groups`` is how many candidates were scored before the choice, ``gpus`` how many GPUs the run holds.
    """

    step: int
    rollouts: StepRollouts
    routing: Routing
    grafts: dict[str, list[Graft]]
    updates: dict[str, UpdateReport]
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_seconds: float = 0.0
    scored_groups: int = 0
    events: list[EventRecord] = field(default_factory=list)
    health: list[MetricRecord] = field(default_factory=list)
    gpus: int = 0


Observer = Callable[[StepReport], None]


class Coordinator:
    """Drives one run: the step, evaluation, checkpoints and the record."""

    def __init__(
        self,
        config: RunConfig,
        members: Mapping[str, Member],
        recorded: Mapping[str, RecordedMember],
        prompts: PromptBatches,
        prompt_ids: Mapping[str, PromptIds],
        benchmarks: Sequence[Benchmark],
        rewards: Rewards,
        store: Writer,
        checkpoints: Checkpoints,
        best: BestCheckpoints,
    ) -> None:
        self.config = config
        self.members = dict(members)
        self.recorded = dict(recorded)
        self.prompts = prompts
        self.prompt_ids = prompt_ids
        self.benchmarks = benchmarks
        self.rewards = rewards
        self.store = store
        self.checkpoints = checkpoints
        self.best = best
        self.method = METHODS[config.method]
        self._commit_s = self._commit_cpu_s = 0.0
        # All members train and sample in this process, on its one device.
        self._gpus = int(choose_device(config.update.device).type == "cuda")
        self.sampler = Sampler(self.members, self.recorded, prompt_ids, rewards, config)
        everyone = [member.name for member in config.members]
        self.success_graph = SuccessGraph(everyone, [problem.key for problem in prompts.problems])
        self.router = Router(self.method, config.exchange, config.seed, receivers=tuple(members))
        self.exchange = Exchange(
            self.members,
            self.method.how,
            config.exchange,
            max_tokens=config.rollouts.max_response_tokens,
            deadline_s=config.deadlines.exchange_s,
            seed=config.seed,
            recorded=self.recorded,
        )

    def run(self, first_step: int, last_step: int, observe: Observer) -> None:
        """Train from ``first_step`` to ``last_step`` (both included), evaluating and saving on the way."""
        self.sync(first_step - 1)
        if first_step == 1:
            self.evaluate(0)
        for step in range(first_step, last_step + 1):
            report = self.step(step)
            self.commit(report)
            if step % self.config.evaluation.every_steps == 0 or step == last_step:
                self.evaluate(step)
            if step % self.config.checkpoint.every_steps == 0 or step == last_step:
                self.checkpoints.save(step, self.members, self.router, self.exchange, self.success_graph)
            observe(report)

    def step(self, step: int) -> StepReport:
        """One step: sample, verify, route the all-fail groups to peers, gate, train peer-last, sync."""
        started, phase = time.process_time(), PhaseClock()

        # One shared prompt batch Q. Every member M samples n responses per prompt from theta_old; rewards in {0, 1}.
        with phase("sample"):
            rollouts = self.sampler.collect(step, self.prompts)

        # k_M(q) for all members. Candidates: k_R(q) = 0 and 1 <= k_S(q) < n; balanced, with ties (eq. 4).
        # Their value is estimated, or measured on the best two of each slot (exchange.router: scored).
        groups, prompt_ids = rollouts.groups, rollouts.prompt_ids
        with phase("route"):
            counts = self.success_graph.record(step, groups)
            candidates = self.router.to_score(step, counts)
        with phase("score"):
            self.exchange.observe(groups)
            scored = self.exchange.score(step, candidates, groups, prompt_ids)
            values = self.exchange.values(step, scored, groups)
        with phase("route"):
            routing = self.router.route(step, counts, values)

        # The source's text in the receiver's tokens; s (eq. 6-7), w = 1[s > floor] min(s, 1) (eq. 8); its advantages.
        with phase("exchange"):
            grafts = self.exchange.carry_out(step, routing.grafted, groups, prompt_ids, scored)

        # The source's group takes the failed one's place (or as the method's `how` says); own groups first, grafted
        # last; clipped objective (eq. 9-10).
        with phase("update"):
            batches = {name: self.training_batch(step, name, rollouts, grafts[name]) for name in self.members}
            updates = self.update(step, batches)

        # theta_old <- theta: every engine takes over its trainer's weights.
        with phase("sync"):
            self.sync(step)

        # g of every edge used: the mean weight that its receiver's gate gave.
        self.router.observe(edge_weights(grafts))
        cpu_seconds = time.process_time() - started
        return StepReport(
            step, rollouts, routing, grafts, updates, phase.seconds, cpu_seconds, len(scored), gpus=self._gpus
        )

    def training_batch(
        self, step: int, name: str, rollouts: StepRollouts, grafts: Sequence[Graft]
    ) -> list[list[TrainingResponse]]:
        """The minibatches of one member: its own groups, the grafted ones in the place of those they rescue."""
        mode = self.config.update.old_logprobs
        return training_batch(
            rollouts.trained(name),
            grafts,
            rollouts.prompt_ids[name],
            self.method.how,
            prompts_per_minibatch=self.config.update.prompts_per_minibatch,
            seed=keyed_seed(self.config.seed, step, f"order {name}"),
            engine_logprobs=mode == "engine" or (mode == "auto" and self.members[name].exact_logprobs),
        )

    def update(self, step: int, batches: Mapping[str, list[list[TrainingResponse]]]) -> dict[str, UpdateReport]:
        """All members train at once: one optimiser step per minibatch."""
        futures = {name: self.members[name].trainer.call("update", step, batch) for name, batch in batches.items()}
        return gather(futures, self.config.deadlines.update_s, phase="update", step=step)

    def sync(self, step: int) -> None:
        """Hand every trainer's weights to its engine and compare checksums. Raises :class:`SyncError`."""
        jobs = {n: begin(partial(sync_member, m, step, self.config.deadlines.sync_s)) for n, m in self.members.items()}
        all_of(jobs)

    def evaluate(self, step: int) -> list[EvaluationRecord]:
        """Measure every member on the benchmarks, record it, and keep the weights of those it is the best so far of."""
        steps = dict.fromkeys(self.members, step)
        records = evaluate(steps, self.members, self.prompt_ids, self.benchmarks, self.rewards, self.config)
        for record in records:
            self.store.record_evaluation(record)
        self.best.consider(step, records, self.members)
        return records

    def evaluate_best(self, last_step: int) -> dict[str, int]:
        """Measure every member's best checkpoint afresh and record it; {member: step}. Nothing may be sampled after."""
        return evaluate_best(
            self.best,
            self.members,
            self.prompt_ids,
            self.benchmarks,
            self.rewards,
            self.config,
            record=self.store.record_evaluation,
            last_step=last_step,
        )

    def commit(self, report: StepReport) -> None:
        """The step becomes part of the record, whole. Its own cost is recorded with the next step."""
        wall, cpu = time.perf_counter(), time.process_time()
        report.seconds["commit"], report.cpu_seconds = self._commit_s, report.cpu_seconds + self._commit_cpu_s
        report.events += health.warnings(report.step, report.rollouts, self.prompts.prompts_per_step)
        report.events += health.mismatches(report.step, report.updates, self.config.update.mismatch_alarm)
        scale = self.exchange.bytes_per_token
        with open_reader(self.config.store_url) as record:
            recent = health.recent_transfers(record, self.store.uid, report.step)
            report.health += health.measures(report.rollouts, report.grafts, recent)
            self.store.commit(recording.step_record(report, self.router.edge_rates, scale))
            late = health.look(record, self.store.uid, report.step)
        for event in late:
            self.store.event(event)
        report.events += late
        self._commit_s, self._commit_cpu_s = time.perf_counter() - wall, time.process_time() - cpu


class PhaseClock:
    """Wall seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - started


def edge_weights(grafts: Mapping[str, Sequence[Graft]]) -> dict[tuple[str, str], list[float]]:
    """Weights of all responses routed over each edge (receiver, source) of the step, refused = 0."""
    weights: dict[tuple[str, str], list[float]] = {}
    for receiver, arrivals in grafts.items():
        for graft in arrivals:
            weights.setdefault((receiver, graft.transfer.source), []).extend(r.weight for r in graft.responses)
    return weights
