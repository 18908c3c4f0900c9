"""The report as files: a page that works offline, same bytes twice, nothing stale, corrupt records
named, no torch.
"""

import re
from pathlib import Path

import pandas as pd
import pytest

from crope.config import ROOT
from crope.report import page as build
from crope.report.evidence import PRIMARY_LEVEL, Contrast
from crope.report.page import build_report
from crope.runs.identity import cell_key
from crope.runs.study import Cell, StudyRow
from tests.conftest import printed_by
from tests.report import records
from tests.report.records import write_run

LOSSES = {"xpos": 5.4, "rope": 5.0, "crope": 5.01}
CELLS = [
    *(records.make_cell(model) for model in LOSSES),
    *(
        records.make_cell(model, "pg19", table=table)
        for table in ("table1", "table2")
        for model in LOSSES
    ),
]
LONG = {**records.make_config("rope", "ptb"), "tokenizer": {"name": "bpe", "vocab_size": 8192}}
ROWS = [
    StudyRow("table1", dataset, 128, tuple(cells), (), (0, 1, 2))
    for dataset, cells in (("ptb", CELLS[:3]), ("pg19", CELLS[3:6]))
]
TODAY = StudyRow("today", "ptb", 128, tuple(CELLS[:3]), (), (0, 1, 2))
STUDY = StudyRow(
    "mine",
    "ptb",
    128,
    (records.make_cell("crope"), Cell("mine", "base", "ptb", "rope", "quick", cell_key(LONG))),
    seeds=(0, 1, 2),
)


@pytest.fixture(scope="module", autouse=True)
def studies() -> object:
    """The cells and the study of these records in place of those of conf/."""
    contrast = Contrast("P1", "today", "Cost?", "crope", "rope")
    planned = Contrast("P1", "mine", "Cost?", "crope", "rope", level=PRIMARY_LEVEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "crope.report.page.expected_cells",
            lambda scale, datasets=None: CELLS if scale == "quick" else [],
        )
        patch.setattr(
            "crope.report.evidence.expected_rows", lambda scale, datasets=None: [STUDY, TODAY]
        )
        patch.setattr(
            "crope.report.evidence.expected_table_rows", lambda scale, datasets=None: ROWS
        )
        patch.setattr("crope.report.evidence.PRIMARY", [(planned, contrast)])
        patch.setattr("crope.report.evidence.FOREST", (("today",),))
        patch.setattr("crope.report.evidence.TRAINING_STUDIES", ("today",))
        yield


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds of three models on PTB, the last in bf16, and a corrupt record."""
    folder = tmp_path_factory.mktemp("results")
    for model, loss in LOSSES.items():
        for seed in range(3):
            final = loss + 0.1 * seed + 0.001 * (seed - 1) * (model != "rope")
            precision = "bf16" if seed == 2 else "fp32"
            losses = {"final": final, "best": final}
            write_run(folder / "runs", model, seed=seed, precision=precision, **losses)
    write_run(folder / "runs", "rope", final=6.25, config={"tokenizer": LONG["tokenizer"]})
    corrupt = write_run(folder / "runs", "rope", seed=9)
    (corrupt / "metrics.jsonl").write_text("{}\n")
    return folder


OWN_FILES = ("notes.txt", "study_notes.md", "training.log")


@pytest.fixture(scope="module")
def report(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    (out / "conversion.md").write_text("stale")
    for name in OWN_FILES:
        (out / name).write_text("the user's own")
    build_report(results_dir=results, out_dir=out)
    return out


@pytest.fixture(scope="module")
def page(report: Path) -> str:
    return (report / "index.html").read_text(encoding="utf-8")


def text_of(page: str) -> str:
    page = re.sub(r"(?s)<(script|style).*?</\1>", " ", page)
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_the_page_begins_with_the_primary_questions_and_the_claims(page: str) -> None:
    parts = ('id="primary"', 'id="claims"', 'id="table1"', 'id="table2"', 'id="fig4"', "<details")
    comparisons = [page.index(part) for part in parts]
    assert comparisons == sorted(comparisons)
    assert "scale: quick" in page and "Commit: cccccccccccc" in page
    primary = text_of(page[comparisons[0] : comparisons[1]])
    assert "Cost? higher by less than 0.02 CRoPE − RoPE; Penn Treebank +0.0100" in primary
    assert "1 of 1 lines are exploratory" in primary
    claims = text_of(page[comparisons[1] : comparisons[2]])
    printed = "CRoPE matches RoPE (Table 1) Penn Treebank −0.005; PG-19 +0.003"
    assert f"{printed} Penn Treebank +0.010" in claims
    assert "5.1100 ± 0.1010" in text_of(page)


def test_a_mix_of_precisions_is_named_under_its_table(page: str) -> None:
    assert "bf16 on cpu (2), fp32 on cpu (0, 1)" in text_of(page)


def test_own_runs_are_no_yardstick_for_themselves(tmp_path: Path, capsys) -> None:
    published, finals = tmp_path / "published", {"one": 5.0, "other": 5.001}
    for name, final in finals.items():
        write_run(published / name, "rope", final=final, finished=name)
    write_run(tmp_path / "runs", "rope", final=5.5, finished="own")
    build_report(results_dir=tmp_path, published=published)
    repeats = pd.read_csv(tmp_path / "report" / "repeats.csv")
    assert repeats["largest_nats"].tolist() == pytest.approx([0.001])
    assert "0.5000 nats (Penn Treebank; 1 run" in capsys.readouterr().out


def test_the_page_works_offline_and_its_files_are_there(report: Path, page: str) -> None:
    linked = re.findall(r'(?:src|href)="([^"]+)"', re.sub(r"(?s)<script.*?</script>", "", page))
    assert {"fig4.svg", "forest.svg", "table1.tex", "runs.csv"} <= set(linked)
    assert all((report / name).exists() for name in linked)
    assert "<script" not in page and len(text_of(page).split()) < 4000


def test_without_runs_there_is_no_evidence(tmp_path: Path) -> None:
    assert build_report(results_dir=tmp_path, folders=[tmp_path / "runs"], out_dir=tmp_path) == []
    assert pd.read_csv(tmp_path / "claims.csv").empty
    assert "Primary" not in (tmp_path / "index.html").read_text()


def test_a_study_of_rope_alone_is_reported(tmp_path: Path) -> None:
    """RoPE is the first model of nearly every study, so its runs are finished first."""
    for seed in range(3):
        write_run(tmp_path / "runs", "rope", seed=seed, final=5.0 + 0.1 * seed)
    assert build_report(results_dir=tmp_path) == []
    losses = pd.read_csv(tmp_path / "report" / "study_losses.csv").set_index("study")
    assert losses.loc["today", ["model", "n"]].tolist() == ["rope", 3]


def test_published_parts_of_a_study_are_read_together(tmp_path: Path) -> None:
    """Two seeds in the folder that has most runs, the third in one of its own, once more a repeat."""
    for seed, folder in ((0, "most"), (1, "most"), (2, "part"), (1, "part")):
        for model in ("rope", "crope"):
            final = 5.0 + 0.01 * seed + 0.5 * (model == "crope")
            repeat = 9.0 * (folder == "part" and seed == 1)
            write_run(tmp_path / "published" / folder, model, seed=seed, final=final + repeat)
    write_run(tmp_path / "published" / "most", "xpos", seed=0)
    build_report(results_dir=tmp_path, published=tmp_path / "published")
    primary = pd.read_csv(tmp_path / "report" / "primary.csv").iloc[0]
    assert (primary["n"], primary["mean_nats"]) == (3, pytest.approx(0.5))


def test_runs_of_a_copy_without_git_are_reported(tmp_path: Path, capsys) -> None:
    write_run(tmp_path / "runs", "rope", provenance={"commit": None, "dirty": None})
    assert build_report(results_dir=tmp_path) == []
    assert "Commit: unknown.\n" in capsys.readouterr().out
    write_run(tmp_path / "runs", "crope", provenance={"dirty": True})
    assert build_report(results_dir=tmp_path) == []
    assert "uncommitted" in capsys.readouterr().out


def test_runs_of_no_table_are_counted(tmp_path: Path, capsys) -> None:
    """Of another learning rate; the run of a cell is not counted."""
    write_run(tmp_path / "runs", "rope", final=5.0)
    config = records.make_config("rope", "ptb")
    config["train"]["lr"] = 0.5
    write_run(tmp_path / "runs", "rope", config={"train": config["train"]})
    build_report(results_dir=tmp_path)
    printed = capsys.readouterr().out
    assert f"\n1 run(s) in no cell of Tables 1 and 2: {tmp_path / 'report' / 'runs.csv'}" in printed


def test_failed_runs_alone_are_listed(tmp_path: Path) -> None:
    failed = write_run(tmp_path / "runs", error=records.FAILED)
    invalid = write_run(tmp_path / "runs", seed=1)
    (invalid / "metrics.jsonl").unlink()
    assert len(build_report(results_dir=tmp_path)) == 1
    runs = pd.read_csv(tmp_path / "report" / "runs.csv").set_index("run_id")["status"]
    assert runs.to_dict() == {failed.name: "failed", invalid.name: "invalid"}


def test_stale_files_are_removed_and_others_kept(report: Path, tmp_path: Path) -> None:
    assert not (report / "conversion.md").exists()
    assert all((report / name).exists() for name in OWN_FILES)
    build_report(results_dir=tmp_path, published=tmp_path)  # without runs
    always = {path.name for path in (tmp_path / "report").iterdir()}
    assert {path.name for path in report.iterdir()} - always - {*OWN_FILES} <= {*build.STALE}


def test_a_corrupt_record_is_named_and_enters_no_number(
    report: Path, page: str, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    invalid = build_report(results_dir=results, out_dir=tmp_path)
    printed = capsys.readouterr()
    assert [error.path.name[:15] for error in invalid] == ["rope-ptb-base-s"]
    assert "s9" in printed.err
    assert "s9" in text_of(page)
    assert "n = 3 seeds" in printed.out
    assert "CRoPE − RoPE (nats): Penn Treebank +0.010 (+0.008 to +0.012)" in printed.out
    assert printed.out.splitlines()[-1] == str(tmp_path / "index.html")
    assert "\n\n\n" not in printed.out
    for one in sorted(report.iterdir()):  # the same records give the same bytes
        if one.name not in OWN_FILES:
            assert one.read_bytes() == (tmp_path / one.name).read_bytes(), one.name


def test_a_study_without_contrasts_is_on_the_page_with_its_losses(report: Path, page: str) -> None:
    assert "mine Penn Treebank RoPE 1 6.2500" in text_of(page)
    losses = pd.read_csv(report / "study_losses.csv").query("study == 'mine'").set_index("model")
    assert losses["mean_nats"].to_dict() == {"crope": 5.009, "rope": 6.25}


def test_the_report_imports_no_torch_and_no_wandb() -> None:
    names = [
        f"crope.report.{path.stem}" for path in sorted((ROOT / "crope" / "report").glob("*.py"))
    ]
    code = f"import sys, {', '.join(names)}; print([name for name in ('torch', 'wandb') if name in sys.modules])"
    assert printed_by(code) == "[]\n"
