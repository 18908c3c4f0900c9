"""A sweep whose runs are made by other processes: joblib, submitit (SLURM), Ray, through Hydra's launchers.

The record is the only memory. Before: the sweep is expanded here, runs that are complete are not launched. After: what
each run's folder says decides, whatever the launcher returned or failed with; a process that died returns nothing.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.types import HydraContext
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from crope.compose import CONF_DIR, Run, check_overrides, compose_config, explain, load_run
from crope.config import Config
from crope.errors import ConfigError, UserError
from crope.execute import Outcome, failed_since, is_done
from crope.interrupt import Stopped
from crope.job import job, waits_here
from crope.lock import LOCK, holder, is_taken
from crope.workers import POLL_S

# Launcher (a file of conf/hydra/launcher) -> its plugin, and the extra of pyproject.toml that installs it.
LAUNCHERS = {
    "joblib": ("hydra_joblib_launcher", "joblib"),
    "submitit_local": ("hydra_submitit_launcher", "slurm"),
    "submitit_slurm": ("hydra_submitit_launcher", "slurm"),
    "ray": ("hydra_ray_launcher", "ray"),
}
ON_OTHER_MACHINES = ("submitit_slurm", "ray")


@dataclass(frozen=True)
class Job:
    """One run of the sweep and the overrides that name it wherever it is made: paths whole, nothing left to `auto`."""

    run: Run
    overrides: list[str]


def run_sweep(launcher: str, overrides: Sequence[str]) -> tuple[list[Run], list[Outcome]]:
    """The runs, and their outcomes, of the sweep that `overrides` (without Hydra's flags) stand for, each run once.

    Raises ConfigError before anything is launched for a launcher or a run that cannot be had, UserError where the
    launcher itself fails and no run was begun, Stopped on SIGTERM.
    """
    check_launcher(launcher, overrides)
    check_overrides(overrides)
    fixed, jobs = plan(overrides)
    since = time.time()
    left = [made for made in jobs if not _is_sound(made.run)]
    if len(left) < len(jobs):
        print(f"{len(jobs) - len(left)} of {len(jobs)} runs are complete already", flush=True)
    said, trouble = launch(fixed, left) if left else ({}, "")
    outcomes = [Outcome(made.run.run_id, "skipped", "") for made in jobs if made not in left]
    for made in left:
        outcomes.append(_judge(made.run, said.get(made.run.run_id), since, trouble))
    if trouble and not any(made.run.path.exists() for made in jobs):  # nothing was begun
        raise UserError(f"hydra/launcher={launcher}: {trouble}")
    return [made.run for made in jobs], outcomes


def check_launcher(launcher: str, overrides: Sequence[str]) -> None:
    """Raises ConfigError for what would otherwise end in a traceback, or in runs that nobody meant."""
    if launcher not in LAUNCHERS:
        known = ", ".join(["basic", *LAUNCHERS])
        raise ConfigError(f"command line: there is no hydra/launcher={launcher}; there are: {known}")
    plugin, extra = LAUNCHERS[launcher]
    if importlib.util.find_spec("hydra_plugins") is None or not importlib.util.find_spec(f"hydra_plugins.{plugin}"):
        raise ConfigError(f"hydra/launcher={launcher} needs a package more: pip install -e '.[{extra}]'")
    if launcher in ON_OTHER_MACHINES:
        for key, value in (("scale", "paper"), ("train.precision", "bf16")):
            if not any(text.startswith(f"{key}=") for text in overrides):
                text = "what fits this machine need not fit those that make the runs"
                raise ConfigError(f"hydra/launcher={launcher}: name {key} (as {key}={value}); {text}")


def _prepare_ray(master: DictConfig) -> None:
    """A Ray of this command's own: on the loopback address, and not asked for a GPU that is not there."""
    ray = master.hydra.launcher.get("ray")
    if not ray or ray.init.get("address") != "local":
        return
    if ray.remote.get("num_gpus") and not torch.cuda.is_available():  # its tasks would wait for ever
        text = "this machine has no CUDA device; add hydra.launcher.ray.remote.num_gpus=0"
        raise ConfigError(f"hydra.launcher.ray.remote.num_gpus={ray.remote.num_gpus}: {text}")
    # The only switch that binds every port of Ray to 127.0.0.1, whatever its name says; read when Ray is imported.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def plan(overrides: Sequence[str]) -> tuple[list[str], list[Job]]:
    """(the overrides that all runs share, the jobs in the order of Hydra's own sweeper)."""
    parse = OverridesParser.create().parse_overrides
    parsed = parse(list(overrides))
    fixed = [text for text, override in zip(overrides, parsed, strict=True) if not override.is_sweep_override()]
    master = compose_config(fixed)
    if "BasicSweeper" not in master.hydra.sweeper._target_:
        raise ConfigError("hydra/sweeper: other processes can be given Hydra's own sweeper alone")
    _prepare_ray(master)
    axes = [f"{key}={values}" for key, values in (master.hydra.sweeper.params or {}).items()]
    task = [text for text in overrides if not _is_hydras(text)]
    jobs: dict[str, Job] = {}
    (grid,) = BasicSweeper.split_arguments(parse([*axes, *task]), None)
    for choice in grid:
        run = load_run([*_only_hydras(fixed), *choice])
        settled = _settled(run)
        rest = [text for text in choice if text.split("=", 1)[0] not in settled]
        jobs.setdefault(run.run_id, Job(run, [*rest, *settled.values()]))
    return [*fixed, *_paths(master).values()], list(jobs.values())


def launch(fixed: Sequence[str], jobs: Sequence[Job]) -> tuple[dict[str, Outcome], str]:
    """What the jobs said of themselves, by run; and in one line why the launcher gave up, or ''."""
    waits_here()
    try:
        with initialize_config_dir(str(CONF_DIR), version_base="1.3", job_name="train"), _raised(signal.SIGTERM):
            cfg = compose("config", overrides=list(fixed), return_hydra_config=True)
            context = HydraContext(config_loader=GlobalHydra.instance().config_loader(), callbacks=Callbacks(cfg))
            launcher = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=job, config=cfg)
            returns = launcher.launch([made.overrides for made in jobs], initial_job_idx=0)
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error) from error
    except Exception as error:  # of one job, in the launcher's words; what became of the others is in their records
        print(error, file=sys.stderr)
        return {}, " ".join(str(error).split())[:200] or type(error).__name__
    found = [outcome for outcome in map(_returned, returns) if outcome]
    return {outcome.run_id: outcome for outcome in found}, ""


def _is_sound(run: Run) -> bool:
    """Complete and whole; a damaged record is left to its job, which says what is wrong with it."""
    try:
        return is_done(run.path)
    except UserError:
        return False


def _judge(run: Run, said: Outcome | None, since: float, trouble: str) -> Outcome:
    """A run's state as its folder has it; waits for a process that still has the run."""
    if is_taken(run.path):
        print(f"{run.run_id}: {holder(run.path / LOCK)} trains it; waiting", flush=True)
        while is_taken(run.path):
            time.sleep(POLL_S)
    try:
        if is_done(run.path):
            return Outcome(run.run_id, "complete", "")
    except UserError as error:
        return Outcome(run.run_id, "failed", f"{run.run_id}: {error}")
    if said and said.status == "complete":
        text = f"complete where it was made, but not in {run.path} here; all machines must share results_dir"
        return Outcome(run.run_id, "failed", f"{run.run_id}: {text}")
    if said and said.status in ("failed", "stopped"):
        return said
    if failure := failed_since(run.path, since):
        return failure
    why = f"its process ended without a word ({trouble})" if trouble else "not made"
    return Outcome(run.run_id, "lost", f"{run.run_id}: {why}; the same command goes on from its last checkpoint")


def _returned(result: JobReturn) -> Outcome | None:
    value: Any = result._return_value  # its property would raise, and print lines of its own
    return value if isinstance(value, Outcome) else None


def _settled(run: Run) -> dict[str, str]:
    """Overrides, by key, of what another machine could take otherwise: a precision of `auto`, relative paths."""
    return {"train.precision": f"train.precision={run.config.train.precision}"} | _paths(run.config)


def _paths(config: Config | DictConfig) -> dict[str, str]:
    paths = {"results_dir": config.results_dir, "data_dir": config.data_dir}
    return {key: f"{key}={_quoted(str(Path(path).absolute()))}" for key, path in paths.items()}


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _is_hydras(text: str) -> bool:
    return text.lstrip("+~").startswith(("hydra.", "hydra/"))


def _only_hydras(overrides: Sequence[str]) -> list[str]:
    return [text for text in overrides if _is_hydras(text)]


@contextmanager
def _raised(number: signal.Signals) -> Iterator[None]:
    """The signal as an exception: a launcher that is left so ends the processes that it started."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise Stopped("runs that were under way go on from their last checkpoint", number)

    before = signal.signal(number, leave)
    try:
        yield
    finally:
        signal.signal(number, before)
