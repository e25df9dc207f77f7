"""The co-training loop: Algorithm 1 of the GRAFT paper for N members.

``Coordinator.step`` is the algorithm, line by line; everything it calls is in the modules beside it. Everything
random is keyed by (seed, step, member, purpose), so a step replays: a resumed run is the run that was never stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

from graft.methods import METHODS
from population import health, recording
from population.best import BestCheckpoints, load_best
from population.calls import as_finished
from population.checkpoints import Checkpoints
from population.config import RunConfig
from population.devices import Devices
from population.encoding import PromptIds
from population.errors import MemberDropped, MemberLost
from population.evaluation import Benchmark, Draw, evaluate
from population.exchange import Exchange, Graft
from population.failures import Failures
from population.grading import Rewards
from population.member import Member
from population.prompts import PromptBatches
from population.recorded import RecordedMember
from population.rollouts import Sampler, StepRollouts
from population.router import Router, Routing, keyed_seed
from population.schedule import Samples, Schedule
from population.success_graph import StepCounts, SuccessGraph
from population.timelines import IDLE, RUN, WORK, Timelines
from population.trainer import TrainingResponse, UpdateReport
from population.training_batch import training_batch
from server.rollouts.engine import SamplingParams, TokenPrompt
from server.store.reader import open_reader
from server.store.records import EvaluationRecord, EventRecord, MetricRecord
from server.store.writer import Writer


@dataclass
class StepReport:
    """What one step did, for the record and for whoever watches.

    ``seconds`` is wall time by phase, ``member_seconds`` by member and what it did (population.timelines); ``commit``
    is that of the step before, as are the CPU seconds of it. ``scored_groups`` is how many candidates were scored
    before the choice, ``gpus`` how many GPUs the run holds.
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
    member_seconds: dict[str, dict[str, float]] = field(default_factory=dict)


Observer = Callable[[StepReport], None]
Prepare = Callable[[Member, int], None]
"""(member, step) -> its engine holds the weights after that step."""

T = TypeVar("T")

PHASES = ("sample", "route", "score", "exchange", "update", "sync", "commit")


class Coordinator:
    """Drives one run: the step, evaluation, checkpoints and the record.

    ``members`` are those that are still of the run; ``dropped`` {member: first step without it}.
    """

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
        devices: Devices,
        dropped: Mapping[str, int],
    ) -> None:
        self.config = config
        self.members = dict(members)
        self.dropped = dict(dropped)
        self.recorded = dict(recorded)
        self.prompts = prompts
        self.prompt_ids = prompt_ids
        self.benchmarks = benchmarks
        self.rewards = rewards
        self.store = store
        self.checkpoints = checkpoints
        self.best = best
        self.method = METHODS[config.method]
        self.timelines = Timelines(list(members))
        self.failures = Failures(config, self.tell)
        self.schedule = Schedule(self.members, devices, self.failures, self.timelines, config)
        self._gpus = devices.gpus
        self.sampler = Sampler(self.schedule, self.recorded, prompt_ids, rewards, prompts, config)
        everyone = [member.name for member in config.members]
        self.success_graph = SuccessGraph(everyone, [problem.key for problem in prompts.problems])
        self.router = Router(self.method, config.exchange, config.seed, receivers=tuple(members))
        self.exchange = Exchange(
            self.members,
            self.method.how,
            config.exchange,
            score=self.schedule.score,
            max_tokens=config.rollouts.max_response_tokens,
            seed=config.seed,
            recorded=self.recorded,
        )

    def run(self, first_step: int, last_step: int, observe: Observer) -> None:
        """Train from ``first_step`` to ``last_step`` (both included), evaluating and saving on the way."""
        self.surviving(first_step, partial(self.schedule.ready, first_step - 1))
        if first_step == 1:
            self.evaluate(0)
        self.timelines.enter(RUN, "sample")
        self.timelines.cut()
        for step in range(first_step, last_step + 1):
            report = self.surviving(step, partial(self.step, step, last_step))
            self.commit(report)
            if self.evaluates(step, last_step):
                self.evaluate(step)
            if step % self.config.checkpoint.every_steps == 0 or step == last_step:
                self.save(step)
            observe(report)

    def step(self, step: int, last_step: int) -> StepReport:
        """One step: sample, verify, route the all-fail groups to peers, gate, train peer-last, sync.

        It may be begun again without a member that was dropped (MemberDropped) before the updates.
        """
        phase = partial(self.timelines.during, RUN)

        # One shared prompt batch Q. Every member M samples n responses per prompt from theta_old; rewards in {0, 1}.
        with phase("sample"):
            rollouts = self.sampler.collect(step)

        # k_M(q) for all members. Candidates: k_R(q) = 0 and 1 <= k_S(q) < n; balanced, with ties (eq. 4).
        # Their value is estimated, or measured on the best two of each slot (exchange.router: scored).
        groups, prompt_ids = rollouts.groups, rollouts.prompt_ids
        with phase("route"):
            counts = StepCounts.of(groups)
            candidates = self.router.to_score(step, counts)
        with phase("score"):
            self.exchange.observe(step, groups)
            scored = self.exchange.score(step, candidates, groups, prompt_ids)
            values = self.exchange.values(step, scored, groups)
        with phase("route"):
            routing = self.router.route(step, counts, values)

        # The source's text in the receiver's tokens; s (eq. 6-7), w = 1[s > floor] min(s, 1) (eq. 8); its advantages.
        with phase("exchange"):
            grafts = self.exchange.carry_out(step, routing.grafted, groups, prompt_ids, scored)

        # The source's group takes the failed one's place (or as the method's `how` says); own groups first, grafted
        # last; clipped objective (eq. 9-10). theta_old <- theta: a member's engine takes over its trainer's weights
        # as soon as they are made, and it goes on to the next batch while others still train.
        with phase("update"):
            batches = {name: self.training_batch(step, name, rollouts, grafts[name]) for name in self.members}
            follow = None if self.pauses(step, last_step) else self.sampler.ahead(step + 1)
            chains = self.schedule.train(step, batches, follow)
            if follow:
                self.sampler.expect(step + 1, {name: chain.followed for name, chain in chains.items()})
            updates = self.survivors(step + 1, {name: chain.updated for name, chain in chains.items()})
        with phase("sync"):
            self.survivors(step + 1, {name: chain.synced for name, chain in chains.items()})
            if follow is None:
                self.schedule.rest()

        # The success graph, and g of every edge used: the mean weight that its receiver's gate gave.
        self.success_graph.record(step, groups)
        self.router.observe(edge_weights(grafts))
        return self.timed(StepReport(step, rollouts, routing, grafts, updates, scored_groups=len(scored)))

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

    def pauses(self, step: int, last_step: int) -> bool:
        """Whether members wait after a step instead of going on: it is the last one, or an evaluation follows."""
        return step == last_step or self.evaluates(step, last_step)

    def evaluates(self, step: int, last_step: int) -> bool:
        """Whether an evaluation follows a step."""
        due = step % self.config.evaluation.every_steps == 0 or step == last_step
        return due and bool(self.benchmarks)

    def timed(self, report: StepReport) -> StepReport:
        """The report with the seconds of its window, which ends now."""
        window = self.timelines.cut()
        report.seconds = dict.fromkeys(PHASES, 0.0) | window.seconds.pop(RUN)
        report.member_seconds = {
            name: dict.fromkeys((*WORK, *IDLE), 0.0) | own for name, own in window.seconds.items() if name is not None
        }
        report.cpu_seconds, report.gpus = window.cpu_seconds, self._gpus
        return report

    def surviving(self, since: int, work: Callable[[], T]) -> T:
        """``work()``, once more without every member that was dropped in it and is not of the run from ``since`` on."""
        while True:
            try:
                return work()
            except MemberDropped as gone:
                self.drop(gone, since)

    def survivors(self, since: int, jobs: Mapping[str, Future[T]]) -> dict[str, T]:
        """The results of the members' jobs, without those that are dropped in them."""
        found: dict[str, T] = {}
        dropped: list[MemberDropped] = []
        for name, future in as_finished({name: job for name, job in jobs.items() if name in self.members}):
            try:
                found[name] = future.result()
            except MemberDropped as error:
                dropped.append(error)
        for gone in dropped:
            self.drop(gone, since)
        return {name: found[name] for name in jobs if name in found}

    def drop(self, gone: MemberDropped, since: int) -> None:
        """The run goes on without a member. Raises MemberLost when too few are left."""
        member = self.members.pop(gone.member)
        self.dropped[gone.member] = since
        member.leave()
        self.timelines.remove(gone.member)
        self.sampler.forget(gone.member)
        self.router.forget(gone.member)
        self.tell(f"dropped from step {since} on: {gone.reason}", gone.member, gone.step)
        alone = self.method.exchanges and len(self.members) + len(self.recorded) < 2
        if alone or not self.members:
            wanted = f"method {self.method.name} needs two members" if self.members else "no member is left"
            reason = f"{gone.reason}; it was dropped, and {wanted}: mend the cause and go on with --resume"
            raise MemberLost((gone.member,), "drop", gone.step, reason) from gone

    def tell(self, message: str, member: str, step: int | None) -> None:
        """Record at once what went wrong and was mended."""
        self.store.event(EventRecord("warning", message, member, step))

    def evaluate(self, step: int) -> list[EvaluationRecord]:
        """Measure every member on the benchmarks, record it, and keep the weights of those it is the best so far of."""

        def measured() -> list[EvaluationRecord]:
            steps = dict.fromkeys(self.members, step)
            draw = self.drawing(self.schedule.hold)
            return evaluate(steps, draw, self.prompt_ids, self.benchmarks, self.rewards, self.config)

        with self.timelines.aside():
            records = self.surviving(step + 1, measured)
            for record in records:
                self.store.record_evaluation(record)
            keep = partial(self.best.consider, step, records, self.members, self.failures.ask)
            self.surviving(step + 1, keep)
        return records

    def evaluate_best(self, last_step: int) -> dict[str, int]:
        """Measure every member's best checkpoint afresh and record it; {member: step}, empty without repeats or test
        benchmarks. Nothing may be sampled after.
        """
        tests = [benchmark for benchmark in self.benchmarks if benchmark.settings.role == "test"]
        if not tests or not self.config.evaluation.repeats:
            return {}
        for member in self.members.values():
            member.weight_version = None  # so that even weights of the same step are read back from disk

        def prepare(member: Member, step: int) -> None:
            if member.weight_version != step:
                load_best(self.best, member, step, self.config, last_step=last_step)

        def measured(repeat: int) -> list[EvaluationRecord]:
            best = {name: step for name in self.members if (step := self.best.step(name)) is not None}
            draw = self.drawing(prepare)
            return evaluate(best, draw, self.prompt_ids, tests, self.rewards, self.config, repeat=repeat)

        steps: dict[str, int] = {}
        for repeat in range(1, self.config.evaluation.repeats + 1):
            for record in self.surviving(last_step + 1, partial(measured, repeat)):
                self.store.record_evaluation(record)
                steps[record.member] = record.step
        return steps

    def drawing(self, prepare: Prepare) -> Draw:
        """How evaluation samples, from the weights that ``prepare`` gives a member's engine."""

        def draw(name: str, step: int, prompts: Sequence[TokenPrompt], params: SamplingParams) -> Samples:
            with self.schedule.turns("engine", [name])[name]:
                return self.schedule.draw(
                    name, prompts, params,
                    deadline_s=self.config.deadlines.evaluate_s, phase="evaluate", step=step,
                    prepare=lambda member: prepare(member, step),
                )  # fmt: skip

        return draw

    def save(self, step: int) -> None:
        """Write the state after a step: no trainer and no counter is touched by members that sample already."""
        state = (self.router, self.exchange, self.success_graph, self.dropped)
        with self.timelines.aside(but_for_work=True):
            write = partial(self.checkpoints.save, step, self.members, *state, self.failures.ask)
            folder = self.surviving(step + 1, write)
            self.failures.saved(step, {name: folder / name for name in self.members})
            self.checkpoints.sweep()

    def commit(self, report: StepReport) -> None:
        """The step becomes part of the record, whole. Its own cost is recorded with the next step."""
        self.timelines.enter(RUN, "commit")
        report.events += [EventRecord("warning", text, None, report.step) for text in self.rewards.incidents()]
        report.events += health.warnings(report.step, report.rollouts, self.prompts.prompts_per_step)
        report.events += health.mismatches(report.step, report.updates, self.config.update.mismatch_alarm)
        scale = self.exchange.bytes_per_token
        with open_reader(self.config.store_url) as record:
            recent = health.recent_transfers(record, self.store.uid, report.step)
            here = [i for i, m in enumerate(self.config.members) if m.name in report.rollouts.rollouts]
            report.health += health.measures(report.rollouts, report.grafts, recent[np.ix_(here, here)])
            self.store.commit(recording.step_record(report, self.router.edge_rates, scale))
            late = health.look(record, self.store.uid, report.step)
        for event in late:
            self.store.event(event)
        report.events += late
        self.timelines.enter(RUN, "sample")


def edge_weights(grafts: Mapping[str, Sequence[Graft]]) -> dict[tuple[str, str], list[float]]:
    """Weights of all responses routed over each edge (receiver, source) of the step, refused = 0."""
    weights: dict[tuple[str, str], list[float]] = {}
    for receiver, arrivals in grafts.items():
        for graft in arrivals:
            weights.setdefault((receiver, graft.transfer.source), []).extend(r.weight for r in graft.responses)
    return weights
