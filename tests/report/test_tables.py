"""The tables' files: columns, values, marks, captions, escapes."""

from __future__ import annotations

import csv
import io

import pytest

from crope.report.markdown import escape_markdown
from crope.report.tex import escape_tex
from tests.report.conftest import read_source

HEADER = "table,row,dataset,model,scale,protocol,mean_nats,std_nats,n,paper_mean_nats,paper_std_nats,status"


@pytest.fixture
def texts(build, no_pictures):
    """Builds the report of the runs written so far and returns {file name: text}."""

    def texts(**options) -> dict[str, str]:
        kinds = (".md", ".csv", ".tex")
        return {path.name: path.read_text("utf-8") for path in build(**options).iterdir() if path.suffix in kinds}

    return texts


def rows_of(text: str) -> dict[tuple[str, ...], dict[str, str]]:
    keys = ("table", "row", "dataset", "model", "protocol")
    return {tuple(row[key] for key in keys): row for row in csv.DictReader(io.StringIO(text))}


def line_of(markdown: str, label: str, protocol: str) -> str:
    """The Markdown line of one protocol in the group that starts with `label`."""
    lines = markdown.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {label} |"))
    return next(line for line in lines[start : start + 3] if f"| {protocol} |" in line)


def test_csv_header_and_lines(write_run, texts) -> None:
    write_run("crope", "ptb", seed=0, final=4.0, sampled=4.5, std=0.02)
    write_run("crope", "ptb", seed=1, final=4.5, sampled=4.7, std=0.04)
    files = texts()
    assert files["table1.csv"].splitlines()[0] == HEADER == files["table2.csv"].splitlines()[0]
    assert "\r" not in files["table1.csv"]
    lines = files["table1.csv"].splitlines()
    assert "table1,base,ptb,crope,quick,sampled,4.600000,0.030000,2,4.015800,0.023300,complete" in lines
    assert "table1,base,ptb,crope,quick,full,4.250000,0.353553,2,4.015800,0.023300,complete" in lines
    assert "table1,base,ptb,rope,quick,full,,,0,4.021200,0.024300,missing" in lines
    assert len(lines) == 1 + 3 * 3 * 2
    assert len(files["table2.csv"].splitlines()) == 1 + 4 * 3 * 2


def test_csv_rows_stand_in_the_papers_order(texts) -> None:
    files = texts()
    rows = list(rows_of(files["table1.csv"]))
    assert [key[2:4] for key in rows[::2]] == [
        (d, m) for d in ("pg19", "wikitext2", "ptb") for m in ("xpos", "rope", "crope")
    ]
    rows = list(rows_of(files["table2.csv"]))
    assert [key[1] for key in rows[::6]] == ["base", "b2_l512_g09_s2000", "b2_l512_g09_s1000", "b2_l512_d64"]


def test_one_seed_leaves_the_full_std_empty(write_run, texts) -> None:
    write_run("rope", "pg19", final=6.0, std=0.05)
    rows = rows_of(texts()["table1.csv"])
    assert rows["table1", "base", "pg19", "rope", "full"]["std_nats"] == ""
    assert rows["table1", "base", "pg19", "rope", "sampled"]["std_nats"] == "0.050000"


def test_best_is_marked_among_complete_cells_only(write_run, texts) -> None:
    write_run("xpos", "ptb", final=4.5)
    write_run("rope", "ptb", final=4.25, sampled=4.375)
    write_run("crope", "ptb", final=4.125, sampled=4.625)
    write_run("rope", "pg19", final=6.0)  # alone in its row: nothing to be better than
    files = texts()
    assert line_of(files["table1.md"], "Penn Treebank", "full") == "|  | full | 4.5000 | 4.2500 | **4.1250** |"
    sampled = "|  | sampled | 4.5000 ± 0.0200 | **4.3750 ± 0.0200** | 4.6250 ± 0.0200 |"
    assert line_of(files["table1.md"], "Penn Treebank", "sampled") == sampled
    assert line_of(files["table1.md"], "PG-19", "full") == "|  | full | missing [1] | 6.0000 | missing [1] |"
    assert r" & full & 4.5000 & 4.2500 & \textbf{4.1250} \\" in files["table1.tex"]
    assert files["table1.tex"].count(r"\textbf") == 2


def test_values_that_print_alike_are_both_best(write_run, texts) -> None:
    write_run("rope", "pg19", final=6.00041)
    write_run("crope", "pg19", final=6.00049)
    files = texts()
    assert line_of(files["table1.md"], "PG-19", "full") == "|  | full | missing [1] | **6.0004** | 6.0005 |"
    label = "B=16, L=1024, D=128, γ=0.8, step=1000"
    assert line_of(files["table2.md"], label, "full").endswith("| missing [1] | **6.000** | **6.000** |")


def test_the_papers_value_stands_beside_ours(texts) -> None:
    files = texts()
    assert line_of(files["table1.md"], "Wikitext-2", "paper") == (
        "| Wikitext-2 | paper | 5.7486 ± 0.0274 | 5.3644 ± 0.0279 | 5.3730 ± 0.0255 |"
    )
    assert line_of(files["table2.md"], "B=2, L=512, D=64, γ=0.9, step=1000", "paper") == (
        "| B=2, L=512, D=64, γ=0.9, step=1000 | paper | 6.907 ± 0.115 | 6.699 ± 0.111 | 6.700 ± 0.113 |"
    )


def test_missing_says_why(texts) -> None:
    files = texts(unavailable={"ptb": "no *network* | <here>"})
    assert (
        line_of(files["table1.md"], "Penn Treebank", "full") == "|  | full | missing [3] | missing [3] | missing [3] |"
    )
    assert r"- [3] Penn Treebank: no \*network\* \| &lt;here&gt;" in files["table1.md"]
    assert r"[3] Penn Treebank: no *network* \textbar{} \textless{}here\textgreater{}" in files["table1.tex"]


def test_scale_and_seeds_stand_in_every_file(whole_study, texts) -> None:
    files = texts()
    for name in ("table1.md", "table2.md", "table1.tex", "table2.tex", "details.md"):
        assert "Scale: quick. n = 2 seeds per cell." in files[name], name
        if name != "details.md":
            assert "do not compare with the paper" in files[name], name
    for name in ("table1.csv", "table2.csv", "details.csv", "runs.csv"):
        assert {row["scale"] for row in csv.DictReader(io.StringIO(files[name]))} == {"quick"}


def test_unequal_seeds_are_told_per_cell(write_run, texts) -> None:
    write_run("rope", "ptb", seed=0, final=4.0)
    write_run("rope", "ptb", seed=1, final=4.0)
    write_run("crope", "ptb", seed=0, final=4.25)
    files = texts()
    assert "n = 1 to 2 seeds per cell" in files["table1.md"]
    expected = "|  | full | missing [3] | **4.0000 ± 0.0000 (n=2)** | 4.2500 (n=1) |"
    assert line_of(files["table1.md"], "Penn Treebank", "full") == expected


def test_settings_that_were_run_stand_beside_the_papers_label(write_run, texts) -> None:
    path = write_run("rope", "pg19", "b2_l512_d64") / "config.yaml"
    text = texts()["table2.md"]
    assert "| here B=2, L=512, D=64, γ=0.9, step=1000 | sampled |" in text
    assert "batch_size: 2" in path.read_text("utf-8")  # the label is the run's own setting
    assert text.count("| here ") == 1


def test_tiny_rows_come_last_without_a_papers_value(write_run, texts, cells, tiny_cells) -> None:
    write_run("crope", "tiny", final=4.0)
    files = texts(expected=[*tiny_cells, *cells])
    lines = files["table1.md"].splitlines()
    assert [line.split(" | ")[0] for line in lines[4:] if not line.startswith("|  |")][:4] == [
        "| PG-19", "| Wikitext-2", "| Penn Treebank", "| tiny (Python's help texts)",
    ]  # fmt: skip
    assert "| B=2, L=512, D=64, γ=0.9, step=1000 on tiny | sampled |" in files["table2.md"]
    rows = rows_of(files["table1.csv"])
    assert rows["table1", "base", "tiny", "crope", "full"]["paper_mean_nats"] == ""
    assert files["table1.md"].count("| paper |") == 3


def test_details_by_hand(write_run, texts) -> None:
    for seed, final in [(0, 4.0), (1, 5.0)]:
        write_run("crope", "ptb", seed=seed, final=final, best=(40 + 20 * seed, 3.5 + seed))
    files = texts()
    row = next(row for row in csv.DictReader(io.StringIO(files["details.csv"])) if row["n"] == "2")
    assert row == {
        "table": "table1", "row": "base", "dataset": "ptb", "model": "crope", "scale": "quick", "status": "complete",
        "n": "2", "final_nats": "4.500000", "best_nats": "4.000000", "best_step": "40 60", "train_tokens": "1638400",
        "train_passes": "0.400000", "train_val_gap_nats": "0.250000", "val_nats_per_byte": "1.500000",
        "unigram_nats": "7.000000", "below_unigram_nats": "2.500000",
    }  # fmt: skip
    assert (
        "| CRoPE | 2 | 4.5000 | 4.0000 | 40 to 60 | 1,638,400 | 0.40 | +0.2500 | 1.5000 | 7.0000 | 2.5000 |"
        in files["details.md"]
    )
    # 9 + 12 cells, of which the base row of PG-19 stands in both tables and once here.
    assert len(files["details.csv"].splitlines()) == 1 + 18


def test_committed_records_stand_between_the_papers_and_yours(write_run, texts, tmp_path) -> None:
    for seed, final in [(0, 4.25), (1, 4.75)]:
        write_run("crope", "ptb", seed=seed, final=final, folder=tmp_path / "published" / "gpu")
    write_run("rope", "ptb", final=4.0, sampled=4.125, folder=tmp_path / "published" / "gpu")
    write_run("crope", "ptb", final=4.5, sampled=4.625)
    files = texts(committed=read_source(tmp_path / "published" / "gpu", machine="gpu"))
    lines = files["table1.md"].splitlines()
    start = next(i for i, line in enumerate(lines) if "Penn Treebank" in line)
    assert lines[start : start + 5] == [
        "| Penn Treebank | paper | 4.4288 ± 0.0224 | 4.0212 ± 0.0243 | 4.0158 ± 0.0233 |",
        "|  | published, sampled |  | **4.1250 ± 0.0200 (n=1)** | 4.5000 ± 0.0200 (n=2) |",
        "|  | published, full |  | **4.0000 (n=1)** | 4.5000 ± 0.3536 (n=2) |",
        "|  | yours, sampled | missing [3] | missing [3] | 4.6250 ± 0.0200 |",
        "|  | yours, full | missing [3] | missing [3] | 4.5000 |",
    ]
    assert (
        "- published: records of gpu that are committed with the code, n = 1 to 2 seeds per cell" in files["table1.md"]
    )
    assert "published" not in files["table1.tex"]  # a paper's source holds its own numbers and the paper's
    assert rows_of(files["table1.csv"])["table1", "base", "ptb", "crope", "full"]["n"] == "1"
    assert "| PG-19 | paper |" in files["table1.md"] and files["table1.md"].count("| published, full |") == 1


def test_escapes() -> None:
    assert escape_markdown("a|b*c_d`e\n<f>&[g](h)") == r"a\|b\*c\_d\`e &lt;f&gt;&amp;[g]\(h)"
    assert escape_tex(r"50% of $x_1 & {y} #~^ \z" + " ±") == (
        r"50\% of \$x\_1 \& \{y\} \#\textasciitilde{}\textasciicircum{} \textbackslash{}z $\pm$"
    )
