"""Logging to wandb while a run trains. metrics.jsonl comes first; nothing is read back from wandb.

offline   into files under <results_dir>/wandb; `wandb sync` sends them.
online    to the server; a failure costs one line on stderr and a bounded wait, never the run.
disabled  nothing, as with tracker=none.

A run continued from its checkpoint is logged whole again (offline, replacing its earlier files) or
from where wandb has it (online).

Group is scale, dataset and row; job type is the model: wandb's mean over both is that over seeds.
The x axis is wandb's own step, which is ours.
"""

import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crope.errors import log_line, one_line
from crope.files import read_metrics, write_text
from crope.plan.compose import Run

INIT_SECONDS = 20  # wandb's own default is 90
FINISH_SECONDS = 30
TAG_LENGTH, NAME_LENGTH = 64, 128  # wandb refuses longer ones
# Names the offline files of a run, in its folder: a sweep of wandb gives them another id.
OFFLINE_NAME = "wandb.txt"


class Tracker:
    """The wandb log of one run, as its configuration says. No method raises."""

    def __init__(self, run: Run, described: Mapping[str, Any]) -> None:
        self.run, self.described = run, described  # the latter is its run.json
        tracker = run.config.tracker
        self.enabled = tracker.name == "wandb" and tracker.mode != "disabled"
        self.wandb_run: Any = None

    def log(self, line: Mapping[str, Any]) -> None:
        """Logs one line that is in metrics.jsonl already."""
        if not self.enabled:
            return
        with self._contained():
            if self.wandb_run is not None:
                self._log(line)
                return
            self.wandb_run = self._start()  # with the first line: a refused run leaves none
            for row in read_metrics(self.run.path / "metrics.jsonl"):  # `line` is its last
                self._log(row)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Ends the wandb run with the run's summary; a stopped run has only its first fields."""
        if self.wandb_run is None:
            return
        with self._contained():
            import wandb

            values = {key: value for key, value in summary.items() if key != "error"}
            self.wandb_run.summary.update(values)
            self.wandb_run.finish(exit_code=int(summary["status"] != "complete"))
            wandb.teardown()  # ends wandb's service process, which writes the files

    def _start(self) -> Any:
        """Begins a wandb run. Its config has the values that were used, not those of the paper's
        row.
        """
        # Read at import. Offline runs would send telemetry too.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        run, tracker = self.run, self.run.config.tracker
        folder = Path(run.config.results_dir)
        # Without the folder wandb turns to the system's temporary one.
        (folder / "wandb").mkdir(parents=True, exist_ok=True)
        offline = tracker.mode == "offline"
        noted = run.path / OFFLINE_NAME
        if offline and noted.exists():
            # `wandb sync` would send the earlier part of this run, too.
            shutil.rmtree(folder / "wandb" / noted.read_text(encoding="utf-8"), ignore_errors=True)
        if tracker.mode == "online" and not wandb.login(timeout=INIT_SECONDS):
            raise RuntimeError("no login; run `wandb login`")
        # A run that `runtime.again` has moved away is another one.
        replaced = len(list((folder / "replaced").glob(f"{run.run_id}.*")))
        run_id = f"{run.run_id}.{replaced}" if replaced else run.run_id
        config = run.container | {"names": run.names}
        del config["ablation"]  # the paper's numbers; `train` has those that were used
        started = wandb.init(
            project=tracker.project,
            id=re.sub(r"[/\\#?%:]", "-", run_id)[:NAME_LENGTH],  # characters wandb reserves
            name=" ".join([run.title, *self.described["settings"]])[:NAME_LENGTH],
            group=f"{run.scale} {run.dataset} {run.row}"[:NAME_LENGTH],
            job_type=run.model[:TAG_LENGTH],
            tags=[name[:TAG_LENGTH] for name in run.names.values()],
            config=config,
            dir=str(folder),
            mode=tracker.mode,  # type: ignore[arg-type]  # one_of in crope/config.py
            resume=None if offline else "allow",
            settings=wandb.Settings(
                silent=True,
                console="off",
                init_timeout=INIT_SECONDS,
                finish_timeout=FINISH_SECONDS,
            ),
        )
        if offline:
            write_text(noted, Path(started.dir).parent.name)
        return started

    def _log(self, row: Mapping[str, Any]) -> None:
        """Logs one line of metrics.jsonl with the perplexity of each loss, unless wandb has it."""
        step = row["step"]
        if step < self.wandb_run.starting_step:
            return
        values = {key: value for key, value in row.items() if key != "step"}  # no metric of its own
        for key, loss in row.items():
            if key.endswith("loss_nats"):
                perplexity = math.exp(loss) if loss < 700 else math.inf
                values[key.replace("loss_nats", "perplexity")] = perplexity
        self.wandb_run.log(values, step=step)

    @contextmanager
    def _contained(self) -> Iterator[None]:
        """Prints an error of wandb, whose types are many, as one line, and ends the logging: none may
        cost the run.
        """
        try:
            yield
        except Exception as error:
            self.enabled = False
            log_line(f"{self.run.run_id}: not logged to wandb: {one_line(error)[:300]}")
