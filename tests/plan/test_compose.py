"""Composition of conf/: every file composes, every mistake is one line with the nearest valid name."""

import pytest

from crope import machine
from crope.config import ModelConfig
from crope.errors import ConfigError
from crope.plan.compose import (
    GROUPS,
    check_words,
    group_files,
    load_config,
    load_run,
    nearest,
    non_default_settings,
    quoted_override,
    variant_name,
)
from tests.conftest import raises_one_line


@pytest.mark.parametrize("number", range(max(len(group_files(group)) for group in GROUPS)))
def test_every_file_composes(number):
    """Those of this number of each group together."""
    chosen = {}
    for group in GROUPS:
        names = list(group_files(group))
        chosen[group] = names[number % len(names)]
    run = load_run([f"{group}={name}" for group, name in chosen.items()])
    parts = [chosen[group] for group in ("model", "data", "ablation")]
    assert run.run_id.startswith("-".join([*parts, "s0-"]))


def test_the_rate_falls_in_proportion_also_in_runs_of_a_few_steps():
    few = [load_run(["scale=quick", f"train.max_steps={steps}"]).config.train for steps in (2, 16)]
    assert [train.lr_step_size for train in few] == [1, 2]


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("model.n_layer=3", "did you mean model.n_layers"),
        ("lr=1", r"did you mean train\.lr\?"),
        ("data.validation_shares=1", "did you mean data.validation_share"),
        ("data.books=2", "set in a file of conf/data"),
        ("train.steps=9", r"did you mean train\.max_steps or train\.warmup_steps\?"),
        ("train.learning_rate=1", "the keys of train: batch_size, seq_len"),
        ("n_embd=1", "crope/config.py"),
        ("model=crop", "did you mean crope"),
        ("data=/home/me/text.txt", "conf/data"),
        ("data.corpus=tiny", "corpus: tiny must be ptb"),
        ("train.lr=fast", "train.lr: Value 'fast'"),
        ("model.projection=rael", "did you mean real"),
        ("train.precision=fp16", "train.precision=fp16 must be one of fp32, bf16"),
        ("seed=0,1", "add -m"),
        ("seed=0-4", r"range\(0,5\)"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(override, word):
    with raises_one_line(ConfigError, word):
        load_run([override])


def test_a_value_of_a_multirun_is_checked_before_the_first_run():
    check_words(["-m", "model.position=none,rotary", "model.position=choice(none,rotary)"])
    with raises_one_line(ConfigError, "runtime.device=gpu must be one of auto, cpu, cuda"):
        check_words(["-m", "runtime.device=cpu,gpu"])


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("CRoPE", "; did you mean crope?"),
        ("huge", "; valid: crope, rope, xpos"),
    ],
)
def test_the_nearest_name_whatever_its_case(name, hint):
    assert nearest(name, ["xpos", "crope", "rope"]) == hint


@pytest.mark.parametrize("path", ["a=b, [z]#{a}(b)'c'\"d\"\\", "x=${y}", "null"])
def test_a_path_may_have_any_character(path):
    assert load_run([quoted_override("data_dir", path)]).config.data_dir == path


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("n_layers: many", "model.n_layers: In 'model/crope'"),
        ("n_layers: [4", r"conf/model/crope\.yaml.*line"),
        ("n_layer: 3", "did you mean model.n_layers"),
    ],
)
def test_a_mistake_in_a_file_is_one_line(text, word, own_conf):
    with (own_conf / "model/crope.yaml").open("a") as handle:
        handle.write(f"\n{text}\n")
    with raises_one_line(ConfigError, word):
        load_run()


def test_a_corpus_has_no_other_label(own_conf):
    (own_conf / "data/relabelled.yaml").write_text("corpus: tiny\n")
    with pytest.raises(ConfigError, match=r"relabelled\.yaml: corpus: tiny"):
        load_run(["data=relabelled"])


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ("model=alibi model.projection=complex model.attention=softmax", "alibi+complex"),
        ("model=rope model.attention=linear", "rope+linear"),
        ("model=rope model.position=none", "rope+none"),
        ("model=rope model.d_model=64", "rope"),  # the hash of the run's id has sizes
    ],
)
def test_a_composed_variant_has_a_name_of_its_own(overrides, name):
    assert load_run(overrides.split()).model == name


def test_a_choice_that_the_models_file_leaves_open_is_in_the_name(own_conf):
    (own_conf / "model/mine.yaml").write_text("projection: complex\n")
    assert variant_name("mine", ModelConfig("rotary", "complex")) == "mine+rotary"


@pytest.mark.parametrize(
    ("flags", "precision"),
    [("amx_tile", "bf16"), ("fpu avx512_fp16", "fp32")],
)
def test_precision_is_what_the_machine_multiplies_fast(flags, precision, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\nflags\t: other\n")
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    run = load_run(["runtime.device=cpu"])
    assert run.config.train.precision == precision
    assert run.run_id == load_run([f"train.precision={precision}"]).run_id


@pytest.mark.parametrize(("has_gpu", "scale"), [(True, "paper"), (False, "quick")])
def test_the_scale_is_that_of_the_machine_unless_it_is_given(has_gpu, scale, monkeypatch):
    monkeypatch.setattr(machine, "has_gpu", lambda: has_gpu)
    assert load_run(["runtime.device=cpu"]).scale == scale
    assert load_run(["runtime.device=cpu", "scale=smoke"]).scale == "smoke"


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 1), ("max 100000", 8)])
def test_a_containers_quota_limits_the_cores(quota, cores, tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(machine, "CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    assert machine.usable_cores() == cores


def test_a_saved_config_loads_with_keys_of_older_schemas():
    run = load_run(["model=crope", "seed=3"])
    saved = run.container | {"old": 1}
    saved["runtime"]["old"] = 1
    assert load_config(saved) == run.config


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("seed=3 runtime.threads=2 tracker=none train.precision=bf16", ""),
        ("scale=paper ablation=b2_l512_d64", ""),
        ("train.lr=0.003", "train.lr=0.003"),
        ("model=alibi model.projection=complex model.n_layers=2", "model.n_layers=2"),
        # 800 steps become 400, which follows from the batch; the row's width from the row.
        ("train.batch_size=4", "train.batch_size=4"),
        ("ablation.d_model=64 eval.every=5", "ablation.d_model=64 eval.every=5"),
    ],
)
def test_what_was_special_about_a_run(overrides, expected):
    assert non_default_settings(load_run(overrides.split())) == expected.split()
