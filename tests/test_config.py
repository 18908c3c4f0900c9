"""The schema: its keys, the values it refuses, and the identity of a run."""

import copy
import dataclasses
import json
from typing import Any

import pytest
import yaml

from crope.config import keys
from crope.errors import ConfigError
from crope.runs import identity
from crope.runs.compose import load_run
from crope.runs.identity import ADDED_LATER, SCIENTIFIC, cell_key, run_hash
from crope.runs.record import PUBLISHED
from tests.conftest import raises_one_line


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("seed=-1", "seed=-1"),
        ("seed=9223372036854775808", "2.63"),
        ("train.batch_size=9223372036854775808", "2.63"),
        ("model.n_layers=1001", "model.n_layers"),
        ("model.d_model=65664", "at most"),
        ("tokenizer.vocab_size=1000001", "at most"),
        ("runtime.threads=4097", "at most"),
        ("results_dir=", "results_dir"),
        ("train.lr=0", "train.lr"),
        ("train.lr=-1e-3", "train.lr"),
        ("train.lr=nan", "finite"),
        ("train.weight_decay=inf", "finite"),
        ("train.max_steps=0", "train.max_steps"),
        ("eval.every=0", "eval.every"),
        ("eval.full_every=0", "eval.full_every"),
        ("runtime.log_every=0", "runtime.log_every"),
        ("runtime.checkpoint_seconds=-1", "runtime.checkpoint_seconds"),
        ("model.dropout=1", "below"),
        ("model.n_heads=0", "model.n_heads"),
        ("model.position=rotry", "model.position"),
        ("model.d_model=130", "divisible"),
        ("model.d_model=132", "odd"),
        ("tokenizer.vocab_size=10", "257"),
        ("scale=paper tokenizer.vocab_size=4096", "50257"),
        ("runtime.cuda_graphs=true model.dropout=0.1", "dropout"),
        ("runtime.cuda_graphs=true runtime.compile=false", "compile"),
    ],
)
def test_values_that_the_types_allow_and_the_checks_refuse(override: str, word: str) -> None:
    with raises_one_line(ConfigError, word):
        load_run(override.split())


def other(value: Any) -> Any:
    """A value of the same type that differs."""
    if isinstance(value, bool):
        return not value
    return value + "x" if isinstance(value, str) else value + 1


@pytest.fixture(scope="module")
def resolved() -> dict[str, Any]:
    return load_run(["train.precision=fp32"]).container


@pytest.mark.parametrize("key", [*keys(), "data.corpus"])
def test_identity_depends_on_every_scientific_key_and_no_other(
    key: str, resolved: dict[str, Any]
) -> None:
    """A run's name on all of them; a table cell on all but the seed and the precision."""
    changed = copy.deepcopy(resolved)
    *sections, name = key.split(".")
    section = changed[sections[0]] if sections else changed
    section[name] = other(section[name])
    scientific = key.split(".")[0] in SCIENTIFIC
    assert (run_hash(changed) != run_hash(resolved)) == scientific
    of_cell = scientific and key not in ("seed", "train.precision")
    assert (cell_key(changed) != cell_key(resolved)) == of_cell


def test_the_numerics_version_is_part_of_the_name(resolved: dict[str, Any]) -> None:
    today = identity.numerics_version(resolved["model"])
    assert (
        run_hash(resolved)
        == run_hash(resolved, version=today)
        != run_hash(resolved, version=today + 1)
    )


def test_a_run_is_named_after_its_precision_is_resolved(resolved: dict[str, Any]) -> None:
    unresolved = {**resolved, "train": {**resolved["train"], "precision": "auto"}}
    with pytest.raises(ValueError, match="resolved"):
        run_hash(unresolved)


def test_published_run_ids(resolved: dict[str, Any]) -> None:
    """Names of published runs: a change here would orphan every record."""
    for overrides, run_id in {
        "model=crope data=ptb scale=quick seed=0 train.precision=bf16": "crope-ptb-base-s0-35d09483",
        "model=rope data=pg19 scale=quick seed=2 train.precision=bf16": "rope-pg19-base-s2-2661f0fe",
        "model=crope data=pg19 ablation=b2_l512_d64 scale=paper train.precision=bf16": (
            "crope-pg19-b2_l512_d64-s0-93a28087"
        ),
    }.items():
        assert load_run(overrides.split()).run_id == run_id


def test_keys_added_later_rename_no_published_run() -> None:
    """Each saved configuration, completed by the added keys at the value of all earlier runs."""
    for file in PUBLISHED.glob("*/*/config.yaml"):
        config = yaml.load(file.read_text(), yaml.CSafeLoader)
        version = json.loads((file.parent / "summary.json").read_text())["numerics_version"]
        assert file.parent.name.endswith(run_hash(config, version=version))
        completed = {
            name: {**ADDED_LATER.get(name, {}), **section} if isinstance(section, dict) else section
            for name, section in config.items()
        }
        assert run_hash(completed) == run_hash(config)
        assert cell_key(completed) == cell_key(config)


@pytest.mark.parametrize("key", [f"{s}.{key}" for s, added in ADDED_LATER.items() for key in added])
def test_an_added_key_has_the_schemas_default(key: str, resolved: dict[str, Any]) -> None:
    section, name = key.split(".")
    assert keys()[key].default == ADDED_LATER[section][name] == resolved[section][name]


def test_models_differ_in_one_choice_each() -> None:
    xpos, rope, crope = (
        dataclasses.asdict(load_run([f"model={name}"]).config.model)
        for name in ("xpos", "rope", "crope")
    )
    assert {key for key in rope if xpos[key] != rope[key]} == {"position"}
    assert {key for key in rope if crope[key] != rope[key]} == {"projection"}
