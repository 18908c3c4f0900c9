"""Tables 1 and 2 against frozen files, numbers worked out by hand and the records themselves; the
renderer.
"""

import html
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from crope import paper
from crope.data.corpora import corpus_files
from crope.errors import UserError
from crope.report.evidence import find_comparisons
from crope.report.frame import Source, load_frame, load_published
from crope.report.page import render_page
from crope.report.tables import (
    Table,
    across_rows,
    claims_table,
    conversions,
    conversions_table,
    exploratory_table,
    headline,
    loss_table,
    losses_table,
    medium_sentence,
    other_lines,
    primary_table,
    render,
    runs_table,
    savings_line,
    signed,
    yardsticks,
)
from crope.runs.identity import cell_key
from crope.runs.study import expected_cells
from tests.report.frames import make_frame, make_row, make_runs
from tests.report.records import (
    FAILED,
    make_cell,
    make_config,
    make_conversion,
    make_extrapolation,
    make_ngrams,
    write_run,
)

MODELS = ("xpos", "rope", "crope")
CELLS = [make_cell(model) for model in MODELS]


NO_TABLE = Table("none", "", pd.DataFrame())


def source_of(folder: Path, **unavailable: str) -> Source:
    return Source("quick", (folder,), *load_frame([folder]), unavailable=unavailable)


def table1(folder: Path) -> Table:
    return loss_table(source_of(folder), CELLS, "table1")


def line(table: Table, label: str) -> list[str]:
    """The values of the first line with this label, in the order of MODELS."""
    return list(table.frame[table.frame[""] == label].iloc[0])[2:]


def test_savings_are_the_papers_percentages() -> None:
    """Of a tied model with GPT-2's vocabulary: 4 layers x 1.5 D^2 = 98,304 weights, 1.4 %. What
    else they could be saved by, when it is answered.
    """
    line = evidence_line("saving", "higher", 0.5, study="cost", second="thin_ffn")
    waiting = line | {"reason": "1 of 2 planned seeds"}
    assert "feed-forward" not in savings_line(frame_of(waiting))
    text = savings_line(frame_of(line))
    assert "feed-forward layer thinned instead: +0.5000 (+0.4990 to +0.5010), 800 steps" in text
    assert "Q/K/V 50.0 %" in text and "attention 37.5 %" in text and "block 12.5 %" in text
    assert "embeddings 1.4 %" in text and "0 % of the KV" in text and "saves 75 %" in text


def test_the_numbers_of_a_row(tmp_path: Path) -> None:
    """Final losses m, m + 0.1, m + 0.2; best ones 3 lower; sampled means m + 0.2 + 0.1 seed."""
    for model, mean in {"xpos": 6.0, "rope": 5.0, "crope": 4.0}.items():
        for seed in (0, 1, 2):
            final = mean + 0.1 * seed
            sampled = (final + 0.1, final + 0.3)
            write_run(tmp_path, model, seed=seed, sampled=sampled, final=final, best=final - 3)
    table = table1(tmp_path)
    assert list(table.frame.columns) == ["Dataset", "", "XPOS", "RoPE", "CRoPE"]
    assert line(table, "paper") == ["4.4288 ± 0.0224", "4.0212 ± 0.0243", "4.0158 ± 0.0233"]
    # full: m + 0.1, sample standard deviation of (0, 0.1, 0.2) is 0.1; sampled: m + 0.3, that of
    # two values 0.2 apart.
    assert line(table, "full") == ["6.1000 ± 0.1000", "5.1000 ± 0.1000", "4.1000 ± 0.1000"]
    assert line(table, "sampled") == ["6.3000 ± 0.1414", "5.3000 ± 0.1414", "4.3000 ± 0.1414"]
    assert "n = 3 seeds per cell" in table.caption
    assert any("B=16, L=1024, D=128" in note for note in table.notes)
    assert any("65,536 evenly spaced tokens" in note for note in table.notes)
    header, *_, sampled, full = render(table, "csv").splitlines()
    columns = "table,row,dataset,model,scale,protocol,mean_nats,std_nats,n,paper_mean_nats,paper_std_nats,status"
    assert header == columns
    assert (
        sampled
        == "table1,base,ptb,crope,quick,sampled,4.300000,0.141421,3,4.015800,0.023300,complete"
    )
    assert full == "table1,base,ptb,crope,quick,full,4.100000,0.100000,3,4.015800,0.023300,complete"


def test_a_row_uses_the_seeds_that_all_its_models_have(tmp_path: Path) -> None:
    """One seed has no spread; a model without runs restricts no other."""
    write_run(tmp_path, "rope", seed=1, final=5.0)
    write_run(tmp_path, "crope", seed=0, final=4.0)
    table = table1(tmp_path)
    assert line(table, "full") == ["missing [1]", "no common seed [2]", "no common seed [2]"]
    write_run(tmp_path, "crope", seed=1, final=5.0)
    table = table1(tmp_path)
    assert line(table, "full") == ["missing [1]", "5.0000", "5.0000"]
    write_run(tmp_path, "rope", seed=0, final=5.4)
    table = table1(tmp_path)
    assert line(table, "full")[1:] == ["5.2000 ± 0.2828", "4.5000 ± 0.7071"]
    assert "n = 2 seeds per cell" in table.caption
    missing = render(table, "csv").splitlines()[2]
    assert missing == "table1,base,ptb,xpos,quick,full,,,0,4.428800,0.022400,missing"


def test_losses_of_a_study_are_those_of_its_planned_common_seeds() -> None:
    """Seed 1 is not planned, and only crope has seed 2."""
    runs = [make_runs("rope", {0: 5.0, 1: 9.0}), make_runs("crope", {0: 5.5, 1: 9.0, 2: 9.0})]
    rows = [make_row("mine", ["rope", "crope"], seeds=[0, 2])]
    printed = losses_table(find_comparisons(make_frame(*runs), rows)).frame
    assert printed[["Model", "n", "Loss"]].to_numpy().tolist() == [
        ["RoPE", "1", "5.0000"],
        ["CRoPE", "1", "5.5000"],
    ]


def test_reasons_of_empty_cells_are_notes_and_each_is_printed_once(tmp_path: Path) -> None:
    source = source_of(tmp_path / "none", ptb="no network")
    table = loss_table(source, CELLS, "table1")
    assert line(table, "sampled") == line(table, "full") == ["missing [1]"] * 3
    assert [note for note in table.notes if note.startswith("[")] == [
        "[1] Penn Treebank: no network"
    ]
    assert "No complete cell" in table.caption
    write_run(tmp_path, "crope", error=FAILED)
    assert line(table1(tmp_path), "full")[2] == "failed [2]"


def test_a_failed_seed_beside_complete_ones_is_marked(tmp_path: Path) -> None:
    for model in MODELS:
        write_run(tmp_path, model, final=5.0)
    write_run(tmp_path, "rope", seed=1, error=FAILED)
    assert line(table1(tmp_path), "full") == [
        "5.0000",
        "5.0000 [1]",
        "5.0000",
    ]


def test_runs_that_do_not_compare_give_no_table(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", precision="bf16")
    write_run(tmp_path, "crope")
    with pytest.raises(UserError, match="precision"):
        table1(tmp_path)


def test_rows_of_other_datasets_follow_without_the_papers_line(tmp_path: Path) -> None:
    cells = [make_cell(model, dataset) for dataset in ("tiny", "ptb") for model in MODELS]
    write_run(tmp_path, "crope", "tiny", final=3.0)
    frame = loss_table(source_of(tmp_path), cells, "table1").frame
    assert list(frame["Dataset"]) == ["Penn Treebank", "", "", "tiny (Python's help texts)", ""]
    assert list(frame[""]) == ["paper", "full", "sampled", "full", "sampled"]


def test_table2_has_a_row_for_each_configuration(tmp_path: Path) -> None:
    cells = [
        make_cell(model, "pg19", row, "table2")
        for row in ("base", "b2_l512_d64")
        for model in MODELS
    ]
    write_run(tmp_path, "crope", "pg19", "b2_l512_d64", final=3.0)
    table = loss_table(source_of(tmp_path), cells, "table2")
    label = "B=2, L=512, D=64, γ=0.9, step=1000"
    assert list(table.frame["Configuration"])[3:5] == [label, f"here {label}, 100 steps"]
    assert list(table.frame.iloc[4])[1:] == ["full", "missing [1]", "missing [1]", "3.000"]
    write_run(tmp_path, "crope", "tiny", "b2_l512_d64")
    cells = [make_cell("crope", "tiny", "b2_l512_d64", "table2")]
    frame = loss_table(source_of(tmp_path), cells, "table2").frame
    assert list(frame["Configuration"]) == [f"here {label}, 100 steps on tiny", ""]


def test_runs_with_the_papers_settings_stand_below_their_row(tmp_path: Path) -> None:
    """In a folder of published records that the table's runs are not in, not in one of repeats; of
    rows with runs only.
    """
    row, gpt2 = "b2_l512_d64", {"tokenizer": {"name": "gpt2", "vocab_size": 50257}}
    cells = [make_cell(model, "pg19", row, "table2") for model in MODELS]
    keys = [cell_key(make_config(model, "pg19", row) | gpt2) for model in MODELS]
    paper_cells = [
        replace(cell, scale="paper", key=key) for cell, key in zip(cells, keys, strict=True)
    ]
    paper_cells += [replace(cell, row="base", key="no run") for cell in paper_cells]
    for seed in (1, 2):
        own = {"scale": "paper", "seed": seed, "config": gpt2}
        write_run(tmp_path / "plan", "rope", "pg19", row, final=4.0 + seed, **own)
        write_run(tmp_path / "plan", "crope", "pg19", row, final=5.0 + seed, **own)
    write_run(tmp_path / "quick", "rope", "pg19", row, final=3.0)
    source = source_of(tmp_path / "quick")
    assert len(loss_table(source, cells, "table2", paper_cells=paper_cells).frame) == 3
    write_run(tmp_path / "again", "rope", "pg19", row, final=9.0, **own)  # the last seed
    others = {name: load_frame([tmp_path / name])[0] for name in ("again", "plan")}
    source = replace(source, machine="quick", others=others)
    table = loss_table(source, cells, "table2", paper_cells=paper_cells)
    full = table.frame[table.frame[""] == "full"].to_numpy().tolist()
    assert [line[3] for line in full] == ["3.000", "5.500 ± 0.707"]
    assert full[1][4] == "6.500 ± 0.707" and full[1][2].startswith("missing")
    assert "paper's settings" in full[1][0] and "n = 2" in full[1][0]
    assert "crope,paper,full,6.500000,0.707107,2" in render(table, "csv")


def test_ngram_losses_are_those_of_the_runs_tokens(tmp_path: Path) -> None:
    """Of runs with these digests only; beside the bigrams with GPT-2's tokens stand the paper's
    lowest losses, 4.0158 (PTB) and 6.5809 (PG-19).
    """
    cells = [make_cell(model, dataset) for dataset in ("pg19", "ptb") for model in MODELS]
    write_run(tmp_path, "crope", "ptb", sha256="d")
    write_run(tmp_path, "crope", "pg19", sha256="e")
    ngrams = [
        make_ngrams("ptb", "g", "gpt2", bigram=4.0159), make_ngrams("pg19", "g", "gpt2", bigram=5.0),
        make_ngrams("ptb", "d"), make_ngrams("ptb", "other", bigram=1.0), make_ngrams("pg19", "other", bigram=1.0),
    ]  # fmt: skip
    source = replace(source_of(tmp_path), ngrams=ngrams)
    here, beside = (note for note in loss_table(source, cells, "table1").notes if "gram" in note)
    assert here.endswith(": Penn Treebank 5.5000/4.5000/4.0000.")
    assert beside.startswith("If ") and "GPT-2's tokens" in beside
    books = len(corpus_files("pg19")["train"])
    pg19 = f"PG-19 6.5809 above 5.0000 (on our {books} training books)"
    assert beside.endswith(f": {pg19}, Penn Treebank 4.0158 below 4.0159.")
    assert not [
        note for note in loss_table(source_of(tmp_path), cells, "table1").notes if "gram" in note
    ]


@pytest.mark.parametrize("name", ["table1", "table2"])
def test_published_ngrams_have_the_tokens_of_every_table_and_of_gpt2(name: str) -> None:
    source = load_published("quick")
    assert source
    notes = loss_table(source, expected_cells("quick"), name).notes
    here, beside = (note for note in notes if "gram" in note)
    labels = list(paper.DATASET_LABELS.values()) if name == "table1" else ["PG-19"]
    assert [label for label in paper.DATASET_LABELS.values() if label in here] == labels
    assert [label for label in paper.DATASET_LABELS.values() if label in beside] == labels


HOSTILE = "a|b_c*d <i>&$x$ 50 % [e](f) #{g}~^\\ γ±−"


@pytest.fixture
def hostile() -> Table:
    frame = pd.DataFrame([[HOSTILE, "1"], ["x", "2"]], columns=["name <b>", "n"])
    return Table("t", "Table 3. Of all", frame, [HOSTILE])


def test_the_page_shows_the_text_as_it_is(hostile: Table) -> None:
    source = SimpleNamespace(scale=HOSTILE, invalid=[HOSTILE])
    evidence = SimpleNamespace(forest=())
    report = SimpleNamespace(
        source=source, evidence=evidence, primary=hostile, claims=NO_TABLE, lead=HOSTILE, others=[]
    )
    page = render_page(
        report=report,
        origin=HOSTILE,
        savings=HOSTILE,
        sections=(),
        data=(),
        tables=(),
        captions={"fig4": ""},
    )
    assert HOSTILE not in page
    assert html.unescape(page).count(f"<li>{HOSTILE}</li>") == 2  # invalid record, note
    cells = re.findall(r"<t([dh])(?: class=\"number\")?>(.*?)</t\1>", page)
    assert [html.unescape(cell) for _, cell in cells] == ["name <b>", "n", HOSTILE, "1", "x", "2"]
    assert page.count('class="number"') == 3


def test_csv_is_the_frame_or_the_numbers(hostile: Table) -> None:
    assert pd.read_csv(io.StringIO(render(hostile, "csv")), dtype=str).equals(hostile.frame)


def test_markdown_escapes_everything_that_github_would_interpret(hostile: Table) -> None:
    lines = render(hostile, "md").splitlines()
    assert lines[:4] == ["**Table 3. Of all**", "", "| name &lt;b&gt; | n |", "| --- | ---: |"]
    assert lines[4] == r"| a\|b\_c\*d &lt;i&gt;&amp;\$x\$ 50 % [e]\(f) #{g}\~^\\ γ±− | 1 |"
    assert lines[5] == "| x | 2 |"
    assert lines[7].startswith("- a")


def test_latex_escapes_everything_and_has_booktabs_rules(hostile: Table) -> None:
    text = render(hostile, "tex")
    assert (
        r"a\textbar{}b\_c*d \textless{}i\textgreater{}\&\$x\$ 50 \% [e](f) \#\{g\}\textasciitilde{}"
        in text
    )
    assert r"\textasciicircum{}\textbackslash{} $\gamma$$\pm$$-$ & 1 \\" in text
    assert r"x & 2 \\" in text
    assert r"\caption{Of all}" in text and r"\label{tab:t}" in text
    assert [text.count(rf"\{rule}rule") for rule in ("top", "mid", "bottom")] == [1, 1, 1]
    assert text.isascii()


def test_the_runs_table_has_one_row_per_run_and_keeps_types(tmp_path: Path) -> None:
    for seed, content in enumerate(["{", json.dumps(make_extrapolation())]):
        (write_run(tmp_path, seed=seed) / "extrapolation.json").write_text(content)
    write_run(tmp_path, seed=2, error=FAILED | {"message": "loss is\nnan"})
    (write_run(tmp_path, "rope") / "metrics.jsonl").unlink()
    runs_table(*load_frame([tmp_path])).to_parquet(tmp_path / "runs.parquet")
    table = pd.read_parquet(tmp_path / "runs.parquet")
    assert list(table["status"]) == ["complete", "complete", "failed", "invalid"]
    assert (
        table["error"][2] == "ValueError: loss is nan (step 20)"
        and "metrics.jsonl" in table["error"][3]
    )
    assert str(table["steps"].dtype) == "Int64" and list(table["steps"].dropna()) == [100, 100]
    assert runs_table(*load_frame([])).empty


def evidence_line(family: str, answer: str, mean: float, **more: object) -> dict[str, object]:
    return {
        "family": family, "question": "?", "answer": answer, "difference": "A − B", "planned": False, "scale": "quick",
        "level": 0.95, "steps": 800, "where": "PTB, 2 layers", "mean_nats": mean, "low_nats": mean - 0.001,
        "high_nats": mean + 0.001, "reason": "", "n": 5, "dataset": "", "first": "crope", "second": "rope",
        "values": (), "text_error_nats": math.nan, **more,
    }  # fmt: skip


def frame_of(*lines: dict[str, object]) -> pd.DataFrame:
    return pd.DataFrame([*lines])


def test_conversions_are_means_over_seeds_before_and_after_tuning(tmp_path: Path) -> None:
    for seed in (0, 1):
        measured = make_conversion()
        for losses in (measured["loss_nats"], measured["tuned_loss_nats"]):
            losses.update({arm: loss + 0.2 * seed for arm, loss in losses.items()})
        path = write_run(tmp_path, "rope", seed=seed)
        (path / "conversion.json").write_text(json.dumps(measured))
    write_run(tmp_path, "rope", seed=2)
    heads = make_config("rope", "ptb")["model"] | {"n_heads": 8}
    for other in ({"seed": 3, "version": 99}, {"config": {"model": heads}}):  # stale; another model
        path = write_run(tmp_path, "rope", **other)
        (path / "conversion.json").write_text(json.dumps(make_conversion()))
    table = conversions_table(conversions(load_frame([tmp_path])[0]))
    assert sorted(table.frame["n"]) == ["1", "2"]
    table = replace(table, frame=table.frame[table.frame["n"] == "2"])
    where = ["Penn Treebank", "128", "2", "200", "0.0001", "5.0000"]
    arms = ["5.1000 → 5.0500", "5.2000 → 5.1500", "5.4000 → 5.3500", "6.1000 → 6.0500"]
    assert list(table.frame.iloc[0]) == [*where, *arms, "0.700 (by chance 0.550)"]


def test_all_other_differences_count_the_answered_ones() -> None:
    line = evidence_line("more", "higher", 0.5)
    no_ends = {"low_nats": math.nan, "high_nats": math.nan}
    other = line | no_ends | {"reason": "2 of 3 planned seeds", "answer": "missing"}
    table = exploratory_table(frame_of(line, other))
    estimates = ["+0.5000 (+0.4990 to +0.5010)", "+0.5000 (2 of 3 planned seeds)"]
    assert list(table.frame["Estimate (95 %)"]) == estimates
    assert "of 1 such intervals" in table.notes[0]


def test_rows_of_both_tables_are_pooled_with_the_errors_of_their_means() -> None:
    """With equal errors the interval is Student's of the means."""
    lines = []
    for n, mean in enumerate((0.01, -0.03, 0.05, 0.02), start=2):
        more = {"study": "table2", "row": f"row {n}", "n": n}
        std = 0.01 * math.sqrt(n)
        lines.append(evidence_line("Table 2", "open", mean, std_over_seeds_nats=std, **more))
    lines.append(lines[0] | {"study": "paper_row", "row": "own", "mean_nats": 9.0})
    lines.append(lines[0] | {"family": "Fig. 4", "row": "x", "mean_nats": 9.0})
    text = across_rows(pd.DataFrame(lines))
    assert "the 4 rows of both tables (random effects): +0.0125 (−0.0401 to +0.0651)" in text


def test_the_primary_table_names_stand_ins_and_the_error_of_the_text() -> None:
    stand_in = evidence_line("P1", "higher", 0.5)
    planned = stand_in | {"planned": True, "level": 0.99, "text_error_nats": 0.00312}
    of_both = primary_table(frame_of(stand_in, planned))
    assert list(of_both.frame["Nats (95 %)"].str.endswith(" at 99 %")) == [False, True]
    assert of_both.notes[-1].endswith("at most 0.0031.")
    notes = " ".join(of_both.notes)
    assert "1 of 2 lines" in notes and "99 %" in notes
    assert "exploratory" not in " ".join(primary_table(frame_of(planned)).notes)
    of_stand_in = primary_table(frame_of(stand_in))
    assert "99 %" not in " ".join(of_stand_in.notes) and "text" not in of_stand_in.notes[-1]


def test_primary_intervals_are_also_printed_of_seeds_averaged_over_corpora() -> None:
    corpora = np.array([[0.010, 0.030, 0.020], [0.012, 0.050, 0.011]])
    line = evidence_line("P1", "higher", 0.5, n=3, values=tuple(corpora.ravel()), level=0.99)
    notes = " ".join(primary_table(frame_of(line | {"planned": True})).notes)
    expected = stats.ttest_1samp(corpora.mean(axis=0), 0).confidence_interval(0.99)
    instead = f"seeds instead: P1 {signed(expected.low)} to {signed(expected.high)}"
    assert f"{instead}; then P1 could be 0." in notes
    lower = line | {"planned": True, "values": tuple(corpora.ravel() - 1)}
    (notes,) = [note for note in primary_table(frame_of(lower)).notes if "instead" in note]
    assert "P1 −" in notes and "could be" not in notes
    assert "instead" not in " ".join(primary_table(frame_of(line)).notes)


@pytest.mark.parametrize(
    ("family", "answer", "reading"),
    [
        ("P1", "higher by less than 0.02", "raise the loss"),
        ("P1", "lower", "lower the loss"),
        ("P1", "no difference above 0.02", "end within 0.02 nats of RoPE"),
        ("P1", "open", "stays open"),
        ("P2", "higher", "do better than CRoPE"),
        ("P2", "lower", "do worse than CRoPE"),
        ("P2", "no difference above 0.02", "end within 0.02 nats of CRoPE"),
        ("P3", "higher", "more in Q and K than in V"),
        ("P3", "lower", "more in V than in Q and K"),
        ("P4", "higher", "other pairs that were tried do worse than the rotation's"),
        ("P4", "no difference above 0.02", "end within 0.02 nats of the rotation's"),
        ("P4", "open", "stays open"),
    ],
)
def test_the_headline_reads_the_answers(family: str, answer: str, reading: str) -> None:
    """CRoPE higher than the others means that the others do better."""
    line = evidence_line(family, answer, 0.5)
    text = headline(frame_of(line))
    assert text.startswith("At the quick scale, after 800 steps")
    assert ("**Open**" in text) == (family == "P1")
    assert reading in text
    numbers = "A − B +0.5000 (+0.4990 to +0.5010) nats per token, 95 %"
    assert (f"{reading}: {numbers}" in text) == (family == "P1")
    planned = headline(frame_of(line | {"planned": True, "level": 0.99}))
    assert "**Open**" not in planned and ("token, 99 %" in planned) == (family == "P1")
    assert headline(frame_of(evidence_line(family, "missing", 0.5))) == ""


def test_the_headline_has_the_papers_row_only_of_its_own_size() -> None:
    cost, row = (evidence_line(family, "higher", 0.5) for family in ("P1", "P5"))
    assert "In a row" not in headline(frame_of(cost, row))
    planned = row | {"planned": True, "level": 0.99, "scale": "paper", "steps": 10_000}
    text = headline(frame_of(cost, planned))
    assert "row of Table 2 at the paper scale: **Eq. 30 raises the loss: A − B +0.5000" in text
    assert "after 3,200 steps" in text and "own size" not in text


def test_the_headline_names_scale_and_steps_wherever_they_change() -> None:
    lines = [evidence_line(family, "higher", 0.5) for family in ("P1", "P2", "P3")]
    lines[0] |= {"planned": True, "level": 0.99, "steps": 3200}
    text = headline(pd.DataFrame(lines))
    assert text.startswith("At the quick scale, after 3,200 steps on PTB: **Complex-linear")
    assert (
        "At the quick scale, after 800 steps on PTB: Low rank" in text
        and ". Eq. 30 costs more" in text
    )


def test_the_lead_has_the_medium_scale_once_it_is_answered() -> None:
    line = evidence_line("cost", "higher", 0.5, study="medium")
    text = medium_sentence(frame_of(line))
    assert "medium" in text and "n = 5" in text and "A − B +0.5000 (+0.4990 to +0.5010)" in text
    assert medium_sentence(frame_of(line | {"reason": "7 of 8 planned seeds"})) == ""


def test_a_claim_at_the_papers_size_has_its_level() -> None:
    line = evidence_line("Table 2", "open", 0.03, where="PG-19, a row")
    line |= {"level": 0.99, "paper_nats": -0.023}
    line |= {"study": "paper_row", "std_over_seeds_nats": 0.01}
    ((_, printed, here),) = claims_table(frame_of(line)).frame.to_numpy()
    assert printed == "PG-19, a row −0.023"
    assert here == "+0.030 (+0.029 to +0.031) at 99 %"


def test_a_planned_study_stands_in_the_place_of_those_before_it() -> None:
    lines = [
        evidence_line("half", "open", mean, study=study, difference=difference)
        for study, difference, mean in (
            ("controls", "A − B", 0.1),
            ("horizon", "A − B", 0.2),
            ("controls", "A − C", 0.3),
            ("cost", "A − B", 0.4),
        )
    ]
    means = [line["mean_nats"] for line in lines]

    def printed() -> list[float]:
        (text,) = other_lines(pd.DataFrame(lines))
        return [mean for mean in means if f"+{mean:.3f}" in text]

    assert printed() == [0.3, 0.4]
    lines[3]["reason"] = "2 of 3 planned seeds"
    assert printed() == [0.1, 0.2, 0.3]


def test_the_cost_in_units_of_what_rotation_is_worth() -> None:
    """0.01 of 0.05 nats is 20 %, its ends are 18 and 22 %."""
    cost = evidence_line("cost", "higher", 0.01, study="base")
    worth = evidence_line(
        "positions", "lower", -0.05, study="baselines", first="rope", second="nope"
    )
    assert "20 % (18 to 22) of 0.050 after 800 steps." in yardsticks(frame_of(cost, worth), [])
    trained = [
        SimpleNamespace(
            steps=steps,
            row=SimpleNamespace(study=study, dataset="ptb", seeds=(0, 1)),
            by_seed=lambda model, loss=loss: pd.Series({0: loss - 1, 1: loss + 1, 2: 99.0}),
        )
        for study, steps, loss in (("base", 800, 5.0), ("horizon", 3200, 4.6))
    ]
    more = 100 * math.expm1(0.01 / (0.4 / math.log(4)))
    text = yardsticks(frame_of(cost, worth), trained)  # type: ignore[arg-type]
    assert f"which {more:.1f} % (" in text and "more tokens undo" in text
    later = [line | {"study": "cost", "steps": 3200, "dataset": "ptb"} for line in (cost, worth)]
    text = yardsticks(frame_of(cost, worth, *later), [])
    assert (
        "after 800 steps, and 20 % (18 to 22) of 0.050 after 3,200 steps on Penn Treebank." in text
    )
