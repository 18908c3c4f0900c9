"""Differences between models and their intervals, from the frame of runs.

A difference is first - second at equal seed, in nats per token, averaged over the study's corpora
within the seed: one number per seed, whatever the correlation between corpora. Pairing removes what
two runs of a seed share, data order and initial values. Its interval is Student's over seeds, which
assumes that the differences of the seeds are independent and normal.

planned       study and contrast were committed before the study's first run
exploratory   everything else: of their 95 % intervals one in twenty will miss
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from scipy import stats

from crope.config import ROOT
from crope.errors import ConfigError
from crope.report.frame import model_label
from crope.runs.study import TABLES, planned_seeds

CONTRASTS_FILE = ROOT / "conf" / "contrasts.yaml"
LEVEL = 0.95
LINE = [
    "name",
    "dataset",
    "row",
    "setting",
    "planned",
    "complete",
    "n",
    "mean",
    "std",
    "low",
    "high",
    "by_seed",
]
COLUMN = {"loss": "loss", "train": "train.final_nats", "beyond": "beyond_nats"}
# One term of a difference: a model, or `model at setting`.
TERM = re.compile(r"(?P<model>[\w+]+)(?: at (?P<setting>\S+))?")


@dataclass(frozen=True)
class Contrast:
    """first - mean of seconds at equal seed, asked of one or more studies of one row.

    name      P1, R1, ... of a planned one; else <study>/<difference>
    first     (model, setting); a setting of "" stands for each of the study in turn
    at        the settings that are asked; none: all of the study
    averaged  one difference per seed, the mean over these settings
    of        a key of COLUMN
    date      the date of the plan; empty for an exploratory contrast
    """

    name: str
    studies: tuple[str, ...]
    difference: str
    first: tuple[str, str]
    seconds: tuple[tuple[str, str], ...]
    at: tuple[str, ...] = ()
    averaged: bool = False
    of: str = "loss"
    date: str = ""
    question: str = ""

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(model for model, _ in (self.first, *self.seconds))

    @property
    def label(self) -> str:
        """What is subtracted from what, as printed."""
        first, *seconds = map(_term_label, (self.first, *self.seconds))
        if len(seconds) > 1:
            seconds = [f"mean of {', '.join(seconds)}"]
        text = " − ".join([first, *seconds])
        return text + {"loss": "", "train": ", training loss", "beyond": " at 4 L − at L"}[self.of]


def _term_label(term: tuple[str, str]) -> str:
    model, setting = term
    return f"{model_label(model)} at {setting}" if setting else model_label(model)


@cache
def load_contrasts(file: Path = CONTRASTS_FILE) -> dict[str, Contrast]:
    """The contrasts of conf/contrasts.yaml by name. Raises ConfigError for a wrong entry."""
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    contrasts = {}
    for name, entry in content["planned"].items():
        contrasts[name] = _contrast(file, entry["study"], entry, name)
    for studies, entries in content["explored"].items():
        for entry in entries:
            contrast = _contrast(file, studies, entry)
            contrasts[contrast.name] = contrast
    return contrasts


def _contrast(file: Path, studies: str, entry: Any, name: str = "") -> Contrast:
    entry = {"difference": entry} if isinstance(entry, str) else entry
    known = {"study", "difference", "at", "averaged", "of", "date", "question"}
    of, difference = entry.get("of", "loss"), entry.get("difference", "")
    try:
        if unknown := entry.keys() - known:
            raise ValueError(f"unknown key {min(unknown)}; valid: {', '.join(sorted(known))}")
        if of not in COLUMN:
            raise ValueError(f"of: {of}: must be one of {', '.join(COLUMN)}")
        first, seconds = parse_difference(difference)
    except ValueError as error:
        raise ConfigError(f"conf/{file.name}: {name or studies}: {error}") from error
    parts = [difference, "averaged" if entry.get("averaged") else "", "" if of == "loss" else of]
    return Contrast(
        name or f"{studies}/{', '.join(part for part in parts if part)}",
        tuple(studies.split(", ")),
        difference,
        first,
        seconds,
        at=tuple(entry.get("at", ())),
        averaged=entry.get("averaged", False),
        of=of,
        date=str(entry.get("date", "")),
        question=entry.get("question", ""),
    )


def parse_difference(text: str) -> tuple[tuple[str, str], tuple[tuple[str, str], ...]]:
    """`crope - rope`, `crope - lowrank halved`, `crope at A - rope at B`, or one model; as terms
    (model, setting). Raises ValueError.
    """
    left, _, right = text.partition(" - ")
    first = TERM.fullmatch(left)
    seconds = list(TERM.finditer(right))
    if first is None or TERM.sub("", right).strip():
        raise ValueError(f"difference: '{text}' is not of the form `crope - rope`")
    terms = [(term["model"], term["setting"] or "") for term in (first, *seconds)]
    return terms[0], tuple(terms[1:])


def differences(runs: pd.DataFrame, contrast: Contrast) -> pd.DataFrame:
    """One line per study, corpus, row, setting and seed that every term of the contrast has:
    `nats`. A diverged run makes it infinite.

    runs   the frame of `by_study`
    """
    asked = runs[runs["study"].isin(contrast.studies) & runs["model"].isin(contrast.models)]
    where = ["study", "dataset", "row", "seed"]
    columns = ["model", "setting"]
    if not contrast.first[1]:  # the same setting on both sides
        where, columns = [*where, "setting"], ["model"]
        asked = asked[asked["setting"].isin(contrast.at)] if contrast.at else asked
    values = asked.pivot_table(
        index=where, columns=columns, values=COLUMN[contrast.of], sort=False, dropna=False
    )
    terms = [contrast.first, *contrast.seconds]
    names = terms if "setting" in columns else [model for model, _ in terms]
    values = values.reindex(columns=names).dropna()
    nats = values[names[0]]
    if contrast.seconds:
        nats = nats - values[names[1:]].mean(axis=1)
    lines = nats.rename("nats").reset_index()
    return lines if "setting" in lines else lines.assign(setting="")


def estimate(by_seed: pd.Series) -> dict[str, float]:
    """n, mean, sample standard deviation and Student's interval; NaN for what one seed does not
    give.
    """
    n, mean = len(by_seed), by_seed.mean() if len(by_seed) else np.nan
    if n < 2 or not np.isfinite(by_seed).all():
        return {"n": n, "mean": mean, "std": np.nan, "low": np.nan, "high": np.nan}
    low, high = stats.ttest_1samp(by_seed, 0).confidence_interval(LEVEL)
    return {"n": n, "mean": mean, "std": by_seed.std(), "low": low, "high": high}


def answer(runs: pd.DataFrame, contrast: Contrast) -> pd.DataFrame:
    """A line per row and setting over all its corpora, and one per corpus where there are several:
    name, dataset (empty: all), row, setting, n, planned, complete, mean, std, low, high, by_seed.

    No interval before every planned seed is there.
    """
    lines = []
    by_seed = differences(runs, contrast)
    if contrast.averaged:
        settings = contrast.at or runs.loc[runs["study"].isin(contrast.studies), "setting"].unique()
        by_seed = _average(by_seed, "setting", len(settings))
    planned = sum(len(planned_seeds(study)) for study in contrast.studies)
    separate = contrast.studies[0] in TABLES  # a line per corpus, as in the tables
    for (row, setting), part in by_seed.groupby(["row", "setting"], sort=False):
        corpora = part["dataset"].unique()
        pooled = _average(part, "dataset", len(corpora))
        groups = {"": pooled["nats"].set_axis(pooled["seed"])}
        if len(corpora) > 1:
            for dataset, of_corpus in part.groupby("dataset", sort=False):
                groups[str(dataset)] = of_corpus["nats"].set_axis(of_corpus["seed"])
            if separate:
                del groups[""]
        for dataset, nats in groups.items():
            only = corpora[0] if len(corpora) == 1 else dataset
            line: dict[str, Any] = {
                "name": contrast.name,
                "dataset": only,
                "row": row,
                "setting": setting,
            }
            line |= {"planned": planned, "complete": len(nats) >= planned} | estimate(nats)
            if not line["complete"]:
                line |= {"low": np.nan, "high": np.nan}
            lines.append(line | {"by_seed": nats})
    if contrast.date and not lines:  # a plan without a run is shown all the same
        nothing = {"row": "", "setting": "", "complete": False, "n": 0}
        lines.append({"name": contrast.name, "dataset": "", "planned": planned} | nothing)
    return pd.DataFrame(lines, columns=LINE)


def _average(lines: pd.DataFrame, over: str, size: int) -> pd.DataFrame:
    """The mean over one column within a seed, of the seeds that have all `size` values of it."""
    keys = [name for name in ("study", "dataset", "row", "setting", "seed") if name != over]
    means = lines.groupby(keys, sort=False)["nats"].agg(["mean", "size"])
    whole = means.loc[means["size"] == size, "mean"]
    return whole.rename("nats").reset_index().assign(**{over: ""})


def answers(runs: pd.DataFrame, contrasts: Mapping[str, Contrast]) -> pd.DataFrame:
    """The lines of all contrasts, in their order. Contrasts without a run have none."""
    parts = [answer(runs, contrast) for contrast in contrasts.values()]
    return pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)


def welch_interval(groups: list[pd.Series], level: float) -> tuple[float, float, float]:
    """Mean of the groups' means with Welch's interval: the rule by which P1 to P5 were planned,
    with corpora as independent groups and a level of 99 %. Printed once, beside the rule used here.
    """
    variances = np.array([group.var() / len(group) for group in groups]) / len(groups) ** 2
    freedoms = np.array([len(group) - 1 for group in groups])
    mean = float(np.mean([group.mean() for group in groups]))
    freedom = variances.sum() ** 2 / (variances**2 / freedoms).sum()
    half = stats.t.ppf((1 + level) / 2, freedom) * np.sqrt(variances.sum())
    return mean, mean - half, mean + half
