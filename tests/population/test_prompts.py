"""Problems are read strictly, and a batch is a pure function of data, seed and step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from population.config import DataConfig
from population.prompts import (
    DataError,
    Problem,
    PromptBatches,
    load_problems,
    problem_key,
    problems_digest,
)


def all_fine(answers: Sequence[str]) -> list[int]:
    return []


def problems(count: int) -> list[Problem]:
    return [Problem(problem_key("d", f"p{i}", "1"), f"p{i}", "1", "d") for i in range(count)]


def write_lines(path: Path, records: Sequence[object]) -> DataConfig:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return DataConfig(source=str(path))


def test_an_epoch_visits_every_problem_once_and_the_next_in_another_order() -> None:
    batches = PromptBatches(problems(12), 4, seed=3)
    epochs = [[p.prompt for step in range(1 + 3 * e, 4 + 3 * e) for p in batches.batch(step)] for e in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(p.prompt for p in batches.problems)
    assert epochs[0] != epochs[1]


def test_a_batch_needs_no_history() -> None:
    straight = PromptBatches(problems(20), 4, seed=0)
    seen = [straight.batch(step) for step in range(1, 12)]
    assert PromptBatches(problems(20), 4, seed=0).batch(9) == seen[8]
    assert PromptBatches(problems(20), 4, seed=1).batch(9) != seen[8]


def test_an_incomplete_last_batch_is_dropped_as_in_the_paper() -> None:
    batches = PromptBatches(problems(7500), 128, seed=0)
    assert batches.steps_per_epoch == 58
    assert 3 * batches.steps_per_epoch == 174
    assert batches.position(59) == (1, 0)


def test_fewer_problems_than_a_step_needs_are_refused() -> None:
    with pytest.raises(DataError, match=r"3 problems are fewer than data\.prompts_per_step = 4"):
        PromptBatches(problems(3), 4, seed=0)


def test_keys_fit_in_53_bits_and_depend_on_every_part() -> None:
    keys = {
        problem_key(*parts)
        for parts in [("d", "p", "1"), ("d", "p", "2"), ("d", "q", "1"), ("e", "p", "1"), ("dp", "", "1")]
    }
    assert len(keys) == 5
    assert all(0 <= key < 2**53 for key in keys)


def test_json_lines_csv_and_parquet_give_the_same_problems(tmp_path: Path) -> None:
    records = [
        {"problem": "1+1?", "answer": "2", "kind": "add", "level": "Level 3"},
        {"problem": "2+2?", "answer": "4", "kind": "add", "level": "1"},
    ]
    fields = {"prompt_field": "problem", "subject_field": "kind"}
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(r) for r in records))
    (tmp_path / "a.csv").write_text(
        "problem,answer,kind,level\n" + "".join(f"{','.join(r.values())}\n" for r in records)
    )
    parquet.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    found = [
        load_problems(DataConfig(source=str(tmp_path / f"a.{kind}"), **fields), all_fine)[0]
        for kind in ("jsonl", "csv", "parquet")
    ]
    plain = [[(p.prompt, p.answer, p.subject, p.level) for p in kind] for kind in found]
    assert plain[0] == plain[1] == plain[2] == [("1+1?", "2", "add", 3), ("2+2?", "4", "add", 1)]


def test_the_template_wraps_the_prompt_and_duplicates_are_read_once(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "a.jsonl", [{"prompt": "x", "answer": "1"}] * 3)
    found, _ = load_problems(data.model_copy(update={"template": "Solve {prompt} and box it."}), all_fine)
    assert [p.prompt for p in found] == ["Solve x and box it."]


def test_unverifiable_answers_are_named_and_counted_or_skipped_as_configured(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "a.jsonl", [{"prompt": "x", "answer": "1"}, {"prompt": "y", "answer": "?!"}])
    bad = lambda answers: [i for i, answer in enumerate(answers) if answer == "?!"]  # noqa: E731
    with pytest.raises(
        DataError, match=r"1 of 2 answers cannot be verified: '\?!' of 'y'; mend them or set unparsable: skip"
    ):
        load_problems(data, bad)
    kept, skipped = load_problems(data.model_copy(update={"unparsable": "skip"}), bad)
    assert [p.prompt for p in kept] == ["x"]
    assert [p.answer for p in skipped] == ["?!"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"prompt": "x", "answer": "1"}\n{"prompt"\n', r"a\.jsonl line 2: not valid JSON"),
        ("a.jsonl", "[1]\n", r"line 1: expected an object"),
        ("a.jsonl", '{"prompt": "x"}\n', r"line 1: no 'answer'; its fields are prompt"),
        ("a.jsonl", '{"prompt": "x", "answer": "1", "level": "hard"}\n', r"line 1: level 'hard' is not a whole number"),
        ("a.jsonl", '{"prompt": "x", "answer": ["1"]}\n', r"line 1: 'answer' is a list, expected text or a number"),
        ("a.jsonl", '{"prompt": "x", "answer": NaN}\n', r"line 1: 'answer' is not a number, expected text"),
        ("a.jsonl", '{"prompt": "x", "answer": "1", "level": 100000000000}\n', r"level 100000000000 is not a whole"),
        ("a.jsonl", "[" * 100000, r"line 1: not valid JSON"),
        ("a.jsonl", "", "holds no problems"),
        ("a.txt", "x", "unknown kind of data set"),
    ],
)
def test_a_bad_file_is_refused_with_place_and_remedy(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        load_problems(DataConfig(source=str(tmp_path / name)), all_fine)


def test_a_missing_file_and_an_unknown_demo_set_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load_problems(DataConfig(source=str(tmp_path / "none.jsonl")), all_fine)
    with pytest.raises(DataError, match="unknown demo data set"):
        load_problems(DataConfig(source="demo:tests"), all_fine)


def test_the_demo_sets_are_disjoint_and_as_large_as_documented() -> None:
    train, _ = load_problems(DataConfig(source="demo:train"), all_fine)
    heldout, _ = load_problems(DataConfig(source="demo:heldout"), all_fine)
    assert len(train) == 768
    assert len(heldout) >= 300
    assert not {p.prompt for p in train} & {p.prompt for p in heldout}


@pytest.mark.parametrize(("level", "expected"), [("3.0", 3), ("NaN", None), ('"Level 4"', 4), ("null", None), ("2", 2)])
def test_levels_of_data_frames_are_read(tmp_path: Path, level: str, expected: int | None) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"prompt": "x", "answer": "1", "level": {level}}}')
    found, _ = load_problems(DataConfig(source=str(tmp_path / "a.jsonl")), all_fine)
    assert found[0].level == expected


def test_a_byte_order_mark_is_no_part_of_a_field(tmp_path: Path) -> None:
    for name, text in (("a.csv", "prompt,answer\nx,1\n"), ("a.jsonl", '{"prompt": "x", "answer": "1"}')):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        found, _ = load_problems(DataConfig(source=str(tmp_path / name)), all_fine)
        assert [p.prompt for p in found] == ["x"]


def test_keys_and_digests_of_the_first_release_stay(tmp_path: Path) -> None:
    """Stored runs find their problems by these numbers; every one was computed with the first release."""
    train, _ = load_problems(DataConfig(source="demo:train"), all_fine)
    heldout, _ = load_problems(DataConfig(source="demo:heldout"), all_fine)
    assert [p.key for p in train[:2]] == [5711197543576069, 7566299075228834]
    assert (problems_digest(train), problems_digest(heldout)) == ("6b6abebd687cd86e", "6f0f0c9cd3d6a077")
    assert problem_key("a.jsonl", "Solve x and box it.", "1") == 1601480652807298
    data = write_lines(tmp_path / "a.jsonl", [{"prompt": "x", "answer": "1"}])
    (problem,), _ = load_problems(data.model_copy(update={"template": "Solve {prompt} and box it."}), all_fine)
    assert problem.key == problem_key(str(tmp_path / "a.jsonl"), "Solve x and box it.", "1")
