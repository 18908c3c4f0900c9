"""One run from start to record: skip what is done, train, and write down how it ended."""

from __future__ import annotations

import gc
import json
import math
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from crope import provenance
from crope.checkpoint import checkpoints, remove_checkpoints
from crope.compose import Run
from crope.config import NUMERICS_VERSION, Config
from crope.data.batches import check_length
from crope.data.tokens import TokenSet, load_tokens
from crope.device import resolve_device
from crope.errors import DataError, UserError, storage_error
from crope.evaluate import unigram_cross_entropy
from crope.interrupt import Stopped, StopSignal
from crope.lock import LOCK, Lock, holder, try_lock
from crope.model.counting import count_parameters
from crope.model.gpt import GPT
from crope.record import read_metrics, remove_leftovers, sha256_file, write_json, write_text
from crope.summary import speeds, summarise
from crope.tracking import build_tracker
from crope.trainer import train
from crope.verify import damage_of


@dataclass(frozen=True)
class Outcome:
    """How a run ended, with the one line to print.

    complete; skipped (it was complete before); failed; busy (another process has it); stopped (saved, on request);
    blocked (results_dir cannot be written to: no other run can be written either).
    """

    run_id: str
    status: str
    text: str


def execute(run: Run, *, stop: StopSignal, since: float = math.inf) -> Outcome:
    """Makes the record of `run` unless it is there or another process makes it.

    A failure inside is written down and returned, not raised; one that another process wrote after `since` (seconds of
    the epoch, the start of this sweep) is not tried again. Raises Stopped on request (the run is saved), UserError
    where the configuration, the data or the folder does not allow the run, StorageError where nothing can be written.
    """
    if is_done(run.path):
        return Outcome(run.run_id, "skipped", f"{run.run_id}: complete already")
    try:
        return _take(run, stop, since)
    except OSError as error:
        raise storage_error(error, run.path) or error from error


def _take(run: Run, stop: StopSignal, since: float) -> Outcome:
    lock = try_lock(run.path / LOCK)
    if lock is None:
        return Outcome(run.run_id, "busy", f"{run.run_id}: {holder(run.path / LOCK)} trains it")
    with lock:
        if is_done(run.path):  # by the process that had the lock until now
            return Outcome(run.run_id, "skipped", f"{run.run_id}: complete, by another process")
        failure = failed_since(run.path, since)
        return failure or _execute(run, stop, lock)


def is_done(path: Path) -> bool:
    """`status: complete` in summary.json is the only meaning of done. Raises DataError for a damaged record."""
    if not (path / "summary.json").exists():
        return False
    if damage := damage_of(path):
        raise DataError(f"{path}: {damage}; remove the folder to make the run again")
    summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    return bool(summary["status"] == "complete")


def failed_since(path: Path, since: float) -> Outcome | None:
    summary = path / "summary.json"
    if not summary.exists() or summary.stat().st_mtime <= since:
        return None
    text = json.loads(summary.read_text(encoding="utf-8"))["error"]["message"]
    return Outcome(path.name, "failed", f"{path.name}: failed in another process: {text}")


def _execute(run: Run, stop: StopSignal, lock: Lock) -> Outcome:
    config = run.config
    tokens = load_tokens(config.data.corpus, config.tokenizer, data_dir=Path(config.data_dir))
    for split in ("train", "validation"):
        check_length(getattr(tokens, split), config.train.seq_len, split)
    began = time.monotonic()
    remove_leftovers(run.path)
    write_text(run.path / "config.yaml", yaml.safe_dump(run.container, sort_keys=False))
    facts = provenance.collect(config.runtime.device, tokens.meta)
    if checkpoints(run.path):
        facts["resumed_from"] = provenance.earlier_attempts(run.path / "provenance.json")
    write_json(run.path / "provenance.json", facts)
    tracker = build_tracker(run, stop)
    summary = _identity(run)
    try:
        model = train(run, tokens, tracker=tracker, stop=stop, lock=lock)
        summary |= _results(run, tokens, model, seconds=time.monotonic() - began)
    except (UserError, Stopped):
        tracker.finish(summary | {"status": "stopped"})
        raise
    except Exception as error:  # contained: one failing run must not stop a sweep
        if isinstance(error, OSError) and storage_error(error, run.path):
            tracker.finish(summary | {"status": "stopped"})
            raise
        summary |= {"status": "failed", "error": _describe(error, config)}
    summary["finished_utc"] = facts["finished_utc"] = provenance.now_utc()
    write_json(run.path / "provenance.json", facts)
    write_json(run.path / "summary.json", summary)
    tracker.finish(summary)
    if summary["status"] == "failed":
        free_memory()
        return Outcome(run.run_id, "failed", f"{run.run_id}: failed: {summary['error']['message']}")
    remove_checkpoints(run.path)  # only now: until the summary stood, they were needed
    return Outcome(run.run_id, "complete", _line(run, summary))


def record_death(run: Run, message: str) -> None:
    """Writes the failed summary of a run whose process was killed and could not do so itself."""
    lock = try_lock(run.path / LOCK)
    if lock is None:
        return  # another process has gone on with it
    with lock:
        error = {"type": "Killed", "message": message, "step": None, "traceback": ""}
        summary = {"status": "failed", "error": error, "finished_utc": provenance.now_utc()}
        if not is_done(run.path) and (run.path / "provenance.json").exists():
            write_json(run.path / "summary.json", _identity(run) | summary)


def _identity(run: Run) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "model": run.model,
        "dataset": run.dataset,
        "row": run.row,
        "scale": run.scale,
        "seed": run.config.seed,
        "numerics_version": NUMERICS_VERSION,
        "precision": run.config.train.precision,
        "device_kind": resolve_device(run.config.runtime.device).type,
        "error": None,
    }


def _results(run: Run, tokens: TokenSet, model: GPT, *, seconds: float) -> dict[str, Any]:
    config, metrics = run.config, run.path / "metrics.jsonl"
    rows = read_metrics(metrics)
    parameters = count_parameters(model)
    seen = config.train.max_steps * config.train.batch_size * config.train.seq_len
    return {
        "status": "complete",
        "steps": config.train.max_steps,
        "train_tokens": seen,
        "train_passes": seen / len(tokens.train),
        **summarise(rows, max_steps=config.train.max_steps, validation=tokens.meta["splits"]["validation"]),
        "unigram_nats": unigram_cross_entropy(tokens.train, tokens.validation, tokens.vocab_size),
        "parameters": {**asdict(parameters), "total": parameters.total},
        "time": {"total_s": seconds, **speeds(rows)},
        "memory_peak_gib": max((row["memory/peak_gib"] for row in rows if "memory/peak_gib" in row), default=None),
        "metrics_sha256": sha256_file(metrics),
        "weights_sha256": sha256_file(run.path / "weights.pt"),
    }


def _describe(error: Exception, config: Config) -> dict[str, Any]:
    message = " ".join(str(error).split()) or type(error).__name__
    on_gpu = isinstance(error, torch.OutOfMemoryError)
    if on_gpu or isinstance(error, MemoryError) or "can't allocate memory" in message:
        message = _memory_advice(config, "GPU " if on_gpu else "")
    return {
        "type": type(error).__name__,
        "message": message,
        "step": getattr(error, "step", None),
        "traceback": "".join(traceback.format_exception(error)),
    }


def _memory_advice(config: Config, kind: str) -> str:
    return (
        f"out of {kind}memory at train.batch_size={config.train.batch_size}, train.seq_len={config.train.seq_len}; "
        f"end what else uses the {kind or 'machine '}".rstrip()
        + ", or take a smaller ablation.batch_size (another experiment: its losses do not compare)"
    )


def free_memory() -> None:
    """What a failed run held: its traceback keeps tensors in cycles, which would starve the next run."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _line(run: Run, summary: dict[str, Any]) -> str:
    return (
        f"{run.run_id}: validation {summary['val_full']['final_nats']:.4f} nats per token "
        f"(unigram {summary['unigram_nats']:.2f}), {summary['time']['median_step_ms']:.1f} ms a step, "
        f"{summary['time']['total_s']:.0f} s"
    )
