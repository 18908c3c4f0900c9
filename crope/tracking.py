"""Where curves are mirrored. The record is written first; nothing is ever read back from a service."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from crope.compose import Run


class Tracker(Protocol):
    def log(self, line: dict[str, Any]) -> None: ...

    def finish(self, summary: dict[str, Any]) -> None: ...


class NullTracker:
    """`tracker=none`: imports nothing, does nothing."""

    def log(self, line: dict[str, Any]) -> None:
        pass

    def finish(self, summary: dict[str, Any]) -> None:
        pass


class WandbTracker:
    """group = dataset, job type = model, name = run id; `step` is the x axis of every curve.

    An own step axis (define_metric) rather than wandb's counter: a resumed offline run starts that counter at 0 again.
    """

    def __init__(self, run: Run) -> None:
        # Offline must mean no traffic; error reports are sent even then unless switched off before the import.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        config = run.config
        folder = Path(config.results_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self.run = wandb.init(
            project=config.tracker.project,
            mode=config.tracker.mode,  # type: ignore[arg-type]  # the schema allows these two words only
            dir=folder,
            id=run.run_id,
            resume="allow" if config.tracker.mode == "online" else None,
            name=run.run_id,
            group=run.dataset,
            job_type=run.model,
            tags=[run.scale, run.row],
            config={
                **run.container,
                "names": {"model": run.model, "dataset": run.dataset, "row": run.row, "scale": run.scale},
            },
            settings=wandb.Settings(x_disable_stats=True, console="off"),
        )
        self.run.define_metric("step", hidden=True)
        self.run.define_metric("*", step_metric="step")

    def log(self, line: dict[str, Any]) -> None:
        self.run.log(line)

    def finish(self, summary: dict[str, Any]) -> None:
        self.run.summary.update({key: value for key, value in summary.items() if key != "error"})
        self.run.finish(exit_code=0 if summary["status"] == "complete" else 1)


class MirrorTracker:
    """Any tracker, such that its failure never costs a run: said once, and the record goes on alone."""

    def __init__(self, run_id: str, build: Callable[[], Tracker]) -> None:
        self.run_id = run_id
        self.tracker: Tracker = NullTracker()
        self.tracker = self._attempt(build) or self.tracker

    def log(self, line: dict[str, Any]) -> None:
        self._attempt(lambda: self.tracker.log(line))

    def finish(self, summary: dict[str, Any]) -> None:
        self._attempt(lambda: self.tracker.finish(summary))

    def _attempt(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:  # wandb's error types are many; none of them may stop training
            reason = " ".join(str(error).split()) or type(error).__name__
            print(f"{self.run_id}: not mirrored to wandb from here on: {reason}", file=sys.stderr, flush=True)
            self.tracker = NullTracker()
            return None


def build_tracker(run: Run) -> Tracker:
    if run.config.tracker.name == "none":
        return NullTracker()
    return MirrorTracker(run.run_id, lambda: WandbTracker(run))
