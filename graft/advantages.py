"""Group-relative advantages (paper eq. 1)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Deviation = Literal["sample", "population", "none"]


def group_advantages(rewards: ArrayLike, *, std: Deviation = "sample", eps: float = 1e-6) -> NDArray[np.float64]:
    """Advantages a_i = (r_i - mean) / (std + eps) of one group's rewards [n], as [n].

    `std` is the divisor: the `sample` deviation (n - 1, the paper), the `population` deviation (n), or `none`
    (differences from the mean as they are). A group without variance has exactly zero advantages.
    Raises ValueError for anything but a non-empty vector of finite rewards.
    """
    values: NDArray[np.float64] = np.asarray(rewards, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"rewards must be a non-empty vector of finite numbers, got shape {values.shape}: {rewards!r}")
    if std not in ("sample", "population", "none"):
        raise ValueError(f"std must be 'sample', 'population' or 'none', got {std!r}")
    # Comparing, not subtracting the mean: equal rewards must give 0.0, not rounding noise over eps.
    if values.min() == values.max():
        return np.zeros_like(values)
    centred = values - float(values.mean())
    if std == "none":
        return centred
    return centred / (float(values.std(ddof=1 if std == "sample" else 0)) + eps)
