"""The deep check of records: whether all their numbers follow from configuration and metrics.

`store.read_record` leaves it out. It finds numbers that a changed program would compute
differently, and edited published sets.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from crope.config import EvalConfig, TrainConfig, known_values
from crope.errors import one_line
from crope.files import parse_metrics
from crope.plan.identity import cell_key
from crope.records.derive import derive
from crope.records.run_json import check_record
from crope.records.store import (
    UNREADABLE,
    Record,
    curve_rows,
    finished_runs,
    is_set,
    load_record,
    read_curves,
    read_set,
)


def verify_records(folders: Iterable[Path]) -> list[str]:
    """Returns a line, `<folder>/<run id>: reason`, for each wrong record of run folders and
    published sets. Raises DataError for an unreadable set.
    """
    problems: list[str] = []
    for folder in folders:
        if is_set(folder):
            records = read_set(folder)
            all_curves = read_curves(folder, [record.run_id for record in records])
            # One pass over the file: selecting each run's lines would read all of them 300 times.
            curves = dict(list(all_curves.groupby("run_id")))
            for record in records:
                with _noted(problems, record.path):
                    check_record(vars(record))
                    verify_record(record, curve_rows(curves.get(record.run_id, all_curves[:0])))
            continue
        for path in finished_runs(folder):
            with _noted(problems, path):
                record, metrics = load_record(path)
                verify_record(record, parse_metrics(metrics))
    return problems


@contextmanager
def _noted(problems: list[str], path: Path) -> Iterator[None]:
    """Makes an error of the block one of the problems."""
    try:
        yield
    except (*UNREADABLE, OSError) as error:
        problems.append(f"{path}: {one_line(error)[:300]}")


def verify_record(record: Record, rows: list[dict[str, Any]]) -> None:
    """Raises ValueError if a number of a valid record does not follow from the others; `rows` are
    those of metrics.jsonl.
    """
    if record.summary["status"] == "failed":
        return  # its metrics enter no number
    check_rows(rows, record.config)
    derived = derive(record.config, rows, record.provenance["data"]["splits"])
    described = {
        "seed": record.config["seed"],
        "precision": record.config["train"]["precision"],
        "cell_key": cell_key(record.config),
    }
    stored = record.summary | {key: record.run[key] for key in described}
    both = pd.json_normalize([stored, derived | described])
    both = both.dropna(axis="columns")  # compare only keys that both sides have
    for key, (found, computed) in both.items():
        if found != computed:
            raise ValueError(f"{key} is {found}, from the other files {computed}")


def check_rows(rows: list[dict[str, Any]], config: Mapping[str, Any]) -> None:
    """Raises ValueError unless metrics.jsonl has, step by step, the validations and learning rates
    of a whole run of this configuration.
    """
    train = TrainConfig(**known_values(TrainConfig, config["train"]))
    evaluation = EvalConfig(**known_values(EvalConfig, config["eval"]))
    last, every, full_every = train.max_steps, evaluation.every, evaluation.full_every
    due = {
        "val/loss_nats": {*range(0, last, every), last},
        "val_full/loss_nats": {*range(full_every, last, full_every), last},
        "train_full/loss_nats": {last},
    }
    # A run that skipped a validation, or one that two processes wrote, has other steps.
    for key, expected in due.items():
        if [row["step"] for row in rows if key in row] != sorted(expected):
            raise ValueError(f"metrics.jsonl: {key} is not at the steps of the configuration")
    steps = [row["step"] for row in rows]
    if steps != sorted(set(steps)):
        raise ValueError("metrics.jsonl: steps are repeated or not in order")
    # The rate shows with which schedule a run was trained, whatever its configuration says.
    for row in rows:
        step, rate = row["step"], train.learning_rate(row["step"])
        if not math.isclose(row.get("train/lr", rate), rate, rel_tol=1e-9):
            raise ValueError(f"metrics.jsonl: train/lr at step {step} is not the configuration's")
