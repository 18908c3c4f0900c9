"""Conversion: bases against closed forms and planted ones, rotation without effect on outputs, exact projections."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from crope import convert as module
from crope.config import ModelConfig
from crope.convert import (
    MIN_GAIN,
    Basis,
    best_rotation,
    complex_fraction,
    convert,
    fit_basis,
    keep_mean,
    main,
    project,
    random_basis,
    read_qkv,
    rotate,
    rotate_heads,
    structure,
    with_initial_qkv,
)
from crope.errors import UserError
from crope.export import QKV_NAMES, with_dense_qkv
from crope.model.gpt import GPT
from crope.record import Record
from tests.conftest import TOY_VOCAB
from tests.toy_runs import toy_corpus, train_toy

WIDTH, VOCAB, LENGTH = 12, 70, 9
CONFIG = ModelConfig(position="rotary", projection="real", n_layers=2, n_heads=2, d_model=WIDTH)
PAIRS = np.kron(np.eye(WIDTH // 2), np.array([[0.0, -1.0], [1.0, 0.0]]))  # multiplication by i of Eq. 8's numbers


def random_matrix(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def random_rotation(seed: int, width: int = WIDTH) -> np.ndarray:
    return np.linalg.qr(random_matrix(seed, width, width))[0]


def random_layers(seed: int, count: int = 2) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    return [tuple(random_matrix(seed + 3 * i + j, WIDTH, WIDTH) for j in range(3)) for i in range(count)]


def least_squares_fraction(weights: list[np.ndarray]) -> float:
    """Of interleaved pairs, by torch.linalg.lstsq over a basis of all matrices of Eq. 30."""
    units = []
    for i, j in np.ndindex(WIDTH // 2, WIDTH // 2):
        place = np.zeros((WIDTH // 2, WIDTH // 2))
        place[i, j] = 1
        units += [np.kron(place, block) for block in ([[1, 0], [0, 1]], [[0, 1], [-1, 0]])]
    design = torch.tensor(np.array(units)).flatten(1).T
    target = torch.tensor(np.array(weights)).flatten(1).T
    fitted = design @ torch.linalg.lstsq(design, target).solution
    return ((fitted**2).sum() / (target**2).sum()).item()


@pytest.mark.parametrize("seed", range(3))
def test_rotations_carry_a_structure_to_interleaved_pairs_and_can_keep_the_mean(seed: int) -> None:
    best = best_rotation([random_matrix(seed, WIDTH, WIDTH)], [PAIRS])
    j_DD = structure(best)
    np.testing.assert_allclose(j_DD @ j_DD, -np.eye(WIDTH), rtol=0, atol=1e-10)
    for rotation in (best, keep_mean(best)):
        np.testing.assert_allclose(rotation @ rotation.T, np.eye(WIDTH), rtol=0, atol=1e-10)
        np.testing.assert_allclose(rotation @ j_DD @ rotation.T, PAIRS, rtol=0, atol=1e-10)
    np.testing.assert_allclose(keep_mean(best) @ np.ones(WIDTH), np.ones(WIDTH), rtol=0, atol=1e-10)
    with pytest.raises(UserError, match="singular"):
        best_rotation([np.zeros((WIDTH, WIDTH))], [PAIRS])


def test_the_best_rotation_has_the_closed_form_fraction_and_no_other_has_more() -> None:
    """The maximum is (sum |W|^2 + nuclear norm of sum W^T J0 W) / (2 sum |W|^2); fractions are least-squares fits."""
    weights = [random_matrix(seed, WIDTH, WIDTH) for seed in range(3)]
    whole = sum(np.sum(w**2) for w in weights)
    total = sum(w.T @ PAIRS @ w for w in weights)
    expected = 0.5 + 0.5 * np.linalg.svd(total, compute_uv=False).sum() / whole
    best = best_rotation(weights, [PAIRS] * 3)
    assert least_squares_fraction([w @ best.T for w in weights]) == pytest.approx(expected, rel=1e-10)
    others = [least_squares_fraction([w @ random_rotation(seed).T for w in weights]) for seed in range(20)]
    assert 1 - expected < min(others) and max(others) < expected


def test_the_fit_exceeds_one_step_which_exceeds_chance() -> None:
    layers = random_layers(60)
    one_step = Basis(best_rotation([w for layer in layers for w in layer], [PAIRS] * 6), [[np.eye(6)] * 2] * 2)
    chance = np.mean([complex_fraction(layers, random_basis(layers, 2, np.random.default_rng(i))) for i in range(100)])
    assert chance == pytest.approx(0.5, abs=0.02)
    assert complex_fraction(layers, fit_basis(layers, 2)) > complex_fraction(layers, one_step) + 0.02 > chance + 0.1


def test_the_chance_level_keeps_what_each_head_reads() -> None:
    layers = random_layers(70, count=1)
    rotated = rotate_heads(layers, 2, np.random.default_rng(0))
    for before, after in zip(layers[0], rotated[0], strict=True):
        assert np.abs(before - after).max() > 0.1
        for old, new in zip(np.split(before, 2), np.split(after, 2), strict=True):
            np.testing.assert_allclose(new.T @ new, old.T @ old, rtol=0, atol=1e-10)


def build(config: ModelConfig = CONFIG, **changes: object) -> GPT:
    """Float64, all parameters of order 1, LayerNorm gains and shifts included."""
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


def anywhere() -> Basis:
    """A random basis of the stream and of every head's values."""
    return Basis(random_rotation(5), [[random_rotation(10 * layer + head, 6) for head in range(2)] for layer in (1, 2)])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("qkv_bias", [True, False])
def test_rotation_changes_no_output(tied: bool, qkv_bias: bool) -> None:
    model = build(tied_head=tied, qkv_bias=qkv_bias)
    rotated = rotate(model, anywhere())
    torch.testing.assert_close(logits(rotated), logits(model), rtol=0, atol=1e-10)
    assert (rotated.embedding.weight - model.embedding.weight).abs().max() > 0.1
    assert torch.equal(rotated.norm.weight, torch.ones(WIDTH, dtype=torch.float64))


def test_a_gain_of_zero_is_refused() -> None:
    model = build()
    with torch.no_grad():
        model.blocks[1].ffn_norm.weight[3] = MIN_GAIN / 2
    with pytest.raises(UserError, match="gain"):
        rotate(model, anywhere())


def test_a_hidden_crope_model_is_recovered() -> None:
    """A CRoPE model, made dense and rotated away at random, is found again and projected back without loss."""
    crope = build(projection="complex", tied_head=False)
    with torch.no_grad():  # equal gains in a pair: otherwise Q, K and V are not complex-linear from the stream
        for block in crope.blocks:
            block.attn_norm.weight[1::2] = block.attn_norm.weight[0::2]
    hidden = rotate(with_dense_qkv(crope), anywhere())
    basis = fit_basis(read_qkv(hidden), 2)
    assert complex_fraction(read_qkv(hidden), basis) == pytest.approx(1.0, abs=1e-6)
    recovered = project(rotate(hidden, basis))
    assert (logits(project(hidden)) - logits(crope)).abs().max() > 0.1
    torch.testing.assert_close(logits(recovered), logits(crope), rtol=0, atol=1e-2 * logits(crope).abs().max().item())


def test_projection_keeps_the_stated_fraction_and_loads_into_a_plain_model() -> None:
    model = build(qkv_bias=True)
    basis = fit_basis(read_qkv(model), 2)
    rotated = rotate(model, basis)
    projected = project(rotated)
    norms = [
        sum((getattr(block.attn, name).weight ** 2).sum().item() for block in source.blocks for name in QKV_NAMES)
        for source in (projected, rotated)
    ]
    assert norms[0] / norms[1] == pytest.approx(complex_fraction(read_qkv(model), basis), rel=1e-10)
    plain = build(projection="complex", tied_head=False, qkv_bias=True)
    plain.load_state_dict(projected.state_dict())
    torch.testing.assert_close(logits(plain), logits(projected), rtol=0, atol=1e-12)


def test_fresh_projections_are_initial_and_the_rest_is_kept() -> None:
    projected = project(rotate(build(), anywhere()))
    fresh = with_initial_qkv(projected, CONFIG, seed=5).state_dict()
    initial = GPT(replace(CONFIG, projection="complex"), vocab_size=VOCAB, max_len=LENGTH, seed=5).state_dict()
    for name, value in fresh.items():
        own = any(part in name for part in QKV_NAMES)
        assert torch.equal(value, initial[name].double() if own else projected.state_dict()[name]), name


@pytest.fixture(scope="module")
def rope(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Record]:
    folder = tmp_path_factory.mktemp("runs")
    with toy_corpus(folder / "tokens"):
        yield train_toy(folder, "model=rope")


def test_a_run_from_end_to_end(rope: Record, capsys: pytest.CaptureFixture[str]) -> None:
    """Losses are those of the files; the rotated model's is the trained one's; every arm is fine-tuned."""
    main(str(rope.path), results_dir=rope.path.parents[1], steps=4, lr=0.003)
    result = json.loads((rope.path / "conversion.json").read_text())
    before, after, fractions = result["loss_nats"], result["tuned_loss_nats"], result["kept_share"]
    assert before["trained"] == pytest.approx(rope.summary["val_full"]["final_nats"], rel=1e-6)
    assert before["rope"] == pytest.approx(before["trained"], rel=1e-5)
    assert all(after[name] != before[name] for name in module.ARMS)
    assert len(fractions["best_by_chance"]) == 3 and min(fractions["best_by_chance"]) > fractions["random"]
    assert fractions["best"] > fractions["random"] and len(fractions["by_layer"]) == 1
    trained, converted = result["parameters"]["trained"], result["parameters"]["converted"]
    assert trained == {name: count for name, count in rope.summary["parameters"].items() if name != "total"}
    assert (2 * converted["qkv"], converted["embeddings"]) == (trained["qkv"], 2 * trained["embeddings"])
    choices = ModelConfig(**rope.config["model"] | {"projection": "complex", "tied_head": False})
    model = GPT(choices, vocab_size=TOY_VOCAB, max_len=16, seed=0)
    model.load_state_dict(torch.load(rope.path / "converted.pt", weights_only=True))
    printed = capsys.readouterr().out
    for name in module.ARMS:
        assert f"{before[name]:.4f} -> {after[name]:.4f}" in printed
    assert f"{trained['qkv']:,} -> {converted['qkv']:,}" in printed


def test_no_steps_leave_the_projected_model_and_the_default_rate_is_the_last(rope: Record) -> None:
    """12 steps, a decay every 4: after 11 updates the rate is 0.001 * 0.8^2."""
    result = convert(rope, steps=0)
    assert result["tuned_loss_nats"] == {name: result["loss_nats"][name] for name in module.ARMS}
    assert result["lr"] == pytest.approx(0.001 * 0.8**2, rel=1e-12)


def test_what_cannot_be_converted_is_an_error(rope: Record) -> None:
    with pytest.raises(UserError, match="RoPE"):
        convert(replace(rope, config=rope.config | {"model": rope.config["model"] | {"position": "none"}}), steps=1)
    with pytest.raises(UserError, match="steps"):
        convert(rope, steps=-1)
    with pytest.raises(UserError, match="diverged"):
        convert(rope, steps=3, lr=1e30)
