"""Trains one run, or with -m every run of a Hydra multirun. Complete runs are skipped, interrupted
ones continued.

python scripts/train.py model=crope data=ptb seed=3
python scripts/train.py -m study=table1 seed=0,1,2
python scripts/train.py -m hydra/launcher=submitit_slurm study=table1    # docs/sweeps.md
python scripts/train.py --cfg job                      # the resolved configuration and the run's id
"""

from crope.errors import ConfigError, Parser, UserError, log_line, main_errors

with main_errors():  # Ctrl-C while modules load
    import argparse
    import os
    import sys
    import warnings
    from importlib import metadata

    import hydra
    import yaml
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig

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
    from crope.runs.run import execute
    from crope.train.device import default_scale

# Optional dependencies of pyproject.toml by launcher.
EXTRAS = {"joblib": "joblib", "submitit_slurm": "slurm", "submitit_local": "slurm", "ray": "ray"}
failures: list[str] = []  # of this process


@hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="config")
def train(cfg: DictConfig) -> None:
    """One run, in this process or in one that a Hydra launcher started."""
    register()
    try:
        outcome = execute(resolve_precision(build_run(cfg, HydraConfig.get().runtime.choices)))
        if outcome.signal:
            log_line(outcome.text)
            sys.exit(128 + outcome.signal)
        if outcome.status == "failed":
            raise UserError(outcome.text)
    except UserError as error:
        failures.append(str(error))
        if HydraConfig.get().runtime.choices["hydra/launcher"] != "basic":
            # The only way out of another process; not every subclass can be pickled.
            raise UserError(str(error)) from None
        return
    with main_errors():  # Hydra would add a line to an error of stdout
        print(outcome.text, flush=True)


def check_launcher(overrides: list[str]) -> None:
    """Raises ConfigError for a launcher whose plugin is not installed."""
    for name in (text.split("=")[1] for text in overrides if text.startswith("hydra/launcher=")):
        try:
            metadata.version(f"hydra-{name.split('_')[0]}-launcher")
        except metadata.PackageNotFoundError:
            if name in EXTRAS:
                raise ConfigError(
                    f"hydra/launcher={name}: install it, pip install -e '.[{EXTRAS[name]}]'"
                ) from None


def main() -> None:
    sys.argv[1:] = map(quote_path, sys.argv[1:])
    overrides = [
        text
        for text in sys.argv[1:]
        if text.startswith("~") or ("=" in text and not text.startswith("-"))
    ]
    given = check_overrides(overrides, multirun=bool({"-m", "--multirun"} & set(sys.argv)))
    check_launcher(overrides)
    planned = None
    if study := given.get("study"):
        from crope.runs.study import planned_scale  # no module that a run needs

        planned = planned_scale(study)  # also refuses a file that Hydra would ignore
    if "scale" not in given:
        overrides.append(f"scale={planned or default_scale()}")
        sys.argv.append(overrides[-1])
    if "--cfg=job" in sys.argv or ({"--cfg", "-c"} & set(sys.argv) and "job" in sys.argv):
        if {"-m", "--multirun"} & set(sys.argv):
            raise ConfigError("--cfg job shows one run; leave -m out, and give each key one value")
        run = load_run(overrides)
        print(f"# {run.run_id} at scale {run.scale}")
        print(yaml.safe_dump(run.container, sort_keys=False), end="")
        return
    register()
    # Of conf/hydra/launcher.
    warnings.filterwarnings("ignore", message="(?s).*validated against ConfigStore schema")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra prints errors itself, over many lines
    argparse.ArgumentParser.error = Parser.error  # and the usage of its own parser before one
    try:
        train()
    except CONFIG_ERRORS as error:
        raise config_error(error) from error
    if len(failures) > 1:
        print(f"{len(failures)} runs failed:", file=sys.stderr)
    if failures:
        sys.exit("\n".join(f"error: {text}" for text in failures))


if __name__ == "__main__":
    with main_errors():
        main()
