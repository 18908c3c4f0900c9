"""The identity of a run: what its id hashes, the key of its table cell, its numerics version."""

import json
from collections.abc import Mapping
from typing import Any

from crope.config import GOLDEN_FILE
from crope.files import json_sha256

# Golden losses and numerics version of each model of conf/model. `make golden` raises the version
# of exactly those models whose losses changed: a refactoring keeps old runs valid, a change to one
# scheme invalidates its own runs only.
GOLDEN: dict[str, dict[str, Any]] = json.loads(GOLDEN_FILE.read_text(encoding="utf-8"))


# What a run's identity is made of. Runtime, tracker and paths may never change a number, so they
# cannot enter.
SCIENTIFIC = ("model", "data", "tokenizer", "train", "eval", "seed")


# Scientific keys that were added after runs had been published, with the value that every earlier
# run had. A key with that value stays out of the identity, so that no earlier run is renamed.
ADDED_LATER = {
    "model": {"ffn_ratio": 4.0},
    "train": {"warmup_steps": 0, "qkv_lr_factor": 1.0},
}


def scientific(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a resolved configuration that a number can depend on; see ADDED_LATER."""
    part = {name: config[name] for name in SCIENTIFIC}
    # The name identifies the corpus, wherever it is fetched from: crope/data refuses two of one name.
    part["data"] = {"corpus": config["data"]["corpus"]}
    for section, added in ADDED_LATER.items():
        part[section] = {
            key: value
            for key, value in config[section].items()
            if key not in added or value != added[key]
        }
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
    own = [e["numerics_version"] for e in GOLDEN.values() if e["choices"] == choices]
    if own:  # of several models that differ in sizes alone, the highest
        return int(max(own))
    with_part = [
        [e["numerics_version"] for e in GOLDEN.values() if e["choices"][i] == choices[i]]
        for i in range(3)
    ]
    return max(min(versions, default=1) for versions in with_part)


def run_hash(config: Mapping[str, Any], *, version: int | None = None) -> str:
    """Eight hex digits of what the run computes: the scientific part and the numerics version
    (None: today's).
    """
    if config["train"]["precision"] == "auto":
        raise ValueError("train.precision must be resolved before a run is named")
    version = numerics_version(config["model"]) if version is None else version
    return json_sha256({**scientific(config), "numerics_version": version})[:8]
