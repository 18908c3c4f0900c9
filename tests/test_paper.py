"""The paper's numbers against a second, independent transcription, and the paper scale against its
settings.
"""

from operator import attrgetter

import pytest

from crope import paper
from crope.plan.compose import load_run

# Typed from the paper's Tables 1 and 2 line by line: XPOS, RoPE, CRoPE.
TABLE1 = """
PG-19           6.8025 ± 0.0318   6.5809 ± 0.0333   6.5836 ± 0.0317
Wikitext-2      5.7486 ± 0.0274   5.3644 ± 0.0279   5.3730 ± 0.0255
Penn_Treebank   4.4288 ± 0.0224   4.0212 ± 0.0243   4.0158 ± 0.0233
"""
TABLE2 = """
B=16,_L=1024,_D=128,_γ=0.8,_step=1000   6.802 ± 0.032   6.581 ± 0.033   6.584 ± 0.032
B=2,_L=512,_D=128,_γ=0.9,_step=2000     6.874 ± 0.117   6.658 ± 0.113   6.627 ± 0.110
B=2,_L=512,_D=128,_γ=0.9,_step=1000     6.822 ± 0.110   6.607 ± 0.107   6.584 ± 0.106
B=2,_L=512,_D=64,_γ=0.9,_step=1000      6.907 ± 0.115   6.699 ± 0.111   6.700 ± 0.113
"""


# Model: Sec. 5.1; training and evaluation: Sec. 5.3.
SETTINGS = {
    "model.n_layers": 4,
    "model.n_heads": 4,
    "train.lr": 1e-3,
    "eval.every": 20,
}


def as_printed(table, label, decimals):
    """The lines of a table, their words separated by single spaces."""
    lines = [""]
    for name, losses in table.items():
        words = [label(name).replace(" ", "_")]
        for model in ("xpos", "rope", "crope"):
            loss = losses[model]
            words += [f"{loss.mean_nats:.{decimals}f}", "±", f"{loss.std_nats:.{decimals}f}"]
        lines.append(" ".join(words))
    return lines


def lines_of(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_table1_is_as_printed():
    assert as_printed(paper.TABLE1, paper.DATASET_LABELS.get, 4) == lines_of(TABLE1)


def test_table2_is_as_printed():
    assert as_printed(paper.TABLE2, paper.row_label, 3) == lines_of(TABLE2)


def test_scale_paper_is_the_papers_setting():
    config = load_run(["model=crope", "data=ptb", "scale=paper"]).config
    assert {key: attrgetter(key)(config) for key in SETTINGS} == SETTINGS


@pytest.mark.parametrize("row", paper.ROW_LABELS)
def test_ablations_at_scale_paper_are_table2s_rows(row):
    config = load_run(["model=rope", "data=pg19", f"ablation={row}", "scale=paper"]).config
    sizes = "B={0.batch_size}, L={0.seq_len}, D={1.d_model}, γ={0.lr_gamma}, step={0.lr_step_size}"
    assert sizes.format(config.train, config.model) == paper.row_label(row)
    assert config.train.max_steps == 10_000
