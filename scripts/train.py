"""Trains one run, or with -m every run of a Hydra multirun. Complete runs are skipped, interrupted
ones continued.

python scripts/train.py model=crope data=ptb seed=3
python scripts/train.py -m study=table1 seed=0,1,2
python scripts/train.py -m hydra/launcher=submitit_slurm study=table1    # docs/sweeps.md
python scripts/train.py model=rope --cfg job           # the resolved configuration and the run's id
"""

import os
import sys
from pathlib import Path
from typing import NoReturn

from cli import main_errors

with main_errors():  # Ctrl-C while modules load
    import hydra
    import yaml
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import DictConfig

    from crope.errors import StorageError, UserError, log_line
    from crope.plan.compose import (
        CONF_DIR,
        CONFIG_ERRORS,
        build_run,
        check_words,
        config_error,
        load_run,
        register,
    )
    from crope.plan.study import load_study
    from crope.records.status import render_runs


ENDED: list[Path] = []  # folders of the runs of this process


@hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="config")
def train(cfg: DictConfig) -> None:
    """Trains one run, in this process or in one that a Hydra launcher started."""
    from crope.runs.provenance import say_unknown_commit
    from crope.runs.run import execute  # torch: a misspelt key must not wait for it

    register()
    try:
        run = build_run(cfg, HydraConfig.get().runtime.choices)
        say_unknown_commit()
        outcome = execute(run)
        ENDED.append(run.path)
        if outcome.status == "failed":
            raise UserError(outcome.text)
    except StorageError as error:  # the next run of a multirun would fail as well
        sys.exit(f"error: {error}")
    except UserError as error:
        _fail(str(error))
    print(outcome.text, flush=True)
    if outcome.signal:
        sys.exit(128 + outcome.signal)


def _fail(text: str) -> NoReturn:
    """Ends the run with an error, of which Hydra would print more than a line. A multirun goes on,
    and raises its first error after the last run.
    """
    if HydraConfig.get().mode != RunMode.MULTIRUN:
        sys.exit(f"error: {text}")
    log_line(f"error: {text}")
    raise UserError(text)  # not a subclass: not each can be pickled


def main() -> None:
    words = sys.argv[1:]
    if words[-2:] == ["--cfg", "job"]:
        run = load_run(words[:-2])
        print(f"# {run.run_id} at scale {run.scale}")
        print(yaml.safe_dump(run.container, sort_keys=False), end="")
        return
    register()
    check_words(words)
    for word in words:
        if word.startswith("study="):  # of a wrong one Hydra would train the defaults
            load_study(word.removeprefix("study="))
    os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra prints errors itself, over many lines
    try:
        train()
    except CONFIG_ERRORS as error:
        raise config_error(error) from error
    finally:
        if len(ENDED) > 1:  # by another launcher than Hydra's own, runs end in other processes
            print(render_runs(ENDED))


if __name__ == "__main__":
    with main_errors():
        main()
