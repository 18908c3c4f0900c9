"""Conversion: rotation without effect on outputs, exact projections, every arm of a run, a run from
end to end.
"""

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ortho_group

from crope.config import ModelConfig
from crope.data.batches import sample_batch
from crope.data.tokens import TokenSet
from crope.errors import UserError
from crope.files import sha256_file
from crope.interop import convert as convert_module
from crope.interop.adapt import merge
from crope.interop.convert import MIN_GAIN, QKV, convert, rotate
from crope.model.gpt import GPT
from crope.runs.identity import numerics_version
from crope.runs.load import load_trained
from crope.runs.record import Record
from crope.theory.complex_maps import StreamStructure, as_complex, fit_stream, folded_qkv
from tests.conftest import TOY_VOCAB, make_toy_tokens, toy_run
from tests.model.oracles import assert_close, cross_entropy, slow_losses
from tests.toy_runs import toy_corpus, train_toy

ARMS = ("rope", "best", "random", "fresh")
WIDTH, VOCAB, LENGTH = 12, TOY_VOCAB, 16
CONFIG = ModelConfig(position="rotary", projection="real", n_layers=2, n_heads=2, d_model=WIDTH)


def build(config: ModelConfig = CONFIG, **changes: object) -> GPT:
    """Float64, all parameters of order 1, LayerNorm gains and shifts included."""
    model = GPT(replace(config, **changes), vocab_size=VOCAB, max_len=LENGTH, seed=0).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(
                1 + 0.3 * drawn if "norm" in name and name.endswith("weight") else 0.4 * drawn
            )
    return model


def logits(model: GPT) -> torch.Tensor:
    tokens_BT = torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return model.logits(model(tokens_BT))


def anywhere() -> StreamStructure:
    """A random structure of the stream and of every head's values."""
    heads = [
        [as_complex(ortho_group.rvs(6, random_state=10 * layer + head)).T for head in range(2)]
        for layer in (1, 2)
    ]
    return StreamStructure(
        as_complex(ortho_group.rvs(WIDTH, random_state=5)).T, heads, kept=math.nan
    )


def qkv_energy(model: GPT) -> float:
    weights = [getattr(block.attn, name).weight for block in model.blocks for name in QKV]
    return sum(weight.double().square().sum().item() for weight in weights)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("qkv_bias", [True, False])
def test_rotation_changes_no_output(tied: bool, qkv_bias: bool) -> None:
    model = build(tied_head=tied, qkv_bias=qkv_bias)
    rotated = rotate(model, anywhere())
    assert_close(logits(rotated), logits(model), atol=1e-10)
    assert (rotated.embedding.weight - model.embedding.weight).abs().max() > 0.1
    assert torch.equal(rotated.norm.weight, torch.ones(WIDTH, dtype=torch.float64))


def test_a_gain_of_zero_is_refused() -> None:
    model = build()
    with torch.no_grad():
        model.blocks[1].ffn_norm.weight[3] = MIN_GAIN / 2
    with pytest.raises(UserError, match="gain"):
        rotate(model, anywhere())


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Record]:
    """A RoPE run whose Q, K and V are complex-linear in a hidden basis, with LayerNorm gains between
    0.5 and 2 and a weak second head.
    """
    folder = tmp_path_factory.mktemp("planted")
    crope = build(projection="complex", tied_head=False)
    with torch.no_grad():
        for block in crope.blocks:
            block.attn_norm.weight[1::2] = block.attn_norm.weight[0::2]
            for name in QKV:
                for part in (getattr(block.attn, name).a, getattr(block.attn, name).b):
                    part[WIDTH // 4 :] *= 0.2
        merge(crope)
        hidden = rotate(crope, anywhere())
        for layer, block in enumerate(hidden.blocks):
            gain_D = torch.from_numpy(2 ** np.random.default_rng(layer).uniform(-1, 1, WIDTH))
            for name in QKV:
                getattr(block.attn, name).weight /= gain_D
            block.attn_norm.weight *= gain_D
            block.attn_norm.bias *= gain_D
    sizes = ("model.n_layers=2", "model.n_heads=2", f"model.d_model={WIDTH}")
    rates = ("train.warmup_steps=4", "train.qkv_lr_factor=2")  # of the run, not of its fine-tuning
    run = toy_run(
        folder,
        "model=rope",
        *sizes,
        *rates,
        "model.tied_head=false",
        "eval.full_tokens=0",
        "seed=3",
    )
    run.path.mkdir(parents=True)
    torch.save(hidden.float().state_dict(), run.path / "weights.pt")
    with toy_corpus(folder):
        summary = {"status": "complete", "weights_sha256": sha256_file(run.path / "weights.pt")}
        summary["numerics_version"] = numerics_version(run.container["model"])
        yield Record(run.path, run.container, summary, {"data": make_toy_tokens(folder).meta})


def tuned(model: GPT, tokens: TokenSet, *, steps: int, lr: float) -> GPT:
    """A copy after `steps` updates by torch's AdamW on the training batches of seed 3 from step 12
    on: the run had 12 steps.
    """
    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for step in range(12, 12 + steps):
        inputs_BT, targets_BT = sample_batch(
            tokens.train, seed=3, step=step, batch_size=2, seq_len=LENGTH, purpose="train"
        )
        optimizer.zero_grad()
        cross_entropy(model, inputs_BT, targets_BT).backward()
        optimizer.step()
    return model


@pytest.fixture(scope="module")
def converted(planted: Record) -> tuple[dict[str, Any], dict[str, GPT]]:
    """What `convert` returns, and each arm as it was before its fine-tuning."""
    arms: list[GPT] = []
    fine_tune = convert_module.fine_tune

    def keep_and_fine_tune(model: GPT, *args: Any, **kwargs: Any) -> None:
        arms.append(copy.deepcopy(model))
        fine_tune(model, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convert_module, "fine_tune", keep_and_fine_tune)
        result = convert(planted, steps=3, lr=0.01)
    return result, dict(zip(ARMS, arms, strict=True))


def test_every_arm_has_the_weights_of_its_name(converted: tuple[Any, Any]) -> None:
    """The best basis loses nothing of a planted model, a random one about half of the energy."""
    result, arms = converted
    fractions = {name: qkv_energy(arms[name]) / qkv_energy(arms["rope"]) for name in ARMS}
    for name in ("best", "random"):
        assert result["kept_share"][name] == pytest.approx(fractions[name], rel=1e-4)
    assert fractions["best"] == pytest.approx(1, abs=1e-4)
    assert fractions["random"] == pytest.approx(0.5, abs=0.15)
    assert result["loss_nats"]["best"] == pytest.approx(result["loss_nats"]["trained"], rel=1e-3)
    complex_config = replace(CONFIG, projection="complex")
    initial = GPT(complex_config, vocab_size=VOCAB, max_len=LENGTH, seed=3).state_dict()
    best = arms["best"].state_dict()
    for name, value in arms["fresh"].state_dict().items():
        expected = initial if any(part in name for part in QKV) else best
        assert torch.equal(value, expected[name]), name


def test_losses_of_every_arm_before_and_after_fine_tuning(
    converted: tuple[Any, Any], planted: Record, tmp_path: Path
) -> None:
    (result, arms), tokens = converted, make_toy_tokens(tmp_path)
    after = {name: tuned(arm, tokens, steps=3, lr=0.01) for name, arm in arms.items()}
    for models, losses in ((arms, result["loss_nats"]), (after, result["tuned_loss_nats"])):
        for name in ARMS:
            expected = slow_losses(models[name], tokens.validation, LENGTH).mean()
            assert losses[name] == pytest.approx(expected, rel=1e-6), name
        assert np.diff(sorted(losses[name] for name in ARMS[1:])).min() > 1e-4
    saved = torch.load(planted.path / "converted.pt", weights_only=True)
    assert_close(saved, dict(after["best"].state_dict()), atol=1e-5)


def test_chance_is_the_level_of_the_same_maps_with_rotated_heads(
    converted: tuple[Any, Any], planted: Record
) -> None:
    """Random orthogonal matrices on the output channels of every head, drawn by the test."""

    def turn(weight: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        turns = np.linalg.qr(generator.standard_normal((2, 6, 6)))[0]
        return np.concatenate(
            [t @ head for t, head in zip(turns, np.split(weight, 2), strict=True)]
        )

    folded, draws = folded_qkv(load_trained(planted)), []
    for seed in range(8):
        generator = np.random.default_rng(seed)
        layers = [tuple(turn(w, generator) for w in layer) for layer in folded]
        draws.append(fit_stream(layers, 2).kept)
    reported = converted[0]["kept_share"]["best_by_chance"]
    assert len(set(reported)) == 3
    assert np.mean(reported) == pytest.approx(np.mean(draws), abs=4 * np.std(draws) / 3**0.5)


@pytest.fixture(scope="module")
def rope(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Record]:
    folder = tmp_path_factory.mktemp("runs")
    with toy_corpus(folder / "tokens"):
        yield train_toy(folder, "model=rope", "model.n_layers=2")


def test_a_run_without_fine_tuning(rope: Record) -> None:
    """Losses are those of the files, the rotated model's is the trained one's. 12 steps, a decay
    every 4: after 11 updates the default rate is 0.001 * 0.8^2.
    """
    convert(rope, steps=0)
    result = json.loads((rope.path / "conversion.json").read_text())
    assert result["weights_sha256"] == rope.summary["weights_sha256"]
    before, fractions = result["loss_nats"], result["kept_share"]
    assert before["trained"] == pytest.approx(rope.summary["val_full"]["final_nats"], rel=1e-6)
    assert before["rope"] == pytest.approx(before["trained"], rel=1e-5)
    assert fractions["best"] > fractions["random"]
    assert result["tuned_loss_nats"] == {name: before[name] for name in ARMS}
    assert result["lr"] == pytest.approx(0.001 * 0.8**2, rel=1e-12)


def test_what_cannot_be_converted_is_an_error(rope: Record) -> None:
    with pytest.raises(UserError, match="RoPE"):
        model = rope.config["model"] | {"position": "none"}
        convert(replace(rope, config=rope.config | {"model": model}), steps=1)
    with pytest.raises(UserError, match="steps"):
        convert(rope, steps=-1)
    with pytest.raises(UserError, match="diverged"):
        convert(rope, steps=3, lr=1e30)
