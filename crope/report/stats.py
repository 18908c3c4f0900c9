"""The numbers of a cell and of a pair of cells: means, what each ± is a spread of (DESIGN 4), and what seeds can tell.

Shapes: the tests take values_XN, differences in nats per token of N seeds along the last axis, any axes X before it.
Student's t and the chi-square assume that differences at equal seed are normal and independent from seed to seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

MIN_SEEDS = 3  # two seeds would give an interval of 12.7 standard errors to each side, and a test that rejects nothing
ALPHA = 0.05  # 95 % intervals; the error that a family of tests may make
RESAMPLES = 10_000
POWER, MANY_SEEDS, POWER_GRID = 0.8, 1000, 4000


@dataclass(frozen=True)
class Spread:
    """A mean loss in nats per token with its ± and the number of seeds behind it; std_nats may be absent."""

    mean_nats: float
    std_nats: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """A paired difference in nats per token: its mean over n seeds, and the values by rising seed.

    low and high bound Student's 95 % interval, boot_low and boot_high the bootstrap's, and std is the sample standard
    deviation of the values over seeds. All are None below MIN_SEEDS.
    """

    mean_nats: float
    low_nats: float | None
    high_nats: float | None
    n: int
    std_nats: float | None = None
    boot_low_nats: float | None = None
    boot_high_nats: float | None = None
    values_nats: tuple[float, ...] = ()


def spread_over_batches(means: Sequence[float], stds: Sequence[float | None]) -> Spread:
    """Paper's protocol: each run's mean and std over its last sampled batches, averaged over the seeds.

    The ± therefore says how much sampled batches differ, not how much seeds do, and does not shrink with more seeds.
    """
    known = [std for std in stds if std is not None]
    return Spread(fmean(means), fmean(known) if len(known) == len(means) else None, len(means))


def spread_over_seeds(losses: Sequence[float]) -> Spread:
    """Our protocol: mean over seeds ± the sample standard deviation over seeds (n - 1), none for a single seed."""
    return Spread(fmean(losses), stdev(losses) if len(losses) > 1 else None, len(losses))


def paired_difference(first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """first - second over the seeds that both have; None where no seed is shared.

    Pairing removes what equal seeds have in common: the data order and the initial values of shared tensors.
    """
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    return over_seeds([first[seed] - second[seed] for seed in seeds])


def over_seeds(values_nats: Sequence[float]) -> Difference:
    """The mean of one value a seed, with its intervals."""
    values = tuple(values_nats)
    if len(values) < MIN_SEEDS:
        return Difference(fmean(values), None, None, len(values), values_nats=values)
    low, high = map(float, t_interval(values))
    # A generator of its own: an interval may not depend on which were made before it.
    boot_low, boot_high = bootstrap_interval(values, generator=np.random.default_rng(0))
    return Difference(fmean(values), low, high, len(values), stdev(values), boot_low, boot_high, values)


def seeds_needed(n: int) -> str:
    """What stands in place of an interval or a test."""
    return f"needs at least {MIN_SEEDS} seeds, has {n}"


def power_of_equivalence(n: int, std_nats: float, margin_nats: float) -> float:
    """How often the two one-sided tests of n seeds find equivalence where the true difference is 0.

    `std_nats` is that of the differences over seeds. Exact but for a grid over the sample's own standard deviation:
    given it, the mean must lie within margin - t s / sqrt(n), and mean and s are independent.
    """
    spread = std_nats / np.sqrt(n)
    shares = (np.arange(POWER_GRID) + 0.5) / POWER_GRID
    sampled = spread * np.sqrt(scipy.stats.chi2.ppf(shares, n - 1) / (n - 1))
    room = margin_nats - scipy.stats.t.ppf(1 - ALPHA, n - 1) * sampled
    return float(np.mean(np.where(room > 0, 2 * scipy.stats.norm.cdf(room / spread) - 1, 0.0)))


def seeds_to_show_equivalence(std_nats: float, margin_nats: float) -> int | None:
    """The fewest seeds with which equal models are found to be so in POWER of the studies; None above MANY_SEEDS."""
    low, high = MIN_SEEDS - 1, MANY_SEEDS
    if std_nats > 0 and power_of_equivalence(high, std_nats, margin_nats) < POWER:
        return None
    while high - low > 1:  # the power grows with n
        middle = (low + high) // 2
        enough = std_nats == 0 or power_of_equivalence(middle, std_nats, margin_nats) >= POWER
        low, high = (low, middle) if enough else (middle, high)
    return high


def t_interval(values_XN: ArrayLike) -> tuple[Array, Array]:
    """Student's 95 % interval of the mean."""
    values = np.asarray(values_XN, dtype=float)
    n = values.shape[-1]
    half = scipy.stats.t.ppf(1 - ALPHA / 2, n - 1) * values.std(-1, ddof=1) / np.sqrt(n)
    return values.mean(-1) - half, values.mean(-1) + half


def bootstrap_interval(
    values: Sequence[float], *, generator: np.random.Generator, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """95 % percentile interval of the mean over seeds drawn with replacement: a check that assumes no distribution.

    It is narrower than Student's by construction: 37 % of its width at 3 seeds, 82 % at 10. Far from that share, or far
    off its centre, one seed lies apart from the others.
    """
    drawn = generator.choice(np.asarray(values, dtype=float), size=(resamples, len(values)))
    low, high = np.quantile(drawn.mean(1), [ALPHA / 2, 1 - ALPHA / 2])
    return float(low), float(high)


def p_above(values_XN: ArrayLike, bound: float) -> Array:
    """One-sided p of the paired t test against "the mean is at most `bound`"; small where it lies above."""
    t, n = _t_statistic(values_XN, bound)
    return np.asarray(scipy.stats.t.sf(t, n - 1))


def p_below(values_XN: ArrayLike, bound: float) -> Array:
    """One-sided p against "the mean is at least `bound`"."""
    t, n = _t_statistic(values_XN, bound)
    return np.asarray(scipy.stats.t.cdf(t, n - 1))


def p_equivalent(values_XN: ArrayLike, margin: float) -> Array:
    """Two one-sided tests (TOST): the p against "the mean is at least `margin` away from 0".

    Below ALPHA exactly where the 90 % t interval lies inside (-margin, margin).
    """
    return np.maximum(p_above(values_XN, -margin), p_below(values_XN, margin))


def p_outside(values_XN: ArrayLike, margin: float) -> Array:
    """Two-sided p against "the mean is at most `margin` away from 0"; margin 0 is the paired t test.

    Below ALPHA exactly where the 95 % t interval lies wholly on one side of [-margin, margin].
    """
    return np.minimum(1.0, 2 * np.minimum(p_above(values_XN, margin), p_below(values_XN, -margin)))


def _t_statistic(values_XN: ArrayLike, bound: float) -> tuple[Array, int]:
    values = np.asarray(values_XN, dtype=float)
    n = values.shape[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (values.mean(-1) - bound) / (values.std(-1, ddof=1) / np.sqrt(n))
    return np.nan_to_num(t, nan=0.0, posinf=np.inf, neginf=-np.inf), n  # no spread, at the bound: it tells nothing


def holm(p_values_XC: ArrayLike) -> Array:
    """Holm's adjusted p-values over the last axis: rejecting those below ALPHA keeps the error of the whole family.

    Holds under any dependence between the tests. A planned test that could not be made enters as p = 1.
    """
    p_values = np.asarray(p_values_XC, dtype=float)
    order = np.argsort(p_values, axis=-1, kind="stable")
    ranked = np.take_along_axis(p_values, order, -1) * np.arange(p_values.shape[-1], 0, -1)
    adjusted = np.empty_like(p_values)
    np.put_along_axis(adjusted, order, np.minimum(1.0, np.maximum.accumulate(ranked, -1)), -1)
    return adjusted


def std_interval(std: float, degrees: int) -> tuple[float, float]:
    """95 % chi-square interval of a standard deviation that was estimated with so many degrees of freedom."""
    high, low = scipy.stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], degrees)
    return float(std * np.sqrt(degrees / low)), float(std * np.sqrt(degrees / high))


def p_std_within(std: float, degrees: int, reference: float, factor: float) -> float:
    """TOST for a standard deviation: p against "it is at least `factor` times the reference, or at most 1/`factor`"."""
    above, below = _chi_square(std, degrees, reference / factor), _chi_square(std, degrees, reference * factor)
    return float(max(scipy.stats.chi2.sf(above, degrees), scipy.stats.chi2.cdf(below, degrees)))


def p_std_outside(std: float, degrees: int, reference: float, factor: float) -> float:
    """Two-sided p against "the standard deviation lies within `factor` of the reference"."""
    above, below = _chi_square(std, degrees, reference * factor), _chi_square(std, degrees, reference / factor)
    return float(min(1.0, 2 * min(scipy.stats.chi2.sf(above, degrees), scipy.stats.chi2.cdf(below, degrees))))


def _chi_square(std: float, degrees: int, truth: float) -> float:
    return degrees * (std / truth) ** 2
