"""Data frames of runs with chosen losses, without files."""

import pandas as pd

from crope.plan.study import Cell
from crope.report.frame import COLUMNS


def runs(*, dataset="ptb", setting="", row="base", first_seed=0, vocabulary=4096, **by_model):
    """Complete runs as `load_frame` gives them: runs(rope=[5.0, 5.2]) has seeds 0 and 1 of RoPE.
    None is a seed without a run.
    """
    lines = []
    for model, losses in by_model.items():
        cell_key = f"{model}-{dataset}-{row}{setting}"
        for seed, loss in enumerate(losses, first_seed):
            line = {
                "record_set": "yours",
                "run_id": f"{cell_key}-s{seed}",
                "folder": "runs",
                "status": "complete",
                "code": "",
                "time.total_s": 90.0,
                "cell_key": cell_key,
                "scale": "quick",
                "model": model,
                "dataset": dataset,
                "row": row,
                "seed": seed,
                "loss": loss,
                "precision": "fp32",
                "device_kind": "cpu",
                "config.tokenizer.vocab_size": vocabulary,
                "settings": [],
            }
            lines.append(line)
    return pd.DataFrame(lines, columns=COLUMNS).dropna(subset="loss")


def together(*parts):
    return pd.concat([part.dropna(axis=1) for part in parts]).reindex(columns=parts[0].columns)


def lines(table):
    """The cells of a table, by line."""
    return table.frame.to_numpy().tolist()


def losses(*, study="mine", setting="", corpora=1, settings=1, **options):
    """The same runs as `by_study` gives them."""
    found = runs(setting=setting, **options)
    found["run_id"] = f"{study}-" + found["run_id"]
    return found.assign(study=study, setting=setting, corpora=corpora, plan_settings=settings)


def cells(*models, study="mine", dataset="ptb", setting="", row="base", seeds=(0, 1, 2)):
    """The cells of a row of a study, which have the runs of `runs`."""
    found = []
    for model in models or ("rope", "crope"):
        cell_key = f"{model}-{dataset}-{row}{setting}"
        found.append(Cell(study, dataset, row, model, setting, "quick", cell_key, seeds))
    return found


NO_RUNS = losses(rope=[])
