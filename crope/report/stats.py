"""Statistics of a cell and of a pair of cells: means, paired differences, t tests, Holm.

`values` are one number per seed, usually differences in nats per token. Student's t assumes that they are normal and
independent from seed to seed. Pairing at equal seed removes what two runs share: data order and initial values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit  # Student's t; scipy.stats takes half a second to import

MIN_SEEDS = 3  # two seeds give an interval of 12.7 standard errors to each side, and tests that reject nothing
ALPHA = 0.05  # 95 % intervals; the error rate of a family of tests


def mean_std(values: ArrayLike) -> tuple[float, float | None]:
    """Mean and sample standard deviation (n - 1); None for the standard deviation of one value."""
    array = np.asarray(values, dtype=float)
    return float(array.mean()), float(array.std(ddof=1)) if array.size > 1 else None


def paired(first: pd.Series, second: pd.Series) -> pd.Series:
    """first - second for the seeds that both have; both Series are indexed by seed. Sorted by seed."""
    seeds = first.index.intersection(second.index).sort_values()
    difference: pd.Series = first.loc[seeds] - second.loc[seeds]
    return difference


def interval(values: ArrayLike, level: float = 1 - ALPHA) -> tuple[float, float]:
    """Student's t interval of the mean: mean ± t_{n-1} std / sqrt(n). NaN for one value."""
    array = np.asarray(values, dtype=float)
    mean, std = mean_std(array)
    half = np.nan if std is None else stdtrit(array.size - 1, (1 + level) / 2) * std / np.sqrt(array.size)
    return float(mean - half), float(mean + half)


def p_above(values: ArrayLike, bound: float = 0.0) -> float:
    """One-sided t test: the p-value of "the mean is at most `bound`"; small if the mean lies above it."""
    array = np.asarray(values, dtype=float)
    if array.size > 1 and np.ptp(array) == 0:  # the t statistic is infinite, or 0 / 0: no evidence
        return 0.0 if array[0] > bound else 1.0
    mean, std = mean_std(array)
    return float("nan") if std is None else float(stdtr(array.size - 1, (bound - mean) / (std / np.sqrt(array.size))))


def p_below(values: ArrayLike, bound: float = 0.0) -> float:
    """One-sided t test: the p-value of "the mean is at least `bound`"; small if the mean lies below it."""
    return p_above(-np.asarray(values, dtype=float), -bound)


def p_different(values: ArrayLike, margin: float = 0.0) -> float:
    """Two-sided p-value of "the mean lies within [-margin, margin]"; margin 0 is the paired t test.

    Below ALPHA exactly if the 95 % t interval lies wholly on one side of [-margin, margin].
    """
    return min(1.0, 2 * min(p_above(values, margin), p_below(values, -margin)))


def p_equivalent(values: ArrayLike, margin: float) -> float:
    """Two one-sided tests (TOST): the p-value of "the mean lies at least `margin` away from 0".

    Below ALPHA exactly if the 90 % t interval lies inside (-margin, margin).
    """
    return max(p_above(values, -margin), p_below(values, margin))


def holm(p_values: Sequence[float | None]) -> NDArray[np.float64]:
    """Holm's adjusted p-values; to reject those below ALPHA keeps the error rate of the family below ALPHA.

    A planned test without a p-value (None or NaN: runs are missing) stays in the family as p = 1.
    """
    p = np.nan_to_num(np.array(p_values, dtype=float), nan=1.0)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)))
    return adjusted
