"""ComplexLinear against complex128 arithmetic: multiplication by w = a - ib (Eq. 30)."""

import pytest
import torch

from crope.model.complex_linear import ComplexLinear
from crope.model.projections import dense_linear
from tests.model.oracles import assert_allclose, assert_close, normal, randomise


def as_complex(real):
    """Channels (2j, 2j+1) as one number (Eq. 8)."""
    values = real.detach().numpy()
    return values[..., 0::2] + 1j * values[..., 1::2]


def test_values_and_gradients_are_those_of_complex_multiplication():
    """L = Re[conj(g) w x] has dL/da = Re[conj(g) x], dL/db = Im[conj(g) x], and conj(w)^T g as
    gradient of x.
    """
    layer = randomise(ComplexLinear(6, 10))
    x_BD = normal(7, 6).requires_grad_()
    upstream = normal(7, 10, seed=4)
    y_BE = layer(x_BD)
    (y_BE * upstream).sum().backward()
    g = as_complex(upstream)
    w = (layer.a - 1j * layer.b).detach().numpy()
    assert_allclose(as_complex(y_BE), as_complex(x_BD) @ w.T, atol=1e-12)
    outer = g.conj().T @ as_complex(x_BD)
    assert_allclose(layer.a.grad, outer.real, atol=1e-12)
    assert_allclose(layer.b.grad, outer.imag, atol=1e-12)
    assert_allclose(as_complex(x_BD.grad), g @ w.conj(), atol=1e-12)


@pytest.mark.parametrize("widths", [(3, 4), (4, 3)])
def test_odd_widths_are_rejected(widths):
    with pytest.raises(ValueError, match="even"):
        ComplexLinear(*widths)


# From and to a dense layer


def test_to_linear_is_the_same_layer():
    """And from_linear its inverse."""
    layer = randomise(ComplexLinear(6, 8, bias=True))
    dense = dense_linear(layer)
    assert type(dense) is torch.nn.Linear
    x_BD = normal(3, 6)
    assert_close(dense(x_BD), layer(x_BD), atol=1e-12)
    again = ComplexLinear.from_linear(dense)
    assert_close(again.state_dict(), layer.state_dict(), atol=1e-15)


def test_initial_weights_vary_as_those_of_nn_linear():
    """Uniform in a and b, of variance 1 / (3 D)."""
    torch.manual_seed(0)
    layer, linear = ComplexLinear(256, 128), torch.nn.Linear(256, 128)
    for weight in (layer.weight, linear.weight):
        assert weight.std().item() == pytest.approx((3 * 256) ** -0.5, rel=0.02)
    state = torch.get_rng_state()
    ComplexLinear.from_linear(linear)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_layer_norm_before_it_is_not_complex_linear():
    """f(i x) differs from i f(x) after a LayerNorm without gains, and not after an RMSNorm."""
    layer, x_BD = randomise(ComplexLinear(12, 8)), normal(5, 12)
    gaps = []
    for norm in (torch.nn.LayerNorm(12).double(), torch.nn.RMSNorm(12).double()):
        gap = layer(norm(turn(x_BD))) - turn(layer(norm(x_BD)))
        gaps.append(gap.abs().max().item())
    assert gaps[0] > 0.1 and gaps[1] < 1e-12


def turn(x_BD):
    """Multiplies each channel pair by i: (x0, x1) -> (-x1, x0)."""
    pairs = torch.view_as_complex(x_BD.unflatten(-1, (-1, 2)))
    return torch.view_as_real(1j * pairs).flatten(-2)
