"""T5's buckets and ALiBi's slopes against their published forms, and the matrix that is added to the scores."""

from __future__ import annotations

import math

import pytest
import torch

from crope.model.gpt import GPT
from crope.model.positions import AlibiBias, LearnedPositions, Positions, RelativeBias


def test_buckets_are_t5s() -> None:
    """Where a bucket starts: 16 exact ones, then bucket b from the first n with 16 + 16 log_8(n / 16) >= b.

    8^(1/16) = 2^(3/16): bucket 17 starts past 16 * 1.139 = 18.2, 18 past 20.7, ..., 31 past 112.4.
    """
    starts = {RelativeBias.bucket(n): n for n in reversed(range(2000))}
    expected = {b: b for b in range(17)} | {b: math.ceil(16 * 2 ** (3 * (b - 16) / 16)) for b in range(17, 32)}
    assert starts == expected
    assert (starts[17], starts[18], starts[24], starts[31]) == (19, 21, 46, 113)


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (1, [8]),
        (4, [2, 4, 6, 8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),  # the paper's example: 1/2, 1/4, ..., 1/256
        (16, [i / 2 for i in range(1, 17)]),  # 2^-0.5, 2^-1, ..., 2^-8
        (6, [2, 4, 6, 8, 1, 3]),  # those of 4 heads, then every other one of 8 heads
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_slopes_are_alibis(heads: int, exponents: list[float]) -> None:
    assert AlibiBias.slopes(heads) == pytest.approx([2**-e for e in exponents], rel=1e-12)


@pytest.mark.parametrize("length", [1, 2, 7, 300])
@pytest.mark.parametrize("scheme", [RelativeBias, AlibiBias])
def test_matrix_by_loops(scheme: type[RelativeBias] | type[AlibiBias], length: int, randomise) -> None:
    """Entry (m, n): the head's number at distance m - n, and -inf where n > m."""
    positions = randomise(scheme(4))
    found = positions.bias(length).detach()
    assert found.shape == (1, 4, length, length)
    for head in range(4):
        for m in range(0, length, 1 + length // 20):
            for n in range(length):
                if n > m:
                    expected = -math.inf
                elif isinstance(positions, RelativeBias):
                    expected = positions.weight[RelativeBias.bucket(m - n), head].item()
                else:
                    expected = -(m - n) * 2.0 ** (-2 * (head + 1))
                assert found[0, head, m, n].item() == pytest.approx(expected, rel=1e-12)


def test_relative_bias_is_one_table_for_all_layers(model_config) -> None:
    model = GPT(model_config("relative_bias"), vocab_size=64, max_len=8, seed=0)
    tables = [name for name, parameter in model.named_parameters() if parameter.shape == (32, 4)]
    assert tables == ["positions.weight"]


def test_gradient_of_the_table_sums_over_equal_distances() -> None:
    """d(sum of finite entries)/d(bucket of distance d) = T - d for d < 16, in every head."""
    positions = RelativeBias(2)
    bias = positions.bias(10)
    bias[bias.isfinite()].sum().backward()
    assert positions.weight.grad is not None
    expected = torch.tensor([[10.0 - d] * 2 if d < 10 else [0.0] * 2 for d in range(32)])
    assert torch.equal(positions.weight.grad, expected)


def test_learned_positions_add_their_row() -> None:
    positions, x_BTD = LearnedPositions(6, max_len=9), torch.randn(2, 5, 6)
    with torch.no_grad():
        positions.weight.copy_(torch.arange(54.0).view(9, 6))
    added = positions.embed(x_BTD) - x_BTD
    torch.testing.assert_close(added, torch.arange(30.0).view(5, 6).expand(2, 5, 6), rtol=0, atol=1e-5)


def test_only_the_learned_table_ends(model_config) -> None:
    names = ["xpos", "rope", "learned", "relative_bias", "alibi", "nope"]
    found = {name: GPT(model_config(name), vocab_size=64, max_len=8, seed=0).positions.extends for name in names}
    assert [name for name, extends in found.items() if not extends] == ["learned"]


def test_no_positions_act_nowhere() -> None:
    positions, x = Positions(), torch.randn(2, 3, 4, 6)
    assert positions.embed(x) is x and positions.rotate(x) is x and positions.bias(4) is None
    assert not list(positions.parameters())
