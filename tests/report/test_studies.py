"""Which runs a study is made of: what is there, missing, mixed or of no study at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from crope.report.answers import Answer
from crope.report.questions import build_answers
from crope.report.studies import MIXED, Study, build_studies
from crope.report.study_tables import study_sheet
from tests.report.conftest import make_cells, make_run
from tests.report.study_runs import make_rows, make_studies, measure, usual, write_one

MARGIN = 0.02
Found = Callable[[], dict[str, Study]]


@pytest.fixture
def found(runs_dir: Path, read_sound: Callable) -> Found:
    def found() -> dict[str, Study]:
        tables = {cell.key for cell in make_cells()}
        return {one.name: one for one in build_studies(read_sound(), make_rows(), tables=tables, unavailable={})}

    runs_dir.mkdir(parents=True)
    return found


def answer(study: Study, name: str) -> Answer:
    (one,) = [one for one in build_answers([study], MARGIN) if one.question.name == name]
    return one


def test_the_tables_own_runs_begin_no_study(found: Found, whole_study: None) -> None:
    studies = found()
    assert list(studies) == ["controls", "schemes", "length", "scaling"]
    assert [study.rows for study in studies.values()] == [()] * 4
    assert build_answers(list(studies.values()), MARGIN) == []


def test_a_run_of_one_study_does_not_begin_another(found: Found, runs_dir: Path) -> None:
    """complex_wide at D = 128 belongs to controls and scaling, alibi to schemes and length."""
    make_studies(runs_dir, ["controls"], datasets=["pg19"], seeds=[0])
    studies = found()
    assert [name for name, study in studies.items() if study.rows] == ["controls"]
    assert [row.dataset for row in studies["controls"].rows] == ["pg19"]
    assert studies["controls"].idle == ("wikitext2", "ptb")
    write_one(runs_dir, "crope", "pg19", 0, 256)
    assert [row.width for row in found()["scaling"].rows] == [64, 128, 256, 512]


def test_a_missing_model_is_named_and_counts_in_the_family(found: Found, runs_dir: Path) -> None:
    make_studies(runs_dir, ["controls"], datasets=["pg19"], without=["lowrank"])
    make_studies(runs_dir, ["controls"], datasets=["wikitext2"])
    study = found()["controls"]
    one = answer(study, "complex_or_lowrank")
    assert [check.reason for check in one.checks] == ["low rank missing", ""]
    others = [answer(study, f"complex_or_{name}").checks for name in ("blockdiag", "halved")]
    smaller = sum(check.p_different < one.checks[1].p_different for checks in others for check in checks)
    assert one.checks[1].p_different_holm == pytest.approx((6 - smaller) * one.checks[1].p_different)
    assert one.text == "Wikitext-2: yes, CRoPE is lower"
    sheet = study_sheet(study)
    (row,) = [row for row in sheet.rows if row[:2] == ("PG-19", "low rank")]
    assert row[5:7] == ("0", "missing")
    assert "Missing on PG-19: low rank; make reproduce STUDY=controls SCALE=quick SEEDS=3 makes them." in sheet.notes
    assert "Not begun on Penn Treebank, which is no part of the questions." in sheet.notes


def test_what_differs_from_the_base_row_is_left_out(found: Found, runs_dir: Path) -> None:
    make_studies(runs_dir, ["controls"], datasets=["pg19"], seeds=[0])
    make_run(runs_dir, "lowrank", "pg19", seed=1, final=1.0, change={"train": {"lr": 0.003}})
    make_run(runs_dir, "lowrank", "pg19", "b2_l512_d64", seed=1, final=1.0)
    make_run(runs_dir, "lowrank", "pg19", seed=2, final=1.0, numerics_version=0)
    make_run(runs_dir, "halved", "pg19", seed=1, error={"type": "OutOfMemoryError", "message": "x", "step": 3})
    results = found()["controls"].rows[0].results
    assert (results["lowrank"].n, results["halved"].n) == (1, 1)
    assert results["lowrank"].full.mean_nats == usual("lowrank", "pg19", 128, 0)
    notes = study_sheet(found()["controls"]).notes
    assert any("of numerics version 0 and left out" in note for note in notes)
    assert any("failed: OutOfMemoryError: x (step 3)" in note for note in notes)


@pytest.mark.parametrize("other", [{"precision": "bf16"}, {"device_kind": "cuda"}])
def test_runs_of_two_kinds_are_not_averaged(found: Found, runs_dir: Path, other: dict[str, str]) -> None:
    make_studies(runs_dir, ["controls"], datasets=["pg19", "wikitext2"], seeds=[0, 1])
    make_run(runs_dir, "lowrank", "pg19", seed=2, final=1.0, **other)
    pg19, wikitext2 = found()["controls"].rows
    assert {result.status for result in pg19.results.values()} == {MIXED}
    assert all(result.full is None for result in pg19.results.values())
    assert {result.status for result in wikitext2.results.values()} == {"complete"}
    (named,) = [note for note in study_sheet(found()["controls"]).notes if "share no mean" in note]
    assert "controls/base/pg19: runs of different precision or device" in named and "fp32 on cpu: " in named
    assert answer(found()["controls"], "qk_only").checks[0].reason == "Q/K only mixed, RoPE mixed"


def test_one_seed_has_differences_without_intervals(found: Found, runs_dir: Path) -> None:
    make_studies(runs_dir, ["controls", "length", "scaling"], datasets=["pg19"], seeds=[0])
    studies = found()
    for study, name, value in (
        ("controls", "complex_or_blockdiag", usual("crope", "pg19", 128, 0) - usual("blockdiag", "pg19", 128, 0)),
        ("length", "extrapolates_rope_4", 0.6 * 4 / 3),
        ("scaling", "drift_pg19", 0.002),
    ):
        one = answer(studies[study], name)
        assert one.text == "needs at least 3 seeds, has 1"
        assert one.checks[0].difference.mean_nats == pytest.approx(value)
        assert (one.checks[0].difference.low_nats, one.checks[0].p_different) == (None, None)
        assert one.numbers.endswith("(needs at least 3 seeds, has 1)")


def test_a_text_without_the_seeds_for_a_test_is_in_no_family(found: Found, runs_dir: Path) -> None:
    make_studies(runs_dir, ["controls"], datasets=["wikitext2"])
    alone = answer(found()["controls"], "qk_only").checks[0]
    make_studies(runs_dir, ["controls"], datasets=["pg19"], seeds=[0, 1])
    for model in ("rope", "crope"):  # of the tables: they make no test of lowrank or Q/K only possible
        write_one(runs_dir, model, "pg19", 2)
    one = answer(found()["controls"], "qk_only")
    assert [check.reason for check in one.checks] == ["needs at least 3 seeds, has 2", ""]
    assert one.checks[1].p_different_holm == alone.p_different_holm == alone.p_different
    write_one(runs_dir, "complex_wide", "pg19", 2)  # of the scaling study as well: this pair can be tested, and counts
    checks = answer(found()["controls"], "wide").checks
    assert all(check.p_different_holm == pytest.approx(2 * check.p_different) for check in checks)


def test_no_drift_is_found_while_a_width_is_missing(found: Found, runs_dir: Path) -> None:
    make_studies(runs_dir, ["scaling"], datasets=["pg19"], without=["complex_wide"])
    assert answer(found()["scaling"], "drift_pg19").text == "no, none"
    for path in runs_dir.iterdir():
        if "rope-" in path.name and '"d_model": 512' in json.dumps(yaml.safe_load((path / "config.yaml").read_text())):
            shutil.rmtree(path)
    one = answer(found()["scaling"], "drift_pg19")
    assert (one.text, one.checks[0].difference.n) == ("D = 512 missing", 3)


def test_length_begins_with_the_first_measurement(found: Found, runs_dir: Path) -> None:
    path = write_one(runs_dir, "alibi", "pg19", 0)
    assert found()["length"].rows == ()
    measure(path, "alibi")
    (row,) = found()["length"].rows
    assert list(row.lengths) == ["alibi"]
    assert found()["schemes"].rows == ()  # which asks for alibi as well, and for what was not run
    assert answer(found()["length"], "extrapolates_nope_4").text == "NoPE missing"
