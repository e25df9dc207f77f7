"""Methods as pairs."""

from __future__ import annotations

from graft.methods import METHODS


def test_every_method_is_listed_under_its_own_name():
    assert {"grpo", "graft", "graft-no-gate"} <= set(METHODS)
    assert all(name == method.name for name, method in METHODS.items())


def test_only_methods_with_a_which_exchange():
    assert not METHODS["grpo"].exchanges
    assert METHODS["graft"].exchanges
    assert METHODS["graft-no-gate"].which is METHODS["graft"].which


def test_every_how_explains_itself():
    assert all(method.how.description and method.how.equation for method in METHODS.values())
