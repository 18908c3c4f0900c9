"""The controls' maps: what they store, what they compute, and how their outputs vary at the start."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from crope.model.complex_linear import ComplexLinear
from crope.model.gpt import GPT, INIT_STD
from crope.model.projections import BlockDiagonalLinear, LowRankLinear, MisalignedComplexLinear, StructuredLinear

CONTROLS = ["lowrank", "blockdiag", "halved", "complex", "complex_misaligned"]
STRUCTURED: list[type[StructuredLinear]] = [LowRankLinear, BlockDiagonalLinear]


def attention_of(name: str, model_config, *, width: int, vocab: int = 64, seed: int = 0):
    config = model_config("rope", projection=name, d_model=width, n_layers=1)
    return GPT(config, vocab_size=vocab, max_len=8, seed=seed).blocks[0].attn


@pytest.mark.parametrize("width", [24, 48, 128])
@pytest.mark.parametrize("name", CONTROLS)
def test_half_of_the_weights(name: str, width: int, model_config) -> None:
    """Exactly half of D^2 in each of Q, K and V where 8 divides D."""
    if name == "halved" and width % 16:
        width = 64  # heads of even width
    attention = attention_of(name, model_config, width=width)
    for layer in (attention.q_proj, attention.k_proj, attention.v_proj):
        assert sum(p.numel() for p in layer.parameters()) == width**2 // 2


@pytest.mark.parametrize("width", range(4, 60, 2))
def test_low_rank_is_within_a_row_of_half(width: int) -> None:
    """Rank r has 2 r D weights: one more would exceed half of D^2, and half is missed by less than two rows of D."""
    stored = sum(p.numel() for p in LowRankLinear(width, width).parameters())
    assert stored in (width**2 // 2, width**2 // 2 - width)
    assert stored + 2 * width > width**2 / 2


def test_misaligned_outputs_stand_in_the_stated_channels(randomise) -> None:
    """Two heads of 6: pair j of a head is (j, j + 3). Complex numbers from ComplexLinear's own oracle."""
    layer = randomise(MisalignedComplexLinear(8, 12, d_head=6))
    aligned = ComplexLinear(8, 12).double()
    aligned.load_state_dict(layer.state_dict())
    x_D = torch.randn(8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found, pairs = layer(x_D), aligned(x_D).unflatten(0, (-1, 2))
    for head in range(2):
        for j in range(3):
            first = 6 * head + j
            assert torch.equal(torch.stack((found[first], found[first + 3])), pairs[3 * head + j])


def test_misaligned_is_not_complex_in_the_rotated_pairs(randomise) -> None:
    """W i = i W holds for the aligned map and fails for the misaligned one, i the turn by 90 degrees of (2i, 2i+1)."""
    turn = torch.block_diag(*[torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)] * 6)
    gaps = []
    for layer in (ComplexLinear(12, 12), MisalignedComplexLinear(12, 12, d_head=6)):
        weight = randomise(layer).weight.detach()
        gaps.append((weight @ turn - turn @ weight).norm() / weight.norm())
    assert gaps[0] < 1e-12 and gaps[1] > 0.5


def test_misalignment_is_without_effect_where_nothing_rotates(model_config, randomise) -> None:
    """Why the configuration refuses it there: q.k does not see the order of channels, and out_proj undoes V's."""
    plain = randomise(attention_of("complex", model_config, width=48))
    other = attention_of("complex_misaligned", model_config, width=48).double()
    other.load_state_dict(plain.state_dict())
    order = torch.arange(48).view(4, 6, 2).transpose(1, 2).flatten()  # where each misaligned channel came from
    with torch.no_grad():
        other.out_proj.weight.copy_(plain.out_proj.weight[:, order])
        x_BTD = torch.randn(2, 7, 48, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        nothing = GPT(model_config("nope", d_model=48), vocab_size=64, max_len=8, seed=0).positions
        torch.testing.assert_close(other(x_BTD, nothing), plain(x_BTD, nothing), rtol=0, atol=1e-12)


@pytest.mark.parametrize("layer", STRUCTURED)
@pytest.mark.parametrize("bias", [False, True])
def test_the_dense_weight_is_what_they_multiply_by(layer: type[StructuredLinear], bias: bool, randomise) -> None:
    made = randomise(layer(8, 12, bias=bias))  # type: ignore[call-arg]
    x_BD = torch.randn(5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = x_BD @ made.weight.T + (made.bias if bias else 0.0)
    torch.testing.assert_close(made(x_BD), expected, rtol=0, atol=1e-12)
    rank = np.linalg.matrix_rank(made.weight.detach().numpy())
    assert rank == (8 * 12 // 40 if layer is LowRankLinear else 8)


def test_first_half_of_the_heads_reads_the_first_half_of_the_stream(randomise) -> None:
    weight = randomise(BlockDiagonalLinear(8, 12)).weight.detach()
    assert not weight[:6, 4:].any() and not weight[6:, :4].any()
    assert weight[:6, :4].all() and weight[6:, 4:].all()


@pytest.mark.parametrize(
    ("layer", "stds"),
    [
        (LowRankLinear(128, 128), {"down": math.sqrt(0.02) / 32**0.25, "up": math.sqrt(0.02) / 32**0.25}),
        (BlockDiagonalLinear(128, 128), {"first": 0.02 * math.sqrt(2), "second": 0.02 * math.sqrt(2)}),
    ],
)
def test_initial_stds_by_closed_form(layer: StructuredLinear, stds: dict[str, float]) -> None:
    """Var(y_e) = sum_d Var(W_ed) x_d^2 is to be 0.02^2 |x|^2 (for blocks, on average over directions of x).

    Rank R = 32: Var(W_ed) = R s^4, so s = sqrt(0.02) / R^(1/4). Blocks see half of the channels: s^2 = 2 * 0.02^2.
    """
    assert layer.init_stds(0.02) == pytest.approx(stds, rel=1e-12)


@pytest.mark.parametrize("name", ["real", *CONTROLS])
def test_outputs_start_with_the_variance_of_the_real_map(name: str, model_config) -> None:
    """Of a white input x_D: 0.02^2 D. Over 128 to 1,024 outputs and 400 inputs in each of 3 maps: within 7 %.

    (Outputs share the weights: at rank 64 the variance estimate has a relative spread of about 2 %.)
    """
    width = 256
    attention = attention_of(name, model_config, width=width)
    x_BD = torch.randn(400, width, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        outputs = torch.cat([layer(x_BD) for layer in (attention.q_proj, attention.k_proj, attention.v_proj)])
    assert outputs.var().item() == pytest.approx(INIT_STD**2 * width, rel=0.07)


def test_structured_parameters_are_drawn_at_their_own_std(model_config) -> None:
    """Through the model's seeding, by name: Q, K and V differ, and a seed gives the same values again."""
    first, again, other = (attention_of("lowrank", model_config, width=128, seed=seed) for seed in (0, 0, 1))
    expected = math.sqrt(0.02) / 32**0.25
    for key in ("q_proj", "k_proj", "v_proj"):
        down = getattr(first, key).down
        assert down.std().item() == pytest.approx(expected, rel=0.06)  # 4,096 values: 1.1 % is one sigma
        assert torch.equal(down, getattr(again, key).down)
        assert not torch.equal(down, getattr(other, key).down)
    assert not torch.equal(first.q_proj.down, first.k_proj.down)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LowRankLinear(2, 2), "leave no rank"),
        (lambda: BlockDiagonalLinear(7, 4), "7 -> 4 must be even"),
        (lambda: MisalignedComplexLinear(8, 12, d_head=5), "heads of width 5"),
    ],
)
def test_impossible_widths_are_rejected(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(("name", "kinds"), [("complex_qk", "ccr"), ("complex_v", "rrc"), ("complex_wide", "ccc")])
def test_which_of_q_k_v_are_complex(name: str, kinds: str, model_config) -> None:
    attention = attention_of(name, model_config, width=48)
    classes = {"c": ComplexLinear, "r": torch.nn.Linear}
    layers = (attention.q_proj, attention.k_proj, attention.v_proj)
    assert [type(layer) for layer in layers] == [classes[kind] for kind in kinds]


@pytest.mark.parametrize(("width", "expected"), [(64, 104), (128, 208), (256, 408), (512, 816)])
def test_wide_spends_on_attention_what_is_saved(width: int, expected: int, model_config) -> None:
    """1.6 D to the nearest multiple of 8 (4 heads of even width); a block is RoPE's 12 D^2 within 0.65 % (128 / D)."""
    wide, rope = (attention_of(name, model_config, width=width) for name in ("complex_wide", "real"))
    assert wide.q_proj.out_features == wide.out_proj.in_features == expected
    sizes = [sum(p.numel() for p in attention.parameters()) for attention in (wide, rope)]
    assert abs(sizes[0] - sizes[1]) / (12 * width**2) <= 0.0065 * 128 / width
    if width == 128:
        assert round(100 * (sizes[0] - sizes[1]) / (12 * width**2), 2) == 0.52
