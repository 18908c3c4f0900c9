"""Logging to wandb. metrics.jsonl comes first; nothing is ever read back from wandb.

offline   a finished run is written to wandb's files under <results_dir>/wandb in one go, from its
          metrics.jsonl: a resumed run neither lacks lines nor has any twice. `wandb sync` or
          `tools.py upload` sends it.
online    lines are logged while the run trains; a failure costs one line on stderr and a bounded
          wait, never the run.

Group = dataset, job type = model, tags = scale and row, name = id = run id; x axis of every curve:
`step`.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crope.compose import Run
from crope.errors import UserError, log_line
from crope.record import Record, read_record

INIT_SECONDS = 20  # wandb's own default is 90
FINISH_SECONDS = 30


class Tracker:
    """Logs one run to wandb as its configuration says. No method raises."""

    def __init__(self, run: Run) -> None:
        self.path, self.wandb_run = run.path, None
        self.mode = "none" if run.config.tracker.name == "none" else run.config.tracker.mode
        if self.mode == "online":
            names = {"model": run.model, "dataset": run.dataset, "row": run.row, "scale": run.scale}
            folder = Path(run.config.results_dir)
            with _contained(run.path):
                # `allow`: a run that continues from its checkpoint continues its curves.
                self.wandb_run = _init(
                    run.container, names, run.run_id, mode="online", folder=folder, resume="allow"
                )

    def log(self, line: Mapping[str, Any]) -> None:
        """Takes one line that is in metrics.jsonl already."""
        # A run that continues from its checkpoint repeats lines that wandb has already.
        if self.wandb_run is not None and line["step"] >= self.wandb_run.starting_step:
            wandb_run, self.wandb_run = self.wandb_run, None  # an error ends the logging
            with _contained(self.path):
                wandb_run.log(dict(line), step=line["step"])
                self.wandb_run = wandb_run

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Called when the run ends; `summary` is its summary.json, or has only `status: stopped`."""
        with _contained(self.path):
            if self.wandb_run is not None:
                _finish(self.wandb_run, summary)
            elif (
                self.mode == "offline"
                and summary["status"] != "stopped"
                and (self.path / "metrics.jsonl").exists()
            ):
                _write_whole(read_record(self.path), mode="offline", folder=self.path.parent.parent)


def upload(record: Record, *, results_dir: Path) -> None:
    """Sends a finished run to wandb whole, in place of what is there under its id.

    Raises UserError.
    """
    try:
        _write_whole(record, mode="online", folder=results_dir)
    except Exception as error:
        raise UserError(f"{record.path.name}: not uploaded to wandb: {_one_line(error)}") from error


def _write_whole(record: Record, *, mode: str, folder: Path) -> None:
    names = {key: record.summary[key] for key in ("model", "dataset", "row", "scale")}
    for earlier in (
        (folder / "wandb").glob(f"offline-run-*-{record.path.name}") if mode == "offline" else ()
    ):
        shutil.rmtree(earlier)  # of a failed attempt: `wandb sync` would send both
    wandb_run = _init(record.config, names, record.path.name, mode=mode, folder=folder, resume=None)
    for row in record.metrics():
        wandb_run.log(row, step=row["step"])
    _finish(wandb_run, record.summary)


def _init(
    config: Mapping[str, Any],
    names: Mapping[str, str],
    run_id: str,
    *,
    mode: Any,
    folder: Path,
    resume: Any,
) -> Any:
    os.environ.setdefault(
        "WANDB_ERROR_REPORTING", "false"
    )  # read at import; offline runs would send telemetry too
    os.environ.setdefault("WANDB_INIT_TIMEOUT", str(INIT_SECONDS))
    import wandb

    (folder / "wandb").mkdir(
        parents=True, exist_ok=True
    )  # without it wandb turns to the system's temporary folder
    arguments = {
        "project": config["tracker"]["project"],
        "id": run_id,
        "name": run_id,
        "group": names["dataset"],
        "job_type": names["model"],
        "tags": [names["scale"], names["row"]],
        "config": {**config, "names": dict(names)},
        "dir": str(folder),
        "mode": mode,
        "resume": resume,
        "settings": wandb.Settings(silent=True, console="off", x_disable_stats=True),
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
