"""The report with studies in it: files, page, figures; and without."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest

from crope.report.figures import render_files
from crope.report.studies import build_studies
from crope.report.study_figures import build_study_figures
from crope.report.style import LIGHT
from crope.study import STUDIES
from tests.report.conftest import make_cells, read_source
from tests.report.page import read_page
from tests.report.study_runs import make_rows, make_studies, usual

FILES = {"studies.md", "studies.csv", "studies.tex", "study_losses.csv"}


def test_without_a_study_a_line_says_how_to_run_it(whole_study, build, no_pictures) -> None:
    out_dir = build(study_rows=make_rows())
    page = read_page(out_dir)
    assert {f"study-{study}" for study in STUDIES} < set(page.ids)
    for study in STUDIES:
        assert f"make reproduce STUDY={study} SCALE=quick SEEDS=3 makes its runs" in page.text
    assert not FILES & {path.name for path in out_dir.iterdir()}
    assert "studies" not in read_page(build(name="plain")).ids


def test_questions_tables_and_runs_are_on_the_page(all_studies, build, no_pictures) -> None:
    out_dir = build(runs=all_studies, study_rows=make_rows())
    page = read_page(out_dir)
    assert {path.name for path in out_dir.iterdir()} >= FILES
    for text in (
        "Does complex beat low rank at half the weights?",
        "not defined: learned positions end at 1024",
        "Does CRoPE − RoPE drift as the model grows? (PG-19)",
        "Against other maps of half the weights",
        "block-diagonal",
        "B=16, L=1024, D=128, γ=0.8, step=1000, here D=512, wide CRoPE",
    ):
        assert text in page.text
    assert "stand in no table" not in page.text  # each run belongs to a study or a table
    targets = {link[1:] for link in page.links if link.startswith("#")}
    assert targets <= set(page.ids)
    written = (out_dir / "studies.md").read_text()
    assert written.count("\n\n**") == len(STUDIES) + 1  # the questions, a table each, the checks
    assert "| PG-19 | CRoPE | 98,304 | 50.0 % | 1,217,792 | 3 |" in written


def test_losses_as_csv_are_the_runs_own(runs_dir, build, no_pictures) -> None:
    make_studies(runs_dir, ["length", "scaling"], datasets=["pg19"], without=["nope"])
    rows = list(csv.DictReader(io.StringIO((build(study_rows=make_rows()) / "study_losses.csv").read_text())))
    (row,) = [row for row in rows if (row["study"], row["width"], row["model"]) == ("scaling", "256", "complex_wide")]
    mean = sum(usual("complex_wide", "pg19", 256, seed) for seed in range(3)) / 3
    assert float(row["mean_nats"]) == pytest.approx(mean, abs=1e-6)
    assert (row["n"], row["seq_len"], row["projection"]) == ("3", "1024", "complex_wide")
    lengths = [row for row in rows if row["study"] == "length" and row["dataset"] == "pg19"]
    assert [row["seq_len"] for row in lengths if row["model"] == "rope"] == ["1024", "2048", "4096"]
    assert [row["mean_nats"] == "" for row in lengths if row["model"] == "learned"] == [False, True, True]
    (missing,) = [row for row in lengths if row["model"] == "nope"]
    assert (missing["status"], missing["n"], missing["mean_nats"]) == ("missing", "0", "")


def test_twice_the_same_bytes_and_nothing_is_left_behind(all_studies, build, no_pictures) -> None:
    """A report without the studies removes what they left."""
    first, second = (build(name=name, runs=all_studies, study_rows=make_rows()) for name in "ab")
    assert {path.name for path in first.iterdir()} >= FILES
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name
    (first / "length.svg").touch()
    build(name="a", runs=all_studies)
    assert not {path.name for path in first.iterdir()} & (FILES | {"length.svg"})


def test_figures_have_the_same_bytes_twice(runs_dir, read_sound) -> None:
    make_studies(runs_dir, STUDIES, datasets=["pg19"], seeds=[0, 1, 2])

    def draw() -> dict[str, bytes]:
        studies = build_studies(read_sound(), make_rows(), tables=set(), unavailable={})
        plots = build_study_figures(studies, 0.02)
        return {name: data for plot in plots for name, data in render_files(plot, scale="quick", kinds=["svg"]).items()}

    first = draw()
    assert list(first) == [f"{study}.svg" for study in STUDIES]
    assert draw() == first


def test_figures_say_their_numbers_and_tell_models_apart(all_studies) -> None:
    runs = read_source(all_studies).runs
    studies = build_studies(runs, make_rows(), tables={cell.key for cell in make_cells()}, unavailable={})
    plots = {plot.name: plot for plot in build_study_figures(studies, 0.02)}
    assert list(plots) == list(STUDIES)
    assert "CRoPE − low rank: final −0.0780 (95 % " in plots["controls"].panels[0].text
    assert "RoPE 1024: 6.1000" in plots["length"].panels[0].text
    assert "CRoPE − RoPE at D = 512 +0.0163" in plots["scaling"].panels[1].text
    for study in ("length", "scaling"):
        colours = [handle.get_color() for handle in plots[study].legend()]
        assert len(set(colours)) == len(colours)
    assert set(LIGHT.others).isdisjoint(LIGHT.models.values())


def test_studies_need_no_torch(runs_dir: Path) -> None:
    """In a process of its own: the modules of the studies, imported, bring neither torch nor wandb."""
    modules = "answer_tables, answers, lengths, page_studies, questions, studies, study_figures, study_tables"
    code = f"import sys; from crope.report import {modules}; sys.exit(bool({{'torch', 'wandb'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_studies_may_be_another_machines_than_the_tables(whole_study, all_studies, build, no_pictures) -> None:
    elsewhere = read_source(all_studies, machine="a-gpu")
    page = read_page(build(study_rows=make_rows(), studied=elsewhere))
    alone = read_page(build(name="alone", runs=all_studies, study_rows=make_rows()))
    assert "The runs of the studies are the published records of a-gpu." in page.text
    assert "records of a-gpu" not in alone.text
    answers = (build(name="again", study_rows=make_rows(), studied=elsewhere) / "studies.csv").read_text()
    assert answers == (build(name="other", runs=all_studies, study_rows=make_rows()) / "studies.csv").read_text()
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)  # their runs are on the page
