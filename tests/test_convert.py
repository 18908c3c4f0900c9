"""Conversion: rotation without effect on outputs, exact projections, a run from end to end."""

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from crope.adapt import merge
from crope.config import ModelConfig
from crope.convert import MIN_GAIN, QKV, convert, project, rotate, with_initial_qkv
from crope.errors import UserError
from crope.model.gpt import GPT
from crope.record import Record
from crope.theory.complex_maps import StreamStructure, as_complex, fit_stream, folded_qkv
from tests.conftest import TOY_VOCAB
from tests.toy_runs import toy_corpus, train_toy

ARMS = ("rope", "best", "random", "fresh")
WIDTH, VOCAB, LENGTH = 12, 70, 9
CONFIG = ModelConfig(position="rotary", projection="real", n_layers=2, n_heads=2, d_model=WIDTH)


def random_matrix(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def random_rotation(seed: int, width: int = WIDTH) -> np.ndarray:
    return np.linalg.qr(random_matrix(seed, width, width))[0]


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
        [as_complex(random_rotation(10 * layer + head, 6).T).T for head in range(2)]
        for layer in (1, 2)
    ]
    return StreamStructure(as_complex(random_rotation(5).T).T, heads, kept=math.nan)


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
    """A CRoPE model, made dense and rotated away at random, is found again and projected back
    without loss.
    """
    crope = build(projection="complex", tied_head=False)
    with (
        torch.no_grad()
    ):  # equal gains in a pair: otherwise Q, K and V are not complex-linear from the stream
        for block in crope.blocks:
            block.attn_norm.weight[1::2] = block.attn_norm.weight[0::2]
    plain = copy.deepcopy(crope)
    merge(plain)
    hidden = rotate(plain, anywhere())
    found = fit_stream(folded_qkv(hidden), 2)
    assert found.kept == pytest.approx(1.0, abs=1e-6)
    recovered = project(rotate(hidden, found), CONFIG)
    assert (logits(project(hidden, CONFIG)) - logits(crope)).abs().max() > 0.1
    torch.testing.assert_close(
        logits(recovered), logits(crope), rtol=0, atol=1e-2 * logits(crope).abs().max().item()
    )


def test_projection_keeps_the_stated_fraction_and_loads_into_a_plain_model() -> None:
    model = build(qkv_bias=True)
    found = fit_stream(folded_qkv(model), 2)
    rotated = rotate(model, found)
    projected = project(rotated, CONFIG)
    norms = [
        sum(
            (getattr(block.attn, name).weight ** 2).sum().item()
            for block in source.blocks
            for name in QKV
        )
        for source in (projected, rotated)
    ]
    assert norms[0] / norms[1] == pytest.approx(found.kept, rel=1e-10)
    plain = build(projection="complex", tied_head=False, qkv_bias=True)
    plain.load_state_dict(projected.state_dict())
    torch.testing.assert_close(logits(plain), logits(projected), rtol=0, atol=1e-12)


def test_fresh_projections_are_initial_and_the_rest_is_kept() -> None:
    projected = project(rotate(build(), anywhere()), CONFIG)
    fresh = with_initial_qkv(projected, CONFIG, seed=5).state_dict()
    initial = GPT(
        replace(CONFIG, projection="complex"), vocab_size=VOCAB, max_len=LENGTH, seed=5
    ).state_dict()
    for name, value in fresh.items():
        own = any(part in name for part in QKV)
        assert torch.equal(
            value, initial[name].double() if own else projected.state_dict()[name]
        ), name


@pytest.fixture(scope="module")
def rope(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Record]:
    folder = tmp_path_factory.mktemp("runs")
    with toy_corpus(folder / "tokens"):
        yield train_toy(folder, "model=rope")


def test_a_run_from_end_to_end(rope: Record, capsys: pytest.CaptureFixture[str]) -> None:
    """Losses are those of the files; the rotated model's is the trained one's; every arm is
    fine-tuned.
    """
    convert(rope, steps=4, lr=0.003)
    result = json.loads((rope.path / "conversion.json").read_text())
    assert result["weights_sha256"] == rope.summary["weights_sha256"]
    before, after, fractions = result["loss_nats"], result["tuned_loss_nats"], result["kept_share"]
    assert before["trained"] == pytest.approx(rope.summary["val_full"]["final_nats"], rel=1e-6)
    assert before["rope"] == pytest.approx(before["trained"], rel=1e-5)
    assert all(after[name] != before[name] for name in ARMS)
    assert (
        len(fractions["best_by_chance"]) == 3
        and min(fractions["best_by_chance"]) > fractions["random"]
    )
    assert fractions["best"] > fractions["random"] and len(fractions["by_layer"]) == 1
    trained, converted = result["parameters"]["trained"], result["parameters"]["converted"]
    assert trained == {
        name: count for name, count in rope.summary["parameters"].items() if name != "total"
    }
    assert (2 * converted["qkv"], converted["embeddings"]) == (
        trained["qkv"],
        2 * trained["embeddings"],
    )
    choices = ModelConfig(**rope.config["model"] | {"projection": "complex", "tied_head": False})
    model = GPT(choices, vocab_size=TOY_VOCAB, max_len=16, seed=0)
    model.load_state_dict(torch.load(rope.path / "converted.pt", weights_only=True))


def test_no_steps_leave_the_projected_model_and_the_default_rate_is_the_last(rope: Record) -> None:
    """12 steps, a decay every 4: after 11 updates the rate is 0.001 * 0.8^2."""
    result = convert(rope, steps=0)
    assert result["tuned_loss_nats"] == {name: result["loss_nats"][name] for name in ARMS}
    assert result["lr"] == pytest.approx(0.001 * 0.8**2, rel=1e-12)


def test_what_cannot_be_converted_is_an_error(rope: Record) -> None:
    with pytest.raises(UserError, match="RoPE"):
        convert(
            replace(
                rope, config=rope.config | {"model": rope.config["model"] | {"position": "none"}}
            ),
            steps=1,
        )
    with pytest.raises(UserError, match="steps"):
        convert(rope, steps=-1)
    with pytest.raises(UserError, match="diverged"):
        convert(rope, steps=3, lr=1e30)
