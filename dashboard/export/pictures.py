"""Charts as SVG and PNG without a browser: what a page draws, with a title and a line that says of which run it is.

vl-convert runs Vega-Lite in this process, without network. Its own fonts are as wide as Arial, so that an SVG looks the
same where Arial or Liberation Sans is at hand.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from typing import Any

import pandas as pd

from dashboard.charts import Spec
from dashboard.export import words
from dashboard.export.stills import PADDING, WIDTH, still
from dashboard.export.subject import Subject
from dashboard.palette import FILE_FONT, Inks, inks
from dashboard.sheet import Chart, Panel

SCALE = 2.0
VEGA_LITE = "6.4"
_TITLE_PX, _LINE_PX, _GAP_PX = 22, 15, 12
# Characters of a line of the subtitle: 11 px Arial is about 5.4 px wide.
_LINE_CHARACTERS = 120
# What no XML document may hold; chart texts have been cleaned of other control characters.
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def of_panel(chart: Chart, panel: Panel, subject: Subject, theme: str) -> str:
    """The chart as an SVG document by itself: under its panel's title and the line that says of which run it is."""
    title = words.plain(panel.title) or chart.alt
    lines = [line for line in (words.plain(panel.explanation), subject.line()) if line]
    return svg(chart, inks(theme), title, lines)


def svg(chart: Chart, colours: Inks, title: str = "", lines: Sequence[str] = ()) -> str:
    """The chart as an SVG document; `title` and `lines`, where given, are plain text and stand above it."""
    # V8 is loaded by the first picture alone.
    import vl_convert

    heading = _heading(title, lines, colours) if title else {}
    if "series" in chart.spec:
        spec = still(chart.spec) | {"background": colours.background} | heading
        drawn = vl_convert.vega_to_svg(_plain(spec), allowed_base_urls=[])
    else:
        drawn = vl_convert.vegalite_to_svg(
            _plain(_fixed(chart.spec, heading, colours)), VEGA_LITE, allowed_base_urls=[]
        )
    return _NO_XML.sub("\ufffd", str(drawn))


def png(document: str) -> bytes:
    """An SVG document as a picture with twice as many pixels."""
    import vl_convert

    return bytes(vl_convert.svg_to_png(document, scale=SCALE))


def _heading(title: str, lines: Sequence[str], colours: Inks) -> Spec:
    wrapped = [part for line in lines for part in textwrap.wrap(line, _LINE_CHARACTERS)]
    title_of = {
        "text": textwrap.shorten(title, 100, placeholder=" …"),
        "subtitle": wrapped,
        "anchor": "start",
        "frame": "bounds",
        "offset": _GAP_PX,
        "font": FILE_FONT,
        "subtitleFont": FILE_FONT,
        "fontSize": 15,
        "subtitleFontSize": 11,
        "subtitlePadding": 5,
        "subtitleLineHeight": _LINE_PX,
        "color": colours.ink,
        "subtitleColor": colours.muted,
    }
    return {"title": title_of}


def _fixed(spec: Spec, heading: Spec, colours: Inks) -> Spec:
    """The specification in a fixed width, as high as on the page, with its heading above that."""
    height = spec["height"]
    if isinstance(height, int):
        if heading:
            height += _TITLE_PX + _LINE_PX * len(heading["title"]["subtitle"]) + _GAP_PX
        height += sum(PADDING[side] - spec["padding"][side] for side in ("top", "bottom"))
    config = spec["config"] | {
        "font": FILE_FONT,
        "text": {"font": FILE_FONT},
        "background": colours.background,
        "aria": False,
    }
    return {**spec, "width": WIDTH, "height": height, "padding": PADDING, "config": config, **heading}


def _plain(spec: Spec) -> str:
    """As JSON, frames as rows; what is not a number is null."""

    def encode(value: Any) -> Any:
        if isinstance(value, pd.DataFrame):
            return json.loads(value.to_json(orient="records", double_precision=15))
        return value.item()

    return json.dumps(spec, default=encode).encode("utf-8", "replace").decode()
