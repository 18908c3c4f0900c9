"""Mirrors finished runs to wandb from their records alone: what `tracker=none`, a full disk or no network left out."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from crope.errors import DataError, UserError
from crope.interrupt import Unstoppable
from crope.lock import LOCK, holder, try_lock
from crope.record import Record, read_record
from crope.tracking import MirrorProcess, job
from crope.verify import damage_of
from crope.wandb_files import read_mirrored

REPLAY_SECONDS = 120.0  # the longest wait for wandb, per run


class NotMirrored(UserError):
    """The record is sound, and wandb did not take it."""


def replay(names: Sequence[str], *, results_dir: Path, mode: str = "offline", again: bool = False) -> int:
    """Mirrors runs, named by id or folder. Returns the exit status: 1 if one could not be mirrored.

    Replaying twice makes the same run: what is mirrored already is left alone unless `again`, and wandb takes a run
    that comes again under its id in place of the one before.
    """
    failed = False
    for name in names:
        try:
            print(replay_run(find_run(name, results_dir), results_dir, mode, again), flush=True)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            failed = True
    return int(failed)


def find_run(name: str, results_dir: Path) -> Path:
    """A run's folder, from itself or from a run id in <results_dir>/runs or <results_dir>/published/*."""
    if Path(name).is_dir():
        return Path(name)
    homes = [results_dir / "runs", *sorted(results_dir.glob("published/*/"))]
    found = [home / name for home in homes if (home / name).is_dir()]
    if not found:
        there = [path.name for home in homes if home.is_dir() for path in home.iterdir() if path.is_dir()]
        near = difflib.get_close_matches(Path(name).name, there, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"{name}: no such run in {results_dir}/runs or {results_dir}/published{hint}")
    if found[0].parent != homes[0] and len(found) > 1:
        raise UserError(f"{name}: published more than once; name a folder, {' or '.join(map(str, found))}")
    return found[0]


def load_finished(path: Path) -> Record:
    """A complete or failed run's record. Raises UserError where it is not finished, DataError where it is damaged."""
    if not (path / "summary.json").exists():
        raise UserError(f"{path}: no summary.json, the run is not finished; its training command goes on with it")
    damage = damage_of(path)
    metrics = path / "metrics.jsonl"
    for number, line in enumerate(metrics.read_bytes().split(b"\n")[:-1] if metrics.exists() else [], 1):
        try:
            float(json.loads(line)["step"])
        except (ValueError, LookupError, TypeError):
            damage = f"metrics.jsonl, line {number:,}: not readable"  # says more than a wrong sha256
            break
    if damage:
        raise DataError(f"{path}: {damage}; take it from a copy, or remove the folder and train the run again")
    return read_record(path)


def replay_run(path: Path, results_dir: Path, mode: str, again: bool = False) -> str:
    """Mirrors one run; returns what to print. Raises UserError: NotMirrored where it was wandb's doing."""
    folder = path.parent.parent if path.parent.name == "runs" else results_dir
    with _taken(path):
        record = load_finished(path)
        before = read_mirrored(folder, path.name)
        if before is not None and not again and before.mode in (mode, "online") and before.is_of(path):
            return (
                f"{path.name}: mirrored already ({before.mode}, {before.lines} lines, {before.utc}); --again repeats it"
            )
        names = {key: record.summary[key] for key in ("model", "dataset", "row", "scale")}
        process = MirrorProcess(job(path, record.config, names, folder=folder, live=False, mode=mode))
        result = process.finish(record.summary, seconds=REPLAY_SECONDS, stop=Unstoppable())
    if not result["whole"]:
        raise NotMirrored(f"{path.name}: not mirrored to wandb {mode}: {result['reason']}")
    return f"{path.name}: {result['lines']} lines mirrored {mode}, {result['folder']}"


@contextmanager
def _taken(path: Path) -> Iterator[None]:
    """Holds the run's lock: a run that failed before may be trained again right now, with a mirror of its own."""
    lock = try_lock(path / LOCK) if (path / LOCK).exists() else nullcontext()  # a published record has none
    if lock is None:
        raise UserError(f"{path}: {holder(path / LOCK)} trains it, and mirrors it")
    with lock:
        yield
