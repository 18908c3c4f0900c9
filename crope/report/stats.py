"""Statistics of a cell and of paired differences: means, t intervals and tests, sample sizes.

`values` are one number per seed, usually differences in nats per token. Student's t assumes that
they are normal and independent from seed to seed. Pairing at equal seed removes what two runs
share: data order and initial values.
"""

import bisect

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import (
    chdtri,
    nctdtr,
    stdtr,
    stdtrit,
)  # scipy.stats takes half a second to import

MIN_SEEDS = 3  # two seeds give an interval of 12.7 standard errors to each side, and tests that reject nothing
ALPHA = 0.05  # 95 % intervals; the error rate of the whole report
POWER = 0.8  # of the sample sizes that are proposed
MAX_SEEDS = 1000
# The report draws any false conclusion with a probability of at most ALPHA. It is divided among the
# paper's claims and the studies, then equally among the tests of each; studies without an entry
# share a part. A share is never changed after the study's runs were looked at.
SHARES = {
    "claims": 0.30, "base": 0.15, "controls": 0.25, "horizon": 0.12, "baselines": 0.05, "fair_lr": 0.06,
    "schemes": 0.02, "length": 0.02, "own": 0.03,
}  # fmt: skip


def mean_std(values: ArrayLike) -> tuple[float, float | None]:
    """Mean and sample standard deviation (n - 1); None for the standard deviation of one value."""
    array = np.asarray(values, dtype=float)
    return float(array.mean()), float(array.std(ddof=1)) if array.size > 1 else None


def paired(first: pd.Series, second: pd.Series) -> pd.Series:
    """first - second for the seeds that both have; both Series are indexed by seed.

    Sorted by seed.
    """
    seeds = first.index.intersection(second.index).sort_values()
    difference: pd.Series = first.loc[seeds] - second.loc[seeds]
    return difference


def interval(values: ArrayLike, level: float = 1 - ALPHA) -> tuple[float, float]:
    """Student's t interval of the mean: mean ± t_{n-1} std / sqrt(n). NaN for one value."""
    array = np.asarray(values, dtype=float)
    mean, std = mean_std(array)
    half = (
        np.nan
        if std is None
        else stdtrit(array.size - 1, (1 + level) / 2) * std / np.sqrt(array.size)
    )
    return float(mean - half), float(mean + half)


def p_above(values: ArrayLike, bound: float = 0.0) -> float:
    """One-sided t test: the p-value of "the mean is at most `bound`"; small if the mean lies above
    it.
    """
    array = np.asarray(values, dtype=float)
    if array.size > 1 and np.ptp(array) == 0:  # the t statistic is infinite, or 0 / 0: no evidence
        return 0.0 if array[0] > bound else 1.0
    mean, std = mean_std(array)
    return (
        float("nan")
        if std is None
        else float(stdtr(array.size - 1, (bound - mean) / (std / np.sqrt(array.size))))
    )


def p_below(values: ArrayLike, bound: float = 0.0) -> float:
    """One-sided t test: the p-value of "the mean is at least `bound`"; small if the mean lies below
    it.
    """
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


def likely_different(mean: float, margin: float) -> bool:
    """Whether a true mean is easier to tell from 0 than from the nearer end of [-margin, margin]."""
    return abs(mean) > margin / 2


def seeds_needed(mean: float, std: float, margin: float, level: float) -> int:
    """Seeds for the likelier conclusion, "different" or "equivalent", at the true values `mean` and
    `std`.

    The smallest number with a power of POWER, at most MAX_SEEDS. level: of the test, after
    adjustment.
    """

    def power(n: int) -> float:
        step, df = std / np.sqrt(n), n - 1
        if likely_different(mean, margin):
            return float(1 - nctdtr(df, abs(mean) / step, stdtrit(df, 1 - level / 2)))
        # Both one-sided tests must reject: 1 less the probabilities that either does not is a lower
        # bound.
        ends = np.array([margin - abs(mean), margin + abs(mean)]) / step
        return float(1 - nctdtr(df, ends, stdtrit(df, 1 - level)).sum())

    return bisect.bisect_left(range(MAX_SEEDS), POWER, lo=MIN_SEEDS, key=power)


def seeds_range(values: ArrayLike, margin: float, level: float) -> tuple[int, int]:
    """`seeds_needed` at the observed mean, over the 80 % interval of the standard deviation
    (chi-square).
    """
    array = np.asarray(values, dtype=float)
    mean, std = mean_std(array)
    assert std is not None
    ends = std * np.sqrt((array.size - 1) / chdtri(array.size - 1, [0.1, 0.9]))
    low, high = (seeds_needed(mean, end, margin, level) for end in ends)
    return low, high
