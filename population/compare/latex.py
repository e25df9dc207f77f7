r"""A comparison as LaTeX: one booktabs table for each member, as the paper's tables 7 and 8, and one for their mean.

Needs ``\usepackage{booktabs}`` and nothing else.
"""

from __future__ import annotations

from population.compare.tables import MEAN_OF_MEMBERS, columns_of
from server.store.comparison import AT_END, Arm, Comparison, Paired, Spread

DIGITS = 2
MISSING = "--"
_ESCAPES = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
}


def latex(comparison: Comparison) -> str:
    """The tables of a comparison, to be put into a document."""
    members = [None, *comparison.members] if len(comparison.members) > 1 else list(comparison.members)
    return "% \\usepackage{booktabs}\n" + "\n".join(_table(comparison, member) for member in members)


def escape(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(_ESCAPES.get(character, character) for character in text)


def _table(comparison: Comparison, member: str | None) -> str:
    columns = columns_of(comparison)
    arms = [arm for arm in comparison.arms if member is None or member in arm.members]
    headings = ["Arm", "$n$", "Before", *(escape(heading) for heading, _ in columns)]
    headings += [rf"$\Delta$ {escape(baseline)}" for baseline in comparison.baselines]
    rows = [_row(comparison, arm, member) for arm in arms]
    title = escape(MEAN_OF_MEMBERS.capitalize() if member is None else member)
    caption = (
        f"{title}: accuracy in percent at {escape(comparison.checkpoint.description)}, mean and standard deviation "
        r"over $n$ seeds; $\Delta$ is paired by seed, with its 95\,\% $t$ interval."
    )
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}",
        r"\toprule",
        " & ".join(headings) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _row(comparison: Comparison, arm: Arm, member: str | None) -> list[str]:
    spreads = [comparison.after(arm, member, benchmark) for _, benchmark in columns_of(comparison)]
    cells = [escape(arm.name), str(max((one.n for one in spreads), default=0))]
    cells += [_number(comparison.before(arm, member).mean), *(_spread(one) for one in spreads)]
    for baseline in comparison.baselines:
        if baseline == arm.name:
            cells.append(MISSING)
        else:
            cells.append(_difference(comparison.against(arm, comparison.arm(baseline), AT_END, member)))
    return cells


def _number(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:.{DIGITS}f}"


def _spread(values: Spread) -> str:
    if values.sd is None:
        return _number(values.mean)
    return rf"{_number(values.mean)} {{\scriptsize $\pm$ {100 * values.sd:.{DIGITS}f}}}"


def _difference(paired: Paired) -> str:
    if paired.mean is None:
        return MISSING
    text = f"${100 * paired.mean:+.{DIGITS}f}$"
    if paired.interval is None:
        return text
    low, high = (f"{100 * edge:+.{DIGITS}f}" for edge in paired.interval)
    return rf"{text} {{\scriptsize $[{low}, {high}]$}}"
