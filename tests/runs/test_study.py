"""Studies: Hydra's composition as the oracle of their runs, the tables' cells, and status from run
folders.
"""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from crope.errors import ConfigError
from crope.runs import study
from crope.runs.compose import (
    Run,
    at_precision,
    group_files,
    group_values,
    load_run,
    quoted_override,
)
from crope.runs.identity import cell_key
from crope.runs.record import PUBLISHED, read_records
from crope.runs.run import run_lock
from crope.runs.study import (
    DONE,
    MISSING,
    TABLES,
    RunState,
    compose_runs,
    expected_cells,
    expected_rows,
    planned_scale,
    planned_seeds,
    seconds_left,
    study_axes,
    study_runs,
    study_status,
)


@pytest.mark.parametrize("scale", group_files("scale"))
def test_choices_compose_to_what_hydra_composes(scale: str) -> None:
    """The last run of every study; `runtime` stands for overrides that hold for all runs."""
    common = [
        f"scale={scale}",
        "train.precision=fp32",
        "results_dir=elsewhere",
        "runtime=deterministic",
    ]
    for name in group_files("study") if scale == "quick" else TABLES:
        choice = {axis: values[-1] for axis, values in study_axes(name).items()}
        assert compose_runs([choice], common) == [
            load_run([*common, *(f"{k}={v}" for k, v in choice.items())])
        ]


def test_keys_of_a_scale_of_the_users_own_hold_for_every_model(own_conf: Path) -> None:
    smoke = (own_conf / "scale/smoke.yaml").read_text()
    (own_conf / "scale/deep.yaml").write_text(f"{smoke}\nmodel:\n  n_layers: 2\n  ffn_ratio: 2\n")
    common = ["scale=deep", "train.precision=fp32"]
    for model in ("rope", "thin_ffn", "xpos"):
        (run,) = compose_runs([{"data": "tiny", "model": model}], common)
        assert run == load_run([*common, "data=tiny", f"model={model}"])
        assert (run.config.model.n_layers, run.config.model.ffn_ratio) == (2, 2)


def test_both_tables_are_18_runs_per_seed_with_seeds_outermost() -> None:
    runs = study_runs(TABLES, scale="quick", seeds=3, overrides=["train.precision=fp32"])
    assert len({run.run_id for run in runs}) == len(runs) == 54
    assert [run.config.seed for run in runs] == [0] * 18 + [1] * 18 + [2] * 18
    table2 = study_runs(["table2"], scale="quick", seeds=1, overrides=["train.precision=fp32"])
    assert [run.row for run in table2 if run in runs].count("base") == 3, (
        "the base row is Table 1's"
    )


@pytest.mark.parametrize(
    ("seeds", "length", "pilot"), [(None, {3, 4, 5, 6, 7}, {0}), (1, {3}, {0}), (2, {3, 4}, {0, 1})]
)
def test_seeds_are_the_first_of_each_study(
    seeds: int | None, length: set[int], pilot: set[int]
) -> None:
    """`length` has seeds 3 to 7, on WikiText-2, `pilot` has seed 0, on Penn Treebank."""
    runs = study_runs(["length", "pilot"], scale="smoke", seeds=seeds)
    for dataset, expected in (("wikitext2", length), ("ptb", pilot)):
        assert {run.config.seed for run in runs if run.dataset == dataset} == expected


def test_the_same_runs_in_two_precisions_are_refused(monkeypatch) -> None:
    """The second study's would be taken for those of the first."""
    axes = {"data": ["ptb"], "model": ["rope"]}
    monkeypatch.setattr(study, "study_axes", lambda name: axes | {"train.precision": [name]})
    monkeypatch.setattr(study, "planned_seeds", lambda name: (0,))
    assert len(study_runs(["bf16", "bf16"], scale="smoke")) == 1
    with pytest.raises(ConfigError, match="precision"):
        study_runs(["fp32", "bf16"], scale="smoke")


def test_a_study_is_composed_by_hydra_once(monkeypatch: pytest.MonkeyPatch) -> None:
    study._compose_base.cache_clear()
    calls, real = [], study.compose_config
    monkeypatch.setattr(
        study, "compose_config", lambda overrides: (calls.append(overrides), real(overrides))[1]
    )
    runs = study_runs(["schemes"], scale="paper", seeds=3)
    assert len(runs) == 3 * len(study_axes("schemes")["model"])
    assert calls == [("scale=paper", "train.max_steps=3200")]


def test_cells_are_the_papers_in_its_order_and_those_of_the_runs() -> None:
    cells = expected_cells("quick")
    table1 = [(cell.dataset, cell.model) for cell in cells if cell.table == "table1"]
    assert table1 == [
        (data, model)
        for data in ("pg19", "wikitext2", "ptb")
        for model in ("xpos", "rope", "crope")
    ]
    rows = [
        (cell.dataset, cell.row)
        for cell in cells
        if cell.table == "table2" and cell.model == "rope"
    ]
    assert rows == [
        ("pg19", row) for row in ("base", "b2_l512_g09_s2000", "b2_l512_g09_s1000", "b2_l512_d64")
    ]
    runs = study_runs(TABLES, scale="quick", seeds=1)
    assert {cell.key for cell in cells} == {cell_key(run.container) for run in runs}
    assert len({cell.key for cell in cells}) == 18


def test_tiny_stands_in_for_missing_datasets() -> None:
    runs = study_runs(TABLES, scale="quick", seeds=1, datasets=["ptb", "tiny"])
    assert {(run.dataset, run.row) for run in runs} == {
        ("ptb", "base"),
        *(("tiny", row) for row in study_axes("table2")["ablation"]),
    }
    assert len(expected_cells("quick", datasets=["pg19", "wikitext2", "ptb", "tiny"])) == 12 + 24


@pytest.mark.parametrize(
    ("axis", "datasets", "expected"),
    [
        ("tiny", ["ptb"], ["tiny"]),
        ("tiny", ["ptb", "tiny"], ["tiny"]),
        ("letters,ptb", ["pg19", "tiny"], ["letters", "tiny"]),
    ],
)
def test_only_the_papers_datasets_are_restricted(
    axis: str, datasets: list[str], expected: list[str]
) -> None:
    assert [
        choice["data"] for choice in study._grid({"data": axis.split(",")}, datasets)
    ] == expected


def test_every_study_but_the_tables_has_rows() -> None:
    rows = expected_rows("quick", datasets=["wikitext2", "ptb"])
    everything = expected_rows("quick")
    assert {row.study for row in everything} == set(group_files("study")) - set(TABLES)
    planned = {"paper_row": "paper", "medium_nope": "medium", "cost": "quick", "controls": "quick"}
    scales = {row.study: {cell.scale for cell in row.cells} for row in everything}
    assert {study: scales[study] for study in planned} == {s: {at} for s, at in planned.items()}
    assert not {"paper_row", "cost"} & {row.study for row in expected_rows("smoke")}
    scaling = [(row.dataset, row.width, row.settings) for row in rows if row.study == "scaling"]
    assert scaling == [("ptb", width, ()) for width in (64, 128, 256)]
    assert (
        {row.seeds for row in rows if row.study == "base"}
        == {tuple(range(10))}
        == {planned_seeds("base")}
    )
    rates = [row for row in rows if row.study == "fair_lr"]
    assert [row.settings for row in rates] == 2 * [
        (f"train.lr={lr}",) for lr in (0.0003, 0.001, 0.003, 0.01)
    ]
    assert len({cell.key for row in rates for cell in row.cells}) == 16
    assert {cell.key for cell in rates[1].cells} < {cell.key for cell in expected_cells("quick")}


def test_a_study_that_is_no_study_is_a_config_error(monkeypatch) -> None:
    with pytest.raises(ConfigError, match="nosuch"):
        study_axes("nosuch")
    monkeypatch.setattr(
        "crope.runs.study.group_values", lambda group, name: {"hydra": {"mode": "MULTIRUN"}}
    )
    with pytest.raises(ConfigError, match="axes"):
        study_axes("empty")


@pytest.mark.parametrize(
    ("axis", "word"),
    [
        ({"seed": "0-4"}, "0-4"),
        ({"seed": "-1,1"}, "-1,1"),
        ({"seed": "0,0,1"}, "once"),
        ({"model.n_heads": "2,,4"}, "n_heads"),
        ({"model.n_heads": [2, 4]}, "commas"),
        ({"model.n_heads": "two"}, "Integer"),
        ({"model.d_model": "130"}, "divisible"),
        ({"model": "rope,roep"}, "did you mean rope"),
        ({"trian.lr": "1,2"}, "trian.lr"),
        ({"train.precision": "fp32,bf16"}, "precision: give one value"),
        ({"scale": "smoke,quick"}, "scale: give one value"),
        ([{"data": "ptb"}, {"model": "rope"}], "axes"),
        ({"train": {"max_steps": 7}}, "train: make it an axis"),
        ({}, "package"),
    ],
)
def test_a_file_that_is_no_study_is_named_and_left_out(
    axis: Any, word: str, own_conf: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(study, "group_values", group_values.__wrapped__)  # not from its cache
    beside = {"train": axis.pop("train")} if "train" in axis else {}
    params = {"data": "ptb", "model": "rope,crope", **axis} if isinstance(axis, dict) else axis
    text = yaml.safe_dump({"hydra": {"sweeper": {"params": params}}} | beside)
    text = f"# @package _global_\n{text}" if axis or beside else text
    (own_conf / "study/broken.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"conf/study/broken\.yaml.*{word}"):
        study_runs(["broken"], scale="smoke")
    files = {name: own_conf / f"study/{name}.yaml" for name in ("broken", "pilot")}
    monkeypatch.setattr(study, "group_files", lambda group: files)
    assert {row.study for row in expected_rows("quick")} == {"pilot"}
    assert "broken.yaml" in capsys.readouterr().err


def start(run: Run) -> None:
    run.path.mkdir(parents=True)
    (run.path / "config.yaml").touch()


def test_status_from_run_folders(tmp_path: Path) -> None:
    """One run each that is complete, failed, running, started; a free lock alone means nothing."""
    results = tmp_path / "räs, a=b"
    runs = study_runs(
        ["table1"],
        scale="quick",
        seeds=1,
        overrides=[quoted_override("results_dir", results), "train.precision=fp32"],
    )
    done, failed, running, started, locked_before = runs[:5]
    for run in (done, failed):
        source, *_ = PUBLISHED.glob(f"*/{run.run_id}")
        shutil.copytree(source, run.path)
    summary = json.loads((failed.path / "summary.json").read_text())
    summary |= {"status": "failed", "error": {"type": "E", "message": "no such luck", "step": None}}
    (failed.path / "summary.json").write_text(json.dumps(summary))
    start(started)
    (started.path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 20}\n{"st')
    with run_lock(locked_before):
        pass
    with run_lock(running):
        lines = study_status(["table1"], scale=None, seeds=1, results_dir=results).splitlines()
    assert lines[0] == "table1, quick: 9 runs: 1 done, 1 running, 1 started, 1 failed, 5 missing"
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["running", running.run_id], ["started", started.run_id], ["failed", f"{failed.run_id}:"],
    ]  # fmt: skip
    assert re.match(r"about \d+:\d\d:\d\d \(h:min:s\) .* 1 at a time", lines[4])
    assert "step 20 of 800" in lines[2] and "no such luck" in lines[3]


@pytest.mark.parametrize("content", ["", "{", "null", "7", "[" * 100_000])
def test_status_reads_over_corrupt_files_of_unfinished_runs(
    content: str, tmp_path: Path, capsys
) -> None:
    (tmp_path / "unavailable.json").write_text(content)
    options = ["train.precision=fp32", f"results_dir={tmp_path}"]
    run = study_runs(["table1"], scale="quick", seeds=1, overrides=options)[0]
    start(run)
    (run.path / "metrics.jsonl").write_text(f"{content}\n")
    text = study_status(["table1", "table2"], scale=None, seeds=1, results_dir=tmp_path)
    assert text.startswith("table1, quick: 9 runs: 1 started, 8 missing\ntable2, quick: 12 runs: ")
    assert text.count("step 0") == 1
    assert text.endswith("for 18 runs")  # three of them in both tables
    assert "unavailable.json" in capsys.readouterr().err


def test_status_without_a_scale_is_that_of_started_runs(tmp_path: Path) -> None:
    options = ["train.precision=bf16", f"results_dir={tmp_path}"]
    run = study_runs(["base"], scale="medium", seeds=1, overrides=options)[0]
    start(run)
    (run.path / "provenance.json").write_text('{"scale": "medium"}')
    text = study_status(["base"], scale=None, seeds=1, results_dir=tmp_path)
    assert text.startswith("base, medium: 4 runs: 1 started, 3 missing")


def test_of_a_run_in_both_precisions_that_of_the_other_runs_counts(tmp_path: Path) -> None:
    run = study_runs(["base"], scale="smoke", seeds=1, overrides=[f"results_dir={tmp_path}"])[0]
    for precision in ("fp32", "bf16"):
        start(at_precision(run, precision))
    for precision in ("fp32", "bf16"):
        assert study._recorded(run, precision).config.train.precision == precision


def test_a_dataset_that_was_missing_and_is_there_now_is_expected(
    tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "unavailable.json").write_text('{"ptb": "no network"}')
    monkeypatch.setattr("crope.data.corpora.RAW_DIR", tmp_path)
    monkeypatch.setenv("CROPE_DATA_DIR", str(tmp_path))
    options = {"scale": "smoke", "seeds": 1, "results_dir": tmp_path}
    assert study_status(["base"], **options).startswith("base, smoke: 4 runs")  # WikiText-2, tiny
    monkeypatch.setattr(
        study, "study_runs", lambda *_, datasets, **__: asked.append(datasets) or []
    )
    asked: list[object] = []
    study_status(["base"], **options)
    for name in ("train", "valid"):
        (tmp_path / "ptb").mkdir(exist_ok=True)
        (tmp_path / "ptb" / f"{name}.txt").touch()
    study_status(["base"], **options)
    assert asked == [["pg19", "wikitext2", "tiny"], None]


def test_time_left_takes_equal_shape_precision_and_device_only(tmp_path: Path) -> None:
    options = ["data=ptb", f"results_dir={tmp_path}"]
    run = load_run(["model=crope", "scale=quick", "train.precision=fp32", *options])
    source, *_ = PUBLISHED.glob(f"*/{run.run_id}")
    shutil.copytree(source, run.path)
    ((record,), _) = read_records(tmp_path / "runs")
    step_s, steps = record.summary["time"]["median_step_ms"] / 1000, run.config.train.max_steps
    same = load_run(["model=rope", "scale=quick", "train.precision=fp32", *options])
    bf16 = load_run(["model=rope", "scale=quick", "train.precision=bf16", *options])
    wider = load_run(
        ["model=rope", "scale=quick", "train.precision=fp32", "model.d_model=256", *options]
    )
    states = [RunState(run, DONE, steps), RunState(same, MISSING), RunState(same, MISSING, 200)]
    states += [RunState(bf16, MISSING), RunState(wider, MISSING)]
    assert seconds_left(states, [record]) == (pytest.approx(step_s * (2 * steps - 200)), 2)
    assert seconds_left(states, []) == (0.0, 4)
    slow = record.summary | {"time": record.summary["time"] | {"median_step_ms": 1e9}}
    elsewhere = record.provenance | {"device": "another"}
    other = replace(record, summary=slow, provenance=elsewhere)
    assert seconds_left(states, [other, record]) == seconds_left(states, [record])


def test_a_study_may_fix_its_scale() -> None:
    assert planned_scale(["controls"]) is None
    assert planned_scale(["paper_row_xpos", "paper_row"]) == "paper"
    for other in ("cost", "controls"):
        with pytest.raises(ConfigError, match="different scales"):
            planned_scale(["paper_row", other])
