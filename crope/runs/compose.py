"""From the command line and conf/ to a checked run. Most of what the project uses of Hydra is here.

Hydra accepts some mistakes (`+foo=1` enters a typed config) and explains others over many lines.
Here every mistake is a ConfigError of one line with the nearest valid name.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from crope.config import ROOT, Config, DataConfig, ModelConfig, keys, problems
from crope.errors import ConfigError, one_line
from crope.runs.hints import nearest
from crope.runs.identity import run_hash

CONF_DIR = ROOT / "conf"
Schema = TypeVar("Schema")
GROUPS = ("model", "data", "ablation", "scale", "runtime", "tracker", "study")
PATHS = ("results_dir", "data_dir")
DATA_KEYS = ("data.corpus", "data.hub", "data.books")  # no keys of the command line
CONFIG_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError)
# Of Hydra's own keys, what a user may set. The others move folders that Hydra keeps and we do not
# (`hydra.run.dir`), the process (`hydra.job.chdir`), or read the command line in another way.
HYDRA_KEYS = re.compile(r"hydra/launcher|hydra\.launcher\..+|hydra\.verbose")

TYPES = {"Integer": "an integer, such as 100", "Float": "a number", "valid bool": "true or false"}
# What `special` tells of a run: not what its name says, nor the precision, which depends on the
# machine.
TOLD = ("ablation.", "model.", "tokenizer.", "train.", "eval.")
UNTOLD = ("model.position", "model.projection", "model.attention", "train.precision")


@dataclass(frozen=True)
class Run:
    """One run, fully resolved: what to compute, and the names of the group files that were chosen."""

    config: Config
    model: str
    dataset: str
    row: str
    scale: str

    @property
    def container(self) -> dict[str, Any]:
        return asdict(self.config)

    @property
    def names(self) -> dict[str, str]:
        """As in summary.json."""
        return {"model": self.model, "dataset": self.dataset, "row": self.row, "scale": self.scale}

    @property
    def title(self) -> str:
        """The run's id without its hash."""
        return f"{self.model}-{self.dataset}-{self.row}-s{self.config.seed}"

    @property
    def run_id(self) -> str:
        return f"{self.title}-{run_hash(self.container)}"

    @property
    def path(self) -> Path:
        return Path(self.config.results_dir) / "runs" / self.run_id

    @property
    def lock(self) -> Path:
        """File that is locked while the run is trained; outside `path`, so that a run that cannot
        start leaves none.
        """
        return Path(self.config.results_dir) / "locks" / f"{self.run_id}.lock"


def load_run(overrides: Sequence[str] = ()) -> Run:
    """Composes conf/ with overrides as on the command line. Raises ConfigError."""
    cfg = compose_config(overrides)
    return resolve_precision(build_run(cfg, cfg.hydra.runtime.choices))


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """The composed configuration, unresolved, with Hydra's own node `hydra`. Raises ConfigError."""
    register()
    check_overrides(overrides)
    try:
        # Within a job Hydra is there already, and is no second time.
        running = GlobalHydra.instance().is_initialized()
        with nullcontext() if running else initialize_config_dir(str(CONF_DIR), version_base="1.3"):
            return compose("config", overrides=list(overrides), return_hydra_config=True)
    except CONFIG_ERRORS as error:
        raise config_error(error) from error


def build_run(cfg: DictConfig, choices: Mapping[str, str]) -> Run:
    """The typed, checked run of a composed configuration; train.precision may still be `auto`.

    `choices` names the chosen file of each group. Raises ConfigError.
    """
    config = typed(Config, OmegaConf.masked_copy(cfg, sorted({*map(str, cfg)} - {"hydra"})))
    # Hydra reads `true` as a bool, which becomes "True".
    config.runtime.compile = config.runtime.compile.lower()
    check(config)
    check_label(choices["data"], config.data)
    model = variant_name(choices["model"], config.model)
    return Run(config, model, choices["data"], choices["ablation"], choices["scale"])


def variant_name(name: str, model: ModelConfig) -> str:
    """The name of a model's file; `name+value` where another position, projection or attention was
    chosen than the file's.
    """
    of_file = {"attention": "softmax"} | group_values("model", name)
    for key in ("position", "projection", "attention"):
        value = getattr(model, key)
        if value != of_file.get(key):
            name += f"+{value}"
    return name


def typed(schema: type[Schema], values: Any) -> Schema:
    """An object of the schema's dataclass.

    Raises ConfigError for an unknown key or a value of the wrong type.
    """
    try:
        # The merge refuses keys that `+key=value` added.
        merged = OmegaConf.merge(OmegaConf.structured(schema), values)
        return OmegaConf.to_object(merged)  # type: ignore[return-value]
    except (ValueError, OmegaConfBaseException) as error:
        raise config_error(error) from error


def check(config: Config) -> None:
    """Raises ConfigError for the first value or combination that the types allow and the project
    does not.
    """
    for key, text in problems(config):
        raise ConfigError(f"{key}={attrgetter(key)(config)} {text}")


def check_label(name: str, data: DataConfig) -> None:
    """Raises ConfigError if conf/data/<name>.yaml names another corpus: its runs would be labelled
    wrongly.
    """
    if data.corpus != name:
        raise ConfigError(f"conf/data/{name}.yaml: corpus: {data.corpus} must be {name}")


def load_config(saved: Mapping[str, Any]) -> Config:
    """The typed configuration of a run's config.yaml; keys of older versions of the schema are
    ignored.
    """
    recorded, current = OmegaConf.create(dict(saved)), OmegaConf.create({})
    for key in (*keys(), *DATA_KEYS):
        value = OmegaConf.select(recorded, key)
        if value is not None:
            OmegaConf.update(current, key, value)
    return typed(Config, current)


def resolve_precision(run: Run) -> Run:
    """`precision: auto` becomes fp32 or bf16 before anything is hashed; only `auto` imports torch."""
    if run.config.train.precision != "auto":
        return run
    from crope.train.device import auto_precision

    return at_precision(run, auto_precision(run.config.runtime.device))


def at_precision(run: Run, precision: str) -> Run:
    train = replace(run.config.train, precision=precision)
    return replace(run, config=replace(run.config, train=train))


def special(run: Run) -> list[str]:
    """What the group files of a run do not give: ['train.lr=0.003'], without what follows from it.

    Empty if the files have gone.
    """
    model = run.model.partition("+")[0]
    groups = (f"model={model}", f"data={run.dataset}", f"ablation={run.row}", f"scale={run.scale}")
    try:
        cfg = deepcopy(_composed(groups))
    except ConfigError:
        return []
    found = []
    # A row of Table 2 first: sizes and decay follow from it.
    for key in sorted(keys(), key=lambda key: not key.startswith("ablation.")):
        if not key.startswith(TOLD) or key in UNTOLD:
            continue
        value = attrgetter(key)(run.config)
        if value != OmegaConf.select(cfg, key):
            found.append(f"{key}={value}")
            OmegaConf.update(cfg, key, value)  # what refers to it follows
    return found


@cache
def _composed(overrides: tuple[str, ...]) -> DictConfig:
    return compose_config(overrides)


def register() -> None:
    """Registers the schema and the resolvers of conf/ with Hydra; may be called again."""
    ConfigStore.instance().store("schema", node=Config)
    for name, resolver in (("div", _div), ("share", _share), ("wandb", _wandb)):
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def group_files(group: str) -> dict[str, Path]:
    """The files of conf/<group> by name."""
    files = {}
    for path in sorted((CONF_DIR / group).glob("[!.]*.yaml")):  # none of an editor: .#x.yaml
        if path.is_file():
            files[path.stem] = path
    return files


@cache
def group_values(group: str, name: str) -> Any:
    """Content of conf/<group>/<name>.yaml. Raises ConfigError if there is none or it is no YAML."""
    _check_group_file(group, name)
    try:
        return yaml.safe_load(group_files(group)[name].read_text(encoding="utf-8")) or {}
    except CONFIG_ERRORS as error:
        raise config_error(error) from error


def _div(value: int, *divisors: int) -> int:
    """`${div:16,2}`: the integer quotient, at least 1."""
    for divisor in divisors:
        value //= divisor
    return max(1, value)


def _share(total: int, part: int, whole: int) -> int:
    """`${share:200,1000,10000}`: the same fraction of `total` as `part` is of `whole`, rounded, at
    least 1.
    """
    return max(1, round(total * part / whole))


def _wandb(name: str, default: str) -> str:
    """`${wandb:MODE,offline}`: wandb's own variable WANDB_MODE, in today's words for old ones."""
    value = os.environ.get(f"WANDB_{name}") or default
    return {"dryrun": "offline", "run": "online"}.get(value, value)


def check_overrides(overrides: Sequence[str], *, multirun: bool = False) -> dict[str, list[str]]:
    """The values of each key, without those of Hydra. Raises ConfigError for unknown keys, groups
    and group files, also after `+` and `++`, and for several values unless they are for a multirun
    (of one study).
    """
    given = {}
    for text in overrides:
        override = _parse(text)
        key, where = override.key_or_group, f"command line: '{text}'"
        if override.is_delete():
            raise ConfigError(f"{where}: no key can be removed; set it to another value")
        if re.split("[./]", key)[0] == "hydra":
            if not HYDRA_KEYS.fullmatch(key):
                raise ConfigError(
                    f"{where}: only hydra.launcher and hydra.verbose can be set; results_dir names"
                    " the folder, -m starts a multirun"
                )
            continue
        if key not in GROUPS and key not in keys():
            near = nearest(key, [*keys(), *GROUPS])
            raise ConfigError(f"command line: unknown key '{key}';{near}")
        values = given[key] = _values(override)
        if key in GROUPS:
            for value in values:
                _check_group_file(key, value.strip("'\""))
        if override.is_sweep_override():
            if key == "study":  # Hydra ignores it and would run the defaults once per study
                raise ConfigError(f"{where}: give one study; `make reproduce` takes several")
            if not multirun:
                raise ConfigError(f"{where} is a list of runs; add -m to run all of them")
    return given


def _check_group_file(group: str, name: str) -> None:
    names = list(group_files(group))
    if name not in names:
        near = nearest(name, names)
        raise ConfigError(f"command line: no conf/{group}/{name}.yaml;{near}")


def _parse(text: str) -> Override:
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        key, equals, value = text.partition("=")
        problem = "is not of the form key=value"
        if equals:
            quoted = shlex.quote(quoted_override(key, value))
            problem = f"has a value that needs quotes: {quoted}"
        raise ConfigError(f"command line: '{text}' {problem}") from error


def _values(override: Override) -> list[str]:
    """The values that an override gives its key: several in a sweep. Raises ConfigError if none."""
    value = override.value()
    if not override.is_sweep_override():
        return [str(value)]
    try:
        if isinstance(value, Glob):
            values = value.filter(list(group_files(override.key_or_group)))
        else:
            values = list(override.sweep_string_iterator())
    except (HydraException, ValueError) as error:  # an interval; a range with step 0
        raise ConfigError(f"command line: '{override.input_line}': {error}") from error
    if not values:
        raise ConfigError(f"command line: '{override.input_line}' matches or spans no value")
    return values


def quoted_override(key: str, value: Path | str) -> str:
    """`key="value"` for Hydra, whatever characters the value has."""
    quoted = QuotedString(str(value).replace("${", r"\${"), Quote.double)
    return f"{key}={quoted.with_quotes()}"


def quote_path(text: str) -> str:
    """The argument of the command line in Hydra's grammar; a path is one value, whatever characters
    it has.
    """
    key, equals, path = text.partition("=")
    if not equals or key not in PATHS:
        return text
    with suppress(ConfigError):
        if isinstance(_parse(text).value(), str):  # also one that the user has quoted
            return text
    return quoted_override(key, os.path.expanduser(path))


def config_error(error: Exception) -> ConfigError:
    """One of CONFIG_ERRORS in one line: the cause, the key and the file if they are named."""
    if isinstance(error, UnicodeDecodeError):
        return ConfigError(f"{_damaged_file()}: {error.reason}; save it as UTF-8")
    if isinstance(error, yaml.YAMLError):
        return ConfigError(one_line(error))  # names file, line and column
    cause = error
    for candidate in (error.__context__, error, error.__cause__):  # the last one knows most
        if isinstance(candidate, OmegaConfBaseException):
            cause = candidate
    where, hint, key = "", "", getattr(cause, "full_key", None)
    if file := re.match(r"In '([^']+)'", str(error)):
        where = f"conf/{file[1]}.yaml: "
    if key:
        where += f"{key}: "
    if key and isinstance(cause, KeyError | AttributeError):
        hint = f";{nearest(key, [*keys(), *DATA_KEYS])}"
    message = re.sub(r"^In '[^']+': ", "", str(cause)).splitlines()[0]
    for type_name, wanted in TYPES.items():
        if value := re.match(f"Value ('.*?') .*{type_name}", message):
            return ConfigError(f"{where}{value[1]} is not {wanted}")
    return ConfigError(f"{where}{message}{hint}")


def _damaged_file() -> Path:
    """The first file of conf/ that is not UTF-8: Hydra's error does not name it."""
    for path in sorted(CONF_DIR.rglob("*.yaml")):
        try:
            path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            return path
    return CONF_DIR
