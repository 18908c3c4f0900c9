"""Logging to wandb while a run trains. metrics.jsonl comes first; nothing is read back from wandb.

offline   into files under <results_dir>/wandb; `wandb sync` or `tools.py upload` sends them.
online    to the server; a failure costs one line on stderr and a bounded wait, never the run.
disabled  nothing, as with tracker=none.

A run that continues from its checkpoint is logged whole again (offline, in place of its earlier
files) or from where wandb has it (online), so that it neither lacks lines nor has any twice.

Group = scale, dataset and row: in both tables its runs differ in model and seed alone, so that
wandb's mean over a group and job type (the model) is the mean over seeds; docs/sweeps.md has the
filters for other studies. The x axis of every curve is wandb's own step, which is ours.
"""

import hashlib
import math
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from crope.errors import UserError, log_line
from crope.files import read_metrics
from crope.runs.compose import Run, load_config, special
from crope.runs.record import Record

INIT_SECONDS = 20  # wandb's own default is 90
FINISH_SECONDS = 30
TAG_LENGTH, NAME_LENGTH = 64, 128  # wandb refuses longer ones


class Tracker:
    """Logs one run to wandb as its configuration says. No method raises."""

    def __init__(self, run: Run) -> None:
        self.run, self.path = run, run.path
        tracker = run.config.tracker
        self.enabled = tracker.name == "wandb" and tracker.mode != "disabled"
        self.wandb_run: Any = None

    def log(self, line: Mapping[str, Any]) -> None:
        """Takes one line that is in metrics.jsonl already."""
        if not self.enabled:
            return
        self.enabled = False  # an error ends the logging
        with _contained(self.path):
            lines = [line]
            if self.wandb_run is None:
                self.wandb_run = self._start()  # with the first line: a refused run leaves none
                rows = read_metrics(self.path / "metrics.jsonl")
                lines = [row for row in rows if row["step"] <= line["step"]]
            for row in lines:
                _log(self.wandb_run, row)
            self.enabled = True

    def _start(self) -> Any:
        mode, folder = self.run.config.tracker.mode, Path(self.run.config.results_dir)
        resume = None if mode == "offline" else "allow"
        if mode == "offline":
            _remove_earlier(folder / "wandb", _wandb_id(self.run.run_id))
        return _init(self.run, self.run.run_id, mode=mode, folder=folder, resume=resume)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Called when the run ends; `summary` is its summary.json, of a stopped run
        its first fields."""
        if self.wandb_run is not None:
            with _contained(self.path):
                _finish(self.wandb_run, summary)


def upload(record: Record, *, results_dir: Path) -> None:
    """Sends a finished run to wandb whole, in place of what is there under its id.

    Raises UserError.
    """
    names = {key: record.summary[key] for key in ("model", "dataset", "row", "scale")}
    try:
        run = Run(load_config(record.config), **names)
        wandb_run = _init(run, record.path.name, mode="online", folder=results_dir)
        for row in record.metrics():
            _log(wandb_run, row)
        _finish(wandb_run, record.summary)
    except Exception as error:
        raise UserError(f"{record.path.name}: not uploaded to wandb: {_one_line(error)}") from error


def _remove_earlier(folder: Path, wandb_id: str) -> None:
    """Deletes the offline files of an earlier part of a run: `wandb sync` would send both."""
    for path in folder.glob("offline-run-*"):
        # offline-run-<time>-<id>: a pattern would also match ids that end in this one.
        if path.name.split("-", 3)[3:] == [wandb_id]:
            shutil.rmtree(path)


def _log(wandb_run: Any, row: Mapping[str, Any]) -> None:
    """Logs one line of metrics.jsonl with the perplexity of each loss, unless wandb has the line."""
    step = row["step"]
    if step < wandb_run.starting_step:
        return
    values = {}
    for key, value in row.items():
        if key != "step":  # would be charted as a metric of its own
            values[key] = value
        if key.endswith("loss_nats"):
            perplexity = math.exp(value) if value < 700 else math.inf
            values[key.replace("loss_nats", "perplexity")] = perplexity
    wandb_run.log(values, step=step)


def _init(run: Run, run_id: str, *, mode: Any, folder: Path, resume: Any = None) -> Any:
    """A run of wandb. Its config has the values that were used: not those of the paper's row."""
    # Both are read at import. Offline runs would send telemetry too.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_INIT_TIMEOUT", str(INIT_SECONDS))
    import wandb

    config = run.container | {"names": run.names}
    del config["ablation"]  # the paper's numbers; `train` has those that were used
    # Without the folder wandb turns to the system's temporary one.
    (folder / "wandb").mkdir(parents=True, exist_ok=True)
    arguments = {
        "project": run.config.tracker.project,
        "id": _wandb_id(run_id),
        "name": _short(" ".join([run.title, *special(run)])),
        "group": _short(f"{run.scale} {run.dataset} {run.row}"),
        "job_type": _short(run.model, TAG_LENGTH),
        "tags": [_short(name, TAG_LENGTH) for name in run.names.values()],
        "config": config,
        "dir": str(folder),
        "mode": mode,
        "resume": resume,
        "settings": wandb.Settings(silent=True, console="off"),
    }
    return _bounded(lambda: wandb.init(**arguments), INIT_SECONDS + 5)


def _wandb_id(run_id: str) -> str:
    """The run's id without the characters that wandb reserves."""
    return _short(re.sub(r"[/\\#?%:]", "-", run_id))


def _short(text: str, length: int = NAME_LENGTH) -> str:
    """A text that wandb takes; equal ones only of equal texts."""
    if len(text) <= length:
        return text
    return f"{text[: length - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _finish(wandb_run: Any, summary: Mapping[str, Any]) -> None:
    import wandb

    wandb_run.summary.update({key: value for key, value in summary.items() if key != "error"})
    _bounded(
        lambda: wandb_run.finish(exit_code=int(summary["status"] != "complete")), FINISH_SECONDS
    )
    _bounded(wandb.teardown, FINISH_SECONDS)  # ends wandb's service process, which writes the files


def _bounded(call: Callable[[], Any], seconds: float) -> Any:
    """The result of `call`.

    Raises what it raises, and TimeoutError after `seconds`; it then continues in a thread.
    """
    result: Future[Any] = Future()

    def target() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=target, daemon=True).start()
    try:
        return result.result(timeout=seconds)
    except TimeoutError:
        raise TimeoutError(f"no answer within {seconds:.0f} s") from None


@contextmanager
def _contained(path: Path) -> Iterator[None]:
    """Prints an error of wandb, whose types are many, as one line: none of them may cost the run."""
    try:
        yield
    except Exception as error:
        advice = f"; `python scripts/tools.py upload {path.name}` sends the finished run"
        if isinstance(error, ValidationError):  # it would be refused again
            advice = ""
        log_line(f"{path.name}: not logged to wandb: {_one_line(error)}{advice}")


def _one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):  # its text begins with a heading
        first = error.errors()[0]
        return f"{first['loc'][0]}: {first['msg']}"
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")
