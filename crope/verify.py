"""Whether a finished run directory still is what its run wrote: nothing cut short, edited or moved since.

What can be worked out again is: the losses from metrics.jsonl, the run's name from config.yaml. The report reads runs
through this module only. Imports neither torch nor wandb.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from crope.config import NUMERICS_VERSION, SCIENTIFIC, cell_key, run_hash
from crope.model.counting import Parameters
from crope.record import Record
from crope.strict import (
    MALFORMED,
    Damage,
    agree,
    is_bool,
    is_count,
    is_none,
    is_none_or,
    is_number,
    is_object,
    is_positive,
    is_text,
    read_finished_metrics,
    read_object,
    require,
    show,
)
from crope.summary import speeds, summarise

# What a run's files must hold beside the numbers that can be worked out again: key -> check of its value.
IDENTITY = {
    "status": lambda value: value in ("complete", "failed"),
    **dict.fromkeys(("run_id", "model", "dataset", "row", "scale", "precision", "device_kind"), is_text),
    **dict.fromkeys(("seed", "numerics_version"), is_count),
}
ERROR = {"error": {"type": is_text, "message": is_text, "step": is_none_or(is_count)}}
RESULTS = {
    "error": is_none,
    "parameters": {field.name: is_count for field in fields(Parameters)},
    "time": {"total_s": is_number},
    "unigram_nats": is_number,
    "metrics_sha256": is_text,
}
CONFIG = {
    **dict.fromkeys(SCIENTIFIC, is_object),
    "train": dict.fromkeys(("max_steps", "batch_size", "seq_len"), is_positive) | {"precision": is_text},
    "seed": is_count,
}
PROVENANCE = {
    **dict.fromkeys(("device", "device_kind", "python"), is_text),
    **dict.fromkeys(("commit", "driver"), is_none_or(is_text)),
    "dirty": is_none_or(is_bool),
    "packages": is_object,
}
SPLIT = {"tokens": is_positive, "bytes": is_positive, "sha256": is_text}
DATA = {"data": {"splits": {"train": SPLIT, "validation": SPLIT}}}


@dataclass(frozen=True)
class DamagedRun:
    """A finished run directory that cannot be believed. What can still be read of it says which cell it was made for:

    names   the run ids that it goes by: the directory's name, and the one in summary.json
    scale   from summary.json
    key     `cell_key` of config.yaml, where that still is the configuration that a name's hash stands for
    """

    path: Path
    reason: str
    names: tuple[str, ...]
    scale: str | None
    key: str | None

    @property
    def advice(self) -> str:
        return f"{self.reason}; remove its directory and make the run again"


def read_runs(root: Path) -> tuple[list[Record], list[DamagedRun]]:
    """Every finished (complete or failed) run directly below `root`, sorted by name: sound ones and damaged ones.

    A directory without summary.json is a run under way and not among them.
    """
    sound, damaged = [], []
    for path in sorted(file.parent for file in root.glob("*/summary.json")):
        try:
            record = _read(path)
            _check(record)
            sound.append(record)
        except Damage as damage:
            damaged.append(_describe(path, str(damage)))
    return sound, damaged


def damage_of(path: Path) -> str | None:
    """What is wrong with one finished run directory, in one line; None where nothing is."""
    try:
        return check_record(_read(path))
    except Damage as damage:
        return str(damage)


def check_record(record: Record) -> str | None:
    """What is wrong with a run that could be read, in one line. Reads metrics.jsonl of a complete run, once."""
    try:
        _check(record)
    except Damage as damage:
        return str(damage)
    return None


def _read(path: Path) -> Record:
    summary = read_object(path / "summary.json")  # first: it was written last
    return Record(path, read_object(path / "config.yaml"), summary, read_object(path / "provenance.json"))


def _check(record: Record) -> None:
    require(record.summary, "summary.json", IDENTITY)
    _check_identity(record)
    if record.summary["status"] == "failed":  # nobody reads its metrics; its provenance may be of a new attempt
        require(record.summary, "summary.json", ERROR)
        require(record.provenance, "provenance.json", PROVENANCE)
        return
    require(record.summary, "summary.json", RESULTS)
    require(record.provenance, "provenance.json", PROVENANCE | DATA)
    _check_results(record)


def _check_identity(record: Record) -> None:
    """The directory's name, summary.json and config.yaml speak of one and the same run."""
    summary, run_id, version = record.summary, record.summary["run_id"], record.summary["numerics_version"]
    if run_id != record.path.name:
        raise Damage(f"summary.json is of the run {show(run_id)}, which is not the directory's name")
    name = f"{summary['model']}-{summary['dataset']}-{summary['row']}-s{summary['seed']}"
    if run_id.rpartition("-")[0] != name:
        raise Damage(f"summary.json: model, dataset, row and seed give {show(f'{name}-<hash>')}, not its run_id")
    require(record.config, "config.yaml", CONFIG)
    if not _is_named(record.config, run_id, version):
        raise Damage(f"config.yaml does not have the run id's hash at numerics version {version}; one was edited")
    expected = {"seed": record.config["seed"], "precision": record.config["train"]["precision"]}
    agree(summary, expected, "config.yaml")


def _check_results(record: Record) -> None:
    """Every number of a complete run's summary that its other files give as well is theirs."""
    train, summary, splits = record.config["train"], record.summary, record.provenance["data"]["splits"]
    rows = read_finished_metrics(record.path / "metrics.jsonl", sha256=summary["metrics_sha256"])
    seen = train["max_steps"] * train["batch_size"] * train["seq_len"]
    agree(summary, {"steps": train["max_steps"], "train_tokens": seen}, "config.yaml")
    facts = {"device_kind": record.provenance["device_kind"], "train_passes": seen / splits["train"]["tokens"]}
    agree(summary, facts, "provenance.json")
    agree(summary, {"parameters": {"total": _sum_of_parts(summary["parameters"])}}, "the sum of its parts")
    try:
        found = summarise(rows, max_steps=train["max_steps"], validation=splits["validation"])
        found |= {"steps": rows[-1]["step"], "time": speeds(rows)}
    except MALFORMED as error:
        raise Damage(f"metrics.jsonl lacks what summary.json sums up ({type(error).__name__}: {error})") from None
    peak = max((row["memory/peak_gib"] for row in rows if "memory/peak_gib" in row), default=None)
    agree(summary, found | {"memory_peak_gib": peak}, "metrics.jsonl")


def _sum_of_parts(parameters: Mapping[str, int]) -> int:
    return sum(parameters[field.name] for field in fields(Parameters))


def _is_named(config: dict[str, Any], run_id: str, numerics_version: int) -> bool:
    """Whether the hash at the end of a run id is that of a configuration at a numerics version."""
    try:
        return run_id.rpartition("-")[2] == run_hash(config, numerics_version=numerics_version)
    except MALFORMED:
        return False


def _describe(path: Path, reason: str) -> DamagedRun:
    config, summary = _read_or_nothing(path / "config.yaml"), _read_or_nothing(path / "summary.json")
    stated = {name: value for name in ("run_id", "scale") if isinstance(value := summary.get(name), str)}
    names = tuple(dict.fromkeys([path.name, stated.get("run_id", path.name)]))
    named = any(_is_named(config, name, version) for name in names for version in range(NUMERICS_VERSION + 1))
    return DamagedRun(path, reason, names, stated.get("scale"), cell_key(config) if named else None)


def _read_or_nothing(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except Damage:
        return {}
