"""Colours of the charts, one set for each theme. A member keeps its colour everywhere: it belongs to its slot."""

from __future__ import annotations

from dataclasses import dataclass

# Past this many members colours repeat and the line gets dashes.
DASHES: tuple[tuple[int, ...], ...] = ((1, 0), (6, 3), (2, 2), (8, 2, 2, 2))
# What pictures in files are written in: vl-convert has it, and Arial is as wide.
FILE_FONT = "Liberation Sans, Arial, Helvetica, Arimo, Nimbus Sans, sans-serif"


@dataclass(frozen=True, slots=True)
class Inks:
    """Every colour a chart needs. `members` is Okabe and Ito's colour-blind-safe order, the light ones darkened
    until they stand out from white, `ramp` is even in CIELAB lightness from the background (0) to the far end (1),
    `ramp_below` the same in lightness for values below 0, `flip` the share from which a cell's text takes `on_far`."""

    background: str
    ink: str
    muted: str
    faint: str
    grid: str
    accent: str
    ring: str
    bad: str
    members: tuple[str, ...]
    ramp: tuple[str, ...]
    ramp_below: tuple[str, ...]
    on_near: str
    on_far: str
    flip: float


LIGHT = Inks(
    background="#FFFFFF",
    ink="#1B2430",
    muted="#5D6979",
    faint="#DDE3EA",
    grid="#E6EBF1",
    accent="#1F6AAE",
    ring="#D55E00",
    bad="#B4500A",
    members=("#0072B2", "#C17B00", "#009E73", "#CC79A7", "#3A95D0", "#D55E00", "#7F7F7F", "#948400"),
    ramp=("#F3F6FA", "#CCDFF0", "#A4C8E6", "#80B0DB", "#5999CF", "#3E80BE", "#1E68AC", "#15528E", "#0B3C71"),
    ramp_below=("#F3F6FA", "#F4D7C8", "#EAB99F", "#DC9D7A", "#CC8257", "#B76839", "#A14F1B", "#833C0E", "#662A01"),
    on_near="#000000",
    on_far="#FFFFFF",
    flip=0.66,
)

DARK = Inks(
    background="#0F141B",
    ink="#E4E9F0",
    muted="#93A1B3",
    faint="#2A3442",
    grid="#222B37",
    accent="#5AA9E6",
    ring="#F0B341",
    bad="#F09A5A",
    members=("#4C9FDB", "#F0B341", "#2FBF8F", "#E39AC4", "#8ED0F5", "#F07A3A", "#A8A8A8", "#D9C93B"),
    ramp=("#18212D", "#1E3657", "#1D4D84", "#2866A4", "#3581C4", "#5E9BD6", "#80B6E7", "#ACD1F2", "#D8EBFB"),
    ramp_below=("#18212D", "#532B13", "#7B3A10", "#9B4F21", "#BB6734", "#D28356", "#E7A179", "#F6C2A6", "#FEE3D6"),
    on_near="#FFFFFF",
    on_far="#000000",
    flip=0.46,
)


def inks(theme: str | None) -> Inks:
    """The colours of a theme; light unless it is "dark"."""
    return DARK if theme == "dark" else LIGHT


def member_colour(colours: Inks, slot: int) -> str:
    """The colour of the member in this slot (0, 1, ...); repeats after the list's length."""
    return colours.members[slot % len(colours.members)]


def member_dash(slot: int, colours: Inks = LIGHT) -> list[int]:
    """The line's dash pattern: solid for the first members, another one each time the colours start again."""
    return list(DASHES[slot // len(colours.members) % len(DASHES)])
