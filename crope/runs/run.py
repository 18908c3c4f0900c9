"""One run: skip it if complete, train it, write its record."""

import gc
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from filelock import Timeout

from crope.config import ROOT
from crope.data.corpora import find_corpus
from crope.data.tokens import TokenSet, load_tokens
from crope.errors import InvalidRecord, StorageError, UserError, log_line, one_line
from crope.files import (
    read_metrics,
    remove_temporary_files,
    sha256_file,
    write_bytes,
    write_json,
    write_text,
)
from crope.model.gpt import GPT, count_parameters
from crope.plan.compose import Run
from crope.records.derive import derive
from crope.records.locks import lock_file, run_lock
from crope.records.run_json import describe
from crope.records.sources import code_digests, code_note
from crope.records.status import STOPPED, state_of
from crope.records.store import Record, is_complete, read_described, read_record
from crope.runs import provenance
from crope.runs.load import WEIGHTS, build_model
from crope.runs.progress import RunProgress
from crope.runs.signals import Stop, stop_on_signal
from crope.runs.tracking import Tracker
from crope.train.checkpoint import checkpoints, remove_checkpoints
from crope.train.device import resolve_device
from crope.train.loop import Stopped, train

# Now, as the code is loaded: its files may be edited, and committed, while runs train.
code_digests()
provenance.code_state(ROOT)


@dataclass(frozen=True)
class Outcome:
    """How a run ended, with one line to print.

    status   complete; skipped (already complete); failed; busy (another process trains it);
             stopped (by a signal, after a checkpoint)
    signal   that arrived meanwhile and requests a stop; 0: none
    """

    run_id: str
    status: str
    text: str
    signal: int = 0


def execute(run: Run) -> Outcome:
    """Trains `run` under its lock and writes its record, unless it is complete or another process
    trains it.

    A training failure is recorded and returned, not raised. Raises UserError if configuration, data
    or folder does not allow the run (a complete one: if its text came from another source),
    StorageError if a file cannot be read or written (other runs would fail too), InvalidRecord if
    the record on disk is corrupt.
    """
    config = run.config
    try:
        # A complete run is another user's, perhaps, whose folder may only be read.
        skips = is_complete(run.path) and not config.runtime.again
        with nullcontext() if skips else run_lock(run.path):
            again = config.runtime.again and by_other_code(run.path)
            if is_complete(run.path) and not again:
                found = read_complete(run)
                text = [f"{run.run_id}: already complete", code_note(found.run)]
                return Outcome(run.run_id, "skipped", ", ".join(filter(None, text)))
            model = build_model(config)  # a part that no registry has leaves no folder
            # May take minutes, which a signal ends: nothing to save.
            tokens = load_tokens(config.data, config.tokenizer, data_dir=Path(config.data_dir))
            tokens.check_length(config.train.seq_len)
            if again:  # not before: an error above would leave no run
                _set_aside(run.path)
            with stop_on_signal() as stop:
                with attempt(run, tokens) as record:
                    record.summary |= _train(run, model, tokens, record.tracker, stop)
                gc.collect()  # a failure's traceback keeps tensors alive, which the next run needs
                return Outcome(run.run_id, record.summary["status"], record.text, stop.signal)
    except Timeout:
        return Outcome(run.run_id, "busy", f"{run.run_id}: another process is training it")
    except OSError as error:
        if isinstance(error, PermissionError) and lock_file(run.path).exists():
            # Begun by another user, which says nothing of other runs.
            raise UserError(f"{error}; ask its owner for permission") from error
        raise StorageError(
            f"{error}; free space, fix permissions or set another results_dir"
        ) from error


def read_complete(run: Run) -> Record:
    """Reads the record of a complete run. Raises InvalidRecord if it is corrupt, DataError if its
    text came from another source than conf/data says: new runs could not be compared with it.
    """
    found = read_record(run.path)
    source = found.provenance["data"].get("source", {})
    corpus = find_corpus(run.config.data, Path(run.config.data_dir))
    corpus.check_source(source, f"the text of {run.path}")
    return found


def text_errors(complete: Iterable[Run]) -> dict[str, UserError]:
    """Prints and returns, by dataset, that complete runs are of text from another source."""
    errors: dict[str, UserError] = {}
    for run in {run.dataset: run for run in complete}.values():
        try:
            read_complete(run)
        except InvalidRecord:
            pass  # the report tells it
        except UserError as error:
            log_line(f"error: {error}")
            errors[run.dataset] = error
    return errors


@dataclass
class Attempt:
    """An attempt at a run: what it says of itself, and what its summary will hold."""

    run: Run
    facts: dict[str, Any]  # provenance.json
    tracker: Tracker
    summary: dict[str, Any]
    text: str = ""

    def end(self, status: str, text: str) -> None:
        """Writes the record unless the run was stopped; `text` is printed."""
        self.summary["status"], self.text = status, text
        folder = self.run.path
        if status != "stopped":
            self.summary["finished_utc"] = self.facts["finished_utc"] = provenance.now_utc()
            write_json(folder / "provenance.json", self.facts)
            write_json(folder / "summary.json", self.summary)
        self.tracker.finish(self.summary)  # may take half a minute, when all that counts is on disk
        if status == "complete":  # only now: until summary.json was written they were needed
            remove_checkpoints(folder)


@contextmanager
def attempt(run: Run, tokens: TokenSet) -> Iterator[Attempt]:
    """Writes what an incomplete run is, and at the end how it ended.

    A UserError restores the earlier files and is raised. Any other exception but OSError is recorded
    as a failed run, so that a sweep goes on.
    """
    files = [run.path / "run.json", run.path / "provenance.json"]
    before = {file: file.read_bytes() for file in files if file.exists()}
    described, facts = _describe_attempt(run, tokens)
    record = Attempt(run, facts, Tracker(run, described), {"error": None})
    try:
        yield record
    except Stopped as stopped:
        record.end("stopped", f"{run.run_id}: {stopped}; run the same command to continue")
    except UserError:
        for file, content in before.items():
            write_bytes(file, content)
        raise
    except OSError:
        raise
    except Exception as error:
        record.summary["error"] = describe_error(error)
        record.end("failed", f"{run.run_id}: failed: {record.summary['error']['message']}")
    else:
        record.end("complete", _result_line(run, described, record.summary))


def _describe_attempt(run: Run, tokens: TokenSet) -> tuple[dict[str, Any], dict[str, Any]]:
    """Writes run.json, config.yaml and provenance.json; returns the first and the last."""
    device = resolve_device(run.config.runtime.device)
    described = describe(run, device.type)
    facts = provenance.collect(run.config.runtime, device, tokens.meta)
    file = run.path / "provenance.json"
    if checkpoints(run.path):
        facts["resumed_from"] = provenance.earlier_attempts(file)
        described["code"] = {  # of all that trained a part of it
            path: " ".join(dict.fromkeys(f"{began} {described['code'].get(path, '')}".split()))
            for path, began in read_described(run.path).get("code", {}).items()
        }
    else:
        _name_other_precision(run)
    remove_temporary_files(run.path)
    write_json(run.path / "run.json", described)
    write_text(run.path / "config.yaml", yaml.safe_dump(run.container, sort_keys=False))
    write_json(file, facts)
    return described, facts


def _name_other_precision(run: Run) -> None:
    """Prints which stopped run differs in the precision alone. `auto` takes it from the machine, so
    that after a move the same command does not continue that run.
    """
    train = run.config.train
    other = replace(train, precision="fp32" if train.precision == "bf16" else "bf16")
    path = replace(run, config=replace(run.config, train=other)).path
    if state_of(path).status == STOPPED:
        log_line(
            f"{path.name} was stopped and is not this run: here the precision is {train.precision};"
            f" add train.precision={other.precision} to continue it"
        )


def _train(run: Run, model: GPT, tokens: TokenSet, tracker: Tracker, stop: Stop) -> dict[str, Any]:
    """Trains the model; returns what summary.json says of a complete run."""
    parameters = count_parameters(model)
    with RunProgress([run]) as progress:

        def log(line: dict[str, float]) -> None:
            progress.show(run, line)
            tracker.log(line)

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
        "parameters": parameters,
        "metrics_sha256": sha256_file(metrics),
        "weights_sha256": sha256_file(run.path / WEIGHTS),
    }


def by_other_code(path: Path) -> bool:
    """Tells whether other or unknown code has trained the run of this folder, or a part of it."""
    described = read_described(path)
    return path.exists() and (not described.get("code") or code_note(described) != "")


def _set_aside(path: Path) -> None:
    """Moves a run's folder to `replaced`, beside `runs`."""
    kept = path.parents[1] / "replaced"
    kept.mkdir(exist_ok=True)
    number = len(list(kept.glob(f"{path.name}.*")))
    path.rename(kept / f"{path.name}.{number}")


def record_failure(run: Run, message: str) -> None:
    """Writes the failed summary of a run whose process was killed."""
    error = {"type": "Killed", "message": message, "step": None, "traceback": ""}
    summary = {"status": "failed", "error": error, "finished_utc": provenance.now_utc()}
    with suppress(Timeout), run_lock(run.path):  # another command may train it by now
        if (run.path / "provenance.json").exists() and not (run.path / "summary.json").exists():
            write_json(run.path / "summary.json", summary)


def describe_error(error: Exception) -> dict[str, Any]:
    """Returns what summary.json says of a failure."""
    return {
        "type": type(error).__name__,
        "message": one_line(error)[:400] or type(error).__name__,
        "step": getattr(error, "step", None),
        "traceback": "".join(traceback.format_exception(error)),
    }


def _result_line(run: Run, described: dict[str, Any], summary: dict[str, Any]) -> str:
    """Says in two lines where the run is, what was special about it, and its result."""
    sizes = f"B={run.config.train.batch_size}, L={run.config.train.seq_len}"
    settings = ", ".join([described["scale"], sizes, *described["settings"]])
    loss, time = summary["val_full"]["final_nats"], summary["time"]
    step = f"{time['median_step_ms']:.1f} ms per step, " if time["median_step_ms"] else ""
    result = (
        f"full validation {loss:.4f} nats per token, {step}{time['total_s']:.0f} s with validation"
    )
    return "\n  ".join(filter(None, [f"{run.path} ({settings})", result, code_note(described)]))
