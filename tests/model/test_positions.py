"""Position schemes against slow references and their papers' closed forms."""

import numpy as np
import pytest
import torch

from crope.model.positions import POSITIONS, Alibi, RelativeBias, RotaryEmbedding
from tests.model.oracles import (
    CHOICES,
    WIDTH,
    assert_close,
    model_config,
    normal,
    turn_by_complex_multiplication,
)


def test_bf16_keeps_its_dtype_and_is_rotated_in_float32():
    """Rounded once, at the end: within half a unit in the last place.

    In bf16, cancellation exceeds that by far.
    """
    x_BHTK = normal(2, 3, 200, 8).bfloat16()
    found = RotaryEmbedding(8, max_len=200).rotate(x_BHTK)
    assert found.dtype == torch.bfloat16
    expected = turn_by_complex_multiplication(x_BHTK.double().numpy(), np.arange(200))
    np.testing.assert_allclose(found.double(), expected, rtol=2.0**-8, atol=1e-6)


def test_the_compiled_rotation_is_the_eager_one(monkeypatch):
    """torch.compile takes another branch, which weights as small as initial ones would hide."""
    rotary, x_BHTK = RotaryEmbedding(8, max_len=200), normal(2, 3, 200, 8).float()
    eager = rotary.rotate(x_BHTK)
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)
    assert_close(rotary.rotate(x_BHTK), eager, atol=1e-6)


def test_only_the_learned_table_ends():
    for name in CHOICES:
        config = model_config(name, d_model=WIDTH)
        extends = POSITIONS[config.position](config, 8).extends
        assert extends == (name != "learned")


# Biases by distance


def test_buckets_are_t5s():
    """The first distance of each bucket: 16 exact ones, then bucket b from the first n with 16 + 16
    log_8(n/16) >= b.

    8^(1/16) = 2^(3/16): bucket 17 starts past 16 * 1.139 = 18.2, 18 past 20.7, ..., 31 past 112.4.
    """
    starts = {RelativeBias.bucket(n): n for n in reversed(range(2000))}
    logarithmic = [19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    assert [starts[bucket] for bucket in range(32)] == [*range(17), *logarithmic]


def test_each_distance_has_the_scalar_of_its_bucket():
    """Also those past 128, where the buckets end."""
    scheme = RelativeBias(1)
    scheme.weight.data = torch.arange(32.0)[:, None]
    found = scheme.bias(300)[0, 0, -1].flip(0)
    assert found.tolist() == [RelativeBias.bucket(distance) for distance in range(300)]


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),  # the paper's example: 1/2, 1/4, ..., 1/256
        (6, [2, 4, 6, 8, 1, 3]),  # those of 4 heads, then every other one of 8 heads
    ],
)
def test_slopes_are_alibis(heads, exponents):
    assert Alibi.slopes(heads) == pytest.approx([2**-e for e in exponents], rel=1e-12)
