"""The run directory: the only record of a run. Tables, figures and wandb are made from it.

results/runs/<run_id>/
    config.yaml       the whole resolved configuration
    provenance.json   commit, command, versions, device, data hashes, start and end (UTC)
    metrics.jsonl     one JSON object per line, each with "step" = optimiser updates done
    summary.json      written last; `status: complete` in it is the only definition of done
    val_windows.npy   validation loss of each window of the last full pass, in nats per token, float32
    weights.pt        state dict after the last step
    extrapolation.json, conversion.json    measured on the weights later, with their SHA-256
    checkpoint-*.pt   while the run is incomplete; converted.pt after a conversion
"""

import hashlib
import io
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
import yaml
from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from crope.config import ROOT, ModelConfig, TrainConfig
from crope.errors import DataError, InvalidRecord, UserError, one_line
from crope.files import read_metrics
from crope.model.counting import count_parameters
from crope.runs.identity import numerics_version, run_hash

PUBLISHED = ROOT / "results" / "published"
LAST_SHARE = 0.1  # the paper's final loss: the sampled validation losses of the last 10 % of steps
UNREADABLE = (  # raised by content of a wrong form
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    yaml.YAMLError,
)

Nats = Annotated[FiniteFloat, Field(gt=0)]


class Split(TypedDict):
    """A split's entry in the data's meta.json."""

    tokens: PositiveInt
    bytes: PositiveInt
    sha256: str


class Splits(TypedDict):
    train: Split
    validation: Split


class Meta(TypedDict):
    splits: Splits


class Attempt(TypedDict):
    """An execution of a run; None where it is unknown."""

    commit: str | None
    dirty: bool | None
    command: str | None
    device: str | None
    started_utc: str | None


class Provenance(Attempt):
    """provenance.json: what the report and the publication read of it."""

    device_kind: str
    threads: NonNegativeInt
    data: Meta
    resumed_from: NotRequired[list[Attempt]]


class Failure(TypedDict):
    type: str
    message: str
    step: NonNegativeInt | None


class Identity(TypedDict):
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
    status: Literal["complete", "failed"]
    error: Failure | None


class Measured(TypedDict):
    """Fields of a complete run's summary.json that `derive` does not compute."""

    metrics_sha256: str
    weights_sha256: NotRequired[str]  # runs of earlier versions lack the last two
    val_windows_sha256: NotRequired[str]


class Length(TypedDict):
    seq_len: PositiveInt
    loss_nats: Nats | None  # None where the positions or the split end before


class Segment(TypedDict):
    first: NonNegativeInt
    last: NonNegativeInt
    loss_nats: Nats


class Extrapolation(TypedDict):
    """extrapolation.json"""

    weights_sha256: str
    lengths: list[Length]
    by_position: list[Segment]


class Arms(TypedDict):
    rope: Nats
    best: Nats
    random: Nats
    fresh: Nats


class ConvertedLosses(Arms):
    trained: Nats


class Fractions(TypedDict):
    best: FiniteFloat
    best_by_chance: Annotated[list[FiniteFloat], Field(min_length=1)]


class Conversion(TypedDict):
    """conversion.json"""

    weights_sha256: str
    steps: NonNegativeInt
    lr: FiniteFloat
    converted_sha256: NotRequired[str]  # of converted.pt; not in conversions of earlier versions
    loss_nats: ConvertedLosses
    tuned_loss_nats: Arms
    kept_share: Fractions


# Files measured on the weights of a finished run, with their schema and their sub-command.
MEASURED_LATER = {
    "extrapolation.json": (Extrapolation, "extrapolate"),
    "conversion.json": (Conversion, "convert"),
}


@dataclass(frozen=True)
class Record:
    """One finished run, read from disk and validated."""

    path: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    provenance: dict[str, Any]

    def metrics(self) -> list[dict[str, Any]]:
        return read_metrics(self.path / "metrics.jsonl")

    @property
    def metrics_sha256(self) -> str:
        """Of a complete run; a failed one has none, so its name stands for it."""
        return str(self.summary.get("metrics_sha256", self.path.name))


def read_record(path: Path) -> Record:
    """One validated run directory. Raises InvalidRecord.

    Valid means: the folder's name carries the hash of config.yaml, metrics.jsonl has the SHA-256
    that summary.json states and gives its losses, and summary.json has the fields that tables need.
    What `derive` gives and summary.json lacks (a record of an earlier version) is added.
    """
    try:
        record = Record(
            path,
            *(
                _read_object(path / name)
                for name in ("config.yaml", "summary.json", "provenance.json")
            ),
        )
        reason = _invalid(record)
    except UNREADABLE as error:
        reason = _unreadable(error)
    if reason:
        raise InvalidRecord(path, reason)
    return record


def read_measurement(path: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    """One of MEASURED_LATER; `summary` is that of its run.

    Raises InvalidRecord if it cannot be read or was measured on other weights than the run's.
    """
    schema, command = MEASURED_LATER[path.name]
    try:
        measured = _read_object(path)
        reason = type_problem(schema, measured, path.name)
        if not reason and measured["weights_sha256"] != summary.get("weights_sha256"):
            reason = "was measured on other weights than this run's"
    except UNREADABLE as error:
        reason = _unreadable(error)
    if reason:
        remedy = f"remove the file and run scripts/tools.py {command} again"
        raise InvalidRecord(path, reason, remedy)
    return measured


def _unreadable(error: Exception) -> str:
    return f"cannot be read ({type(error).__name__}: {one_line(error)[:160]})"


def read_records(*folders: Path) -> tuple[list[Record], list[InvalidRecord]]:
    """Every finished (complete or failed) run directly below `folders`, sorted by folder and name:
    valid ones and invalid ones. Runs of different names that share their metrics are all invalid,
    because all but one are copies.
    """
    records, invalid = [], []
    for folder in folders:
        for path in sorted(folder.iterdir()) if folder.exists() else ():
            try:
                if (path / "summary.json").exists():
                    records.append(read_record(path))
            except InvalidRecord as error:
                invalid.append(error)
            except OSError as error:  # no permission
                invalid.append(InvalidRecord(path, f"cannot be read ({error.strerror})"))
    names: dict[str, set[str]] = {}
    for record in records:
        names.setdefault(record.metrics_sha256, set()).add(record.path.name)
    valid = []
    for record in records:
        others = names[record.metrics_sha256] - {record.path.name}
        if others:
            reason = f"metrics.jsonl is the same as that of {', '.join(sorted(others))}"
            invalid.append(InvalidRecord(record.path, reason))
        else:
            valid.append(record)
    return valid, invalid


def is_complete(path: Path) -> bool:
    """Whether the run is done. Raises InvalidRecord for a corrupt record."""
    return (path / "summary.json").exists() and read_record(path).summary["status"] == "complete"


def run_status(record: Record) -> str:
    """complete, failed, or stale: of another numerics version of its model."""
    status: str = record.summary["status"]
    current = record.summary["numerics_version"] == numerics_version(record.config["model"])
    return status if current else "stale"


def find_record(name: str, *, results_dir: Path) -> Record:
    """A finished run by its folder, its id or the start of its id; own runs first, then published
    ones.

    Raises UserError for none or several matches, DataError for a run that is not finished.
    """
    path = Path(name)
    if not (path / "config.yaml").exists():
        folders = [results_dir / "runs", *sorted(PUBLISHED.glob("*/"))]
        matches = {
            run.name: run
            for folder in reversed(folders)  # own runs replace published ones
            for run in folder.glob("*/")
            if run.name.startswith(name)
        }
        if len(matches) != 1 and name not in matches:
            problem = "no such run"
            if matches:
                problem = f"{len(matches)} runs match: {', '.join(sorted(matches)[:5])}"
            raise UserError(
                f"run '{name}': {problem}; give a folder, a run id or a unique start of one"
            )
        path = matches.get(name) or next(iter(matches.values()))
    if not (path / "summary.json").exists():
        raise DataError(
            f"{path}: the run is not finished (no summary.json); run the command that started it again"
        )
    return read_record(path)


def _read_object(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser is ten times faster
    try:
        value = json.loads(text) if path.suffix == ".json" else yaml.load(text, loader)
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path.name}: {one_line(error)}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds no keys and values")
    return value


def _invalid(record: Record) -> str:
    """Why a record that could be read is not valid; empty if it is, and its summary then has all
    that `derive` gives.
    """
    summary, config, name = record.summary, record.config, record.path.name
    if problem := (
        type_problem(Identity, summary, "summary.json")
        or type_problem(Provenance, record.provenance, "provenance.json")
    ):
        return problem
    stated = f"{summary['model']}-{summary['dataset']}-{summary['row']}-s{config['seed']}"
    if (
        name != summary["run_id"]
        or name != f"{stated}-{run_hash(config, version=summary['numerics_version'])}"
    ):
        return "config.yaml, summary.json and the folder's name do not describe the same run"
    if summary["status"] == "failed":
        return "" if summary["error"] else "summary.json: status failed without an error"
    if problem := type_problem(Measured, summary, "summary.json"):
        return problem
    data = (record.path / "metrics.jsonl").read_bytes()
    if hashlib.sha256(data).hexdigest() != summary["metrics_sha256"]:
        return "metrics.jsonl does not have the SHA-256 that summary.json states"
    if (summary["seed"], summary["precision"]) != (config["seed"], config["train"]["precision"]):
        return "summary.json and config.yaml differ in seed or precision"
    if summary["device_kind"] != record.provenance["device_kind"]:
        return "summary.json and provenance.json differ in device_kind"
    rows = [json.loads(line) for line in data.splitlines()]
    if problem := invalid_rows(rows, config):
        return f"metrics.jsonl: {problem}"
    derived = derive(config, rows, record.provenance["data"]["splits"])
    if key := add_derived(summary, derived):
        return f"summary.json: {key} is not the value that this code derives from the other files"
    return _invalid_windows(record)


_adapter = cache(TypeAdapter)  # one per schema


def type_problem(schema: Any, value: Any, name: str) -> str:
    """The first key of `value`, read from the file `name`, that is missing or of another type than
    in `schema`; empty if there is none.
    """
    try:
        _adapter(schema).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{name}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    return ""


def invalid_rows(rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> str:
    """Why metrics.jsonl is not that of a whole run of this configuration; empty if it is.

    The validations must be at the steps that the configuration names, every loss positive, and
    every learning rate that of its step.
    """
    train = TrainConfig(**config["train"])
    max_steps = train.max_steps
    every, full_every = config["eval"]["every"], config["eval"]["full_every"]
    due = {
        "val/loss_nats": sorted({*range(0, max_steps + 1, every), max_steps}),
        "val_full/loss_nats": sorted({*range(full_every, max_steps + 1, full_every), max_steps}),
        "train_full/loss_nats": [max_steps],
    }
    for key, steps in due.items():
        if [row["step"] for row in rows if key in row] != steps:
            return f"{key} is not at the steps of the configuration"
    steps = [row["step"] for row in rows]
    if steps != sorted(set(steps)):
        return "steps are repeated or not in order"
    for row in rows:
        for key, value in row.items():
            if key.endswith("_nats") and not (type(value) in (int, float) and 0 < value < math.inf):
                return f"{key} at step {row['step']} is not a positive number"
        lr = train.learning_rate(row["step"])
        if "train/lr" in row and not math.isclose(row["train/lr"], lr, rel_tol=1e-9):
            return f"train/lr at step {row['step']} is not that of the configuration"
    return ""


def add_derived(stated: dict[str, Any], derived: Mapping[str, Any]) -> str:
    """Adds what `stated` lacks; returns the dotted name of the first value it has otherwise, or ""."""
    for key, value in derived.items():
        found = stated.setdefault(key, value)
        if isinstance(found, dict) and isinstance(value, Mapping):
            if name := add_derived(found, value):
                return f"{key}.{name}"
        elif found != value:
            return key
    return ""


def _invalid_windows(record: Record) -> str:
    """Why val_windows.npy does not belong to the summary; empty if it does."""
    summary = record.summary
    if "val_windows_sha256" not in summary:
        return ""
    data = (record.path / "val_windows.npy").read_bytes()
    if hashlib.sha256(data).hexdigest() != summary["val_windows_sha256"]:
        return "val_windows.npy does not have the SHA-256 that summary.json states"
    window_nats = np.load(io.BytesIO(data)).astype(np.float64)
    lengths = np.full(len(window_nats), record.config["train"]["seq_len"])
    lengths[-1] -= lengths.sum() - summary["val_full"]["tokens"]  # the last window may be shorter
    mean_nats = np.average(window_nats, weights=lengths)
    if not math.isclose(mean_nats, summary["val_full"]["final_nats"], rel_tol=1e-6):
        return "val_windows.npy does not have the mean val_full.final_nats"
    return ""


def derive(
    config: Mapping[str, Any], rows: list[dict[str, Any]], splits: Mapping[str, Any]
) -> dict[str, Any]:
    """The part of summary.json that follows from the configuration, the rows of metrics.jsonl and
    the splits of the data's meta.json. Losses are in nats per token.

    val_sampled   mean and sample standard deviation of the sampled losses at step >= 0.9 max_steps
    val_full      final and best loss of the fixed pass
    train         the training split measured as val_full is, after the last step
    time          median step time over the training lines except the first, which includes
                  compilation and first allocations
    """
    train, validation = config["train"], splits["validation"]
    max_steps, seq_len = train["max_steps"], train["seq_len"]
    seen = max_steps * train["batch_size"] * seq_len
    parameters = count_parameters(
        ModelConfig(**config["model"]),
        vocab_size=config["tokenizer"]["vocab_size"],
        max_len=seq_len,
    )
    sampled = [(row["step"], row["val/loss_nats"]) for row in rows if "val/loss_nats" in row]
    full = [(row["step"], row["val_full/loss_nats"]) for row in rows if "val_full/loss_nats" in row]
    tail = [(step, loss) for step, loss in sampled if step >= (1 - LAST_SHARE) * max_steps]
    losses = [loss for _, loss in tail]
    last, final = rows[-1], rows[-1]["val_full/loss_nats"]
    best_step, best = min(full, key=lambda item: item[1])
    best_sampled_step, best_sampled = min(sampled, key=lambda item: item[1])
    timed = [row for row in rows if "time/step_ms" in row]
    timed = timed[1:] or timed
    return {
        "steps": max_steps,
        "train_tokens": seen,
        "train_passes": seen / splits["train"]["tokens"],
        "val_sampled": {
            "mean_nats": statistics.fmean(losses),
            "std_nats": statistics.stdev(losses) if len(losses) > 1 else None,
            "n": len(losses),
            "first_step": tail[0][0],
            "last_step": tail[-1][0],
            "best_nats": best_sampled,
            "best_step": best_sampled_step,
        },
        "val_full": {
            "final_nats": final,
            "best_nats": best,
            "best_step": best_step,
            "tokens": last["val_full/tokens"],
            "whole_split": last["val_full/tokens"] == validation["tokens"] - 1,
        },
        "train": {"final_nats": last["train_full/loss_nats"], "tokens": last["train_full/tokens"]},
        "train_val_gap_nats": final - last["train_full/loss_nats"],
        "val_nats_per_byte": final * validation["tokens"] / validation["bytes"],
        "time": {
            "median_step_ms": statistics.median(row["time/step_ms"] for row in timed),
            "tokens_per_s": statistics.median(row["speed/tokens_per_s"] for row in timed),
        },
        "memory_peak_gib": max(
            (row["memory/peak_gib"] for row in rows if "memory/peak_gib" in row), default=None
        ),
        "parameters": {**asdict(parameters), "total": parameters.total},
    }
