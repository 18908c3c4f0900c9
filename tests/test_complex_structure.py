"""Complex structures: the best one against closed forms, planted ones and many others; its rotation and the mean."""

from __future__ import annotations

import numpy as np
import pytest

from crope.complex_structure import (
    best_complex_structure,
    fit_stream,
    interleaved,
    keeping_mean,
    kept_share,
    random_stream,
    rotation_of,
    structure_of,
)

WIDTH = 12


def random_matrix(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def random_rotation(seed: int, width: int = WIDTH) -> np.ndarray:
    return np.linalg.qr(random_matrix(seed, width, width))[0]


def by_pairs(width: int) -> np.ndarray:
    """Multiplication by i of Eq. 8's numbers: (x0, x1) -> (-x1, x0)."""
    return np.kron(np.eye(width // 2), np.array([[0.0, -1.0], [1.0, 0.0]]))


def complex_linear(seed: int, width: int = WIDTH) -> np.ndarray:
    """A matrix of Eq. 30."""
    a, b = random_matrix(seed, 2, width // 2, width // 2)
    return np.kron(a, np.eye(2)) + np.kron(b, np.array([[0.0, 1.0], [-1.0, 0.0]]))


def weights_of(seed: int, count: int = 3) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return [random_matrix(seed + i, WIDTH, WIDTH) for i in range(count)], [by_pairs(WIDTH)] * count


def projected_share(weight: np.ndarray, output: np.ndarray, structure: np.ndarray) -> float:
    """Norm of the projection (W - O W J) / 2, which obeys P J = O P, against the whole."""
    part = (weight - output @ weight @ structure) / 2
    np.testing.assert_allclose(part @ structure, output @ part, rtol=0, atol=1e-12)
    return float(np.sum(part**2) / np.sum(weight**2))


def test_channels_of_eq_8() -> None:
    np.testing.assert_allclose(structure_of(interleaved(WIDTH)), by_pairs(WIDTH), rtol=0, atol=1e-15)
    np.testing.assert_array_equal(rotation_of(interleaved(WIDTH)), np.eye(WIDTH))
    np.testing.assert_allclose(complex_linear(0) @ by_pairs(WIDTH), by_pairs(WIDTH) @ complex_linear(0), atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_best_is_a_structure_and_its_rotation_carries_it_to_eq_8(seed: int) -> None:
    basis = best_complex_structure(*weights_of(seed))
    structure, rotation = structure_of(basis), rotation_of(basis)
    np.testing.assert_allclose(structure @ structure, -np.eye(WIDTH), rtol=0, atol=1e-10)
    np.testing.assert_allclose(structure.T, -structure, rtol=0, atol=1e-10)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(WIDTH), rtol=0, atol=1e-10)
    np.testing.assert_allclose(rotation @ structure @ rotation.T, by_pairs(WIDTH), rtol=0, atol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_the_best_keeps_the_sum_of_singular_values(seed: int) -> None:
    """|P(W)|^2 summed is (sum |W|^2 + |sum of W^T O W| in the nuclear norm) / 2; the projection is made by hand."""
    weights, outputs = weights_of(seed)
    structure = structure_of(best_complex_structure(weights, outputs))
    total = sum(weight.T @ output @ weight for weight, output in zip(weights, outputs, strict=True))
    whole = sum(np.sum(weight**2) for weight in weights)
    expected = 0.5 + 0.5 * np.linalg.svd(total, compute_uv=False).sum() / whole
    parts = [projected_share(w, o, structure) * np.sum(w**2) for w, o in zip(weights, outputs, strict=True)]
    assert sum(parts) / whole == pytest.approx(expected, rel=1e-12)
    assert kept_share(weights, outputs, best_complex_structure(weights, outputs)) == pytest.approx(expected, rel=1e-12)


def test_no_other_structure_keeps_more_and_the_opposite_keeps_least() -> None:
    weights, outputs = weights_of(7)
    basis = best_complex_structure(weights, outputs)
    best = kept_share(weights, outputs, basis)
    others = [kept_share(weights, outputs, interleaved(WIDTH) @ random_rotation(seed)) for seed in range(300)]
    assert 1 - best < min(others) and max(others) < best
    assert kept_share(weights, outputs, basis.conj()) == pytest.approx(1 - best, rel=1e-12)


def test_a_planted_structure_is_found_whole() -> None:
    """Maps that are complex-linear in turned channels: all of them is kept, and turning back finds Eq. 30's form."""
    rotation = random_rotation(3)
    weights = [complex_linear(seed) @ rotation for seed in range(3)]
    basis = best_complex_structure(weights, [by_pairs(WIDTH)] * 3)
    assert kept_share(weights, [by_pairs(WIDTH)] * 3, basis) == pytest.approx(1.0, abs=1e-12)
    for weight in weights:
        turned = weight @ rotation_of(basis).T
        np.testing.assert_allclose(turned @ by_pairs(WIDTH), by_pairs(WIDTH) @ turned, rtol=0, atol=1e-10)


@pytest.mark.parametrize("seed", range(5))
def test_the_mean_can_be_kept_at_no_cost(seed: int) -> None:
    basis = best_complex_structure(*weights_of(seed))
    kept = keeping_mean(basis)
    np.testing.assert_allclose(structure_of(kept), structure_of(basis), rtol=0, atol=1e-10)
    rotation = rotation_of(kept)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(WIDTH), rtol=0, atol=1e-10)
    np.testing.assert_allclose(rotation @ np.ones(WIDTH), np.ones(WIDTH), rtol=0, atol=1e-10)


def planted_layers(count: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Complex-linear in one turned stream; V moreover turned within each of two heads, differently in each layer."""
    rotation, layers = random_rotation(11), []
    for layer in range(count):
        heads = np.zeros((WIDTH, WIDTH))
        for head in range(2):
            part = slice(6 * head, 6 * head + 6)
            heads[part, part] = random_rotation(20 + 2 * layer + head, 6)
        q, k, v = (complex_linear(30 + 3 * layer + i) @ rotation for i in range(3))
        layers.append((q, k, heads @ v))
    return layers


def test_fit_finds_stream_and_heads_that_are_planted() -> None:
    found = fit_stream(planted_layers(3), n_heads=2)
    assert found.kept == pytest.approx(1.0, abs=1e-6)


def test_fit_keeps_more_than_one_step_and_one_step_more_than_chance() -> None:
    layers = [tuple(random_matrix(60 + 3 * i + j, WIDTH, WIDTH) for j in range(3)) for i in range(2)]
    flat, outputs = [weight for layer in layers for weight in layer], [by_pairs(WIDTH)] * 6
    one_step = kept_share(flat, outputs, best_complex_structure(flat, outputs))
    chance = random_stream(layers, 2, np.random.default_rng(0)).kept
    assert fit_stream(layers, 2).kept > one_step + 0.02 > chance + 0.1


def test_random_structures_keep_half_on_average() -> None:
    """E[J] = 0 over all turns of the stream, so the inner product vanishes in the mean."""
    layers = [tuple(random_matrix(80 + j, WIDTH, WIDTH) for j in range(3))]
    shares = [random_stream(layers, 2, np.random.default_rng(seed)).kept for seed in range(200)]
    assert np.mean(shares) == pytest.approx(0.5, abs=4 * np.std(shares) / np.sqrt(200))
