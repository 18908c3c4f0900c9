"""What a run's name depends on; keys that come and go; the numerics version of a model."""

import copy

import pytest

from crope.config import keys
from crope.plan import identity
from crope.plan.compose import load_run
from crope.plan.identity import (
    REMOVED,
    SCIENTIFIC,
    cell_key,
    numerics_version,
    run_hash,
)


@pytest.fixture(scope="module")
def resolved():
    return load_run(["train.precision=fp32"]).container


@pytest.fixture
def changed(resolved):
    """A copy of `resolved` to be changed."""
    return copy.deepcopy(resolved)


def other(value):
    """A value of the same type that differs."""
    if isinstance(value, bool):
        return not value
    return value + "x" if isinstance(value, str) else value + 1


@pytest.mark.parametrize("key", [*keys(), "data.corpus"])
def test_identity_depends_on_every_scientific_key_and_no_other(key, changed, resolved):
    """A run's name on all of them; a table cell on all but the seed and the precision."""
    *sections, name = key.split(".")
    section = changed[sections[0]] if sections else changed
    section[name] = other(section[name])
    scientific = key.split(".")[0] in SCIENTIFIC and key != "model.label"
    assert (run_hash(changed) != run_hash(resolved)) == scientific
    of_cell = scientific and key not in ("seed", "train.precision")
    assert (cell_key(changed) != cell_key(resolved)) == of_cell


@pytest.mark.parametrize(
    ("overrides", "run_id"),
    [
        ("model=rope data=pg19 scale=quick seed=2 bf16", "rope-pg19-base-s2-2661f0fe"),
        (
            "model=crope data=pg19 ablation=b2_l512_d64 scale=paper bf16",
            "crope-pg19-b2_l512_d64-s0-93a28087",
        ),
        (
            "model=learned data=ptb scale=quick seed=1 train.max_steps=3200 fp32",
            "learned-ptb-base-s1-1a2aedd2",
        ),
    ],
)
def test_ids_of_published_runs(overrides, run_id):
    """A change here would orphan every record: of a default, a key that came or went without its
    entry in ADDED_LATER or REMOVED, or a numerics version.
    """
    *chosen, precision = overrides.split()
    assert load_run([*chosen, f"train.precision={precision}"]).run_id == run_id


def test_a_removed_key_leaves_every_name_as_it_was(changed, resolved, monkeypatch):
    otherwise = copy.deepcopy(resolved)
    otherwise["train"]["weight_decay"] = 0.5
    del changed["train"]["weight_decay"]
    monkeypatch.setitem(REMOVED, "train", {"weight_decay": 0.01})
    assert run_hash(changed) == run_hash(resolved) != run_hash(otherwise)
    assert cell_key(changed) == cell_key(resolved)


@pytest.mark.parametrize(
    ("choices", "version"),
    [
        ("learned real softmax", 2),
        ("learned complex softmax", 2),
        ("rotary real softmax", 1),
        ("rotary halved linear", 3),
        ("learned halved linear", 4),
    ],
)
def test_the_numerics_version_of_a_model_rises_with_each_of_its_parts(
    choices, version, monkeypatch
):
    monkeypatch.setattr(identity, "NUMERICS", {"learned": 2, "linear": 3})
    parts = zip(("position", "projection", "attention"), choices.split(), strict=True)
    assert numerics_version(dict(parts)) == version
