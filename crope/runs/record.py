"""The run directory: the only record of a run. Tables, figures and wandb are made from it.

results/runs/<run_id>/
    config.yaml          the whole resolved configuration
    provenance.json      commit, command, versions, device, data hashes, start and end (UTC)
    metrics.jsonl        a JSON object per line, each with "step", the optimiser updates done
    summary.json         written last; `status: complete` in it is the only definition of done
    weights.safetensors  state dict after the last step
    extrapolation.json   measured on the weights later, with their SHA-256
    checkpoint-*.pt      while the run is incomplete

A record is valid if its files have the fields that are read, if the folder's name is that of the
configuration, and if metrics.jsonl has the SHA-256 in summary.json. Losses and times follow from
metrics.jsonl and are computed when a record is read; `verify` compares them with what is stored.
"""

import fnmatch
import hashlib
import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    Field,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)

from crope.errors import DataError, InvalidRecord, UserError, one_line
from crope.files import parse_metrics, read_metrics
from crope.runs.identity import numerics_version, run_hash

EXTRAPOLATION = "extrapolation.json"
LAST_SHARE = 0.1  # the paper's final loss: the sampled validation losses of the last 10 % of steps
# Raised by a missing or wrong file; other OSErrors are faults of a disk, not of a record.
UNREADABLE = (
    DataError,
    FileNotFoundError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    yaml.YAMLError,
)

Nats = Annotated[FiniteFloat, Field(gt=0)]


class Split(BaseModel):
    """A split's entry in the data's meta.json."""

    tokens: PositiveInt
    bytes: PositiveInt
    sha256: str


class Splits(BaseModel):
    train: Split
    validation: Split


class Data(BaseModel):
    splits: Splits


class Attempt(BaseModel):
    """An execution of a run; None where it is unknown."""

    commit: str | None
    dirty: bool | None
    command: str | None
    device: str | None
    started_utc: str | None


class Provenance(Attempt):
    """provenance.json: the last attempt at a run, with the earlier ones, oldest first."""

    resumed_from: list[Attempt] = []
    device_kind: str
    threads: NonNegativeInt
    data: Data


class Failure(BaseModel):
    type: str
    message: str
    step: NonNegativeInt | None


class Finished(BaseModel):
    """Fields of summary.json that complete and failed runs share."""

    run_id: str
    model: str
    dataset: str
    row: str
    scale: str
    seed: NonNegativeInt
    numerics_version: NonNegativeInt
    precision: str
    device_kind: str
    finished_utc: str


class Complete(Finished):
    status: Literal["complete"]
    metrics_sha256: str
    weights_sha256: str


class Failed(Finished):
    status: Literal["failed"]
    error: Failure


Summary = Annotated[Complete | Failed, Field(discriminator="status")]


class Length(BaseModel):
    seq_len: PositiveInt
    loss_nats: Nats | None  # None where the positions or the split end before


class Extrapolation(BaseModel):
    """extrapolation.json"""

    weights_sha256: str
    lengths: list[Length]


@dataclass(frozen=True)
class Record:
    """One finished run. Losses are in nats per token."""

    path: Path  # of a published run <set>/<run id>, which is no folder
    config: dict[str, Any]
    summary: dict[str, Any]
    provenance: dict[str, Any]
    extrapolation: dict[str, Any] | None = None  # by `with_extrapolation`

    @property
    def run_id(self) -> str:
        return self.path.name

    def metrics(self) -> list[dict[str, Any]]:
        return read_metrics(self.path / "metrics.jsonl")


def read_record(path: Path) -> Record:
    """One run directory. Raises InvalidRecord if it is not valid, OSError if the disk fails.

    What `derive` gives is computed from metrics.jsonl, whatever summary.json says.
    """
    try:
        record, metrics = load_record(path)
        check_record(record, metrics)
        if record.summary["status"] == "failed":
            return record
        derived = derive(record.config, parse_metrics(metrics), record.provenance["data"]["splits"])
        # `total_s` is measured by the run itself.
        derived["time"] = record.summary.get("time", {}) | derived["time"]
        return replace(record, summary=record.summary | derived)
    except UNREADABLE as error:
        raise InvalidRecord(path, f"is not valid: {one_line(error)[:200]}") from error


def load_record(path: Path) -> tuple[Record, bytes]:
    """The files of a run directory as they are, and the bytes of its metrics.jsonl. Raises one of
    UNREADABLE.
    """
    metrics = path / "metrics.jsonl"  # a run that failed early has none
    data = metrics.read_bytes() if metrics.exists() else b""
    names = ("config.yaml", "summary.json", "provenance.json")
    return Record(path, *(_read_object(path / name) for name in names)), data


def check_record(record: Record, metrics: bytes | None = None) -> None:
    """Raises ValueError if a record is not valid; `metrics` are the bytes of its metrics.jsonl, None
    for a published run, which has none.
    """
    check_schema(Provenance, record.provenance, "provenance.json")
    summary: Complete | Failed = check_schema(Summary, record.summary, "summary.json")
    try:  # the hash in the name says more than a schema would
        digest = run_hash(record.config, version=summary.numerics_version)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"config.yaml: not that of a run ({error})") from error
    cell = f"{summary.model}-{summary.dataset}-{summary.row}"
    run_id = f"{cell}-s{record.config['seed']}-{digest}"
    # The name says which run a folder holds: reports, resuming and wandb go by it.
    if not record.run_id == summary.run_id == run_id:
        raise ValueError(f"config.yaml and summary.json are those of {run_id}, by its name another")
    if isinstance(summary, Failed) or metrics is None:
        return  # metrics of a failed run enter no number
    if hashlib.sha256(metrics).hexdigest() != summary.metrics_sha256:
        raise ValueError("metrics.jsonl does not have the SHA-256 that summary.json states")


def check_schema(schema: Any, value: Any, name: str) -> Any:
    """`value` as the schema's model. Raises ValueError that names the file and the first wrong key."""
    try:
        # Strict: a number as text, or a fraction of a step, was not written by this program.
        return TypeAdapter(schema).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"{name}: {key}: {first['msg']}") from error


def with_extrapolation(record: Record) -> Record:
    """The record with its extrapolation.json, if it has one. Raises InvalidRecord if that is not
    valid.
    """
    path = record.path / EXTRAPOLATION
    if not path.exists():
        return record
    try:
        measured = replace(record, extrapolation=_read_object(path))
        check_extrapolation(measured)
    except UNREADABLE as error:
        remedy = "remove the file and run scripts/tools.py extrapolate again"
        raise InvalidRecord(path, f"is not valid: {one_line(error)[:200]}", remedy) from error
    return measured


def check_extrapolation(record: Record) -> None:
    """Raises ValueError for other fields than extrapolation.json has, or other weights than the
    run's.
    """
    measured = check_schema(Extrapolation, record.extrapolation, EXTRAPOLATION)
    if measured.weights_sha256 != record.summary.get("weights_sha256"):
        raise ValueError(f"{EXTRAPOLATION}: measured on other weights than this run's")


def read_records(*folders: Path) -> tuple[list[Record], list[InvalidRecord]]:
    """Every finished (complete or failed) run directly below `folders`, with what was measured on it
    later, sorted by folder and name: valid ones and invalid ones.
    """
    records, invalid = [], []
    for path in finished_runs(*folders):
        try:
            records.append(with_extrapolation(read_record(path)))
        except InvalidRecord as error:
            invalid.append(error)
        except OSError as error:
            remedy = "mend the disk or its permissions"
            invalid.append(InvalidRecord(path, f"cannot be read ({error.strerror})", remedy))
    return records, invalid


def finished_runs(*folders: Path) -> Iterator[Path]:
    """The run directories below `folders` that have a summary.json."""
    for folder in folders:
        for path in sorted(folder.glob("*/")):
            try:
                finished = (path / "summary.json").exists()
            except OSError:  # no permission: reading it will say so
                finished = True
            if finished:
                yield path


def is_complete(path: Path) -> bool:
    """Whether the run is done. Raises InvalidRecord for a corrupt record."""
    return (path / "summary.json").exists() and read_record(path).summary["status"] == "complete"


def run_status(record: Record) -> str:
    """complete, failed, or stale: of another numerics version of its model."""
    status: str = record.summary["status"]
    current = record.summary["numerics_version"] == numerics_version(record.config["model"])
    return status if current else "stale"


def match_runs(name: str, known: Mapping[str, Path]) -> list[Path]:
    """The runs whose id is `name`, matches it or alone starts so. Raises UserError for none."""
    matches = fnmatch.filter(known, name)
    starts = [run_id for run_id in known if run_id.startswith(name)]
    if not matches and len(starts) != 1:
        raise UserError(
            f"run '{name}': {len(starts)} runs match; give a folder, a run id, a unique start of one"
        )
    return [known[run_id] for run_id in matches or starts]


def find_record(name: str, *, results_dir: Path) -> Record:
    """A finished run by its folder, its id or the start of its id.

    Raises UserError for none or several matches, DataError for a run that is not finished.
    """
    path = Path(name)
    if not (path / "config.yaml").exists():
        path, *others = match_runs(name, run_folders(results_dir))
        if others:
            raise UserError(f"run '{name}': {len(others) + 1} runs match; name one")
    if not (path / "summary.json").exists():
        raise DataError(
            f"{path}: the run is not finished (no summary.json); run the command that started it again"
        )
    return read_record(path)


def run_folders(results_dir: Path) -> dict[str, Path]:
    """The run directories of a results folder by run id, finished or not."""
    return {path.name: path for path in sorted((results_dir / "runs").glob("*/"))}


def _read_object(path: Path) -> dict[str, Any]:
    """The keys and values of a JSON or YAML file."""
    data = path.read_bytes()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser is ten times faster
    try:
        content: dict[str, Any] = (
            json.loads(data) if path.suffix == ".json" else yaml.load(data, loader)
        )
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ValueError(f"{path.name}: {one_line(error)}") from error
    return content  # of another type: no schema takes it


def derive(
    config: Mapping[str, Any], rows: list[dict[str, Any]], splits: Mapping[str, Any]
) -> dict[str, Any]:
    """The part of summary.json that follows from the configuration, the rows of metrics.jsonl and
    the splits of the data's meta.json. Losses are in nats per token.

    val_sampled   mean and sample standard deviation of the sampled losses at step >= 0.9 max_steps
    val_full      final and best loss of the fixed pass
    train         the training split measured as val_full is, after the last step
    time          median step time over the training lines except the first, which includes
                  compilation and first allocations; None if the clock stood still
    """
    train, validation = config["train"], splits["validation"]
    max_steps = train["max_steps"]
    seen = max_steps * train["batch_size"] * train["seq_len"]
    sampled = _by_step(rows, "val/loss_nats")
    full = _by_step(rows, "val_full/loss_nats")
    tail = [step for step in sampled if step >= (1 - LAST_SHARE) * max_steps]
    losses = [sampled[step] for step in tail]
    last = rows[-1]
    final, train_final = last["val_full/loss_nats"], last["train_full/loss_nats"]
    count = last["val_full/tokens"]
    return {
        "steps": max_steps,
        "train_tokens": seen,
        "train_passes": seen / splits["train"]["tokens"],
        "val_sampled": {
            "mean_nats": statistics.fmean(losses),
            "std_nats": statistics.stdev(losses) if len(losses) > 1 else None,
            "n": len(losses),
            "first_step": tail[0],
            "last_step": tail[-1],
            **_lowest(sampled),
        },
        "val_full": {
            "final_nats": final,
            **_lowest(full),
            "tokens": count,
            "whole_split": count == validation["tokens"] - 1,
        },
        "train": {"final_nats": train_final, "tokens": last["train_full/tokens"]},
        "train_val_gap_nats": final - train_final,
        "val_nats_per_byte": final * validation["tokens"] / validation["bytes"],
        "time": {
            "median_step_ms": _median_but_first(rows, "time/step_ms"),
            "tokens_per_s": _median_but_first(rows, "speed/tokens_per_s"),
        },
        "memory_peak_gib": max(_by_step(rows, "memory/peak_gib").values(), default=None),
    }


def _by_step(rows: list[dict[str, Any]], key: str) -> dict[int, float]:
    return {row["step"]: row[key] for row in rows if key in row}


def _lowest(losses: dict[int, float]) -> dict[str, float]:
    step = min(losses, key=losses.__getitem__)  # of equal losses the first
    return {"best_nats": losses[step], "best_step": step}


def _median_but_first(rows: list[dict[str, Any]], key: str) -> float | None:
    values = list(_by_step(rows, key).values())
    return statistics.median(values[1:] or values) if values else None
