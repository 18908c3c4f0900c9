"""The whole report: one page that stands alone, escapes what it is given, and has the same bytes every time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from crope.config import ROOT
from crope.errors import DataError
from crope.record import read_records
from crope.report import build_report, load_runs, load_unavailable, report_folder

FILES = {
    "table1.md", "table1.csv", "table1.tex", "table2.md", "table2.csv", "table2.tex", "details.md", "details.csv",
    "runs.csv", "fig4.svg", "fig4.png", "index.html",
}  # fmt: skip
ATTACK = "<script>alert(1)</script>"


class Reader(HTMLParser):
    """Collects tags, attributes and text, and checks that every element is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "img", "source", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def build(runs_dir, cells):
    def build(*, unavailable=None, name="report", scale="quick") -> Path:
        out_dir = runs_dir.parent / name
        files = build_report(
            read_records(runs_dir),
            cells,
            unavailable=unavailable or {},
            out_dir=out_dir,
            scale=scale,
            runs_link="../runs",
        )
        assert files[-1].name == "index.html"
        assert {path.name for path in files} == {path.name for path in out_dir.iterdir()} == FILES
        return out_dir

    return build


def read_page(out_dir: Path) -> Reader:
    page = Reader()
    page.feed((out_dir / "index.html").read_text("utf-8"))
    page.close()
    assert page.open == []
    return page


def test_page_stands_alone_and_its_links_lead_somewhere(whole_study, build) -> None:
    out_dir = build()
    page = read_page(out_dir)
    assert not {"script", "link", "iframe"} & set(page.tags)
    links = [value for _, name, value in page.attributes if name in ("href", "src", "srcset")]
    files = [link for link in links if not link.startswith("data:image/svg+xml;base64,")]
    assert len(links) - len(files) == 2 * 3  # a light and a dark picture a dataset
    assert not [link for link in files if ":" in link]
    assert not [link for link in files if not (out_dir / unquote(link)).exists()]
    assert "../runs/crope-ptb-base-s0-fp32/summary.json" in files
    style = (out_dir / "index.html").read_text("utf-8").partition("</style>")[0]
    assert "@import" not in style and "url(" not in style


def test_page_says_what_was_found(whole_study, build) -> None:
    text = read_page(build()).text
    assert "scale: quick" in text and "21 of 21 table cells complete" in text
    assert "levels do not compare with the paper's" in text
    # Seeds 0 and 1 at 4.0 and 4.1: mean 4.05, CRoPE 0.01 above at each seed, so an interval of no width.
    assert "full 4.3500 ± 0.0707 4.0500 ± 0.0707 4.0600 ± 0.0707" in text
    assert "Table 1: Penn Treebank +0.0100 −0.0054 +0.0100 to +0.0100 2" in text
    # 4 layers of width 128 with biases outside Q/K/V, 4096 tied embeddings; CRoPE lacks half of 4 x 3 x 128^2.
    total = 4 * (12 * 128**2 + 6 * 128) + 9 * 2 * 128 + 4096 * 128
    share = 100 * 4 * 1.5 * 128**2 / total
    assert "Q/K/V 50.0 % (paper: 50 %), attention 37.5 % (paper: 37.5 %), block 12.5 % (paper: 12.5 %)" in text
    assert f"whole model with embeddings {share:.1f} % ({total:,} to {total - 98_304:,} parameters)" in text
    assert "complete 4.0000 0123456789 a CPU fp32 2 min 31 s" in text


def test_page_without_runs_says_what_to_do(build) -> None:
    text = read_page(build(unavailable={"pg19": "the hub is not there"})).text
    assert "0 of 21 table cells complete" in text
    assert "make reproduce SCALE=quick" in text
    assert "PG-19: the hub is not there" in text


def test_everything_from_records_is_escaped(write_run, build, runs_dir) -> None:
    write_run("rope", "ptb", device_kind=ATTACK, final=4.0)
    failed = write_run(
        "crope", "ptb", seed=1, status="failed", val_full=None, val_sampled=None, run_id=f"crope-{ATTACK}",
        error={"type": "ValueError", "message": f"bad {ATTACK}\nsecond line", "traceback": "", "step": 3},
    )  # fmt: skip
    (failed / "provenance.json").write_text(json.dumps({"commit": ATTACK, "dirty": True, "device": ATTACK}), "utf-8")
    config = failed / "config.yaml"
    config.write_text(config.read_text("utf-8") + f"note: '{ATTACK}'\n", "utf-8")
    out_dir = build(unavailable={"pg19": ATTACK})
    page = read_page(out_dir)
    assert "script" not in page.tags
    assert f"ValueError: bad {ATTACK} second line (step 3)" in page.text
    assert f"crope-{ATTACK}" in page.text
    for name in ("table1.md", "fig4.svg"):
        assert "<script" not in (out_dir / name).read_text("utf-8"), name


def test_runs_of_other_scales_are_counted_not_shown(write_run, build) -> None:
    write_run("rope", "ptb", final=4.0)
    write_run("rope", "ptb", "b2_l512_d64", scale="smoke")
    out_dir = build()
    assert "1 run of other scales is not on this page" in read_page(out_dir).text
    assert (out_dir / "runs.csv").read_text("utf-8").count("\n") == 2


def test_runs_that_no_table_uses_are_said(write_run, build) -> None:
    write_run("rope", "ptb", final=4.0)
    assert "in no table" not in read_page(build(name="before")).text
    write_run("rope", "ptb", "b2_l512_d64", final=4.0)  # Table 2 is on PG-19
    assert "1 of these runs stands in no table" in read_page(build()).text


SCRIPT = """
import sys
from pathlib import Path
from crope.report import report_folder
report_folder(results_dir=Path(sys.argv[1]), out_dir=Path(sys.argv[2]), scale="quick")
print([name for name in ("torch", "wandb", "datasets") if name in sys.modules])
"""


def test_same_bytes_in_another_process_without_torch_or_wandb(whole_study, runs_dir, tmp_path) -> None:
    """Another hash seed, another time zone, a later moment."""
    results, outputs = runs_dir.parent, []
    for name, seed, zone in (("one", "1", "UTC"), ("two", "2", "Asia/Tokyo")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, results, results / name],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.splitlines()[-1] == "[]"
        outputs.append({path.name: path.read_bytes() for path in (results / name).iterdir()})
    assert outputs[0].keys() == FILES
    assert [name for name in FILES if outputs[0][name] != outputs[1][name]] == []


def test_ninety_runs_take_seconds(write_run, build, cells) -> None:
    """90 runs with 500 lines each; the budget is 10 s of processor time, whatever else the machine does."""
    for dataset, row in {(cell.dataset, cell.row) for cell in cells}:
        for model in ("xpos", "rope", "crope"):
            for seed in range(5):
                path = write_run(model, dataset, row, seed=seed) / "metrics.jsonl"
                lines = [
                    {"step": 20 * i, "val/loss_nats": 8 - i / 100, "train/loss_nats": 8 - i / 100} for i in range(500)
                ]
                path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    started = time.process_time()
    build()
    assert time.process_time() - started < 10


def test_report_folder_picks_the_scale_and_prints_tables(whole_study, runs_dir, capsys) -> None:
    page = report_folder(results_dir=runs_dir.parent)
    printed = capsys.readouterr().out
    assert page == runs_dir.parent / "report" / "index.html"
    assert "Table 1." in printed and "Table 2." in printed and "Scale: quick." in printed
    assert printed.splitlines()[-1] == str(page)


def test_script_without_runs_exits_0_and_says_what_to_do(tmp_path) -> None:
    (tmp_path / "unavailable.json").write_text('{"ptb": "not here"}', "utf-8")
    command = [sys.executable, str(ROOT / "scripts" / "report.py"), "--results-dir", str(tmp_path), "--scale", "smoke"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    first = done.stdout.splitlines()[0]
    assert first.startswith("no run of the smoke scale in ") and "make reproduce SCALE=smoke" in first
    assert {path.name for path in (tmp_path / "report").iterdir()} == FILES
    assert "Penn Treebank: not here" in (tmp_path / "report" / "table1.md").read_text("utf-8")


def test_several_folders_are_linked_each_where_it_lies(write_run, runs_dir, cells, tmp_path) -> None:
    write_run("rope", "ptb")
    other = write_run("crope", "ptb", folder=tmp_path / "published" / "a machine")
    page = report_folder(
        results_dir=runs_dir.parent, folders=[runs_dir, other.parent], out_dir=tmp_path / "somewhere", scale="quick"
    )
    links = [value for _, name, value in read_page(page.parent).attributes if name == "href"]
    assert "../published/a%20machine/crope-ptb-base-s0-fp32/summary.json" in links
    assert "../results/runs/rope-ptb-base-s0-fp32/config.yaml" in links


def test_unreadable_files_are_errors_of_one_line(write_run, runs_dir, tmp_path) -> None:
    (write_run("rope", "ptb") / "summary.json").write_text('{"status": "compl', "utf-8")
    with pytest.raises(DataError) as caught:
        load_runs(runs_dir)
    assert str(runs_dir) in str(caught.value) and "\n" not in str(caught.value)
    (tmp_path / "unavailable.json").write_text("{", "utf-8")
    with pytest.raises(DataError, match=r"unavailable\.json"):
        load_unavailable(tmp_path / "unavailable.json")
