"""Rotary positions against two slow references, the relative identity of Eq. 7, and Vaswani's sinusoids by loop."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest
import torch

from crope.model.positions import RotaryEmbedding, SinusoidalPositions, build_positions

WIDTHS = [2, 6, 32]


def random_heads(length: int, width: int) -> torch.Tensor:
    return torch.randn(2, 3, length, width, generator=torch.Generator().manual_seed(0))


def rotate_by_complex_multiplication(x_BHTK: torch.Tensor) -> np.ndarray:
    """Pair i at position m times e^{i m theta_i} (Eq. 10)."""
    x, width = x_BHTK.double().numpy(), x_BHTK.shape[-1]
    y = np.empty_like(x)
    for m in range(x.shape[2]):
        for i in range(width // 2):
            turned = (x[:, :, m, 2 * i] + 1j * x[:, :, m, 2 * i + 1]) * cmath.exp(1j * m * 10000 ** (-2 * i / width))
            y[:, :, m, 2 * i], y[:, :, m, 2 * i + 1] = turned.real, turned.imag
    return y


def rotate_by_matrix(x_BHTK: torch.Tensor) -> np.ndarray:
    """The block-diagonal matrix of RoFormer's Eq. 15, theta_i = 10000^(-2(i-1)/d) for i = 1 .. d/2."""
    x, width = x_BHTK.double().numpy(), x_BHTK.shape[-1]
    y = np.empty_like(x)
    for m in range(x.shape[2]):
        matrix = np.zeros((width, width))
        for i in range(1, width // 2 + 1):
            angle = m * math.pow(10000.0, -2 * (i - 1) / width)
            row = 2 * (i - 1)
            matrix[row, row], matrix[row, row + 1] = math.cos(angle), -math.sin(angle)
            matrix[row + 1, row], matrix[row + 1, row + 1] = math.sin(angle), math.cos(angle)
        y[:, :, m] = x[:, :, m] @ matrix.T
    return y


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("reference", [rotate_by_complex_multiplication, rotate_by_matrix])
def test_rotary_against_slow_references(width: int, reference) -> None:
    x_BHTK = random_heads(200, width)
    found = RotaryEmbedding(width, max_len=256).rotate(x_BHTK)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, reference(x_BHTK), rtol=0, atol=2e-6)


def test_rotary_by_hand() -> None:
    """d = 4 at position 3: theta is 1 and 0.01, so the pairs turn by 3 and by 0.03."""
    x_BHTK = torch.tensor([0.5, -1.0, 1.5, 2.0]).expand(1, 1, 4, 4)
    found = RotaryEmbedding(4, max_len=4).rotate(x_BHTK)[0, 0]
    assert found[0].tolist() == [0.5, -1.0, 1.5, 2.0]
    # cos 3 = -0.98999250, sin 3 = 0.14112001, cos 0.03 = 0.99955003, sin 0.03 = 0.02999550
    assert found[3].tolist() == pytest.approx([-0.35387624, 1.06055250, 1.43933405, 2.04409332], abs=1e-6)


def test_tables_hold_their_precision_at_the_last_position_of_the_paper() -> None:
    """An angle of 1023 rounded to float32 is off by up to 3e-5; tables made in float64 are not."""
    x_BHTK = random_heads(1024, 32)[:1, :1]
    found = RotaryEmbedding(32, max_len=1024).rotate(x_BHTK)[0, 0, -1]
    np.testing.assert_allclose(found, rotate_by_complex_multiplication(x_BHTK)[0, 0, -1], rtol=0, atol=1e-6)


def test_scores_depend_on_the_distance_only() -> None:
    """The same q and k everywhere: the score at (m, n) is Re[conj(q) k e^{i (n - m) theta}] (Eqs. 7, 12)."""
    width, length = 8, 30
    rotary = RotaryEmbedding(width, max_len=length).double()
    q, k = random_heads(1, width)[0, :2, 0].double()
    q_TK, k_TK = (rotary.rotate(x.expand(1, 1, length, width))[0, 0] for x in (q, k))
    found = (q_TK @ k_TK.T).numpy()
    by_distance = {}
    for distance in range(1 - length, length):
        terms = (
            (complex(q[2 * i], -q[2 * i + 1]) * complex(k[2 * i], k[2 * i + 1]))
            * cmath.exp(1j * distance * 10000 ** (-2 * i / width))
            for i in range(width // 2)
        )
        by_distance[distance] = sum(terms).real
    expected = [[by_distance[n - m] for n in range(length)] for m in range(length)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
    assert np.ptp(list(by_distance.values())) > 1  # the distance does matter


def test_norm_of_each_pair_is_kept() -> None:
    x_BHTK = random_heads(64, 8)
    found = RotaryEmbedding(8, max_len=64).rotate(x_BHTK)
    norms, kept = (y.unflatten(-1, (-1, 2)).norm(dim=-1) for y in (x_BHTK, found))
    torch.testing.assert_close(kept, norms, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("autocast", [False, True])
def test_bf16_keeps_its_dtype_and_is_rotated_in_float32(autocast: bool) -> None:
    """Rounded once, at the end: within half a unit of the last place. In bf16, cancellation goes far past it."""
    x_BHTK = random_heads(200, 8).bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = RotaryEmbedding(8, max_len=200).rotate(x_BHTK)
    assert found.dtype == torch.bfloat16
    expected = rotate_by_complex_multiplication(x_BHTK)
    assert np.all(np.abs(found.double().numpy() - expected) <= 2.0**-8 * np.abs(expected) + 1e-6)


def test_rotary_learns_nothing_and_leaves_the_embedding_alone() -> None:
    rotary, x_BTD = RotaryEmbedding(8, max_len=4), random_heads(4, 8)[0]
    assert not list(rotary.parameters())
    assert torch.equal(rotary.embed(x_BTD), x_BTD)


def test_odd_head_width_is_rejected() -> None:
    with pytest.raises(ValueError, match="head width 7 must be even"):
        RotaryEmbedding(7, max_len=4)


@pytest.mark.parametrize("width", [2, 6, 128])
def test_sinusoids_are_vaswanis(width: int) -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d))."""
    x_BTD = random_heads(90, width)[0]
    expected = x_BTD.double().numpy().copy()
    for pos in range(90):
        for channel in range(width):
            angle = pos / math.pow(10000.0, (channel - channel % 2) / width)
            expected[:, pos, channel] += math.cos(angle) if channel % 2 else math.sin(angle)
    found = SinusoidalPositions(width, max_len=100).embed(x_BTD)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_sinusoids_have_norm_8_at_the_papers_width_and_turn_nothing() -> None:
    positions, q_BHTK = SinusoidalPositions(128, max_len=50), random_heads(50, 8)
    norms = positions.embed(torch.zeros(1, 50, 128)).norm(dim=-1)
    torch.testing.assert_close(norms, torch.full((1, 50), 8.0), rtol=1e-5, atol=0)
    assert torch.equal(positions.rotate(q_BHTK), q_BHTK)
    assert not list(positions.parameters())


def test_rotary_of_a_model_turns_by_the_head_width(model_config) -> None:
    q_BHTK = random_heads(20, 6)
    found = build_positions(model_config("rope"), max_len=20).rotate(q_BHTK)
    np.testing.assert_allclose(found, rotate_by_matrix(q_BHTK), rtol=0, atol=2e-6)


def test_sinusoids_of_a_model_have_the_models_width(model_config) -> None:
    found = build_positions(model_config("xpos"), max_len=20).embed(torch.zeros(1, 20, 24))
    assert found[0, 3, 8].item() == pytest.approx(math.sin(3 / 10000 ** (8 / 24)), abs=1e-6)
