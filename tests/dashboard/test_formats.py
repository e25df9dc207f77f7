"""How numbers, times and names are written."""

from __future__ import annotations

import math

import pytest

from dashboard import formats


def test_a_rate_without_cases_is_a_dash_and_never_zero() -> None:
    assert formats.rate(0, 0) == "–"
    assert formats.interval(0, 0) == "–"
    assert formats.rate_interval(0, 0) == "–"
    assert formats.of(0, 0, "group") == "no groups"
    assert formats.rate(0, 8) == "0.0\u00a0%"


def test_numbers_of_any_size_have_a_true_minus() -> None:
    assert formats.short(-3.2714e-9) == "−3.27e−09"
    assert formats.short(0.012345) == "0.0123"


def test_one_is_singular() -> None:
    assert formats.counted(1, "run") == "1 run"
    assert formats.counted(2_000, "run") == "2,000 runs"
    assert formats.counted(0, "community", "communities") == "0 communities"
    assert formats.of(0, 1, "group") == "0 of 1 group"


@pytest.mark.parametrize(
    ("k", "n", "text"),
    [
        (372, 1000, "37.2\u00a0%"),
        (42, 100_000, "0.042\u00a0%"),
        (1, 1_000_000, "0.0001\u00a0%"),
        (1, 1, "100.0\u00a0%"),
    ],
)
def test_small_shares_keep_their_leading_digits(k: int, n: int, text: str) -> None:
    assert formats.rate(k, n) == text


def test_the_interval_is_wilsons() -> None:
    assert formats.interval(7560, 20_317) == "36.5–37.9\u00a0%"
    assert formats.interval(0, 10) == "0.0–27.8\u00a0%"
    assert formats.rate_interval(5, 10) == "50.0\u00a0% (23.7–76.3\u00a0%)"


def test_small_rates_and_their_intervals_are_not_rounded_to_nothing() -> None:
    assert formats.rate(1, 10**7) == "<0.0001\u00a0%"
    assert formats.interval(1, 100_000) == "0.0002–0.0057\u00a0%"
    assert formats.interval(0, 100_000) == "0.0000–0.0038\u00a0%"


def test_missing_and_not_a_number_are_different_words() -> None:
    assert formats.number(None) == "–"
    assert formats.number(math.nan) == "NaN"
    assert formats.number(-math.inf) == "−∞"
    assert formats.percent(math.nan) == "NaN"
    assert formats.count(math.nan) == "NaN"


@pytest.mark.parametrize(
    ("value", "text"), [(2.4748, "+2.47"), (-0.3535, "−0.35"), (0.0, "0"), (-0.0001, "0"), (math.nan, "NaN")]
)
def test_advantages_carry_their_sign(value: float, text: str) -> None:
    assert formats.signed(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (950, "950"), (1_500, "1.5k"), (15_040, "15k"), (999_600, "1.0M"), (2_100_000, "2.1M")],
)
def test_compact_counts_fit_a_cell(value: int, text: str) -> None:
    assert formats.compact(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (44.4, "44 s"), (59.7, "1 min"), (360, "6 min"), (5400, "1.5 h"), (181_440, "2.1 d")],
)
def test_durations_use_their_largest_useful_unit(seconds: float, text: str) -> None:
    assert formats.duration(seconds) == text.replace(" ", "\u00a0")


def test_ages_are_counted_from_now() -> None:
    assert formats.ago(100.0, now=144.0) == "44\u00a0s ago"
    assert formats.ago(None) == "–"
    assert formats.duration(None) == formats.duration(math.inf) == "–"


def test_step_ranges() -> None:
    assert formats.steps(1, 1441) == "steps 1–1,441"
    assert formats.steps(7, 7) == "step 7"


def test_names_lose_what_could_disguise_them() -> None:
    assert formats.clean("a\nb\t c") == "a b c"
    assert formats.clean("evil\u202egnp.exe\x00") == "evil�gnp.exe�"
    assert formats.clean("  ") == "(no name)"
    assert len(formats.clean("x" * 5000)) == 200


def test_labels_are_short_distinct_and_keep_both_ends() -> None:
    assert formats.abbreviate(["Qwen/Qwen3-1.7B", "HuggingFaceTB/SmolLM3-3B"]) == ["Qwen3-1.7B", "SmolLM3-3B"]
    assert formats.abbreviate(["a/model", "b/model"]) == ["a/model", "b/model"]
    assert formats.abbreviate(["OctoThinker-3B-Hybrid-Base"], 14) == ["OctoThi…d-Base"]
    long = ["x" * 99 + end for end in ("a", "b", "b/c", "b")] + ["x" * 200]
    labels = formats.abbreviate(long, 12)
    assert len(set(labels)) == len(long)
    assert all(len(label) <= 12 for label in labels)


def test_labels_of_names_that_clean_up_to_the_same_text_stay_distinct() -> None:
    labels = formats.abbreviate(["a\u202e", "a\u202d", "a\n", "a", "·4"], 16)
    assert len(set(labels)) == 5
