"""CRoPE - RoPE in every configuration found: which runs are paired, how they are named, and when there is nothing."""

from __future__ import annotations

import csv
import io

import pytest

from crope.config import NUMERICS_VERSION
from crope.report.choices import build_choices, build_choices_figure, choices_sheet, render_choices_csv
from crope.report.frame import resolve_cells
from crope.report.markdown import render_sheet

BASE = "B=16, L=1024, D=128, γ=0.8, step=1000"


@pytest.fixture
def choices(read_sound, cells):
    def choices():
        runs = read_sound()
        return build_choices(runs, resolve_cells(runs, cells, unavailable={}))

    return choices


@pytest.fixture
def write_pair(write_run):
    """write_pair("ptb", "base", 0.25, seeds=(0, 1)): CRoPE lies so much above RoPE, and 0.01 a seed more."""

    def write_pair(dataset, row, above, *, seeds=(0,), **options) -> None:
        for seed in seeds:
            write_run("rope", dataset, row, seed=seed, final=5.0, **options)
            write_run("crope", dataset, row, seed=seed, final=5.0 + above + 0.01 * seed, **options)

    return write_pair


def test_the_tables_cells_alone_are_no_pilot(write_pair, choices) -> None:
    write_pair("ptb", "base", 0.25)
    write_pair("pg19", "b2_l512_d64", 0.25)
    assert choices() == []


def test_each_open_choice_is_a_configuration_named_by_what_differs(write_pair, choices) -> None:
    write_pair("ptb", "base", 0.25, seeds=(0, 1, 2))
    write_pair("ptb", "base", 0.5, seeds=(3, 4), change={"model": {"tied_head": False}})
    write_pair("ptb", "base", -0.125, change={"tokenizer": {"name": "gpt2", "vocab_size": 50257}})
    write_pair("pg19", "b2_l512_d64", 0.0, change={"eval": {"every": 10}})
    write_pair("pg19", "b2_l512_d64", 0.125)
    found = {(choice.dataset, choice.label): choice for choice in choices()}
    d64 = "B=2, L=512, D=64, γ=0.9, step=1000"
    assert {key: (one.in_tables, one.differences[0].n) for key, one in found.items()} == {
        ("ptb", BASE): (True, 3), ("pg19", d64): (True, 1), ("ptb", "model.tied_head=False"): (False, 2),
        ("ptb", "tokenizer.name=gpt2, tokenizer.vocab_size=50257"): (False, 1),
        ("pg19", f"{d64}, eval.every=10"): (False, 1),
    }  # fmt: skip
    # 0.25, 0.26, 0.27: mean 0.26, s = 0.01, half width 4.3027 * 0.01 / sqrt(3).
    final, best = found["ptb", BASE].differences
    assert (final.mean_nats, best.mean_nats) == pytest.approx((0.26, 0.26))
    assert final.high_nats - final.mean_nats == pytest.approx(4.302653 * 0.01 / 3**0.5, rel=1e-6)
    untied = found["ptb", "model.tied_head=False"].differences[0]
    assert untied.mean_nats == pytest.approx(0.535) and untied.low_nats is None


def test_only_shared_seeds_of_complete_current_runs_are_paired(write_run, write_pair, choices) -> None:
    write_pair("ptb", "base", 0.25)
    change = {"change": {"eval": {"every": 10}}}
    write_run("rope", "ptb", seed=0, final=5.0, **change)
    write_run("crope", "ptb", seed=1, final=6.0, **change)
    assert choices() == []
    write_run("crope", "ptb", seed=0, final=6.0, numerics_version=NUMERICS_VERSION + 1, **change)
    write_run("crope", "ptb", seed=0, error={"type": "E", "message": "m", "step": 1}, **change)
    assert choices() == []


@pytest.mark.parametrize("other", [{"device_kind": "cuda"}, {"precision": "bf16"}])
def test_what_may_not_mix_is_not_paired(write_run, write_pair, choices, other) -> None:
    write_pair("ptb", "base", 0.25)
    write_run("rope", "wikitext2", change={"eval": {"every": 10}})
    write_run("crope", "wikitext2", change={"eval": {"every": 10}}, **other)
    assert choices() == []


def test_without_a_cell_of_the_tables_the_first_configuration_is_the_reference(write_pair, choices) -> None:
    write_pair("ptb", "base", 0.25, change={"eval": {"every": 10}})
    write_pair("ptb", "base", 0.25, change={"eval": {"every": 5}})
    labels = [choice.label for choice in choices()]
    assert labels[0] == BASE and labels[1].startswith("eval.every=")


def test_figure_and_files(write_pair, choices, build) -> None:
    write_pair("ptb", "base", 0.25, seeds=(0, 1, 2))
    write_pair("ptb", "base", 0.5, change={"model": {"tied_head": False}})
    found = choices()
    (panel,) = build_choices_figure(found, 0.02).panels
    assert panel.text.count("final +") == 2 and "Penn Treebank, model.tied_head=False: final +0.5000" in panel.text
    rows = list(csv.DictReader(io.StringIO(render_choices_csv(found))))
    assert [(row["configuration"], row["in_tables"], row["at"], row["n"], row["mean_nats"]) for row in rows] == [
        (BASE, "True", "final", "3", "0.260000"), (BASE, "True", "best", "3", "0.260000"),
        ("model.tied_head=False", "False", "final", "1", "0.500000"),
        ("model.tied_head=False", "False", "best", "1", "0.500000"),
    ]  # fmt: skip
    text = render_sheet(choices_sheet(found, scale="quick"))
    assert "| Penn Treebank | model.tied\\_head=False | CRoPE − RoPE | 1 | +0.5000 |  | +0.5000 |  |" in text
    out_dir = build()
    assert {"choices.svg", "choices.png", "choices.csv", "choices.md"} <= {path.name for path in out_dir.iterdir()}
    page = (out_dir / "index.html").read_text("utf-8")
    assert 'id="choices"' in page and "model.tied_head=False</td>" in page
