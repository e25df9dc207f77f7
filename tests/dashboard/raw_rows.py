"""What a store's raw rows say, and statistics of them: plain SQL, Arrow shards and scipy.

Nothing of server.store or the dashboard, so that the pages' numbers are held against an independent recount.
Steps are inclusive everywhere; members and pairs (receiver, source) are slots. What has no case is None.
"""

from __future__ import annotations

import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy import stats

UNGRADED = {-2, -3, -4, -5}
Z = float(stats.norm.ppf(0.975))
Interval = tuple[float, float]


@dataclass(frozen=True)
class Group:
    """One member's responses to one prompt in one step, from a shard."""

    step: int
    member: int
    prompt: int
    rewards: tuple[float, ...]
    advantages: tuple[float, ...]
    verdicts: tuple[int, ...]
    finishes: tuple[str, ...]
    tokens: tuple[int, ...]

    @property
    def n(self) -> int:
        return len(self.rewards)

    @property
    def right(self) -> int:
        return sum(reward > 0 for reward in self.rewards)

    @property
    def ungraded(self) -> int:
        return sum(verdict in UNGRADED for verdict in self.verdicts)

    @property
    def all_fail(self) -> bool:
        return not self.right and not self.ungraded


@dataclass(frozen=True)
class Gate:
    """What a receiver's gate said about one response."""

    s: float | None
    weight: float
    refusal: str | None


@dataclass(frozen=True)
class Transfer:
    """One group that was chosen for a receiver."""

    step: int
    receiver: int
    source: int
    prompt: int
    held_out: bool
    value: float
    gates: tuple[Gate, ...]

    @property
    def admitted(self) -> int:
        return sum(gate.refusal is None for gate in self.gates)

    @property
    def scores(self) -> list[float]:
        return [gate.s for gate in self.gates if gate.s is not None]


class Run:
    """One run of a SQLite store."""

    def __init__(self, url: str, uid: str) -> None:
        self.path = Path(url.removeprefix("sqlite:///"))
        self.database = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
        self.database.row_factory = sqlite3.Row
        self.row = self.sql("select * from runs where uid = ?", uid)[0]
        self.names = [row["name"] for row in self.sql("select name from members where run = ? order by slot", self.id)]

    @property
    def id(self) -> int:
        return int(self.row["id"])

    @property
    def members(self) -> range:
        return range(len(self.names))

    def sql(self, statement: str, *values: object) -> list[sqlite3.Row]:
        return self.database.execute(statement, values).fetchall()

    @cached_property
    def all_groups(self) -> list[Group]:
        """Every group, from the shards."""
        found = []
        for shard in self.sql("select step, member, path from shards where run = ? order by step, member", self.id):
            with pa.memory_map(str(self.path.with_name(f"{self.path.stem}_trajectories") / shard["path"])) as file:
                reader = pa.ipc.open_file(file)
                for at in range(reader.num_record_batches):
                    rows = reader.get_batch(at).to_pydict()
                    columns = (rows["reward"], rows["advantage"], rows["verdict"], rows["finish"])
                    lengths = [len(ids) for ids in rows["token_ids"]]
                    parts = map(tuple, (*columns, lengths))
                    found.append(Group(shard["step"], shard["member"], rows["prompt"][0], *parts))
        return found

    def groups(self, first: int, last: int, member: int | None = None) -> list[Group]:
        return [g for g in self.all_groups if first <= g.step <= last and member in (None, g.member)]

    @cached_property
    def all_transfers(self) -> list[Transfer]:
        gates: dict[tuple[int, ...], list[Gate]] = defaultdict(list)
        for row in self.sql('select * from grafted where run = ? order by "index"', self.id):
            place = row["step"], row["receiver"], row["source"], row["prompt"]
            gates[place].append(Gate(row["s"], row["weight"], row["refusal"]))
        found = []
        for row in self.sql("select * from transfers where run = ?", self.id):
            place = row["step"], row["receiver"], row["source"], row["prompt"]
            found.append(Transfer(*place, bool(row["held_out"]), row["value"], tuple(gates[place])))
        return found

    def transfers(self, first: int, last: int) -> list[Transfer]:
        return [one for one in self.all_transfers if first <= one.step <= last]

    def pair(self, first: int, last: int, receiver: int, source: int) -> list[Transfer]:
        return [t for t in self.transfers(first, last) if (t.receiver, t.source) == (receiver, source)]

    def metric(self, name: str, first: int, last: int, member: int = -1) -> list[tuple[float, float]]:
        """(numerator, denominator) of every step with finite ones; member -1 is the whole run."""
        rows = self.sql(
            "select m.numerator, m.denominator from metrics m join metric_names n on n.id = m.name "
            "where m.run = ? and n.name = ? and m.member = ? and m.step between ? and ? order by m.step",
            self.id, name, member, first, last,
        )  # fmt: skip
        pairs = [(row["numerator"], row["denominator"]) for row in rows]
        return [pair for pair in pairs if all(part is not None and math.isfinite(part) for part in pair)]

    def problems(self, benchmark: str, step: int, member: int, repeat: int = 0) -> dict[int, tuple[int, int]]:
        """{problem: (right, responses)} of one evaluation."""
        rows = self.sql(
            "select prompt, correct, responses from evaluation_problems where run = ? and benchmark = ? and step = ? "
            "and member = ? and repeat = ? order by prompt",
            self.id, benchmark, step, member, repeat,
        )  # fmt: skip
        return {row["prompt"]: (row["correct"], row["responses"]) for row in rows}

    # Counts over whole places

    def place(self, first: int, last: int) -> dict[tuple[int, int], dict[int, Group]]:
        """{(step, prompt): {member: its group}}."""
        found: dict[tuple[int, int], dict[int, Group]] = defaultdict(dict)
        for group in self.groups(first, last):
            found[group.step, group.prompt][group.member] = group
        return found

    def failed_beside(self, first: int, last: int, row: int, column: int) -> list[tuple[Group, Group]]:
        """(the row's all-fail group, what the column made of the same prompt in the same step)."""
        places = self.place(first, last).values()
        return [(own[row], own[column]) for own in places if row in own and column in own and own[row].all_fail]

    def rescued(self, first: int, last: int, member: int) -> list[tuple[Group, bool, bool]]:
        """(all-fail group, whether some peer solved its prompt, whether a peer's response was admitted for it)."""
        given = {(t.step, t.prompt, t.receiver) for t in self.transfers(first, last) if t.admitted}
        found = []
        for place, own in self.place(first, last).items():
            if member in own and own[member].all_fail:
                peer = any(group.right for slot, group in own.items() if slot != member)
                found.append((own[member], peer, (*place, member) in given))
        return found

    def next_visit(self, transfer: Transfer) -> bool | None:
        """Whether the receiver solved the prompt when it met it again and could be graded; None: not yet."""
        own = [g for g in self.all_groups if (g.member, g.prompt) == (transfer.receiver, transfer.prompt)]
        later = [g for g in own if g.step > transfer.step and not g.ungraded]
        return min(later, key=lambda g: g.step).right > 0 if later else None

    def uptake(self, transfers: Iterable[Transfer]) -> tuple[int, int, int, int]:
        """(solved, seen) at the next visit after a graft, and after a withheld one."""
        seen = [(t.held_out, again) for t in transfers if (again := self.next_visit(t)) is not None]
        sides = [[again for held, again in seen if held == side] for side in (False, True)]
        return sum(sides[0]), len(sides[0]), sum(sides[1]), len(sides[1])


# Statistics


def wilson(k: float, n: float) -> Interval:
    """The shares x with |k / n - x| = z sqrt(x (1 - x) / n): the two roots of a quadratic."""
    p, c = k / n, Z**2 / n
    low, high = sorted(np.roots([1 + c, -(2 * p + c), p * p]).real)
    return max(0.0, float(low)), min(1.0, float(high))


def over_problems(shares: Sequence[float], trials: float) -> Interval:
    """Wilson's at the effective number: p (1 - p) over the variance of the mean, between 1 and the trials."""
    values = np.asarray(shares, float)
    mean, variance = float(values.mean()), float(values.var(ddof=1)) / len(values)
    effective = mean * (1 - mean) / variance if variance else float(len(values))
    effective = min(max(effective, 1.0), trials)
    return wilson(mean * effective, effective)


def normal(values: Sequence[float]) -> Interval:
    """The mean's normal interval."""
    half = Z * float(stats.sem(values))
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def by_cluster(rows: Iterable[tuple[object, float, float]], draws: int = 4_000) -> tuple[Interval, Interval]:
    """Where the 2.5 % and the 97.5 % quantile of sum(k) / sum(n) lie when clusters are drawn whole (bootstrap), from
    (cluster, k, n): each between two of its neighbours, as another bootstrap draws otherwise."""
    sums: dict[object, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for cluster, k, n in rows:
        sums[cluster][0] += k
        sums[cluster][1] += n
    table = np.array(list(sums.values()))
    drawn = table[np.random.default_rng(99).integers(0, len(table), (draws, len(table)))].sum(axis=1)
    drawn = drawn[drawn[:, 1] > 0]
    quantiles = np.quantile(drawn[:, 0] / drawn[:, 1], (0.014, 0.038, 0.962, 0.986)).tolist()
    return (quantiles[0], quantiles[1]), (quantiles[2], quantiles[3])


def ratio_half_width(rows: Sequence[tuple[float, float]]) -> float | None:
    """Half of the 95 % interval of sum(k) / sum(n) with every (k, n) one draw (Cochran, Sampling Techniques, 6.4); rows
    without n are no draw."""
    rows = [(k, n) for k, n in rows if n]
    if len(rows) < 2 or not sum(n for _, n in rows):
        return None
    ratio = sum(k for k, _ in rows) / sum(n for _, n in rows)
    residual = [k - ratio * n for k, n in rows]
    mean_n = sum(n for _, n in rows) / len(rows)
    variance = sum(one**2 for one in residual) / (len(rows) - 1)
    return Z * math.sqrt(variance / len(rows)) / mean_n


def difference(solved: int, seen: int, held_solved: int, held_seen: int) -> tuple[float, Interval]:
    """Difference of two shares with Agresti and Caffo's standard error around it (one success, one failure added)."""
    change = solved / seen - held_solved / held_seen
    adjusted = [((k + 1) / (n + 2), n + 2) for k, n in ((solved, seen), (held_solved, held_seen))]
    half = Z * math.sqrt(sum(p * (1 - p) / n for p, n in adjusted))
    return change, (change - half, change + half)


def phi(both: Sequence[tuple[bool, bool]]) -> tuple[float, float] | None:
    """(correlation of two yes-or-no columns, its standard error by the delta method with a numerical gradient)."""
    cells = np.array([[sum((a, b) == (x, y) for a, b in both) for y in (True, False)] for x in (True, False)], float)
    n = cells.sum()
    if not n or 0 in (*cells.sum(axis=0), *cells.sum(axis=1)):
        return None

    def value(p: np.ndarray) -> float:
        (a, b), (c, d) = p
        return float((a * d - b * c) / math.sqrt((a + b) * (c + d) * (a + c) * (b + d)))

    p, gradient = cells / n, np.zeros((2, 2))
    for at in np.ndindex(2, 2):
        step = np.zeros((2, 2))
        step[at] = 1e-6
        gradient[at] = (value(p + step) - value(p - step)) / 2e-6
    spread = float((p * gradient**2).sum() - (p * gradient).sum() ** 2)
    return value(p), math.sqrt(max(spread, 0.0) / n)
