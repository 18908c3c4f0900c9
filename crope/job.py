"""What a launcher runs in a process of its choice: one run of a sweep. Imported there when `job` is unpickled."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
import warnings

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from crope.compose import build_run, register, with_hydra
from crope.errors import UserError
from crope.execute import Outcome, execute
from crope.interrupt import REQUEUE, Stopped, StopRequest

# Our files of conf/hydra/launcher have the plugins' own names, so Hydra 1.3 checks them against the plugins' schemas,
# which is what we want, and says on every composition that 1.4 will not.
warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/\w+' is validated against ConfigStore schema")

# In a fresh process, before anything is composed or resolved there.
register()

_launching: int | None = None  # the process that waits for the launcher


def waits_here() -> None:
    """Says that this process is the sweep's own."""
    global _launching
    _launching = os.getpid()


def job(cfg: DictConfig) -> Outcome:
    """The task function: makes one run, in whatever process the launcher calls it. Its output is the job's log.

    Raises no Exception, since a launcher would drop the other jobs with it. Asked by SIGUSR2, the run is saved
    and the signal goes to the launcher's handler, which puts the job back into the queue and ends the process.
    """
    run_id = ""
    try:
        run = build_run(with_hydra(cfg, HydraConfig.get()))
        run_id = run.run_id
        with StopRequest() as stop:
            outcome = execute(run, stop=stop)
    except UserError as error:
        outcome = Outcome(run_id, "failed", f"{run_id}: {error}")
    except Stopped as stopped:
        outcome = Outcome(run_id, "stopped", f"{run_id} {stopped.where}")
        if stopped.signal_number == REQUEUE:
            outcome = _requeue(outcome)
        elif os.getpid() == _launching:  # joblib's n_jobs=1 makes the runs here: the whole sweep is asked to stop
            raise
    except Exception as error:  # of the pipeline itself
        traceback.print_exc()
        outcome = Outcome(run_id, "failed", f"{run_id}: {type(error).__name__}: {error}")
    else:
        if outcome.status == "failed":
            print(
                json.loads((run.path / "summary.json").read_text(encoding="utf-8"))["error"]["traceback"],
                file=sys.stderr,
            )
    print(outcome.text, flush=True)
    return outcome


def _requeue(saved: Outcome) -> Outcome:
    """Does not return where the job went back into the queue.

    The launcher's handler is called with the signal shut out: a scheduler may send it again, and the handler entered a
    second time finds its own half-written file and gives up.
    """
    print(saved.text, flush=True)
    handler = signal.signal(REQUEUE, signal.SIG_IGN)
    try:
        if callable(handler):
            handler(REQUEUE, None)
    except Exception as error:  # its limit of restarts is reached
        return Outcome(saved.run_id, "stopped", f"{saved.text}; {' '.join(str(error).split())}")
    finally:
        signal.signal(REQUEUE, handler)
    return saved
