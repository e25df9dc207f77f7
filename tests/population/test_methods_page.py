"""docs/methods.md explains every row, and says of each what it really fixes and chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

from graft.methods import METHODS

PAGE = Path("docs/methods.md").read_text()


def entry(name: str) -> str:
    """The paragraph of a row: from its bold name to the next blank line or list item."""
    start = PAGE.index(f"**`{name}`**")
    return PAGE[start:].split("\n- **")[0].split("\n\n")[0]


@pytest.mark.parametrize("name", METHODS)
def test_every_row_is_explained_with_the_settings_it_fixes(name: str) -> None:
    assert len(entry(name)) > 40
    for key in METHODS[name].settings:
        assert key in entry(name), f"{name} fixes {key}"


@pytest.mark.parametrize("which", sorted({getattr(m.which, "__name__", "none") for m in METHODS.values()}))
def test_every_selection_rule_is_in_the_table(which: str) -> None:
    assert f"| `{which}` |" in PAGE or f"| {which} |" in PAGE
