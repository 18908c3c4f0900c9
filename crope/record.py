"""The run directory: the only record of a run. Tables, figures and wandb are made from it.

results/runs/<run_id>/
    config.yaml       the whole resolved configuration
    provenance.json   commit, command, versions, device, data hashes, start and end (UTC)
    metrics.jsonl     one JSON object per line, each with "step" = optimiser updates done
    summary.json      written last; `status: complete` in it is the only definition of done
    weights.pt        state dict after the last step
"""

import hashlib
import json
import math
import os
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from crope.config import ROOT, numerics_version, run_hash
from crope.errors import DataError, InvalidRecord, UserError

PUBLISHED = ROOT / "results" / "published"
LAST_SHARE = 0.1  # the paper's final loss: the sampled validation losses of the last 10 % of steps
TEMPORARY = ".tmp"

# Fields without which a complete run cannot enter a table.
REQUIRED = [
    *(
        "model",
        "dataset",
        "row",
        "scale",
        "seed",
        "precision",
        "device_kind",
        "steps",
        "train_tokens",
        "train_passes",
    ),
    *(
        "train_val_gap_nats",
        "val_nats_per_byte",
        "unigram_nats",
        "val_sampled.mean_nats",
        "val_full.final_nats",
    ),
    *(
        "val_full.best_nats",
        "val_full.tokens",
        "train.final_nats",
        "parameters.total",
        "time.median_step_ms",
    ),
]


@dataclass(frozen=True)
class Record:
    """One finished run, read from disk and validated."""

    path: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    provenance: dict[str, Any]

    def metrics(self) -> list[dict[str, Any]]:
        return read_metrics(self.path / "metrics.jsonl")


def read_record(path: Path) -> Record:
    """One validated run directory. Raises InvalidRecord.

    Valid means: the folder's name carries the hash of config.yaml, metrics.jsonl has the SHA-256
    that summary.json states and gives its losses, and summary.json has the fields that tables need.
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
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as error:
        reason = f"cannot be read ({type(error).__name__}: {' '.join(str(error).split())[:160]})"
    if reason:
        raise InvalidRecord(path, reason)
    return record


def read_records(folder: Path) -> tuple[list[Record], list[InvalidRecord]]:
    """Every finished (complete or failed) run directly below `folder`, sorted by name: valid ones
    and invalid ones.
    """
    valid, invalid = [], []
    for path in sorted(folder.iterdir()) if folder.exists() else ():
        try:
            if (path / "summary.json").exists():
                valid.append(read_record(path))
        except InvalidRecord as error:
            invalid.append(error)
        except OSError as error:  # no permission
            invalid.append(InvalidRecord(path, f"cannot be read ({error.strerror})"))
    return valid, invalid


def is_complete(path: Path) -> bool:
    """Whether the run is done. Raises InvalidRecord for a corrupt record."""
    return (path / "summary.json").exists() and read_record(path).summary["status"] == "complete"


def run_status(record: Record) -> str:
    """complete, failed, or stale: complete under another numerics version of its model."""
    status: str = record.summary["status"]
    current = record.summary["numerics_version"] == numerics_version(record.config["model"])
    return status if current or status == "failed" else "stale"


def find_record(name: str, *, results_dir: Path) -> Record:
    """A finished run by its folder, its id or the start of its id; own runs first, then published
    ones.

    Raises UserError for none or several matches, DataError for a run that is not finished.
    """
    path = Path(name)
    if not (path / "config.yaml").exists():
        folders = [results_dir / "runs", *sorted(PUBLISHED.glob("*/"))]
        paths = [path for folder in reversed(folders) for path in folder.glob("*/")]
        found = {path.name: path for path in paths if path.name.startswith(name)}
        if len(found) != 1 and name not in found:
            problem = (
                f"{len(found)} runs match: {', '.join(sorted(found)[:5])}"
                if found
                else "no such run"
            )
            raise UserError(
                f"run '{name}': {problem}; give a folder, a run id or a unique start of one"
            )
        path = found.get(name) or next(iter(found.values()))
    if not (path / "summary.json").exists():
        raise DataError(
            f"{path}: the run is not finished (no summary.json); run the command that started it again"
        )
    return read_record(path)


def _read_object(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser is ten times faster
    value = json.loads(text) if path.suffix == ".json" else yaml.load(text, loader)
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds no keys and values")
    return value


def _invalid(record: Record) -> str:
    """Why a record that could be read is not valid; empty if it is."""
    summary, config, name = record.summary, record.config, record.path.name
    if summary["status"] not in ("complete", "failed"):
        return f"summary.json: invalid status {summary['status']!r} (expected complete or failed)"
    stated = f"{summary['model']}-{summary['dataset']}-{summary['row']}-s{config['seed']}"
    if (
        name != summary["run_id"]
        or name != f"{stated}-{run_hash(config, version=summary['numerics_version'])}"
    ):
        return "config.yaml, summary.json and the folder's name do not describe the same run"
    if summary["status"] == "failed":
        summary["error"]["message"]  # KeyError: an invalid record
        return ""
    data = (record.path / "metrics.jsonl").read_bytes()
    if hashlib.sha256(data).hexdigest() != summary["metrics_sha256"]:
        return "metrics.jsonl does not have the SHA-256 that summary.json states"
    if (summary["seed"], summary["precision"]) != (config["seed"], config["train"]["precision"]):
        return "summary.json and config.yaml differ in seed or precision"
    for key in REQUIRED:
        value = _at(summary, key)
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            return f"summary.json: {key} is missing or not finite"
    splits = record.provenance["data"]["splits"]
    rows = [json.loads(line) for line in data.splitlines()]
    found = summarise(rows, max_steps=config["train"]["max_steps"], validation=splits["validation"])
    for key in (
        "val_sampled.mean_nats",
        "val_sampled.std_nats",
        "val_full.final_nats",
        "train.final_nats",
    ):
        if _at(found, key) != _at(summary, key):
            return f"summary.json: {key} is not the value that metrics.jsonl gives"
    return ""


def _at(values: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key."""
    for part in key.split("."):
        values = values[part]
    return values


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Rows of a metrics.jsonl; an incomplete last line (the writer was killed inside it) is left
    out.
    """
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


class MetricsWriter:
    """Appends to metrics.jsonl after its first `keep` bytes; a resumed run rewrites the lines after
    them.
    """

    def __init__(self, path: Path, *, keep: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        size = path.stat().st_size if path.exists() else 0
        if size < keep:
            raise ValueError(f"{path}: {size} bytes, but the checkpoint was saved after {keep}")
        self.file = path.open("ab")
        self.file.truncate(keep)

    def write(self, row: Mapping[str, Any]) -> None:
        self.file.write((json.dumps(row, allow_nan=False) + "\n").encode())
        self.file.flush()

    def sync(self) -> int:
        """The file's size in bytes, all of it on the disk."""
        os.fsync(self.file.fileno())
        return self.file.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.sync()
        self.file.close()


def summarise(
    rows: list[dict[str, Any]], *, max_steps: int, validation: Mapping[str, Any]
) -> dict[str, Any]:
    """summary.json's losses (nats per token) and speeds from the rows of metrics.jsonl.

    validation    the split's entry in the data's meta.json (tokens, bytes)
    val_sampled   mean and sample standard deviation of the sampled losses at step >= 0.9 max_steps
    val_full      final and best loss of the fixed pass
    train         the training split measured as val_full is, after the last step
    time          median step time over the training lines except the first, which includes the
                  warm-up
    """
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
    }


def write_bytes(path: Path, data: bytes) -> None:
    """Atomic: a reader sees the old file or the whole new one, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.name}.", suffix=TEMPORARY
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp gives 0600, which a shared results folder cannot use
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name outlasts a power cut too
        finally:
            os.close(folder)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise


def remove_temporary_files(folder: Path) -> None:
    """Deletes what killed writers left behind; call it only while no other process writes into the
    folder.
    """
    for path in folder.glob(f".*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
