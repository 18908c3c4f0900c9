"""Published records: a set of finished runs in two files.

results/published/<set>/
    runs.jsonl        one line per run: run_id, config, provenance, summary, and what was measured later
    curves.parquet    the lines of every metrics.jsonl: run_id, step, val/loss_nats, ...
    README.md         what the set is, and where its runs were made

Weights are not published. The bytes of each metrics.jsonl can be rebuilt (`metrics_bytes`), so that
the SHA-256 in its summary still judges them.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

from crope.config import ROOT
from crope.errors import DataError, InvalidRecord, one_line
from crope.files import read_metrics, write_bytes, write_text
from crope.runs.record import EXTRAPOLATION, Record, read_extrapolation

PUBLISHED = ROOT / "results" / "published"
RUNS_FILE, CURVES_FILE = "runs.jsonl", "curves.parquet"
# The keys of a line of metrics.jsonl in the order in which the training loop writes them.
KEY_ORDER = [
    "step",
    "val/loss_nats",
    "val_full/loss_nats",
    "val_full/tokens",
    "train_full/loss_nats",
    "train_full/tokens",
    "train/loss_nats",
    "train/grad_norm",
    "train/lr",
    "time/step_ms",
    "speed/tokens_per_s",
    "speed/mfu_pct",
    "memory/peak_gib",
]
WHOLE_NUMBERS = ("step", "val_full/tokens", "train_full/tokens")


@dataclass(frozen=True)
class PublishedRun:
    """A line of runs.jsonl. Losses are in nats per token."""

    run_id: str
    config: dict[str, Any]
    provenance: dict[str, Any]
    summary: dict[str, Any]
    extrapolation: dict[str, Any] | None = None


def is_set(folder: Path) -> bool:
    """Whether a folder holds a published set, not folders of runs."""
    return (folder / RUNS_FILE).is_file()


def set_folders(published: Path = PUBLISHED) -> list[Path]:
    return [path for path in sorted(published.glob("*/")) if is_set(path)]


def read_set(folder: Path) -> list[PublishedRun]:
    """The runs of a set. Raises DataError for a damaged line."""
    file = folder / RUNS_FILE
    runs = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            runs.append(PublishedRun(**json.loads(line)))
        except (ValueError, TypeError) as error:
            where = f"{file}, line {number}: {one_line(error)}"
            raise DataError(f"{where}; restore the committed file") from error
    return runs


def read_curves(folder: Path) -> pd.DataFrame:
    """run_id, step and the logged values of every run of a set; NaN where not logged. Raises
    DataError.
    """
    file = folder / CURVES_FILE
    try:
        return pd.read_parquet(file)
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: {one_line(error)}; restore the committed file") from error


def curve_of(records: Iterable[Mapping[str, Any]], run_id: str) -> pd.DataFrame:
    """The lines of one metrics.jsonl as rows of a set's curves."""
    curve = pd.DataFrame(list(records))
    known = [key for key in KEY_ORDER if key in curve]
    added = [str(key) for key in curve if key not in KEY_ORDER]
    curve = curve[known + added]
    curve.insert(0, "run_id", run_id)
    return curve


def metrics_bytes(curve: pd.DataFrame) -> bytes:
    """The metrics.jsonl of one run as it was written, from its rows of the curves."""
    lines = []
    for row in curve.drop(columns="run_id").to_dict("records"):
        line = {}
        for key, value in row.items():
            if pd.notna(value):
                line[key] = int(value) if key in WHOLE_NUMBERS else value
        lines.append(json.dumps(line) + "\n")
    return "".join(lines).encode()


def metrics_sha256(curve: pd.DataFrame) -> str:
    return hashlib.sha256(metrics_bytes(curve)).hexdigest()


def add_runs(folder: Path, records: Iterable[Record]) -> None:
    """Adds finished runs to a set, which is made if it is not there; a run of the same id is
    replaced.

    Raises InvalidRecord if the metrics of a run cannot be rebuilt from the curves.
    """
    runs = {run.run_id: run for run in read_set(folder)} if is_set(folder) else {}
    curves = dict(list(read_curves(folder).groupby("run_id"))) if runs else {}
    for record in records:
        run_id = record.path.name
        curve = curve_of(read_metrics(record.path / "metrics.jsonl"), run_id)
        stated = record.summary.get("metrics_sha256")  # a failed run has none
        if stated and metrics_sha256(curve) != stated:
            raise InvalidRecord(record.path, "metrics.jsonl cannot be rebuilt from its values")
        runs[run_id], curves[run_id] = _without_paths(record), curve
    order = sorted(runs)
    lines = [json.dumps(_stated(runs[run_id]), sort_keys=True) for run_id in order]
    table = pd.concat([curves[run_id] for run_id in order], ignore_index=True)
    columns = [key for key in ["run_id", *KEY_ORDER] if key in table]
    columns += [str(key) for key in table if key not in columns]
    buffer = BytesIO()
    table[columns].to_parquet(buffer, compression="zstd", index=False)
    # The curves first: a run that runs.jsonl names has its curve.
    write_bytes(folder / CURVES_FILE, buffer.getvalue())
    write_text(folder / RUNS_FILE, "\n".join(lines) + "\n")


def published_run(record: Record) -> PublishedRun:
    """A record with what was measured on it later. Raises InvalidRecord for a damaged measurement."""
    run = PublishedRun(record.path.name, record.config, record.provenance, record.summary)
    file = record.path / EXTRAPOLATION
    return replace(run, extrapolation=read_extrapolation(record)) if file.exists() else run


def _without_paths(record: Record) -> PublishedRun:
    """A record without absolute paths, which say nothing to others."""
    names = {record.config["results_dir"]: "results", record.config["data_dir"]: "data"}
    names[str(ROOT)] = "."
    if hub := record.config["data"].get("hub"):
        names[hub["path"]] = "local"  # an absolute path, or the name of a repository
    text = json.dumps(_stated(published_run(record)))
    for path in sorted(names, key=len, reverse=True):  # one may lie in another
        if Path(path).is_absolute():
            text = text.replace(json.dumps(path.rstrip("/"))[1:-1], names[path])
    return PublishedRun(**json.loads(text))


def _stated(run: PublishedRun) -> dict[str, Any]:
    """The fields of a run that are there."""
    return {name: value for name, value in vars(run).items() if value is not None}
