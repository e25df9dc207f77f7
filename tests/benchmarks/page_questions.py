"""What each page of the dashboard asks of the store when it is drawn anew, over the whole run as it opens by itself.

Pages keep answers until a step is committed; beside a writer at full rate nothing can be kept, so nothing is here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from dashboard.frames import bucket_edges, fewer
from server.store.reader import PlaceFilter, Reader, RunInfo

# As the pages have them; those are not imported, since they bring all of Streamlit.
WATCHED = ("loss", "grad_norm", "entropy")
TABLE = ("entropy", "clip_own", "clip_peer", "tokens_per_second_rollout")
CURVES = (
    "entropy", "response_tokens", "truncated", "loss", "grad_norm", "learning_rate", "tokens_per_second_rollout",
    "peer_token_share",
)  # fmt: skip
RANGE_STEPS = 2_000
ETA_STEPS = 50
MOST_EVENTS = 500
MOST_UPTAKE = 5_000
MOST_PLACES = 5_000
DRAWN_PROMPTS = 14
LISTED_PROMPTS = 8


class Refresh:
    """One page drawn once: what it asks about the newest run, counted."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.asked: Counter[str] = Counter()
        # Every page begins with the sidebar's list of runs and the state of the one it shows.
        self._answer("runs")
        self.info: RunInfo = self._answer("run", "latest")
        self._answer("revision", self.info.uid)
        self.last = self.info.last_step or 0
        self.first = self.info.first_step or 1
        self.names = [member.name for member in self.info.members]
        self.ask("newest_step", self.last)

    def _answer(self, question: str, *arguments: Any, **options: Any) -> Any:
        self.asked[question] += 1
        return getattr(self._reader, question)(*arguments, **options)

    def ask(self, question: str, *arguments: Any, **options: Any) -> Any:
        return self._answer(question, self.info.uid, *arguments, **options)

    def whole(self, question: str, *arguments: Any, **options: Any) -> Any:
        """A question about all steps of the run."""
        return self.ask(question, *arguments, self.first, self.last, **options)

    def store(self, question: str, *arguments: Any) -> Any:
        """A question about no single run."""
        return self._answer(question, *arguments)

    def edges(self, most: int = 45) -> tuple[int, ...]:
        """Of the buckets that a curve over all steps has."""
        return tuple(bucket_edges(self.first, self.last, most))

    def uptake(self) -> None:
        """What receivers did at their next visit, of as many steps as the pages look at."""
        pairs = self.whole("pair_counts")
        chosen = int(pairs["routed"].sum() + pairs["held_out"].sum())
        every = next(w for p in range(9) for w in (10**p, 2 * 10**p, 5 * 10**p) if chosen <= MOST_UPTAKE * w)
        self.whole("uptake", every=every)


def show_overview(page: Refresh) -> None:
    counts = page.whole("member_counts")
    assert len(set(counts["groups"].tolist())) == 1, "a step was seen in part"
    page.ask("member_history", page.edges())
    page.uptake()
    page.ask("evaluations")
    page.ask("events", MOST_EVENTS)
    for names in (WATCHED, TABLE):
        page.ask("metric_buckets", names, (page.first - 1, page.last))
    newest = max(page.first, page.last - ETA_STEPS + 1)
    page.ask("run_metric_history", "step_seconds", tuple(range(newest - 1, page.last + 1)))


def show_training(page: Refresh) -> None:
    known, edges = page.ask("metric_names"), page.edges()
    page.ask("member_history", edges)
    curves = [name for name in CURVES if name in known]
    page.ask("metric_buckets", curves, edges)
    if 1 < page.last - page.first < RANGE_STEPS:
        for name in curves:
            page.ask("metric_range", name, edges)
    for start in ("clip_", "engine_trainer_gap", ("seconds_", "idle_")):
        page.ask("metric_buckets", [name for name in known if name.startswith(start)], (page.first - 1, page.last))


def show_complementarity(page: Refresh) -> None:
    page.whole("pair_counts")
    page.ask("pair_history", page.edges(fewer(len(page.names))))
    page.ask("patterns", page.whole("patterns_from"), page.last, limit=10_000)
    page.ask("prompts_for", page.names[0], page.names[1], page.first, page.last, offset=0, limit=LISTED_PROMPTS)
    seen = page.whole("newest_places", limit=MOST_PLACES)
    page.store("prompts", seen.prompt[:DRAWN_PROMPTS].tolist())
    page.ask("run_metric_history", "union_solved", page.edges())
    page.ask("metric_history", "solved", page.edges())


def show_transfers(page: Refresh) -> None:
    page.whole("pair_counts")
    page.ask("member_history", page.edges(fewer(len(page.names))))
    page.ask("pair_history", page.edges(fewer(len(page.names))))
    page.whole("newest_transfers")
    page.uptake()
    page.ask("replays")
    rows, total = page.whole("transfers", limit=20)
    assert len(rows) == min(20, total), "transfers were seen in part"


def show_trajectories(page: Refresh) -> None:
    page.whole("subjects")
    for place in page.whole("places", wanted=PlaceFilter(True)).places[:2]:
        page.ask("trajectory", place.step, place.prompt, place.receiver)


def show_evaluation(page: Refresh) -> None:
    page.ask("evaluations")
    page.ask("best")
    page.ask("scores", ())
    page.ask("result")


def show_runs(page: Refresh) -> None:
    page.store("size")
    page.whole("member_counts")
    page.ask("events", MOST_EVENTS)


PAGES: tuple[Callable[[Refresh], None], ...] = (
    show_overview, show_training, show_complementarity, show_transfers, show_trajectories, show_evaluation, show_runs,
)  # fmt: skip


def refresh(reader: Reader, number: int) -> int:
    """Draw the `number`-th page, modulo the number of pages; the number of questions. The run has a step."""
    page = Refresh(reader)
    PAGES[number % len(PAGES)](page)
    return page.asked.total()
