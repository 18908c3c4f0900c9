"""The benchmark script: what it times and counts, and where its tables go."""

import math
from unittest.mock import Mock

import bench
import pytest
import torch

from crope.runs.compose import load_run

from .conftest import TOY_OVERRIDES, TOY_VOCAB

CONFIG = load_run(TOY_OVERRIDES).config  # 2 sequences of 16 tokens, 1 layer, D 16


def test_the_plain_baseline_is_gpt_2():
    """(V + L) D + N (12 D^2 + 13 D) + 2 D weights, and log V before training."""
    model = bench.PlainGPT(CONFIG, TOY_VOCAB)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == 316 * 16 + (12 * 256 + 13 * 16) + 32
    tokens_BT = torch.arange(32).view(2, 16)
    loss = model(tokens_BT, tokens_BT)["loss"].item()
    assert loss == pytest.approx(math.log(300), rel=0.02)


def test_each_implementation_is_timed_in_turn(monkeypatch):
    """In milliseconds of one step, by a clock that `slow` moves by 0.01 s."""
    calls = []
    monkeypatch.setattr(bench.time, "perf_counter", lambda: 0.01 * calls.count("slow"))
    builds = {
        "slow": lambda: lambda: calls.append("slow"),
        "fast": lambda: lambda: calls.append("fast"),
    }
    times = bench.time_steps(builds, torch.device("cpu"), rounds=2)
    assert times == {"slow": pytest.approx(10), "fast": 0}
    turns = 4 * ["slow"] + 4 * ["fast"]
    assert calls == 5 * ["slow"] + 5 * ["fast"] + turns + turns


def test_an_implementation_that_fails_costs_no_other(capsys):
    broken = Mock(side_effect=RuntimeError("out of\nmemory"))
    chosen = {"broken": lambda: broken, "sound": lambda: lambda: None}
    assert list(bench.time_steps(chosen, torch.device("cpu"), rounds=1)) == ["sound"]
    assert capsys.readouterr().err == "broken: RuntimeError: out of memory\n"


def test_a_table_has_rates_mfu_and_ratios_to_our_fastest_setting(monkeypatch):
    """32 tokens a step, of 128,000 operations a token: half of the peak in 8 ms."""
    monkeypatch.setattr(bench, "peak_flops", lambda device, precision: 1.024e9)
    monkeypatch.setattr(bench, "train_flops_per_token", lambda *_, **__: 128_000)
    ours = {f"{bench.OURS}: eager": 8.0, f"{bench.OURS}: compiled": 4.0}
    table = bench.render_steps(CONFIG, ours | {"plain (eager, fp32)": 2.0})
    assert table.splitlines()[4:] == [
        "| this project: eager | 8 | 4,000 | 50.0 % | 2.00 |",
        "| this project: compiled | 4 | 8,000 | 100.0 % | 1.00 |",
        "| plain (eager, fp32) | 2 | 16,000 | – | 0.50 |",
    ]


def test_the_script_at_tiny_sizes(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "PAGE", tmp_path / "page.md")
    bench.PAGE.write_text("# Page\n")
    monkeypatch.setattr("sys.argv", ["bench.py", "--smoke", "--write", "runtime.compile=false"])
    bench.main()
    printed, page = capsys.readouterr().out, bench.PAGE.read_text()
    assert "| this project: eager, " in printed
    assert "| plain PyTorch loop: as shipped" in printed
    assert "<!-- generated: bench steps" in page
    assert printed.strip() in page
