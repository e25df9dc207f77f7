"""Fields are found inside records, answers inside fields, and only what is asked for is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from population.config import DataConfig, as_dict, load, parse
from population.data.answers import reference_answer
from population.data.records import field_value, file_rows
from population.data.templates import TEMPLATES
from population.errors import ConfigError, DataError
from population.prompts import load_problems

NESTED = {"prompt": [{"role": "user", "content": "1+1?"}], "extra_info": {"answer": 2}, "a.b": "dots", "a": {"b": "in"}}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("prompt.0.content", "1+1?"),
        ("extra_info.answer", 2),
        ("a.b", "dots"),
        ("prompt.1.content", None),
        ("prompt.-1.content", None),
        ("prompt.0", {"role": "user", "content": "1+1?"}),
        ("extra_info.answer.more", None),
        ("none", None),
        ("a.b.0", None),
    ],
)
def test_a_dotted_path_leads_into_structures_and_lists(path: str, expected: Any) -> None:
    assert field_value(NESTED, path) == expected


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_nested_fields_are_read_alike_from_json_lines_and_parquet(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        path.write_text(json.dumps(NESTED))
    else:
        parquet.write_table(pa.Table.from_pylist([NESTED]), path)
    data = DataConfig(source=str(path), prompt_field="prompt.0.content", answer_field="extra_info.answer")
    (problem,), _ = load_problems(data, lambda answers: [])
    assert (problem.prompt, problem.answer) == ("1+1?", "2")


def test_of_parquet_only_the_columns_of_the_fields_are_read(tmp_path: Path) -> None:
    parquet.write_table(pa.Table.from_pylist([NESTED | {"large": "x"}] * 5000), tmp_path / "a.parquet")
    rows = list(file_rows(tmp_path / "a.parquet", ("prompt.0.content", "extra_info.answer", "not there")))
    assert rows[-1] == ({key: NESTED[key] for key in ("prompt", "extra_info")}, f"{tmp_path}/a.parquet record 5000")


def test_without_the_wanted_fields_the_message_names_those_there_are(tmp_path: Path) -> None:
    parquet.write_table(pa.Table.from_pylist([{"question": "q", "gold": "1"}]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet record 1: no 'prompt'; its fields are question, gold: set prompt"):
        load_problems(DataConfig(source=str(tmp_path / "a.parquet")), lambda answers: [])


@pytest.mark.parametrize(
    ("text", "answer_format", "expected"),
    [
        (r"so $x = \boxed{\frac{1}{2}}$, hence \boxed{3}.", "boxed", "3"),
        (r"$\boxed{\text{(A)} \left\{1, 2\right\}}$", "boxed", r"\text{(A)} \left\{1, 2\right\}"),
        (r"a cut off \boxed{12", "boxed", None),
        ("the answer is 12", "boxed", None),
        ("She has 40 + 2 = <<40+2=42>>42 apples.\n#### 42", "hashes", "42"),
        ("first #### 1\n#### 1,234,567", "hashes", "1234567"),
        ("#### 1,2", "hashes", "1,2"),
        ("no mark", "hashes", None),
        ("#### ", "hashes", None),
        (" as it is ", "plain", " as it is "),
    ],
)
def test_the_reference_answer_is_found_in_its_field(text: str, answer_format: str, expected: str | None) -> None:
    assert reference_answer(text, answer_format) == expected


def test_a_field_without_an_answer_in_its_format_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "x", "answer": "it is 42"}')
    data = DataConfig(source=str(tmp_path / "a.jsonl"), answer_format="boxed")
    with pytest.raises(DataError, match=r"a\.jsonl line 1: 'answer' has no answer in the format 'boxed': it ends with"):
        load_problems(data, lambda answers: [])


def test_a_template_goes_by_its_name_and_is_recorded_as_its_text() -> None:
    text = DataConfig(source="a.jsonl", template="boxed").template
    assert (
        text == TEMPLATES["boxed"] == r"{prompt} Let's think step by step and output the final answer within \boxed{}."
    )
    assert all("{prompt}" in template for template in TEMPLATES.values())


def configuration(**data: Any) -> dict[str, Any]:
    return {
        "name": "x",
        "method": "grpo",
        "steps": 1,
        "members": [{"name": "a", "model": "m"}],
        "update": {"prompts_per_minibatch": 4},
        "data": {"prompts_per_step": 4} | data,
    }


def test_a_preset_fills_in_the_keys_that_are_not_given_and_a_record_reads_back_the_same() -> None:
    config = parse(configuration(source="preset:math-train", level_field=None))
    assert (config.data.prompt_field, config.data.answer_field) == ("problem", "solution")
    assert (config.data.answer_format, config.data.subject_field, config.data.level_field) == ("boxed", "type", None)
    assert config.data.split == "train"
    assert parse(as_dict(config)) == config


def test_an_override_of_the_source_brings_the_presets_fields(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(json.dumps(configuration(source="demo:train")))
    config = load(tmp_path / "a.yaml", ["data.source=preset:gsm8k-train"])
    assert (config.data.subset, config.data.prompt_field, config.data.answer_format) == ("main", "question", "hashes")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"source": "preset:math501"}, r"there is no data set 'preset:math501'; did you mean 'preset:math500'\?"),
        ({"source": "preset:zzz"}, r"there are preset:math-train, preset:math500,"),
        ({"source": "a.jsonl", "template": "boxd"}, r"data\.template: must contain \{prompt\}.*did you mean 'boxed'\?"),
        ({"source": "a.jsonl", "answer_format": "box"}, r"data\.answer_format: "),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(configuration(**data))
