"""Chart specifications: pure, serialisable, free of data, readable in both themes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dashboard import charts, charts_population, frames, frames_population, health_charts
from dashboard.measures import MEASURES
from dashboard.palette import DARK, LIGHT, Inks, inks, member_colour, member_dash

NAMES = ["Qwen3-1.7B", "a.b[c]'\"", "<img src=x onerror=alert(1)>"]


UPTAKE = ("grafted_seen", "grafted_solved", "held_out_seen", "held_out_solved")


def specs(colours: Inks, names: list[str]) -> dict[str, charts.Spec]:
    slots = list(range(len(names)))
    return {
        "curves": charts.curves(names, colours, quantity="accuracy"),
        "history": charts.curves(names, colours, quantity="solved", slots=slots, means=True),
        **{f"matrix {one.key}": charts_population.matrix(names, colours, one, height=400) for one in MEASURES},
        "multiples": charts_population.multiples(len(names), 2, colours, MEASURES[-1]),
        "patterns": charts_population.success_patterns(names, colours),
        "before_after": charts.before_after(names, colours, slots),
        "gate": charts.gate_strip(colours),
        "uptake": health_charts.uptake(colours, len(names)),
    }


def walk(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from walk(value)


@pytest.mark.parametrize("colours", [LIGHT, DARK])
@pytest.mark.parametrize("members", [1, 3, 12])
def test_specifications_are_plain_json_without_data_or_addresses(colours: Inks, members: int) -> None:
    for spec in specs(colours, [f"member {i}" for i in range(members)]).values():
        assert json.loads(json.dumps(spec)) == spec
        nodes = list(walk(spec))
        assert not [node for node in nodes if "values" in node.get("data", {}) or "url" in node or "href" in node]


def test_the_same_names_and_theme_give_the_same_specification() -> None:
    assert specs(LIGHT, NAMES) == specs(LIGHT, NAMES)


def data_columns() -> dict[str, dict[str, pd.DataFrame]]:
    edges = [0, 1, 2, 3]
    ones = np.ones((3, 3), dtype=np.int64)
    curves, hover = frames.rate_curves(NAMES, edges, ones, 2 * ones)
    patterns = frames_population.pattern_frames(NAMES, [((True, True, False), 2)], 4)
    empty_gate = {
        "responses": pd.DataFrame(columns=["index", "s", "lift", "verdict", "answer", "detail"]),
        "floor": pd.DataFrame(columns=["floor", "text"]),
    }
    scores = pd.DataFrame(columns=["member", "when", "value", "low", "high", "detail"])
    means = frames.mean_lines(NAMES, ones[0] / 2)
    counts = {name: ones for name in UPTAKE}
    values, stack = (
        MEASURES[0].read({"solved": part, "both_attempted_fail": 2 * part}) for part in (ones, np.stack([ones, ones]))
    )
    uptake, _ = frames.uptake_rows(NAMES, counts, dict.fromkeys(UPTAKE, 1), 12)
    return {
        "curves": {"curves": curves, "hover": hover},
        "history": {"curves": curves, "hover": hover, "means": means},
        "matrix complementarity": {"cells": frames_population.matrix_cells(NAMES, MEASURES[0], values, (0, 1))},
        "multiples": frames_population.tile_frames(NAMES, MEASURES[0], stack, [0, 1, 2]),
        "patterns": patterns,
        "before_after": {"scores": scores},
        "gate": empty_gate,
        "uptake": {"uptake": uptake},
    }


def fields_by_frame(node: Any, frame: str = "") -> Iterator[tuple[str, str]]:
    """(frame, field) of every encoding, the frame being the nearest one named above it."""
    if isinstance(node, list):
        for value in node:
            yield from fields_by_frame(value, frame)
    if not isinstance(node, dict):
        return
    frame = node.get("data", {}).get("name", frame) if isinstance(node.get("data"), dict) else frame
    if isinstance(node.get("field"), str) and frame:
        yield frame, node["field"]
    for value in node.values():
        yield from fields_by_frame(value, frame)


@pytest.mark.parametrize(
    "kind", ["curves", "history", "matrix complementarity", "multiples", "patterns", "before_after", "gate", "uptake"]
)
def test_every_field_a_chart_reads_is_a_column_of_its_frame(kind: str) -> None:
    columns = {name: set(frame.columns) for name, frame in data_columns()[kind].items()}
    used = set(fields_by_frame(specs(LIGHT, NAMES)[kind]))
    assert used
    assert {frame for frame, _ in used} == set(columns)
    assert not {(frame, field) for frame, field in used if field not in columns[frame]}


def test_a_member_keeps_its_colour_when_others_are_left_out() -> None:
    alone = charts.member_scale(["c"], LIGHT, [2])
    assert alone["scale"]["range"] == [LIGHT.members[2]]


def test_past_the_last_colour_lines_are_told_apart_by_dashes() -> None:
    looks = {(member_colour(LIGHT, slot), tuple(member_dash(slot))) for slot in range(24)}
    assert len(looks) == 24
    assert "strokeDash" not in json.dumps(charts.curves(NAMES, LIGHT, quantity="x")).replace('"strokeDash": [', "")
    assert '"strokeDash": {' in json.dumps(charts.curves([str(i) for i in range(9)], LIGHT, quantity="x"))


def test_the_history_leaves_no_legend_entry_for_the_row_itself() -> None:
    spec = charts.curves(["a", "c"], LIGHT, quantity="x", slots=[0, 2])
    domains = [node["scale"]["domain"] for node in walk(spec) if node.get("field") == "member"]
    assert domains
    assert all(domain == ["a", "c"] for domain in domains)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def ramp_colour(colours: Inks, share: float) -> str:
    at = share * (len(colours.ramp) - 1)
    low = min(int(at), len(colours.ramp) - 2)
    ends = [[int(colours.ramp[low + step][i : i + 2], 16) for i in (1, 3, 5)] for step in (0, 1)]
    return "#" + "".join(f"{round(a + (b - a) * (at - low)):02X}" for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("colours", [LIGHT, DARK])
def test_the_ramp_is_even_and_its_text_readable_at_every_share(colours: Inks) -> None:
    lightness = [luminance(stop) for stop in colours.ramp]
    assert lightness in (sorted(lightness), sorted(lightness, reverse=True))
    for share in np.linspace(0, 1, 101):
        ink = colours.on_far if share >= colours.flip else colours.on_near
        assert contrast(ink, ramp_colour(colours, float(share))) > 3.8


@pytest.mark.parametrize("colours", [LIGHT, DARK])
def test_text_and_lines_stand_out_from_the_background(colours: Inks) -> None:
    assert contrast(colours.ink, colours.background) > 10
    assert contrast(colours.muted, colours.background) > 4.5
    assert min(contrast(line, colours.background) for line in colours.members) > 1.9
    assert contrast(colours.ring, colours.background) > 3


def test_an_unknown_theme_is_light() -> None:
    assert inks("dark") is DARK
    assert inks(None) is inks("light") is LIGHT
