"""What a page of AppTest shows: the numbers in its texts, the frames behind its charts, the series of its diagrams."""

from __future__ import annotations

import json
import re
from typing import Any

import pandas as pd
import pyarrow as pa
from streamlit.testing.v1 import AppTest

_SIZES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
# A true minus is a sign; a hyphen belongs to a name, a dash to a range. A letter before a digit makes it a name.
_NUMBER = re.compile(r"(?<![\w.-])(−?)(\d[\d,]*)(\.\d+)?([kMG](?![A-Za-z]))?")
MISSING = "–"


def figures(text: str) -> list[tuple[float, float]]:
    """(number, half of its last digit) of every number in a text."""
    found = []
    for sign, whole, decimals, size in _NUMBER.findall(text.replace("+", " ")):
        value = float(whole.replace(",", "") + decimals) * _SIZES[size]
        digit = _SIZES[size] * 10.0 ** -max(0, len(decimals) - 1)
        found.append((-value if sign else value, digit / 2))
    return found


def says(text: str, *values: float, within: float = 0.0) -> bool:
    """Whether the text's numbers are these, in this order, each as exact as it is written (or `within` of it)."""
    found = figures(text)
    return len(found) == len(values) and all(
        abs(number - value) <= half * (1 + 1e-6) + within for (number, half), value in zip(found, values, strict=True)
    )


def charts(page: AppTest) -> list[tuple[str, dict[str, pd.DataFrame]]]:
    """(description, {name: frame}) of every chart, in the order of the page."""
    found = []
    for element in page.get("vega_lite_chart"):
        proto: Any = element.proto
        frames = {one.name: pa.ipc.open_stream(one.data.data).read_pandas() for one in proto.datasets}
        found.append((str(json.loads(proto.spec)["description"]), frames))
    return found


def chart(page: AppTest, words: str) -> dict[str, pd.DataFrame]:
    """The frames of the one chart whose description has these words."""
    found = [frames for description, frames in charts(page) if words in description]
    assert len(found) == 1, [description for description, _ in charts(page)]
    return found[0]


def diagram(page: AppTest, place: int = 0) -> dict[str, Any]:
    """The option of one of the page's diagrams (flows, graphs)."""
    proto: Any = page.get("echarts_chart")[place].proto
    option: dict[str, Any] = json.loads(proto.spec)
    return option


def table(page: AppTest, column: str) -> pd.DataFrame:
    """The one table, of either kind, that has this column."""
    found = [one.value for one in (*page.dataframe, *page.table) if column in one.value.columns]
    assert len(found) == 1, [list(one.value.columns) for one in (*page.dataframe, *page.table)]
    return found[0]


def texts(page: AppTest) -> list[str]:
    """Everything said on the page, without its bold face."""
    kinds = (page.subheader, page.markdown, page.caption, page.error, page.warning)
    return [str(element.value).replace("**", "") for kind in kinds for element in kind]


def said(page: AppTest, words: str) -> str:
    """The one line that has these words."""
    found = [line for text in texts(page) for line in text.split("\n") if words in line]
    assert len(found) == 1, (words, found)
    return found[0]


def steps(text: str) -> tuple[int, int]:
    """(first, last) of the steps of a point: "7" or "5–8"."""
    found = [int(value) for value, _ in figures(text.replace(MISSING, " "))]
    return found[0], found[-1]


def curves(page: AppTest, words: str) -> list[tuple[str, int, int, dict[str, float], str]]:
    """(member, first step, last step, its value, low and high, what the pointer reads) of every point of a chart."""
    frames = chart(page, words)
    hover = frames["hover"].set_index("step")
    members = list(dict.fromkeys(frames["curves"]["member"]))
    found = []
    for row in frames["curves"].to_dict("records"):
        read = hover.loc[row["step"]]
        found.append((row["member"], *steps(read["steps"]), row, read[f"m{members.index(row['member'])}"]))
    return found


def within(page_text: str, expected: tuple[tuple[float, float], tuple[float, float]]) -> bool:
    """Whether the shares in percent of "95 %: 12.3–45.6 %" lie where they are expected, each as exact as written."""
    found = figures(page_text.partition(":")[2].replace(MISSING, " "))
    return len(found) == 2 and all(
        100 * low - half <= number <= 100 * high + half
        for (number, half), (low, high) in zip(found, expected, strict=True)
    )
