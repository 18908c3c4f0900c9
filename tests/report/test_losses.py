"""Tables 1 and 2 as they are printed: the paper's numbers, this project's below them."""

import numpy as np

from crope.report import losses as module
from crope.report.frame import cell_frame
from crope.report.losses import loss_table
from crope.report.tables import to_csv
from tests.report.frames import NO_RUNS, cells, lines, losses, runs, together

SIZE = {
    "config.train.batch_size": 2,
    "config.train.seq_len": 256,
    "config.train.max_steps": 3200,
    "parameters.total": 1_234_567,
    "val_sampled.mean_nats": 5.5,
    "val_sampled.std_nats": 0.25,
}
N = "n\u00a0=\u00a0"


def of_table1(study="table1", **options):
    shown = losses(study=study, **options).assign(**SIZE)
    return shown.assign(planned=[(0,)] * len(shown))


def table1(shown, **reasons):
    of_row = cell_frame(cells("xpos", "rope", "crope", study="table1"))
    by_cell = {f"{model}-ptb-base": reason for model, reason in reasons.items()}
    return loss_table("table1", of_row, shown, NO_RUNS, by_cell)


def test_table_1_as_printed():
    """Differences 0.1, 0.2 and 0.3: mean 0.2, interval -0.0484 to 0.4484. XPOS lacks a seed.
    Runs of other corpora and rows are left out.
    """
    shown = of_table1(xpos=[6.0, 6.2], rope=[5.0, 5.1, 5.2], crope=[5.1, 5.3, 5.5])
    corpus = of_table1(dataset="wikitext2", rope=[1.0])
    table = table1(together(shown, corpus, of_table1(row="b2_l512_d64", rope=[2.0])))
    assert list(table.frame) == ["Dataset", "", "XPOS", "RoPE", "CRoPE", "CRoPE − RoPE"]
    paper, full, sampled, parameters = lines(table)
    stated = ["4.4288 ± 0.0224", "4.0212 ± 0.0243", "4.0158 ± 0.0233", "−0.0054"]
    assert paper == ["Penn Treebank", "paper", *stated]
    assert full == [
        "here B=2, L=256, 3,200 steps",
        "full",
        f"6.1000 ± 0.1414 ({N}2)",
        "5.1000 ± 0.1000",
        "5.3000 ± 0.2000",
        f"+0.2000 (−0.0484 to +0.4484), {N}3",
    ]
    both = "5.5000 ± 0.2500"
    assert sampled == ["", "sampled", f"{both} ({N}2)", both, both, ""]
    assert parameters == ["Parameters", "", *["1,234,567"] * 3, ""]


def test_runs_of_the_papers_own_size_have_no_smaller_one():
    large = of_table1(rope=[4.0]).assign(scale="paper")
    assert lines(table1(large))[1][:2] == ["", "full"]


def test_of_models_that_all_diverged_none_is_best():
    full = table1(of_table1(rope=[np.inf], crope=[np.inf])).marks[1]
    assert full == [""] * len(full)


def test_the_page_marks_the_lowest_loss_and_final_ones_after_it():
    """Of RoPE 6.75 and CRoPE 6.5 the final ones lie past 3.75 and 4.0; the paper's CRoPE is lowest."""
    shown = of_table1(rope=[6.75], crope=[6.5]).assign(**{"val_full.best_nats": [3.75, 4.0]})
    paper, full, lowest, _ = table1(shown).marks
    assert paper == ["corpus"] * 4 + ["corpus best", "corpus"]
    assert full == ["", "", "past", "past", "past", ""]
    assert lowest == ["", "", "", "best", "", ""]


def test_a_corpus_that_the_paper_lacks_has_no_line_of_the_paper():
    own = cell_frame(cells(study="table1", dataset="tiny"))
    table = loss_table("table1", own, of_table1(rope=[5.0], dataset="tiny"), NO_RUNS, {})
    assert lines(table)[0][:2] == ["tiny (a grammar)", "full"]


def test_a_diverged_run_is_not_averaged_away():
    table = table1(of_table1(rope=[5.0, 5.0], crope=[5.1, np.inf]))
    assert lines(table)[1][4:] == ["diverged", f"diverged, {N}2"]


def test_the_csv_file_has_numbers_and_why_one_is_missing():
    table = table1(of_table1(rope=[5.0, 5.1]), crope="failed: x")
    assert to_csv(table.numbers).splitlines()[3:7] == [
        "table1,ptb,base,paper,crope,,4.015800,0.023300,complete",
        "table1,ptb,base,full,xpos,,,,missing",
        "table1,ptb,base,full,rope,2,5.050000,0.070711,complete",
        "table1,ptb,base,full,crope,,,,failed: x",
    ]


def test_why_a_cell_is_empty():
    every = runs(rope=[5.0], crope=[5.0], mqa=[5.0]).assign(status=["failed", "stale", "complete"])
    assert module.missing_words(every) == {
        "rope-ptb-base": "failed",
        "crope-ptb-base": "stale",
        "mqa-ptb-base": "no seed that RoPE and CRoPE share",
    }


def test_a_study_has_a_line_per_setting_and_a_column_per_model():
    slow = losses(setting="train.lr=1", rope=[5.0, 5.2], crope=[5.5, 5.5])
    fast = losses(setting="train.lr=2", rope=[4.0])
    table = module.study_table("mine", together(slow, fast))
    assert list(table.frame) == ["", "CRoPE", "RoPE", "seeds"]
    assert lines(table) == [
        ["Penn Treebank; train.lr=1", "5.5000 ± 0.0000", "5.1000 ± 0.1414", f"{N}2"],
        ["Penn Treebank; train.lr=2", "", "4.0000", f"{N}1"],
    ]


def test_the_seeds_of_a_studys_line_are_those_of_rope_and_crope():
    runs = losses(xpos=[6.0, 6.0, 6.0], rope=[5.0, 5.0], crope=[5.1, 5.1])
    ((_, crope, _, xpos, seeds),) = lines(module.study_table("mine", runs))
    assert (crope, xpos, seeds) == ("5.1000 ± 0.0000", f"6.0000 ± 0.0000 ({N}3)", f"{N}2")
