"""Studies: conf/study/*.yaml expanded into runs and table cells.

A study file holds the axes of a Hydra multirun (`hydra.sweeper.params`), so `train.py -m
study=table1`, `make reproduce` and the report expand the same list.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from crope.config import AblationConfig, DataConfig, ModelConfig
from crope.errors import ConfigError, log_line, one_line
from crope.plan.compose import (
    GROUPS,
    Run,
    check,
    check_label,
    composed,
    config_error,
    group_files,
    group_values,
    typed,
    variant_name,
)
from crope.plan.identity import cell_key

# Of scales with equally many runs the first one is reported.
SCALES = ("paper", "medium", "quick", "smoke")
TABLES = ("table1", "table2")
GROUP_AXES = ("model", "data", "ablation")  # a cell has a field of each; composed without Hydra
OFFLINE = "tiny"  # the study in place of Tables 1 and 2 where none of their corpora can be had


@dataclass(frozen=True)
class Cell:
    """One cell of a table or study: its runs have this `cell_key`, whatever their seed.

    setting   the values of the study's other axes that have several: "train.lr=0.003"
    planned   the seeds of the study's file
    """

    study: str
    dataset: str
    row: str
    model: str
    setting: str
    scale: str
    cell_key: str
    planned: tuple[int, ...]


@dataclass(frozen=True)
class Study:
    """A grid of runs as its file plans it.

    axes    the values of each axis but seed and scale; the first axis varies slowest
    seeds   fixed before the runs
    scale   at which its runs are; None: any
    """

    name: str
    axes: Mapping[str, list[str]]
    seeds: tuple[int, ...]
    scale: str | None

    @property
    def setting_axes(self) -> list[str]:
        """Lists the axes of which a setting has a value each, in its order."""
        axes = self.axes.items()
        return [axis for axis, values in axes if len(values) > 1 and axis not in GROUP_AXES]

    def first_seeds(self, count: int | None) -> tuple[int, ...]:
        """Lists the first `count` planned seeds (None: all), then the integers after the largest."""
        # Not from len(seeds) on: a plan may begin at a later seed, and would be repeated.
        after = max(self.seeds) + 1
        return (*self.seeds, *range(after, after + (count or 0)))[:count]

    def cells(self, scale: str) -> list[Cell]:
        """Lists the cells at the scale that the file fixes, else at `scale`; a smoke test shows no
        study of another scale.
        """
        if scale == "smoke" and self.scale not in (None, scale):
            return []
        cells = []
        for choice, run in self.expand(self.scale or scale):
            setting = ", ".join(f"{axis}={choice[axis]}" for axis in self.setting_axes)
            names = (self.name, run.dataset, run.row, run.model, setting, run.scale)
            cells.append(Cell(*names, cell_key(run.container), self.seeds))
        return cells

    def expand(
        self, scale: str, without: Collection[str] = (), overrides: Sequence[str] = ()
    ) -> list[tuple[dict[str, str], Run]]:
        """Lists every choice (axis -> value) of corpora that are not in `without`, and its run, as
        of one seed. Raises ConfigError.
        """
        corpora = [name for name in self.axes["data"] if name not in without]
        values = itertools.product(*{**self.axes, "data": corpora}.values())
        choices = [dict(zip(self.axes, combination, strict=True)) for combination in values]
        common = (f"scale={scale}", *overrides)  # a tuple: the base is composed once for it
        _base(common)  # raises for a wrong option, which is no fault of the study
        try:
            expanded = list(zip(choices, compose_runs(choices, common), strict=True))
            seen: dict[Any, Any] = {}
            for choice, run in expanded:
                key = (cell_key(run.container), run.model, run.row)
                if key in seen:  # its runs would count twice
                    raise ConfigError(
                        f"{seen[key]} and {choice} are the same run; give each value once"
                    )
                seen[key] = choice
        except ConfigError as error:
            raise ConfigError(f"conf/study/{self.name}.yaml: {error}") from error
        return expanded


@cache
def load_study(name: str) -> Study:
    """Reads conf/study/<name>.yaml. Raises ConfigError if it is missing or no grid."""
    content = group_values("study", name)

    def wrong(text: str) -> ConfigError:
        return ConfigError(f"conf/study/{name}.yaml: {text}")

    try:
        params = dict(content["hydra"]["sweeper"]["params"])
    except (KeyError, TypeError, ValueError):
        params = {}
    # Without it Hydra reads the axes as keys below `study`, and trains the defaults once.
    if "# @package _global_" not in group_files("study")[name].read_text(encoding="utf-8"):
        raise wrong("give it the first line `# @package _global_`")
    if others := sorted(content.keys() - {"hydra"}):
        raise wrong(
            f"{', '.join(others)}: make it an axis of hydra.sweeper.params, also with one value;"
            " train.py alone would read it here"
        )
    if params and content["hydra"].get("mode") != "MULTIRUN":
        raise wrong("write `mode: MULTIRUN` below `hydra:`; train.py alone would train no axis")
    for axis, values in params.items():
        if axis.startswith("data."):
            raise wrong(
                f"{axis}: write a file of conf/data for each value; its name is a value of data"
            )
        if not isinstance(values, str | int | float):
            raise wrong(f"{axis}: write its values with commas between them: a,b")
    try:
        axes = {axis: _axis_values(axis, values) for axis, values in params.items()}
    except HydraException as error:
        raise wrong(one_line(error)) from error
    if not {"data", "model"} <= axes.keys():
        raise wrong("give the axes data and model in hydra.sweeper.params")
    for axis in ("scale", "train.precision"):
        if len(axes.get(axis, ())) > 1:
            raise wrong(
                f"{axis}: give one value, because the runs of a study are compared; write a file"
                " for each"
            )
    seeds, (scale,) = axes.pop("seed", ["0"]), axes.pop("scale", [None])
    if not all(seed.isdecimal() for seed in seeds) or len({*map(int, seeds)}) < len(seeds):
        raise wrong(
            f"seed: {','.join(seeds)} must be integers from 0 with commas between them, each once"
        )
    return Study(name, axes, tuple(map(int, seeds)), scale)


def _axis_values(name: str, values: object) -> list[str]:
    """Expands the values of an axis as Hydra does: `0,1`, `range(0,5)`."""
    override = OverridesParser.create().parse_override(f"{name}={values}")
    if override.is_sweep_override():
        return list(override.sweep_string_iterator())
    return [str(override.value())]


def common_scale(studies: Iterable[str]) -> str | None:
    """Returns the scale that these studies' files fix; None if none does. Raises ConfigError if
    they differ.
    """
    scales = {study: load_study(study).scale for study in studies}
    common, *others = set(scales.values())
    if others:
        plans = ", ".join(f"{study} at {scale or 'any scale'}" for study, scale in scales.items())
        raise ConfigError(
            f"these studies are planned at different scales ({plans}); run one after the other"
        )
    return common


def study_runs(
    studies: Sequence[str] = TABLES,
    *,
    scale: str,
    seeds: int | None = None,
    without: Collection[str] = (),
    overrides: Sequence[str] = (),
) -> list[Run]:
    """Lists each run of the studies once, seeds outermost.

    seeds       of each study, as in `Study.first_seeds`
    without     datasets that cannot be had
    overrides   of runtime, tracker and paths
    """
    runs: dict[str, Run] = {}
    for study in map(load_study, studies):
        for _, run in study.expand(scale, without, overrides):
            for seed in study.first_seeds(seeds):
                seeded = replace(run, config=replace(run.config, seed=seed))
                runs[seeded.run_id] = seeded
    # A table with one seed in every cell says more than one with all seeds in some.
    return sorted(runs.values(), key=lambda run: run.config.seed)


@cache
def expected_cells(scale: str) -> list[Cell]:
    """Lists the cells of all studies but the two tables; says on stderr which file is no study."""
    group_values("scale", scale)  # a misspelt scale is no fault of a study
    cells = []
    for study in group_files("study"):
        try:
            cells += load_study(study).cells(scale) if study not in TABLES else []
        except ConfigError as error:
            log_line(f"{error}; left out")
    return cells


def table_cells(scale: str) -> list[Cell]:
    """Lists the cells of Tables 1 and 2 in the paper's order."""
    return [cell for table in TABLES for cell in load_study(table).cells(scale)]


def compose_runs(choices: Iterable[Mapping[str, str]], overrides: Sequence[str]) -> list[Run]:
    """Composes one run per choice (axis -> value), as Hydra would from `overrides` and the choice.

    Hydra needs 0.2 s per composition, so it composes only combinations of groups other than model,
    data and ablation. These sections and single keys are set afterwards.
    """
    runs = []
    for choice in choices:
        groups, of_model, keys = [], [], []
        for axis, value in sorted(choice.items()):
            if axis.startswith("model."):
                of_model.append((axis.removeprefix("model."), value))
            elif axis not in GROUPS:
                keys.append((axis, value))
            elif axis not in GROUP_AXES:
                groups.append(f"{axis}={value}")
        base = _base((*overrides, *groups), choice.get("ablation", ""), tuple(keys))
        name, dataset = choice["model"], choice["data"]
        width = base.config.ablation.d_model
        model = _model(name, width, base.scale, tuple(of_model))
        config = replace(base.config, model=model, data=_data(dataset))
        check(config)
        runs.append(replace(base, config=config, model=variant_name(name, model), dataset=dataset))
    return runs


@cache
def _model(name: str, width: int, scale: str, keys: tuple[tuple[str, str], ...]) -> ModelConfig:
    # In the order of conf/config.yaml: the row's width, the model's file, the scale's.
    values = {"d_model": width} | group_values("model", name)
    return typed(ModelConfig, values | group_values("scale", scale).get("model", {}) | dict(keys))


@cache
def _data(name: str) -> DataConfig:
    data = typed(DataConfig, group_values("data", name))
    check_label(name, data)
    return data


@cache
def _base(overrides: tuple[str, ...], row: str = "", keys: tuple[tuple[str, str], ...] = ()) -> Run:
    """Returns a run of this row (default: that of conf/config.yaml); its model and data are still
    to be replaced.
    """
    cfg, choices = deepcopy(composed(overrides))
    row = row or choices["ablation"]
    try:
        if row != choices["ablation"]:
            cfg.ablation = typed(AblationConfig, group_values("ablation", row))
        for key, value in keys:
            OmegaConf.update(cfg, key, value)
        config: Any = OmegaConf.to_object(cfg)  # a third of the time of `build_run`
    except OmegaConfBaseException as error:
        raise config_error(error) from error
    return Run(config, choices["model"], choices["data"], row, choices["scale"])
