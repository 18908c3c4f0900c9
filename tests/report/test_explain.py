"""The way from runs to a printed number: on runs whose numbers are worked out by hand, then on the committed ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from crope import study
from crope.config import NUMERICS_VERSION, ROOT
from crope.errors import UserError
from crope.lookup import PUBLISHED
from crope.report.explain import cell_name, explain, list_cells, load_evidence
from crope.report.tables import build_table


@pytest.fixture(autouse=True)
def _cells_of_the_fixtures(monkeypatch, cells) -> None:
    """The runs of `write_run` belong to these cells; composing conf/ would give those of a real run."""
    monkeypatch.setattr("crope.report.sources.expected_cells", lambda scale, datasets=None: cells)


@pytest.fixture
def load(runs_dir, tmp_path):
    def load(**options):
        return load_evidence(results_dir=runs_dir.parent, published=tmp_path / "published", **options)

    return load


def write_measured(write_run, seed: int, final: float, sampled: list[float], **options) -> Path:
    """A run whose curve has these two sampled losses at steps 90 and 100."""
    mean, std = sum(sampled) / 2, (sampled[1] - sampled[0]) / 2**0.5
    return write_run("crope", "ptb", seed=seed, final=final, sampled=mean, std=std, **options)


def test_every_step_of_a_cell(write_run, load) -> None:
    first = write_measured(write_run, 0, 4.0, [4.25, 4.75])
    write_measured(write_run, 1, 4.5, [5.0, 5.0])
    text = explain("table1/ptb/crope", load())
    lines = text.splitlines()
    assert lines[0].startswith("table1/ptb/crope: complete (scale quick, runs of ")
    assert "  run with B=16, L=1024, D=128, γ=0.8, step=1000, 100 steps" in lines
    assert "full: loss after the last step on 65,536 tokens of the validation split (val_full of summary.json)" in lines
    assert "  mean over seeds: (4.000000 + 4.500000) / 2 = 4.250000" in lines
    root = "sqrt(((-0.250000)² + (0.250000)²) / 1) = 0.353553"
    assert f"  ± over seeds, sample standard deviation: {root}" in lines
    assert "  in the table: 4.2500 ± 0.3536" in lines
    assert "  seed 0  2 losses at steps 90 to 100: mean 4.500000, standard deviation 0.353553" in lines
    assert "  mean over seeds: (4.500000 + 5.000000) / 2 = 4.750000" in lines
    over = "± over sampled batches, mean of the runs' standard deviations"
    assert f"  {over}: (0.353553 + 0.000000) / 2 = 0.176777" in lines
    assert "  in the table: 4.7500 ± 0.1768" in lines
    assert "paper: 4.0158 ± 0.0233 (Table 1)" in lines
    assert "  seed 0, final 4.000000, best 3.875000 at step 80, fp32 on a CPU" in lines
    assert "  commit      0123456789abcdef" in lines
    for name, file in (("config", "config.yaml"), ("provenance", "provenance.json"), ("curve", "metrics.jsonl")):
        assert f"  {name:<11} {first / file}" in lines


def test_one_seed_and_a_failed_one(write_run, load) -> None:
    write_measured(write_run, 0, 4.0, [4.0, 4.0])
    failed = write_run("crope", "ptb", seed=1, error={"type": "NonFiniteLoss", "message": "nan", "step": 7})
    text = explain("table1/ptb/crope", load())
    assert "± over seeds" not in text and "  in the table: 4.0000\n" in text
    assert f"not counted: {failed.name} failed: NonFiniteLoss: nan (step 7)" in text


def test_a_run_whose_curve_contradicts_its_summary_is_not_counted(write_run, load) -> None:
    write_measured(write_run, 0, 4.0, [4.0, 4.5])
    path = write_measured(write_run, 1, 9.0, [9.0, 9.5]) / "metrics.jsonl"
    path.write_text(path.read_text("utf-8").replace("9.5", "9.25"), "utf-8")
    text = explain("table1/ptb/crope", load())
    assert f"not counted: {path.parent.name} is damaged: " in text
    assert "  mean over seeds: (4.000000) / 1 = 4.000000" in text


@pytest.mark.parametrize(
    ("options", "says"),
    [({"numerics_version": NUMERICS_VERSION + 1}, "stale"), (None, "missing")],
)
def test_an_empty_cell_says_why(write_run, load, options, says) -> None:
    write_run("rope", "pg19")
    if options:
        write_run("crope", "ptb", **options)
    lines = explain("table1/ptb/crope", load()).splitlines()
    assert lines[0].startswith(f"table1/ptb/crope: {says} ")
    assert "make reproduce SCALE=quick" in lines[1] and lines[-1].startswith("paper: 4.0158")


def test_unknown_cells_name_the_nearest(load) -> None:
    with pytest.raises(UserError, match="did you mean table1/ptb/crope") as caught:
        explain("table1/ptb/crop", load())
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"table2/<row>/<dataset>/<model>"):
        explain("nonsense", load())


def test_names_follow_the_two_forms(load, cells) -> None:
    names = [cell_name(cell) for cell in cells]
    assert len(set(names)) == len(cells) == 21
    assert names[0] == "table1/pg19/xpos" and names[-1] == "table2/b2_l512_d64/pg19/crope"
    lines = list_cells(load()).splitlines()
    assert lines[1] == "table1/pg19/xpos  missing, n = 0" and len(lines) == 22


def test_own_runs_come_before_the_committed_ones(write_run, load, tmp_path) -> None:
    for machine, models in (("cpu", ["rope"]), ("gpu", ["rope", "crope"])):
        for model in models:
            write_run(model, "ptb", folder=tmp_path / "published" / machine)
    found = load().source
    assert (found.folders, found.machine) == ((tmp_path / "published" / "gpu",), "gpu")  # the machine with most runs
    assert "published/gpu" in explain("table1/ptb/crope", load()).splitlines()[0]
    named = load(folders=[tmp_path / "published" / "cpu"]).source
    assert (named.folders, named.machine) == ((tmp_path / "published" / "cpu",), "")
    write_run("xpos", "ptb", scale="smoke")
    assert (load().source.scale, load().source.folders) == ("smoke", (tmp_path / "results" / "runs",))
    assert load(scale="quick").source.machine == "gpu"
    assert load(scale="paper").source.folders == (tmp_path / "results" / "runs",)  # none anywhere: missing, as asked


def test_the_committed_records_explain_the_readmes_table(monkeypatch) -> None:
    """Every printed number of Tables 1 and 2 is the one that the explanation ends in."""
    monkeypatch.setattr("crope.report.sources.expected_cells", study.expected_cells)
    evidence = load_evidence(results_dir=ROOT / "nowhere")
    assert evidence.source.folders[0].parent == PUBLISHED
    for table in ("table1", "table2"):
        groups = build_table(evidence.results, table, scale=evidence.source.scale).groups
        printed = [e.text for group in groups for line in group.lines if line.protocol == "full" for e in line.entries]
        names = [cell_name(result.cell) for result in evidence.results if result.cell.table == table]
        found = [re.findall(r"in the table: (.*)", explain(name, evidence))[0] for name in names]
        assert found == printed and len(found) in (9, 12)


def test_the_script_prints_it_and_fails_in_one_line(tmp_path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "explain.py"), "--results-dir", str(tmp_path)]
    done = subprocess.run([*command, "table1/ptb/crope"], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.startswith("table1/ptb/crope: complete (scale ")
    failed = subprocess.run([*command, "table1/ptb/crop"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert failed.returncode == 1 and failed.stderr.startswith("error: cell 'table1/ptb/crop'")
    assert failed.stderr.count("\n") == 1
