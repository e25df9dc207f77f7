"""The numbers behind charts and tables as files hold them: one number a column, numerator and denominator beside the
value, low and high of its 95 % interval. What is missing is empty. Pure, no Streamlit, no database.

Shapes as in `server.store.reader`: N members in slot order, histories of B buckets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd

from dashboard.frames import Array, uptake_points, wilson
from dashboard.frames_training import Series
from dashboard.measures import Counts, Values, clustered
from server.store.reader import NewestTransfers, PromptVisits, RunInfo


def shares(heads: Mapping[str, Sequence[Any]], k: Array, n: Array) -> pd.DataFrame:
    """A row for each of k of n [R] with its Wilson interval, behind the columns `heads` of R entries."""
    value, low, high = wilson(k, n)
    return pd.DataFrame({**heads, "numerator": k, "denominator": n, "value": value, "low": low, "high": high})


def bounded(heads: Mapping[str, Sequence[Any]], k: Array, n: Array, bounds: Array) -> pd.DataFrame:
    """A row for each of k of n [R] with an interval of another kind, `bounds` [2, R]."""
    value, low, high = wilson(k, n)[0], bounds[0], bounds[1]
    return pd.DataFrame({**heads, "numerator": k, "denominator": n, "value": value, "low": low, "high": high})


def means(heads: Mapping[str, Sequence[Any]], numerator: Array, denominator: Array) -> pd.DataFrame:
    """A row for each numerator / denominator [R] that has no interval."""
    value = _ratio(numerator, denominator)
    return pd.DataFrame({**heads, "numerator": numerator, "denominator": denominator, "value": value})


def history(
    names: Sequence[str], edges: Sequence[int], curves: pd.DataFrame, column: str = "member", **counts: Array
) -> pd.DataFrame:
    """Frame "curves" of `charts.curves` for files: of whom, first and last step of the bucket, the counts [B, K] behind
    the value, and the value with the interval that is drawn."""
    ends = np.asarray(edges, np.int64)
    heads = {
        column: list(names) * (len(edges) - 1),
        "first_step": np.repeat(ends[:-1] + 1, len(names)),
        "last_step": np.repeat(ends[1:], len(names)),
    }
    drawn = {name: curves[name].to_numpy() for name in ("value", "low", "high")}
    return pd.DataFrame(heads | {name: np.asarray(part).ravel() for name, part in counts.items()} | drawn)


def pairs_of(names: Sequence[str]) -> tuple[dict[str, list[str]], np.ndarray]:
    """({row, column} of every pair of two members, the same as a mask [N, N])."""
    mask = ~np.eye(len(names), dtype=bool)
    rows, columns = np.nonzero(mask)
    return {"row": [names[i] for i in rows], "column": [names[j] for j in columns]}, mask


def matrix(names: Sequence[str], values: Values) -> pd.DataFrame:
    """Every pair of one matrix [N, N] with n and interval."""
    heads, mask = pairs_of(names)
    return pd.DataFrame(heads | {part: getattr(values, part)[mask] for part in ("value", "low", "high", "n")})


def matrix_history(names: Sequence[str], edges: Sequence[int], values: Values) -> pd.DataFrame:
    """Every pair of a stack of matrices [B, N, N], bucket by bucket."""
    tables = []
    for bucket in range(len(edges) - 1):
        table = matrix(names, values.at(bucket))
        table.insert(2, "first_step", edges[bucket] + 1)
        table.insert(3, "last_step", edges[bucket + 1])
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def flows(names: Sequence[str], moved: Array, name: str) -> pd.DataFrame:
    """Every pair of a receiver and a source between which something moved [N, N]."""
    rows, columns = np.nonzero(moved)
    heads = {"receiver": [names[i] for i in rows], "source": [names[j] for j in columns]}
    return pd.DataFrame(heads | {name: np.asarray(moved)[rows, columns]})


def patterns(names: Sequence[str], found: Sequence[tuple[Sequence[bool], int]], total: int) -> pd.DataFrame:
    """Every set of members that solved the same prompt, most frequent first, of `total` prompts."""
    rows = [
        {"solved_by": " + ".join(name for name, hit in zip(names, solved, strict=True) if hit)}
        | {f"solved: {name}": bool(hit) for name, hit in zip(names, solved, strict=True)}
        for solved, _ in found
    ]
    counts = np.array([count for _, count in found], np.int64)
    return shares(pd.DataFrame(rows).to_dict("list"), counts, np.full(len(counts), total))


def uptake(names: Sequence[str], edges: Mapping[str, Array], total: Mapping[str, int]) -> pd.DataFrame:
    """What receivers did at the next visit, all together and by pair: counts as `Reader.uptake` gives them, and the
    difference of the two shares with its interval, in percentage points; empty where a side has no visit."""
    heads, mask = pairs_of(names)
    counts = {name: [int(total[name]), *np.asarray(part)[mask].tolist()] for name, part in edges.items()}
    whose = {"receiver": ["all", *heads["row"]], "source": ["all", *heads["column"]]}
    table = pd.DataFrame(whose | counts)
    known = (table["grafted_seen"] > 0) & (table["held_out_seen"] > 0)
    rows = zip(table.to_dict("records"), known, strict=True)
    points = [uptake_points(row) if there else (np.nan, np.nan, np.nan) for row, there in rows]
    return table.assign(**dict(zip(("points", "low", "high"), zip(*points, strict=True), strict=True)))


def graph(members: nx.Graph) -> pd.DataFrame:
    """The pairs of `success_graph.projection`: phi of their all-fail prompts, its n, and the prompts both solved."""
    names = nx.get_node_attributes(members, "name")
    communities = nx.get_node_attributes(members, "community")
    rows = [
        (names[u], names[v], edge["phi"], edge["prompts"], edge["solved_both"], communities[u] == communities[v])
        for u, v, edge in members.edges(data=True)
    ]
    return pd.DataFrame(rows, columns=["member", "other", "phi", "n", "solved_both", "same_community"])


def visits(names: Sequence[str], prompts: Sequence[int], tried: Array, solved: Array) -> pd.DataFrame:
    """How often each member tried and solved each of some prompts [P, N]."""
    rows, columns = np.nonzero(tried)
    return pd.DataFrame(
        {
            "prompt": [prompts[i] for i in rows],
            "member": [names[j] for j in columns],
            "visits": np.asarray(tried)[rows, columns],
            "solved": np.asarray(solved)[rows, columns],
        }
    )


def prompt_visits(names: Sequence[str], prompt: int, found: PromptVisits) -> pd.DataFrame:
    """Every visit of one prompt."""
    heads = {
        "prompt": [prompt] * len(found.step),
        "step": found.step.tolist(),
        "member": [names[i] for i in found.member],
    }
    return shares(heads, found.successes, found.n).assign(errors=found.errors)


_PAIR_COUNTS = ("routed", "held_out", "grafted", "responses", "admitted", "refused_floor", "refused_other", "n_s")


def pairs(names: Sequence[str], counts: Counts, newest: NewestTransfers) -> pd.DataFrame:
    """Every (receiver, source) with a group that could have moved: its counts, and shares and means with intervals.

    Intervals of admitted responses and of s draw transferred groups whole; their spread is that of the `newest` ones
    where there are more. That of the admitted share is never inside Wilson's: groups that are all alike would leave no
    width at all.
    """
    size = len(names)
    admission, spread = (
        clustered(newest, part, total, counts[count], size)
        for part, total, count in (
            (newest.admitted, newest.responses, "responses"),
            (newest.sum_s, newest.n_s, "n_s"),
        )
    )
    fails = np.asarray(counts["both_attempted_fail"])
    chosen = ((fails > 0) | (np.asarray(counts["routed"]) > 0)) & ~np.eye(size, dtype=bool)
    rows, columns = np.nonzero(chosen)
    own = {name: np.asarray(counts[name])[chosen] for name in _PAIR_COUNTS}
    solved, solved_low, solved_high = wilson(np.asarray(counts["solved"])[chosen], fails[chosen])
    share, low, high = wilson(own["admitted"], own["responses"])
    half = admission[chosen]
    mean_s = _ratio(np.asarray(counts["sum_s"])[chosen], own["n_s"])
    return pd.DataFrame(
        {
            "receiver": [names[i] for i in rows],
            "source": [names[j] for j in columns],
            "all_fail": fails[chosen],
            "solved": np.asarray(counts["solved"])[chosen],
            "solved_share": solved,
            "solved_low": solved_low,
            "solved_high": solved_high,
            **own,
            "admitted_share": share,
            "admitted_low": np.where(np.isfinite(half), np.maximum(0.0, np.fmin(low, share - half)), low),
            "admitted_high": np.where(np.isfinite(half), np.minimum(1.0, np.fmax(high, share + half)), high),
            "mean_s": mean_s,
            "mean_s_low": np.maximum(0.0, mean_s - spread[chosen]),
            "mean_s_high": mean_s + spread[chosen],
            "mean_weight": _ratio(np.asarray(counts["sum_w"])[chosen], own["admitted"]),
        }
    )


def _ratio(numerator: Array, denominator: Array) -> np.ndarray:
    """numerator / denominator [R]; NaN over 0."""
    top, bottom = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    return np.divide(top, bottom, out=np.full(len(top), np.nan), where=bottom > 0)


def pooled(names: Sequence[str], edges: Sequence[int], series: Series) -> pd.DataFrame:
    """A metric in every bucket of steps: its pooled mean, and its smallest and largest single step where these were
    read; both are the mean where every bucket is one step."""
    value = series.value
    low, high = (series.low, series.high) if max(np.diff(edges)) > 1 else (value, value)
    unread = np.full(value.shape, np.nan)
    curves = pd.DataFrame({"value": value.ravel(), "low": np.nan, "high": np.nan})
    table = history(names, edges, curves, numerator=series.numerator, denominator=series.denominator)
    steps = {"smallest_step": low, "largest_step": high}
    return table.drop(columns=["low", "high"]).assign(
        **{name: (unread if part is None else part).ravel() for name, part in steps.items()}
    )


def clipped(
    names: Sequence[str], slots: Sequence[int], counts: Mapping[tuple[str, int], tuple[Array, Array]]
) -> pd.DataFrame:
    """Clipped of all tokens by member, origin and place of the minibatch, from 1; no interval: tokens of one response
    are not independent."""
    chosen, rows = list(slots), []
    for (kind, place), (numerator, denominator) in counts.items():
        table = means({"member": [names[slot] for slot in chosen]}, numerator[chosen], denominator[chosen])
        rows.append(table.assign(tokens=kind, minibatch=place + 1))
    return pd.concat(rows, ignore_index=True)


def metrics(names: Sequence[str], slots: Sequence[int], totals: Mapping[str, tuple[Array, Array]]) -> pd.DataFrame:
    """Some metrics over the window by member."""
    chosen = list(slots)
    rows = [
        means({"member": [names[slot] for slot in chosen], "metric": name}, numerator[chosen], denominator[chosen])
        for name, (numerator, denominator) in totals.items()
    ]
    return pd.concat(rows, ignore_index=True)


def seconds(names: Sequence[str], slots: Sequence[int], totals: Mapping[str, Array]) -> pd.DataFrame:
    """Seconds of every member by activity, and their share of all of its seconds."""
    rows = [
        {"member": names[slot], "activity": name, "seconds": float(part[slot])}
        for slot in slots
        for name, part in totals.items()
    ]
    table = pd.DataFrame(rows)
    return table.assign(share=_ratio(table["seconds"], table.groupby("member")["seconds"].transform("sum")))


def runs(infos: Sequence[RunInfo]) -> pd.DataFrame:
    """Runs without their configuration; moments in seconds since the epoch."""
    names = ("uid", "name", "method", "seed", "status", "message", "created", "heartbeat", "first_step", "last_step")
    return pd.DataFrame(
        [
            {name: getattr(info, name) for name in names}
            | {"total_steps": info.total_steps, "members": len(info.members)}
            for info in infos
        ]
    )


def member_figures(
    names: Sequence[str],
    slots: Sequence[int],
    counts: Mapping[str, Array],
    totals: Mapping[str, tuple[Array, Array]],
    accuracy: Array,
    all_fail: Array,
) -> pd.DataFrame:
    """Accuracy and all-fail rate of some members with their intervals [2, N], and metrics over the window."""
    chosen = list(slots)
    heads = {"member": [names[slot] for slot in chosen]}
    figures = (("accuracy", "successes", "rollouts", accuracy), ("all_fail", "all_fail", "groups", all_fail))
    rows = [
        bounded(heads, counts[k][chosen], counts[n][chosen], bounds[:, chosen]).assign(metric=name)
        for name, k, n, bounds in figures
    ]
    return pd.concat([*rows, metrics(names, slots, totals)], ignore_index=True)
