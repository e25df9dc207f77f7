"""Which runs differ in their seed only, and what to call a set of them: read from recorded configurations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graft.methods import METHODS
from server.store.views import RunInfo

# Where a run lies, how it is repeated and how long it may take: nothing that makes it another arm.
PLACES = {"seed", "warm_start_seed", "name", "folder", "store", "checkpoint", "deadlines"}
MISSING = "none"


def arm_names(runs: Sequence[RunInfo]) -> list[str]:
    """The arm of each run: one for each configuration, named by its method and by what differs from most."""
    flat = [dict(flat_config(comparable_config(one.config))) for one in runs]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    values = {key: [one.get(key, MISSING) for one in flat] for key in keys}
    common = {key: Counter(column).most_common(1)[0][0] for key, column in values.items()}
    names = []
    for run, settings in zip(runs, flat, strict=True):
        fixed = METHODS[run.method].settings if run.method in METHODS else {}
        differing = [
            f"{key}={settings.get(key, MISSING)}"
            for key in keys
            if key not in fixed and settings.get(key, MISSING) != common[key]
        ]
        names.append(" ".join([run.method, *differing]))
    return names


def comparable_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded configuration without what may differ within an arm; members by name."""
    kept = {key: value for key, value in config.items() if key not in PLACES and key != "method"}
    kept["members"] = {
        str(entry["name"]): {
            key: {part: text for part, text in value.items() if part not in ("store", "run")}
            if key == "source" and isinstance(value, Mapping)
            else value
            for key, value in entry.items()
            if key != "name"
        }
        for entry in config.get("members", ())
    }
    return kept


def flat_config(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, value as text) of every setting, in the configuration's order."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat_config(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)
