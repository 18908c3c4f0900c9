"""What a run's name depends on; keys that come and go; the numerics version of a model."""

import copy
import shutil
import subprocess
import sys

import pytest

from crope.config import ROOT, keys
from crope.errors import DataError
from crope.runs import identity
from crope.runs.compose import load_run
from crope.runs.identity import (
    ADDED_LATER,
    REMOVED,
    SCIENTIFIC,
    cell_key,
    numerics_version,
    run_hash,
)
from crope.runs.published import read_set, set_folders
from tests.conftest import raises_one_line


def other(value):
    """A value of the same type that differs."""
    if isinstance(value, bool):
        return not value
    return value + "x" if isinstance(value, str) else value + 1


@pytest.fixture(scope="module")
def resolved():
    return load_run(["train.precision=fp32"]).container


@pytest.fixture(scope="module")
def published():
    runs = []
    for folder in set_folders():
        runs += read_set(folder)
    assert len(runs) >= 900
    return runs


@pytest.mark.parametrize("key", [*keys(), "data.corpus"])
def test_identity_depends_on_every_scientific_key_and_no_other(key, resolved):
    """A run's name on all of them; a table cell on all but the seed and the precision."""
    changed = copy.deepcopy(resolved)
    *sections, name = key.split(".")
    section = changed[sections[0]] if sections else changed
    section[name] = other(section[name])
    scientific = key.split(".")[0] in SCIENTIFIC
    assert (run_hash(changed) != run_hash(resolved)) == scientific
    of_cell = scientific and key not in ("seed", "train.precision")
    assert (cell_key(changed) != cell_key(resolved)) == of_cell


def test_the_numerics_version_is_part_of_the_name(resolved):
    today = numerics_version(resolved["model"])
    assert run_hash(resolved) == run_hash(resolved, version=today)
    assert run_hash(resolved) != run_hash(resolved, version=today + 1)


def test_a_run_is_named_after_its_precision_is_resolved(resolved):
    unresolved = {
        **resolved,
        "train": {**resolved["train"], "precision": "auto"},
    }
    with pytest.raises(ValueError, match="resolved"):
        run_hash(unresolved)


@pytest.mark.parametrize(
    ("overrides", "run_id"),
    [
        (
            "model=crope data=ptb scale=quick seed=0",
            "crope-ptb-base-s0-35d09483",
        ),
        (
            "model=rope data=pg19 scale=quick seed=2",
            "rope-pg19-base-s2-2661f0fe",
        ),
        (
            "model=crope data=pg19 ablation=b2_l512_d64 scale=paper",
            "crope-pg19-b2_l512_d64-s0-93a28087",
        ),
    ],
)
def test_ids_of_published_runs(overrides, run_id):
    """A change here would orphan every record: of a default, or a key that came or went without
    its entry in ADDED_LATER or REMOVED.
    """
    assert load_run([*overrides.split(), "train.precision=bf16"]).run_id == run_id


def test_published_runs_keep_their_names(published):
    for run in published:
        version = run.summary["numerics_version"]
        assert run.run_id.endswith(run_hash(run.config, version=version))


def test_keys_added_later_rename_no_published_run(published):
    for run in published:
        completed = copy.deepcopy(run.config)
        for section, added in ADDED_LATER.items():
            completed[section] = added | completed[section]
        assert cell_key(completed) == cell_key(run.config)
        version = numerics_version(run.config["model"])
        assert version == numerics_version(completed["model"])


def test_a_removed_key_leaves_every_name_as_it_was(resolved, monkeypatch):
    without = copy.deepcopy(resolved)
    del without["train"]["weight_decay"]
    assert run_hash(without) != run_hash(resolved)
    monkeypatch.setitem(REMOVED, "train", {"weight_decay": 0.01})
    assert run_hash(without) == run_hash(resolved)
    assert cell_key(without) == cell_key(resolved)
    resolved_otherwise = {
        **resolved,
        "train": resolved["train"] | {"weight_decay": 0.5},
    }
    assert run_hash(resolved_otherwise) != run_hash(without)


PROGRAM = """
from crope.config import ROOT
from crope.runs import identity, verify
from crope.runs.compose import load_run
from crope.runs.published import read_set, set_folders
identity.REMOVED["train"] = {"weight_decay": 0.01}
print(load_run(["model=crope", "data=ptb", "scale=quick", "train.precision=bf16"]).run_id)
for folder in set_folders():
    for run in read_set(folder):
        version = run.summary["numerics_version"]
        assert run.run_id.endswith(identity.run_hash(run.config, version=version))
print(verify.verify_records([ROOT / "results" / "published" / "quick-fp32-two-threads"]))
"""


def test_a_schema_without_a_key_keeps_every_published_run(tmp_path):
    """By a copy of the program, whose schema lacks a key that all runs have."""
    for name in ("crope", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "results").symlink_to(ROOT / "results")
    schema = tmp_path / "crope" / "config.py"
    lines = schema.read_text().splitlines()
    kept = [line for line in lines if not line.startswith("    weight_decay:")]
    assert len(kept) == len(lines) - 1
    schema.write_text("\n".join(kept))
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == [
        "crope-ptb-base-s0-35d09483",
        "[]",
    ], done.stderr


@pytest.mark.parametrize("content", [b"", b'{"rope": {"choi', b"\xff"])
def test_damaged_golden_losses_are_one_line(content, tmp_path, monkeypatch):
    file = tmp_path / "golden_losses.json"
    file.write_bytes(content)
    monkeypatch.setattr(identity, "GOLDEN_FILE", file)
    identity.golden_entries.cache_clear()
    with raises_one_line(DataError, r"golden_losses\.json: .*restore it with git"):
        identity.golden_entries()
    identity.golden_entries.cache_clear()


def entry(*choices, ffn_ratio=4.0, version):
    return {"choices": [*choices, ffn_ratio], "numerics_version": version}


ENTRIES = [
    entry("learned", "real", "softmax", version=2),
    entry("learned", "complex", "softmax", version=3),
    entry("rotary", "real", "softmax", version=1),
    entry("rotary", "complex", "softmax", version=1),
    entry("rotary", "real", "softmax", ffn_ratio=3.25, version=7),
    # Of the same choices as the first: another size.
    entry("learned", "real", "softmax", version=4),
]


@pytest.mark.parametrize(
    ("position", "projection", "ffn_ratio", "version"),
    [
        ("learned", "complex", 4.0, 3),
        ("rotary", "real", 4.0, 1),
        ("rotary", "real", 3.25, 7),
        ("learned", "real", 4.0, 4),
        # Combinations without an entry: the lowest of each part's users, the highest of the parts.
        ("learned", "halved", 4.0, 2),
        ("rotary", "halved", 4.0, 1),
        ("sinusoidal", "real", 4.0, 1),
    ],
)
def test_numerics_version_of_a_model_and_of_a_combination(
    position, projection, ffn_ratio, version, monkeypatch
):
    monkeypatch.setattr(identity, "golden_entries", lambda: dict(enumerate(ENTRIES)))
    model = {
        "position": position,
        "projection": projection,
        "attention": "softmax",
    }
    assert numerics_version(model | {"ffn_ratio": ffn_ratio}) == version
