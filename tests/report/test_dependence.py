"""Where the loss of one record changes, exactly what depends on it changes: files, lines, panels, curves."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path

import pytest

from tests.report.conftest import LEVEL, OFFSET, make_run, make_study
from tests.report.page import read_page


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> tuple[Path, Path]:
    """Before and after: 5 seeds of 18 cells, of which crope-ptb-base-s1 ends 0.004 higher in the second."""
    from crope.report import build_report
    from tests.report.conftest import make_cells, read_source

    folder = tmp_path_factory.mktemp("reports")
    runs, outputs = folder / "runs", []
    make_study(runs, seeds=range(5), noise=0.01)
    for name in ("before", "after"):
        build_report(read_source(runs), make_cells(), unavailable={}, out_dir=folder / name)
        outputs.append(folder / name)
        (path,) = runs.glob("crope-ptb-base-s1-*")
        shutil.rmtree(path)
        final = LEVEL["ptb"] + OFFSET["crope"] + 0.1
        make_run(runs, "crope", "ptb", seed=1, final=final + 0.004, sampled=final, noise=0.01)
    return outputs[0], outputs[1]


def changed_lines(reports: tuple[Path, Path], name: str, keys: tuple[str, ...]) -> dict[tuple[str, ...], set[str]]:
    """Lines of a CSV by `keys` -> the columns that changed in them."""
    before, after = (list(csv.DictReader(io.StringIO((report / name).read_text("utf-8")))) for report in reports)
    assert len(before) == len(after)
    found = {}
    for old, new in zip(before, after, strict=True):
        columns = {column for column in old if old[column] != new[column]}
        if columns:
            found[tuple(old[key] for key in keys)] = columns
    return found


def test_files(reports) -> None:
    before, after = reports
    names = {path.name for path in before.iterdir()}
    assert names == {path.name for path in after.iterdir()}
    changed = {name for name in names if (before / name).read_bytes() != (after / name).read_bytes()}
    assert names - changed == {
        "columns.csv", "table2.csv", "table2.md", "table2.tex", "parameters.svg", "parameters.png",
    }  # fmt: skip


def test_cells_of_the_tables(reports) -> None:
    keys = ("table", "row", "dataset", "model", "protocol")
    cell = ("table1", "base", "ptb", "crope", "full")
    assert changed_lines(reports, "table1.csv", keys) == {cell: {"mean_nats", "std_nats"}}
    assert changed_lines(reports, "table2.csv", keys) == {}
    before, after = ((report / "table1.md").read_text("utf-8").splitlines() for report in reports)
    different = [(one, other) for one, other in zip(before, after, strict=True) if one != other]
    # Seeds 4.01, 4.11, .. 4.41: mean 4.21, with 0.004 / 5 more.
    assert [[text for text in pair[0].split("|") if "4.2100" in text] for pair in different] == [[" 4.2100 ± 0.1581 "]]
    assert " 4.2108 ± " in different[0][1]
    (details,) = changed_lines(reports, "details.csv", ("dataset", "row", "model")).items()
    assert details[0] == ("ptb", "base", "crope")


def test_comparisons_and_verdicts(reports) -> None:
    """An interval changes in the rows of the cell alone; Holm's p may in all rows of its family."""
    found = changed_lines(reports, "comparisons.csv", ("dataset", "row", "first", "second", "at"))
    losses = {key for key, columns in found.items() if columns & {"mean_nats", "t_low_nats", "p_different"}}
    assert losses == {
        ("ptb", "base", *pair, at) for pair in (("crope", "rope"), ("xpos", "crope")) for at in ("final", "best")
    }
    for key, columns in found.items():
        assert key in losses or (columns <= {"p_different_holm", "p_equivalent_holm"} and "crope" in key)
    found = changed_lines(reports, "verdicts.csv", ("claim", "at", "check"))
    values = {key for key, columns in found.items() if "value" in columns}
    assert {key[2] for key in values} == {"Penn Treebank: CRoPE − RoPE", "Penn Treebank: XPOS − CRoPE"}
    assert {key[:2] for key in values} == {
        ("xpos_worse", "final"), ("xpos_worse", "best"), ("crope_within_noise", "final"),
        ("crope_within_noise", "best"), ("training_order", "final"),
    }  # fmt: skip


def test_panels_of_the_figures(reports) -> None:
    before, after = (read_page(report).pictures for report in reports)
    kept = {text for text in before if before[text] == after.get(text)}
    changed = [text.partition(",")[0].partition(".")[0] for text in before if text not in kept]
    assert changed == ["Penn Treebank", "CRoPE − RoPE", "Penn Treebank"]  # of Fig. 4, the forest, the seeds
    assert len(kept) == len(before) - 3 == 12


def test_runs_and_curves(reports) -> None:
    ((key, columns),) = changed_lines(reports, "runs.csv", ("model", "dataset", "row", "seed")).items()
    assert key == ("crope", "ptb", "base", "1")
    assert {"val_full_final_nats", "val_full_best_nats", "metrics_sha256", "val_nats_per_byte"} <= columns
    assert not {"run_id", "steps", "train_val_gap_nats", "val_sampled_n", "parameters_total"} & columns
    before, after = (read_page(report).charts["panels"] for report in reports)
    runs = [
        (one, other)
        for old, new in zip(before, after, strict=True)
        for one, other in zip(old["runs"], new["runs"], strict=True)
    ]
    assert [one["id"].rpartition("-")[0] for one, other in runs if one != other] == ["crope-ptb-base-s1"]
    assert len(runs) == 90
