"""Every page over stores of every kind: it draws, says what is there, and never raises."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import create_engine, text
from streamlit.testing.v1 import AppTest

from dashboard import parts, safe_text, source
from dashboard.launch import STORE_VARIABLE
from graft.methods import METHODS
from server.store.records import EventRecord
from server.store.schema import VERSIONS
from server.store.writer import Writer, open_writer
from tests.dashboard.showcase import MODELS, Showcase, write

ENTRY = Path(__file__).resolve().parents[2] / "dashboard" / "entry" / "streamlit_app.py"
PATHS = ("", "complementarity", "transfers", "training", "trajectories")
HOSTILE = " <script>alert(1)</script> ![x](https://evil.invalid/x.png) :material/home: www.evil.invalid \\boxed{"
HOSTILE_NAMES = ("a" * 120, "a" * 119 + "b", "<img src=x onerror=alert(1)> ![p](https://evil.invalid/p.png)\n# h")


def page_script(path: str) -> None:
    """What one page is without Streamlit's navigation, which AppTest cannot follow to a function."""
    from dashboard import app
    from dashboard.sidebar import sidebar
    from dashboard.source import all_runs

    choice = sidebar(all_runs())
    app.show(next(entry for entry in app.PAGES if entry.path == path), choice)


def fill(folder: Path, scenario: Showcase, until: int, status: str = "finished", evaluate_every: int = 5) -> str:
    """Write a run and leave it with this status; "running" leaves it as a killed process would."""
    url = f"sqlite:///{folder / 'store.db'}"
    writer = open_writer(url)
    write(writer, scenario, until, evaluate_every)
    end(writer, status)
    return url


# Populations of every size, runs of every length: (scenario, steps committed).
SHAPES: dict[str, tuple[Showcase, int]] = {
    "pair": (Showcase(members=MODELS[:2], steps=3), 3),
    "twelve": (Showcase(members=MODELS, steps=2, prompts=6), 2),
    "many": (Showcase(members=tuple(f"org/m-{i}" for i in range(32)), steps=2, prompts=4, n=4, tokens=6), 2),
    "one step": (Showcase(steps=9), 1),
    "no step": (Showcase(steps=9), 0),
    "grpo": (Showcase(steps=3, method="grpo"), 2),
}


def fill_each(folders: pytest.TempPathFactory, kinds: Mapping[str, tuple[Showcase, int]]) -> dict[str, str]:
    """{kind: store of a finished run of it}."""
    return {
        kind: fill(folders.mktemp(kind.replace(" ", "_")), scenario, until, "finished", 0)
        for kind, (scenario, until) in kinds.items()
    }


def end(writer: Writer, status: str) -> None:
    if status == "running":
        writer.abandon()
        return
    writer.finish(status, "" if status == "finished" else "CUDA out of memory <b>on</b> rank 0")
    writer.close()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch):
    """Open a page over a store; one that raised fails the test."""

    def open_page(url: str, path: str, **query: str) -> AppTest:
        monkeypatch.setenv(STORE_VARIABLE, url)
        page = AppTest.from_function(page_script, args=(path,), default_timeout=60)
        page.query_params.update(query)
        page.run()
        assert not page.exception, page.exception
        return page

    yield open_page
    source.reader.clear()


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One store per kind of run, made once."""
    kinds = {
        "plain": (Showcase(steps=14), 12, "finished", 5),
        "one step": (Showcase(steps=9), 1, "finished", 0),
        "no step": (Showcase(steps=9), 0, "running", 0),
        "broken loss": (Showcase(steps=4, nan_loss_at=1), 4, "finished", 0),
        "failed": (Showcase(steps=9), 3, "failed", 0),
        "failed at once": (Showcase(steps=9), 0, "failed", 0),
        "killed": (Showcase(steps=9), 3, "running", 0),
        "interrupted": (Showcase(steps=9), 3, "interrupted", 0),
        "hostile": (
            Showcase(members=HOSTILE_NAMES, steps=3, name=HOSTILE, uid="hostile", mark=HOSTILE),
            3,
            "finished",
            3,
        ),
        "twelve": (Showcase(members=MODELS, steps=4, prompts=8), 3, "finished", 3),
        "alone": (Showcase(members=MODELS[:1], steps=4), 3, "finished", 3),
        "grpo": (Showcase(steps=4, method="grpo"), 3, "finished", 0),
        "visits": (Showcase(steps=12, pool=16, sources=2, held_out=0.4), 12, "finished", 0),
        "no control": (Showcase(steps=4, held_out=0.0), 3, "finished", 0),
    }
    made = {}
    for kind, (scenario, until, status, every) in kinds.items():
        made[kind] = fill(tmp_path_factory.mktemp(kind.replace(" ", "_")), scenario, until, status, every)
    return made


def texts(page: AppTest) -> str:
    return "\n".join(
        str(element.value)
        for group in (page.subheader, page.markdown, page.caption, page.error, page.warning)
        for element in group
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "kind",
    [
        "one step", "no step", "broken loss", "failed", "failed at once", "killed", "interrupted", "hostile", "twelve",
        "alone", "grpo", "visits", "no control",
    ],
)  # fmt: skip
def test_every_page_draws_every_kind_of_run(opened, stores, kind: str, path: str) -> None:
    page = opened(stores[kind], path)
    shown = texts(page)
    assert "could not be drawn" not in shown
    expected = {
        "no step": "Waiting for the first step" if path == "" else "first step",
        "failed": r"The run failed. CUDA out of memory \<b\>on\<\/b\> rank 0",
        "failed at once": "No step was committed",
        "interrupted": "The run was interrupted",
        "one step": "step 1 of 9",
    }
    assert expected.get(kind, "steps 1–") in shown


def test_overview_shows_every_rate_with_its_counts_and_interval(opened, stores) -> None:
    page = opened(stores["plain"], "")
    metrics = {metric.label: metric.value for metric in page.metric}
    with source.open_reader(stores["plain"]) as store:
        counts = store.member_counts("latest", 1, 12)
        pairs = store.pair_counts("latest", 1, 12)
    fails, groups = int(counts["all_fail"].sum()), int(counts["groups"].sum())
    assert metrics["All-fail groups"] == f"{100 * fails / groups:.1f}\u00a0%"
    assert metrics["Admitted by the gate"] == f"{100 * pairs['admitted'].sum() / pairs['responses'].sum():.1f}\u00a0%"
    assert metrics["Progress"] == "86\u00a0%"
    shown = texts(page)
    assert f"{fails:,} of {groups:,} groups" in shown
    assert "95 %: " in shown
    table = page.dataframe[0].value
    assert list(table["Member"]) == list(MODELS[:3])
    assert table["Groups"].tolist() == [
        f"{k}/{n}" for k, n in zip(counts["all_fail"].tolist(), counts["groups"].tolist(), strict=True)
    ]


def test_rates_without_a_case_are_dashes_and_not_zero(opened, stores) -> None:
    page = opened(stores["alone"], "")
    metrics = {metric.label: metric.value for metric in page.metric}
    assert metrics["Admitted by the gate"] == "–"
    assert "no responses" in texts(page)


def test_a_method_without_exchange_shows_nothing_of_one_and_says_so(opened, stores) -> None:
    page = opened(stores["grpo"], "")
    assert [metric.label for metric in page.metric] == ["Progress", "All-fail groups", "Last heartbeat"]
    assert "Did the grafts take" not in texts(page)
    assert "The method grpo has no exchange" in texts(opened(stores["grpo"], "trajectories"))
    with source.open_reader(stores["grpo"]) as store:
        key = store.groups("latest", 1, MODELS[0])[0].prompt
    query = {"step": "1", "prompt": str(key), "receiver": "0", "source": "1"}
    shown = texts(opened(stores["grpo"], "trajectories", **query))
    assert "own group" in shown
    assert "transfers listed" not in shown


def test_a_run_is_said_to_exchange_exactly_when_its_method_does() -> None:
    with_method = {name: SimpleNamespace(method=name) for name in METHODS}
    assert {name: parts.exchanges(info) for name, info in with_method.items()} == {
        name: method.exchanges for name, method in METHODS.items()
    }


def test_uptake_is_shown_with_its_visits_or_why_it_is_not_known(opened, stores) -> None:
    with source.open_reader(stores["visits"]) as store:
        total = store.uptake("latest", 1, 12)[1]
    met, places = total["grafted_seen"] + total["held_out_seen"], total["grafted"] + total["held_out"]
    assert 0 < total["held_out_seen"] < met < places
    assert f"met again so far: {met} of {places} places" in texts(opened(stores["visits"], ""))
    assert "No group was withheld as a control" in texts(opened(stores["no control"], ""))
    assert "met both kinds of prompt again" in texts(
        opened(stores["visits"], "", **{"freeze": "true", "from": "12", "to": "12"})
    )
    assert "No group was transferred" in texts(opened(stores["alone"], ""))


def test_the_newest_warnings_of_the_window_stand_under_the_health_curves(opened, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with open_writer(url) as writer:
        write(writer, Showcase(steps=6), 5, 0)
        for step in range(1, 6):
            writer.event(EventRecord("warning", f"<b>drift</b> {step}", MODELS[1], step))
    shown = texts(opened(url, "complementarity"))
    assert [f"drift\\<\\/b\\> {step}" in shown for step in range(1, 6)] == [False, False, True, True, True]
    assert "2 earlier warnings" in shown


def test_every_peer_of_a_place_can_be_chosen(opened, stores) -> None:
    with source.open_reader(stores["visits"]) as store:
        rows, _ = store.transfers("latest", 1, 12, verdict="admitted", limit=500)
        places = [(row.step, row.prompt, row.receiver) for row in rows]
        place = next(one for one in places if places.count(one) == 2)
        names = [member.name for member in store.run("latest").members]
        peers = [peer.transfer.source for peer in store.trajectory("latest", *place).peers]
    query = {"step": str(place[0]), "prompt": str(place[1]), "receiver": str(names.index(place[2]))}
    page = opened(stores["visits"], "trajectories", **query)
    first, second = (safe_text.inline(name) for name in peers)
    assert f"{first} · peer's group" in texts(page)
    choice = next(group for group in page.button_group if (group.key or "").startswith("peer_"))
    choice.set_value(peers[1]).run()
    assert not page.exception
    assert f"{second} · peer's group" in texts(page)
    assert page.query_params["source"] in (str(names.index(peers[1])), [str(names.index(peers[1]))])


def test_a_loss_that_is_not_a_number_is_named_not_hidden(opened, stores) -> None:
    page = opened(stores["broken loss"], "")
    assert r"Not a number: loss of Qwen3\-1\.7B in 4 steps, entropy of Qwen3\-1\.7B in 4 steps" in texts(page)
    entropy = page.dataframe[0].value["Entropy"].tolist()
    assert entropy[0] == "–"
    assert entropy[1].startswith("0.4")


def test_the_window_in_the_address_bounds_what_is_counted(opened, stores) -> None:
    followed = opened(stores["plain"], "", last="10")
    assert "steps 3–12" in texts(followed)
    frozen = opened(stores["plain"], "", **{"freeze": "true", "from": "4", "to": "6"})
    assert "steps 4–6" in texts(frozen)
    beyond = opened(stores["plain"], "", **{"freeze": "true", "from": "90", "to": "7"})
    assert "steps 7–12" in texts(beyond)


def test_freeze_takes_over_the_steps_on_show(opened, stores) -> None:
    page = opened(stores["plain"], "", last="10")
    page.sidebar.toggle[0].set_value(True).run()
    assert not page.exception
    assert [box.value for box in page.sidebar.number_input] == [3, 12]
    assert "steps 3–12" in texts(page)


def test_an_unknown_run_in_the_address_falls_back_to_the_latest_and_says_so(opened, stores) -> None:
    page = opened(stores["plain"], "", run="gone")
    assert "not in this store" in texts(page)
    assert page.sidebar.selectbox[0].value == "latest"


def test_complementarity_opens_the_cell_in_the_address(opened, stores) -> None:
    page = opened(stores["plain"], "complementarity", cell="2-0")
    with source.open_reader(stores["plain"]) as store:
        pairs = store.pair_counts("latest", 1, 12)
    solved, support = int(pairs["solved"][2, 0]), int(pairs["both_attempted_fail"][2, 0])
    heading = next(element.value for element in page.subheader if "solves:" in element.value)
    assert f"{solved} of {support} groups" in heading
    table = page.table[0].value
    assert len(table) == min(8, solved)
    assert set(table.iloc[:, 3]) == {"0/8"}


@pytest.mark.parametrize("cell", ["9-0", "1-1", "x", "1", "-1-2", "1-99999999999999999999"])
def test_a_senseless_cell_in_the_address_is_ignored(opened, stores, cell: str) -> None:
    opened(stores["plain"], "complementarity", cell=cell)


def test_the_pager_walks_through_all_prompts(opened, stores) -> None:
    page = opened(stores["plain"], "complementarity", cell="2-0")
    first = page.table[0].value["Responses"].tolist()
    page.button(key="prompts_older").click().run()
    assert not page.exception
    assert not set(first) & set(page.table[0].value["Responses"])
    late = opened(stores["plain"], "complementarity", cell="2-0", at="100000")
    assert len(late.table[0].value)


def test_trajectories_show_what_the_gate_said_about_every_response(opened, stores) -> None:
    with source.open_reader(stores["plain"]) as store:
        rows, _ = store.transfers("latest", 1, 12, verdict="admitted", limit=500)
        row = next(row for row in rows if row.refused_floor and row.admitted)
        names = [member.name for member in store.run("latest").members]
        transfer = store.trajectory("latest", row.step, row.prompt, row.receiver).peers[0].transfer
    slot = str(names.index(row.receiver))
    page = opened(stores["plain"], "trajectories", step=str(row.step), prompt=str(row.prompt), receiver=slot)
    shown = texts(page)
    refused = next(response for response in transfer.responses if response.refusal == "floor")
    assert f"refused: s = {refused.s:.3f} ≤ floor 0.8" in shown
    assert shown.count("-badge[weight ") == row.admitted
    assert "s normalised by: own" in shown
    assert f"{row.admitted} of 8 responses admitted" in shown


def test_trajectories_filter_and_step_through_the_matches(opened, stores) -> None:
    assert "Withheld as a control" in texts(opened(stores["plain"], "trajectories", gate="held out"))
    page = opened(stores["plain"], "trajectories", gate="admitted", rx=MODELS[2])
    with source.open_reader(stores["plain"]) as store:
        total = store.transfers("latest", 1, 12, verdict="admitted", receiver=MODELS[2], limit=1)[1]
    assert f"transfer 1 of {total}" in texts(page)
    page.button(key="trajectory_older").click().run()
    assert f"transfer 2 of {total}" in texts(page)
    page.button(key="trajectory_newer").click().run()
    assert f"transfer 1 of {total}" in texts(page)


def test_trajectories_show_a_group_that_was_not_transferred(opened, stores) -> None:
    with source.open_reader(stores["plain"]) as store:
        names = [member.name for member in store.run("latest").members]
        pages = [
            (i, j, store.prompts_for("latest", names[i], names[j], 1, 12, limit=200)[0]) for i, j in ((2, 0), (0, 2))
        ]
        i, j, row = next((i, j, row) for i, j, rows in pages for row in rows if row.transfer == "")
    query = {"step": str(row.step), "prompt": str(row.prompt), "receiver": str(i), "source": str(j)}
    shown = texts(opened(stores["plain"], "trajectories", **query))
    assert "own group · 0/8 solved" in shown
    assert f"{row.source_successes}/8 solved" in shown


@pytest.mark.parametrize("query", [{"step": "999", "prompt": "1", "receiver": "0"}, {"step": "x", "prompt": "-1"}])
def test_a_link_to_a_group_that_is_not_there_says_so(opened, stores, query: dict[str, str]) -> None:
    opened(stores["plain"], "trajectories", **query)


def test_raw_view_shows_exactly_what_was_written(opened, stores) -> None:
    page = opened(stores["hostile"], "trajectories", view="Raw")
    assert page.code
    assert all(block.value.endswith(HOSTILE) for block in page.code)


def test_the_whole_app_waits_for_a_store_and_for_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    monkeypatch.setenv(STORE_VARIABLE, url)
    app = AppTest.from_file(ENTRY, default_timeout=60).run()
    assert not app.exception
    assert "Nothing to show yet" in texts(app)
    writer = open_writer(url)
    app.run()
    assert "no run yet" in texts(app)
    write(writer, Showcase(steps=2, prompts=4), 2, 0)
    end(writer, "finished")
    app.run()
    assert not app.exception
    assert next(metric for metric in app.metric if metric.label == "Progress").value == "100\u00a0%"
    source.reader.clear()


def test_a_store_that_was_deleted_and_made_again_is_read_anew(opened, tmp_path: Path) -> None:
    url = fill(tmp_path, Showcase(steps=2, prompts=4), 1, "finished", 0)
    assert "step 1 of 2" in texts(opened(url, ""))
    for path in tmp_path.glob("store.db*"):
        path.unlink()
    fill(tmp_path, Showcase(steps=7, prompts=4), 1, "finished", 0)
    assert "step 1 of 7" in texts(opened(url, ""))


def test_a_store_is_told_from_its_successor_however_its_path_is_written(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a%b?.db").touch()
    identities = [source.file_identity(url) for url in (str(tmp_path / "a%b?.db"), "~/a%b?.db")]
    (tmp_path / "a%b.db").touch()
    identities += [source.file_identity(f"sqlite:///{tmp_path}/a%25b.db")]
    assert all(identities)
    assert identities[0] == identities[1] != identities[2]
    assert source.file_identity("postgresql://host/graft") == ""


def test_choices_made_for_one_run_do_not_break_another_with_other_members(opened, tmp_path: Path) -> None:
    fill(tmp_path, Showcase(members=("one", "two"), steps=2, prompts=6, uid="small", name="small"), 2, "finished", 0)
    url = fill(tmp_path, Showcase(members=MODELS[:4], steps=2, prompts=6, uid="large", name="large"), 2, "finished", 0)
    page = opened(url, "trajectories", run="large", rx=MODELS[3], step="1", prompt="5", receiver="3")
    page.sidebar.selectbox[0].set_value("small").run()
    assert not page.exception
    assert "small" in texts(page)
    page = opened(url, "complementarity", run="large", cell="3-2")
    page.sidebar.selectbox[0].set_value("small").run()
    assert not page.exception


def test_a_shared_link_names_the_run_and_the_group(opened, stores) -> None:
    page = opened(stores["plain"], "trajectories")
    page.button(key="trajectory_link").click().run()
    assert not page.exception
    assert page.query_params["run"] in ("showcase", ["showcase"])
    assert {"step", "prompt", "receiver"} <= set(page.query_params)
    links = opened(stores["plain"], "complementarity").table[0].value["Responses"]
    assert all("run=showcase" in link for link in links)


def test_a_file_that_is_no_store_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store.db").write_text("these are not the bytes you are looking for" * 50)
    monkeypatch.setenv(STORE_VARIABLE, f"sqlite:///{tmp_path / 'store.db'}")
    app = AppTest.from_file(ENTRY, default_timeout=60).run()
    assert not app.exception
    assert "Nothing to show yet" in texts(app)
    source.reader.clear()


def test_a_store_of_an_older_schema_names_the_upgrade_and_is_shown_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fill(tmp_path, Showcase(steps=2, prompts=4), 1, "finished", 0)
    monkeypatch.setenv(STORE_VARIABLE, url)

    def become(version: str) -> None:
        with create_engine(url).begin() as connection:
            connection.execute(text(f"UPDATE graft_alembic_version SET version_num = '{version}'"))

    become(VERSIONS[-2])
    app = AppTest.from_file(ENTRY, default_timeout=60).run()
    assert not app.exception
    # Without the signs that keep a text from being read as Markdown.
    said = texts(app).replace("\\", "").replace("\u2060", "")
    assert f"has schema {VERSIONS[-2]}, this program needs {VERSIONS[-1]}; run: graft db upgrade {url}" in said
    become(VERSIONS[-1])
    app.run()
    assert "step 1 of 2" in texts(app)
    source.reader.clear()


def test_without_a_named_store_the_page_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STORE_VARIABLE, raising=False)
    app = AppTest.from_file(ENTRY, default_timeout=60).run()
    assert not app.exception
    assert "no store was named" in texts(app)


def test_responses_whose_file_is_gone_leave_the_rest_of_the_page_standing(opened, tmp_path: Path) -> None:
    url = fill(tmp_path, Showcase(steps=5), 5, "finished", 0)
    shutil.rmtree(tmp_path / "store_trajectories")
    page = opened(url, "trajectories", gate="admitted")
    assert page.error
    assert "transfer 1 of" in texts(page)
    assert "could not be drawn" not in texts(page)
