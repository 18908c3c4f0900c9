"""Finished runs on disk: folders of run directories, and published sets.

results/published/<set>/
    runs.jsonl        one line per run: run_id, run, config, provenance, summary, extrapolation
    curves.parquet    the lines of every metrics.jsonl: run_id, step, val/loss_nats, ...
    README.md         what the set is, and where its runs were made

A record is valid if its files have the fields that are read, its name follows from its
configuration, and metrics.jsonl has the SHA-256 in summary.json. Losses and times are computed from
metrics.jsonl.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from crope.config import PUBLISHED, ROOT
from crope.errors import DataError, InvalidRecord, UserError, one_line
from crope.files import parse_metrics, read_json, read_metrics, read_yaml, write_bytes, write_text
from crope.plan.identity import numerics_version
from crope.records.derive import derive
from crope.records.run_json import EXTRAPOLATION, check_record

if TYPE_CHECKING:  # a run needs no pandas, which takes a second to import
    import pandas as pd

RUNS_FILE, CURVES_FILE = "runs.jsonl", "curves.parquet"
# Raised by a missing or wrong file; other OSErrors are faults of a disk, not of a record.
UNREADABLE = (
    DataError,
    FileNotFoundError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    yaml.YAMLError,
)


@dataclass(frozen=True)
class Record:
    """One finished run, of a folder of runs or of a published set. Losses are in nats per token."""

    folder: Path
    run_id: str
    run: dict[str, Any]
    config: dict[str, Any]
    summary: dict[str, Any]
    provenance: dict[str, Any]
    extrapolation: dict[str, Any] | None = None

    @property
    def path(self) -> Path:
        """Gives the run directory; a published run has none."""
        return self.folder / self.run_id

    @property
    def status(self) -> str:
        """Tells whether the run is complete, failed, or stale (of another numerics version)."""
        status: str = self.summary["status"]
        current = self.run["numerics_version"] == numerics_version(self.config["model"])
        return status if current else "stale"


def read_record(path: Path) -> Record:
    """Reads one run directory, later measurements included.

    What `derive` gives is computed from metrics.jsonl, whatever summary.json says. Raises
    InvalidRecord if a file is invalid, OSError if the disk fails.
    """
    try:
        record, metrics = load_record(path)
        if record.summary["status"] == "failed":
            return record
        derived = derive(record.config, parse_metrics(metrics), record.provenance["data"]["splits"])
        # `total_s` is measured by the run itself.
        derived["time"] = record.summary.get("time", {}) | derived["time"]
        return replace(record, summary=record.summary | derived)
    except UNREADABLE as error:
        reason = f"is not valid: {one_line(error)[:200]}"
        if EXTRAPOLATION in reason:  # the run itself need not be trained again
            remedy = "remove that file and run scripts/tools.py extrapolate again"
            raise InvalidRecord(path, reason, remedy) from error
        raise InvalidRecord(path, reason) from error


def read_described(path: Path) -> dict[str, Any]:
    """Reads a run's run.json; empty if it is missing or corrupt, which `read_record` reports."""
    with suppress(*UNREADABLE):
        return _read_object(path / "run.json")
    return {}


def load_record(path: Path) -> tuple[Record, bytes]:
    """Loads and checks a run directory's files as they are; returns the bytes of metrics.jsonl too.
    Raises one of UNREADABLE.
    """
    metrics = path / "metrics.jsonl"  # a run that failed early has none
    data = metrics.read_bytes() if metrics.exists() else b""
    later = path / EXTRAPOLATION
    record = Record(
        path.parent,
        path.name,
        run=_read_object(path / "run.json"),
        config=_read_object(path / "config.yaml"),
        provenance=_read_object(path / "provenance.json"),
        summary=_read_object(path / "summary.json"),
        extrapolation=_read_object(later) if later.exists() else None,
    )
    check_record(vars(record), data)
    return record, data


def read_runs(folder: Path) -> tuple[list[Record], list[InvalidRecord]]:
    """Reads the finished (complete or failed) runs of a run folder or published set: valid and
    invalid ones. Raises DataError for a damaged set, OSError if the disk fails.
    """
    if is_set(folder):
        return read_set(folder), []
    records, invalid = [], []
    for path in finished_runs(folder):
        try:
            records.append(read_record(path))
        except InvalidRecord as error:
            invalid.append(error)
    return records, invalid


def read_curves(folder: Path, run_ids: Sequence[str]) -> "pd.DataFrame":
    """Reads the logged values of a folder's or set's runs: run_id, step, val/loss_nats, ...; NaN
    where not logged. Raises DataError for a damaged set.
    """
    import pandas as pd

    if not is_set(folder):
        parts = [pd.DataFrame(columns=["run_id", "step"])]
        for run_id in run_ids:
            curve = pd.DataFrame(read_metrics(folder / run_id / "metrics.jsonl"))
            parts.append(curve.assign(run_id=run_id))
        return pd.concat(parts, ignore_index=True)
    file = folder / CURVES_FILE
    try:
        curves = pd.read_parquet(file)
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: {one_line(error)}; restore the committed file") from error
    return curves[curves["run_id"].isin(run_ids)]


def curve_rows(curve: "pd.DataFrame") -> list[dict[str, Any]]:
    """Returns one run's lines of metrics.jsonl from its rows of the curves."""
    # NaN, which alone differs from itself, stands for a value that was not logged.
    return [
        {str(key): value for key, value in row.items() if value == value}
        for row in curve.drop(columns="run_id").to_dict("records")
    ]


def is_set(folder: Path) -> bool:
    """Tells whether a folder holds a published set, not run directories."""
    return (folder / RUNS_FILE).is_file()


def set_folders() -> list[Path]:
    return [path for path in sorted(PUBLISHED.glob("*/")) if is_set(path)]


def read_set(folder: Path) -> list[Record]:
    """Reads the runs of a published set. Raises DataError for a damaged line."""
    file = folder / RUNS_FILE
    runs = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            runs.append(Record(folder, **json.loads(line)))
        except (ValueError, TypeError) as error:
            where = f"{file}, line {number}: {one_line(error)}"
            raise DataError(f"{where}; restore the committed file") from error
    return runs


def add_runs(folder: Path, records: Iterable[Record]) -> None:
    """Adds finished runs to a set, made if missing; a run of the same id is replaced."""
    import pandas as pd

    runs: dict[str, Record] = {}
    curves: dict[Any, pd.DataFrame] = {}
    if is_set(folder):
        runs = {run.run_id: run for run in read_set(folder)}
        curves = dict(list(read_curves(folder, list(runs)).groupby("run_id")))
    for record in records:
        runs[record.run_id] = record
        curves[record.run_id] = read_curves(record.folder, [record.run_id])
    order = sorted(runs)  # so that a diff shows the runs that were added
    # A run that diverged at its first step has no line.
    found = [curves[run_id] for run_id in order if run_id in curves]
    table = pd.concat(found, ignore_index=True)
    buffer = BytesIO()
    table.to_parquet(buffer, compression="zstd", index=False)
    # The curves first: a run that runs.jsonl names has its curve.
    write_bytes(folder / CURVES_FILE, buffer.getvalue())
    write_text(folder / RUNS_FILE, "".join(_run_line(runs[run_id]) for run_id in order))


def _run_line(record: Record) -> str:
    """Returns a line of runs.jsonl, without absolute paths, which say nothing to others."""
    fields = {key: value for key, value in vars(record).items() if value is not None}
    del fields["folder"]
    text = json.dumps(fields, sort_keys=True)
    results_dir, data_dir = record.config["results_dir"], record.config["data_dir"]
    names = {results_dir: "results", data_dir: "data", str(ROOT): "."}
    if hub := record.config["data"].get("hub"):
        names[hub["path"]] = "local"  # an absolute path, or the name of a repository
    for path in sorted(names, key=len, reverse=True):  # one may lie in another
        if Path(path).is_absolute():
            # Only as the start of a path: /data is a part of owner/dataset and of /database, too.
            start = re.escape(json.dumps(path.rstrip("/"))[1:-1])
            text = re.sub(rf"(?<=[\"'=:,(\s]){start}(?![\w-]|\.\w|\\u)", names[path], text)
    return text + "\n"


def finished_runs(folder: Path) -> list[Path]:
    """Lists a folder's run directories that have a summary.json, by name."""
    # `glob` would leave out a folder that cannot be read.
    return [path for path in sorted(folder.glob("*/")) if (path / "summary.json").exists()]


def last_values(path: Path) -> dict[str, Any]:
    """Returns the newest step and values in metrics.jsonl; step 0 if there is none."""
    values: dict[str, Any] = {"step": 0}
    with suppress(OSError, ValueError):
        for row in read_metrics(path / "metrics.jsonl"):  # some thousand short lines at most
            values |= row
    return values


def is_complete(path: Path) -> bool:
    """Tells whether the run is done, by the file written last. Raises InvalidRecord if that is
    corrupt; the other files are not checked.
    """
    file = path / "summary.json"
    try:
        return file.exists() and bool(read_json(file)["status"] == "complete")
    except (ValueError, LookupError, TypeError) as error:
        raise InvalidRecord(path, f"summary.json: {one_line(error)}") from error


def find_record(name: str, *, results_dir: Path) -> Record:
    """Finds a finished run by its folder, its id or the start of its id.

    Raises UserError for none or several matches, DataError for an unfinished run.
    """
    path = Path(name).resolve()  # of `.` the name, too
    if not (path / "run.json").exists():
        paths = sorted((results_dir / "runs").glob("*/"))
        matches = [path for path in paths if path.name.startswith(name)]
        matches = [path for path in matches if path.name == name] or matches
        if len(matches) != 1:
            found = "".join(f"\n  {path.name}" for path in matches)
            raise UserError(
                f"run '{name}': {len(matches)} runs match; give one of `tools.py list`{found}"
            )
        (path,) = matches
    if not (path / "summary.json").exists():
        raise DataError(
            f"{path}: the run is not finished (no summary.json); run the command that started it again"
        )
    return read_record(path)


def data_digests(meta: Mapping[str, Any]) -> dict[str, str]:
    """Returns the SHA-256 of each split in the data's meta.json."""
    return {name: split["sha256"] for name, split in meta["splits"].items()}


def _read_object(path: Path) -> dict[str, Any]:
    """Reads a JSON or YAML object."""
    try:
        content: dict[str, Any] = read_json(path) if path.suffix == ".json" else read_yaml(path)
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path.name}: {one_line(error)}") from error
    return content  # of another type: no schema takes it
