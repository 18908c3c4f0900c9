"""Trains one run, or with -m every run of a Hydra multirun. Complete runs are skipped, interrupted
ones continued.

python scripts/train.py model=crope data=ptb seed=3
python scripts/train.py -m study=table1 seed=0,1,2
python scripts/train.py -m hydra/launcher=submitit_slurm study=table1    # docs/sweeps.md
python scripts/train.py --cfg job                      # the resolved configuration and the run's id
"""

import os
import sys
from typing import NoReturn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli import Parser, main_errors, refuse_repeats

with main_errors():  # Ctrl-C while modules load
    import argparse
    import warnings
    from importlib import metadata

    import hydra
    import yaml
    from hydra._internal.utils import get_args_parser  # nothing else says which flags Hydra takes
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig

    from crope.errors import ConfigError, StorageError, UserError, log_line
    from crope.runs.compose import (
        CONF_DIR,
        CONFIG_ERRORS,
        build_run,
        check_overrides,
        config_error,
        load_run,
        quote_path,
        register,
        resolve_precision,
    )

# Optional dependencies of pyproject.toml by launcher.
EXTRAS = {"joblib": "joblib", "submitit_slurm": "slurm", "submitit_local": "slurm", "ray": "ray"}
# Flags that would compose a run from other files, or read the command line in another way.
REFUSED = ("config_path", "config_name", "config_dir", "experimental_rerun", "package", "run")
failures: list[str] = []  # of this process


@hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="config")
def train(cfg: DictConfig) -> None:
    """One run, in this process or in one that a Hydra launcher started."""
    from crope.runs.run import execute  # torch: a misspelt key must not wait for it

    register()
    choices = HydraConfig.get().runtime.choices
    here = choices["hydra/launcher"] == "basic"
    try:
        run = resolve_precision(build_run(cfg, choices))
        outcome = execute(run)
        if outcome.signal:
            log_line(outcome.text)
            sys.exit(128 + outcome.signal)
        if outcome.status == "failed":
            raise UserError(outcome.text)
    except UserError as error:
        failures.append(str(error))
        if not here:
            # The only way out of another process; not every subclass can be pickled.
            raise UserError(str(error)) from None
        if isinstance(error, StorageError):  # Hydra would go on with its next run
            end_with_failures()
        return
    if here:
        from cli import main_errors, say_where  # a launcher's process would not find it

        with main_errors():  # Hydra would add a line to an error of stdout
            print(outcome.text, flush=True)
            say_where(run.config.results_dir)
    else:
        print(outcome.text, flush=True)


def read_command(words: list[str]) -> argparse.Namespace:
    """Hydra's flags and the overrides, which may stand on both sides of a flag. Raises ConfigError."""
    parser = get_args_parser()
    argparse.ArgumentParser.error = Parser.error  # type: ignore[method-assign]  # in one line
    given = parser.parse_intermixed_args(words)
    for name in REFUSED:
        if getattr(given, name):
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag}: leave it out; every run is composed from conf/")
    if given.multirun and (given.cfg or given.info):
        raise ConfigError(
            "--cfg and --info show one run; leave -m out, and give each key one value"
        )
    if given.resolve and not given.cfg:
        raise ConfigError("--resolve belongs to --cfg")
    refuse_repeats(given.overrides)
    return given


def check_launcher(overrides: list[str]) -> None:
    """Raises ConfigError for a launcher whose plugin is not installed."""
    for text in overrides:
        key, _, name = text.lstrip("+").partition("=")
        if key != "hydra/launcher" or name not in EXTRAS:
            continue
        try:
            metadata.version(f"hydra-{name.split('_')[0]}-launcher")
        except metadata.PackageNotFoundError:
            raise ConfigError(f"{text}: install it, pip install -e '.[{EXTRAS[name]}]'") from None


def main() -> None:
    words = [quote_path(word) for word in sys.argv[1:]]
    given = read_command(words)
    overrides = given.overrides
    flags = [word for word in words if word not in overrides]
    if not (given.help or given.hydra_help):
        values = check_overrides(overrides, multirun=given.multirun)
        check_launcher(overrides)
        overrides = [*overrides, *choose_scale(values)]
    if given.cfg == "job":
        run = load_run(overrides)
        print(f"# {run.run_id} at scale {run.scale}")
        print(yaml.safe_dump(run.container, sort_keys=False), end="")
        return
    sys.argv[1:] = [*flags, *overrides]  # Hydra reads it
    register()
    # Of conf/hydra/launcher.
    warnings.filterwarnings("ignore", message="(?s).*validated against ConfigStore schema")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra prints errors itself, over many lines
    try:
        train()
    except CONFIG_ERRORS as error:
        raise config_error(error) from error
    if failures:
        end_with_failures()


def end_with_failures() -> NoReturn:
    if len(failures) > 1:
        print(f"{len(failures)} runs failed:", file=sys.stderr)
    sys.exit("\n".join(f"error: {text}" for text in failures))


def choose_scale(values: dict[str, list[str]]) -> list[str]:
    """The scale as an override, where none is given: that of the study, else that of the machine."""
    planned = None
    if study := values.get("study"):
        from crope.runs.study import planned_scale  # no module that a run needs

        planned = planned_scale(study)  # also refuses a file that Hydra would ignore
    if "scale" in values:
        return []
    if planned is None:
        from crope.train.device import default_scale

        planned = default_scale()
    return [f"scale={planned}"]


if __name__ == "__main__":
    with main_errors():
        main()
