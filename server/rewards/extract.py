r"""Finding the final answer in a response, and writing it in one spelling.

The last `\boxed{}` or `\fbox{}` is the answer. A box that is cut off is no answer, whatever came before it: a truncated
response must not be paid for an earlier guess. Without a box, "the answer is ..." or a bold last word near the end
counts.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

MAX_ANSWER_CHARACTERS = 400
TAIL_CHARACTERS = 600

_BOX = re.compile(r"\\f?box(?:ed)?(?![A-Za-z])")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"\s+([^\s${}\\.,;]+)")
_ANSWER_IS = re.compile(
    r"\b(?:final\s+)?answer\b\s*(?:\*\*)?\s*(?:\bis\b\s*:?|[:=])\s*(?:\*\*)?\s*:?\s*",
    re.IGNORECASE,
)
_MATH_SPAN = re.compile(r"\s*(?:\*\*)?\s*(?:\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\])", re.DOTALL)
# $1$ or $2$: the answer is both.
_ANOTHER = re.compile(r",? (?:or|and) (?:\$|\\\()")
_BOLD_SPAN = re.compile(r"\s*\*\*([^*\n]+)\*\*")
_SENTENCE_END = re.compile(r"\n|[.!?](?=\s|\*|$)|\*\*")
_BOLD_END = re.compile(r"\*\*([^*\n]{1,80})\*\*[\s.!]*$")


def find_answer(response: str) -> str | None:
    """The final answer as written in `response`, or None where there is none (also: where its box is cut off)."""
    starts = list(_BOX.finditer(response)) if "box" in response else []
    if starts:
        return _last_box(response, starts)
    tail = response[-TAIL_CHARACTERS:]
    answer = _after_marker(tail)
    if answer is None and (bold := _BOLD_END.search(tail)):
        answer = bold.group(1)
    return (answer or "").strip().rstrip(".").strip() or None


def _last_box(response: str, starts: list[re.Match[str]]) -> str | None:
    content = _box_content(response, starts[-1].end())
    if content is None:
        return None
    answer, last = content, starts[-1].start()
    # A box inside a box: the outer one is the answer.
    for outer in reversed(starts[-5:-1]):
        enclosing = _box_content(response, outer.end())
        if enclosing is not None and outer.end() + len(enclosing) > last:
            answer = enclosing
    return answer.strip() or None


def _box_content(text: str, position: int) -> str | None:
    """What stands between the braces that open at `position`; None where they do not close."""
    opening = position
    while opening < len(text) and text[opening] in " \t\n":
        opening += 1
    if opening == len(text) or text[opening] != "{":
        bare = _BARE_BOX.match(text, position)
        return bare.group(1) if bare else None
    depth = 0
    for match in _BRACES.finditer(text, opening):
        if match.group() == "{":
            depth += 1
        elif match.group() == "}":
            depth -= 1
            if depth == 0:
                return text[opening + 1 : match.start()]
    return None


def _after_marker(tail: str) -> str | None:
    """What follows the last "answer is" or "answer:" in `tail`: a formula, a bold word, or the rest of the sentence."""
    markers = list(_ANSWER_IS.finditer(tail))
    if not markers:
        return None
    rest = tail[markers[-1].end() :]
    formula = _MATH_SPAN.match(rest)
    if formula and not _ANOTHER.match(rest, formula.end()):
        return next(group for group in formula.groups() if group is not None)
    if bold := _BOLD_SPAN.match(rest):
        return bold.group(1)
    end = _SENTENCE_END.search(rest)
    return rest[: end.start()] if end else rest


_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_RUNS = re.compile(f"([{''.join(_SUPERSCRIPTS)}]+)|([{''.join(_SUBSCRIPTS)}]+)")
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+(?:\.\d+)?|[A-Za-z]))")
_SYMBOLS = {
    **dict.fromkeys("−–—‐‑", "-"),  # noqa: RUF001
    "×": r"\times ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "÷": r"\div ",
    "±": r"\pm ",
    "π": r"\pi ",
    "∞": r"\infty ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "∪": r"\cup ",  # noqa: RUF001
    "∩": r"\cap ",
    "∈": r"\in ",
    "∅": r"\emptyset ",
    "°": r"^\circ ",
    "ℝ": r"\mathbb{R}",  # noqa: RUF001
    "θ": r"\theta ",
    "α": r"\alpha ",
    "β": r"\beta ",
    "γ": r"\gamma ",
    "λ": r"\lambda ",
    "μ": r"\mu ",
    "φ": r"\phi ",
    "ω": r"\omega ",
    "…": r"\ldots ",
    "“": '"',
    "”": '"',
    "’": "'",
    "½": r"\frac{1}{2}",
    "⅓": r"\frac{1}{3}",
    "⅔": r"\frac{2}{3}",
    "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}",
}
_TRANSLATION = str.maketrans(_SYMBOLS)


def _ascii_maths(text: str) -> str:
    """Unicode mathematics as LaTeX: √2, x², 3 × 4, ½, full-width digits."""
    text = _ROOT.sub(lambda m: rf"\sqrt{{{m[1] or m[2] or m[3]}}}", text)
    text = _RUNS.sub(
        lambda m: (
            "^{" + "".join(_SUPERSCRIPTS[c] for c in m[1]) + "}"
            if m[1]
            else "_{" + "".join(_SUBSCRIPTS[c] for c in m[2]) + "}"
        ),
        text,
    )
    return unicodedata.normalize("NFKC", text.translate(_TRANSLATION))


# Applied in this order; each pair is (pattern, replacement).
_SPELLINGS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:left|right)\s*\.", ""),
        (r"\\(?:left|right|big|Big|bigg|Bigg|displaystyle)(?![A-Za-z])", ""),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\(?:text(?:rm|bf|it|sf|tt|normal)|mathrm|mathbf|mathit|mbox|operatorname)\s*(?=\{)", r"\\text"),
        # A doubled backslash ends the row of a matrix; what stands behind it is no command.
        (r"\\\\\s*(?:\[-?[\d.]+ ?[a-z]{2}\])?\s*", r"\\\\"),
        (r"(?<!\\)\\[()\[\]]|\\?\$|[€£]", ""),
        (r"(?<=\d)(?:\\[,;:! ]|~)(?=\d{3}(?!\d))", ""),
        (r"(?<!\\)\\!", ""),
        (r"(?<!\\)\\[,;: ]|\\q?quad(?![A-Za-z])|~", " "),
        # 2e3 and 1.5e-3 as programs print them; 2e-3 stays a difference.
        (r"(?<![\w.])(\d+(?:\.\d+)?)e0*(\d{1,3})(?![\w.]| ?_)", r"\1\\times 10^{\2}"),
        (r"(?<![\w.])(1|\d+\.\d+)e\+?(-?)0*(\d{1,3})(?![\w.]| ?_)", r"\1\\times 10^{\2\3}"),
        (r"\{,\}", ","),
        (r"(?<!\\)%", r"\\%"),
        (r"\*\*", "^"),
        (r"\^\s*\{?\s*\\circ(?![A-Za-z])\s*\}?", r"^\\circ"),
        (r"\\(le|ge|ne)q(?![A-Za-z])", r"\\\1"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"(?<![\d.,])\.(?=\d)", "0."),
        (r"(?<![\d.])(\d+)\.0+(?![\d.])", r"\1"),
        (r"(?<![\d.])(\d+\.\d*?[1-9])0+(?![\d.])", r"\1"),
        (r"\s+", " "),
    )
)
_WHOLE_TEXT = re.compile(r"\\text\{([^{}]*)\}")


@lru_cache(maxsize=65536)
def normalise(answer: str) -> str:
    """`answer` in one spelling, still readable by a LaTeX parser; the empty string where nothing is left."""
    if answer.isascii() and (answer.isdigit() or answer.isalpha()):
        return answer
    text = answer if answer.isascii() else _ascii_maths(answer)
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    text = text.strip()
    if not text.endswith("..."):
        text = text.rstrip(".,;:").strip()
    if whole := _WHOLE_TEXT.fullmatch(text):
        text = whole[1].strip()
    while text.startswith("{") and _box_content(text, 0) == text[1:-1]:
        text = text[1:-1].strip()
    return text


_LOOSE_SPACE = re.compile(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])")
_SINGLE_BRACES = re.compile(r"(?<=[\^_])\{([A-Za-z0-9])\}")


def canonical(normalised: str) -> str:
    """The key of exact match: no spaces but those that part words or numbers, no braces round one character."""
    return _SINGLE_BRACES.sub(r"\1", _LOOSE_SPACE.sub("", normalised))
