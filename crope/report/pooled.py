"""Estimates over many settings of one question, each too weak alone: `pooled` of
conf/contrasts.yaml. They were computed after the runs were seen.

A unit is the difference on one corpus, in one row of a study, at one setting: a mean over seeds.
Units are pooled by random effects: tau^2 by REML, the interval by Hartung and Knapp with Student's
t at k - 1 degrees of freedom, never narrower than with their factor at 1.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar
from scipy.special import stdtrit

from crope import paper
from crope.files import read_yaml
from crope.plan.study import load_study
from crope.report.contrasts import CONTRASTS_FILE, Contrast, make_contrast, subjects
from crope.report.evidence import ESTIMATED, LEVEL, crope_minus_rope, differences, estimate
from crope.report.frame import dataset_label

UNIT = ["group", "label", "study", "dataset", "row", "one_variance", "of_paper", *ESTIMATED]


@dataclass(frozen=True)
class Source:
    """A study whose differences are units, in one row or, without `row`, in each.

    one_variance   its units take the pooled variance of a pair in their group
    says           what tells its units from others on the same corpus
    """

    group: str
    contrast: Contrast
    row: str
    one_variance: bool
    says: str

    @property
    def study(self) -> str:
        return self.contrast.studies[0]

    @property
    def paper_size(self) -> bool:
        return load_study(self.study).scale == "paper"

    def of_row(self, runs: pd.DataFrame) -> pd.DataFrame:
        return runs[runs["row"] == self.row] if self.row else runs


@dataclass(frozen=True)
class Pool:
    """One estimate.

    says      what it pools
    without   studies whose units it leaves out; they still enter the variance of a pair
    """

    name: str
    says: str
    sources: Sequence[Source]
    without: Collection[str]


@cache
def load_pools() -> dict[str, Pool]:
    """Reads `pooled` of conf/contrasts.yaml, by name."""
    content = read_yaml(CONTRASTS_FILE)["pooled"]
    pools = {}
    for name, entry in content["estimates"].items():
        difference, only = entry.get("difference", "crope - rope"), entry.get("only")
        sources = []
        for group in map(content["groups"].__getitem__, entry["groups"]):
            for unit in group["units"]:
                options = dict(unit, difference=difference)
                study, row, says = (options.pop(key, "") for key in ("study", "row", "says"))
                if only is None or study in only:
                    contrast, one = make_contrast(study, options), "one_variance" in group
                    sources.append(Source(group["title"], contrast, row, one, says))
        pools[name] = Pool(name, entry["says"], sources, entry.get("without", ()))
    return pools


def units(runs: pd.DataFrame, pool: Pool) -> pd.DataFrame:
    """Lists the units of a pool, one line each: the columns UNIT, of which `of_paper` is the
    paper's difference, and `variance` of the mean. A row that a source names has a line without
    runs, too.

    runs   the frame of `by_study`
    """
    lines: list[dict[str, Any]] = []
    for source in pool.sources:
        of_row = source.of_row(runs)
        by_seed = differences(of_row, source.contrast)
        steps = of_row.loc[of_row["study"] == source.study, "config.train.max_steps"].max()
        parts = list(by_seed.groupby(["dataset", "row"], sort=False))
        if source.row and not parts:
            parts = [((load_study(source.study).axes["data"][0], source.row), by_seed)]
        for place, part in parts:
            dataset, row = map(str, place)
            nats = part.set_index("seed")["nats"]
            line = {
                "group": source.group,
                "study": source.study,
                "dataset": dataset,
                "row": row,
                "label": unit_label(source, dataset, steps),
                "of_paper": paper.crope_minus_rope(row, dataset) if source.paper_size else None,
                "one_variance": source.one_variance,
                "by_seed": nats,
            }
            lines.append(line | estimate(nats, load_study(source.study).seeds))
    found = pd.DataFrame(lines, columns=UNIT)
    found["variance"] = variances(found)
    return found[~found["study"].isin(pool.without)].reset_index(drop=True)


def unit_label(source: Source, dataset: str, steps: int) -> str:
    """Names a unit by size or steps, corpus, and what its source says."""
    size = "paper's size" if source.paper_size else f"{steps:,} steps"
    return ", ".join(filter(None, (dataset_label(dataset), size, source.says)))


def variances(found: pd.DataFrame) -> pd.Series:
    """Estimates the variance of each unit's mean, from its own pairs or those of its group."""
    of_pair = found["std"] ** 2
    freedom = (found["n"] - 1).clip(lower=0)
    squares = (of_pair * freedom).groupby(found["group"]).transform("sum")
    of_group = squares / freedom.groupby(found["group"]).transform("sum")
    return of_pair.mask(found["one_variance"], of_group) / found["n"]


def random_effects(means: np.ndarray, variances: np.ndarray) -> dict[str, float]:
    """Pools k means with their variances: mean, low, high, tau and I^2 (of Cochran's Q)."""

    def likelihood(tau2: float) -> float:  # negative, restricted; without constants
        weights = 1 / (variances + tau2)
        rest = weights * (means - np.average(means, weights=weights)) ** 2
        return float(rest.sum() - np.log(weights).sum() + np.log(weights.sum()))

    k = len(means)
    largest = 10 * means.var() + variances.max()
    best = minimize_scalar(likelihood, bounds=(0, largest), options={"xatol": 1e-9 * largest})
    tau2 = best.x if best.fun < likelihood(0) else 0.0
    fixed, weights = 1 / variances, 1 / (variances + tau2)
    q = (fixed * (means - np.average(means, weights=fixed)) ** 2).sum()
    mean = np.average(means, weights=weights)
    factor = (weights * (means - mean) ** 2).sum() / (k - 1)
    half = stdtrit(k - 1, (1 + LEVEL) / 2) * np.sqrt(max(1, factor) / weights.sum())
    return {
        "mean": mean,
        "low": mean - half,
        "high": mean + half,
        "tau": np.sqrt(tau2),
        "i2": max(0.0, 1 - (k - 1) / q) if q else 0.0,
    }


def pooled_lines(runs: pd.DataFrame, pools: Iterable[Pool] = ()) -> pd.DataFrame:
    """Estimates these pools (none: all): the columns of `evidence.answers`, with `title` (of its first
    group), `says`, `units`, `above` (those with a mean above 0), tau and i2; n counts pairs of runs.
    """
    lines = []
    for pool in pools or load_pools().values():
        found = units(runs, pool).query("n > 0")
        if len(found) < 2:
            continue
        line = {
            "name": pool.name,
            "dataset": "",
            "row": "",
            "setting": "",
            "title": found["group"].iloc[0],
            "says": pool.says,
            "planned": 0,
            "complete": True,
            "n": found["n"].sum(),
            "units": len(found),
            "above": (found["mean"] > 0).sum(),
        }
        lines.append(line | random_effects(found["mean"].to_numpy(), found["variance"].to_numpy()))
    return pd.DataFrame(lines)


def rate_lines(runs: pd.DataFrame) -> pd.DataFrame:
    """Estimates CRoPE - RoPE at each learning rate that all corpora have, over all seeds of the
    studies of `shown.rates`: the columns of `evidence.answers`, with `rate`.
    """
    studies = subjects()["rates"]
    chosen = runs[runs["study"].isin(studies) & (runs["config.train.qkv_lr_factor"] == 1)]
    rates = chosen["config.train.lr"].astype(float).map("train.lr={:g}".format)
    by_seed = crope_minus_rope(chosen.assign(setting=rates))
    corpora = by_seed.groupby("setting")["dataset"].transform("nunique")
    by_seed = by_seed[corpora == by_seed["dataset"].nunique()]
    lines: list[dict[str, Any]] = []
    for (dataset, setting), part in by_seed.groupby(["dataset", "setting"]):
        where = {"name": "rates", "dataset": dataset, "row": "", "setting": setting}
        rate = float(str(setting).partition("=")[2])
        lines.append({**where, "rate": rate, **estimate(part["nats"])})
    return pd.DataFrame(lines)
