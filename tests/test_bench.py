"""The benchmark script: equal projections in every form, what it counts, and where its tables go."""

import math
import time
from types import ModuleType

import pytest
import torch

from crope.compose import load_run
from crope.config import ROOT
from crope.model.complex_linear import ComplexLinear

from .conftest import TOY_OVERRIDES, TOY_VOCAB

CONFIG = load_run(TOY_OVERRIDES).config  # 2 sequences of 16 tokens, 1 layer, D 16


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import bench

    return bench


def test_the_products_equal_the_dense_form(bench: ModuleType) -> None:
    layer = ComplexLinear.from_linear(torch.nn.Linear(12, 8, bias=False, dtype=torch.float64))
    x = torch.randn(5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    a, b, expected = layer.a, layer.b, x @ layer.weight.T
    torch.testing.assert_close(bench.two_products(x, a, b), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        bench.three_products(x, a, b - a, a + b), expected, rtol=0, atol=1e-12
    )


def test_the_plain_baseline_is_gpt_2(bench: ModuleType) -> None:
    """Its number of parameters by the closed form, and log V before training."""
    width, model = CONFIG.model.d_model, bench.PlainGPT(CONFIG, TOY_VOCAB)
    expected = (
        (TOY_VOCAB + 16) * width + CONFIG.model.n_layers * (12 * width**2 + 13 * width) + 2 * width
    )
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
    tokens_BT = torch.arange(32).view(2, 16)
    assert model(tokens_BT, tokens_BT)["loss"].item() == pytest.approx(
        math.log(TOY_VOCAB), rel=0.02
    )


def test_each_implementation_is_timed_in_turn(bench: ModuleType) -> None:
    calls: list[str] = []
    builds = {
        "slow": lambda: lambda: (calls.append("slow"), time.sleep(0.01)),
        "fast": lambda: lambda: calls.append("fast"),
    }
    times = bench.time_steps(builds, torch.device("cpu"), rounds=2)
    turn = bench.TURN["cpu"]
    warm_up = ["slow"] * bench.WARM_UP + ["fast"] * bench.WARM_UP
    assert calls == warm_up + (["slow"] * turn + ["fast"] * turn) * 2
    assert times["slow"] >= 10 > times["fast"]


def test_a_table_has_rates_and_ratios_to_our_fastest_setting(bench: ModuleType) -> None:
    times = {f"{bench.OURS}: eager": 8.0, f"{bench.OURS}: compiled": 4.0, "plain": 10.0}
    rows = [
        line.strip("| ").split(" | ") for line in bench.render_steps(CONFIG, times).splitlines()[4:]
    ]
    assert [row[2] for row in rows] == ["4,000", "8,000", "3,200"]
    assert [row[4] for row in rows] == ["2.00", "1.00", "2.50"]


def test_a_table_replaces_its_own_part_of_the_page(bench: ModuleType) -> None:
    page = bench.PAGE.read_text(encoding="utf-8")
    head, end = "<!-- generated: bench projections cpu -->", "<!-- end of generated -->"
    before, rest = page.split(head)
    assert (
        bench.with_table(page, "projections cpu", "NEW\n")
        == f"{before}{head}\n\nNEW\n\n{end}{rest.split(end, 1)[1]}"
    )
    assert "<!-- generated: bench steps cpu -->" in before
    assert bench.with_table(page, "steps cuda", "NEW\n").startswith(page.rstrip())


def test_the_script_at_tiny_sizes(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr("sys.argv", ["bench.py", "--smoke"])
    bench.main()
    printed = capsys.readouterr().out
    assert "| this project: eager, " in printed and "| plain PyTorch loop: as shipped" in printed
    assert "three products" in printed and "\n| 8 | " in printed
    monkeypatch.setattr("sys.argv", ["bench.py", "--part", "profile", *TOY_OVERRIDES])
    bench.main()
    assert "Self CPU time total" in capsys.readouterr().out
