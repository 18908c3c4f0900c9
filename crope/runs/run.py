"""One run: skip it if complete, train it, write its record; and load a finished run."""

import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from types import FrameType
from typing import Any

import yaml
from filelock import FileLock, Timeout

from crope.config import Config
from crope.data.batches import check_length
from crope.data.corpora import SPLITS, check_source
from crope.data.tokens import TokenSet, load_tokens
from crope.errors import UserError, one_line, out_of_memory, storage_error
from crope.files import (
    read_metrics,
    remove_temporary_files,
    sha256_file,
    write_bytes,
    write_json,
    write_text,
)
from crope.runs import provenance
from crope.runs.compose import Run
from crope.runs.identity import numerics_version
from crope.runs.load import build_model
from crope.runs.progress import RunProgress
from crope.runs.record import (
    derive,
    is_complete,
    read_record,
)
from crope.runs.tracking import Tracker
from crope.train.checkpoint import checkpoints, remove_checkpoints
from crope.train.device import resolve_device
from crope.train.loop import Stopped, train


@dataclass(frozen=True)
class Outcome:
    """How a run ended, with one line to print.

    status   complete; skipped (it was complete already); failed; busy (another process trains it);
             stopped (a checkpoint was saved)
    signal   that arrived meanwhile and asks for a stop; 0: none
    """

    run_id: str
    status: str
    text: str
    signal: int = 0


def execute(run: Run) -> Outcome:
    """Trains `run` and writes its record, unless it is complete or another process trains it.

    A failure during training is recorded and returned, not raised. Raises UserError if the
    configuration, the data or the folder does not allow the run, InvalidRecord if the record on
    disk is corrupt.
    """
    if is_complete(run.path):
        return _skipped(run, "already complete")
    try:
        with run_lock(run):
            if is_complete(run.path):  # by the process that held the lock until now
                return _skipped(run, "completed by another process")
            tokens = _load(run.config)  # may take minutes, which a signal ends: nothing to save
            with stop_on_signal() as stop:
                try:
                    return replace(_execute(run, tokens, stop), signal=stop.signal)
                except UserError as error:
                    if not stop.requested():
                        raise
                    return Outcome(run.run_id, "stopped", f"{run.run_id}: {error}", stop.signal)
    except Timeout:
        return Outcome(run.run_id, "busy", f"{run.run_id}: another process is training it")
    except OSError as error:
        if problem := storage_error(error, run.path):
            raise problem from error
        raise


def _skipped(run: Run, why: str) -> Outcome:
    """Raises DataError if the complete run was made on text from another source."""
    source = read_record(run.path).provenance["data"].get("source", {})
    check_source(run.config.data.corpus, source.get("hub"), f"the text of {run.path}")
    return Outcome(run.run_id, "skipped", f"{run.run_id}: {why}")


def run_lock(run: Run) -> FileLock:
    """The lock of one run; the kernel releases it when its holder ends.

    Entering it raises Timeout if it is taken, for longer than a look (`study.is_locked`) takes it.
    """
    run.lock.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(run.lock, timeout=0.1)


@dataclass
class Stop:
    """Set by a signal; `signal` is its number, 0 before, `since` its time (time.monotonic)."""

    signal: int = 0
    since: float = 0.0

    def requested(self) -> bool:
        return self.signal != 0


@contextmanager
def stop_on_signal() -> Iterator[Stop]:
    """SIGINT, SIGTERM and SIGHUP request a stop after a checkpoint; a second one exits immediately.

    Except within a second, since one request may reach a process directly and through its group,
    and except SIGHUP, which a closing terminal may send twice and which nohup lets a run ignore.
    """
    stop = Stop()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.signal and time.monotonic() - stop.since < 1:
            return
        if stop.signal and number != signal.SIGHUP:
            if sys.stderr.isatty():
                os.write(2, b"\x1b[?25h\n")  # the cursor, which a progress bar has hidden
            os._exit(128 + number)  # every file on disk is complete at any moment
        stop.signal, stop.since = number, time.monotonic()
        if sys.stderr.isatty():  # os.write: the signal may arrive within a write to the stream
            os.write(
                2,
                b"\nStopping after saving a checkpoint. Press Ctrl-C again to exit immediately.\n",
            )

    before = {
        number: signal.signal(number, on_signal)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if (number, signal.getsignal(number)) != (signal.SIGHUP, signal.SIG_IGN)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _load(config: Config) -> TokenSet:
    tokens = load_tokens(config.data.corpus, config.tokenizer, data_dir=Path(config.data_dir))
    for split in SPLITS:
        check_length(getattr(tokens, split), config.train.seq_len, split)
    return tokens


def _execute(run: Run, tokens: TokenSet, stop: Stop) -> Outcome:
    config = run.config
    remove_temporary_files(run.path)
    facts = provenance.collect(config.runtime, tokens.meta) | {"scale": run.scale}
    write_text(run.path / "config.yaml", yaml.safe_dump(run.container, sort_keys=False))
    provenance_file, summary_file = run.path / "provenance.json", run.path / "summary.json"
    # Of an earlier attempt, which may have diverged: a result.
    before = {path: path.read_bytes() for path in (provenance_file, summary_file) if path.exists()}
    summary_file.unlink(missing_ok=True)
    if checkpoints(run.path):
        facts["resumed_from"] = provenance.earlier_attempts(provenance_file)
    write_json(provenance_file, facts)
    tracker = Tracker(run)
    summary = _identity(run)
    try:
        model = build_model(config)
        with RunProgress(run) as progress:

            def log(line: dict[str, float]) -> None:
                tracker.log(line)
                progress.log(line)

            seconds = train(model, tokens, config, run.path, log=log, stop_requested=stop.requested)
        summary |= _results(run, tokens, seconds=seconds)
    except UserError:
        for path, content in before.items():  # a refused attempt has trained nothing
            write_bytes(path, content)
        tracker.finish(summary | {"status": "stopped"})
        raise
    except Stopped as stopped:
        tracker.finish(summary | {"status": "stopped"})
        text = f"{run.run_id}: {stopped}; run the same command to continue"
        return Outcome(run.run_id, "stopped", text)
    except Exception as error:  # contained: one failing run must not stop a sweep
        if isinstance(error, OSError) and storage_error(error, run.path):
            raise
        if not provenance_file.exists():
            raise UserError(
                f"{run.path}: removed while the run trained; run the same command again"
            ) from error
        summary |= {"status": "failed", "error": _describe(error, config)}
    summary["finished_utc"] = facts["finished_utc"] = provenance.now_utc()
    write_json(provenance_file, facts)
    write_json(summary_file, summary)
    tracker.finish(summary)
    if summary["status"] == "failed":
        # The traceback keeps tensors alive in cycles, which would take memory from the next run.
        gc.collect()
        return Outcome(run.run_id, "failed", f"{run.run_id}: failed: {summary['error']['message']}")
    remove_checkpoints(run.path)  # only now: until summary.json was written they were needed
    return Outcome(run.run_id, "complete", _line(run, summary))


def record_failure(run: Run, message: str) -> None:
    """Writes the failed summary of a run whose process was killed and could not do so itself."""
    if (run.path / "provenance.json").exists() and not (run.path / "summary.json").exists():
        error = {"type": "Killed", "message": message, "step": None, "traceback": ""}
        summary = {"status": "failed", "error": error, "finished_utc": provenance.now_utc()}
        write_json(run.path / "summary.json", _identity(run) | summary)


def _identity(run: Run) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "model": run.model,
        "dataset": run.dataset,
        "row": run.row,
        "scale": run.scale,
        "seed": run.config.seed,
        "numerics_version": numerics_version(asdict(run.config.model)),
        "precision": run.config.train.precision,
        "device_kind": resolve_device(run.config.runtime.device).type,
        "error": None,
    }


def _results(run: Run, tokens: TokenSet, *, seconds: float) -> dict[str, Any]:
    metrics = run.path / "metrics.jsonl"
    derived = derive(run.container, read_metrics(metrics), tokens.meta["splits"])
    derived["time"]["total_s"] = seconds
    return derived | {
        "status": "complete",
        "metrics_sha256": sha256_file(metrics),
        "val_windows_sha256": sha256_file(run.path / "val_windows.npy"),
        "weights_sha256": sha256_file(run.path / "weights.pt"),
    }


def _describe(error: Exception, config: Config) -> dict[str, Any]:
    message = one_line(error)[:300] or type(error).__name__  # a compiler's fills pages
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        message += "; runtime.compile=false trains without torch.compile"
    if out_of_memory(error):
        sizes = ("model.n_layers", "model.d_model", "train.batch_size", "train.seq_len")
        named = ", ".join(f"{key}={attrgetter(key)(config)}" for key in sizes)
        message = (
            f"out of memory with {named}; stop other programs, take fewer runs at a time "
            "(runtime.jobs=1), or use a smaller model or ablation.batch_size (another experiment: "
            "its losses do not compare)"
        )
    return {
        "type": type(error).__name__,
        "message": message,
        "step": getattr(error, "step", None),
        "traceback": "".join(traceback.format_exception(error)),
    }


def _line(run: Run, summary: dict[str, Any]) -> str:
    return (
        f"{run.run_id} ({run.scale}): validation {summary['val_full']['final_nats']:.4f} nats per token, "
        f"{summary['time']['median_step_ms']:.1f} ms per step, "
        f"{summary['time']['total_s']:.0f} s"
    )
