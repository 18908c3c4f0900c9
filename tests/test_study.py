"""Studies: how many runs, in which order, which are shared, and what the tables expect."""

from __future__ import annotations

import pytest

from crope.compose import load_run
from crope.config import cell_key
from crope.study import STUDIES, expected_cells, expected_rows, jobs, study_axes


def test_both_tables_are_18_distinct_runs_per_seed() -> None:
    ids = [load_run(job).run_id for job in jobs(("table1", "table2"), scale="quick", seeds=[0, 1])]
    assert len(ids) == len(set(ids)) == 36
    table1, table2 = (
        {load_run(job).run_id for job in jobs((name,), scale="quick", seeds=[0])} for name in ("table1", "table2")
    )
    assert (len(table1), len(table2), len(table1 & table2)) == (9, 12, 3)
    assert all("-pg19-base-" in run_id for run_id in table1 & table2)


def test_seeds_are_outermost() -> None:
    seeds = [load_run(job).config.seed for job in jobs(("table1", "table2"), scale="quick", seeds=[0, 1, 2])]
    assert seeds == sorted(seeds)
    assert next(iter(study_axes("table1"))) == "seed" == next(iter(study_axes("table2")))


def test_cells_are_the_papers_in_its_order() -> None:
    cells = expected_cells("quick")
    table1 = [(cell.dataset, cell.model) for cell in cells if cell.table == "table1"]
    assert table1 == [(data, model) for data in ("pg19", "wikitext2", "ptb") for model in ("xpos", "rope", "crope")]
    rows = [cell.row for cell in cells if cell.table == "table2" and cell.model == "rope"]
    assert rows == ["base", "b2_l512_g09_s2000", "b2_l512_g09_s1000", "b2_l512_d64"]
    assert {cell.dataset for cell in cells if cell.table == "table2"} == {"pg19"}


def test_every_job_belongs_to_a_cell_and_every_cell_has_a_job() -> None:
    keys = {cell.key for cell in expected_cells("smoke")}
    made = {cell_key(load_run(job).container) for job in jobs(("table1", "table2"), scale="smoke", seeds=[3])}
    assert keys == made
    assert len(keys) == 18


def test_tiny_stands_in_for_what_is_missing() -> None:
    found = [load_run(job) for job in jobs(("table1", "table2"), scale="quick", seeds=[0], datasets=["ptb", "tiny"])]
    assert {(run.dataset, run.row) for run in found} == {
        ("ptb", "base"),
        *(("tiny", row) for row in study_axes("table2")["ablation"]),
    }
    cells = expected_cells("quick", datasets=["pg19", "wikitext2", "ptb", "tiny"])
    assert len(cells) == 12 + 24


@pytest.mark.parametrize("study", STUDIES)
def test_a_studys_cells_are_what_its_jobs_compose_to(study: str) -> None:
    """The keys are derived from one composed run; Hydra, which makes the runs, is the oracle. One text is enough."""
    rows = [row for row in expected_rows("smoke") if row.study == study and row.dataset == "pg19"]
    derived = {(cell.model, row.width): cell.key for row in rows for cell in row.cells}
    runs = [load_run(job) for job in jobs((study,), scale="smoke", seeds=[3], datasets=["pg19"])]
    assert derived == {(run.model, run.config.model.d_model): cell_key(run.container) for run in runs}
    assert len(set(derived.values())) == len(derived)


def test_a_studys_rows_are_its_texts_and_widths() -> None:
    rows = expected_rows("quick", datasets=["pg19", "tiny"])
    assert [(row.study, row.dataset, row.width) for row in rows] == [
        *((study, dataset, 128) for study in ("controls", "schemes", "length") for dataset in ("pg19", "tiny")),
        *(("scaling", dataset, width) for dataset in ("pg19", "tiny") for width in (64, 128, 256, 512)),
    ]
    keys = {cell.key for row in expected_rows("quick") if row.dataset == "ptb" for cell in row.cells}
    assert {cell.key for cell in expected_cells("quick") if cell.dataset == "ptb"} < keys
