"""The parts of an export by themselves: words, files, drawings, the folder."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from dashboard import charts, charts_transfers, safe_text
from dashboard.export import files, folder, pictures, words
from dashboard.export.collect import ExportError
from dashboard.export.stills import still
from dashboard.palette import DARK, LIGHT, member_colour
from dashboard.sheet import Chart, Panel, Sheet, Table, Text, current, kept
from tests.dashboard.hostile_store import HOSTILE

NAMES = ("left", "middle <b>", 'right "&')
MOVED = np.array([[0, 30, 10], [20, 0, 0], [0, 40, 0]])
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("markdown", "html", "plain"),
    [
        ("**bold** and `code`", "<strong>bold</strong> and <code>code</code>", "bold and code"),
        (
            ":gray[n 5] &nbsp;:red-badge[bad]",
            '<span class="gray">n 5</span>  <span class="badge red">bad</span>',
            "n 5 bad",
        ),
        ("one  \ntwo", "one<br>two", "onetwo"),
        ("[open ↗](trajectories?x=1)", "open ↗", "open ↗"),
        (":material/warning: look", " look", "look"),
        (r"\<b\> 1 \* 2 \[3\]", "&lt;b&gt; 1 * 2 [3]", "<b> 1 * 2 [3]"),
        (r"so $\frac{1}{2} < x$", r"so $\frac{1}{2} &lt; x$", r"so $\frac{1}{2} < x$"),
    ],
)
def test_the_markdown_of_pages_becomes_html_and_text(markdown: str, html: str, plain: str) -> None:
    assert words.html(markdown) == html
    assert words.plain(markdown) == plain.replace("onetwo", "one two")


@pytest.mark.parametrize(
    "text", [HOSTILE, "a*b_c [x](y) <i> ![z](https://e.invalid) :red[x] $1 & $2", "**", "]]", ":gray["]
)
def test_text_that_others_wrote_comes_out_as_it_was(text: str) -> None:
    line = " ".join(text.split())
    shown = words.plain(safe_text.inline(line))
    # Characters that hide or reorder are replaced by safe_text itself.
    kept_text = words.plain(safe_text.inline(safe_text._HIDDEN.sub("�", line)))
    assert shown == kept_text
    assert shown == " ".join(safe_text._HIDDEN.sub("�", line).split())
    html = words.html(safe_text.inline(line))
    assert "<" not in html.replace("&lt;", "")


@pytest.mark.parametrize(
    "cell", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "  =1", "\uff1d1", '=HYPERLINK("http://e.invalid")']
)
def test_a_text_that_begins_like_a_formula_gets_an_apostrophe_in_csv_alone(cell: str) -> None:
    frame = pd.DataFrame({cell: [cell], "number": [-1.5]})
    header, row = csv.reader(io.StringIO(files.csv(frame).decode(), newline=""))
    shown = "'" + cell.replace("\r", "\n")
    assert (header, row) == ([shown, "number"], [shown, "-1.5"])
    assert pd.read_parquet(io.BytesIO(files.parquet(frame)))[cell].tolist() == [cell]


def test_what_is_missing_is_empty_and_never_zero() -> None:
    frame = pd.DataFrame({"value": [0.0, np.nan], "who": ["a", None]})
    assert files.csv(frame) == b"value,who\n0.0,a\n,\n"
    assert pd.read_parquet(io.BytesIO(files.parquet(frame)))["value"].isna().tolist() == [False, True]


def test_half_a_surrogate_pair_is_in_no_file() -> None:
    frame = pd.DataFrame({"text": ["a\ud800b"]}, dtype=object)
    assert files.csv(frame).decode() == "text\na?b\n"
    assert pd.read_parquet(io.BytesIO(files.parquet(frame)))["text"].tolist() == ["a?b"]


@pytest.mark.parametrize(
    ("page", "name", "stem"),
    [
        ("overview", "overview_accuracy", "overview_accuracy"),
        ("runs", "health_coverage", "runs_health_coverage"),
        ("runs", "../../x\x00 é", "runs_x"),
    ],
)
def test_names_of_files_are_plain(page: str, name: str, stem: str) -> None:
    assert files.stem(page, name) == stem


def texts(document: str) -> list[str]:
    return ["".join(one.itertext()) for one in ElementTree.fromstring(document).iter(f"{SVG}text")]


@pytest.mark.parametrize("colours", [LIGHT, DARK])
@pytest.mark.parametrize("shape", ["flow", "network"])
def test_who_gave_to_whom_is_drawn_in_the_members_colours_with_their_names(shape: str, colours: object) -> None:
    inks = DARK if colours is DARK else LIGHT
    option = (
        charts_transfers.sankey(NAMES, inks, MOVED)
        if shape == "flow"
        else charts_transfers.network(NAMES, inks, MOVED, height=300)
    )
    document = pictures.svg(Chart("x", option | {"height": 300}, ""), inks, "Title <x>", ["line & line"])
    assert {"Title <x>", "line & line", *NAMES} <= set(texts(document))
    for slot in range(3):
        assert member_colour(inks, slot).lower() in document.lower()
    assert inks.background.lower() in document.lower()


def test_bands_of_a_flow_are_as_high_as_what_moved_and_do_not_overlap() -> None:
    spec = still(charts_transfers.sankey(NAMES, LIGHT, MOVED) | {"height": 300})
    lines = next(data["values"] for data in spec["data"] if data["name"] == "lines")
    bands = [line for line in lines if "C" in line["path"]]
    heights = sorted(float(line["path"].split("v")[1].split("C")[0]) for line in bands)
    unit = heights[0] / 10
    assert [round(height / unit) for height in heights] == [10, 20, 30, 40]
    assert len(lines) == len(bands) + 6  # three bars a side


def test_places_of_a_network_keep_their_proportions() -> None:
    option = charts_transfers.network(NAMES, LIGHT, MOVED, height=300)
    spec = still(option | {"height": 300})
    nodes = next(data["values"] for data in spec["data"] if data["name"] == "nodes")
    before = [(node["x"], node["y"]) for node in option["series"][0]["data"]]
    after = [(node["x"], node["y"]) for node in nodes]
    scales = [
        np.hypot(after[i][0] - after[j][0], after[i][1] - after[j][1])
        / np.hypot(before[i][0] - before[j][0], before[i][1] - before[j][1])
        for i, j in ((0, 1), (0, 2), (1, 2))
    ]
    assert scales == pytest.approx([scales[0]] * 3)
    assert all(0 <= x <= spec["width"] and 0 <= y <= 300 for x, y in after)


def test_a_drawing_asks_nobody_for_anything() -> None:
    spec = charts.with_data(charts.curves(["a"], LIGHT, quantity="x"))
    spec["layer"] = [{"data": {"url": "https://evil.invalid/x.csv"}, "mark": "bar", "encoding": {}}]
    with pytest.raises(ValueError, match=r"evil\.invalid"):
        pictures.svg(Chart("x", spec, ""), LIGHT)


def test_points_that_are_missing_are_gaps_in_the_drawing() -> None:
    def drawn(values: list[float]) -> str:
        steps = np.arange(1, len(values) + 1)
        frame = pd.DataFrame(
            {"member": "a", "step": steps, "value": values, "low": values, "high": values, "lone": False}
        )
        hover = pd.DataFrame({"step": steps, "steps": steps.astype(str), "m0": ""})
        spec = charts.curves(["a"], LIGHT, quantity="x", number=charts.PLAIN)
        return pictures.svg(Chart("x", charts.with_data(spec, curves=frame, hover=hover), ""), LIGHT)

    def strokes(document: str) -> int:
        lines = [
            one for one in ElementTree.fromstring(document).iter(f"{SVG}path") if one.get("stroke-linejoin") == "round"
        ]
        return sum(one.get("d", "").count("M") for one in lines)

    assert strokes(drawn([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])) == 1
    assert strokes(drawn([1.0, 2.0, np.nan, 4.0, 5.0, 6.0])) == 2


def test_nothing_is_left_of_a_fault(tmp_path: Path) -> None:
    def half_written() -> None:
        with folder.written_whole(tmp_path / "run", overwrite=False) as place:
            (place / "report.html").write_text("half")
            raise RuntimeError("half")

    with pytest.raises(RuntimeError, match="half"):
        half_written()
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_export_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    to = tmp_path / "run"
    with folder.written_whole(to, overwrite=False) as place:
        (place / folder.MANIFEST).write_text("first")
    with pytest.raises(RuntimeError), folder.written_whole(to, overwrite=True) as place:
        raise RuntimeError
    assert (to / folder.MANIFEST).read_text() == "first"
    with folder.written_whole(to, overwrite=True) as place:
        (place / folder.MANIFEST).write_text("second")
        assert (to / folder.MANIFEST).read_text() == "first"
    assert (to / folder.MANIFEST).read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(ExportError, match="is no export"), folder.written_whole(tmp_path / "run", overwrite=True):
        pass
    assert (tmp_path / "run").read_text() == "mine"


def panel_of(sheet: Sheet, title: str, *items: Table | Text) -> None:
    sheet.begin(title, "")
    for item in items:
        sheet.add(item)


def test_a_sheet_takes_what_is_new_of_another_view_and_nothing_twice() -> None:
    first, second = Sheet("light"), Sheet("light")
    same, other = Table("same", pd.DataFrame), Table("other", pd.DataFrame)
    panel_of(first, "A", same, Text("said"))
    panel_of(first, "B", Text("alone"))
    panel_of(second, "A", Table("same", pd.DataFrame), Text("said again"))
    panel_of(second, "B", Text("alone"))
    panel_of(second, "C", other)
    panel_of(second, "D", Text("new"))
    first.take_new(second)
    assert [panel.title for panel in first.panels] == ["A", "B", "C", "D"]
    with pytest.raises(ValueError, match="two of same"):
        first.add(Table("same", pd.DataFrame))


def test_a_sheet_is_kept_only_where_it_was_asked_for() -> None:
    assert current() is None
    with kept("dark") as sheet:
        assert current() is sheet
        assert sheet.theme == "dark"
    assert current() is None
    assert isinstance(Panel().items, list)
