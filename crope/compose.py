"""From the command line and conf/ to a checked run. All of Hydra that the project touches is here.

Hydra lets some mistakes pass (`+foo=1` enters a typed config) and explains others over many lines. Here every mistake
is a ConfigError of one line: the key, where it was set, the nearest valid name.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from crope.config import ROOT, Config, keys, problems, run_hash
from crope.errors import ConfigError
from crope.model.schemes import POSITION_FILES

CONF_DIR = ROOT / "conf"
GROUPS = ("model", "data", "ablation", "scale", "runtime", "tracker", "study")
SCHEMA_FILE = "crope/config.py"


@dataclass(frozen=True)
class Run:
    """One run, fully resolved: what to compute, and the names of the group files it was chosen by."""

    config: Config
    model: str
    dataset: str
    row: str
    scale: str

    @property
    def container(self) -> dict[str, Any]:
        return asdict(self.config)

    @property
    def run_id(self) -> str:
        return f"{self.model}-{self.dataset}-{self.row}-s{self.config.seed}-{run_hash(self.container)}"

    @property
    def path(self) -> Path:
        return Path(self.config.results_dir) / "runs" / self.run_id


def load_run(overrides: Sequence[str] = ()) -> Run:
    """Composes conf/ with command-line style overrides. Raises ConfigError (one line) for anything not allowed."""
    return resolve_precision(build_run(compose_config(overrides)))


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """The composed configuration with Hydra's own node (`cfg.hydra`), not yet checked for cross-field facts."""
    register()
    check_overrides(overrides)
    try:
        with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
            return compose("config", overrides=list(overrides), return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error) from error


def build_run(cfg: DictConfig) -> Run:
    """Typed, checked run of a composed configuration that carries `hydra`; train.precision may still be `auto`."""
    choices, overrides = cfg.hydra.runtime.choices, list(cfg.hydra.overrides.task)
    plain = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    valid = keys()
    try:
        for key in _leaves(OmegaConf.to_container(plain, resolve=False)):
            if key not in valid:
                raise _unknown(key, f"set in {_origin(key, overrides, choices)}")
        config: Config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), plain))  # type: ignore[assignment]
    except (ValueError, OmegaConfBaseException) as error:
        raise explain(error) from error
    config.runtime.compile = config.runtime.compile.lower()  # `true` is a bool to Hydra, then the text "True"
    for key, text in problems(config):
        value: Any = config
        for part in key.split("."):
            value = getattr(value, part)
        raise ConfigError(f"{key}={value} ({_origin(key, overrides, choices)}): {text}")
    return Run(config, choices["model"], choices["data"], choices["ablation"], choices["scale"])


def with_hydra(cfg: DictConfig, hydra_node: HydraConf) -> DictConfig:
    """What build_run needs: the config that Hydra hands to a job lacks `hydra`, the names of the chosen group files."""
    whole = OmegaConf.create(cfg, flags={"struct": False})
    with open_dict(whole):
        whole.hydra = hydra_node
    return whole


def resolve_precision(run: Run) -> Run:
    """`precision: auto` becomes fp32 or bf16 before anything is hashed; imports torch only where it must ask."""
    if run.config.train.precision != "auto":
        return run
    from crope.device import auto_precision

    train = replace(run.config.train, precision=auto_precision(run.config.runtime.device))
    return replace(run, config=replace(run.config, train=train))


def register() -> None:
    """Makes known to Hydra the schema, schemes that are a model by themselves and the resolvers of conf/scale.

    Safe to call again.
    """
    ConfigStore.instance().store("schema", node=Config)
    for name, path in group_files("model").items():
        if path.suffix == ".py":
            ConfigStore.instance().store(name, group="model", node=plain_model(name))
    OmegaConf.register_new_resolver("div", _div, replace=True)
    OmegaConf.register_new_resolver("share", _share, replace=True)


def group_files(group: str) -> dict[str, Path]:
    """What may be chosen of a group, by name: a file of conf/<group>, or of a position scheme by itself.

    The latter stands for the scheme with real maps and softmax, where no file of conf/model makes that model.
    """
    files = {path.stem: path for path in sorted((CONF_DIR / group).glob("*.yaml"))}
    if group != "model":
        return files
    made = [set(path.read_text(encoding="utf-8", errors="replace").splitlines()) for path in files.values()]
    lines = {path: {f"{key}: {value}" for key, value in plain_model(path.stem).items()} for path in POSITION_FILES}
    plain = {path.stem: path for path in POSITION_FILES if not any(lines[path] <= model for model in made)}
    return dict(sorted((plain | files).items()))


def plain_model(position: str) -> dict[str, str]:
    """The choices of a model that a scheme makes by itself."""
    return {"position": position, "projection": "real", "attention": "softmax"}


def _div(value: int, *divisors: int) -> int:
    """`${div:16,2}`: whole part of the quotient, at least 1."""
    for divisor in divisors:
        value //= divisor
    return max(1, value)


def _share(total: int, part: int, whole: int) -> int:
    """`${share:200,1000,10000}`: the same fraction of `total` that `part` is of `whole`, at least 1."""
    return max(1, round(total * part / whole))


def check_overrides(overrides: Sequence[str]) -> None:
    """Rejects unknown keys, unknown groups and unknown group files on the command line, `+` and `++` included."""
    for text in overrides:
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException as error:
            raise ConfigError(f"command line: '{text}' is not of the form key=value") from error
        key = override.key_or_group
        if key.split(".")[0].split("/")[0] == "hydra":
            continue
        if override.is_delete():
            raise ConfigError(f"command line: '{text}': every key is needed; set it to another value instead")
        if key in GROUPS:
            chosen = override.sweep_string_iterator() if override.is_sweep_override() else [str(override.value())]
            for name in chosen:
                _check_group_file(key, str(name).strip("'\""), text)
        elif key not in keys():
            raise _unknown(key, f"in '{text}' on the command line")


def _check_group_file(group: str, name: str, text: str) -> None:
    there = list(group_files(group))
    if name not in there and not (group == "study" and name == "None"):
        raise ConfigError(
            f"command line: '{text}': there is no conf/{group}/{name}.yaml;{_nearest(name, there)} "
            f"there are: {', '.join(there)}"
        )


def _unknown(key: str, where: str) -> ConfigError:
    valid = [*keys(), *GROUPS]
    inside = [name for name in valid if name.startswith(f"{key}.")]
    if inside:
        return ConfigError(f"'{key}' ({where}) is a section, not a key; set one of {', '.join(inside)}")
    return ConfigError(f"unknown key '{key}' ({where});{_nearest(key, valid)} all keys: {SCHEMA_FILE}, or --cfg job")


def _nearest(name: str, valid: Sequence[str]) -> str:
    """' did you mean x?' or ''. A bare `d_model` is near `model.d_model`."""
    same_leaf = [key for key in valid if key.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1]]
    near = same_leaf or difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    near = near or [key for key in valid if difflib.get_close_matches(name, [key.rsplit(".", 1)[-1]], cutoff=0.6)]
    return f" did you mean {near[0]}?" if near else ""


def _origin(key: str, overrides: Sequence[str], choices: Any) -> str:
    """Where a key got its value: the command line, else the group file that sets it, else the schema."""
    if any(text.lstrip("+~").split("=")[0] == key for text in overrides):
        return "command line"
    for group in reversed(GROUPS):
        file = group_files(group).get(choices.get(group))
        if file is None:
            continue
        by_itself = file.suffix == ".py"
        text = "" if by_itself else file.read_text(encoding="utf-8")
        node: Any = plain_model(file.stem) if by_itself else yaml.safe_load(text) or {}
        for part in (key if "@package _global_" in text else key.removeprefix(f"{group}.")).split("."):
            node = node.get(part) if isinstance(node, dict) else None
        if node is not None:
            return f"crope/model/positions/{file.name}" if by_itself else f"conf/{group}/{file.name}"
    default = keys()[key].default if key in keys() else None
    if isinstance(default, str) and default.startswith("${") and default[2:-1] in keys():
        return _origin(default[2:-1], overrides, choices)
    return SCHEMA_FILE


def _leaves(node: Any, prefix: str = "") -> list[str]:
    if not isinstance(node, dict):
        return [prefix]
    return [leaf for key, value in node.items() for leaf in _leaves(value, f"{prefix}.{key}" if prefix else str(key))]


def explain(error: Exception) -> ConfigError:
    """One line out of Hydra's or OmegaConf's many: the cause, the key and the file where they are named."""
    text = str(error)
    if "Ambiguous value for argument" in text:
        return ConfigError(
            f"command line: {text.splitlines()[0].split(' argument ')[1]} is a list of runs; add -m to run them all"
        )
    cause = error.__cause__ or error
    fields = dict(line.strip().split(": ", 1) for line in str(cause).splitlines()[1:] if ": " in line)
    key = fields.get("full_key", "")
    where = f"conf/{text.split(chr(39))[1]}.yaml" if text.startswith("In '") else "command line"
    if "not in '" in str(cause) and key:
        return _unknown(key, f"set in {where}")
    first = next(line for line in str(cause).splitlines() if line and not line.startswith("In '"))
    return ConfigError(f"{key or 'configuration'} ({where}): {first}")
