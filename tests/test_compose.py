"""The configuration: what composes, what is refused and in which words, and what names a run."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import yaml

from crope import compose
from crope.compose import GROUPS, compose_config, group_files, load_run
from crope.config import ROOT, cell_key, keys, run_hash
from crope.errors import ConfigError

FILES = [(group, name) for group in GROUPS for name in group_files(group)]

# The keys that users and other tools rely on, typed here independently of the schema.
STATED_KEYS = {
    "model": "position projection attention n_layers n_heads d_model dropout tied_head qkv_bias embed_scale",
    "tokenizer": "name vocab_size",
    "train": "batch_size seq_len max_steps lr lr_gamma lr_step_size beta1 beta2 eps weight_decay precision",
    "eval": "every batches full_every full_tokens",
    "runtime": "device compile loss cuda_graphs jobs accumulate threads deterministic log_every checkpoint_every",
}


@pytest.mark.parametrize(("group", "name"), FILES)
def test_every_file_composes(group: str, name: str) -> None:
    run = load_run([f"{group}={name}"])
    assert run.run_id.startswith(f"{run.model}-{run.dataset}-{run.row}-s0-")


@pytest.mark.parametrize(("section", "names"), STATED_KEYS.items())
def test_keys_are_the_stated_ones(section: str, names: str) -> None:
    assert {key.split(".")[1] for key in keys() if key.startswith(f"{section}.")} == set(names.split())
    assert {"seed", "results_dir", "data_dir"} <= keys().keys()


def test_paper_scale_is_the_papers_setting() -> None:
    """Secs. 5.1 and 5.3, typed from the paper."""
    config = load_run(["scale=paper", "model=rope"]).config
    train, model = config.train, config.model
    assert (model.n_layers, model.n_heads, model.d_model) == (4, 4, 128)
    assert (train.batch_size, train.seq_len, train.max_steps) == (16, 1024, 10_000)
    assert (train.lr, train.lr_gamma, train.lr_step_size) == (0.001, 0.8, 1000)
    assert config.eval.every == 20


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("base", (16, 1024, 128, 0.8, 1000)),
        ("b2_l512_g09_s2000", (2, 512, 128, 0.9, 2000)),
        ("b2_l512_g09_s1000", (2, 512, 128, 0.9, 1000)),
        ("b2_l512_d64", (2, 512, 64, 0.9, 1000)),
    ],
)
def test_rows_are_those_of_table_2(row: str, expected: tuple[float, ...]) -> None:
    config = load_run(["scale=paper", f"ablation={row}"]).config
    train = config.train
    found = (train.batch_size, train.seq_len, config.model.d_model, train.lr_gamma, train.lr_step_size)
    assert found == expected


@pytest.mark.parametrize("row", ["base", "b2_l512_g09_s2000", "b2_l512_g09_s1000", "b2_l512_d64"])
def test_quick_runs_see_enough_tokens_and_decay_like_the_papers(row: str) -> None:
    quick, paper = (load_run([f"scale={scale}", f"ablation={row}"]).config.train for scale in ("quick", "paper"))
    assert quick.batch_size * quick.seq_len * quick.max_steps >= 400_000
    assert quick.lr_step_size / quick.max_steps == pytest.approx(paper.lr_step_size / paper.max_steps)


def test_models_differ_in_one_choice_each() -> None:
    xpos, rope, crope = (
        dataclasses.asdict(load_run([f"model={name}"]).config.model) for name in ("xpos", "rope", "crope")
    )
    assert {key for key in rope if xpos[key] != rope[key]} == {"position"}
    assert {key for key in rope if crope[key] != rope[key]} == {"projection"}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("+foo=1", "unknown key 'foo' (in '+foo=1' on the command line)"),
        ("+model.thetaa=3", "unknown key 'model.thetaa' (in '+model.thetaa=3' on the command line)"),
        ("++model.n_layer=3", "did you mean model.n_layers?"),
        ("train.batch_sze=3", "did you mean train.batch_size?"),
        ("d_model=64", "did you mean model.d_model?"),
        ("modle=rope", "did you mean model?"),
        ("tokenizer=gpt2", "is a section, not a key; set one of tokenizer.name, tokenizer.vocab_size"),
        ("~model.dropout", "every key is needed"),
        ("train.lr", "is not of the form key=value"),
        ("train.lr=fast", "train.lr (command line): Value 'fast' of type 'str' could not be converted to Float"),
        ("seed=1.5", "seed (command line): Value '1.5'"),
        ("model.tied_head=maybe", "model.tied_head (command line)"),
        ("model=rop", "there is no conf/model/rop.yaml; did you mean rope? there are: alibi, blockdiag"),
        ("model=rope,crop", "there is no conf/model/crop.yaml"),
        ("study=tabel1", "did you mean table1?"),
        ("scale=huge", "there are: paper, quick, smoke"),
        ("seed=0,1", "is a list of runs; add -m"),
        ("seed=-1", "seed=-1 (command line): must be at least 0"),
        ("train.lr=0", "train.lr=0.0 (command line): must be a finite number above 0"),
        ("train.lr=-1e-3", "train.lr=-0.001"),
        ("train.lr=nan", "train.lr=nan"),
        ("train.lr=inf", "train.lr=inf"),
        ("train.max_steps=0", "train.max_steps=0 (command line): must be at least 1"),
        ("eval.every=0", "eval.every=0 (command line): must be at least 1"),
        ("eval.full_every=0", "eval.full_every=0"),
        ("runtime.log_every=0", "runtime.log_every=0"),
        ("runtime.checkpoint_every=0", "runtime.checkpoint_every=0"),
        ("model.dropout=1", "model.dropout=1.0 (command line): must be below 1"),
        ("model.position=rotry", "model.position=rotry (command line): must be one of alibi, "),
        ("model.d_model=130", "model.d_model=130 (command line): is not divisible by model.n_heads=4"),
        ("model.d_model=132", "gives heads of odd width 33"),
        ("scale=paper tokenizer.vocab_size=4096", "tokenizer.vocab_size=4096 (command line): must be 50257"),
    ],
)
def test_refused_in_one_line(override: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run(override.split())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("model/crope.yaml", "thetaa: 3", "unknown key 'model.thetaa' (set in conf/model/crope.yaml)"),
        ("scale/quick.yaml", "foo: 3", "unknown key 'foo' (set in conf/scale/quick.yaml)"),
        ("model/crope.yaml", "n_layers: many", "model.n_layers (conf/model/crope.yaml)"),
        ("model/crope.yaml", "n_heads: 3", "conf/ablation/base.yaml"),
    ],
)
def test_a_mistake_in_a_file_names_the_file(file: str, text: str, words: str, tmp_path: Path, monkeypatch) -> None:
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    monkeypatch.setattr(compose, "CONF_DIR", tmp_path / "conf")
    with (tmp_path / "conf" / file).open("a") as handle:
        handle.write(f"\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load_run([])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_identity_hangs_on_the_scientific_part_only(monkeypatch) -> None:
    run_id = load_run([]).run_id
    for same in ("runtime.threads=1", "runtime.log_every=7", "tracker=none", "results_dir=/tmp/x", "data_dir=/tmp/y"):
        assert load_run([same]).run_id == run_id, same
    for other in ("seed=1", "train.lr=0.002", "model.dropout=0.1", "tokenizer.vocab_size=512", "eval.every=10"):
        assert load_run([other]).run_id != run_id, other
    monkeypatch.setattr("crope.config.NUMERICS_VERSION", -1)
    assert load_run([]).run_id != run_id


def test_precision_is_resolved_before_naming(monkeypatch) -> None:
    monkeypatch.setattr("crope.device.cpu_has_bf16", lambda: True)
    assert load_run(["runtime.device=cpu"]).config.train.precision == "bf16"
    bf16 = load_run(["runtime.device=cpu"]).run_id
    assert load_run(["runtime.device=cpu", "train.precision=bf16"]).run_id == bf16
    monkeypatch.setattr("crope.device.cpu_has_bf16", lambda: False)
    assert load_run(["runtime.device=cpu"]).run_id == load_run(["train.precision=fp32"]).run_id != bf16


def test_cell_key_joins_seeds_and_precisions_and_nothing_else() -> None:
    key = cell_key(load_run([]).container)
    assert cell_key(load_run(["seed=5", "train.precision=fp32"]).container) == key
    assert cell_key(load_run(["train.weight_decay=0.1"]).container) != key
    unresolved = load_run([]).container
    unresolved["train"]["precision"] = "auto"
    with pytest.raises(ValueError, match="resolved"):
        run_hash(unresolved)


def test_saved_config_gives_the_same_run(tmp_path: Path) -> None:
    container = load_run(["model=crope", "seed=3"]).container
    assert run_hash(yaml.safe_load(yaml.safe_dump(container))) == run_hash(container)


def test_hydra_keys_pass() -> None:
    assert compose_config(["hydra.verbose=true"]).hydra.verbose is True
