"""Data frames of runs with chosen losses, as `load_frame` gives them, without files."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from crope.report.frame import COLUMNS
from crope.runs.study import Cell, StudyRow


def make_key(model: str, dataset: str, row: str, width: int, lr: str) -> str:
    return f"{model}/{dataset}/{row}/{width}/{lr}"


def make_row(
    study: str = "mine",
    models: Sequence[str] = ("rope", "crope"),
    *,
    dataset: str = "ptb",
    width: int = 128,
    lr: str = "",
    seeds: Sequence[int] = (0, 1, 2),
) -> StudyRow:
    cells = []
    for model in models:
        key = make_key(model, dataset, "base", width, lr)
        cells.append(Cell("table1", "base", dataset, model, "quick", key))
    settings = (f"train.lr={lr}",) if lr else ()
    return StudyRow(study, dataset, width, tuple(cells), settings, tuple(seeds))


def make_runs(
    model: str,
    final: Mapping[int, float],
    *,
    dataset: str = "ptb",
    row: str = "base",
    width: int = 128,
    lr: str = "",
    train: Mapping[int, float] | None = None,
    **columns: Any,
) -> list[dict[str, Any]]:
    """One line per seed of `final`; `train` losses are the final ones if they are not given."""
    known = {
        "cell_key": make_key(model, dataset, row, width, lr), "model": model, "dataset": dataset, "row": row,
        "scale": "quick", "status": "complete", "config.model.d_model": width, "config.train.seq_len": 256,
        "config.train.lr": float(lr or 1e-3), "parameters.total": 1000 * width, "provenance.commit": "c" * 40,
        "provenance.device": "a CPU", "threads": 1, "finished_utc": "2026", "precision": "fp32",
    }  # fmt: skip
    return [
        known | columns | {
            "seed": seed, "run_id": f"{model}-{dataset}-{row}-{width}-{lr}-s{seed}",
            "path": f"runs/{model}-{dataset}-{row}-s{seed}", "val_full.final_nats": loss,
            "val_full.best_nats": 10 - loss, "train.final_nats": (train or final)[seed],
        }
        for seed, loss in final.items()
    ]  # fmt: skip


def make_frame(*lines: list[dict[str, Any]]) -> pd.DataFrame:
    found = pd.DataFrame([line for part in lines for line in part])
    return found.reindex(columns=list(dict.fromkeys([*COLUMNS, *found.columns])))
