"""Complex parts against least squares, bases and maps of Figs. 1 and 2 by hand."""

import numpy as np
import pytest
import torch

from crope.model.complex_linear import ComplexLinear
from crope.theory.complex_maps import (
    as_complex,
    complex_fraction,
    complex_part,
    plane_maps,
)
from tests.model.oracles import assert_allclose, gaussian


def test_pairs_are_interleaved():
    assert as_complex(np.array([1.0, 2.0, 3.0, 4.0])).tolist() == [1 + 2j, 3 + 4j]


def test_complex_part_is_the_nearest_weight_that_complexlinear_can_hold():
    """Least squares over all a and b; they span half the function space of a real weight. The basis
    has one of their 12 numbers at 1, the others at 0.
    """
    w = gaussian(4, 6)
    layer, basis = ComplexLinear(6, 4).double(), []
    for numbers in torch.eye(12, dtype=torch.float64):
        torch.nn.utils.vector_to_parameters(numbers, layer.parameters())
        basis.append(layer.weight.detach().numpy().flatten())
    basis = np.stack(basis, axis=1)
    solution, _, rank, _ = np.linalg.lstsq(basis, w.ravel(), rcond=None)
    assert_allclose(complex_part(w).ravel(), basis @ solution, atol=1e-12)
    assert rank == 12


def test_only_what_is_complex_linear_keeps_its_whole_energy():
    """0.8 of a rotation of size 0.9 and 0.35 of a reflection of that size: 0.64 / 0.7625."""
    kept = {name: complex_fraction(matrix) for name, matrix in plane_maps().items()}
    expected = {
        "a complex map": 1,
        "a reflection": 0,
        "a real map": 0.64 / 0.7625,
        "its complex part": 1,
    }
    assert kept == pytest.approx(expected, abs=1e-12)
