"""One run: skip it if complete, train it, write its record."""

import gc
import os
import re
import traceback
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from crope.config import Config
from crope.data.batches import check_length
from crope.data.corpora import SPLITS, find_corpus
from crope.data.tokens import TokenSet, load_tokens
from crope.errors import (
    ConfigError,
    StorageError,
    UserError,
    one_line,
    out_of_memory,
    storage_error,
)
from crope.files import (
    read_bytes,
    read_metrics,
    remove_temporary_files,
    sha256_file,
    write_bytes,
    write_json,
    write_text,
)
from crope.model.counting import count_parameters
from crope.runs import provenance
from crope.runs.compose import Run, special
from crope.runs.identity import numerics_version
from crope.runs.load import WEIGHTS, build_model
from crope.runs.progress import RunProgress
from crope.runs.record import derive, is_complete, read_record
from crope.runs.signals import Stop, stop_on_signal
from crope.runs.tracking import Tracker
from crope.train.checkpoint import checkpoints, remove_checkpoints
from crope.train.device import memory_bytes, resolve_device
from crope.train.loop import Stopped, train

SIZES = ("model.n_layers", "model.d_model", "train.batch_size", "train.seq_len")
SMALLER = (
    "use a smaller model or ablation.batch_size (another experiment: its losses do not compare)"
)
# Lines of a compiler's output that say what is wrong, among pages that do not.
COMPILER_ERROR = re.compile(r"^.*(?:error: |/ld: ).*$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """How a run ended, with one line to print.

    status   complete; skipped (it was complete already); failed; busy (another process trains it);
             stopped (by a signal; after a checkpoint if it had begun to train)
    signal   that arrived meanwhile and asks for a stop; 0: none
    """

    run_id: str
    status: str
    text: str
    signal: int = 0


def execute(run: Run) -> Outcome:
    """Trains `run` and writes its record, unless it is complete or another process trains it.

    A failure during training is recorded and returned, not raised. Raises UserError if the
    configuration, the data or the folder does not allow the run, StorageError if its files cannot
    be read or written (so would those of other runs), InvalidRecord if the record on disk is
    corrupt.
    """
    try:
        if is_complete(run.path):
            return _skipped(run, "already complete")
        _check_memory(run.config)  # before there is a folder: a refused run leaves none
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
        if problem := _storage_problem(error, run):
            raise problem from error
        raise


def _skipped(run: Run, why: str) -> Outcome:
    """Raises DataError if the complete run was made on text from another source."""
    source = read_record(run.path).provenance["data"].get("source", {})
    corpus = find_corpus(run.config.data.corpus)
    corpus.check_source(source.get("hub"), f"the text of {run.path}")
    return Outcome(run.run_id, "skipped", f"{run.run_id}: {why}")


def run_lock(run: Run) -> FileLock:
    """The lock of one run; the kernel releases it when its holder ends.

    Entering it raises Timeout if it is taken, for longer than a look (`status.is_locked`) takes it.
    """
    run.lock.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(run.lock, timeout=0.1)


def _storage_problem(error: OSError, run: Run) -> StorageError | None:
    """Any fault of a file of the results but its absence, and a full disk anywhere. An error that
    names no file is one of a file that was open.
    """
    if known := storage_error(error, run.path):
        return known
    file = Path(os.fsdecode(error.filename or run.path)).absolute()
    results = Path(run.config.results_dir).absolute()
    if isinstance(error, FileNotFoundError) or not file.is_relative_to(results):
        return None
    return StorageError(f"{file}: {error.strerror or error}; mend it or set another results_dir")


def _check_memory(config: Config) -> None:
    """Raises ConfigError for a run that the device cannot hold.

    A lower bound: 16 bytes per parameter, with its gradient and AdamW's two moments, and one copy
    of the logits. What needs more than that is found only by trying.
    """
    train, vocab_size = config.train, config.tokenizer.vocab_size
    # Under bf16 autocast the logits are bf16; a compiled loss makes no float32 copy of them.
    parameters = count_parameters(config.model, vocab_size=vocab_size, max_len=train.seq_len)
    logits = train.batch_size * train.seq_len * vocab_size
    needed = 16 * parameters.total + (2 if train.precision == "bf16" else 4) * logits
    device = resolve_device(config.runtime.device)
    available = memory_bytes(device)
    if needed > available:
        raise ConfigError(
            f"{_sizes(config)} need at least {needed / 2**30:,.0f} GiB of {device.type} memory; there"
            f" are {available / 2**30:,.0f}; {SMALLER}"
        )


def _sizes(config: Config) -> str:
    return ", ".join(f"{key}={attrgetter(key)(config)}" for key in SIZES)


def _load(config: Config) -> TokenSet:
    tokens = load_tokens(config.data.corpus, config.tokenizer, data_dir=Path(config.data_dir))
    for split in SPLITS:
        check_length(getattr(tokens, split), config.train.seq_len, split)
    return tokens


def _execute(run: Run, tokens: TokenSet, stop: Stop) -> Outcome:
    remove_temporary_files(run.path)
    facts = provenance.collect(run.config.runtime, tokens.meta) | {"scale": run.scale}
    write_text(run.path / "config.yaml", yaml.safe_dump(run.container, sort_keys=False))
    provenance_file, summary_file = run.path / "provenance.json", run.path / "summary.json"
    before = {}  # of an earlier attempt, which may have diverged: a result
    for path in (provenance_file, summary_file):
        if path.exists():
            before[path] = read_bytes(path)
    summary_file.unlink(missing_ok=True)
    if checkpoints(run.path):
        facts["resumed_from"] = provenance.earlier_attempts(provenance_file)
    write_json(provenance_file, facts)  # also by what a killed run is told from none
    tracker = Tracker(run)
    summary = _identity(run)
    try:
        summary |= _train(run, tokens, tracker, stop)
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
        if isinstance(error, OSError) and _storage_problem(error, run):
            raise
        if not provenance_file.exists():
            raise UserError(
                f"{run.path}: removed while the run trained; run the same command again"
            ) from error
        summary |= {"status": "failed", "error": _describe(error, run.config)}
    summary["finished_utc"] = facts["finished_utc"] = provenance.now_utc()
    write_json(provenance_file, facts)
    write_json(summary_file, summary)
    tracker.finish(summary)  # may take half a minute, when all that counts is on disk
    if summary["status"] == "failed":
        # The traceback keeps tensors alive in cycles, which would take memory from the next run.
        gc.collect()
        return Outcome(run.run_id, "failed", f"{run.run_id}: failed: {summary['error']['message']}")
    remove_checkpoints(run.path)  # only now: until summary.json was written they were needed
    return Outcome(run.run_id, "complete", _result_line(run, summary))


def _train(run: Run, tokens: TokenSet, tracker: Tracker, stop: Stop) -> dict[str, Any]:
    """Trains the model; returns what summary.json says of a complete run."""
    model = build_model(run.config)
    with RunProgress(run) as progress:

        def log(line: dict[str, float]) -> None:
            tracker.log(line)
            progress.log(line)

        seconds = train(
            model,
            tokens,
            run.config,
            run.path,
            run_id=run.run_id,
            log=log,
            stop_requested=stop.requested,
        )
    # From the file, not from what was logged: a continued run has lines of earlier attempts.
    metrics = run.path / "metrics.jsonl"
    derived = derive(run.container, read_metrics(metrics), tokens.meta["splits"])
    derived["time"]["total_s"] = seconds
    return derived | {
        "status": "complete",
        "metrics_sha256": sha256_file(metrics),
        "weights_sha256": sha256_file(run.path / WEIGHTS),
    }


def record_failure(run: Run, message: str) -> None:
    """Writes the failed summary of a run whose process was killed and could not do so itself."""
    if (run.path / "provenance.json").exists() and not (run.path / "summary.json").exists():
        error = {"type": "Killed", "message": message, "step": None, "traceback": ""}
        summary = {"status": "failed", "error": error, "finished_utc": provenance.now_utc()}
        write_json(run.path / "summary.json", _identity(run) | summary)


def _identity(run: Run) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        **run.names,
        "seed": run.config.seed,
        "numerics_version": numerics_version(asdict(run.config.model)),
        "precision": run.config.train.precision,
        "device_kind": resolve_device(run.config.runtime.device).type,
        "error": None,
    }


def _describe(error: Exception, config: Config) -> dict[str, Any]:
    text = str(error)
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        text = "; ".join(COMPILER_ERROR.findall(text)) or text
        text = f"{one_line(text)[:300]}; runtime.compile=false trains without torch.compile"
    if out_of_memory(error):
        text = (
            f"out of memory with {_sizes(config)}; stop other programs, take fewer runs at a time"
            f" (runtime.jobs=1), or {SMALLER}"
        )
    return {
        "type": type(error).__name__,
        "message": one_line(text)[:400] or type(error).__name__,
        "step": getattr(error, "step", None),
        "traceback": "".join(traceback.format_exception(error)),
    }


def _result_line(run: Run, summary: dict[str, Any]) -> str:
    """Where the run is, what was special about it, and its result."""
    settings = ", ".join([run.scale, *special(run)])
    loss, time = summary["val_full"]["final_nats"], summary["time"]
    step = f"{time['median_step_ms']:.1f} ms per step, " if time["median_step_ms"] else ""
    result = f"full validation {loss:.4f} nats per token, {step}{time['total_s']:.0f} s"
    return f"{run.path} ({settings}): {result}"
