"""The LaTeX tables: their structure, strictly, and that LaTeX takes them where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from crope.report import build_report
from tests.report.conftest import make_cells, make_run, make_study, read_source

TABLES = ("table1.tex", "table2.tex", "comparisons.tex", "verdicts.tex")
ROWS = {"table1.tex": 1 + 9, "table2.tex": 1 + 12, "comparisons.tex": 1 + 36, "verdicts.tex": 1 + 12}
ODD = r"50% of $x_1 & {y} #~^ \input{z} ±−≤≥²γ×“q” é «þ» 漢 \end{table} | < > \""


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Path:
    """Whole tables, but for a cell that failed with every character that LaTeX may trip over."""
    folder = tmp_path_factory.mktemp("tex")
    make_study(folder / "runs", seeds=range(3))
    for path in (folder / "runs").glob("xpos-ptb-*"):
        shutil.rmtree(path)
    make_run(folder / "runs", "xpos", "ptb", error={"type": "Error", "message": ODD, "step": 1})
    build_report(read_source(folder / "runs"), make_cells(), unavailable={}, out_dir=folder / "report")
    return folder / "report"


@pytest.mark.parametrize("name", TABLES)
def test_structure(tables: Path, name: str) -> None:
    text = (tables / name).read_text("utf-8")
    lines = text.splitlines()
    assert re.findall(r"\\(begin|end)\{(\w+)\}", re.sub(r"\\textbackslash\{\}\w+", "", text)) == [
        ("begin", "table"), ("begin", "tabular"), ("end", "tabular"), ("end", "table"),
    ]  # fmt: skip
    columns = re.search(r"\\begin\{tabular\}\{(.*)\}$", text, re.MULTILINE)[1]
    count = len(re.sub(r"p\{[\d.]+\\textwidth\}", "p", columns))
    body = [line for line in lines if line.endswith(r"\\")]
    assert len(body) == ROWS[name]
    assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in body} == {count}
    rules = [line for line in lines if line.startswith((r"\toprule", r"\midrule", r"\bottomrule"))]
    assert rules[0] == r"\toprule" and rules[-1] == r"\bottomrule" and set(rules[1:-1]) == {r"\midrule"}
    assert lines.index(r"\toprule") < lines.index(body[0]) < lines.index(r"\midrule") < lines.index(body[1])
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    assert depth == 0
    assert len(re.findall(r"(?<!\\)\$", text)) % 2 == 0
    bare = re.sub(r"^% needs.*", "", re.sub(r"\\[\\{}$&#%_]", "", text), flags=re.MULTILINE)
    assert not re.search(r"[%#~]", bare) and "漢" not in text and "«" not in text
    assert text.count(r"\caption{") == text.count(r"\label{tab:") == 1
    assert "quick" in text


def test_the_odd_message_is_shown(tables: Path) -> None:
    text = (tables / "table1.tex").read_text("utf-8")
    assert r"50\% of \$x\_1 \& \{y\} \#\textasciitilde{}\textasciicircum{} \textbackslash{}input\{z\}" in text
    assert r"$\pm$$-$$\leq$$\geq$$^2$$\gamma$$\times$“q” é ??? ?" in text


def test_latex_takes_them(tables: Path, tmp_path: Path) -> None:
    engine = shutil.which("pdflatex") or shutil.which("tectonic")
    if engine is None:
        pytest.skip("neither pdflatex nor tectonic is installed")
    if (
        Path(engine).name == "pdflatex"
        and not subprocess.run(["kpsewhich", "booktabs.sty"], capture_output=True).stdout
    ):
        pytest.skip("pdflatex is installed without booktabs")
    inputs = "\n".join(rf"\input{{{name}}}" for name in TABLES)
    for name in TABLES:
        shutil.copy(tables / name, tmp_path)
    source = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n" + inputs + "\n\\end{document}\n"
    (tmp_path / "all.tex").write_text(source, "utf-8")
    options = ["-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape"] if "pdflatex" in engine else []
    done = subprocess.run(
        [engine, *options, "all.tex"], cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert (tmp_path / "all.pdf").stat().st_size > 10_000
