"""The page of models: a line for each file of conf/model, with the difference of its study."""

import pandas as pd

from crope.plan.compose import group_files
from crope.report.models import models_table
from tests.report.frames import losses

SIZES = {"parameters.total": 1000, "config.model.d_model": 128}


def test_each_model_has_its_first_sentence_weights_and_difference():
    """Seeds 0 and 1 of a study with ten seeds on two corpora; lines by their difference."""
    both = [
        losses(
            study="cost",
            dataset=name,
            corpora=2,
            first_seed=10,
            rope=[5.0, 5.0],
            crope=[5.25, 5.75],
        )
        for name in ("ptb", "wikitext2")
    ]
    joined = pd.concat(both, ignore_index=True).assign(**SIZES)
    frame = models_table(joined, joined).frame
    assert len(frame) == len(group_files("model"))
    assert frame.to_numpy().tolist()[:2] == [
        [
            "RoPE (`rope`)",
            "RoPE of the paper: rotary position, real Q, K and V (Sec. 2.2).",
            "1,000",
            "–",
            "",
            "–",
        ],
        [
            "CRoPE (`crope`)",
            "CRoPE: rotary position, complex-linear Q, K and V (Eq. 30).",
            "1,000",
            "+0.5000 (2 of 10 seeds)",
            2,
            "cost",
        ],
    ]
    assert frame.iloc[-1]["Model − RoPE"] == "–"
