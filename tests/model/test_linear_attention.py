"""RoFormer's Eq. 19: against its sums, across chunks, in linear time and memory, and where softmax would be other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from crope.model.attention import CausalAttention, LinearAttention, causal_product, features
from crope.model.positions import build_positions
from crope.model.schemes import CHUNK
from tests.model.conftest import ORACLES


def random_heads(length: int, width: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.randn(2, 3, length, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("length", [1, 5, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 17])
def test_sums_over_the_past_whatever_the_chunks(length: int) -> None:
    q, k, v = random_heads(length), random_heads(length, seed=1), random_heads(length, width=4, seed=2)
    found = causal_product(q, k, v).numpy()
    expected = np.zeros(v.shape)
    for m in range(length):
        for n in range(m + 1):
            weight = (q[:, :, m] * k[:, :, n]).sum(-1, keepdim=True)
            expected[:, :, m] += (weight * v[:, :, n]).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("model", ["rope_linear", "crope_linear"])
def test_long_sequences_against_eq_19(model: str, model_config, randomise, slow_attention) -> None:
    """Past a chunk; the rotated numerator may be negative, the denominator is the unrotated one."""
    config, length = model_config(model), CHUNK + 9
    attention = randomise(LinearAttention(config))
    x_BTD = torch.randn(1, length, 24, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    positions = build_positions(config, max_len=length).double()
    found = attention(x_BTD, positions).detach().numpy()[0]
    expected = slow_attention(attention, x_BTD.numpy()[0], n_heads=4, oracle=ORACLES["rotary"], positions=positions)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)  # float32 tables of angles up to 73


def test_features_are_elu_plus_one_and_stay_positive() -> None:
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)
    expected = [value + 1 if value > 0 else math.exp(value) for value in x.tolist()]
    assert features(x).tolist() == pytest.approx(expected, rel=1e-15)
    assert (features(torch.tensor([-20.0, -80.0])) > 0).all()  # where float32's elu + 1 is 0
    zero = torch.zeros(1, requires_grad=True)
    features(zero).backward()
    assert zero.grad is not None and zero.grad.item() == 1.0


def test_without_rotation_weights_are_those_of_eq_18(model_config, randomise) -> None:
    """Then they are positive and sum to 1: constant values come out as they are."""
    config = model_config("rope_linear", position="none")
    attention, x_BTD = randomise(LinearAttention(config)), torch.randn(1, 80, 24, dtype=torch.float64)
    q, k = (attention._heads(layer(x_BTD)) for layer in (attention.q_proj, attention.k_proj))
    ones = torch.ones(1, 4, 80, 6, dtype=torch.float64)
    found = attention.mix(q, k, ones, build_positions(config, max_len=80))
    torch.testing.assert_close(found, ones, rtol=0, atol=1e-12)


def saved_numbers(attention: CausalAttention, length: int, config) -> int:
    """Numbers that autograd keeps for the backward pass of one mix."""
    q, k, v = (random_heads(length, seed=seed).requires_grad_() for seed in range(3))
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = attention.mix(q, k, v, build_positions(config, max_len=length).double())
    assert y.requires_grad
    return sum(kept.values())


def test_memory_grows_with_the_length_and_not_its_square(model_config) -> None:
    config = model_config("rope_linear", position="none")
    attention = LinearAttention(config).double()
    at_8, at_32 = (saved_numbers(attention, chunks * CHUNK, config) for chunks in (8, 32))
    assert at_32 <= 4 * at_8
    assert at_32 < (32 * CHUNK) ** 2  # one head's matrix of scores alone


def test_operations_grow_with_the_length_and_not_its_square(model_config) -> None:
    config = model_config("rope_linear")
    attention, counts = LinearAttention(config).double(), []
    for chunks in (4, 16):
        positions = build_positions(config, max_len=chunks * CHUNK).double()
        with FlopCounterMode(display=False) as counter:
            attention.mix(*(random_heads(chunks * CHUNK, seed=seed) for seed in range(3)), positions)
        counts.append(counter.get_total_flops())
    assert counts[1] == 4 * counts[0] > 0


def test_runs_in_float32_under_autocast(model_config, randomise) -> None:
    """Sums over hundreds of positive terms: in bf16 they would stall at 256 times the last term."""
    config = model_config("rope_linear")
    attention = randomise(LinearAttention(config)).float()
    q, k, v = (random_heads(400, seed=seed).bfloat16() for seed in range(3))
    positions = build_positions(config, max_len=400)
    with torch.autocast("cpu", torch.bfloat16):
        found = attention.mix(q, k, v, positions)
    assert found.dtype == torch.bfloat16
    exact = attention.mix(q.double(), k.double(), v.double(), positions.double())
    assert np.all(np.abs((found.double() - exact).numpy()) <= 2.0**-8 * np.abs(exact.numpy()) + 1e-5)
