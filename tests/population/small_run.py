"""A whole run in milliseconds: members of a few numbers behind parts that can be lost as processes can.

Everything that the members say and learn depends on the bits of their weights, so a record shows any update that was
left out, done twice or done with another batch.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import torch

from population.best import BestCheckpoints
from population.checkpoints import Checkpoints
from population.config import RunConfig, as_dict, parse
from population.coordinator import Coordinator, StepReport
from population.devices import Devices
from population.errors import LostError
from population.evaluation import Benchmark
from population.placement import Local
from population.prompts import Problem, PromptBatches
from population.run import begin, export_members
from population.trainer import TrainingResponse, UpdateReport
from population.updates import MinibatchReport, Mismatch
from server.rewards import RewardService
from server.rollouts.engine import EngineError, Sample, SamplingParams, TokenPrompt, weights_checksum
from server.store.reader import Reader, open_reader
from server.store.writer import open_writer

STEPS = 6
PROBLEMS = tuple(Problem(key, f"{key}?", str(key), "d") for key in range(1, 13))
HELD_OUT = tuple(Problem(key, f"{key}?", str(key), "held out") for key in range(21, 24))
Part = Literal["trainer", "engine"]


def digest(*parts: Any) -> int:
    """A 63-bit number from anything with a text or bytes."""
    data = b"\0".join(part if isinstance(part, bytes) else repr(part).encode() for part in parts)
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big") >> 1


class SmallTrainer:
    """Weights of four numbers; an update adds numbers that depend on them and on every bit of the batch."""

    def __init__(self, name: str) -> None:
        self.name, self.numbers = name, np.random.default_rng(digest(name)).normal(size=4)
        self.step, self.report = 0, None

    def score(self, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        bits = self.numbers.tobytes()
        return [
            -np.random.default_rng(digest(bits, p.tobytes(), r.tobytes())).uniform(0.1, 0.4, len(r)).astype(np.float32)
            for p, r in rows
        ]

    def update(self, step: int, minibatches: Sequence[Sequence[TrainingResponse]]) -> UpdateReport:
        if step == self.step and self.report is not None:
            return self.report
        assert step == self.step + 1, f"{self.name} is at step {self.step}, asked for {step}"
        losses = []
        for batch in minibatches:
            bits = [(r.response_ids.tobytes(), r.advantage, r.weight, r.grafted) for r in batch]
            draw = np.random.default_rng(digest(self.numbers.tobytes(), bits))
            self.numbers = self.numbers + draw.normal(size=4)
            losses.append(float(self.numbers.sum()))
        zero = dict.fromkeys(MinibatchReport.__dataclass_fields__, 0)
        reports = tuple(MinibatchReport(**{**zero, "loss": loss, "denominator": 1}) for loss in losses)
        self.step, self.report = step, UpdateReport(1e-3, reports, Mismatch())
        return self.report

    def weights(self) -> dict[str, torch.Tensor]:
        return {"numbers": torch.from_numpy(self.numbers.copy())}

    def checksum(self) -> str:
        return weights_checksum(self.weights())

    def save(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        np.savez(folder / "state.npz", numbers=self.numbers, step=self.step)

    def load(self, folder: Path) -> None:
        with np.load(folder / "state.npz") as state:
            self.numbers, self.step, self.report = state["numbers"], int(state["step"]), None

    def export(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "numbers").write_bytes(self.numbers.tobytes())


class SmallEngine:
    """Says what its weights, the prompt and the key of the sample make it say; right more or less often."""

    def __init__(self, name: str) -> None:
        self.name, self.numbers, self.version = name, b"", -1

    def load_weights(self, version: int, weights: Mapping[str, torch.Tensor]) -> str:
        self.numbers, self.version = weights["numbers"].numpy().tobytes(), version
        return weights_checksum(weights)

    def sleep(self) -> None:
        if not self.numbers:
            raise EngineError(f"{self.name} holds no weights to go to sleep with")
        self.numbers = b""

    def drain_events(self) -> tuple[str, ...]:
        return ()

    def sample(self, prompts: Sequence[TokenPrompt], params: SamplingParams) -> list[list[Sample]]:
        if not self.numbers:
            raise EngineError(f"{self.name} holds no weights")
        return [[self._say(prompt, i, params) for i in range(params.n)] for prompt in prompts]

    def _say(self, prompt: TokenPrompt, index: int, params: SamplingParams) -> Sample:
        known = (prompt.key + len(self.name) + ord(self.name[-1])) % 3
        draw = np.random.default_rng(digest(self.numbers, prompt.key, index, params.step, params.purpose))
        ids = np.array([*draw.integers(1, 30, 3), 0], np.int32)
        logprobs = -draw.uniform(0.1, 0.4, 4).astype(np.float32)
        said = prompt.key if draw.random() < (0.0, 0.5, 0.8)[known] else 0
        return Sample(prompt.key, index, ids, logprobs, f"\\boxed{{{said}}}", "stop", self.version)


@dataclass
class Loss:
    """What happens to the `nth` call (from 1) of a method of a member's part: the process is gone `before` it is done
    or `after` that, but before it is answered; or it `hangs`.
    """

    member: str
    part: Part
    method: str
    nth: int
    how: Literal["before", "after", "hangs"] = "before"


@dataclass
class Sabotage:
    """The losses to come, those that came, and a hook that sees every call."""

    losses: list[Loss] = field(default_factory=list)
    done: list[Loss] = field(default_factory=list)
    asked: dict[tuple[str, str, str], int] = field(default_factory=dict)
    see: Callable[[str, str, str], None] = lambda member, part, method: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def strikes(self, member: str, part: Part, method: str) -> Loss | None:
        with self.lock:
            key = (member, part, method)
            number = self.asked[key] = self.asked.get(key, 0) + 1
            for loss in self.losses:
                if (loss.member, loss.part, loss.method, loss.nth) == (*key, number):
                    self.done.append(loss)
                    return loss
        return None


class Losable:
    """A part on a thread that can be lost with all it holds, and built anew."""

    restartable = True

    def __init__(self, build: Callable[[str], Any], member: str, part: Part, sabotage: Sabotage) -> None:
        self._local = Local(build, member)
        self._member, self._part, self._sabotage = member, part, sabotage
        self._lost = False

    @property
    def ready(self) -> Future[Any]:
        return self._local.ready

    def call(self, method: str, *arguments: Any, **named: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        self._sabotage.see(self._member, self._part, method)
        loss = None if self._lost else self._sabotage.strikes(self._member, self._part, method)
        if loss is not None and loss.how == "hangs":
            return answer
        if loss is not None and loss.how == "after":
            self._local.call(method, *arguments, **named).result(60)
        if loss is not None:
            self.kill()
        if self._lost:
            answer.set_exception(LostError("its process is gone"))
            return answer
        return self._local.call(method, *arguments, **named)

    def attributes(self, *names: str) -> Future[dict[str, Any]]:
        return self._local.attributes(*names)

    def close(self, deadline_s: float = 10.0) -> bool:
        return self._lost or self._local.close(deadline_s)

    def kill(self) -> None:
        self._lost = True
        self._local.kill()


def settings(folder: Path, **changes: Any) -> RunConfig:
    """Three members, an exchange that scores, a checkpoint every second step, an evaluation at the third and last."""
    tree = {
        "name": "small", "method": "graft", "steps": STEPS, "folder": str(folder),
        "members": [{"name": name, "model": "m"} for name in "abc"],
        "data": {"source": "d", "prompts_per_step": 6},
        "update": {"prompts_per_minibatch": 3},
        "rollouts": {"rollouts_per_prompt": 3, "max_response_tokens": 8},
        "exchange": {"router": "scored", "source_logprobs": "trainer"},
        "evaluation": {
            "every_steps": 3, "repeats": 0,
            "benchmarks": [{"name": "x", "source": "d", "responses_per_prompt": 2}],
        },
        "checkpoint": {"every_steps": 2, "keep_last": 1},
        "cluster": {"failure": "restart", "max_restarts": 3},
    }  # fmt: skip
    return parse(merged(tree, changes))


def merged(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with the changes laid over it."""
    both = {key: value for key, value in tree.items() if isinstance(value, dict) and isinstance(changes.get(key), dict)}
    return {**tree, **changes, **{key: merged(value, changes[key]) for key, value in both.items()}}


class SmallMember(SimpleNamespace):
    """As `population.member.Member`; `room` says whether it still has one."""

    room = True

    def leave(self) -> None:
        self.trainer.kill()
        self.engine.kill()
        self.room = False

    def restart_trainer(self) -> None:
        self.trainer.kill()
        self.trainer = self.new_trainer()

    def restart_engine(self) -> None:
        self.engine.kill()
        self.engine = self.new_engine()


def member(name: str, sabotage: Sabotage) -> SmallMember:
    """A member with parts that can be lost. All tokenizers are one."""
    save = lambda folder: (folder / "tokenizer").write_text(name)  # noqa: E731
    tokenizer = SimpleNamespace(fingerprint="one", hf=SimpleNamespace(save_pretrained=save))
    new_trainer = lambda: Losable(SmallTrainer, name, "trainer", sabotage)  # noqa: E731
    new_engine = lambda: Losable(SmallEngine, name, "engine", sabotage)  # noqa: E731
    return SmallMember(
        name=name, model="m", family="small", tokenizer=tokenizer, parameters=4, exact_logprobs=False, notes=(),
        weight_version=None, group_bytes=0, met=None,
        new_trainer=new_trainer, new_engine=new_engine, trainer=new_trainer(), engine=new_engine(),
    )  # fmt: skip


@contextmanager
def small_run(
    config: RunConfig, sabotage: Sabotage, *, uid: str = "small", devices: Devices | None = None, resume: bool = False
) -> Iterator[tuple[Coordinator, int]]:
    """A coordinator and the first step to do."""
    folder = config.folder / uid
    checkpoints = Checkpoints(folder / "checkpoints", "digest", config.checkpoint.keep_last, 60)
    dropped = checkpoints.dropped(10**9) if resume else {}
    members = {m.name: member(m.name, sabotage) for m in config.trained if m.name not in dropped}
    prompts = PromptBatches(PROBLEMS, config.data.prompts_per_step, config.seed)
    benchmarks = [Benchmark(benchmark, HELD_OUT) for benchmark in config.evaluation.benchmarks]
    ids = {m.name: {problem.key: (1, problem.key) for problem in (*PROBLEMS, *HELD_OUT)} for m in config.trained}
    alone: dict[str, str | None] = dict.fromkeys(ids)
    prepared = SimpleNamespace(config=config, steps=config.steps, recorded_config=as_dict(config))
    with RewardService(workers=1, timeout_s=60) as rewards, open_writer(config.store_url) as store:
        coordinator = Coordinator(
            config, cast(Any, members), {}, prompts, ids, benchmarks, rewards, store, checkpoints,
            BestCheckpoints(folder, config.evaluation, checkpoints, 60), devices or Devices(alone, alone), dropped,
        )  # fmt: skip
        with open_reader(config.store_url) as reader:
            previous = reader.run(uid) if resume else None
        try:
            yield coordinator, begin(coordinator, cast(Any, prepared), uid, previous)
        finally:
            coordinator.failures.close()
            for one in members.values():
                one.trainer.kill()
                one.engine.kill()


def carried_out(
    folder: Path, *losses: Loss, uid: str = "small", devices: Devices | None = None, **changes: Any
) -> tuple[dict[str, Any], list[tuple[str | None, int | None, str]], list[StepReport]]:
    """The record of a whole run, its events (member, step, message) and its reports."""
    config, sabotage = settings(folder, **changes), Sabotage(list(losses))
    reports: list[StepReport] = []
    with small_run(config, sabotage, uid=uid, devices=devices) as (coordinator, first):
        coordinator.run(first, STEPS, reports.append)
        coordinator.surviving(STEPS + 1, lambda: export_members(coordinator, folder / uid))
        coordinator.store.finish("finished")
    assert sabotage.done == list(losses)
    with open_reader(config.store_url) as reader:
        told = [(e.member, e.step, e.message) for e in reversed(reader.events(uid)) if " lost in " in e.message]
        return record(reader, uid, folder), told, reports


def record(reader: Reader, uid: str, folder: Path) -> dict[str, Any]:
    """All that must not depend on what was lost on the way."""
    timed = ("seconds_", "idle_", "step_seconds", "gpu_seconds", "tokens_per_second")
    names = [name for name in reader.metric_names(uid) if not name.startswith(timed)]
    series = {
        name: [np.nan_to_num(part, nan=-1.0).tolist() for part in reader.metric_series(uid, name, 1, STEPS)]
        for name in names
    }
    return {
        "transfers": reader.transfers(uid, 1, STEPS, limit=10_000),
        "counts": {k: v.tolist() for k, v in reader.member_history(uid, range(STEPS + 1)).items()},
        "metrics": series,
        "evaluations": [asdict(one) for one in reader.evaluations(uid)],
        "weights": {
            str(path.relative_to(folder / uid)): path.read_bytes() for path in sorted((folder / uid).rglob("numbers"))
        },
    }
