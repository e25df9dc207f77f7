"""Reward functions in runs: the shipped configurations, the documentation's example, and a run through the engine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from population.cli import app
from population.config import DataConfig, load
from population.grading import require_reward, reward_service, to_grade
from population.prompts import load_problems
from server.rewards import Item, RewardService, VerdictCode
from server.store.reader import open_reader
from tests.commands import ROOT, run
from tests.confinement import skip_where_code_cannot_be_confined

CODE = "server.rewards.code:score"


def no_check(answers: object) -> list[int]:
    raise AssertionError("answers of a reward function are not read as mathematics")


@pytest.mark.parametrize("name", ["choice", "code"])
def test_the_shipped_configurations_are_planned(name: str) -> None:
    if name == "code":
        skip_where_code_cannot_be_confined()
    done = CliRunner().invoke(app, ["plan", f"configs/rewards/{name}.yaml"])
    assert done.exit_code == 0, done.output
    assert "4 x 8 = 32" in done.output


def test_the_shipped_solutions_pass_their_tests_and_others_do_not() -> None:
    skip_where_code_cannot_be_confined()
    config = load("configs/rewards/code.yaml")
    problems, _ = load_problems(config.data, no_check)
    lines = [json.loads(line) for line in Path(config.data.source).read_text().splitlines()]
    assert all(problem.reward == CODE and "```python block" in problem.prompt for problem in problems)
    with reward_service(config.rewards.model_copy(update={"workers": 2, "timeout_s": 60.0})) as service:
        require_reward(config.data, "data", service)
        solutions = [f"So:\n```python\n{line['solution']}\n```" for line in lines]
        right = service.grade([to_grade(p, s) for p, s in zip(problems, solutions, strict=True)])
        wrong = service.grade([to_grade(p, s) for p, s in zip(problems, solutions[1:] + solutions[:1], strict=True)])
    assert [v.code for v in right] == [VerdictCode.RIGHT] * len(lines), right
    assert [v.code for v in wrong] == [VerdictCode.WRONG] * len(lines), wrong


def test_the_shipped_questions_are_settled_by_their_answers() -> None:
    config = load("configs/rewards/choice.yaml")
    problems, _ = load_problems(config.data, no_check)
    with reward_service(config.rewards) as service:
        require_reward(config.data, "data", service)
        right = service.grade([to_grade(p, f"I think so.\nAnswer: {p.answer}") for p in problems])
        wrong = service.grade([to_grade(p, "I do not know.") for p in problems])
    assert [v.reward for v in right] == [1.0] * len(problems)
    assert [v.reward for v in wrong] == [0.0] * len(problems)
    assert right[0].extracted == "B"


def test_the_example_of_the_documentation_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/rewards.md").read_text()
    source, _ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (setting,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "my_rewards.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    data = DataConfig(**yaml.safe_load(setting)["data"])
    with RewardService() as service:
        require_reward(data, "data", service)
        verdicts = service.grade([Item("", text, "", data.reward) for text in ("I say 4", "I say 5", "")])
    assert [(v.reward, v.extracted) for v in verdicts] == [(1.0, "4"), (0.0, "5"), (0.0, None)]


def test_a_bad_name_ends_the_plan_with_its_place_and_the_nearest_name() -> None:
    for setting, message in (
        (
            "data.reward=server.rewards.choice:scor",
            "data.reward: server.rewards.choice:scor: server.rewards.choice has",
        ),
        ("evaluation.benchmarks.choice.reward=server.rewards.chioce:score", "evaluation.benchmarks.choice.reward: "),
        ("data.reward=choice", 'must be "module:function"'),
    ):
        done = CliRunner().invoke(app, ["plan", "configs/rewards/choice.yaml", "--set", setting])
        assert done.exit_code == 2
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_run_with_a_reward_function_grades_as_the_verifier_it_agrees_with(warm_folder: Path) -> None:
    """The demo's answers are met word for word exactly where the mathematics verifier calls them right."""
    store = f"sqlite:///{warm_folder / 'rewards.db'}"
    settings = {
        "name": "words",
        "folder": warm_folder,
        "store": store,
        "steps": 1,
        "evaluation.benchmarks.heldout.reward": "server.rewards.choice:score",
        "evaluation.benchmarks.heldout.limit": 8,
        "data.reward": "server.rewards.choice:score",
    }
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    done = run([".venv/bin/graft", "train", "configs/demo_pair.yaml", *sets], deadline_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    with open_reader(store) as reader:
        uid = reader.run("latest").uid
        groups = [group for member in ("qwen3", "llama") for group in reader.groups(uid, 1, member)]
        problems = reader.prompts([group.prompt for group in groups])
        assert {evaluation.step for evaluation in reader.evaluations(uid)} == {0, 1}
    assert any(0 < group.successes < group.n for group in groups)
    with RewardService() as service:
        for group in groups:
            pairs = [(problems[group.prompt].answer, response.text) for response in group.responses]
            assert [v.reward for v in service.grade(pairs)] == [response.reward for response in group.responses]
