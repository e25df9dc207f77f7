"""Model output and names as Markdown that can do nothing but be read.

Streamlit's Markdown follows links, loads remote images, draws icons (`:material/...:`) and colours (`:red[...]`),
whatever `unsafe_allow_html` says. `plain` turns any text into Markdown that shows exactly that text; `math` leaves
formulas alone and treats the rest the same way. Backslashes alone are not enough: bare addresses and `:name:` are
recognised after unescaping, so an invisible word joiner is put where they would start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# Word joiner: no width, no break; it keeps automatic links, e-mail addresses, emoji and icons from being recognised.
_JOINER = "\u2060"
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
_PUNCTUATION = re.compile(r"([!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~])")
_BREAKERS = re.compile(r"(\\:|\\@|(?i:www)(?=\\\.)|\\[-<>=~](?=\\[-<>=]))")
_INDENT = re.compile(r"(?<=\n)[ \t]+")

# Where a formula may begin; a doubled backslash and an escaped dollar are stepped over.
_OPENER = re.compile(r"\\\\|\\\$|\$\$|\$|\\\[|\\\(|\\boxed\{")
# Its end; $..$ stays on one line.
_CLOSERS = {
    "$$": re.compile(r"\$\$"),
    "$": re.compile(r"(?<!\\)\$|\n"),
    "\\[": re.compile(r"\\\]"),
    "\\(": re.compile(r"\\\)"),
}
_BRACE = re.compile(r"\\.|[{}\n]", re.DOTALL)
# Commands that load, link, define, run on, or push text off the page or over other text; line breaks with a distance.
_REFUSED = re.compile(
    r"\\(?:href|url|include\w*|html\w*|[gex]?def|let|future\w*|global|long|\w*command|DeclareMathOperator|rule|[mh]?kern"
    r"|[mh]skip|[hv]space|raisebox|(?:math)?[lrc]lap|smash|char|csname|class|cssId|style|data|tag|label|ref|eqref|verb)(?![A-Za-z])"
    r"|\\\\\s*\[|`|\n\s*\n"
)
_LONGEST_FORMULA = 2_000


def plain(text: str) -> str:
    """Markdown that renders as exactly this text, line breaks included: no emphasis, links, images or formulas."""
    indent = len(text) - len(text.lstrip(" \t"))
    return _blank(text[:indent]) + _within(text[indent:])


def _within(text: str) -> str:
    """`plain` for text that goes on in the middle of a line."""
    text = _HIDDEN.sub("�", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = _PUNCTUATION.sub(r"\\\1", text)
    text = _BREAKERS.sub(rf"\1{_JOINER}", text)
    text = _INDENT.sub(lambda found: _blank(found.group()), text)
    return text.replace("\n", "  \n")


def _blank(indent: str) -> str:
    """Indentation that makes no code block."""
    return "\u00a0" * len(indent.expandtabs(4))


def inline(text: str) -> str:
    """`plain` on a single line, for labels and captions."""
    return plain(" ".join(text.split()))


def visible(text: str) -> str:
    """Raw text for a code block: characters that control, hide or reorder are written by their number."""
    return _INVISIBLE.sub(lambda found: f"⟨U+{ord(found.group()):04X}⟩", text.replace("\r\n", "\n"))


def math(text: str, limit: int | None = None) -> str:
    """Markdown that shows this text with its formulas typeset.

    Formulas: $..$, $$..$$, \\(..\\), \\[..\\] and a bare \\boxed{..}. One with a command that links, loads, defines or
    moves things is shown as its source. At most `limit` characters are shown, cut between formulas, followed by how
    many are left out.
    """
    parts: list[str] = []
    at, stop = 0, len(text) if limit is None else min(limit, len(text))
    literal = plain
    for start, end, body, display in _formulas(text, stop):
        if end > stop:
            stop = start
            break
        parts += [literal(text[at:start]), _formula(text[start:end], body, display)]
        at = end
        # What follows a formula on lines of its own begins a line, where indentation would make a code block.
        literal = plain if display else _within
    parts.append(literal(text[at:stop]))
    if stop < len(text):
        parts.append(f" … *({len(text) - stop:,} more characters)*")
    return "".join(parts)


def math_line(text: str, limit: int = 240) -> str:
    """`math` on a single line, display formulas set inline, for table cells and list rows."""
    # Far more than is shown is never looked at.
    line = " ".join(text[: 20 * limit].split())
    at, parts = 0, []
    for start, end, body, display in _formulas(line, len(line)):
        parts += [line[at:start], rf"\({body.strip()}\)" if display else line[start:end]]
        at = end
    return math("".join([*parts, line[at:]]), limit)


def _formulas(text: str, stop: int) -> Iterator[tuple[int, int, str, bool]]:
    """(start, end, body, on lines of its own) of every formula that begins before `stop`; linear in the text."""
    at = 0
    while (opener := _OPENER.search(text, at)) and opener.start() < stop:
        at = opener.end()
        mark = opener.group()
        if mark == r"\boxed{":
            end = _closing_brace(text, at)
            body = text[opener.start() : end]
        elif mark in _CLOSERS:
            closer = _CLOSERS[mark].search(text, at + 1, at + _LONGEST_FORMULA)
            end = -1 if closer is None or closer.group() == "\n" else closer.end()
            body = text[at : closer.start()] if closer else ""
        else:
            continue
        if end < 0 or (mark == "$" and _is_money(body, text[end : end + 1])):
            continue
        yield opener.start(), end, body, mark in ("$$", r"\[")
        at = end


def _is_money(body: str, following: str) -> bool:
    """As in Pandoc: dollars with a blank inside, or with a digit behind, are no formula."""
    return body[:1].isspace() or body[-1:].isspace() or following.isdigit() or following == "$"


def _closing_brace(text: str, at: int) -> int:
    """The end of the group whose opening brace lies before `at`, on the same line; -1 where it does not close."""
    depth = 1
    for found in _BRACE.finditer(text, at, at + _LONGEST_FORMULA):
        if found.group() == "\n":
            return -1
        depth += {"{": 1, "}": -1}.get(found.group(), 0)
        if depth == 0:
            return found.end()
    return -1


def _balanced(tex: str) -> bool:
    depth = 0
    for found in _BRACE.finditer(tex):
        depth += {"{": 1, "}": -1}.get(found.group(), 0)
        if depth < 0:
            return False
    return depth == 0


def _formula(source: str, body: str, display: bool) -> str:
    """One formula in the only two shapes the page's Markdown gets to see: $..$, or $$ on lines of their own."""
    stripped = _HIDDEN.sub("", body).strip()
    if not stripped or _REFUSED.search(stripped) or not _balanced(stripped):
        return _within(source)
    tex = " ".join(stripped.replace(r"\$", r"\text{\textdollar}").split())
    # A dollar that is left would end the formula early; a backslash at the end would escape its closing dollar.
    if "$" in tex or re.search(r"(?<!\\)(?:\\\\)*\\$", tex):
        return _within(source)
    return f"\n\n$$\n{tex}\n$$\n\n" if display else f"${tex}$"
