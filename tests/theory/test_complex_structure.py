"""Complex parts against least squares, hidden bases that must be found again, and random matrices in closed form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import ortho_group

from crope.model.complex_linear import ComplexLinear
from crope.theory.complex_form import as_complex
from crope.theory.complex_structure import (
    SIGMA,
    best_output_structure,
    best_structure,
    complex_part,
    complex_share,
    joint_share,
    sigma_components,
    standard_structure,
)


def gaussian(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def complex_matrix(rows: int, width: int, seed: int = 0) -> np.ndarray:
    """The dense weight of a ComplexLinear with random a and b."""
    layer, values = ComplexLinear(width, rows).double(), gaussian(2, rows // 2, width // 2, seed=seed)
    with torch.no_grad():
        layer.a.copy_(torch.from_numpy(values[0]))
        layer.b.copy_(torch.from_numpy(values[1]))
    return layer.weight.detach().numpy()


def hidden_basis(width: int, seed: int = 1) -> np.ndarray:
    return ortho_group.rvs(width, random_state=seed)


def test_the_four_bases_do_what_sec_3_2_says() -> None:
    east, north, up45 = np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([1.0, 1.0])
    identity, mirror45, turn, mirror_x = SIGMA
    assert (identity @ east).tolist() == [1, 0] and (identity @ north).tolist() == [0, 1]
    assert (mirror45 @ east).tolist() == [0, 1] and (mirror45 @ up45).tolist() == [1, 1]
    assert (turn @ east).tolist() == [0, 1] and (turn @ north).tolist() == [-1, 0]
    assert (mirror_x @ east).tolist() == [1, 0] and (mirror_x @ north).tolist() == [0, -1]
    assert np.linalg.det(SIGMA).round(12).tolist() == [1, -1, 1, -1]  # two of them reflect


def test_components_rebuild_the_matrix_and_eq_30_has_two_of_them() -> None:
    w = gaussian(6, 8)
    rebuilt = np.einsum("sed,sjk->ejdk", sigma_components(w), SIGMA).reshape(6, 8)
    np.testing.assert_allclose(rebuilt, w, rtol=0, atol=1e-14)
    c0, c1, c2, c3 = sigma_components(np.array([[2.0, 3.0], [-3.0, 2.0]]))  # Eq. 30 with a = 2, b = 3
    assert (c0.item(), c1.item(), c2.item(), c3.item()) == (2, 0, -3, 0)


def test_complex_part_drops_sigma_1_and_sigma_3() -> None:
    w = gaussian(6, 8)
    kept = sigma_components(complex_part(w))
    np.testing.assert_allclose(kept[[0, 2]], sigma_components(w)[[0, 2]], rtol=0, atol=1e-14)
    assert np.abs(kept[[1, 3]]).max() < 1e-14


def test_complex_part_is_the_nearest_weight_that_complexlinear_can_hold() -> None:
    """Least squares over all a and b, entry by entry of the dense weight."""
    w, columns = gaussian(4, 6), []
    for index in range(12):
        layer = ComplexLinear(6, 4).double()
        with torch.no_grad():
            (layer.a if index < 6 else layer.b).view(-1)[index % 6] = 1.0
        columns.append(layer.weight.detach().numpy().ravel())
    basis = np.stack(columns, axis=1)
    solution, *_ = np.linalg.lstsq(basis, w.ravel(), rcond=None)
    np.testing.assert_allclose(complex_part(w).ravel(), basis @ solution, rtol=0, atol=1e-12)
    assert np.linalg.matrix_rank(basis) == 4 * 6 // 2  # half the function space of a real weight


def test_multiplication_by_i_is_the_standard_structure() -> None:
    x = gaussian(5, 8)
    np.testing.assert_allclose(as_complex(x @ standard_structure(8).T), 1j * as_complex(x), atol=1e-14)
    assert complex_share(complex_matrix(6, 8)) == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize(("rows", "width"), [(2, 4), (8, 6), (32, 32)])
def test_a_complex_map_in_a_hidden_basis_is_recovered(rows: int, width: int) -> None:
    """In the given pairing it shows about one half, which says nothing; the best pairing shows what it is."""
    basis = hidden_basis(width)
    maps = [complex_matrix(rows, width, seed) @ basis.T for seed in (3, 4, 5)]
    found = best_structure(maps)
    np.testing.assert_allclose(found, basis @ standard_structure(width) @ basis.T, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found @ found, -np.eye(width), rtol=0, atol=1e-12)
    np.testing.assert_allclose(found, -found.T, rtol=0, atol=1e-12)
    assert joint_share(maps, found) == pytest.approx(1, abs=1e-12)
    assert joint_share(maps, standard_structure(width)) < 0.8


def test_a_mirrored_map_is_complex_under_the_other_sign() -> None:
    """conj(w z) is complex-linear from the conjugate space: the polar factor picks the better of the two signs."""
    mirrored = np.kron(np.eye(4), SIGMA[3]) @ complex_matrix(8, 6)
    assert complex_share(mirrored) == pytest.approx(0, abs=1e-14)
    found = best_structure([mirrored])
    np.testing.assert_allclose(found, -standard_structure(6), rtol=0, atol=1e-9)
    assert complex_share(mirrored, found) == pytest.approx(1, abs=1e-12)


def test_best_share_is_the_maximum_and_its_negative_the_minimum() -> None:
    maps = [gaussian(8, 6, seed=seed) for seed in (1, 2)]
    best = best_structure(maps)
    a = sum(w.T @ standard_structure(8) @ w for w in maps)
    nuclear = np.linalg.svd(a, compute_uv=False).sum()
    top = 0.5 + nuclear / (2 * sum(np.sum(w**2) for w in maps))  # duality of nuclear and spectral norm
    assert joint_share(maps, best) == pytest.approx(top, abs=1e-12)
    assert joint_share(maps, -best) == pytest.approx(1 - top, abs=1e-12)
    for seed in range(300):
        basis = hidden_basis(6, seed)
        assert 1 - top <= joint_share(maps, basis @ standard_structure(6) @ basis.T) <= top


def test_output_pairs_are_recovered_too() -> None:
    out, basis = hidden_basis(6, seed=7), hidden_basis(8)
    w = out @ complex_matrix(6, 8) @ basis.T
    j_in = basis @ standard_structure(8) @ basis.T
    found = best_output_structure(w, j_in)
    np.testing.assert_allclose(found, out @ standard_structure(6) @ out.T, rtol=0, atol=1e-9)
    assert complex_share(w, j_in, found) == pytest.approx(1, abs=1e-12)


def test_random_matrices_in_the_given_pairing_show_one_half() -> None:
    """The four components are independent Gaussians: the share is Beta(n, n), n = rows * width / 4."""
    shares = np.array([complex_share(w) for w in gaussian(4000, 6, 4)])
    n = 6 * 4 / 4
    variance = 1 / (4 * (2 * n + 1))
    assert abs(shares.mean() - 0.5) < 4 * np.sqrt(variance / len(shares))
    assert shares.var() == pytest.approx(variance, rel=0.1)


def test_random_2x2_matrices_with_free_pairing_show_three_quarters() -> None:
    """Only J and -J exist, and the given share is uniform: E max(s, 1 - s) = 3/4."""
    shares = np.array([complex_share(w, best_structure([w])) for w in gaussian(4000, 2, 2)])
    assert abs(shares.mean() - 0.75) < 4 * np.sqrt(1 / 48 / len(shares))


@pytest.mark.parametrize("rows", [400, 1600])
def test_random_tall_matrices_with_free_pairing_follow_the_semicircle(rows: int) -> None:
    """i A is Hermitian with entries of variance `rows`: Wigner's semicircle of radius 2 sqrt(rows width), whose mean
    absolute value is 4/(3 pi) of that. So the best share is 1/2 + 4/(3 pi) sqrt(width / rows): far from one half."""
    width = 40
    found = np.mean([complex_share(w, best_structure([w])) for w in gaussian(5, rows, width)])
    assert found == pytest.approx(0.5 + 4 / (3 * np.pi) * np.sqrt(width / rows), abs=0.006)


def test_no_best_structure_where_half_of_the_space_is_not_read() -> None:
    w = np.zeros((6, 6))
    w[:, :2] = gaussian(6, 2)
    with pytest.raises(ValueError, match="singular"):
        best_structure([w])
