"""Published records: a set of finished runs in two files.

results/published/<set>/
    runs.jsonl        one line per run: run_id, config, provenance, summary, and what was measured later
    curves.parquet    the lines of every metrics.jsonl: run_id, step, val/loss_nats, ...
    README.md         what the set is, and where its runs were made

Weights are not published. The SHA-256 of metrics.jsonl in a summary is that of the run's own file,
whose bytes are not kept: `verify` compares the curves with the losses of the summary.
"""

import json
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

from crope.config import PUBLISHED, ROOT
from crope.errors import DataError, one_line
from crope.files import write_bytes, write_text
from crope.runs.record import Record

RUNS_FILE, CURVES_FILE = "runs.jsonl", "curves.parquet"


def is_set(folder: Path) -> bool:
    """Whether a folder holds a published set, not folders of runs."""
    return (folder / RUNS_FILE).is_file()


def set_folders(published: Path = PUBLISHED) -> list[Path]:
    return [path for path in sorted(published.glob("*/")) if is_set(path)]


def read_set(folder: Path) -> list[Record]:
    """The runs of a set. Raises DataError for a damaged line."""
    file = folder / RUNS_FILE
    runs = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            fields = json.loads(line)
            runs.append(Record(folder / fields.pop("run_id"), **fields))
        except (ValueError, TypeError, LookupError) as error:
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


def curve_rows(curve: pd.DataFrame) -> list[dict[str, Any]]:
    """Returns the lines of metrics.jsonl of one run, from its rows of the curves."""
    rows = []
    for row in curve.drop(columns="run_id").to_dict("records"):
        rows.append({str(key): value for key, value in row.items() if pd.notna(value)})
    return rows


def add_runs(folder: Path, records: Iterable[Record]) -> None:
    """Adds finished runs to a set, which is made if it is not there; a run of the same id is
    replaced.
    """
    runs: dict[str, Record] = {}
    curves: dict[Any, pd.DataFrame] = {}
    if is_set(folder):
        runs = {run.run_id: run for run in read_set(folder)}
        curves = dict(list(read_curves(folder).groupby("run_id")))
    for record in records:
        curve = pd.DataFrame(record.metrics())
        curve.insert(0, "run_id", record.run_id)
        runs[record.run_id] = record
        curves[record.run_id] = curve
    order = sorted(runs)  # so that a diff shows the runs that were added
    table = pd.concat([curves[run_id] for run_id in order], ignore_index=True)
    buffer = BytesIO()
    table.to_parquet(buffer, compression="zstd", index=False)
    # The curves first: a run that runs.jsonl names has its curve.
    write_bytes(folder / CURVES_FILE, buffer.getvalue())
    write_text(folder / RUNS_FILE, "".join(_run_line(runs[run_id]) for run_id in order))


def _run_line(record: Record) -> str:
    """A line of runs.jsonl, without absolute paths, which say nothing to others."""
    fields = {"run_id": record.run_id, **vars(record)}
    del fields["path"]
    if record.extrapolation is None:  # most have none
        del fields["extrapolation"]
    text = json.dumps(fields, sort_keys=True)
    names = {record.config["results_dir"]: "results", record.config["data_dir"]: "data"}
    names[str(ROOT)] = "."
    if hub := record.config["data"].get("hub"):
        names[hub["path"]] = "local"  # an absolute path, or the name of a repository
    for path in sorted(names, key=len, reverse=True):  # one may lie in another
        if Path(path).is_absolute():
            text = text.replace(json.dumps(path.rstrip("/"))[1:-1], names[path])
    return text + "\n"
