"""Hub data sets: local copies laid out as the hub's, the cache, a hub that answers, and none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from population.config import DataConfig
from population.data import hub
from population.data.presets import PRESETS, find_preset
from population.errors import DataError
from population.prompts import Problem, load_problems
from tests.data.loopback_hub import handler_for, serve


def read(source: str, **keys: Any) -> list[Problem]:
    return load_problems(DataConfig(source=source, **keys), lambda answers: [])[0]


def write(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(records), path)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))


def dapo(number: int) -> dict[str, Any]:
    before, after = PRESETS["dapo-math-17k"].unwrap
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": f"{before}What is {number}?{after}", "role": "user"}],
        "reward_model": {"ground_truth": str(number), "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": f"{number:08x}"},
    }


def solved(number: int) -> dict[str, Any]:
    level = "Level ?" if number == 0 else f"Level {1 + number % 5}"
    return {"problem": f"p {number}", "level": level, "type": "Algebra", "solution": rf"So \boxed{{{number}}}."}


def asked(number: int) -> dict[str, Any]:
    return {"question": f"q {number}", "answer": str(number), "url": ""}


# The file of each set on the hub, its records there, and the first and last problem they make.
LAYOUTS: dict[str, tuple[str, list[dict[str, Any]], Problem]] = {
    "math-train": ("data/train-00000-of-00001.parquet", [solved(i) for i in range(7500)],
                   Problem(0, "p 7499", "7499", "", "Algebra", 5)),
    "math500": ("test.jsonl",
                [{"problem": f"p {i}", "solution": "", "answer": rf"\frac{{{i}}}{{7}}", "subject": "Geometry",
                  "level": 2} for i in range(500)],
                Problem(0, "p 499", r"\frac{499}{7}", "", "Geometry", 2)),
    "aime2024": ("data/train-00000-of-00001.parquet",
                 [{"id": i, "problem": f"p {i}", "solution": "", "answer": f"{i:03d}", "url": "", "year": "2024"}
                  for i in range(30)],
                 Problem(0, "p 29", "029", "")),
    "aime2025": ("test.jsonl", [{"problem": f"p {i}", "answer": str(i), "id": str(i)} for i in range(30)],
                 Problem(0, "p 29", "29", "")),
    "amc23": ("test-00000-of-00001.parquet", [asked(i) for i in range(40)], Problem(0, "q 39", "39", "")),
    "minerva": ("test.jsonl", [asked(i) for i in range(272)], Problem(0, "q 271", "271", "")),
    "gsm8k-train": ("main/train-00000-of-00001.parquet",
                    [{"question": f"q {i}", "answer": f"<<{i}>>\n#### {i:,}"} for i in range(7473)],
                    Problem(0, "q 7472", "7472", "")),
    "gsm8k-test": ("main/test-00000-of-00001.parquet",
                   [{"question": f"q {i}", "answer": f"<<{i}>>\n#### {i:,}"} for i in range(1319)],
                   Problem(0, "q 1318", "1318", "")),
    "dapo-math-17k": ("data/dapo-math-17k.parquet", [dapo(i) for i in range(17398)] + [dapo(i) for i in range(519)],
                      Problem(0, "What is 17397?", "17397", "")),
}  # fmt: skip


def test_every_preset_has_its_layout_here() -> None:
    assert LAYOUTS.keys() == PRESETS.keys()


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_local_copy_laid_out_as_the_hubs_is_read(name: str, data_folder: Path) -> None:
    file, records, last = LAYOUTS[name]
    preset = PRESETS[name]
    write(data_folder / preset.repository / file, records)
    problems = read(f"preset:{name}")
    assert len(problems) == (preset.problems or preset.rows)
    found = problems[-1]
    assert (found.prompt, found.answer, found.subject, found.level) == (
        last.prompt, last.answer, last.subject, last.level,
    )  # fmt: skip
    assert found.dataset == f"preset:{name}"


def test_a_copy_may_lie_under_the_name_alone(data_folder: Path) -> None:
    write(data_folder / "aime25" / "test.jsonl", LAYOUTS["aime2025"][1])
    assert len(read("preset:aime2025")) == 30


def test_another_version_of_a_known_set_is_refused_by_what_it_holds(data_folder: Path) -> None:
    write(data_folder / "HuggingFaceH4/MATH-500/test.jsonl", LAYOUTS["math500"][1][:-1])
    with pytest.raises(
        DataError, match=r"preset:math500: has 499 records, expected 500 of HuggingFaceH4/MATH-500, spl"
    ):
        read("preset:math500")
    write(data_folder / PRESETS["dapo-math-17k"].repository / "data/dapo-math-17k.parquet", [dapo(1), dapo(1), dapo(2)])
    with pytest.raises(DataError, match="has 2 distinct problems, expected 17398"):
        read("preset:dapo-math-17k")


def test_a_problem_that_comes_again_with_another_answer_is_read_once_from_dapo(data_folder: Path) -> None:
    other = dapo(5) | {"reward_model": {"ground_truth": "6", "style": ""}}
    records = [*LAYOUTS["dapo-math-17k"][1], other]
    write(data_folder / PRESETS["dapo-math-17k"].repository / "data/dapo-math-17k.parquet", records)
    assert [p.answer for p in read("preset:dapo-math-17k") if p.prompt == "What is 5?"] == ["5"]


def test_a_copy_with_files_missing_is_refused_by_name(data_folder: Path) -> None:
    folder = data_folder / "openai/gsm8k"
    write(folder / "socratic/train-00000-of-00001.parquet", [asked(1)])
    with pytest.raises(
        DataError, match=r"has no main/train-\*\.parquet; it has socratic/train-00000-of-00001\.parquet"
    ):
        read("preset:gsm8k-train")
    write(folder / "main/train-00001-of-00003.parquet", [asked(1)])
    with pytest.raises(DataError, match=r"has 1 of the 3 files main/train-\*\.parquet; copy the others"):
        read("preset:gsm8k-train")


def test_offline_the_message_names_repository_files_and_the_place_to_put_them(data_folder: Path) -> None:
    place = data_folder / "openai/gsm8k"
    with pytest.raises(DataError) as error:
        read("preset:gsm8k-test")
    message = str(error.value)
    assert message.startswith("preset:gsm8k-test: openai/gsm8k is not on this machine and the hub cannot be reached (")
    command = f"`hf download openai/gsm8k --repo-type dataset --include 'main/test-*.parquet' --local-dir {place}`"
    assert command in message
    assert f"looked for {place}/main/test-*.parquet (GRAFT_DATA names another folder" in message
    assert "\n" not in message
    with pytest.raises(DataError, match=r"hub:some/set: some/set is not .* --revision v1 --local-dir .*/some/set` and"):
        read("hub:some/set", revision="v1")


def test_a_hub_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = threading.Event()

    class Silent(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given_up.wait(60)

    monkeypatch.setattr(hub, "PROBE_S", 0.2)
    with serve(Silent) as address:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        with pytest.raises(DataError, match=r"the hub cannot be reached \((Read|Connect)Timeout"):
            read("preset:math500")
        given_up.set()


def test_a_transfer_past_its_deadline_is_given_up() -> None:
    given_up = threading.Event()
    data = hub.HubData("hub:a/b", "a/b", None, None, None, deadline_s=0.05)
    with pytest.raises(DataError, match=r"hub:a/b: a/b did not arrive within 0\.05 s; .* raise load_s"):
        hub._bounded(given_up.wait, data)
    given_up.set()


@pytest.fixture
def online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A hub that answers, and the folder of its data sets."""
    with serve(handler_for(tmp_path / "online")) as address:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", address)
        template = "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + template)
        yield tmp_path / "online"


def test_a_presets_files_are_fetched_once_and_then_found_in_the_cache(
    online: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(online / "math-ai/aime25/test.jsonl", LAYOUTS["aime2025"][1])
    assert len(read("preset:aime2025")) == 30
    with pytest.raises(DataError, match="the hub has no data set math-ai/minervamath that this machine may read"):
        read("preset:minerva")
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert len(read("preset:aime2025")) == 30


def test_any_set_of_the_hub_is_fetched_by_subset_and_split_and_found_again_without_the_hub(
    online: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_two_subsets(online / "own/two")
    keys = {"prompt_field": "question", "subset": "first", "split": "test"}
    assert [p.answer for p in read("hub:own/two", **keys)] == ["2"]
    with pytest.raises(DataError, match=r"own/two cannot be read.*'third' not found"):
        read("hub:own/two", **keys | {"subset": "third"})
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert [p.answer for p in read("hub:own/two", **keys)] == ["2"]


@pytest.mark.parametrize("split", [None, "test"])
def test_any_hub_set_is_read_by_split_and_fields(data_folder: Path, split: str | None) -> None:
    write(data_folder / "own/sums/test.jsonl", [{"q": {"text": f"{i}+1?"}, "a": [str(i + 1)]} for i in range(3)])
    problems = read("hub:own/sums", split=split, prompt_field="q.text", answer_field="a.0")
    assert [(p.prompt, p.answer, p.dataset) for p in problems][2] == ("2+1?", "3", "hub:own/sums")


def write_two_subsets(folder: Path) -> None:
    write(folder / "x/a.parquet", [asked(1)])
    write(folder / "x/b.parquet", [asked(2)])
    write(folder / "y/c.parquet", [asked(3)])
    (folder / "README.md").write_text(
        "---\nconfigs:\n"
        "- config_name: first\n  data_files:\n"
        "  - {split: train, path: x/a.parquet}\n  - {split: test, path: x/b.parquet}\n"
        "- config_name: second\n  data_files:\n  - {split: train, path: y/c.parquet}\n---\n"
    )


def test_subsets_and_splits_are_those_of_the_repositorys_card(data_folder: Path) -> None:
    write_two_subsets(data_folder / "own/two")
    keys = {"prompt_field": "question", "subset": "first"}
    assert [p.answer for p in read("hub:own/two", split="test", **keys)] == ["2"]
    assert [p.answer for p in read("hub:own/two", **keys | {"subset": "second"})] == ["3"]
    with pytest.raises(DataError, match="hub:own/two: has the splits train, test; name one: split: train"):
        read("hub:own/two", **keys)
    with pytest.raises(DataError, match=r'own/two cannot be read.*Unknown split "dev"'):
        read("hub:own/two", split="dev", **keys)


@pytest.mark.parametrize("source", ["hub:name", "hub:", "hub:a/b/c", "hub:https://huggingface.co/a/b"])
def test_a_repository_has_an_owner_and_a_name(source: str) -> None:
    with pytest.raises(DataError, match="expected hub:OWNER/NAME"):
        read(source)


def test_a_preset_without_its_prefix_is_understood() -> None:
    with pytest.raises(DataError, match=r"math500: unknown kind of data set; did you mean preset:math500\?"):
        read("math500")


def test_find_preset_leaves_other_sources_alone() -> None:
    assert find_preset("math500.jsonl") is None
