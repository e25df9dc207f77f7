"""Groups and what they are called."""

from __future__ import annotations

import numpy as np
import pytest

from graft.groups import Group, Response


def group(rewards, graded=None):
    one = Response(np.array([1, 2], dtype=np.int32), "x", np.zeros(2, dtype=np.float32), True, 1)
    graded = [True] * len(rewards) if graded is None else graded
    return Group("m", 7, (one,) * len(rewards), np.array(rewards, dtype=np.float64), np.array(graded, dtype=bool))


@pytest.mark.parametrize(
    ("rewards", "name"),
    [([0, 0, 0], "all_fail"), ([1, 0, 0], "mixed"), ([1, 1, 0], "mixed"), ([1, 1, 1], "all_solved")],
)
def test_a_fully_judged_group_has_exactly_one_kind(rewards, name):
    found = group(rewards)
    assert [kind for kind in ("all_fail", "mixed", "all_solved") if getattr(found, kind)] == [name]
    assert (found.n, found.successes, found.errors) == (3, sum(rewards), 0)


def test_a_group_with_an_unjudged_response_is_neither_failed_nor_mixed():
    assert not group([0, 0, 0], [True, True, False]).all_fail
    assert not group([1, 0, 0], [True, True, False]).mixed
    assert group([1, 0, 0], [True, True, False]).errors == 1


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="one of each per response"):
        group([0, 0], [True])
    with pytest.raises(ValueError, match="one log-prob per token id"):
        Response(np.array([1], dtype=np.int32), "x", np.zeros(2, dtype=np.float32), True, 1)
