"""The four numbers of a cell: two means, and what each ± is a spread of (DESIGN 4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import scipy.stats


@dataclass(frozen=True)
class Spread:
    """A mean loss in nats per token with its ± and the number of seeds behind it; std_nats may be absent."""

    mean_nats: float
    std_nats: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """A paired difference in nats per token; low and high bound its 95 % interval, None for a single seed."""

    mean_nats: float
    low_nats: float | None
    high_nats: float | None
    n: int


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
    """Mean over the shared seeds of first - second, with Student's 95 % interval; None where no seed is shared.

    Pairing removes what equal seeds have in common: the data order and the initial values of shared tensors.
    """
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    differences = [first[seed] - second[seed] for seed in seeds]
    mean, n = fmean(differences), len(differences)
    if n == 1:
        return Difference(mean, None, None, n)
    half = float(scipy.stats.t.ppf(0.975, n - 1)) * stdev(differences) / math.sqrt(n)
    return Difference(mean, mean - half, mean + half, n)
