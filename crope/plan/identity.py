"""The identity of a run: what its id hashes, the key of its table cell, its numerics version.

All functions take a resolved configuration as a dictionary, because a config.yaml of an earlier
schema has other keys and keeps its identity.
"""

from collections.abc import Mapping
from typing import Any

from crope.files import json_sha256

# What a run's identity is made of. Runtime, tracker and paths may never change a number, so they
# cannot enter.
SCIENTIFIC = ("model", "data", "tokenizer", "train", "eval", "seed")


# Scientific keys that were added after runs had been published, with the value that every earlier
# run had. A key with that value stays out of the identity, so that no earlier run is renamed.
ADDED_LATER: dict[str, dict[str, Any]] = {
    "model": {"ffn_ratio": 4.0, "rope_base": 10000.0},
    "train": {"warmup_steps": 0, "qkv_lr_factor": 1.0, "schedule": "step", "grad_clip": 0.0},
}

# Scientific keys that have left the schema, with the value that every run had. The identity keeps
# them, so that a run has one name before and after. (One of ADDED_LATER just stays there.)
REMOVED: dict[str, dict[str, Any]] = {}


# Raised by hand when golden losses change: older runs of these positions, projections or
# attentions then are stale. 1 for all others.
NUMERICS = {"learned": 2}


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a configuration of any schema with the keys of ADDED_LATER."""
    return {**config, **{name: added | config[name] for name, added in ADDED_LATER.items()}}


def scientific(config: Mapping[str, Any]) -> dict[str, Any]:
    """Selects the part of a resolved configuration that a number can depend on."""
    part = {name: config[name] for name in SCIENTIFIC}
    # The name identifies the corpus, wherever it is from: the report refuses two of one name.
    part["data"] = {"corpus": config["data"]["corpus"]}
    for section, removed in REMOVED.items():
        part[section] = removed | part[section]
    for section, added in ADDED_LATER.items():
        items = part[section].items()
        part[section] = {key: v for key, v in items if key not in added or v != added[key]}
    part["model"].pop("label", None)  # of the copy made above
    return part


def cell_key(config: Mapping[str, Any]) -> str:
    """Hashes what all runs of one table cell share: the scientific part without seed and precision.

    Precision is left out because `auto` depends on the machine; the report refuses to mix two
    within a seed.
    """
    part = scientific(config)
    part["train"] = {key: value for key, value in part["train"].items() if key != "precision"}
    del part["seed"]
    return json_sha256(part)


def numerics_version(model: Mapping[str, Any]) -> int:
    """Returns the numerics version of the model in a configuration's `model` section."""
    selected = {**ADDED_LATER["model"], **model}
    choices = (selected[name] for name in ("position", "projection", "attention"))
    return 1 + sum(NUMERICS.get(choice, 1) - 1 for choice in choices)


def run_hash(config: Mapping[str, Any], *, version: int | None = None) -> str:
    """Hashes the scientific part and the numerics version (None: today's) to eight hex digits."""
    version = numerics_version(config["model"]) if version is None else version
    return json_sha256({**scientific(config), "numerics_version": version})[:8]
