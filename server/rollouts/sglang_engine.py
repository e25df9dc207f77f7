"""A member's engine on SGLang servers: sampling, new weights by disk or by group, sleep, and a restart after a crash.

What is sampled always comes from weights that were proved right: after a failed sync nothing is sampled until one has
succeeded, and a server that died is given the same weights again before the missing samples are drawn.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import httpx
import torch

from server.rollouts.engine import EngineError, Sample, SamplingParams, TokenPrompt, WeightsLost, weights_checksum
from server.rollouts.sglang_client import Drawn, Row, SamplingClient, Unusable, Vocabulary, end_ids_in
from server.rollouts.sglang_control import Bucket, Control, PauseMode
from server.rollouts.sglang_group import GroupPlace, group_place, join_all, leave, receive_by_group
from server.rollouts.sglang_http import Exchange, Server, ServerLost
from server.rollouts.sglang_weights import (
    Deadline,
    HeldWeights,
    Unit,
    WeightFolders,
    held_by,
    on_all,
    prove,
    put_to_sleep,
    restart_with,
    update_by_folder,
    wake_cache,
)
from server.rollouts.tokenizer import MemberTokenizer

TESTED = "0.5.23"
ABORT_S = 10.0


class State(Enum):
    """What an engine may be asked next. Only `READY` samples; only a sync leads there."""

    EMPTY = "holds no weights of the run yet"
    READY = "ready"
    SYNCING = "is taking over weights"
    RECEIVED = "has received weights that are not yet proved"
    ASLEEP = "sleeps"
    BROKEN = "holds no weights that are proved right"
    CLOSED = "is closed"


@dataclass(frozen=True)
class SglangSettings:
    """max_in_flight: samples asked of one server at a time. keep_split: a sample that spans two weight versions is kept
    and marked, not drawn again. sample_s, sync_s: deadlines of one call. restarts: of a server, one after the other,
    without a sample or a sync that succeeds between them.
    """

    max_in_flight: int = 256
    keep_split: bool = False
    sample_s: float = 3600.0
    sync_s: float = 600.0
    restarts: int = 3


class SglangEngine:
    """Samples on one or several running servers, which hold the same weights; implements `Engine`.

    Calls may come from two threads: a sync during `sample` ends or holds the running requests, as `keep_split` says.

    Args:
        servers: running, and the engine's from now on: it restarts and closes them.
        tokenizer: the member's; ids it does not know are ruled out at the server.
        model: the member's folder, as the servers were started with it.
        weights_folder: where the folders of weights go; every server must see it under this path.
        transports: what carries requests in place of sockets (tests).

    Attributes:
        notes: what the user should know about these servers and this model.
        exact_logprobs: False: a server's arithmetic is its own, close to the trainer's and not the same.

    Raises:
        EngineError: a server does not answer, or not as an SGLang server does.
    """

    exact_logprobs = False

    def __init__(
        self,
        servers: Sequence[Server],
        tokenizer: MemberTokenizer,
        model: Path,
        weights_folder: Path,
        settings: SglangSettings = SglangSettings(),
        *,
        transports: tuple[httpx.BaseTransport, httpx.AsyncBaseTransport] | None = None,
    ) -> None:
        self._tokenizer, self._settings = tokenizer, settings
        self._folders = WeightFolders(weights_folder, model)
        self._vocabulary = Vocabulary.of(model, tokenizer)
        self._units: list[Unit] = []
        for server in servers:
            exchange = Exchange(server, transport=transports and transports[0])
            control = Control(exchange)
            self._units.append(Unit(exchange, control, control.facts()))
        self._client = SamplingClient(
            [unit.exchange for unit in self._units],
            self._vocabulary,
            max_in_flight=settings.max_in_flight,
            transport=transports and transports[1],
        )
        self._pause: PauseMode = "retract" if settings.keep_split else "abort"
        self._lock = threading.RLock()
        self._state, self._reason = State.EMPTY, ""
        self._versions: list[int] = []
        self._checksum = ""
        self._group = ""
        self._drawing = 0
        self._losses = 0
        self._events: list[str] = []
        self._remarked: set[str] = set()
        self.notes = self._remarks(model)

    @property
    def weight_version(self) -> int:
        """Version of the weights that the next sample comes from; 0 before the first sync."""
        return self._versions[-1] if self._versions else 0

    def sample(self, prompts: Sequence[TokenPrompt], params: SamplingParams) -> list[list[Sample]]:
        """Samples [len(prompts)][params.n]. A server that dies meanwhile is restarted, and what is missing drawn again.

        Raises:
            EngineError: a prompt is empty, too long or has ids the model lacks; there are no proved weights; a sample
                cannot be had; a server cannot be kept alive. WeightsLost: see there.
        """
        self._vocabulary.check(prompts, params)
        terms = _Terms(self, len(self._versions))
        terms.admit()
        rows = [(p, i) for p in range(len(prompts)) for i in range(params.n)]
        drawn: dict[Row, Drawn] = {}
        deadline = Deadline(self._settings.sample_s)
        with self._counted():
            while len(drawn) < len(rows):
                try:
                    self._client.draw(prompts, rows, params, terms=terms, deadline_s=deadline.left, into=drawn)
                except ServerLost as lost:
                    self._recover(lost)
                except EngineError:
                    self._abort_all()
                    raise
        self._losses = 0
        texts = iter(self._tokenizer.decode_many([drawn[row].ids.tolist() for row in rows]))
        return [[self._sample(prompt, i, drawn[p, i], next(texts)) for i in range(params.n)] for p, prompt in
                enumerate(prompts)]  # fmt: skip

    def load_weights(self, version: int, weights: Mapping[str, torch.Tensor]) -> str:
        """Take over weights from a folder, all servers or none; wakes a sleeping engine. Returns their checksum.

        Raises EngineError, after which nothing is sampled until a call has succeeded.
        """
        with self._syncing() as deadline:
            self._leave_group()
            folder = self._folders.write(version, weights)
            on_all(self._units, lambda unit: self._update(unit, folder, version, deadline))
            held = on_all(self._units, lambda unit: held_by(unit, deadline))
            for one in held:
                remark = prove(one, weights, folder)
                if remark and remark not in self._remarked:
                    self._remarked.add(remark)
                    self._events.append(remark)
            self._folders.keep(folder)
            self._go_on(version, weights_checksum(weights), held, deadline)
        return self._checksum

    def checksum(self) -> str:
        """Checksum of the weights held. Raises EngineError where a server no longer holds what it was proved to."""
        with self._lock:
            self._refuse_unless(State.READY)
            deadline = Deadline(self._settings.sync_s)
            try:
                on_all(self._units, lambda unit: self._same_as_proved(unit, deadline))
            except EngineError as error:
                self._break(error)
                raise
            return self._checksum

    def sleep(self) -> None:
        """Let the servers give their memory back. `load_weights` or a sync by group wakes them."""
        with self._lock:
            self._refuse_unless(State.READY)
            if self._drawing:
                raise EngineError("an engine cannot sleep while samples are being drawn")
            self._state, self._reason = State.ASLEEP, "load_weights wakes it"
            try:
                deadline = Deadline(self._settings.sync_s)
                on_all(self._units, lambda unit: put_to_sleep(unit, deadline))
            except EngineError as error:
                self._break(error)
                raise

    def group_place(self) -> GroupPlace:
        """How many ranks the servers take in a weight group, and where. Raises EngineError where that cannot be."""
        return group_place(self._units)

    def join_group(self, name: str, address: str, port: int, backend: str) -> None:
        """All servers join a weight group, whose rank 0 is the trainer's; returns when everybody is there."""
        with self._lock:
            self._leave_group()
            self._group = name
            join_all(self._units, name, address, port, backend, Deadline(self._settings.sync_s))

    def receive(self, version: int, buckets: Sequence[Bucket]) -> list[HeldWeights]:
        """Take weights over from the group's rank 0, which broadcasts the same buckets meanwhile.

        Returns what the servers now hold, to be proved by the trainer; `confirm` then lets sampling go on. Raises
        EngineError, after which only `load_weights` helps: a server may hold a mixture of two versions.
        """
        with self._syncing() as deadline:
            self._folders.forget()
            try:
                on_all(
                    self._units,
                    lambda unit: receive_by_group(unit, self._group, buckets, str(version), self._pause, deadline),
                )
                held = on_all(self._units, lambda unit: held_by(unit, deadline))
            except EngineError:
                self._leave_group()
                raise
            self._state, self._reason = State.RECEIVED, f"version {version} waits for `confirm`"
        return held

    def confirm(self, version: int, checksum: str, held: Sequence[HeldWeights]) -> None:
        """The trainer has proved what `receive` returned."""
        with self._lock:
            self._refuse_unless(State.RECEIVED)
            try:
                self._go_on(version, checksum, held, Deadline(self._settings.sync_s))
            except EngineError as error:
                self._break(error)
                raise

    def refuse(self, reason: str) -> None:
        """What was received is not what was sent, or the sender failed: nothing is sampled from it."""
        with self._lock:
            self._break(EngineError(reason))
            self._leave_group()
            self._events.append(reason)

    def drain_events(self) -> tuple[str, ...]:
        """What went wrong and was mended since the last call."""
        events, self._events = tuple(self._events), []
        return events

    def close(self) -> None:
        """End the servers that are the run's, and take the folders of weights away. The first error is raised at the
        end.
        """
        with self._lock:
            if self._state is State.CLOSED:
                return
            self._state, self._reason = State.CLOSED, ""
            for unit in self._units:
                unit.exchange.close()
            self._folders.remove()
            on_all(self._units, lambda unit: unit.server.close())

    def _update(self, unit: Unit, folder: Path, version: int, deadline: Deadline) -> None:
        """New weights for one server; one that is gone, or did not answer before, is started with them instead."""
        if not unit.doubtful and unit.server.alive:
            try:
                update_by_folder(unit, folder, str(version), self._pause, deadline)
            except ServerLost as lost:
                self._events.append(f"engine lost in sync: {lost}; restarted with the weights of version {version}")
            else:
                return
        restart_with(unit, folder, str(version))

    def _go_on(self, version: int, checksum: str, held: Sequence[HeldWeights], deadline: Deadline) -> None:
        """The weights are proved: they are what is sampled from now on."""
        on_all(self._units, lambda unit: wake_cache(unit, deadline))
        for unit, one in zip(self._units, held, strict=True):
            unit.held = one
        self._versions.append(version)
        self._checksum = checksum
        self._losses = 0
        # Before the servers go on: requests that waited are answered at once, and are judged by the version.
        self._state, self._reason = State.READY, ""
        on_all(self._units, lambda unit: unit.control.resume(deadline.left))

    def _recover(self, lost: ServerLost) -> None:
        """Bring lost servers back with the weights in use. Raises EngineError when that fails or happens too often."""
        with self._lock:
            self._refuse_unless(State.READY)
            self._losses += 1
            if self._losses > self._settings.restarts:
                error = EngineError(f"an engine was lost {self._losses} times in a row, now: {lost}")
                self._break(error)
                raise error from lost
            try:
                for unit in self._units:
                    if unit.server.alive and unit.control.answers():
                        # Samples of the drawing that was given up.
                        unit.control.abort_all(ABORT_S)
                    else:
                        self._restart(unit)
            except EngineError as error:
                self._break(error)
                raise
            self._events.append(f"engine lost in sample: {lost}; samples drawn again")

    def _restart(self, unit: Unit) -> None:
        folder = self._folders.newest
        restart_with(unit, folder or self._folders.model, str(self.weight_version) if folder else "default")
        if folder is None:
            raise WeightsLost(
                f"{unit.control.url} was restarted, and its weights came by group, so that no folder has them"
            )
        self._same_as_proved(unit, Deadline(self._settings.sync_s))

    def _same_as_proved(self, unit: Unit, deadline: Deadline) -> None:
        assert unit.held is not None
        now = held_by(unit, deadline)
        if [rank["checksums"] for rank in now.ranks] != [rank["checksums"] for rank in unit.held.ranks]:
            raise EngineError(
                f"{unit.control.url} holds other weights than those of version {self.weight_version}; sync again"
            )

    def _sample(self, prompt: TokenPrompt, index: int, drawn: Drawn, text: str) -> Sample:
        return Sample(
            prompt=prompt.key,
            index=index,
            ids=drawn.ids,
            logprobs=drawn.logprobs,
            text=text,
            finish=drawn.finish,
            weight_version=int(drawn.spans[-1].label),
            split=len({span.label for span in drawn.spans}) > 1,
        )

    @contextmanager
    def _syncing(self) -> Iterator[Deadline]:
        """Nothing is sampled until the block has ended well; an error in it leaves the engine broken."""
        with self._lock:
            if self._state is State.CLOSED:
                raise EngineError("the engine is closed")
            self._state, self._reason = State.SYNCING, ""
            try:
                yield Deadline(self._settings.sync_s)
            except BaseException as error:
                self._break(error)
                raise

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._drawing += 1
        try:
            yield
        finally:
            self._drawing -= 1

    def _break(self, error: BaseException) -> None:
        """Refuse to sample, and end what still runs: it would wait for a server that stays paused."""
        if self._state is State.CLOSED:
            return
        self._state, self._reason = State.BROKEN, str(error) or type(error).__name__
        if self._drawing:
            self._abort_all()

    def _abort_all(self) -> None:
        """End what runs at the servers, as far as they answer; why the engine stops is said elsewhere."""
        for unit in self._units:
            with suppress(EngineError):
                unit.control.abort_all(ABORT_S)

    def _refuse_unless(self, wanted: State) -> None:
        if self._state is not wanted:
            because = f" ({self._reason})" if self._reason else ""
            raise EngineError(f"the engine {self._state.value}{because}; a sync must succeed first")

    def _leave_group(self) -> None:
        if self._group:
            name, self._group = self._group, ""
            on_all(self._units, lambda unit: leave(unit, name))

    def _remarks(self, model: Path) -> tuple[str, ...]:
        remarks = []
        for unit in self._units:
            if unit.facts.version != TESTED:
                remarks.append(f"{unit.control.url} is SGLang {unit.facts.version}; {TESTED} is what was tested")
        more = sorted(set(end_ids_in(model)) - self._vocabulary.ends)
        if more:
            remarks.append(f"the servers also end a response at ids {more}, which the model's config.json names")
        return tuple(remarks)


@dataclass(frozen=True)
class _Terms:
    """The engine's say in one drawing, begun when `begun` versions had been in use."""

    engine: SglangEngine
    begun: int

    def admit(self) -> None:
        state = self.engine._state
        # During a sync the server itself makes requests wait, or answers them from the weights before.
        if not (state in (State.SYNCING, State.RECEIVED) and self.engine._drawing):
            self.engine._refuse_unless(State.READY)

    def accept(self, drawn: Drawn) -> None:
        self.admit()
        labels = list(dict.fromkeys(span.label for span in drawn.spans))
        allowed = {str(version) for version in self.engine._versions[max(self.begun - 1, 0) :]}
        strange = [label for label in labels if label not in allowed]
        if strange:
            raise EngineError(
                f"a sample comes from weights labelled {strange[0]!r}, the engine's are {self.engine.weight_version}: "
                "somebody else has updated the server"
            )
        if len(labels) > 1 and not self.engine._settings.keep_split:
            raise Unusable(f"it spans the weight versions {' and '.join(labels)}")
