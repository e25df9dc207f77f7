"""The rooms keep to themselves: who may import whom, read from the source and tried in fresh interpreters."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("graft", "server", "population", "dashboard")

# What a room may import besides itself, by module prefix.
MAY_IMPORT = {
    "graft": (),
    "server": ("graft",),
    "population": ("graft", "server"),
    "dashboard": ("server.store.reader", "graft.complementarity"),
}
# A package that only these files may import.
ONLY_HERE = {
    "deepspeed": ("population/trainer.py",),
    "ray": ("population/placement/*.py",),
    "sglang": ("server/rollouts/sglang_*.py",),
    "streamlit": ("dashboard/*",),
}
# graft/ computes: no files, no processes, no clock.
IMPURE = {
    "asyncio", "concurrent", "datetime", "io", "logging", "multiprocessing", "os", "pathlib", "shutil", "socket",
    "subprocess", "tempfile", "threading", "time",
}  # fmt: skip
GRAFT_THIRD_PARTY = {"numpy", "torch", "networkx", "scipy"}
# What must import, and never need, the model libraries.
LIGHT = (
    "dashboard", "server.store", "population.config", "population.plan", "population.doctor",
    "population.replay_command", "population.compare",
)  # fmt: skip
HEAVY = ("torch", "deepspeed", "sglang", "transformers")
IMPORT_DEADLINE_S = 120


@dataclass(frozen=True)
class Import:
    """One import: the module named, the line, and whether it happens when the importing module is loaded."""

    module: str
    line: int
    at_load: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def sources() -> dict[str, Path]:
    """Every module of the rooms and its file."""
    return {module_name(path): path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))}


def imports_of(source: str, package: str) -> Iterator[Import]:
    """Every import in a source text: relative ones resolved against the package, dynamic ones with a literal name."""

    def visit(node: ast.AST, at_load: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(name.name, node.lineno, at_load)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            yield Import(base, node.lineno, at_load)
            # `from server.store import reader` names the module server.store.reader.
            for name in node.names:
                yield Import(f"{base}.{name.name}", node.lineno, at_load)
        elif isinstance(node, ast.Call) and node.args and is_dynamic_import(node.func):
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield Import(argument.value, node.lineno, at_load)
        inner = at_load and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from visit(child, False)
            for child in node.orelse:
                yield from visit(child, inner)
            return
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inner)

    yield from visit(ast.parse(source), True)


def is_dynamic_import(function: ast.expr) -> bool:
    return ast.unparse(function) in {"importlib.import_module", "import_module", "__import__"}


@cache
def imports(module: str) -> tuple[Import, ...]:
    path = sources()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return tuple(imports_of(path.read_text(), package))


def within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def may_import(room: str, imported: str) -> bool:
    """A room imports itself and what it is allowed. `from server.store import reader` also names its parents."""
    if imported.split(".")[0] not in ROOMS or within(imported, room):
        return True
    return any(within(imported, allowed) for allowed in MAY_IMPORT[room])


def violations(module: str) -> list[str]:
    """What a module imports against the rules, one line each."""
    path = sources()[module].relative_to(ROOT).as_posix()
    room = module.split(".")[0]
    found = []
    named = {(item.line, item.module) for item in imports(module)}
    for line, imported in sorted(named):
        if not may_import(room, imported) and not leads_to_allowed(room, line, imported, named):
            found.append(f"{path}:{line}: {room}/ may not import {imported}")
        top = imported.split(".")[0]
        if top in ONLY_HERE and not any(fnmatch(path, pattern) for pattern in ONLY_HERE[top]):
            found.append(f"{path}:{line}: only {', '.join(ONLY_HERE[top])} may import {top}")
    return found


def leads_to_allowed(room: str, line: int, imported: str, named: set[tuple[int, str]]) -> bool:
    """Whether `from A import b` names A only to reach allowed modules A.b."""
    below = [other for at, other in named if at == line and other.startswith(imported + ".")]
    return bool(below) and all(may_import(room, other) and other in sources() for other in below)


def test_rooms_import_only_what_they_may() -> None:
    found = [line for module in sources() for line in violations(module)]
    assert not found, "\n".join(found)


def test_graft_is_pure() -> None:
    found = []
    for module in sources():
        if not within(module, "graft"):
            continue
        for item in imports(module):
            top = item.module.split(".")[0]
            if top in IMPURE or (top not in sys.stdlib_module_names | GRAFT_THIRD_PARTY | {"graft"}):
                found.append(f"{module}:{item.line}: graft/ is pure and may not import {item.module}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import a.b", {"a.b"}),
        ("from a import b", {"a", "a.b"}),
        ("from . import b", {"room.part", "room.part.b"}),
        ("from ..c import d", {"room.c", "room.c.d"}),
        ("def f():\n    import a", {"a"}),
        ("import importlib\nx = importlib.import_module('a.b')", {"importlib", "a.b"}),
        ("if True:\n    try:\n        import a\n    except ImportError:\n        pass", {"a"}),
    ],
)
def test_imports_are_read_wherever_they_stand(source: str, expected: set[str]) -> None:
    assert {item.module for item in imports_of(source, "room.part")} == expected


def test_imports_that_wait_for_a_call_are_told_apart() -> None:
    source = "import a\ndef f():\n    import b\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import c\n"
    at_load = {item.module: item.at_load for item in imports_of(source, "room")}
    assert (at_load["a"], at_load["b"], at_load["c"]) == (True, False, False)


@pytest.mark.parametrize(
    ("room", "imported", "allowed"),
    [
        ("graft", "server.store", False),
        ("server", "graft.groups", True),
        ("server", "population.config", False),
        ("population", "server.store.writer", True),
        ("population", "dashboard", False),
        ("dashboard", "server.store.reader", True),
        ("dashboard", "server.store.writer", False),
        ("dashboard", "graft.complementarity", True),
        ("dashboard", "graft.selection", False),
        ("dashboard", "population.config", False),
        ("dashboard", "dashboard.charts", True),
        ("graft", "numpy", True),
    ],
)
def test_rules_say_who_may_import_whom(room: str, imported: str, allowed: bool) -> None:
    assert may_import(room, imported) is allowed


def light_modules() -> list[str]:
    """The modules that must not need a model library."""
    return [module for module in sources() if any(within(module, light) for light in LIGHT)]


def loaded_by(module: str) -> dict[str, str]:
    """Every module that loading one brings in, and who named it: ours followed through, others by name."""
    seen: dict[str, str] = {}
    waiting = [(module, "")]
    while waiting:
        current, namer = waiting.pop()
        if current in seen:
            continue
        seen[current] = namer
        parent = current.rpartition(".")[0]
        if parent:
            waiting.append((parent, namer))
        if current in sources():
            waiting.extend((item.module, current) for item in imports(current) if item.at_load)
    return seen


def test_light_modules_lead_to_no_model_library() -> None:
    found = []
    for module in light_modules():
        loaded = loaded_by(module)
        found += [f"{module} loads {heavy} through {loaded[heavy]}" for heavy in HEAVY if heavy in loaded]
    assert not found, "\n".join(found)


BLOCKED_IMPORT = """
import importlib, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {heavy}:
            raise ImportError(name + " is blocked: this module must import without it")
sys.meta_path.insert(0, Blocked())
for module in sys.argv[1:]:
    importlib.import_module(module)
"""


def import_without_model_libraries(modules: list[str]) -> subprocess.CompletedProcess[str]:
    code = BLOCKED_IMPORT.replace("{heavy}", repr(set(HEAVY)))
    command = [sys.executable, "-W", "ignore", "-c", code, *modules]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=IMPORT_DEADLINE_S)


def is_page(module: str) -> bool:
    """A Streamlit script: it runs when it is imported, so only its imports are read, above."""
    return module in {"dashboard.app"} or within(module, "dashboard.pages") or within(module, "dashboard.entry")


@pytest.mark.parametrize("light", LIGHT)
def test_light_modules_import_with_model_libraries_blocked(light: str) -> None:
    modules = [module for module in light_modules() if within(module, light) and not is_page(module)]
    # Alembic runs its scripts itself.
    modules = [module for module in modules if not within(module, "server.store.migrations")]
    assert modules, f"{light} is not there"
    done = import_without_model_libraries(modules)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_block_blocks() -> None:
    done = import_without_model_libraries(["torch"])
    assert done.returncode != 0
    assert "torch is blocked" in done.stderr


# Distributions of packages that tests do without, where they are named otherwise.
NOT_HERE = {"mlflow": ["mlflow-skinny"]}


def declared() -> set[str]:
    """The distributions that pyproject.toml names, extras included, in normal form."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    return {normal(re.split(r"[\[<>=!~; ]", line)[0]) for line in lines}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_third_party_import_is_declared() -> None:
    owners = importlib.metadata.packages_distributions()
    names = declared()
    found = []
    for module in sources():
        for item in imports(module):
            top = item.module.split(".")[0]
            if top in sys.stdlib_module_names or top in ROOMS:
                continue
            if not {normal(owner) for owner in owners.get(top, NOT_HERE.get(top, [top]))} & names:
                found.append(f"{module}:{item.line}: {top} is not among the dependencies in pyproject.toml")
    assert not found, "\n".join(found)
