"""Reward functions named `module:function`: found, checked and called, inside the worker that serves one of them.

A reward function takes (prompt, response, answer), all text, and returns 0 or 1 (bool, int or float) or a `Score`.
GRAFT routes and normalises groups by how many responses succeeded, so anything between is refused, not rounded.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.rewards.verdicts import Outcome, Score, VerdictCode

# The limit of the service where nothing else is said; what `time_left` gives outside a worker.
DEFAULT_TIMEOUT_S = 5.0


class BadReward(ValueError):
    """A reward function that cannot be used; the message names it, what is wrong and the nearest name there is."""


@dataclass(frozen=True)
class LoadedReward:
    """A reward function; version: a hash of the source file of its module."""

    name: str
    function: Callable[[str, str, str], Any]
    version: str


def time_left() -> float:
    """Seconds of processor time the item being scored may still use; the default limit outside a worker."""
    return signal.getitimer(signal.ITIMER_PROF)[0] or DEFAULT_TIMEOUT_S


def load_reward(name: str) -> LoadedReward:
    """Import `module:function`, and call the module's `prepare_worker()` where it has one. Raises BadReward."""
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        raise BadReward(f"{name!r} is no reward; write module:function")
    module = _import(name, module_name)
    if not hasattr(module, function_name):
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        listed = f"it has {', '.join(sorted(own)[:8])}" if own else "it has no function"
        raise BadReward(f"{name}: {module_name} has no {function_name!r}; {_nearest(function_name, own) or listed}")
    function = getattr(module, function_name)
    if not callable(function):
        raise BadReward(f"{name}: {function_name} is a {type(function).__name__}, not a function")
    if inspect.iscoroutinefunction(function):
        raise BadReward(f"{name}: {function_name} is async; a reward is a plain function")
    try:
        inspect.signature(function).bind("prompt", "response", "answer")
    except TypeError as error:
        raise BadReward(
            f"{name}: {function_name}{inspect.signature(function)} cannot take (prompt, response, answer): {error}"
        ) from None
    except ValueError:
        raise BadReward(f"{name}: {function_name} has no signature to check; wrap it in a function") from None
    try:
        getattr(module, "prepare_worker", _nothing)()
    except Exception as error:
        raise BadReward(f"{name}: prepare_worker() fails: {type(error).__name__}: {error}") from None
    return LoadedReward(name, function, _version(module))


def score(reward: LoadedReward, prompt: str, response: str, answer: str) -> Outcome:
    """The verdict of a reward function on one response: RIGHT, WRONG, or ERROR for a value that is no reward."""
    found = reward.function(prompt, response, answer)
    value, detail, extracted = found if isinstance(found, Score) else Score(found)
    if isinstance(value, bool | int | float) and value in (0, 1):
        return Outcome(VerdictCode.RIGHT if value else VerdictCode.WRONG, detail or reward.name, extracted)
    given = repr(value)[:80]
    fault = f"{reward.name} returned {given}; a reward is 0 or 1: compare with a threshold in it"
    return Outcome(VerdictCode.ERROR, fault)


def _import(name: str, module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing != module_name and not module_name.startswith(missing + "."):
            raise BadReward(f"{name}: {module_name} imports {missing}, which is not installed") from None
        parent, _, last = missing.rpartition(".")
        near = _nearest(last, _modules_in(parent), f"{parent}." if parent else "")
        where = "modules are looked for on the import path and in the current folder"
        raise BadReward(f"{name}: there is no module {missing!r}; {near or where}") from None
    except (Exception, SystemExit) as error:
        raise BadReward(f"{name}: {module_name} fails when imported: {type(error).__name__}: {error}") from None


def _modules_in(package: str) -> list[str]:
    """Names of the modules in a package, or of all at the top of the import path."""
    if not package:
        return [module.name for module in pkgutil.iter_modules()]
    found = sys.modules.get(package)
    return [module.name for module in pkgutil.iter_modules(getattr(found, "__path__", None) or [])]


def _nearest(name: str, names: list[str], prefix: str = "") -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {prefix + near[0]!r}?" if near else ""


def _nothing() -> None:
    """What a module without `prepare_worker` does before the first item."""


def _version(module: Any) -> str:
    path = inspect.getsourcefile(module)
    content = Path(path).read_bytes() if path else repr(module).encode()
    return hashlib.sha256(content).hexdigest()[:16]
