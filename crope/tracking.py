"""Where curves are mirrored. The record is written first; nothing is ever read back from a service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from crope.compose import Run
from crope.config import ROOT
from crope.interrupt import StopSignal, Unstoppable
from crope.record import read_metrics

FINISH_SECONDS = 30.0  # the longest wait for wandb at the end of a run
STOP_SECONDS = 1.0  # ... of one that was asked to stop, by someone who will not wait long
POLL_SECONDS = 0.2  # how often a request to stop is looked for in that time


class Tracker(Protocol):
    def log(self, line: dict[str, Any]) -> None:
        """Takes one line, which is in metrics.jsonl already."""

    def finish(self, summary: dict[str, Any]) -> None: ...


class NullTracker:
    """`tracker=none`: imports nothing, does nothing."""

    def log(self, line: dict[str, Any]) -> None:
        pass

    def finish(self, summary: dict[str, Any]) -> None:
        pass


class WandbTracker:
    """Mirrors a run while it trains, and never costs it: a process apart does it (crope/mirror.py).

    What goes wrong there is said in one line when it happens, and in one at the end: which lines are not mirrored, why,
    and the command that mirrors them.
    """

    def __init__(self, run: Run, stop: StopSignal) -> None:
        self.run, self.stop = run, stop
        names = {"model": run.model, "dataset": run.dataset, "row": run.row, "scale": run.scale}
        self.mirror = MirrorProcess(job(run.path, run.container, names, folder=Path(run.config.results_dir), live=True))
        self.begun = False

    def log(self, line: dict[str, Any]) -> None:
        if not self.begun:  # before, a resumed run's metrics.jsonl holds lines that are cut
            self.mirror.send({"begin": True})
            self.begun = True
        self._tell()

    def finish(self, summary: dict[str, Any]) -> None:
        """Waits for the mirror, FINISH_SECONDS at most; STOP_SECONDS once there is a request to stop."""
        stopped = summary["status"] == "stopped"
        result = self.mirror.finish(summary, seconds=STOP_SECONDS if stopped else FINISH_SECONDS, stop=self.stop)
        self._tell()
        mode = self.run.config.tracker.mode
        gone = not (self.run.path / "metrics.jsonl").exists()  # removed under the run, which says so itself
        if gone or (result["whole"] and result["mode"] == mode):
            return
        option = "--mode online " if mode == "online" else ""
        remedy = f"`python scripts/replay.py {option}{self.run.path}` mirrors it later"
        if stopped:
            remedy = "the same command goes on with the run and mirrors it whole"
        lines = result["lines"] if result["mode"] == mode else 0
        self._say(f"not mirrored to wandb {mode} {missing(self.run.path, lines)}: {result['reason']}; {remedy}")

    def _tell(self) -> None:
        while self.mirror.news:
            self._say(f"wandb: {self.mirror.news.pop(0)}")

    def _say(self, text: str) -> None:
        clear = "\r\x1b[2K" if sys.stderr.isatty() else ""  # the line that moves stands there
        print(f"{clear}{self.run.run_id}: {text}", file=sys.stderr, flush=True)


class MirrorProcess:
    """crope/mirror.py at work on one job. No method raises, nor waits longer than it says."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.news: list[str] = []
        self.result: dict[str, Any] = {"mode": "", "lines": 0, "whole": False, "reason": None, "folder": ""}
        self.over = threading.Event()
        self.process: subprocess.Popen[str] | None = None
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "crope.mirror"],
                stdin=subprocess.PIPE,  # no terminal: wandb cannot ask for a key
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
                text=True,
                start_new_session=True,  # Ctrl-C at a terminal is for the training process
            )
        except OSError as error:
            self.result["reason"] = str(error)
            self.news.append(str(error))
            self.over.set()
            return
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()
        self.send(job)

    def send(self, message: dict[str, Any]) -> None:
        """A job and two more messages fit into the pipe, read or not, so this never waits."""
        if self.process is not None and self.process.stdin is not None:
            with suppress(OSError):  # it has ended: `finish` says why
                self.process.stdin.write(json.dumps(message) + "\n")
                self.process.stdin.flush()

    def finish(self, summary: dict[str, Any], *, seconds: float, stop: StopSignal) -> dict[str, Any]:
        """Waits for the end of the mirror, and ends it after `seconds`. Returns the fields of mirror.Result."""
        self.send({"summary": summary, "seconds": seconds})
        end = time.monotonic() + seconds
        try:
            while not self.over.wait(min(POLL_SECONDS, max(0.0, end - time.monotonic()))) and time.monotonic() < end:
                if stop.signal_number is not None and seconds > STOP_SECONDS:
                    seconds, end = STOP_SECONDS, time.monotonic() + STOP_SECONDS
        finally:
            ended = self.over.is_set()
            status = self._end()
        if self.result["reason"] is None and not self.result["whole"]:
            how = f"its process ended (exit status {status})" if ended else f"wandb did not finish within {seconds:g} s"
            self.result["reason"] = how
        return self.result

    def _end(self) -> int | None:
        if self.process is None:
            return None
        self.process.kill()  # wandb's service sees that and ends as well
        return self.process.wait()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with suppress(ValueError):  # a line that was cut short when the process was killed
            for line in process.stdout:
                message = json.loads(line)
                if "news" in message:
                    self.news.append(message["news"])
                else:
                    self.result = message
        self.over.set()


def job(
    record: Path, config: dict[str, Any], names: dict[str, str], *, folder: Path, live: bool, mode: str = ""
) -> dict[str, Any]:
    """What crope/mirror.py needs to know: where the record is, and what wandb is told of the run.

    names: model, dataset, row and scale. live: while the run trains; then offline stands in where online fails.
    mode: tracker.mode unless given.
    """
    tracker = config["tracker"]
    provenance = record / "provenance.json"
    # A replay may run on another machine than the one that trained.
    here = {} if live else {"x_disable_machine_info": True, "x_save_requirements": False}
    facts = json.loads(provenance.read_text(encoding="utf-8")) if provenance.exists() else {}
    return {
        "record": str(record),
        "folder": str(folder),
        "mode": mode or tracker["mode"],
        "live": live,
        "settings": {"git_commit": facts.get("commit"), "program": facts.get("command"), **here},
        "init": {
            "project": tracker["project"],
            "id": record.name,
            "name": record.name,
            "group": names["dataset"],
            "job_type": names["model"],
            "tags": [names["scale"], names["row"]],
            "config": {**config, "names": names},
        },
    }


def missing(record: Path, lines: int) -> str:
    """`from step 40 on` where so many first lines are mirrored; `(its summary)` where all are."""
    with suppress(OSError, ValueError):
        rows = read_metrics(record / "metrics.jsonl")
        if lines < len(rows):
            return f"from step {rows[lines]['step']} on"
    return "(its summary)"


def build_tracker(run: Run, stop: StopSignal | None = None) -> Tracker:
    """`stop` is asked while the end of the run waits for the service."""
    return NullTracker() if run.config.tracker.name == "none" else WandbTracker(run, stop or Unstoppable())
