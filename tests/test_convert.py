"""Conversion: turning changes no output, a model that was complex all along loses nothing, checkpoints load plainly."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from crope.complex_structure import StreamStructure, fit_stream, interleaved, random_stream
from crope.compose import Run, load_run
from crope.config import ROOT, ModelConfig
from crope.convert import LEAST_GAIN, convert, folded_qkv, project, turn, with_initial_qkv
from crope.data.token_files import TokenSet
from crope.errors import UserError
from crope.execute import execute
from crope.export import export, with_dense_qkv
from crope.interrupt import StopRequest
from crope.model.complex_linear import ComplexLinear
from crope.model.gpt import GPT
from tests.conftest import TOY_OVERRIDES, TOY_VOCAB

CONFIG = ModelConfig(position="rotary", projection="real", n_layers=2, n_heads=2, d_model=12)
VOCAB, LENGTH = 70, 9


def build(config: ModelConfig = CONFIG, **changes: object) -> GPT:
    """Float64, all parameters of order 1, gains and shifts included."""
    model = GPT(replace(config, **changes), vocab_size=VOCAB, max_len=LENGTH, seed=0).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(1 + 0.3 * drawn if "norm" in name and name.endswith("weight") else 0.4 * drawn)
    return model


def logits(model: GPT) -> torch.Tensor:
    tokens_BT = torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return model.logits(model(tokens_BT))


def anywhere(model: GPT, seed: int = 0) -> StreamStructure:
    """A random structure of the stream and of every head's values."""
    generator = np.random.default_rng(seed)
    rotated = [np.linalg.qr(generator.standard_normal((6, 6)))[0] for _ in range(4)]
    heads = [[interleaved(6) @ rotated[2 * layer + head] for head in range(2)] for layer in range(2)]
    return replace(random_stream(folded_qkv(model), 2, generator), heads=heads)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("qkv_bias", [True, False])
def test_turning_changes_no_output(tied: bool, qkv_bias: bool) -> None:
    model = build(tied_head=tied, qkv_bias=qkv_bias)
    turned = turn(model, anywhere(model))
    torch.testing.assert_close(logits(turned), logits(model), rtol=0, atol=1e-10)
    assert (turned.embedding.weight - model.embedding.weight).abs().max() > 0.1  # it did turn
    assert torch.equal(turned.norm.weight, torch.ones(12, dtype=torch.float64))
    assert turned.head is not None


def test_a_model_that_was_complex_all_along_loses_nothing() -> None:
    """A CRoPE model, made dense and turned away at random, is found again and projected back without loss."""
    crope = build(projection="complex", tied_head=False)
    with torch.no_grad():  # gains of a pair equal: behind others the map is not complex-linear from the stream
        for block in crope.blocks:
            block.attn_norm.weight[1::2] = block.attn_norm.weight[0::2]
    hidden = turn(with_dense_qkv(crope), anywhere(with_dense_qkv(crope)))
    assert fit_stream(folded_qkv(hidden), 2).kept == pytest.approx(1.0, abs=1e-6)
    straight = project(hidden)
    found = project(turn(hidden, fit_stream(folded_qkv(hidden), 2)))
    assert (logits(straight) - logits(crope)).abs().max() > 0.1
    torch.testing.assert_close(logits(found), logits(crope), rtol=0, atol=1e-2 * logits(crope).abs().max().item())


def test_converted_checkpoints_load_into_plain_models() -> None:
    model = build(qkv_bias=True)
    lean = project(turn(model, fit_stream(folded_qkv(model), 2)))
    for projection, source in (("complex", lean), ("real", with_dense_qkv(lean))):
        plain = build(projection=projection, tied_head=False, qkv_bias=True)
        plain.load_state_dict(source.state_dict())
        torch.testing.assert_close(logits(plain), logits(lean), rtol=0, atol=1e-12)


def test_projection_keeps_the_share_that_the_fit_states() -> None:
    model = build()
    fit = fit_stream(folded_qkv(model), 2)
    turned = turn(model, fit)
    norms = []
    for source in (project(turned), turned):
        layers = [getattr(block.attn, name) for block in source.blocks for name in ("q_proj", "k_proj", "v_proj")]
        norms.append(sum((layer.weight**2).sum().item() for layer in layers))
    assert norms[0] / norms[1] == pytest.approx(fit.kept, rel=1e-10)


def test_fresh_projections_are_the_initial_ones_and_the_rest_is_kept() -> None:
    lean = project(turn(build(), anywhere(build())))
    fresh = with_initial_qkv(lean, CONFIG, seed=5)
    initial = GPT(replace(CONFIG, projection="complex"), vocab_size=VOCAB, max_len=LENGTH, seed=5)
    for name, value in fresh.state_dict().items():
        own = any(part in name for part in ("q_proj", "k_proj", "v_proj"))
        expected = initial.state_dict()[name].double() if own else lean.state_dict()[name]
        assert torch.equal(value, expected), name


def test_a_gain_of_zero_is_refused() -> None:
    model = build()
    with torch.no_grad():
        model.blocks[1].ffn_norm.weight[3] = LEAST_GAIN / 2
    with pytest.raises(UserError, match="gain of this run is zero"):
        turn(model, anywhere(model))


@pytest.fixture
def make_run(toy_data: TokenSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("crope.trained.load_tokens", lambda *_, **__: toy_data)

    def make(model: str, *more: str) -> Run:
        run = load_run([*TOY_OVERRIDES, f"model={model}", f"results_dir={tmp_path}", *more])
        assert execute(run, stop=StopRequest()).status == "complete"
        return run

    return make


def test_a_run_from_end_to_end(make_run) -> None:
    """The stated losses are those of the files; the turned model's is the trained one's; all arms are tuned alike."""
    run = make_run("rope")
    result = convert(run.path, steps=4, lr=0.003)
    assert json.loads((run.path / "conversion.json").read_text()) == result
    recorded = json.loads((run.path / "summary.json").read_text())
    before, after = result["loss_nats"], result["tuned_loss_nats"]
    assert before["trained"] == pytest.approx(recorded["val_full"]["final_nats"], rel=1e-6)
    assert before["rope"] == pytest.approx(before["trained"], rel=1e-5)
    assert all(after[name] != before[name] for name in ("rope", "best", "random", "fresh"))
    assert result["kept_share"]["best"] > result["kept_share"]["random"]
    by_chance = result["kept_share"]["best_by_chance"]
    assert len(by_chance) == 3 and all(share > result["kept_share"]["random"] for share in by_chance)
    assert result["parameters"]["trained"] == {
        name: value for name, value in recorded["parameters"].items() if name != "total"
    }
    assert 2 * result["parameters"]["converted"]["qkv"] == result["parameters"]["trained"]["qkv"]
    assert result["parameters"]["converted"]["embeddings"] == 2 * result["parameters"]["trained"]["embeddings"]
    outputs = []
    for name, projection in (("converted", "complex"), ("converted_dense", "real")):
        lean = replace(run.config.model, projection=projection, tied_head=False)
        model = GPT(lean, vocab_size=TOY_VOCAB, max_len=16, seed=0).double()
        model.load_state_dict(torch.load(run.path / f"{name}.pt", weights_only=True))
        outputs.append(model(torch.arange(16)[None]))
        assert isinstance(model.blocks[0].attn.q_proj, ComplexLinear) == (projection == "complex")
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("dense", [False, True])
def test_a_converted_model_is_exported_with_the_choices_that_load_it(make_run, tmp_path: Path, dense: bool) -> None:
    run, out = make_run("rope"), tmp_path / "converted.safetensors"
    with pytest.raises(UserError, match=r"no converted\.pt; scripts/convert\.py makes it"):
        export(run.path, out, dense=dense, converted=True)
    convert(run.path, steps=1)
    export(run.path, out, dense=dense, converted=True)
    with safe_open(out, "pt") as file:
        choices = ModelConfig(**json.loads(file.metadata()["model"]))
    assert (choices.projection, choices.tied_head) == ("real" if dense else "complex", False)
    model = GPT(choices, vocab_size=TOY_VOCAB, max_len=16, seed=0)
    model.load_state_dict(load_file(out))
    own = torch.load(run.path / "converted.pt", weights_only=True)
    expected = GPT(replace(choices, projection="complex"), vocab_size=TOY_VOCAB, max_len=16, seed=0)
    expected.load_state_dict(own)
    tokens_BT = torch.arange(16)[None]
    torch.testing.assert_close(model(tokens_BT), expected(tokens_BT), rtol=0, atol=1e-5)


def test_no_steps_leave_the_projected_model_and_the_rate_is_the_runs_last(make_run) -> None:
    """12 steps, a decay every 4: after 11 updates the rate is 0.001 * 0.8^2."""
    result = convert(make_run("rope").path, steps=0)
    assert result["tuned_loss_nats"] == {name: result["loss_nats"][name] for name in result["tuned_loss_nats"]}
    assert result["lr"] == pytest.approx(0.001 * 0.8**2, rel=1e-12)


@pytest.mark.parametrize("model", ["xpos", "crope"])
def test_only_rope_runs_are_converted(model: str, make_run) -> None:
    with pytest.raises(UserError, match="conversion starts from a RoPE run"):
        convert(make_run(model).path, steps=1)


def test_a_rate_that_diverges_is_named(make_run) -> None:
    with pytest.raises(UserError, match="diverged at lr"):
        convert(make_run("rope").path, steps=3, lr=1e30)


def test_script_prints_the_table(make_run, monkeypatch, capsys) -> None:
    run = make_run("rope")
    monkeypatch.setattr("sys.argv", ["convert.py", str(run.path), "--steps", "1"])
    runpy.run_path(str(ROOT / "scripts" / "convert.py"), run_name="__main__")
    shown, result = capsys.readouterr().out, json.loads((run.path / "conversion.json").read_text())
    for name in ("rope", "best", "random", "fresh"):
        assert f"{result['loss_nats'][name]:.4f} -> {result['tuned_loss_nats'][name]:.4f}" in shown
    qkv = 3 * 16 * 16
    assert f"in Q, K, V {qkv:,} -> {qkv // 2:,}" in shown
