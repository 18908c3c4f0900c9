"""The process that mirrors one run to wandb: `python -m crope.mirror`, started by crope/tracking.py.

It stands apart because wandb can wait, hang, crash, ask for a key or say nothing of a full disk, and all of that must
end here. What it mirrors it reads from the run's metrics.jsonl, always from the first line on: wandb takes a run that
comes again under its id as the whole run, so a resumed or replayed run neither lacks points nor has any twice.

in   one JSON object a line: the job (see `tracking.job`), {"begin": true} once metrics.jsonl holds no line that is
     still to be cut, {"summary": ..., "seconds": ...} when the run is over. The end of the input without that means
     that the run was killed.
out  {"news": text} to be told now, and last the fields of a `Result`.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from crope.record import read_metrics
from crope.wandb_files import Mirrored, read_steps, remove_superseded, write_mirrored

INIT_SECONDS = 20  # unless WANDB_INIT_TIMEOUT says otherwise; wandb's own default is 90
POLL_SECONDS = 1.0  # how far the mirror may lag behind metrics.jsonl
ORPHAN_SECONDS = 30.0  # how long this process outlives a killed run


@dataclass(frozen=True)
class Result:
    """What wandb has of a run at the end.

    mode    "online" or "offline": where it is
    lines   how many of the first lines of metrics.jsonl are known to be there
    whole   all of them, and the summary
    reason  why not, or why offline where online was asked for; None where all is as asked
    folder  wandb's folder of this run on this machine
    """

    mode: str
    lines: int
    whole: bool
    reason: str | None
    folder: str


class Inbox:
    """What the training process says, taken in as it comes: its writes never wait for this process."""

    def __init__(self, stream: TextIO) -> None:
        self.job: dict[str, Any] = json.loads(stream.readline())
        self.summary: dict[str, Any] = {"status": "killed"}
        self.begun, self.over = threading.Event(), threading.Event()
        threading.Thread(target=self._listen, args=(stream,), daemon=True).start()

    def _listen(self, stream: TextIO) -> None:
        seconds = ORPHAN_SECONDS
        with suppress(ValueError):  # a line that was cut short when the run was killed
            for line in stream:
                message = json.loads(line)
                if "begin" in message:
                    self.begun.set()
                else:
                    self.summary, seconds = message["summary"], message["seconds"]
                    break
        threading.Thread(target=_leave_after, args=(seconds + 1,), daemon=True).start()
        self.over.set()
        self.begun.set()

    def rows(self, path: Path) -> Iterator[dict[str, Any]]:
        """The lines of metrics.jsonl, as they are written, until the run is over."""
        self.begun.wait()
        offset, last = 0, False
        while not last:
            last = self.over.wait(POLL_SECONDS)  # asked before reading: what stood then is read
            data = b""
            if path.exists():
                with path.open("rb") as file:
                    file.seek(offset)
                    data = file.read()
            data = data[: data.rfind(b"\n") + 1]  # a line that is being written waits
            offset += len(data)
            yield from map(json.loads, data.splitlines())


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # the training process decides when this one ends
    # wandb's service would inherit the pipe and keep it open after this process.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stderr = said = io.StringIO()

    def tell(message: dict[str, Any]) -> None:
        with suppress(OSError):  # nobody listens to the mirror of a killed run
            out.write(json.dumps(message) + "\n")
            out.flush()

    try:
        tell(asdict(mirror(Inbox(sys.stdin), news=lambda text: tell({"news": text}), said=said)))
    except Exception as error:  # wandb's error types are many; every one of them ends here
        tell({"news": one_line(error)})
        tell(asdict(Result("", 0, False, one_line(error), "")))
    os._exit(0)  # wandb's own exit handlers may wait for a network that is gone


def mirror(inbox: Inbox, *, news: Callable[[str], None], said: io.StringIO) -> Result:
    """Mirrors the job's run until it is over. Raises whatever wandb raises before it has taken a line."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read at import; offline must mean no traffic at all
    os.environ.setdefault("WANDB_INIT_TIMEOUT", str(INIT_SECONDS))
    shown = dict.fromkeys(("WANDB_QUIET", "WANDB_SHOW_WARNINGS", "WANDB_SHOW_ERRORS"), "true")
    os.environ |= {**shown, "WANDB_SILENT": "false"}  # `said` is to hold warnings and errors, no more
    import wandb

    job, mode, reason = inbox.job, inbox.job["mode"], None
    try:
        run = start(job, mode)
    except Exception as error:
        if mode == "offline" or not job["live"]:
            raise
        mode, reason = "offline", one_line(error)
        news(f"{reason}; offline files are written instead")
        wandb.teardown()  # without it, wandb would refuse the same run a second time
        run = start(job, mode)
    folder, record, failure = Path(run.dir).parent, Path(job["record"]), None
    try:
        for row in inbox.rows(record / "metrics.jsonl"):
            run.log(row)
        run.summary.update({key: value for key, value in inbox.summary.items() if key != "error"})
        run.finish(exit_code=0 if inbox.summary["status"] == "complete" else 1)
        wandb.teardown()  # ends wandb's service, which writes the files
    except Exception as error:
        failure = one_line(error)
        news(failure)
        inbox.over.wait()
    result = judge(folder, record, mode=mode, failure=failure or complaint(said.getvalue()))
    if result.whole and inbox.summary["status"] in ("complete", "failed"):
        remove_superseded(folder, run.id)
        note = Mirrored.of(record, mode=mode, lines=result.lines, folder=folder)
        write_mirrored(Path(job["folder"]), run.id, note)
    return result if result.reason else replace(result, reason=reason)


def start(job: dict[str, Any], mode: Any) -> Any:
    """The wandb run: group = dataset, job type = model, name = run id; `step` is the x axis of every curve.

    An own step axis (define_metric) rather than wandb's counter of log calls, which counts lines. Not `resume`: that
    would add to what is there. Raises OSError where wandb's folder cannot be written (wandb itself would turn to the
    system's temporary folder), and wandb's own errors.
    """
    import wandb

    folder = Path(job["folder"], "wandb")
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{folder}: no permission to write")
    run = wandb.init(
        **job["init"],
        mode=mode,
        dir=folder.parent,
        settings=wandb.Settings(**job["settings"], x_disable_stats=True, console="off"),
    )
    run.define_metric("step", hidden=True)
    run.define_metric("*", step_metric="step")
    return run


def judge(folder: Path, record: Path, *, mode: str, failure: str | None) -> Result:
    """What is mirrored in the end. Offline files are read back; of a server, wandb's silence is all that is known."""
    metrics = record / "metrics.jsonl"
    steps = [row["step"] for row in read_metrics(metrics)] if metrics.exists() else []
    if mode == "online":
        return Result(mode, 0 if failure else len(steps), failure is None, failure, str(folder))
    found, ended = read_steps(folder / f"run-{record.name}.wandb")
    pairs = list(zip(steps, found, strict=False))
    lines = next((number for number, pair in enumerate(pairs) if pair[0] != pair[1]), len(pairs))
    if ended and found == steps:
        return Result(mode, lines, True, None, str(folder))
    return Result(mode, lines, False, failure or f"{folder} is cut short; is the disk full?", str(folder))


def complaint(said: str) -> str | None:
    """The line by which wandb says that it gave up uploading; `finish` returns as if nothing had happened."""
    found = re.search(r"^wandb: (?:ERROR |WARNING (?=Fatal))(.*?)(?:\. |$)", said, re.MULTILINE)
    return found[1] if found else None


def one_line(error: Exception) -> str:
    """The first line of an error: wandb adds advice that does not apply here."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")


def _leave_after(seconds: float) -> None:
    threading.Event().wait(seconds)
    os._exit(1)


if __name__ == "__main__":
    main()
