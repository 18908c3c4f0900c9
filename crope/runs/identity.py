"""The identity of a run: what its id hashes, the key of its table cell, its numerics version.

All take a resolved configuration as a dictionary, as in config.yaml: those of earlier versions of
the schema have other keys than today's, and keep their identity.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from crope.config import GOLDEN_FILE
from crope.errors import DataError, one_line
from crope.files import json_sha256, read_json

# What a run's identity is made of. Runtime, tracker and paths may never change a number, so they
# cannot enter.
SCIENTIFIC = ("model", "data", "tokenizer", "train", "eval", "seed")


# Scientific keys that were added after runs had been published, with the value that every earlier
# run had. A key with that value stays out of the identity, so that no earlier run is renamed.
ADDED_LATER: dict[str, dict[str, Any]] = {
    "model": {"ffn_ratio": 4.0},
    "train": {"warmup_steps": 0, "qkv_lr_factor": 1.0},
}

# Scientific keys that have left the schema, with the value that every run had. The identity keeps
# them, so that a run has one name before and after. (One of ADDED_LATER just stays there.)
REMOVED: dict[str, dict[str, Any]] = {}


@cache
def golden_entries() -> dict[str, dict[str, Any]]:
    """Golden losses, choices and numerics version of each model of conf/model.

    `make golden` raises the version of exactly those models whose losses changed: a refactoring
    keeps old runs valid, a change to one scheme invalidates its own runs only.
    """
    try:
        entries: dict[str, dict[str, Any]] = read_json(GOLDEN_FILE)
    except ValueError as error:
        raise DataError(
            f"{GOLDEN_FILE}: not JSON ({one_line(error)}); restore it with git"
        ) from error
    return entries


def scientific(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a resolved configuration that a number can depend on."""
    part = {name: config[name] for name in SCIENTIFIC}
    # The name identifies the corpus, wherever it is fetched from: crope/data refuses two of one name.
    part["data"] = {"corpus": config["data"]["corpus"]}
    for section, removed in REMOVED.items():
        part[section] = removed | part[section]
    for section, added in ADDED_LATER.items():
        items = part[section].items()
        part[section] = {key: v for key, v in items if key not in added or v != added[key]}
    return part


def cell_key(config: Mapping[str, Any]) -> str:
    """Equal for all runs of one table cell: the scientific part without seed and precision.

    Precision is left out because `auto` depends on the machine; the report refuses to mix two
    within a seed of one row.
    """
    part = scientific(config)
    part["train"] = {key: value for key, value in part["train"].items() if key != "precision"}
    del part["seed"]
    return json_sha256(part)


def numerics_version(model: Mapping[str, Any]) -> int:
    """Numerics version of the model that a configuration's `model` section selects.

    A combination without golden losses of its own takes the highest version among its position,
    projection and attention; that of a component is the lowest of the models that use it.
    """
    selected = {**ADDED_LATER["model"], **model}
    choices = [selected[name] for name in ("position", "projection", "attention", "ffn_ratio")]
    entries = golden_entries().values()
    own = [entry["numerics_version"] for entry in entries if entry["choices"] == choices]
    if own:  # of several models that differ in sizes alone, the highest
        return int(max(own))
    lowest = []
    for part in range(3):
        users = [entry for entry in entries if entry["choices"][part] == choices[part]]
        lowest.append(min((entry["numerics_version"] for entry in users), default=1))
    return max(lowest)


def run_hash(config: Mapping[str, Any], *, version: int | None = None) -> str:
    """Eight hex digits of what the run computes: the scientific part and the numerics version
    (None: today's).
    """
    if config["train"]["precision"] == "auto":
        raise ValueError("train.precision must be resolved before a run is named")
    version = numerics_version(config["model"]) if version is None else version
    return json_sha256({**scientific(config), "numerics_version": version})[:8]
