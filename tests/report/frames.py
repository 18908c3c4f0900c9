"""Data frames of runs with chosen losses, without files."""

from functools import cache

import pandas as pd

from crope.report.frame import COLUMNS
from crope.runs.compose import load_run
from crope.runs.study import Cell

MODELS = ("xpos", "rope", "crope")


def runs(
    *,
    dataset="ptb",
    setting="",
    row="base",
    first_seed=0,
    columns=None,
    **by_model,
):
    """Complete runs as `load_frame` gives them: runs(rope=[5.0, 5.2]) has seeds 0 and 1 of RoPE.
    None is a seed without a run. columns: what differs from the usual.
    """
    lines = []
    for model, losses in by_model.items():
        for seed, loss in enumerate(losses, first_seed):
            line = {
                "record_set": "yours",
                "run_id": f"{model}-{dataset}-{row}{setting}-s{seed}",
                "path": f"runs/{model}-{dataset}-{row}{setting}-s{seed}",
                "status": "complete",
                "cell_key": f"{model}-{dataset}-{row}{setting}",
                "scale": "quick",
                "model": model,
                "dataset": dataset,
                "row": row,
                "seed": seed,
                "loss": loss,
                "precision": "fp32",
                "device_kind": "cpu",
                "whole_config": [default_config()],
            }
            lines.append(line | (columns or {}))
    names = dict.fromkeys([*COLUMNS, "whole_config", *(columns or {})])
    return pd.DataFrame(lines, columns=list(names)).dropna(subset="loss")


@cache
def default_config():
    return load_run(["data=ptb", "scale=quick", "train.precision=fp32"]).container


def together(*parts):
    return pd.concat([part.dropna(axis=1) for part in parts]).reindex(columns=parts[0].columns)


def losses(*, study="mine", setting="", corpora=1, settings=1, **options):
    """The same runs as `by_study` gives them."""
    known = {
        "study": study,
        "setting": setting,
        "corpora": corpora,
        "settings": settings,
    }
    return runs(setting=setting, **options).assign(**known)


def cells(
    *models,
    study="mine",
    dataset="ptb",
    setting="",
    row="base",
    seeds=(0, 1, 2),
):
    """The cells of a row of a study, which have the runs of `runs`."""
    found = []
    for model in models or ("rope", "crope"):
        key = f"{model}-{dataset}-{row}{setting}"
        found.append(Cell(study, dataset, row, model, setting, "quick", key, tuple(seeds)))
    return found
