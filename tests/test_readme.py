"""Every command in README.md is run by a test, or by continuous integration itself."""

from __future__ import annotations

import ast
import shlex
from dataclasses import dataclass

import pytest

from tests.commands import ROOT, bash_commands, made, run, session_commands

README = (ROOT / "README.md").read_text()


@dataclass(frozen=True)
class Directly:
    """The test below runs the command as it stands and looks for a text in what it prints."""

    prints: str
    deadline_s: float = 300.0


@dataclass(frozen=True)
class ByCI:
    """.ci/run calls this make target, on a fresh checkout."""

    target: str


@dataclass(frozen=True)
class ByTest:
    """Another test runs what this make target runs, made smaller by arguments.

    `test` is "file::function"; the function takes the command line from `made(target, ...)`.
    """

    target: str
    test: str


@dataclass(frozen=True)
class InSession:
    """tests/end_to_end/test_readme_session.py runs it in its place in the README, made smaller by further options."""


# One row for each command of README.md, written as it stands there.
COVERED: dict[str, Directly | ByCI | ByTest | InSession] = {
    "make demo": ByTest("demo", "tests/end_to_end/test_demo.py::test_make_demo_trains_three_members"),
    "make demo-compare": ByTest(
        "demo-compare", "tests/end_to_end/test_demo.py::test_make_demo_compare_prints_both_with_their_cost"
    ),
    "make test": ByCI("test"),
    "make test-sglang": ByCI("test-sglang"),
    ".venv/bin/graft plan configs/demo.yaml": Directly(prints="32 x 8 = 256"),
    ".venv/bin/graft train configs/demo.yaml --set members.llama.learning_rate=1e-4 --dashboard": InSession(),
    ".venv/bin/graft train configs/demo.yaml --set members.llama.learning_rate=1e-4 --resume": InSession(),
    ".venv/bin/graft summary configs/demo.yaml": InSession(),
    ".venv/bin/graft dashboard --store sqlite:///runs/graft.db": InSession(),
    ".venv/bin/graft plan configs/paper/pair_1.yaml --overlay configs/overlays/graft-no-gate.yaml": Directly(
        prints="174 (58 an epoch"
    ),
    "make demo-methods": ByTest(
        "demo-methods", "tests/end_to_end/test_demo.py::test_make_demo_methods_runs_rows_and_prints_their_tables"
    ),
    ".venv/bin/graft replay latest --store sqlite:///runs/graft.db --set exchange.floor=0.9": InSession(),
    ".venv/bin/graft export --store sqlite:///runs/graft.db --to runs/export": InSession(),
    ".venv/bin/graft doctor": Directly(prints="The embedded default can run here"),
}


def test_every_command_of_the_readme_has_a_row_and_no_row_is_left_over() -> None:
    assert set(bash_commands(README)) == set(COVERED)


@pytest.mark.parametrize("command", [c for c, how in COVERED.items() if isinstance(how, Directly)])
def test_cheap_commands_run_as_they_stand(command: str) -> None:
    how = COVERED[command]
    assert isinstance(how, Directly)
    done = run(shlex.split(command), deadline_s=how.deadline_s)
    assert done.returncode == 0, done.stdout + done.stderr
    assert how.prints in done.stdout


@pytest.mark.parametrize("how", [how for how in COVERED.values() if isinstance(how, ByCI)])
def test_continuous_integration_calls_the_target(how: ByCI) -> None:
    assert how.target in [line.partition("make ")[2] for line in (ROOT / ".ci" / "run").read_text().splitlines()]
    assert made(how.target)


@pytest.mark.parametrize("how", [how for how in COVERED.values() if isinstance(how, ByTest)])
def test_expensive_commands_are_run_by_a_test_that_takes_them_from_the_makefile(how: ByTest) -> None:
    file, _, name = how.test.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert functions, f"{how.test} is not there"
    calls = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert any(call.startswith((f"made('{how.target}'", f"commands.made('{how.target}'")) for call in calls), (
        f"{file} does not take its command from made({how.target!r}, ...)"
    )


def test_the_session_test_runs_exactly_the_commands_that_are_left_to_it() -> None:
    assert session_commands() == [command for command, how in COVERED.items() if isinstance(how, InSession)]


def test_make_test_builds_the_environment_checks_the_sources_and_ends_with_the_tests() -> None:
    lines = [" ".join(words) for words in made("test")]
    order = [next(i for i, line in enumerate(lines) if part in line) for part in ("ruff check", "mypy", "pytest")]
    assert order == sorted(order)
    assert "pytest" in lines[-1]
    assert ".venv/bin/python" in lines[-1]


@pytest.mark.parametrize("target", ["demo", "demo-compare", "test", "lint", "dashboard", "bench"])
def test_every_target_builds_the_environment_first(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    needs = {line.split(":")[0]: line.split(":", 1)[1].split() for line in makefile.splitlines() if ": " in line}
    assert "setup" in needs[target] or "setup" in [n for need in needs[target] for n in needs.get(need, [])]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```bash\nmake demo\n```\n", ["make demo"]),
        ("```bash\n# a comment\n$ make demo  # another\n\nmake test\n```\n", ["make demo", "make test"]),
        ("```bash\ngraft train \\\n    configs/demo.yaml\n```\n", ["graft train configs/demo.yaml"]),
        ("```text\nmake demo\n```\n", []),
    ],
)
def test_commands_are_read_from_bash_blocks(text: str, expected: list[str]) -> None:
    assert bash_commands(text) == expected
