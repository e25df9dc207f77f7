"""Whether a submission passes its tests: input and output of a program, or Python tests of its functions.

The submission runs confined; the tests run in a process of their own, which no submission can reach: expected results
are never where it could read them, and nothing it does to itself changes how they are compared.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib.util
import json
import math
import os
import resource
import select
import signal
import sys
import time
import types
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from server.sandbox.confine import CannotConfine, die_with_parent, hide_from_peers
from server.sandbox.process import Budget, Confined, Failed
from server.sandbox.remote import Link

FILE_NAME = "<tests>"


class BadTests(ValueError):
    """The tests are at fault, whatever the submission; the message says how."""


FAULTS: dict[str, type[Exception]] = {kind.__name__: kind for kind in (BadTests, CannotConfine)}


@dataclass(frozen=True)
class ProgramTests:
    """(input, expected output) of every run. Outputs are compared line by line, without trailing space."""

    cases: tuple[tuple[str, str], ...]

    def run(self, code: str, budget: Budget) -> None:
        """Raises Failed at the first case that is not passed."""
        for number, (given, expected) in enumerate(self.cases, 1):
            with Confined(code, "program", budget) as process:
                status, output = process.run(given)
            if status != 0:
                how = f"signal {-status}" if status < 0 else f"status {status}"
                raise Failed(f"case {number} of {len(self.cases)}: ended with {how}")
            if _lines(output.decode("utf-8", "replace")) != _lines(expected):
                raise Failed(f"case {number} of {len(self.cases)}: another output")


@dataclass(frozen=True)
class FunctionTests:
    """Python text with assertions about the submission's names; functions called test_... in it are called."""

    text: str

    def tree(self) -> ast.Module:
        """Raises BadTests where the text is not Python."""
        try:
            tree = ast.parse(self.text, FILE_NAME)
            compile(tree, FILE_NAME, "exec")  # what is a sentence and yet no program, such as a lone return
            return tree
        except (SyntaxError, ValueError, RecursionError) as error:
            raise BadTests(f"the tests are not Python: {error}") from None

    def run(self, code: str, budget: Budget) -> None:
        """Raises Failed where an assertion does not hold, BadTests where there is none about the submission."""
        tree = self.tree()
        imports = _imports(tree)
        with Confined(code, "functions", budget) as process:
            try:
                link = Link(process)
                names = link.names(_wanted(tree, imports))
            except CannotConfine:
                raise
            except Exception as error:
                raise Failed(f"{type(error).__name__} when the submission was run") from None
            module = types.ModuleType("tests")
            vars(module).update(imports, **names)
            try:
                exec(compile(tree, FILE_NAME, "exec"), vars(module))
                for name, value in list(vars(module).items()):
                    if name.startswith("test_") and isinstance(value, types.FunctionType):
                        value()
            except Failed:
                raise
            except BaseException as error:
                raise Failed(f"{type(error).__name__} in line {_line_of(error)} of the tests") from None
            if process.failure is not None:  # swallowed by a bare except of the tests
                raise process.failure
            if not link.used:
                raise BadTests("the tests never use the submission; a check() must be called at their end")


Tests = ProgramTests | FunctionTests


def examine(code: str, tests: Tests, budget: Budget) -> str | None:
    """None where the code passes, else one line on why not. Raises BadTests, CannotConfine.

    Forks: to be called in a process with one thread, such as the worker of a reward function.
    """
    if isinstance(tests, FunctionTests):
        tests.tree()
    said = _apart(lambda: tests.run(code, budget), budget)
    if said is None:
        return "the tests came to no end"
    how, detail = said
    if how in FAULTS:
        raise FAULTS[how](detail)
    return None if how == "passed" else detail


def _apart(work: Callable[[], None], budget: Budget) -> list[Any] | None:
    """[how it went, detail] from a child process, None where it ended or was killed without a word."""
    reader, writer = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _in_child(work, writer, parent, budget)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb", buffering=0) as said:
            text, deadline = b"", time.monotonic() + budget.wall_s + 1.0
            while select.select([said], [], [], max(0.0, deadline - time.monotonic()))[0]:
                piece = said.read(4096)
                if not piece:
                    return list(json.loads(text)) if text else None
                text += piece
        return None
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _in_child(work: Callable[[], None], writer: int, parent: int, budget: Budget) -> NoReturn:
    """Run the work with nothing of the worker's at hand, say how it went, and end."""
    try:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        die_with_parent(parent)
        hide_from_peers()
        seconds = math.ceil(budget.cpu_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        os.dup2(writer, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        _say(_outcome(work))
    finally:
        os._exit(0)


def _outcome(work: Callable[[], None]) -> tuple[str, str]:
    """("passed", "failed" or one of FAULTS, detail)."""
    try:
        work()
    except Failed as failure:
        return "failed", str(failure)
    except (BadTests, CannotConfine) as fault:
        return type(fault).__name__, str(fault)
    except Exception as error:  # ours, not the submission's
        return BadTests.__name__, f"the examiner failed: {type(error).__name__}: {error}"
    return "passed", ""


def _say(outcome: tuple[str, str]) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(3, json.dumps(outcome).encode("ascii"))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _loaded_names(tree: ast.Module) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _wanted(tree: ast.Module, imports: Collection[str]) -> list[str]:
    """Names the tests take from the submission: never one of Python's own, so that none is replaced."""
    return sorted(_loaded_names(tree) - set(vars(builtins)) - set(imports))


def _imports(tree: ast.Module) -> dict[str, types.ModuleType]:
    """Standard modules the tests name without importing or defining them, as in math.isclose: the real ones."""
    bases = {n.value.id for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    called = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    bound |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    wanted = sorted((bases - called - bound) & sys.stdlib_module_names)
    return {name: importlib.import_module(name) for name in wanted if importlib.util.find_spec(name)}


def _line_of(error: BaseException) -> int:
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILE_NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def read_cases(pairs: Sequence[tuple[Any, Any]]) -> ProgramTests:
    """Cases of texts. Raises BadTests."""
    if not pairs or not all(isinstance(part, str) for pair in pairs for part in pair):
        raise BadTests("cases are pairs of texts: an input and its output, at least one")
    return ProgramTests(tuple(pairs))
