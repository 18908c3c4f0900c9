"""The benchmark script: what its baseline is, and whose times stand under which name."""

import math

import bench
import pytest
import torch

from crope.plan.compose import load_run

from .conftest import TOY_OVERRIDES, TOY_VOCAB

CONFIG = load_run(TOY_OVERRIDES).config  # 2 sequences of 16 tokens, 1 layer, D 16
CPU = torch.device("cpu")


@pytest.fixture
def plain():
    return bench.PlainGPT(CONFIG)


def test_the_plain_baseline_has_the_weights_of_gpt_2(plain):
    """(V + L) D + N (12 D^2 + 13 D) + 2 D."""
    count = sum(parameter.numel() for parameter in plain.parameters())
    assert count == 316 * 16 + (12 * 256 + 13 * 16) + 32


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


def test_a_row_says_what_is_timed():
    """As shipped and at the strongest, which is eager bf16 here; 300 tokens, and 320 = 5 times 64."""
    overrides = [text for text in TOY_OVERRIDES if "precision" not in text]
    overrides += ["train.precision=bf16", "runtime.compile=false"]
    assert list(bench.build_steps(overrides, CPU)) == [
        "this project: eager, fp32, V 300",
        "plain PyTorch loop: eager, fp32, V 300",
        "transformers GPT-2: eager, fp32, V 300",
        "this project: eager, bf16, V 320",
        "plain PyTorch loop: eager, bf16, V 320",
        "transformers GPT-2: eager, bf16, V 320",
    ]


def test_the_script_at_tiny_sizes(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench.py", *TOY_OVERRIDES, "runtime.compile=false"])
    bench.main()
    assert "transformers GPT-2: eager, fp32, V 320" in capsys.readouterr().out
