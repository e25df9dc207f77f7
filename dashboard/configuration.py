"""A run's configuration as rows of key and value, with secrets masked. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dashboard import formats

MASK = "••••"
MOST_KEYS = 2_000
_SECRET_KEY = re.compile(r"(password|passwd|secret|token|api_?key|admin_?key|credential)s?$", re.IGNORECASE)
# Names that end alike and are no secrets.
_HARMLESS = re.compile(r"(max_\w*_tokens?|_env$)", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"(?P<before>[a-z][a-z0-9+.-]*://[^\s:/@]*:)[^\s@/]+@", re.IGNORECASE)


def flat(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(dotted key, value) of every leaf, in the order recorded; at most MOST_KEYS, each on one line and bounded."""
    rows = []
    for key, value in _leaves(config, ""):
        rows.append((formats.clean(key, 120), formats.clean(_shown(key, value), 400)))
        if len(rows) == MOST_KEYS:
            break
    return rows


def _leaves(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _leaves(part, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and any(isinstance(part, (Mapping, list)) for part in value):
        for index, part in enumerate(value):
            yield from _leaves(part, f"{prefix}.{index}")
    else:
        yield prefix, value


def _shown(key: str, value: Any) -> str:
    last = key.rsplit(".", 1)[-1]
    if value not in (None, "") and _SECRET_KEY.search(last) and not _HARMLESS.search(last):
        return MASK
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _PASSWORD_IN_URL.sub(rf"\g<before>{MASK}@", text)
