"""Text of records stays text: no markup, link, column or macro comes from a run's files, whatever stands in them."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from urllib.parse import unquote

import pytest

from crope.report import build_report
from crope.report.html import README
from crope.report.published import render_machine
from tests.report.conftest import make_cells, make_run, read_source
from tests.report.page import read_page

ATTACKS = (
    "a\r\nb\tc\x00\x1b[31m\u202ed\ud800e", "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)", "</style></title></ul>", "--><svg onload=alert(1)>", "]]>", "&lt;b&gt;",
    "{{ 7 * 7 }}{% raw %}", "javascript:alert(1)", "| a | b |\n| - | - |\n\n# head", "[click](javascript:alert(1))",
    "![x](y)", "**b** _i_ `c` ~~s~~ $x^2$", "a\\|b\\", r"\input{/etc/passwd} \\ & 50% # ~ ^^41 } {",
)  # fmt: skip
ATTACK = " ".join(ATTACKS)
# What a file system takes as a directory's name.
NAME = "\"'><img src=x onerror=alert(1)> &lt;b&gt; {{ 7 }} javascript:alert(1) |\n| a\\|b \\input{x} $x$ % _i_ `c` \x1b"
TEXTS = (
    "index.html", "table1.md", "table2.md", "details.md", "comparisons.md", "verdicts.md", "choices.md", "table1.tex",
    "table2.tex", "comparisons.tex", "verdicts.tex", "runs.csv", "choices.csv", "fig4.svg", "seeds.svg", "choices.svg",
)  # fmt: skip


def build(folder: Path, text: str, name: str) -> Path:
    """The report of complete, failed, unknown and damaged runs whose files say `text`."""
    runs, out_dir = folder / "runs", folder / "report"
    error = {"type": text, "message": text, "traceback": text, "step": 3}
    packages = dict.fromkeys(("torch", "numpy", "tokenizers"), text)
    facts = {"commit": text, "dirty": True, "device": text, "driver": text, "python": text, "packages": packages}
    make_run(runs, "rope", "ptb", device_kind=text, provenance=facts)
    make_run(runs, "crope", "ptb", error=error, provenance=facts)
    make_run(runs, "crope", "wikitext2", named=name, provenance=facts)
    for model in ("crope", "rope"):  # a configuration that the tables do not ask for
        make_run(runs, model, "wikitext2", change={"tokenizer": {"name": text}}, provenance=facts)
    broken = make_run(runs, "xpos", "ptb")
    summary = json.loads((broken / "summary.json").read_text("utf-8"))
    (broken / "summary.json").write_text(json.dumps(summary | {"run_id": f"../../{text}", "model": text}), "utf-8")
    broken.rename(broken.with_name(f"xpos-ptb-base-s1-{name}"))
    source = read_source(runs)
    assert [len(source.runs), len(source.damaged)] == [5, 1]
    committed = read_source(runs, machine=text)
    build_report(source, make_cells(), unavailable={"pg19": text}, out_dir=out_dir, committed=committed)
    complete = [run for run in source.runs if run.summary["status"] == "complete"]
    (out_dir / "machine.md").write_text(render_machine("here", complete), "utf-8")
    return out_dir


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> tuple[Path, Path]:
    """The same report twice: of plain words, and of hostile ones."""
    folder = tmp_path_factory.mktemp("reports")
    return build(folder / "plain", "words", "words"), build(folder / "hostile", ATTACK, NAME)


def test_the_page_has_the_elements_and_attributes_of_plain_words(reports) -> None:
    plain, hostile = map(read_page, reports)
    assert hostile.tags == plain.tags
    assert [(tag, name) for tag, name, _ in hostile.attributes] == [(tag, name) for tag, name, _ in plain.attributes]
    # Shown as it stands in the record, line ends as blanks.
    assert '<script>alert(1)</script> "><img src=x onerror=alert(1)>' in hostile.text
    assert "&lt;b&gt; {{ 7 * 7 }}{% raw %} javascript:alert(1) | a | b | | - | - | # head" in hostile.text
    assert r"\input{/etc/passwd} \\ & 50% # ~ ^^41 } {" in hostile.text


def test_links_stay_below_runs_and_report(reports) -> None:
    _, hostile = reports
    below = [(hostile.parent / name).resolve() for name in ("runs", "report")] + [README.resolve()]
    page = read_page(hostile)
    files = [link for link in page.links if not link.startswith("#")]
    assert len(files) > 9
    for link in files:
        target = (hostile / unquote(link.partition("#")[0])).resolve()
        assert target.exists() and any(target.is_relative_to(folder) for folder in below)
        assert re.fullmatch(r"[\w./%~-]+(#[\w-]+)?", link)  # no scheme, no quote, no query
    assert not any("xpos" in link for link in files)  # a damaged run is named, not linked
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert all(re.fullmatch(r"[\w-]+", name) for name in page.ids)


def test_scripts_are_the_pages_own(reports) -> None:
    """The data of the charts apart, which is JSON without any sign that HTML knows."""
    plain, hostile = map(read_page, reports)
    assert len(hostile.scripts) == len(plain.scripts) == 4
    for one, other in zip(plain.scripts, hostile.scripts, strict=True):
        assert one == other or (hostile.charts and not set("<>&") & set(other))


def test_markdown_tables_keep_their_columns(reports) -> None:
    for name in (*(name for name in TEXTS if name.endswith(".md")), "machine.md"):
        plain, hostile = ((report / name).read_text("utf-8").splitlines() for report in reports)
        assert len(hostile) == len(plain)
        columns = [
            [len(re.findall(r"(?<!\\)\|", line)) for line in lines if line.startswith("|")]
            for lines in (plain, hostile)
        ]
        assert columns[0] == columns[1]
        for line in hostile:
            assert not re.search(r"[<>]|\]\(|(?<!\\)[$`]|&(?!(amp|lt|gt);)", line), line


def test_latex_keeps_its_columns_and_macros(reports) -> None:
    for name in (name for name in TEXTS if name.endswith(".tex")):
        plain, hostile = ((report / name).read_text("utf-8") for report in reports)
        assert len(hostile.splitlines()) == len(plain.splitlines())
        for special in "&%":
            bare = [len(re.findall(rf"(?<!\\){special}", text)) for text in (plain, hostile)]
            assert bare[0] == bare[1]
        escapes = {"textbackslash", "textasciitilde", "textasciicircum", "textless", "textgreater", "textbar", "char"}
        macros = [set(re.findall(r"\\([a-z]+)", text)) for text in (plain, hostile)]
        assert macros[1] - macros[0] <= escapes
        bare = re.sub(r"\\[\\{}$&#%_]", "", hostile)
        assert bare.count("{") == bare.count("}") and "^" not in bare and "#" not in bare


def test_every_file_is_utf_8_without_control_characters(reports) -> None:
    for report in reports:
        for name in TEXTS:
            text = (report / name).read_text("utf-8")
            text = re.sub(r'<script id="plotly">.*?</script>', "", text, flags=re.DOTALL)
            assert not [c for c in text if not c.isprintable() and c != "\n"], name


def test_csv_rows_keep_their_columns(reports) -> None:
    _, hostile = reports
    for file in hostile.glob("*.csv"):
        rows = list(csv.reader(io.StringIO(file.read_text("utf-8"))))
        assert {len(row) for row in rows} == {len(rows[0])}


def test_the_picture_has_no_element_that_plain_words_lack(reports) -> None:
    for name in (name for name in TEXTS if name.endswith(".svg")):
        plain, hostile = (ElementTree.parse(report / name) for report in reports)
        kinds = [{(element.tag, *sorted(element.attrib)) for element in tree.iter()} for tree in (plain, hostile)]
        assert kinds[0] == kinds[1]
