"""The benchmark script: what its baseline is, and whose times stand under which name."""

import math
from functools import partial

import bench
import pandas as pd
import pytest
import torch

from crope.model.gpt import count_parameters
from crope.plan.compose import load_run
from crope.runs.load import build_model

from .conftest import TOY_OVERRIDES, TOY_VOCAB

WORDS = [*(text for text in TOY_OVERRIDES if "precision" not in text), "runtime.compile=false"]
CONFIG = load_run(TOY_OVERRIDES).config  # 2 sequences of 16 tokens, 1 layer, D 16
CPU = torch.device("cpu")


@pytest.fixture
def plain():
    return bench.PlainGPT(CONFIG)


def test_the_plain_baseline_starts_at_the_loss_of_a_guess(plain):
    """log V."""
    tokens_BT = torch.arange(32).view(2, 16)
    loss = plain(tokens_BT, tokens_BT)["loss"].item()
    assert loss == pytest.approx(math.log(TOY_VOCAB), rel=0.02)


def test_the_plain_baseline_sees_no_token_ahead(plain):
    """The loss of the first target is the same whatever follows its input."""
    labels_BT = torch.full((2, 16), -100)  # counts nowhere
    labels_BT[:, 0] = 7
    first_BT = torch.zeros(2, 16, dtype=torch.long)
    other_BT = first_BT.clone()
    other_BT[:, 1:] = 5
    losses = [plain(tokens_BT, labels_BT)["loss"].item() for tokens_BT in (first_BT, other_BT)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_every_model_is_compared_with_its_like(monkeypatch):
    """A step's loss is its number of milliseconds here: RoPE's 30 over GPT-NeoX's 20."""
    fake = {"plain PyTorch loop": 40.0, "transformers GPT-2": 10.0, "transformers GPT-NeoX": 20.0}
    fake |= {"this project, learned": 5.0, "this project, rope": 30.0, "this project, crope": 33.0}
    monkeypatch.setattr(bench, "baselines", lambda *_: {})
    monkeypatch.setattr(bench, "time_steps", lambda _: pd.Series(fake))
    shipped, strongest = bench.compare([*WORDS, "train.precision=bf16"], CPU).split("\n\n")
    assert shipped.startswith("eager, fp32, B 2, L 16, V 300")
    assert strongest.startswith("eager, bf16, B 2, L 16, V 300")
    ratios = dict(line.rsplit(maxsplit=2)[::2] for line in shipped.splitlines()[2:])
    assert ratios["this project, learned"] == "0.5"
    assert ratios["this project, rope"] == "1.5"
    assert ratios["this project, crope"] == "1.1"


def test_the_models_of_transformers_have_as_many_weights_as_ours(monkeypatch):
    """GPT-2 has biases in Q, K and V, 48 more than `learned`; GPT-NeoX as `rope`. Theirs have no
    padding of the vocabulary.
    """
    sizes = {}

    def count(model, *_):
        sizes[type(model).__name__] = sum(weights.numel() for weights in model.parameters())

    monkeypatch.setattr(bench, "baseline_step", count)
    bench.baselines(CONFIG, CPU)
    ours = {name: load_run([*WORDS, f"model={name}"]).config for name in ("learned", "rope")}
    totals = {name: count_parameters(build_model(config))["total"] for name, config in ours.items()}
    assert sizes["GPT2LMHeadModel"] == sizes["PlainGPT"] == totals["learned"] + 48
    assert sizes["GPTNeoXForCausalLM"] == totals["rope"] + 48


def test_the_longest_kernels_have_their_bytes():
    """Two matrices of 300 x 300 float32 numbers."""
    x = torch.ones(300, 300)
    found = bench.longest_kernels(lambda _: (x @ x)[0, 0], CPU)
    assert found.loc["aten::mm [[300, 300], [300, 300]]", "MB/step"] == pytest.approx(0.72)


def test_compiled_rows_of_the_laboratory_do_not_add_up(monkeypatch):
    """Three lengths of four steps each, where torch compiles at most eight forms of a function."""
    monkeypatch.setattr(bench, "TURNS", 1)
    monkeypatch.setattr(bench, "STEPS", 1)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    for length in (8, 16, 24):
        words = [*WORDS[:-1], "runtime.compile=true", f"train.seq_len={length}"]
        assert f"L {length}" in bench.laboratory(words, CPU)


@pytest.mark.parametrize(
    ("option", "word"),
    [("runtime.threads=1", "GPT-NeoX"), ("--lab", "crope, validation, graph"), ("--profile", "mm")],
)
def test_the_script_at_tiny_sizes(option, word, monkeypatch, capsys):
    monkeypatch.setattr(bench, "TURNS", 1)
    monkeypatch.setattr(bench, "STEPS", 2)
    monkeypatch.setattr(bench, "LAB_ROWS", {"base": "seed=1"})
    monkeypatch.setattr("sys.argv", ["bench.py", *WORDS, option])
    bench.main()
    assert word in capsys.readouterr().out
