"""What the command-line scripts share: Hydra's entry point, errors of one line, exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
import yaml
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from crope.compose import (
    CONF_DIR,
    Run,
    build_run,
    check_overrides,
    explain,
    load_run,
    register,
    resolve_precision,
    with_hydra,
)
from crope.errors import ConfigError, UserError, storage_error
from crope.lock import is_taken

if TYPE_CHECKING:  # imports torch
    from crope.execute import Outcome


@contextmanager
def main_errors() -> Iterator[None]:
    """`error: <one line>` and exit status 1 for the user's mistakes; a stop on request ends as shells expect."""
    from crope.interrupt import Stopped

    try:
        _check_working_folder()
        yield
    except UserError as error:
        sys.exit(f"error: {error}")
    except Stopped as stopped:
        print(f"{stopped}; the same command goes on from there", file=sys.stderr)
        sys.exit(128 + stopped.signal_number)
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command goes on from the last checkpoint")
    except OSError as error:
        sys.exit(f"error: {_os_error_text(error)}")


def _check_working_folder() -> None:
    """Before torch is imported, which ends the process with a message of its own where there is none."""
    try:
        Path.cwd()
    except OSError:
        text = "the working folder was removed; go to one that exists (cd) and type the command again"
        raise UserError(text) from None


def _os_error_text(error: OSError) -> str:
    known = storage_error(error, "file")
    return str(known) if known else f"{error.filename or 'file'}: {error.strerror or error}"


def default_scale() -> tuple[str, str]:
    """`paper` where there is a CUDA device, else `quick`; and why."""
    import torch

    if torch.cuda.is_available():
        return "paper", "the default with a CUDA device"
    return "quick", "the default without a CUDA device; SCALE=paper is the paper's"


def run_hydra(arguments: Sequence[str]) -> int:
    """Runs train.py's command line. Returns the exit status: 1 if any run failed."""
    overrides = [text for text in arguments if not text.startswith("-")]
    asks_only = any(text in ("--help", "-h", "--hydra-help", "--version", "--info", "-i") for text in arguments)
    launcher = launcher_of(overrides)
    if launcher != "basic" and not asks_only and not {"--cfg", "-c"} & set(arguments):
        return _run_elsewhere(launcher, arguments, overrides)
    if not asks_only and not any(text.startswith("scale=") for text in overrides):
        arguments = [*arguments, f"scale={default_scale()[0]}"]
        overrides = [*overrides, arguments[-1]]
    if "--cfg" in arguments or "-c" in arguments:
        return _print_config([text for text in overrides if text not in ("job", "all", "hydra")])
    check_overrides(overrides)
    register()
    outcomes: list[Outcome] = []
    runs: list[Run] = []
    busy: list[Run] = []

    @hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="config")
    def job(cfg: DictConfig) -> None:
        from hydra.core.hydra_config import HydraConfig

        try:
            run = resolve_precision(build_run(with_hydra(cfg, HydraConfig.get())))
        except UserError as error:  # Hydra would show only the first one of a sweep
            from crope.execute import Outcome

            outcomes.append(Outcome("", "failed", f"error: {error}"))
            print(outcomes[-1].text, flush=True)
            return
        runs.append(run)
        if is_taken(run.path):
            print(f"{run.run_id}: another process trains it; after the other runs", flush=True)
            busy.append(run)
        else:
            finish([run])

    def finish(some: list[Run]) -> None:
        from crope.workers import execute_all

        for outcome in execute_all(some, workers=1):
            print(outcome.text, flush=True)
            outcomes.append(outcome)

    # Hydra prints its own many lines unless told to let exceptions through.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv[1:] = arguments
    try:
        job()
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error) from error
    if busy:
        finish(busy)
    return _conclude(runs, outcomes)


def _conclude(runs: Sequence[Run], outcomes: Sequence[Outcome]) -> int:
    """Results of a sweep and the list of what failed, where there was more than one run; and the exit status."""
    if len(runs) > 1:
        from crope.sweep_table import render_sweep

        print(f"\n{render_sweep(runs)}", flush=True)
    failed = [outcome for outcome in outcomes if outcome.status not in ("complete", "skipped")]
    if failed and len(outcomes) > 1:
        texts = dict.fromkeys(outcome.text for outcome in failed)  # one cause may stop many
        print(f"{len(failed)} of {len(outcomes)} runs failed:", *texts, sep="\n  ")
    return 1 if failed else 0


def launcher_of(overrides: Sequence[str]) -> str:
    """The Hydra launcher that the command line names last; `basic` makes the runs in this process."""
    named = [text.split("=", 1)[1] for text in overrides if text.startswith("hydra/launcher=")]
    return named[-1] if named else "basic"


def _run_elsewhere(launcher: str, arguments: Sequence[str], overrides: Sequence[str]) -> int:
    from crope.sweep import ON_OTHER_MACHINES, run_sweep

    if unknown := [text for text in arguments if text.startswith("-") and text not in ("-m", "--multirun")]:
        raise ConfigError(f"{unknown[0]}: with hydra/launcher={launcher}, -m is the only flag")
    if launcher not in ON_OTHER_MACHINES and not any(text.startswith("scale=") for text in overrides):
        overrides = [*overrides, f"scale={default_scale()[0]}"]
    runs, outcomes = run_sweep(launcher, overrides)
    made = sum(outcome.status in ("complete", "skipped") for outcome in outcomes)
    print(f"{made} of {len(outcomes)} runs are complete", flush=True)
    if len(outcomes) == 1 and made == 0:
        print(outcomes[0].text)
    return _conclude(runs, outcomes)


def _print_config(overrides: Sequence[str]) -> int:
    run = load_run(overrides)
    print(f"# {run.run_id} at scale {run.scale}")
    print(yaml.safe_dump(run.container, sort_keys=False), end="")
    return 0
