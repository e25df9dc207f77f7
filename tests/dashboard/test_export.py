"""graft export: what is written equals the store, opens without network, and is there whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from PIL import Image

from dashboard.export.folder import MANIFEST
from server.store.reader import open_reader
from server.store.records import MetricRecord
from server.store.writer import open_writer
from tests.dashboard.exporting import Page, export, exported_here
from tests.dashboard.hostile_store import MARK, write_hostile
from tests.dashboard.showcase import MODELS, Showcase, write
from tests.dashboard.test_pages import end

SVG = "{http://www.w3.org/2000/svg}"
PAGES = ("overview", "complementarity", "transfers", "trajectories", "training", "evaluation", "compare", "runs")
ALLOWED_TAGS = {
    "html", "head", "meta", "title", "style", "body", "header", "nav", "main", "footer", "section", "h1", "h2", "h3",
    "p", "dl", "dt", "dd", "ul", "li", "a", "figure", "picture", "source", "img", "div", "table", "thead", "tbody",
    "tr", "th", "td", "details", "summary", "pre", "code", "span", "strong", "br",
}  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three members, six steps, evaluated twice."""
    url = f"sqlite:///{tmp_path_factory.mktemp('export') / 'store.db'}"
    with open_writer(url) as writer:
        write(writer, Showcase(members=MODELS[:3], steps=6), 6, 3)
        writer.finish("finished", "")
    return url


@pytest.fixture(scope="module")
def exported(store: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("exported") / "run"
    done = export(store, to, "--rows")
    assert done.returncode == 0, done.stderr
    return to


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    url = write_hostile(f"sqlite:///{folder / 'store.db'}")
    done = export(url, folder / "run", "--only", "report", "--only", "tables")
    assert done.returncode == 0, done.stderr
    return folder / "run"


def table(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(folder / "tables" / f"{name}.parquet")


def rows(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(folder / "rows" / f"{name}.parquet")


def test_accuracy_in_every_bucket_is_that_of_the_raw_groups(exported: Path) -> None:
    accuracy, groups = table(exported, "overview_accuracy"), rows(exported, "groups")
    names = rows(exported, "members").set_index("slot")["name"]
    groups["member"] = groups["member"].map(names)
    assert len(accuracy) == 3 * 6
    for row in accuracy.itertuples():
        own = groups[(groups.member == row.member) & groups.step.between(row.first_step, row.last_step)]
        assert (row.numerator, row.denominator) == (own.successes.sum(), own.n.sum())
        assert row.value == pytest.approx(row.numerator / row.denominator)
        assert row.low <= row.value <= row.high


def test_the_pair_table_adds_up_the_raw_transfers(exported: Path) -> None:
    pairs, moved = table(exported, "transfers_pairs"), rows(exported, "transfers")
    names = rows(exported, "members").set_index("slot")["name"]
    moved["receiver"], moved["source"] = moved.receiver.map(names), moved.source.map(names)
    sums = moved.groupby(["receiver", "source"])[["responses", "admitted", "refused_floor", "sum_s", "n_s"]].sum()
    assert len(sums) > 0
    for (receiver, source), own in sums.iterrows():
        row = pairs[(pairs.receiver == receiver) & (pairs.source == source)].iloc[0]
        assert tuple(row[["responses", "admitted", "refused_floor"]]) == tuple(own.iloc[:3])
        if own.n_s:
            assert row.mean_s == pytest.approx(own.sum_s / own.n_s)
        if own.responses:
            assert row.admitted_low <= row.admitted_share <= row.admitted_high


def test_csv_and_parquet_of_a_table_hold_the_same_numbers(exported: Path) -> None:
    written = sorted((exported / "tables").glob("*.parquet"))
    assert len(written) > 30
    for path in written:
        parquet = pd.read_parquet(path)
        csv = path.with_suffix(".csv")
        read = pd.read_csv(csv) if csv.stat().st_size > 2 else pd.DataFrame()
        assert list(read.columns) == list(parquet.columns), path.name
        for name in parquet.select_dtypes("number"):
            pd.testing.assert_series_equal(read[name], parquet[name], check_dtype=False, check_names=False)


def test_every_row_of_the_store_is_written_in_both_formats(exported: Path, store: str) -> None:
    with open_reader(store) as reader:
        for name in reader.tables():
            found = rows(exported, name)
            assert len(found) == sum(batch.num_rows for batch in reader.rows("latest", name))
            assert list(found.columns) == reader.columns(name).names
            assert len(pd.read_csv(exported / "rows" / f"{name}.csv")) == len(found)
        assert {"entropy", "loss"} <= set(rows(exported, "metrics")["name"])
        assert len(rows(exported, "responses")) == rows(exported, "groups")["n"].sum()


def test_charts_of_every_page_are_whole_pictures(exported: Path) -> None:
    drawn = sorted((exported / "charts").glob("*.svg"))
    assert {path.name.split("_")[0] for path in drawn} == set(PAGES) - {"compare"}
    for path in drawn:
        root = ElementTree.parse(path).getroot()
        assert root.tag == f"{SVG}svg"
        texts = ["".join(one.itertext()) for one in root.iter(f"{SVG}text")]
        assert any("Run showcase (showcase) · graft · steps 1–6 of 6" in text for text in texts), path.name
        assert not [one for one in root.iter() if one.tag in (f"{SVG}script", f"{SVG}image", f"{SVG}foreignObject")]
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        with Image.open(path.with_suffix(".png")) as picture:
            assert picture.format == "PNG"
            assert abs(picture.width - 2 * width) <= 2
            assert abs(picture.height - 2 * height) <= 2
            assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 20


def test_every_matrix_and_both_drawings_of_transfers_are_there(exported: Path) -> None:
    names = {path.stem for path in (exported / "charts").glob("*.svg")}
    # Six steps are too few for uptake: no prompt came again.
    for measure in ("complementarity", "compatibility", "admitted", "failing"):
        assert f"complementarity_heatmap_{measure}" in names
    assert {"transfers_flow", "transfers_network", "complementarity_graph_members"} <= names


@pytest.mark.parametrize("which", ["exported", "hostile"])
def test_the_report_needs_nothing_but_itself(which: str, request: pytest.FixtureRequest) -> None:
    page = Page((request.getfixturevalue(which) / "report.html").read_text("utf-8"))
    assert set(page.tags) <= ALLOWED_TAGS
    for tag, name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("src", "srcset"):
            assert value.startswith("data:image/svg+xml;base64,")
        if name == "href":
            assert tag == "a"
            assert value.startswith("#")
    policy = [value for tag, name, value in page.attributes if tag == "meta" and name == "content"]
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in policy


def test_the_report_says_what_the_pages_say(exported: Path, store: str) -> None:
    page = Page((exported / "report.html").read_text("utf-8"))
    ids = [value for tag, name, value in page.attributes if tag == "section" and name == "id"]
    assert ids == list(PAGES)
    assert "could not be drawn" not in page.text
    with open_reader(store) as reader:
        counts = reader.member_counts("latest", 1, 6)
    assert f"{counts['all_fail'].sum():,} of {counts['groups'].sum():,} groups" in page.text
    assert page.tags.count("pre") >= 3
    light, dark = page.tags.count("img"), page.tags.count("source")
    assert light == dark == len(list((exported / "charts").glob("*.svg")))


def test_hostile_texts_are_text(hostile: Path) -> None:
    html = (hostile / "report.html").read_text("utf-8")
    assert "<script" not in html
    assert "hunter2" not in html
    assert MARK in Page(html).text
    assert "\u202e" not in html
    pictures = re.findall(r'data:image/svg\+xml;base64,([^"]+)"', html)
    assert len(pictures) > 30
    for picture in pictures:
        root = ElementTree.fromstring(base64.b64decode(picture))
        assert not [one for one in root.iter() if one.tag in (f"{SVG}script", f"{SVG}image", f"{SVG}a")]


def test_no_cell_of_a_hostile_csv_begins_like_a_formula(hostile: Path) -> None:
    for path in (hostile / "tables").glob("*.csv"):
        if path.stat().st_size <= 2:
            continue
        cells = pd.read_csv(path, dtype=str, header=None, keep_default_na=False)
        for cell in cells.to_numpy().ravel():
            assert not cell.startswith(("=", "+", "@", "\t")), f"{path.name}: {cell[:40]!r}"
            assert not cell.startswith("-") or cell.lstrip("-").replace(".", "", 1).replace("e-", "", 1).isdigit()


def test_the_manifest_names_every_file_and_what_it_is_about(exported: Path) -> None:
    manifest = json.loads((exported / MANIFEST).read_text())
    assert (manifest["run"], manifest["steps"], manifest["members"]) == ("showcase", [1, 6], list(MODELS[:3]))
    assert manifest["versions"]["vl-convert-python"]
    files = {path.relative_to(exported).as_posix(): path for path in exported.rglob("*") if path.is_file()}
    assert set(manifest["files"]) == set(files) - {MANIFEST}
    for name, facts in manifest["files"].items():
        assert facts == {
            "bytes": files[name].stat().st_size,
            "sha256": hashlib.sha256(files[name].read_bytes()).hexdigest(),
        }


def test_steps_and_members_that_are_asked_for_are_those_that_are_written(store: str, tmp_path: Path) -> None:
    done = exported_here(
        store, tmp_path / "part", "--steps", "2:4", "--member", MODELS[1], "--only", "tables", "--page", "training"
    )
    assert done.returncode == 0, done.stderr
    reward = table(tmp_path / "part", "training_reward")
    assert set(reward["member"]) == {MODELS[1]}
    assert (reward["first_step"].min(), reward["last_step"].max()) == (2, 4)
    assert {path.name for path in (tmp_path / "part").iterdir()} == {"tables", MANIFEST}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--run", "showcas"), "no run 'showcas'; the newest are: showcase"),
        (("--page", "overviews"), "no page 'overviews'; the pages are: overview,"),
        (("--steps", "3:99"), "steps 3 to 99 are not among its recorded steps 1 to 6"),
        (("--steps", "3-4"), "write it as 10:20, 10: or :20"),
        (("--member", "nobody"), "no member 'nobody'; its members are:"),
    ],
)
def test_what_cannot_be_exported_is_named_with_its_remedy(
    store: str, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    done = exported_here(store, tmp_path / "none", *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


def written(
    folder: Path, steps: int, *, status: str, members: int = 3, loss: float = 0.5, method: str = "graft"
) -> str:
    """A store of a run with so many steps; every loss is `loss`."""
    url = f"sqlite:///{folder / 'store.db'}"
    scenario = Showcase(
        members=tuple(f"org/m-{slot}" for slot in range(members)), steps=3, prompts=4, n=4, method=method
    )
    writer = open_writer(url)
    writer.start_run(scenario.run())
    for step in range(1, steps + 1):
        made = scenario.step(step)
        losses = tuple(MetricRecord(name, "loss", loss) for name in scenario.members)
        writer.commit(replace(made, metrics=(*(one for one in made.metrics if one.name != "loss"), *losses)))
    end(writer, status)
    return url


def test_a_loss_that_is_no_number_is_empty_and_said(tmp_path: Path) -> None:
    done = exported_here(
        written(tmp_path, 2, status="finished", loss=float("nan")), tmp_path / "run", "--page", "training"
    )
    assert done.returncode == 0, done.stderr
    text = Page((tmp_path / "run" / "report.html").read_text("utf-8")).text
    assert "Not a number:" in text
    assert "loss (2)" in text
    assert "Nothing finite was recorded in these steps." in text
    assert not (tmp_path / "run" / "tables" / "training_loss.csv").exists()
    assert (tmp_path / "run" / "tables" / "training_reward.csv").exists()


@pytest.mark.parametrize(
    ("steps", "status", "members", "method"),
    [(0, "running", 2, "graft"), (1, "failed", 2, "graft"), (1, "running", 32, "graft"), (1, "finished", 1, "grpo")],
)
def test_runs_of_every_size_and_state_are_exported(
    tmp_path: Path, steps: int, status: str, members: int, method: str
) -> None:
    url = written(tmp_path, steps, status=status, members=members, method=method)
    done = exported_here(url, tmp_path / "run", "--only", "report", "--page", "overview", "--page", "complementarity")
    assert done.returncode == 0, done.stderr
    text = Page((tmp_path / "run" / "report.html").read_text("utf-8")).text
    assert "could not be drawn" not in text
    assert f"{members}: org/m-0" in text
    assert ("no step yet" in text) == (steps == 0)
    assert ("CUDA out of memory <b>on</b> rank 0" in text) == (status == "failed")


def test_an_export_is_not_replaced_unasked_and_another_folder_never(store: str, tmp_path: Path) -> None:
    export_of = ("--only", "tables", "--page", "runs")
    assert exported_here(store, tmp_path / "run", *export_of).returncode == 0
    refused = exported_here(store, tmp_path / "run", *export_of)
    assert refused.returncode == 2
    assert "replace it with --overwrite" in refused.stderr
    assert exported_here(store, tmp_path / "run", *export_of, "--overwrite").returncode == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years")
    foreign = exported_here(store, tmp_path / "mine", *export_of, "--overwrite")
    assert foreign.returncode == 2
    assert "is no export" in foreign.stderr
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years"
    assert {path.name for path in tmp_path.iterdir()} == {"run", "mine"}
