"""The Markdown that pages write, as HTML or as plain text. Pure.

Pages compose it themselves and pass all that others wrote through `safe_text`, which puts a backslash before every
character that could mean something: what is left are a few constructs, and everything else is literal.
"""

from __future__ import annotations

import re
from html import escape

from dashboard import safe_text

# Escaped character | directive such as :gray[ or :red-badge[ | its end | bold | icon | blank | code | link | joiner |
# formula, whose own backslashes stay.
_TOKEN = re.compile(
    r"\\(?P<literal>[!-/:-@\[-`{-~])|:(?P<kind>[a-z]+(?:-badge)?)\[|(?P<close>\])|(?P<bold>\*\*)"
    r"|(?P<icon>:material/[a-z_]+:)|(?P<blank>&nbsp;)|(?P<code>`[^`\n]+`)|(?P<link>\[(?P<shown>[^\]\[\\]*)\]\([^)\s]*\))"
    r"|(?P<joiner>\u2060)|(?P<formula>\$\$\n.*?\n\$\$|\$[^$\n]+\$)",
    re.DOTALL,
)
_COLOURS = frozenset({"gray", "green", "red", "orange", "blue", "violet"})


def html(markdown: str) -> str:
    """Escaped HTML of a paragraph or of list lines; a line that ends in two blanks is broken there."""
    lines = markdown.split("  \n")
    return "<br>".join(_inline(line, True) for line in lines)


def plain(markdown: str) -> str:
    """The text alone, on one line."""
    return " ".join(_inline(markdown, False).split())


def written(text: str) -> str:
    """Escaped, with characters that hide or reorder written by their number."""
    return escape(safe_text.visible(text))


def _inline(markdown: str, marked: bool) -> str:
    out, at, bold, open_tags = [], 0, False, 0
    literal = written if marked else str
    for found in _TOKEN.finditer(markdown):
        out.append(literal(markdown[at : found.start()]))
        at = found.end()
        if found["literal"]:
            out.append(literal(found["literal"]))
        elif found["kind"]:
            open_tags += 1
            colour, _, badge = found["kind"].partition("-")
            names = f"{'badge ' if badge else ''}{colour if colour in _COLOURS else 'small'}"
            out.append(f'<span class="{names}">' if marked else "")
        elif found["close"]:
            closes = open_tags > 0
            open_tags -= closes
            out.append(("</span>" if marked else "") if closes else "]")
        elif found["bold"]:
            bold = not bold
            out.append(("<strong>" if bold else "</strong>") if marked else "")
        elif found["code"]:
            code = found["code"].strip("`")
            out.append(f"<code>{written(code)}</code>" if marked else code)
        elif found["formula"]:
            out.append(literal(found["formula"]))
        elif found["link"]:
            out.append(literal(found["shown"]))
        elif found["blank"]:
            out.append(" ")
    out.append(literal(markdown[at:]))
    closing = "</span>" * open_tags + ("</strong>" if bold else "")
    return "".join(out) + (closing if marked else "")
