"""Text and ink stand out from what they lie on, in both themes: 4.5 to 1 for text, 3 to 1 for what is drawn."""

from __future__ import annotations

import tomllib

import pytest

from dashboard.launch import ENTRY
from dashboard.palette import DARK, LIGHT, Inks
from tests.dashboard.contrast import contrast, on_ramp

THEME = tomllib.loads((ENTRY.parents[1] / "theme.toml").read_text("utf-8"))["theme"]
THEMES = [pytest.param(LIGHT, THEME["light"], id="light"), pytest.param(DARK, THEME["dark"], id="dark")]


def test_the_measure_is_wcag2s() -> None:
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)
    assert on_ramp(("#000000", "#FFFFFF"), 0.5) == "#808080"


@pytest.mark.parametrize(("inks", "theme"), THEMES)
def test_text_can_be_read_on_every_ground(inks: Inks, theme: dict[str, str]) -> None:
    grounds = [theme[name] for name in ("backgroundColor", "secondaryBackgroundColor", "codeBackgroundColor")]
    grounds += [theme["dataframeHeaderBackgroundColor"], theme["sidebar"]["backgroundColor"]]
    assert inks.background == theme["backgroundColor"]
    for ground in grounds:
        for ink in (inks.ink, theme["textColor"], theme["grayTextColor"], theme["linkColor"]):
            assert contrast(ink, ground) >= 4.5, (ink, ground)
    assert contrast(theme["grayTextColor"], theme["grayBackgroundColor"]) >= 4.5
    assert contrast(inks.muted, inks.background) >= 4.5


@pytest.mark.parametrize(("inks", "theme"), THEMES)
def test_what_is_drawn_stands_out(inks: Inks, theme: dict[str, str]) -> None:
    for ink in (*inks.members, inks.accent, inks.ring, inks.bad, inks.muted):
        assert contrast(ink, inks.background) >= 3, ink
    assert contrast(theme["primaryColor"], theme["sidebar"]["backgroundColor"]) >= 3
    assert len(set(inks.members)) == len(inks.members)


@pytest.mark.parametrize(("inks", "theme"), THEMES)
def test_the_text_of_a_cell_can_be_read_at_every_share(inks: Inks, theme: dict[str, str]) -> None:
    for percent in range(101):
        share = percent / 100
        text = inks.on_far if share >= inks.flip else inks.on_near
        assert contrast(text, on_ramp(inks.ramp, share)) >= 4.5, share
