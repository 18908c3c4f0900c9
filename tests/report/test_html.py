"""The page: it stands alone, says what was found, and leads from every number to the files of its runs."""

from __future__ import annotations

import json
import re
from urllib.parse import unquote

import pytest

from crope.report.html import link_parts
from crope.report.interactive import embed_json
from crope.report.page_runs import RUN_FILES
from tests.report.conftest import LEVEL, make_study, read_source
from tests.report.page import Reader, read_page

FIGURES = ("fig4", "forest", "seeds", "parameters")


@pytest.fixture
def page(build, no_pictures):
    """page(): what a reader finds in the report of the runs written so far."""
    return lambda **options: read_page(build(**options))


def test_page_stands_alone_and_its_links_lead_somewhere(whole_study, build) -> None:
    out_dir = build()
    page = read_page(out_dir)
    assert not {"link", "iframe", "source", "object", "form"} & set(page.tags)
    assert ("script", "src") not in {(tag, name) for tag, name, _ in page.attributes}
    assert len(page.pictures) == 3 + 2 + 6 + 4 and all(len(found) == 2 for found in page.pictures.values())
    files = [link.partition("#")[0] for link in page.links if not link.startswith("#")]
    assert not [link for link in files if ":" in link]
    assert not [link for link in files if not (out_dir / unquote(link)).exists()]
    assert {f"{name}.{kind}" for name in FIGURES for kind in ("svg", "png")} <= set(files)
    assert {path.name for path in out_dir.iterdir()} - set(files) == {"index.html"}  # nothing is made that nobody finds
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert len(set(page.ids)) == len(page.ids)
    policy = next(
        value for tag, name, value in page.attributes if (tag, name) == ("meta", "content") and "src" in value
    )
    assert policy.startswith("default-src 'none';") and "http" not in policy
    style = (out_dir / "index.html").read_text("utf-8").partition("</style>")[0]
    assert "@import" not in style and "url(" not in style


def test_page_says_what_was_found(whole_study, page) -> None:
    text = page().text
    assert "scale: quick 21 of 21 table cells complete, n = 2 seeds per cell: your own runs" in text
    assert "levels do not compare with the paper's" in text
    # Seeds 0 and 1 at 4.0 and 4.1: mean 4.05, CRoPE 0.01 above at each seed; two seeds have no interval.
    assert "full 4.3500 ± 0.0707 4.0500 ± 0.0707 4.0600 ± 0.0707" in text
    told = "final 2 −0.0054 +0.0100 needs at least 3 seeds, has 2"
    assert f"Penn Treebank B=16, L=1024, D=128, γ=0.8, step=1000 CRoPE − RoPE {told}" in text
    # 4 layers of width 128 with biases outside Q/K/V, 4096 tied embeddings; CRoPE lacks half of 4 x 3 x 128^2.
    total = 4 * (12 * 128**2 + 6 * 128) + 9 * 2 * 128 + 4096 * 128
    share = 100 * 4 * 1.5 * 128**2 / total
    assert "Q/K/V 50.0 % (paper: 50 %), attention 37.5 % (paper: 37.5 %), block 12.5 % (paper: 12.5 %)" in text
    assert f"whole model with embeddings {share:.1f} % ({total:,} to {total - 98_304:,} parameters)" in text
    assert "complete 4.0000 3.8750 config · provenance · metrics · summary 0123456789 a CPU fp32 2 min 31 s" in text


def test_sections_stand_in_their_order(whole_study, page) -> None:
    names = ["verdicts", "table1", "table2", "figures", "comparisons", "details", "runs", "protocol"]
    ids = page().ids
    assert [name for name in ids if name in names] == names
    assert [name for name in ids if name in FIGURES] == list(FIGURES)


def test_verdicts_say_rule_quote_and_every_check(runs_dir, page) -> None:
    make_study(runs_dir, seeds=range(3))
    text = page().text
    # Equal differences at every seed leave no doubt: CRoPE is 0.01 above RoPE everywhere.
    assert "CRoPE is within noise of RoPE Sec. 6.1, Table 1 final supported 3 of 3 hold; weakest: " in text
    assert "“the difference between RoPE and CRoPE losses are within the range of noise” (Sec. 6.1, Table 1)" in text
    assert "Rule: not supported where in some check the difference is outside ±0.02 nats; else supported where" in text
    assert "final PG-19: CRoPE − RoPE 3 +0.0100 (95 % +0.0100 to +0.0100) < 0.001 1.000 for" in text
    assert "Of 12 verdicts on the paper's claims: 10 supported, 2 cannot tell." in text


def hops(page: Reader) -> dict[str, set[str]]:
    """Anchor of a group of runs -> the records' files that its rows link to."""
    found: dict[str, set[str]] = {}
    here = ""
    for tag, name, value in page.attributes:
        if (tag, name) == ("tbody", "id"):
            here = value
        elif (tag, name) == ("a", "href") and unquote(value).rpartition("/")[2] in RUN_FILES:
            found.setdefault(here, set()).add(unquote(value))
    return found


def test_every_number_is_two_clicks_from_its_runs(whole_study, build, no_pictures, runs_dir) -> None:
    page = read_page(build())
    text = (runs_dir.parent / "report" / "index.html").read_text("utf-8")
    groups = hops(page)
    tables = re.findall(r'<table class="losses">.*?</table>', text, re.DOTALL)
    for table in tables:
        for cell in re.findall(r'<tr class="(?:sampled|full)">(.*?)</tr>', table, re.DOTALL):
            anchors = re.findall(r'<td class="number"><a href="#([\w-]+)">', cell)
            assert len(anchors) == 3 and len(set(anchors)) == 3 and set(anchors) <= groups.keys()
    ptb = tables[0].rpartition("Penn Treebank")[2]
    crope = re.findall(r'<a href="#([\w-]+)">', ptb)[-1]
    expected = {f"../runs/{path.name}/{name}" for path in runs_dir.glob("crope-ptb-base-s*") for name in RUN_FILES}
    assert groups[crope] == expected and len(expected) == 8


def test_committed_records_have_their_own_runs(write_run, page, tmp_path) -> None:
    write_run("crope", "ptb", final=4.5)
    other = write_run("crope", "ptb", final=4.25, folder=tmp_path / "published" / "gpu")
    found = page(committed=read_source(other.parent, machine="gpu"))
    groups = hops(found)
    key = next(name for name in groups if name.startswith("published-"))
    assert f"runs-{key.removeprefix('published-')}" in groups
    assert all(f"/published/gpu/{other.name}/" in link for link in groups[key]) and groups[key]
    assert re.search(r"published, full 4.2500 .*yours, full missing \d missing \d 4.5000", found.text)


def test_links_of_a_difference_lead_to_both_models() -> None:
    keys, anchors = ("a" * 64, "b" * 64), {"runs-" + "a" * 10, "runs-" + "b" * 10}
    parts = link_parts("PG-19: CRoPE − RoPE", keys, anchors)
    assert parts == [("PG-19: CRoPE", "runs-" + "a" * 10), (" − ", ""), ("RoPE", "runs-" + "b" * 10)]
    assert link_parts("PG-19", keys, anchors)[1:] == [(" [1]", "runs-" + "a" * 10), (" [2]", "runs-" + "b" * 10)]
    assert link_parts("XPOS", keys[:1], set()) == [("XPOS", "")]
    assert link_parts("XPOS", (), anchors) == [("XPOS", "")]


def test_page_without_runs_says_what_to_do(page) -> None:
    found = page(unavailable={"pg19": "the hub is not there"})
    assert "0 of 21 table cells complete" in found.text
    assert "There is no complete run: nothing is measured." in found.text
    assert "make reproduce SCALE=quick" in found.text and "PG-19: the hub is not there" in found.text
    assert len(found.scripts) == 2  # no charts, no plotly


def test_runs_of_other_scales_are_counted_not_shown(write_run, build, no_pictures) -> None:
    write_run("rope", "ptb", final=4.0)
    write_run("rope", "ptb", "b2_l512_d64", scale="smoke")
    out_dir = build()
    assert "1 run of other scales is not on this page" in read_page(out_dir).text
    assert (out_dir / "runs.csv").read_text("utf-8").count("\n") == 2


def test_a_run_of_a_cell_is_shown_whatever_scale_it_was_made_under(write_run, page) -> None:
    """A sweep's overrides can turn another scale into this one: the same configuration, the same run id."""
    run = write_run("rope", "ptb", final=4.0, scale="smoke")
    text = page().text
    assert f"{run.name} 0 complete 4.0000" in text and "not on this page" not in text


def test_runs_that_no_table_uses_are_said(write_run, page) -> None:
    write_run("rope", "ptb", final=4.0)
    assert "in no table" not in page(name="before").text
    write_run("rope", "ptb", "b2_l512_d64", final=4.0)  # Table 2 is on PG-19
    assert "1 of these runs stands in no table" in page().text


def test_charts_hold_every_curve_of_every_run(whole_study, page) -> None:
    data = page().charts
    assert len(data["panels"]) == 6 and {panel["title"] for panel in data["panels"]} >= {"PG-19", "Penn Treebank"}
    (panel,) = [panel for panel in data["panels"] if panel["title"] == "Penn Treebank"]
    assert [(run["model"], run["seed"]) for run in panel["runs"]] == [
        (m, s) for m in ("xpos", "rope", "crope") for s in (0, 1)
    ]
    for run in panel["runs"]:
        curves = {name: (panel["steps"][grid], losses) for name, (grid, losses) in run["curves"].items()}
        offset = {"xpos": 0.3, "rope": 0.0, "crope": 0.01}[run["model"]] + 0.1 * run["seed"]
        final = round(LEVEL["ptb"] + offset, 4)
        assert curves["val_full/loss_nats"] == ([80, 100], [round(final - 0.125, 4), final])
        assert curves["val/loss_nats"][0] == [*range(0, 100, 10), 100] and curves["val/loss_nats"][1][0] == 8.0
        assert curves["train/loss_nats"][1][-1] == round(final - 0.25, 4)
    assert set(data["models"]) == {"xpos", "rope", "crope"} and set(data["measures"]) == set(run["curves"])


def test_embedded_data_cannot_end_its_script() -> None:
    text = embed_json({"a": "</script><!-- <script> & \u2028 é"})
    assert not set("<>&") & set(text) and text.isascii()
    assert json.loads(text) == {"a": "</script><!-- <script> & \u2028 é"}
