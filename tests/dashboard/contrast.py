"""Contrast of colours as WCAG 2 defines it."""

from __future__ import annotations

from collections.abc import Sequence


def luminance(colour: str) -> float:
    """Relative luminance of "#rrggbb"."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """1 (the same) to 21 (black on white)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def on_ramp(ramp: Sequence[str], share: float) -> str:
    """The colour of a share from 0 to 1 on a ramp, mixed as Vega does, in RGB."""
    at = share * (len(ramp) - 1)
    left = min(int(at), len(ramp) - 2)
    mixed = [
        round(
            int(ramp[left][place : place + 2], 16) * (1 - (at - left))
            + int(ramp[left + 1][place : place + 2], 16) * (at - left)
        )
        for place in (1, 3, 5)
    ]
    return "#" + "".join(f"{part:02X}" for part in mixed)
