"""The benchmark script: what it times and counts, and where its tables go."""

import math
from pathlib import Path

import bench
import pytest
import torch

from crope.runs.compose import load_run

from .conftest import TOY_OVERRIDES, TOY_VOCAB

CONFIG = load_run(TOY_OVERRIDES).config  # 2 sequences of 16 tokens, 1 layer, D 16


def test_the_plain_baseline_is_gpt_2() -> None:
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


def test_each_implementation_is_timed_in_turn(monkeypatch) -> None:
    """In milliseconds of one step, by a clock that `slow` moves by 0.01 s."""
    calls: list[str] = []
    monkeypatch.setattr(bench.time, "perf_counter", lambda: 0.01 * calls.count("slow"))
    builds = {
        "slow": lambda: lambda: calls.append("slow"),
        "fast": lambda: lambda: calls.append("fast"),
    }
    times = bench.time_steps(builds, torch.device("cpu"), rounds=2)
    turn = bench.TURN["cpu"]
    warm_up = ["slow"] * bench.WARM_UP + ["fast"] * bench.WARM_UP
    assert calls == warm_up + (["slow"] * turn + ["fast"] * turn) * 2
    assert times == {"slow": pytest.approx(10), "fast": 0}


def test_an_implementation_that_fails_costs_no_other(capsys) -> None:
    def broken() -> None:
        raise RuntimeError("out of\nmemory")

    chosen = {"broken": lambda: broken, "sound": lambda: lambda: None}
    assert list(bench.time_steps(chosen, torch.device("cpu"), rounds=1)) == ["sound"]
    assert capsys.readouterr().err == "broken: RuntimeError: out of memory\n"


def test_a_table_has_rates_mfu_and_ratios_to_our_fastest_setting(monkeypatch) -> None:
    monkeypatch.setattr(bench, "peak_flops", lambda device, precision: 1e9)
    ours = {f"{bench.OURS}: eager": 8.0, f"{bench.OURS}: compiled": 4.0}
    table = bench.render_steps(CONFIG, ours | {"plain (eager, fp32)": 2.0})
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[4:]]
    assert [row[2] for row in rows] == ["4,000", "8,000", "16,000"]
    flops = 32 * bench.train_flops_per_token(CONFIG.model, vocab_size=TOY_VOCAB, seq_len=16)
    shares = [f"{100 * flops / (ms * 1e6):.1f} %" for ms in ours.values()]
    assert [row[3] for row in rows] == [*shares, "–"]
    assert [row[4] for row in rows] == ["2.00", "1.00", "0.50"]


def test_a_table_replaces_its_own_part_of_the_page(tmp_path: Path) -> None:
    page, written = bench.PAGE.read_text(encoding="utf-8"), tmp_path / "page.md"
    head, end = "<!-- generated: bench steps cpu -->", "<!-- end of generated -->"
    before, rest = page.split(head)
    written.write_text(page, encoding="utf-8")
    bench.write_table(written, "steps cpu", "NEW\n")
    changed = f"{before}{head}\n\nNEW\n\n{end}{rest.split(end, 1)[1]}"
    assert written.read_text(encoding="utf-8") == changed
    bench.write_table(written, "steps tpu", "NEW\n")
    assert written.read_text(encoding="utf-8").startswith(changed.rstrip())


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """bench.py with a page of its own; returns the page after `arguments`."""
    monkeypatch.setattr(bench, "PAGE", tmp_path / "page.md")

    def call(*arguments: str) -> str:
        bench.PAGE.write_text("# Page\n")
        monkeypatch.setattr("sys.argv", ["bench.py", *arguments])
        bench.main()
        return bench.PAGE.read_text()

    return call


def test_the_script_at_tiny_sizes(command, capsys) -> None:
    page = command("--smoke", "--write", "runtime.compile=false")
    printed = capsys.readouterr().out
    assert "| this project: eager, " in printed and "| plain PyTorch loop: as shipped" in printed
    assert "<!-- generated: bench steps" in page and printed.strip() in page


def test_the_profile_is_of_the_step_that_is_trained(
    command, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Eager here; `compile=auto` compiles as in training."""
    command("--profile", *TOY_OVERRIDES)
    printed = capsys.readouterr().out  # the rows with most time, which may be any
    assert "aten::" in printed and "Compiled" not in printed
    chosen: list[bool] = []

    def our_step(config: object, *, compiled: bool, cuda_graphs: bool):
        chosen.append(compiled)
        return lambda: None

    monkeypatch.setattr(bench, "our_step", our_step)
    monkeypatch.setattr(bench, "compiles", lambda config, device: config.train.max_steps == 13)
    for steps in (12, 13):
        command("--profile", *TOY_OVERRIDES, f"train.max_steps={steps}")
    assert chosen == [False, True]


def test_compiled_code_of_one_implementation_is_kept_for_the_next(
    command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's compiler is reset once per shape, before the first implementation."""
    events: list[str] = []
    monkeypatch.setattr(torch._dynamo, "reset", lambda: events.append("reset"))
    monkeypatch.setattr(bench, "implementations", lambda config: {"a": None, "b": None})
    times = {f"{bench.OURS}: a": 1.0}
    monkeypatch.setattr(bench, "time_steps", lambda *_, **__: events.append("timed") or times)
    command("--smoke")
    assert events == ["reset", "timed"]
    step = bench.our_step(CONFIG, compiled=False)
    step()
    assert events == ["reset", "timed"]
