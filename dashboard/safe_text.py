"""Model output and names as Markdown that can do nothing but be read.

Streamlit's Markdown follows links, loads remote images, draws icons (`:material/...:`) and colours (`:red[...]`),
whatever `unsafe_allow_html` says. `plain` turns any text into Markdown that shows exactly that text; `math` leaves
formulas alone and treats the rest the same way. Backslashes alone are not enough: bare addresses and `:name:` are
recognised after unescaping, so an invisible word joiner is put where they would start.
"""

from __future__ import annotations

import re

# Word joiner: no width, no break; it keeps automatic links, e-mail addresses, emoji and icons from being recognised.
_JOINER = "\u2060"
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_PUNCTUATION = re.compile(r"([!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~])")
_BREAKERS = re.compile(r"(\\:|\\@|(?i:www)(?=\\\.)|\\[-<>=~](?=\\[-<>=]))")
_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)

# One formula: $$..$$, \[..\], \(..\), $..$ (as in Pandoc: no blank inside the dollars, no digit after), or \boxed{..}.
_FORMULA = re.compile(
    r"\$\$(?P<display>(?:[^$\\]|\\.)+?)\$\$"
    r"|\\\[(?P<bracket>(?:[^\\]|\\(?!\]).)+?)\\\]"
    r"|\\\((?P<paren>(?:[^\\]|\\(?!\)).)+?)\\\)"
    r"|(?<![\\$])\$(?![\s$])(?P<inline>(?:[^$\\\n]|\\.)*?(?:[^\s$\\]|\\.))\$(?![\d$])"
    r"|(?P<boxed>\\boxed\{(?:[^{}\n]|\{(?:[^{}\n]|\{[^{}\n]*\})*\})*\})",
    re.DOTALL,
)
# Commands that load, link, define, run on, or push text off the page; and line breaks with a distance.
_REFUSED = re.compile(
    r"\\(?:href|url|include\w*|html\w*|[gex]?def|let|future\w*|global|long|\w*command|DeclareMathOperator|rule|[mh]?kern"
    r"|[mh]skip|[hv]space|raisebox|char|csname|class|cssId|style|data|tag|label|ref|eqref|verb)(?![A-Za-z])"
    r"|\\\\\s*\[|`|\n\s*\n"
)
_LONGEST_FORMULA = 2_000


def plain(text: str) -> str:
    """Markdown that renders as exactly this text, line breaks included: no emphasis, links, images or formulas."""
    text = _HIDDEN.sub("�", text.replace("\r\n", "\n"))
    text = text.replace("\r", "\n")
    text = _PUNCTUATION.sub(r"\\\1", text)
    text = _BREAKERS.sub(rf"\1{_JOINER}", text)
    text = _INDENT.sub(lambda found: "\u00a0" * len(found.group().expandtabs(4)), text)
    return text.replace("\n", "  \n")


def inline(text: str) -> str:
    """`plain` on a single line, for labels and captions."""
    return plain(" ".join(text.split()))


def math(text: str, limit: int | None = None) -> str:
    """Markdown that shows this text with its formulas typeset.

    Formulas: $..$, $$..$$, \\(..\\), \\[..\\] and a bare \\boxed{..}. One with a command that links, loads, defines or
    moves things is shown as its source. At most `limit` characters are shown, cut between formulas, followed by how
    many are left out.
    """
    parts: list[str] = []
    at, stop = 0, len(text) if limit is None else min(limit, len(text))
    for found in _FORMULA.finditer(text):
        if found.end() > stop:
            stop = max(at, min(stop, found.start()))
            break
        body = next(group for group in found.groups() if group is not None)
        parts += [plain(text[at : found.start()]), _formula(found, body)]
        at = found.end()
    parts.append(plain(text[at : max(at, stop)]))
    if stop < len(text):
        parts.append(f" … *({len(text) - stop:,} more characters)*")
    return "".join(parts)


def math_line(text: str, limit: int = 240) -> str:
    """`math` on a single line, display formulas set inline, for table cells and list rows."""
    line = " ".join(text.split())
    line = re.sub(r"\$\$((?:[^$\\]|\\.)+?)\$\$|\\\[((?:[^\\]|\\(?!\]).)+?)\\\]", _as_inline, line)
    return math(line, limit)


def _as_inline(found: re.Match[str]) -> str:
    return rf"\({(found.group(1) or found.group(2)).strip()}\)"


def _formula(found: re.Match[str], body: str) -> str:
    """One formula in the only two shapes the page's Markdown gets to see: $..$, or $$ on lines of their own."""
    stripped = _HIDDEN.sub("", body).strip()
    if not stripped or len(stripped) > _LONGEST_FORMULA or _REFUSED.search(stripped):
        return plain(found.group())
    tex = " ".join(stripped.replace(r"\$", r"\text{\textdollar}").split())
    # A dollar that is left would end the formula early; a backslash at the end would escape its closing dollar.
    if "$" in tex or re.search(r"(?<!\\)(?:\\\\)*\\$", tex):
        return plain(found.group())
    display = found.group("display") is not None or found.group("bracket") is not None
    return f"\n\n$$\n{tex}\n$$\n\n" if display else f"${tex}$"
