"""How numbers, times and names are written. Missing is "–", never 0; not a number is "NaN", never hidden."""

from __future__ import annotations

import math
import time
import unicodedata
from collections.abc import Sequence

from graft.complementarity import wilson_interval

MISSING = "–"
_NBSP = "\u00a0"
_MINUS = "−"
_ELLIPSIS = "…"
_MOST_DIGITS = 4
# Characters that reorder or hide text, so that a name could pass for another one.
_BIDI = frozenset("\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff")


def count(value: float | None) -> str:
    """13779 -> "13,779"."""
    if value is None:
        return MISSING
    return "NaN" if math.isnan(value) else f"{round(value):,}".replace("-", _MINUS)


def counted(value: float | None, one: str, several: str = "") -> str:
    """A count with its noun: "1 run", "2 runs"; `several` where its plural is another word."""
    return f"{count(value)} {one if value == 1 else several or one + 's'}"


def compact(value: float) -> str:
    """A count in at most four characters: 950, 1.5k, 15k, 2.1M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * limit:
            scaled = value / limit
            return f"{scaled:.1f}{unit}" if scaled < 9.95 else f"{scaled:.0f}{unit}"
    return f"{round(value)}"


def number(value: float | None, digits: int = 3) -> str:
    """A plain number with fixed digits and a true minus."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else f"{_MINUS}∞")
    return f"{value:,.{digits}f}".replace("-", _MINUS)


def short(value: float, digits: int = 3) -> str:
    """A number of any size with its leading digits and a true minus: "0.0123", "−3.27e−09"."""
    return f"{value:.{digits}g}".replace("-", _MINUS)


def signed(value: float | None, digits: int = 2) -> str:
    """An advantage: its sign is always written, except for 0."""
    if value is None or not math.isfinite(value):
        return number(value, digits)
    if round(value, digits) == 0:
        return "0"
    return ("+" if value > 0 else _MINUS) + f"{abs(value):,.{digits}f}"


def percent(share: float | None, digits: int = 1) -> str:
    """0.372 -> "37.2 %"."""
    if share is None:
        return MISSING
    return number(100 * share, digits) + (f"{_NBSP}%" if math.isfinite(share) else "")


def rate(k: float, n: float, digits: int = 1) -> str:
    """k of n as a percentage; "–" when n is 0. Small shares keep two leading digits, so 0.042 % is not 0.0 %."""
    if n == 0:
        return MISSING
    share = k / n
    if 0 < share < 0.5 * 10**-_MOST_DIGITS / 100:
        return f"<{percent(10**-_MOST_DIGITS / 100, _MOST_DIGITS)}"
    return percent(share, _digits(share, digits))


def _digits(share: float, least: int) -> int:
    """Places that show two leading digits of a share under 1 %."""
    if not 0 < abs(share) < 0.01:
        return least
    return max(least, min(_MOST_DIGITS, 1 - math.floor(math.log10(abs(100 * share)))))


def interval(k: float, n: float, digits: int = 1) -> str:
    """The Wilson 95 % interval of k of n: "36.5–37.9 %"; "–" when n is 0. Small bounds keep two leading digits."""
    if n == 0:
        return MISSING
    return bounds(*wilson_interval(int(k), int(n)), digits)


def bounds(low: float, high: float, digits: int = 1) -> str:
    """The interval of a share: "36.5–37.9 %"; "–" where it is not known. Small bounds keep two leading digits."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return MISSING
    return span(low, high, _digits(high, digits))


def rate_interval(k: float, n: float) -> str:
    """ "37.2 % (36.5–37.9 %)"; "–" when n is 0."""
    return f"{rate(k, n)} ({interval(k, n)})" if n else MISSING


def span(low: float, high: float, digits: int = 1) -> str:
    """Two shares as one range in percent."""
    return f"{number(100 * low, digits)}–{percent(high, digits)}"


def of(k: float, n: float, unit: str, several: str = "") -> str:
    """ "47,597 of 88,497 groups", "0 of 1 group"; "no groups" when n is 0. `unit` is one of them, as in `counted`."""
    return f"{count(k)} of {counted(n, unit, several)}" if n else f"no {several or unit + 's'}"


def duration(seconds: float | None) -> str:
    """A time span in its largest useful unit: "44 s", "6 min", "1.5 h", "2.1 d"."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    seconds = max(0.0, seconds)
    if seconds < 59.5:
        return f"{seconds:.0f}{_NBSP}s"
    if seconds < 3570:
        return f"{seconds / 60:.0f}{_NBSP}min"
    if seconds < 86_400:
        return f"{seconds / 3600:.1f}{_NBSP}h"
    return f"{seconds / 86_400:.1f}{_NBSP}d"


def ago(moment: float | None, now: float | None = None) -> str:
    """How long ago a moment (seconds since the epoch) was; "–" when it never was."""
    if moment is None:
        return MISSING
    return f"{duration((time.time() if now is None else now) - moment)} ago"


def moment(seconds: float | None, now: float | None = None) -> str:
    """A moment (seconds since the epoch) as local time, with its date unless it is today; "–" when it never was."""
    if seconds is None:
        return MISSING
    then, today = time.localtime(seconds), time.localtime(now)
    same_day = then[:3] == today[:3]
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S", then)


def steps(first: int, last: int) -> str:
    """A range of steps: "steps 1–441", or "step 7"."""
    return f"step {count(first)}" if first == last else f"steps {count(first)}–{count(last)}"


def clean(text: str, limit: int = 200) -> str:
    """A name on one line: control, hidden and text-reordering characters become "�", length is bounded."""
    if len(text) > 20 * limit:
        # Its middle would be cut anyway.
        text = text[: 10 * limit] + text[-10 * limit :]
    shown = "".join(
        "�" if character in _BIDI or unicodedata.category(character) in {"Cc", "Cs", "Co"} else character
        for character in " ".join(text.split())
    )
    return shorten(shown, limit) or "(no name)"


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters; the middle goes, because model names differ at both ends."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return text[: limit - 1 - tail] + _ELLIPSIS + (text[-tail:] if tail else "")


def abbreviate(names: Sequence[str], limit: int = 16) -> list[str]:
    """Short and distinct labels in the given order.

    Without the owner ("Qwen/Qwen3-1.7B" -> "Qwen3-1.7B") where that keeps them apart, then shortened in the middle,
    then numbered where two are still alike.
    """
    cleaned = [clean(name) for name in names]
    bare = [name.rstrip("/").rsplit("/", 1)[-1] or name for name in cleaned]
    base = bare if len(set(bare)) == len(set(cleaned)) else cleaned
    return distinct(base, limit)


def distinct(names: Sequence[str], limit: int) -> list[str]:
    """Clean labels in the given order, shortened in the middle and numbered where two are alike."""
    base = [clean(name) for name in names]
    labels = [shorten(name, limit) for name in base]
    for slot, label in enumerate(labels):
        if label in labels[:slot]:
            mark = f"·{slot + 1}"
            labels[slot] = shorten(base[slot], max(1, limit - len(mark))) + mark
    return labels
