"""From YAML text to one tree of settings: a file, overlays over it, ``--set`` over both, and what a method fixes.

A layer is a nested mapping. A later layer wins key by key; a list is replaced as a whole by an overlay and entered by
index or name by ``--set``.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel

from graft.methods import METHODS
from population.errors import ConfigError

Tree = dict[str, Any]


def read_layer(path: Path) -> Tree:
    """The mapping of a YAML file. Raises ConfigError (one line) for a missing file, bad YAML or another top level."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot read the configuration ({error.strerror}); give the path of a YAML file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text; give the path of a YAML file") from None
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}: not valid YAML{where}: {getattr(error, 'problem', None) or error}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected keys and values at the top level, found {type(tree).__name__}")
    return tree


def stack(files: Sequence[tuple[str, Mapping[str, Any]]], overrides: Sequence[str]) -> Tree:
    """One tree from layers, each with its name for messages, lowest first, and ``key.path=value`` overrides on top.

    The settings that the chosen method fixes enter in the layer that names the method: they replace what lower layers
    say, and another value in that layer or a higher one is refused, since the row would no longer be what its name
    says.
    """
    merged: Tree = {}
    given: list[tuple[str, dict[str, Any]]] = []
    for source, tree in files:
        merged = _merge(merged, tree)
        given.append((source, dict(_leaves(tree))))
    by_hand: dict[str, Any] = {}
    for override in overrides:
        key, value = apply_override(merged, override)
        by_hand |= {key: value} if not isinstance(value, Mapping) else dict(_leaves(value, key))
    given.append(("--set", by_hand))
    _fix(merged, given)
    return merged


def _fix(merged: Tree, given: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Write the settings that the method fixes into ``merged``."""
    naming = max((level for level, (_, leaves) in enumerate(given) if "method" in leaves), default=None)
    method = METHODS.get(str(merged.get("method")))
    if naming is None or method is None:
        return
    for key, value in method.settings.items():
        for source, leaves in given[naming:]:
            if key in leaves and _number(leaves[key]) != value:
                raise ConfigError(
                    f"{source}: {key}: method {method.name!r} is this row of the paper because {key} = {value}; "
                    f"leave {key} out, or choose another method to set it"
                )
        _enter(merged, key.split("."), value)


def _enter(tree: Tree, parts: Sequence[str], value: Any) -> None:
    *parents, last = parts
    for part in parents:
        if not isinstance(tree.get(part), dict):
            tree[part] = {}
        tree = tree[part]
    tree[last] = value


def _merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> Tree:
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = _merge(below, value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything in a tree that is not itself a mapping."""
    for key, value in tree.items():
        place = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping):
            yield from _leaves(value, place)
        else:
            yield place, value


def apply_override(tree: Tree, override: str) -> tuple[str, Any]:
    """Set one ``a.b=value`` in place, and return key and value; a list is entered by index or by the name of its
    entry.
    """
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"--set {override}: expected key.path=value, for instance update.learning_rate=3e-4")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"--set {override}: the value is not valid YAML; quote it") from None
    value = _number(value)
    node: Any = tree
    *parents, last = key.split(".")
    for part in parents:
        if isinstance(node, list):
            node = node[_position(node, part, override)]
        else:
            if node.get(part) is None:
                node[part] = {}
            node = node[part]
        if not isinstance(node, dict | list):
            raise ConfigError(f"--set {override}: {part!r} holds a value, not a section")
    if isinstance(node, list):
        node[_position(node, last, override)] = value
    else:
        node[last] = value
    return key, value


def _number(value: Any) -> Any:
    """The number that a text such as 3e-4 writes, which YAML 1.1 reads as text; anything else as it is."""
    if not isinstance(value, str) or value.strip()[:1] not in tuple("+-.0123456789"):
        return value
    try:
        return float(value)
    except ValueError:
        return value


def _position(entries: list[Any], part: str, override: str) -> int:
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
    if part in names:
        return names.index(part)
    if part.isdigit() and int(part) < len(entries):
        return int(part)
    known = ", ".join(str(name) for name in names if name) or f"0 to {len(entries) - 1}"
    raise ConfigError(f"--set {override}: no entry {part!r}; there are: {known}")


def refuse_unknown(tree: Any, section: type[BaseModel], path: tuple[str, ...], source: str) -> None:
    """Raise ConfigError for the first unknown key below ``tree``, with the nearest valid name."""
    if not isinstance(tree, Mapping):
        return
    for key, value in tree.items():
        place = ".".join((*path, str(key)))
        field = section.model_fields.get(str(key))
        if field is None:
            near = difflib.get_close_matches(str(key), section.model_fields, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]!r}?" if near else f"valid keys: {', '.join(section.model_fields)}"
            raise ConfigError(f"{source}: unknown key {place!r}; {hint}")
        inner = section_of(field.annotation)
        if inner is None:
            continue
        if isinstance(value, list):
            for index, entry in enumerate(value):
                refuse_unknown(entry, inner, (*path, str(key), str(index)), source)
        else:
            refuse_unknown(value, inner, (*path, str(key)), source)


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section class inside ``Section``, ``Section | None`` or ``tuple[Section, ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is not None:
        for argument in get_args(annotation):
            found = section_of(argument)
            if found is not None:
                return found
    return None
