r"""A shipped reward: multiple choice and exact strings. Configuration: `reward: "server.rewards.choice:score"`.

A reference answer of letters ("B", "(C)", "A, D") is multiple choice: the response must settle on exactly these. Any
other reference answer must be met word for word, whatever the case, spacing, quotes and final full stop. The response's
answer is its last `\boxed{}`, else what follows "answer is" or "answer:", else its last line where that is plain.
"""

from __future__ import annotations

import re
import unicodedata

from server.rewards.extract import find_answer
from server.rewards.verdicts import Score

_BOX = re.compile(r"\\f?box")
_WRAPPED = re.compile(r"\\(?:text(?:bf|rm|it)?|math(?:rm|bf))\s*\{([^{}]*)\}")
_LABEL = re.compile(r"(?:the )?(?:correct |right |best )?(?:answer|options?|choices?)(?: is|:)?\s+", re.IGNORECASE)
_LETTER = r"\(?\b[A-Z]\b\)?"
_LETTERS = re.compile(rf"{_LETTER}(?:\s*(?:,?\s*\b(?:and|or)\b|[,&/])\s*{_LETTER})*[.:]?")
_LONE_SMALL = re.compile(r"\(?([a-z])\)?[.:]?")
# "B) Paris", "(B) Paris", "B. Paris", "B: Paris", "B, because": the letter, then its text or a reason.
_LED = re.compile(r"(?:\(([A-Z])\)|\[([A-Z])\]|([A-Z])(?:[).:,;]| [-–]| (?:because|since)\b))(?=\s|$)")
_IN_BRACKETS = re.compile(r"\(([A-Z])\)")
_NAMED = re.compile(r"\b(?:option|choice|answer)\s+(?:is\s+)?\(?([A-Z])\b(?!')")
_OPTION = re.compile(r"^\s*(?:\(([A-Z])\)|([A-Z])[).:])\s*(\S.*?)\s*$", re.MULTILINE)


def score(prompt: str, response: str, answer: str) -> Score:
    """1 where the response's answer is the reference answer. Raises ValueError for an empty reference answer."""
    if not plain(answer):
        raise ValueError("the reference answer is empty")
    gold = letters(answer)
    given = find_answer(response)
    if given is None and _BOX.search(response):
        return Score(0, "the box is cut off or empty")
    if gold:
        chosen = letters(given) or option_of(prompt, given) if given else letters_of_last_line(response)
        named = ", ".join(sorted(chosen))
        return Score(float(chosen == gold), f"chose {named or 'no option'}", named or None)
    said = plain(given if given is not None else _last_line(response))
    return Score(float(said == plain(answer)), f"answered {said[:80]!r}", said or None)


def letters(text: str) -> frozenset[str]:
    """The options a short answer names: {"B"} for "(B)", "B) Paris" or "b"; none where it is not clearly letters."""
    text = _LABEL.sub("", _bare(text), count=1) if _LABEL.match(_bare(text)) else _bare(text)
    if _LETTERS.fullmatch(text):
        return frozenset(re.findall(r"\b[A-Z]\b", text))
    if small := _LONE_SMALL.fullmatch(text):
        return frozenset(small[1].upper())
    if led := _LED.match(text):
        named = {next(letter for letter in led.groups() if letter)} | set(_IN_BRACKETS.findall(text))
        return frozenset(named)
    return frozenset()


def option_of(prompt: str, text: str) -> frozenset[str]:
    """The options of the prompt whose own text is `text`."""
    said = plain(text)
    options = ((bracketed or letter, content) for bracketed, letter, content in _OPTION.findall(prompt))
    return frozenset(letter for letter, content in options if plain(content) == said)


def letters_of_last_line(response: str) -> frozenset[str]:
    """The options the last line names, for a response without box or "answer is"."""
    line = _last_line(response)
    return letters(line) or frozenset(_IN_BRACKETS.findall(line) or _NAMED.findall(line))


def plain(text: str) -> str:
    """Text for exact comparison: one Unicode form, lower case, single spaces, no quotes or stops around it."""
    return " ".join(unicodedata.normalize("NFKC", _bare(text)).casefold().split()).strip(" .\"'`“”‘’")  # noqa: RUF001


def _bare(text: str) -> str:
    """Without mathematics signs, bold marks and text commands."""
    return _WRAPPED.sub(r"\1", text).replace("$", "").replace("**", "").strip()


def _last_line(response: str) -> str:
    return next((line.strip() for line in reversed(response.splitlines()) if line.strip()), "")
