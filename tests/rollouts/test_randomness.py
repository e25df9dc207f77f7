"""Uniforms by name: independent of their company, evenly spread."""

from __future__ import annotations

import numpy as np

from server.rollouts.engine import SamplingParams
from server.rollouts.randomness import stream_keys, uniforms

PARAMS = SamplingParams(n=1, max_new_tokens=1, seed=3)


def test_a_stream_is_the_same_in_any_company_and_from_any_start() -> None:
    keys = stream_keys(PARAMS, [(10, 0), (10, 1), (11, 0)])
    whole = uniforms(keys, 0, 100)
    np.testing.assert_array_equal(uniforms(keys[1:2], 40, 60), whole[40:, 1:2])
    np.testing.assert_array_equal(stream_keys(PARAMS, [(11, 0)]), keys[2:])
    assert len(np.unique(keys)) == 3


def test_names_that_only_look_alike_have_different_streams() -> None:
    assert len(np.unique(stream_keys(PARAMS, [(1, 12), (11, 2), (112, 0), (1, 120)]))) == 4


def test_uniforms_are_even_uncorrelated_and_below_one() -> None:
    keys = stream_keys(PARAMS, [(k, i) for k in range(50) for i in range(20)])
    values = uniforms(keys, 0, 200)
    assert values.dtype == np.float32
    assert 0 <= values.min() < 0.001
    assert 0.999 < values.max() < 1
    counts = np.histogram(values, bins=100, range=(0, 1))[0]
    # 99 degrees of freedom: 149 is exceeded with probability 0.001.
    assert float(((counts - 2000.0) ** 2 / 2000.0).sum()) < 149
    for a, b in ((values[:-1], values[1:]), (values[:, :-1], values[:, 1:])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.01
