"""Logging to wandb while a run trains. metrics.jsonl comes first; nothing is read back from wandb.

offline   into files under <results_dir>/wandb; `wandb sync` or `tools.py upload` sends them.
online    to the server; a failure costs one line on stderr and a bounded wait, never the run.

A run that continues from its checkpoint is logged whole again (offline, in place of its earlier
files) or from where wandb has it (online), so that it neither lacks lines nor has any twice.

Group = scale, dataset and row: in both tables its runs differ in model and seed alone, so that
wandb's mean over a group and job type (the model) is the mean over seeds; docs/sweeps.md has the
filters for other studies. The x axis of every curve is `step`.
"""

import math
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crope.errors import UserError, log_line
from crope.files import read_metrics
from crope.runs.compose import Run
from crope.runs.record import Record

INIT_SECONDS = 20  # wandb's own default is 90
FINISH_SECONDS = 30


class Tracker:
    """Logs one run to wandb as its configuration says. No method raises."""

    def __init__(self, run: Run) -> None:
        self.run, self.path = run, run.path
        self.enabled = run.config.tracker.name == "wandb"
        self.wandb_run: Any = None

    def log(self, line: Mapping[str, Any]) -> None:
        """Takes one line that is in metrics.jsonl already."""
        if not self.enabled:
            return
        self.enabled = False  # an error ends the logging
        with _contained(self.path):
            lines = [line]
            if self.wandb_run is None:
                self.wandb_run = self._start()
                rows = read_metrics(self.path / "metrics.jsonl")
                lines = [row for row in rows if row["step"] <= line["step"]]
            for row in lines:
                _log(self.wandb_run, row)
            self.enabled = True

    def _start(self) -> Any:
        run, mode = self.run, self.run.config.tracker.mode
        folder = Path(run.config.results_dir)
        if mode == "offline":
            for earlier in (folder / "wandb").glob(f"offline-run-*-{run.run_id}/"):
                shutil.rmtree(earlier)  # `wandb sync` would send both
        return _init(
            run.container,
            vars(run),
            run.run_id,
            mode=mode,
            folder=folder,
            resume="allow" if mode == "online" else None,
        )

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
    try:
        wandb_run = _init(
            record.config, record.summary, record.path.name, mode="online", folder=results_dir
        )
        for row in record.metrics():
            _log(wandb_run, row)
        _finish(wandb_run, record.summary)
    except Exception as error:
        raise UserError(f"{record.path.name}: not uploaded to wandb: {_one_line(error)}") from error


def _log(wandb_run: Any, row: Mapping[str, Any]) -> None:
    """Logs one line of metrics.jsonl with the perplexity of each loss, unless wandb has the line."""
    if row["step"] < wandb_run.starting_step:
        return
    perplexities = {
        key.replace("loss_nats", "perplexity"): math.exp(loss) if loss < 700 else math.inf
        for key, loss in row.items()
        if key.endswith("loss_nats")
    }
    wandb_run.log({**row, **perplexities}, step=row["step"])


def _init(
    config: Mapping[str, Any],
    facts: Mapping[str, Any],
    run_id: str,
    *,
    mode: Any,
    folder: Path,
    resume: Any = None,
) -> Any:
    """A run of wandb; `facts`, of a Run or its summary, names the group files that were chosen."""
    names = {key: facts[key] for key in ("model", "dataset", "row", "scale")}
    # Both are read at import. Offline runs would send telemetry too.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_INIT_TIMEOUT", str(INIT_SECONDS))
    import wandb

    # Without the folder wandb turns to the system's temporary one.
    (folder / "wandb").mkdir(parents=True, exist_ok=True)
    arguments = {
        "project": config["tracker"]["project"],
        "id": run_id,
        "name": f"{run_id} {names['scale']}",
        "group": f"{names['scale']} {names['dataset']} {names['row']}",
        "job_type": names["model"],
        "tags": list(names.values()),
        "config": {**config, "names": names},
        "dir": str(folder),
        "mode": mode,
        "resume": resume,
        "settings": wandb.Settings(silent=True, console="off"),
    }
    wandb_run = _bounded(lambda: wandb.init(**arguments), INIT_SECONDS + 5)
    wandb_run.define_metric("step", hidden=True)
    wandb_run.define_metric("*", step_metric="step")
    return wandb_run


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
        command = f"`python scripts/tools.py upload {path.name}` sends the finished run"
        log_line(f"{path.name}: not logged to wandb: {_one_line(error)}; {command}")


def _one_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")
