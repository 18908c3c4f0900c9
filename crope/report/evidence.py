"""Differences between models and their intervals, from the frame of runs.

A difference is first - second at equal seed, in nats per token, averaged over the study's corpora
within the seed. Pairing removes what two runs of a seed share, data order and initial values. Its
interval is Student's over seeds, which takes their differences as independent and normal.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from crope.plan.study import TABLES, load_study
from crope.report.contrasts import (
    QUANTITIES,
    Contrast,
    Term,
    line_count,
    load_contrasts,
    term_label,
)
from crope.report.frame import model_label

LEVEL = 0.95
ESTIMATED = ["planned", "there", "complete", "n", "mean", "std", "low", "high", "by_seed"]
LINE = ["name", "dataset", "row", "setting", *ESTIMATED]
PAIR_KEYS = ["study", "dataset", "row", "setting", "seed"]  # equal on both sides of a difference


def differences(runs: pd.DataFrame, contrast: Contrast) -> pd.DataFrame:
    """Subtracts at equal study, corpus, row, setting and seed, where every term has a run: one line
    each, with the loss of each term by its label, and `nats`, infinite if a run diverged.

    runs   the frame of `by_study`
    """
    column, _ = QUANTITIES[contrast.of]
    label, *labels = [term_label(*term) for term in contrast.terms]
    first = of_term(runs, contrast, contrast.first)
    found = first[PAIR_KEYS].assign(**{label: first[column]})
    for second, term in zip(labels, contrast.seconds, strict=True):
        others = of_term(runs, contrast, term)
        losses = dict(zip(_places(others), others[column], strict=True))
        found[second] = [losses.get(place, np.nan) for place in _places(first)]
    found = found.dropna(ignore_index=True)
    nats = found[label] - found[labels].mean(axis=1) if labels else found[label]
    found["nats"] = nats.fillna(np.inf)  # where both sides diverged
    if contrast.minus is not None:
        less = differences(runs, contrast.minus).set_index(["dataset", "seed"])["nats"]
        found["less"] = less.reindex(pd.MultiIndex.from_frame(found[["dataset", "seed"]])).array
        found = found.dropna(ignore_index=True)
        found["nats"] = (found["nats"] - found.pop("less")).fillna(np.inf)
    return found


def _places(runs: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    return zip(*(runs[name] for name in PAIR_KEYS), strict=True)


def of_term(runs: pd.DataFrame, contrast: Contrast, term: Term) -> pd.DataFrame:
    """Selects the runs of one term of a contrast."""
    chosen = runs[runs["study"].isin(contrast.studies)]
    if len(contrast.studies) > 1:  # which may share runs
        chosen = chosen.drop_duplicates("run_id")
    if contrast.at:
        chosen = chosen[chosen["setting"].isin(contrast.at)]
    if contrast.best:
        chosen = at_best(chosen, contrast)
    return term_runs(chosen, term)


def term_runs(runs: pd.DataFrame, term: Term) -> pd.DataFrame:
    """Selects a model's runs, at the term's setting if it has one; the column `setting` is then
    cleared, so that both sides can be paired.
    """
    model, setting = term
    chosen = runs[runs["model"] == model]
    return chosen[chosen["setting"] == setting].assign(setting="") if setting else chosen


def crope_minus_rope(runs: pd.DataFrame) -> pd.DataFrame:
    """Subtracts RoPE from CRoPE as `differences` does, in all studies of these runs."""
    studies = tuple(runs["study"].unique())
    return differences(runs, Contrast("", studies, ("crope", ""), (("rope", ""),)))


def at_best(runs: pd.DataFrame, contrast: Contrast) -> pd.DataFrame:
    """Selects for each model and corpus the setting with the lowest mean loss over all seeds, of
    the settings that all studies of the contrast have; nothing before their plans are complete.

    Their setting names these choices, and says where one lies at an end of every study's grid.
    """
    models = [model for model, _ in contrast.terms]
    runs = of_grid(runs, contrast)
    # Before, rates differ in their seeds.
    if whole_seeds(runs, contrast) < len(planned_runs(contrast)):
        return runs[:0]
    means = runs.groupby(["model", "dataset", "setting"])["loss"].mean()
    chosen = means.groupby(["model", "dataset"]).idxmin().to_list()
    inner: set[str] = set()
    for study in contrast.studies:
        inner.update(in_order(load_study(study).axes[contrast.best])[1:-1])
    words = []
    for model in models:
        best = [setting.partition("=")[2] for name, _, setting in chosen if name == model]
        end = "" if set(best) <= inner else " (an end of the grid)"
        words.append(f"{model_label(model)} {', '.join(dict.fromkeys(best))}{end}")
    places = pd.MultiIndex.from_frame(runs[["model", "dataset", "setting"]])
    return runs[places.isin(chosen)].assign(setting=f"best {contrast.best}: {'; '.join(words)}")


def in_order(values: Sequence[str]) -> Sequence[str]:
    """Sorts the values of an axis by size: a value that was added later may stand last in the file.
    Words keep their order.
    """
    try:
        return sorted(values, key=float)
    except ValueError:
        return values


def of_grid(runs: pd.DataFrame, contrast: Contrast) -> pd.DataFrame:
    """Selects the runs of a contrast's models at those values of `best` that each study has."""
    models = [model for model, _ in contrast.terms]
    settings = [f"{contrast.best}={value}" for value in common_values(contrast)]
    runs = runs[runs["study"].isin(contrast.studies)]
    return runs[runs["model"].isin(models) & runs["setting"].isin(settings)]


def common_values(contrast: Contrast) -> list[str]:
    first, *others = [load_study(study).axes[contrast.best] for study in contrast.studies]
    return [value for value in first if all(value in values for values in others)]


def whole_seeds(runs: pd.DataFrame, contrast: Contrast) -> int:
    """Counts the seeds that have every run of `of_grid`."""
    models = {model for model, _ in contrast.terms}
    corpora = load_study(contrast.studies[0]).axes["data"]
    sizes = of_grid(runs, contrast).groupby(["study", "seed"]).size()
    return int((sizes == len(models) * len(corpora) * len(common_values(contrast))).sum())


def holm(lines: pd.DataFrame) -> int:
    """Counts the lines of `answers` whose difference is not 0 after Holm's correction for all of
    them, at 1 - LEVEL.
    """
    t = lines["mean"] / (lines["std"] / np.sqrt(lines["n"]))
    p_values = np.sort(2 * stdtr(lines["n"] - 1, -t.abs()))
    passed = p_values <= (1 - LEVEL) / np.arange(len(p_values), 0, -1)
    return int(passed.cumprod().sum())


def planned_runs(contrast: Contrast) -> list[tuple[str, int]]:
    """Lists the seeds of each study of a contrast: (study, seed)."""
    return [(study, seed) for study in contrast.studies for seed in load_study(study).seeds]


def estimate(
    by_seed: pd.Series, planned: Collection[Any] = (), level: float = LEVEL
) -> dict[str, Any]:
    """Computes n, mean, sample standard deviation and Student's interval; NaN for what these seeds
    do not give. There is no interval before all planned seeds are there.

    by_seed   with what `planned` lists as its index: seeds, or studies and seeds
    """
    n = len(by_seed)
    diverged = np.isinf(by_seed.astype(float)).any()  # on one side or the other
    mean = np.inf if diverged else by_seed.mean()
    there = set(planned) & set(by_seed.index)  # other seeds, however many, complete no plan
    complete = len(there) == len(planned)
    std = half = np.nan
    if n > 1 and not diverged:
        std = by_seed.std()
        half = stdtrit(n - 1, (1 + level) / 2) * std / np.sqrt(n) if complete else np.nan
    plan = {"planned": len(planned), "there": len(there), "complete": complete}
    return {**plan, "n": n, "mean": mean, "std": std, "low": mean - half, "high": mean + half}


def answer(runs: pd.DataFrame, contrast: Contrast) -> list[dict[str, Any]]:
    """Returns a line per row and setting, averaged over corpora, and then one per corpus if there
    are several. Tables 1 and 2 get only the latter. A line has the columns LINE.

    An incomplete plan has one line: how many of its seeds are there.
    """
    plan = runs[runs["study"].isin(contrast.studies)]
    planned = planned_runs(contrast)
    by_seed = differences(runs, contrast)
    if contrast.averaged:
        settings = len(contrast.at) or plan["plan_settings"].max()
        means = _average(by_seed, ["study", "dataset", "row", "seed"], settings)
        by_seed = means.reset_index().assign(setting="")
    lines: list[dict[str, Any]] = []
    for (row, setting), part in by_seed.groupby(["row", "setting"], sort=False):
        corpora = plan.loc[plan["row"] == row, "corpora"].max()
        by_corpus = part.set_index(["study", "seed"]).groupby("dataset", sort=False)
        groups = dict(list(by_corpus["nats"]))
        if corpora > 1 and contrast.studies[0] not in TABLES:
            groups = {"": _average(part, ["study", "seed"], corpora)} | groups
        for dataset, nats in groups.items():
            where = {"name": contrast.name, "dataset": dataset, "row": row, "setting": setting}
            lines.append({**where, **estimate(nats, planned), "by_seed": nats})
    overall = [line for line in lines if not line["dataset"]] or lines
    seeds = min((line["there"] for line in overall), default=0)
    if len(overall) < line_count(contrast):  # a row or setting has no seed yet
        seeds = 0
    if contrast.best:  # of every value, before there is a best one
        asked = [each for each in (contrast, contrast.minus) if each and each.best]
        lacking = max(len(planned_runs(each)) - whole_seeds(runs, each) for each in asked)
        seeds = max(0, len(planned) - lacking)
    if contrast.date and seeds < len(planned):
        nowhere = {"name": contrast.name, "dataset": "", "row": "", "setting": ""}
        lines = [{**nowhere, **estimate(by_seed["nats"][:0], planned), "there": seeds, "n": seeds}]
    return lines


def _average(lines: pd.DataFrame, keys: list[str], size: int) -> pd.Series:
    """Averages over the lines with these keys in common, a seed among them, where all `size` are
    there.
    """
    groups = lines.groupby(keys, sort=False)["nats"]
    means = groups.mean().fillna(np.inf)  # where one side diverged here, the other there
    return means[groups.size() == size]


def answers(runs: pd.DataFrame) -> pd.DataFrame:
    """Answers all contrasts, in their order. Exploratory ones without a run have no line."""
    lines, known = [], set(runs["study"])
    losses = [column for column, _ in QUANTITIES.values()]
    needed = ["run_id", "model", *PAIR_KEYS, "corpora", "plan_settings", *losses]
    runs = runs[needed]  # the others would cost a second
    for contrast in load_contrasts().values():
        if contrast.date or known & set(contrast.studies):
            lines += answer(runs, contrast)
    return pd.DataFrame(lines, columns=LINE)
