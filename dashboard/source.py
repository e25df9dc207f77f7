"""The pages' only way to the store: one read-only reader, and answers cached until the run's revision changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from dashboard.launch import STORE_VARIABLE
from server.store.reader import (
    BestCheckpoint,
    EvaluationMark,
    EvaluationSummary,
    EventInfo,
    MeanInterval,
    PromptRecord,
    Reader,
    RunInfo,
    RunResult,
    StepMark,
    StoreError,
    best_checkpoints,
    open_reader,
    read_result,
)

LATEST = "latest"
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def store_urls() -> list[str]:
    """The stores this server was given, one a line of the variable; the pages show the first, Compare all of them.
    StoreError when none was named."""
    urls = [url for url in os.environ.get(STORE_VARIABLE, "").split("\n") if url]
    if not urls:
        raise StoreError(f"no store was named: start with `graft dashboard --store URL`, or set {STORE_VARIABLE}")
    return list(dict.fromkeys(urls))


def store_url() -> str:
    """The store this server shows. StoreError when none was named."""
    return store_urls()[0]


def file_identity(url: str) -> str:
    """Which file a SQLite store is: another one after it was deleted and made again. Empty for a database server."""
    path = unquote(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else url
    if "://" in path:
        return ""
    try:
        found = os.stat(os.path.expanduser(path))
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino}"


@st.cache_resource(show_spinner=False, max_entries=64, on_release=lambda store: store.close())
def reader(url: str, file: str) -> Reader:
    """One reader for all sessions of this server; it is safe to use from several threads.

    `file` is the store's `file_identity`: an open reader would go on showing a deleted file.
    """
    return open_reader(url)


# Questions that depend on nothing after their last argument, a step or ascending steps: while the run goes on, their
# answers about earlier steps stay.
UP_TO_LAST_STEP = frozenset(
    {
        "complementarity", "member_counts", "member_history", "pair_counts", "pair_history", "metric", "metric_history",
        "metric_range", "metric_buckets", "metric_series", "run_metric", "run_metric_history", "patterns", "places",
        "prompts_for", "subjects", "transfers", "newest_places", "newest_transfers", "newest_groups",
        "patterns_from", "prompt_visits", "joint_scores",
    }
)  # fmt: skip
# Questions about evaluations alone: steps that bring none leave their answers as they are.
ABOUT_EVALUATIONS = frozenset({"scores", "evaluation_problems"})
# Evaluated steps of one question about joint scores: of a long run only the newest few are asked about anew.
STEPS_AT_ONCE = 10
Mark = int | StepMark | EvaluationMark | None


@st.cache_data(show_spinner=False, max_entries=256)
def _answer(key: str, _ask: Callable[[], Any]) -> Any:
    """What `_ask` says, kept under its key: Streamlit would take longer over many arguments than some answers do."""
    return _ask()


@st.cache_data(show_spinner=False, max_entries=16)
def _whole(url: str, file: str, run: str, revision: int, question: str) -> Any:
    return getattr(reader(url, file), question)()


# A long run has thousands, which nobody can change: a copy for each who asks would cost more than the question.
@st.cache_resource(show_spinner=False, max_entries=64)
def _evaluations(url: str, file: str, run: str, mark: EvaluationMark) -> tuple[EvaluationSummary, ...]:
    return tuple(reader(url, file).evaluations(run))


@st.cache_data(show_spinner=False, max_entries=64)
def _result(_source: Source, url: str, file: str, run: str, revision: int) -> RunResult:
    return read_result(_Remembered(_source), _source.info, url)


@dataclass(frozen=True)
class Source:
    """One run at one revision; questions of `Reader` about it are answered from the cache where nothing changed."""

    url: str
    file: str
    info: RunInfo
    revision: int
    _marks: dict[int, StepMark | None] = field(default_factory=dict, compare=False, repr=False)
    # What panels ask one after the other while a page is drawn; whoever asks leaves the answer as it is.
    _answers: dict[tuple[Any, ...], Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def open(cls, run: str, url: str | None = None) -> Source:
        """The run as it is now, of the store shown or of another one; StoreError when it cannot be read."""
        url = store_url() if url is None else url
        file = file_identity(url)
        store = reader(url, file)
        info = store.run(run)
        return cls(url, file, info, store.revision(info.uid))

    def ask(self, question: str, *arguments: Any, **options: Any) -> Any:
        """`Reader.question(run, *arguments, **options)`, from the cache until the steps it is about change."""
        named = tuple(sorted(options.items()))
        asked = question, arguments, named
        if asked not in self._answers:
            self._answers[asked] = self._remembered(question, arguments, named)
        return self._answers[asked]

    def _remembered(self, question: str, arguments: tuple, named: tuple) -> Any:
        mark: Mark = self.revision
        if question in UP_TO_LAST_STEP:
            last = arguments[-1]
            mark = self.newest_step(last[-1] if isinstance(last, tuple) else last)
        elif question in ABOUT_EVALUATIONS:
            mark = self._repeats_mark if dict(named).get("repeats") else self.evaluation_mark
        key = self._key(mark, question, arguments, named)
        store = reader(self.url, self.file)
        return _answer(key, lambda: getattr(store, question)(self.info.uid, *arguments, **dict(named)))

    @cached_property
    def evaluation_mark(self) -> EvaluationMark:
        """As long as it stays the same, so do all evaluations."""
        return reader(self.url, self.file).evaluation_mark(self.info.uid)

    def evaluations(self) -> tuple[EvaluationSummary, ...]:
        """`Reader.evaluations`, from the cache until one is recorded."""
        return _evaluations(self.url, self.file, self.info.uid, self.evaluation_mark)

    @cached_property
    def _repeats_mark(self) -> EvaluationMark:
        return reader(self.url, self.file).evaluation_mark(self.info.uid, repeats=True)

    def best(self) -> list[BestCheckpoint]:
        """`Reader.best`, from the evaluations that are kept."""
        return self._best

    @cached_property
    def _best(self) -> list[BestCheckpoint]:
        return best_checkpoints(self.info.config, [member.name for member in self.info.members], self.evaluations())

    def result(self) -> RunResult:
        """`Reader.result`, made of answers from the cache."""
        return self._kept_result

    @cached_property
    def _kept_result(self) -> RunResult:
        return _result(self, self.url, self.file, self.info.uid, self.revision)

    def joint_scores(
        self, members: tuple[str, ...], benchmarks: tuple[str, ...], steps: tuple[int, ...]
    ) -> dict[int, MeanInterval]:
        """`Reader.joint_scores` of ascending steps; after another evaluation only the newest are asked about anew."""

        def ask() -> dict[int, MeanInterval]:
            found: dict[int, MeanInterval] = {}
            for start in range(0, len(steps), STEPS_AT_ONCE):
                found |= self.ask("joint_scores", members, benchmarks, steps[start : start + STEPS_AT_ONCE])
            return found

        scores: dict[int, MeanInterval] = _answer(
            self._key("all", self.evaluation_mark, members, benchmarks, steps), ask
        )
        return scores

    def _key(self, *parts: Any) -> str:
        """Of an answer about this run."""
        return repr((self.url, self.file, self.info.uid, *parts))

    def metrics(self, names: tuple[str, ...], first_step: int, last_step: int) -> dict[str, tuple[Floats, Floats]]:
        """{metric: (numerator [N], denominator [N]) summed over these steps}, all asked for at once."""
        found = self.ask("metric_buckets", names, (first_step - 1, last_step))
        return {name: (counted.numerator[0], counted.denominator[0]) for name, counted in found.items()}

    def ask_store(self, question: str) -> Any:
        """`Reader.question()` about the whole store, from the cache until this run's revision changes."""
        return _whole(self.url, self.file, self.info.uid, self.revision, question)

    def newest_step(self, last_step: int | None = None) -> StepMark | None:
        """The newest committed step, or that up to `last_step`."""
        last = min(last_step, self.info.last_step or 0) if last_step is not None else self.info.last_step or 0
        if last not in self._marks:
            self._marks[last] = reader(self.url, self.file).newest_step(self.info.uid, last)
        return self._marks[last]

    def prompts(self, keys: tuple[int, ...]) -> dict[int, PromptRecord]:
        """The stored ones of these prompts, by key; they never change."""
        return reader(self.url, self.file).prompts(keys)

    def events(self, limit: int) -> list[EventInfo]:
        """The newest events, newest first."""
        return self.ask("events", limit)


@dataclass(frozen=True)
class _Remembered:
    """A source as `Reader` answers, for what is made of several answers about its one run."""

    source: Source

    def evaluations(self, run: str) -> tuple[EvaluationSummary, ...]:
        return self.source.evaluations()

    def repeated_accuracy(self, run: str) -> dict[str, dict[int, dict[str, float]]]:
        steps = {one.member: one.step for one in self.source.best()}
        found: dict[str, dict[int, dict[str, float]]] = {}
        for score in self.source.ask("scores", tuple(steps.items()), repeats=True):
            by_step = found.setdefault(score.benchmark, {}).setdefault(steps[score.member], {})
            by_step[score.member] = float(np.mean(score.passes))
        return found

    def member_history(self, run: str, edges: Sequence[int]) -> dict[str, Ints]:
        return self.source.ask("member_history", tuple(edges))

    def metric_history(self, run: str, name: str, edges: Sequence[int]) -> tuple[Floats, Floats]:
        return self.source.ask("metric_history", name, tuple(edges))

    def run_metric_history(self, run: str, name: str, edges: Sequence[int]) -> tuple[Floats, Floats]:
        return self.source.ask("run_metric_history", name, tuple(edges))


def all_runs() -> list[RunInfo]:
    """Every run of the store, newest first."""
    url = store_url()
    return reader(url, file_identity(url)).runs()
