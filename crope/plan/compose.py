"""From the command line and conf/ to a checked run, by Hydra."""

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from crope.config import (
    ROOT,
    Config,
    DataConfig,
    ModelConfig,
    broken_rule,
    keys,
    known_values,
    problems,
)
from crope.errors import ConfigError, one_line
from crope.files import read_yaml
from crope.machine import auto_precision, default_scale
from crope.plan.identity import run_hash

CONF_DIR = ROOT / "conf"
Schema = TypeVar("Schema")
GROUPS = ("model", "data", "ablation", "scale", "runtime", "tracker", "study")
CONFIG_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError)
# Keys that `non_default_settings` compares. The run's name has the model's parts; precision depends
# on the machine.
COMPARED_SECTIONS = ("ablation.", "model.", "tokenizer.", "train.", "eval.")
MODEL_PARTS = ("model.position", "model.projection", "model.attention")
IGNORED_KEYS = (*MODEL_PARTS, "model.label", "train.precision")


@dataclass(frozen=True)
class Run:
    """A resolved run: what to compute, and the names of its group files."""

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
        """Names what run.json names."""
        return {"model": self.model, "dataset": self.dataset, "row": self.row, "scale": self.scale}

    @property
    def title(self) -> str:
        """Gives the run's id without its hash."""
        return f"{self.model}-{self.dataset}-{self.row}-s{self.config.seed}"

    @property
    def run_id(self) -> str:
        return f"{self.title}-{run_hash(self.container)}"

    @property
    def path(self) -> Path:
        return Path(self.config.results_dir) / "runs" / self.run_id


def load_run(overrides: Sequence[str] = ()) -> Run:
    """Composes conf/ with command-line overrides. Raises ConfigError."""
    return build_run(*compose_config(overrides))


def compose_config(overrides: Sequence[str]) -> tuple[DictConfig, dict[str, str]]:
    """Returns the unresolved configuration and each group's chosen file. Raises ConfigError."""
    register()
    try:
        # Inside a Hydra job Hydra is initialised already; a second time raises.
        running = GlobalHydra.instance().is_initialized()
        with nullcontext() if running else initialize_config_dir(str(CONF_DIR), version_base="1.3"):
            cfg = compose("config", overrides=list(overrides), return_hydra_config=True)
    except CONFIG_ERRORS as error:
        raise config_error(error) from error
    choices = dict(cfg.hydra.runtime.choices)
    with open_dict(cfg):
        del cfg.hydra
    return cfg, choices


composed = cache(compose_config)  # of a tuple of overrides; a caller changes only a copy


def build_run(cfg: DictConfig, choices: Mapping[str, str]) -> Run:
    """Returns the typed, checked run of a composed configuration.

    `choices` names the chosen file of each group. Raises ConfigError.
    """
    values: Any = OmegaConf.to_container(cfg)  # a typed node would keep what `+key=value` added
    config = typed(Config, values)
    check(config)
    check_label(choices["data"], config.data)
    model = variant_name(choices["model"], config.model)
    return Run(config, model, choices["data"], choices["ablation"], choices["scale"])


def variant_name(name: str, model: ModelConfig) -> str:
    """Returns a model file's name; `name+value` if another position, projection or attention was
    chosen. Raises ConfigError if no file of conf/model has the value.
    """
    of_file = {"attention": "softmax"} | group_values("model", name)
    for key in MODEL_PARTS:
        part = key.removeprefix("model.")
        value = getattr(model, part)
        if value != of_file.get(part):
            check_value(key, value)
            name += f"+{value}"
    return name


def typed(schema: type[Schema], values: Any) -> Schema:
    """Converts values to the schema's dataclass. Raises ConfigError for an unknown key or a wrong
    type.
    """
    try:
        # The merge refuses keys that `+key=value` added.
        merged = OmegaConf.merge(OmegaConf.structured(schema), values)
        return OmegaConf.to_object(merged)  # type: ignore[return-value]
    except (ValueError, OmegaConfBaseException) as error:
        raise config_error(error) from error


def check(config: Config) -> None:
    """Raises ConfigError for the first of `config.problems`."""
    for key, text in problems(config):
        raise ConfigError(f"{key}={attrgetter(key)(config)} {text}")


def check_label(name: str, data: DataConfig) -> None:
    """Raises ConfigError if conf/data/<name>.yaml names another corpus, or does not say what `data`
    is: the runs would be labelled wrongly.
    """
    if data.corpus != name:
        raise ConfigError(f"conf/data/{name}.yaml: corpus: {data.corpus} must be {name}")
    if data != typed(DataConfig, group_values("data", name)):
        raise ConfigError(
            f"data={name}: its keys are set in a file of conf/data with a name of its own"
        )


def check_words(words: Iterable[str]) -> None:
    """Raises ConfigError for a command-line value that its key does not allow.

    Hydra's types let it through, and a multirun would find it only after hours.
    """
    for word in words:
        key, _, values = word.partition("=")
        if not re.search(r"""[($'"]""", values):  # none of Hydra's grammar: choice(a,b)
            for value in values.split(","):
                check_value(key, value)


def check_value(key: str, value: str) -> None:
    """Raises ConfigError if the key has a list of values without this one.

    Values of model parts come from conf/model, because their registries need torch.
    """
    option = keys().get(key)
    allowed = option.metadata.get("one_of") if option else None
    if key in MODEL_PARTS:
        part = key.removeprefix("model.")
        allowed = {group_values("model", name).get(part) for name in group_files("model")} - {None}
    is_number = re.fullmatch(r"-?\d*\.?\d+(e-?\d+)?", value)
    if option and is_number and (rule := broken_rule(float(value), option.metadata)):
        raise ConfigError(f"{key}={value} {rule}")
    if allowed is not None and value.lower() not in allowed:
        hint = f"is unknown{nearest(value, allowed)}"
        if key not in MODEL_PARTS:  # a few, of which none is likelier
            hint = f"must be one of {', '.join(allowed)}"
        raise ConfigError(f"{key}={value} {hint}")


def load_config(saved: Mapping[str, Any]) -> Config:
    """Returns the typed configuration of a run's config.yaml; keys of older schemas are ignored."""
    return typed(Config, known_values(Config, saved))


def non_default_settings(run: Run) -> list[str]:
    """Lists the settings that a run's group files do not give: ['train.lr=0.003'], without what
    follows from them. Empty if the files are gone.
    """
    model = run.model.partition("+")[0]
    groups = (f"model={model}", f"data={run.dataset}", f"ablation={run.row}", f"scale={run.scale}")
    try:
        cfg = deepcopy(composed(groups)[0])
    except ConfigError:
        return []
    found = []
    # A row of Table 2 first: sizes and decay follow from it.
    for key in sorted(keys(), key=lambda key: not key.startswith("ablation.")):
        if not key.startswith(COMPARED_SECTIONS) or key in IGNORED_KEYS:
            continue
        value = attrgetter(key)(run.config)
        if value != OmegaConf.select(cfg, key):
            found.append(f"{key}={value}")
            OmegaConf.update(cfg, key, value)  # what refers to it follows
    return found


def register() -> None:
    """Registers the schema and the resolvers of conf/ with Hydra; may be called again."""
    ConfigStore.instance().store("schema", node=Config)
    resolvers: dict[str, Callable[..., Any]] = {
        "div": _div,
        "share": _share,
        "default_scale": default_scale,
        "auto_precision": auto_precision,
    }
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def group_files(group: str) -> dict[str, Path]:
    """Returns the files of conf/<group> by name."""
    paths = sorted((CONF_DIR / group).glob("[!.]*.yaml"))  # skip editors' locks: .#x.yaml
    return {path.stem: path for path in paths}


@cache
def group_values(group: str, name: str) -> Any:
    """Returns the content of conf/<group>/<name>.yaml. Raises ConfigError if it is missing or no
    YAML.
    """
    files = group_files(group)
    if name not in files:
        raise ConfigError(f"no conf/{group}/{name}.yaml{nearest(name, files)}")
    try:
        return read_yaml(files[name]) or {}
    except yaml.YAMLError as error:
        raise config_error(error) from error


def _div(value: int, *divisors: int) -> int:
    """Resolves `${div:16,2}` to the integer quotient, at least 1."""
    for divisor in divisors:
        value //= divisor
    return max(1, value)


def _share(total: int, part: int, whole: int) -> int:
    """Resolves `${share:200,1000,10000}` to total * part / whole, rounded, at least 1."""
    return max(1, round(total * part / whole))


def quoted_override(key: str, value: Path | str) -> str:
    """Returns `key="value"` for Hydra, whatever characters the value has."""
    quoted = QuotedString(str(value).replace("${", r"\${"), Quote.double)
    return f"{key}={quoted.with_quotes()}"


def nearest(name: str, valid: Iterable[str]) -> str:
    """Returns `; did you mean x?`, else the valid names."""
    names = sorted(valid)
    near = difflib.get_close_matches(name.lower(), names, n=1)
    return f"; did you mean {near[0]}?" if near else f"; valid: {', '.join(names)}"


def nearest_key(name: str) -> str:
    """Returns `; did you mean train.lr?` for the keys of the section (of all without one) that are
    spelt nearly so, else those that contain the name; without any the keys of the section. Empty
    for Hydra's own keys.
    """
    section, _, last = name.rpartition(".")
    if section.startswith("hydra"):
        return ""
    valid = [key for key in (*keys(), *GROUPS) if not key.startswith("ablation.")]
    valid += [f"data.{field.name}" for field in dataclasses.fields(DataConfig)]
    valid = [key for key in valid if key.startswith(f"{section}.")] or valid
    names = [key.rpartition(".")[2] for key in valid]
    near = difflib.get_close_matches(last, names, n=2, cutoff=0.76)
    near = near or [known for known in names if last in known]
    found = [key for key, known in zip(valid, names, strict=True) if known in near]
    if found:
        return f"; did you mean {' or '.join(found)}?"
    return f"; the keys of {section}: {', '.join(names)}" if section else "; see crope/config.py"


def config_error(error: Exception) -> ConfigError:
    """Returns a Hydra, OmegaConf or YAML error in one line, with the nearest valid name."""
    message = str(error)
    if missing := re.search("Could not find '(hydra/launcher|[a-z]+)/(.*)'", message):
        group, name = missing.groups()
        hint = nearest(name, group_files(group))
        if group == "hydra/launcher":  # others than these are of packages, installed or not
            hint = "; docs/sweeps.md has the launchers and what each needs"
        if group == "data" and "/" in name:
            hint = "; a corpus of your own is a file in conf/data (docs/tutorial.md)"
        return ConfigError(f"no conf/{group}/{name}.yaml{hint}")
    if several := re.search("Ambiguous value for argument '(.*?)'", message):
        return ConfigError(f"{several[1]}: add -m to train a run for each value")
    # Hydra's own errors name the key in their cause, OmegaConf's in themselves.
    text = message if "full_key:" in message else str(error.__cause__ or error)
    key = re.search(r"full_key: (\S+)", text)
    if not key:
        return ConfigError(one_line(message.partition("See https")[0]))
    hint = ""
    if re.search("Key '.*' not in", text):
        hint = nearest_key(key[1])
    elif key[1] == "seed":
        hint = "; several seeds are -m 'seed=range(0,5)'"
    return ConfigError(f"{key[1]}: {text.splitlines()[0]}{hint}")
