"""Composition of conf/: every file composes, every mistake is one line with the place and the
nearest valid name.
"""

from dataclasses import replace

import pytest

from crope.config import ModelConfig
from crope.errors import ConfigError
from crope.runs.compose import (
    GROUPS,
    check_overrides,
    compose_config,
    group_files,
    load_config,
    load_run,
    quote_path,
    quoted_override,
    special,
    variant_name,
)
from tests.conftest import raises_one_line

FILES = []
for group in GROUPS:
    FILES += [(group, name) for name in group_files(group)]


@pytest.mark.parametrize(("group", "name"), FILES)
def test_every_file_composes(group, name):
    run = load_run([f"{group}={name}"])
    assert run.run_id.startswith(f"{run.model}-{run.dataset}-{run.row}-s0-")


def test_quick_runs_see_409600_tokens_and_decay_like_the_papers():
    train = load_run(["scale=quick", "ablation=b2_l512_g09_s2000"]).config.train
    assert (train.batch_size, train.seq_len) == (1, 128)
    assert (train.max_steps, train.lr_step_size) == (3200, 640)
    few = [load_run([f"train.max_steps={steps}"]).config.train for steps in (2, 16)]
    assert [train.lr_step_size for train in few] == [1, 2]


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("++model.n_layer=3", "did you mean model.n_layers"),
        ("data.corpus=tiny", "data.corpus"),
        ("~model.dropout", "model.dropout"),
        ("train.lr", "key=value"),
        ("train.lr=fast", "train.lr: 'fast' is not a number"),
        ("train.max_steps=1e2", "an integer, such as 100"),
        ("model.tied_head=maybe", "true or false"),
        ("model=rope,crop", "did you mean crope"),
        ("study=table1,table2", "one study"),
        ("study=null", "None"),
        ("seed=0,1", "-m"),
        ("seed=interval(0,5)", "interval"),
        ("model=glob(*x)", "no value"),
        ("tracker.project=café", '"café"'),
        ("tracker.project=a/b", "tracker.project=a/b must be"),
        ("hydra.run.dir=elsewhere", "results_dir"),
        ("hydra/sweeper=basic", "hydra/sweeper"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(override, word):
    with raises_one_line(ConfigError, word):
        load_run(override.split())


def test_a_sweep_may_name_files_by_a_pattern():
    check_overrides(["model=glob(complex_*,exclude=*v)"], multirun=True)


@pytest.mark.parametrize(
    "path",
    [
        "~x=y, [z]#{a}(b)'c'\"d\"\\",
        "a,b",
        "x=${y}",
        "1_000",
        "null",
        "a\\'b",
    ],
)
def test_a_path_may_have_any_character(path):
    for override in (quoted_override("data_dir", path), quote_path(f"data_dir={path}")):
        check_overrides([override])
        assert load_run([override]).config.data_dir == path


@pytest.mark.parametrize(
    "text",
    [
        "results_dir",
        'results_dir="a,b"',
        "data_dir=${results_dir}/x",
        "seed=0,1",
    ],
)
def test_a_path_that_hydra_reads_is_left_as_it_is(text):
    assert quote_path(text) == text


def test_a_home_that_the_shell_leaves_is_found(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert quote_path("results_dir=~/x") == 'results_dir="/home/me/x"'


@pytest.mark.parametrize(
    ("file", "text", "word"),
    [
        ("model/crope.yaml", "n_layers: many", "conf/model/crope.yaml"),
        ("model/crope.yaml", "n_layers: [4", r"conf/model/crope\.yaml.*line"),
        ("data/ptb.yaml", "corpsu: ptb", "did you mean data.corpus"),
        ("model/crope.yaml", "# caf\xe9", r"conf/model/crope\.yaml.*UTF-8"),
        ("config.yaml", "# caf\xe9", r"conf/config\.yaml.*UTF-8"),
    ],
)
def test_a_mistake_in_a_file_is_one_line(file, text, word, own_conf):
    with (own_conf / file).open("a", encoding="latin-1") as handle:
        handle.write(f"\n{text}\n")
    with raises_one_line(ConfigError, word):
        load_run()


def test_a_corpus_has_no_other_label(own_conf):
    (own_conf / "data/relabelled.yaml").write_text("corpus: tiny\n")
    with pytest.raises(ConfigError, match=r"relabelled\.yaml: corpus: tiny"):
        load_run(["data=relabelled"])


def test_an_editors_files_and_broken_links_are_no_group_files(own_conf):
    (own_conf / "scale/.#quick.yaml").symlink_to("an.editor")
    (own_conf / "scale/gone.yaml").symlink_to("nowhere")
    (own_conf / "scale/folder.yaml").mkdir()
    assert list(group_files("scale")) == ["medium", "paper", "quick", "smoke"]


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


def test_a_choice_that_the_models_file_leaves_open_is_in_the_name(monkeypatch):
    values = {"projection": "complex"}
    monkeypatch.setattr("crope.runs.compose.group_values", lambda group, name: values)
    model = ModelConfig("rotary", "complex")
    assert variant_name("mine", model) == "mine+rotary"


@pytest.mark.parametrize(
    ("has_bf16", "precision"),
    [
        (True, "bf16"),
        (False, "fp32"),
    ],
)
def test_precision_is_resolved_before_naming(has_bf16, precision, monkeypatch):
    monkeypatch.setattr("crope.train.device.cpu_has_bf16", lambda: has_bf16)
    run = load_run(["runtime.device=cpu"])
    assert run.config.train.precision == precision
    assert run.run_id == load_run([f"train.precision={precision}"]).run_id


def test_a_saved_config_loads_with_keys_of_older_schemas():
    run = load_run(["model=crope", "seed=3"])
    saved = run.container | {"old": 1}
    saved["runtime"]["old"] = 1
    assert load_config(saved) == run.config


@pytest.mark.parametrize("key", ["hydra.verbose=true", "+hydra.launcher.qos=high"])
def test_hydras_own_keys_that_move_nothing_pass(key):
    assert compose_config([key]).tracker.name == "wandb"


@pytest.mark.parametrize(
    ("variable", "mode"),
    [
        ("disabled", "disabled"),
        ("dryrun", "offline"),
        ("run", "online"),
    ],
)
def test_wandbs_own_variables_count(variable, mode, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", variable)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    tracker = load_run().config.tracker
    assert (tracker.mode, tracker.project) == (mode, "mine")


def test_wandbs_own_mode_counts_where_none_is_given(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "nonsense")
    assert load_run(["tracker.mode=online"]).config.tracker.mode == "online"
    with raises_one_line(ConfigError, "tracker.mode=nonsense must be one of"):
        load_run()


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
    assert special(load_run(overrides.split())) == expected.split()


def test_nothing_is_special_about_a_run_whose_files_have_gone():
    assert special(replace(load_run(["train.lr=0.003"]), dataset="gone")) == []
