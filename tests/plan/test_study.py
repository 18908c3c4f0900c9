"""Studies: Hydra's composition as the oracle of their runs, their plans, the rows of tables."""

import pytest

from crope.errors import ConfigError
from crope.files import json_sha256
from crope.paper import ROW_LABELS
from crope.plan import study
from crope.plan.compose import group_files, group_values, load_run
from crope.plan.study import (
    TABLES,
    common_scale,
    compose_runs,
    expected_cells,
    load_study,
    study_runs,
    table_cells,
)

FP32 = ["train.precision=fp32"]
# Every study of this repository, as it was before its runs. Another digest of their names, scales and
# axes, seeds among them, means that another experiment bears the name of one of these.
NAMES = """
base baselines controls cost early_lead early_lead_qkv fair_lr horizon length levels linear long_small medium
medium_rate medium_warmup paper_row paper_row_thin paper_row_xpos paper_rows paper_seed0 paper_table1 pilot
qkv_rate qkv_rate_high qkv_rate_mid rate_edge rate_mean rates rates_256 rates_64 scaling schemes table1
table1_early table1_medium table1_medium_xpos table2 tiny tuned_lr width_256 width_512 width_64
"""
PLANS = "4720a424a5"
# By their axes: every key and group that a study varies.
STUDIES = ("table1", "scaling", "pilot", "levels", "qkv_rate_mid")


def test_plans_are_those_that_were_committed():
    studies = map(load_study, NAMES.split())
    plans = [[plan.name, plan.scale, plan.seeds, *plan.axes.items()] for plan in studies]
    assert json_sha256(plans)[:10] == PLANS


@pytest.mark.parametrize("scale", group_files("scale"))
def test_choices_compose_to_what_hydra_composes(scale):
    """The last run of a study; `runtime` stands for overrides that hold for all runs."""
    common = [f"scale={scale}", *FP32, "results_dir=elsewhere", "runtime=deterministic"]
    for name in STUDIES if scale == "quick" else ["table2"]:
        choice = {axis: values[-1] for axis, values in load_study(name).axes.items()}
        (run,) = compose_runs([choice], common)
        assert run == load_run([*common, *[f"{axis}={value}" for axis, value in choice.items()]])


def test_keys_of_a_scale_of_the_users_own_hold_for_every_model(own_conf):
    """That model's file has another ffn_ratio."""
    smoke = (own_conf / "scale/smoke.yaml").read_text()
    (own_conf / "scale/deep.yaml").write_text(f"{smoke}\nmodel:\n  n_layers: 2\n  ffn_ratio: 2\n")
    (run,) = compose_runs([{"data": "tiny", "model": "thin_ffn"}], ["scale=deep", *FP32])
    assert run == load_run(["scale=deep", *FP32, "data=tiny", "model=thin_ffn"])
    assert run.config.model.ffn_ratio == 2


def test_both_tables_are_18_runs_per_seed_with_seeds_outermost():
    runs = study_runs(TABLES, scale="quick", seeds=3, overrides=FP32)
    seeds = [run.config.seed for run in runs]
    assert seeds == [0] * 18 + [1] * 18 + [2] * 18
    assert len({run.run_id for run in runs}) == 54


@pytest.mark.parametrize(
    ("count", "seeds"),
    [
        (None, (3, 4, 5, 6, 7)),
        (2, (3, 4)),
        (7, (3, 4, 5, 6, 7, 8, 9)),
    ],
)
def test_seeds_beyond_a_plan_follow_its_largest(count, seeds):
    assert load_study("length").first_seeds(count) == seeds


def test_each_study_has_its_own_first_seeds():
    runs = study_runs(["length", "pilot"], scale="smoke", seeds=1)
    assert {(run.dataset, run.config.seed) for run in runs} == {("wikitext2", 3), ("ptb", 0)}


def test_cells_of_tables_are_the_papers_in_its_order():
    """Three models a row; Table 2 shares its base row with Table 1."""
    cells = table_cells("quick")
    assert [cell.dataset for cell in cells[:9:3]] == ["pg19", "wikitext2", "ptb"]
    assert [cell.model for cell in cells[:3]] == ["xpos", "rope", "crope"]
    assert [cell.row for cell in cells[9::3]] == list(ROW_LABELS)
    assert cells[0].planned == (0, 1, 2, 3, 4)
    assert len(cells) == 21


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("scaling", ["model.d_model=64", "model.d_model=128", "model.d_model=256"]),
        ("fair_lr", [f"train.lr={rate}" for rate in ("0.0003", "0.001", "0.003", "0.01")]),
        ("cost", [""]),
        ("table2", [""]),
    ],
)
def test_the_setting_of_a_cell_is_what_varies_within_its_row(name, settings):
    """But for the corpus, the model and the seed; `cost` fixes its number of steps."""
    assert list(dict.fromkeys(cell.setting for cell in load_study(name).cells("quick"))) == settings


def test_cells_are_at_the_scale_that_their_study_fixes():
    scales = {cell.study: cell.scale for cell in expected_cells("quick")}
    assert set(scales) == group_files("study").keys() - {"table1", "table2"}
    assert scales["paper_row"] == "paper"
    assert scales["controls"] == "quick"


def test_a_smoke_test_shows_no_study_of_another_scale():
    assert {cell.scale for cell in expected_cells("smoke")} == {"smoke"}


def test_studies_of_two_scales_are_not_run_together():
    """The second one is planned at any scale."""
    with pytest.raises(ConfigError, match="different scales"):
        common_scale(["paper_row", "controls"])


@pytest.fixture
def write_study(own_conf, monkeypatch):
    """Writes conf/study/broken.yaml, beside which only `pilot` is left."""
    monkeypatch.setattr(study, "group_values", group_values.__wrapped__)  # not from its cache
    files = {name: own_conf / f"study/{name}.yaml" for name in ("broken", "pilot")}
    monkeypatch.setattr(study, "group_files", lambda group: files)
    monkeypatch.setattr(study, "load_study", load_study.__wrapped__)
    return files["broken"].write_text


@pytest.mark.parametrize(
    ("params", "word"),
    [
        ("data: ptb, model: rope, seed: '-1,1'", "-1,1"),
        ("data: ptb, model: rope, model.n_heads: [2, 4]", "commas"),
        ("data: ptb, model: 'rope,roep'", "did you mean rope"),
        ("data: ptb, model: rope, scale: 'smoke,quick'", "scale: give one value"),
        ("model: rope", "axes"),
        ("data: pg19, data.books: 2, model: rope", "file of conf/data"),
        ("data: ptb, model: 'crope,rope,crope'", "same run"),
        ("data: ptb, model: rope, train.weight_decay: '0,1,0.0'", "same run"),
    ],
)
def test_a_file_that_is_no_study_is_named_and_left_out(params, word, write_study, capsys):
    write_study(
        f"# @package _global_\nhydra: {{mode: MULTIRUN, sweeper: {{params: {{{params}}}}}}}\n"
    )
    with pytest.raises(ConfigError, match=rf"^conf/study/broken\.yaml.*{word}"):
        study_runs(["broken"], scale="smoke")
    cells = expected_cells.__wrapped__("quick")  # not from its cache
    assert {cell.study for cell in cells} == {"pilot"}
    assert "broken.yaml" in capsys.readouterr().err


def test_a_study_is_a_multirun(write_study):
    """train.py alone would train the defaults once."""
    write_study("# @package _global_\nhydra: {sweeper: {params: {data: ptb, model: rope}}}\n")
    with pytest.raises(ConfigError, match="mode: MULTIRUN"):
        study_runs(["broken"], scale="smoke")


def test_a_key_beside_the_axes_is_refused(write_study):
    """train.py alone would read it. That a file needs its first line is tested with that script."""
    text = "# @package _global_\ntrain: {max_steps: 7}\nhydra: {sweeper: {params: {data: ptb}}}\n"
    write_study(text)
    with pytest.raises(ConfigError, match=r"^conf/study/broken\.yaml: train: make it an axis"):
        study_runs(["broken"], scale="smoke")
