"""Data of Figs. 1 and 2: which entries of a CRoPE weight are tied, and what the four bases do to a shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from crope.model.complex_linear import ComplexLinear
from crope.theory.complex_form import as_complex, as_real
from crope.theory.complex_structure import SIGMA, Array, complex_part, complex_share, sigma_components

# The letter F: no symmetry, so a turn and a reflection cannot be mistaken for each other. Corners, anticlockwise.
GLYPH: Array = np.array(
    [(0, 0), (0.25, 0), (0.25, 0.4), (0.6, 0.4), (0.6, 0.62), (0.25, 0.62), (0.25, 0.78), (0.75, 0.78), (0.75, 1),
     (0, 1)]
)  # fmt: skip
MARKED = 8  # the corner whose image the maps of Fig. 2(b) share


def tied_entries(width: int) -> dict[str, Any]:
    """Fig. 1: which free number stands where in a width x width weight, minus where its negative stands.

    Numbers count from 1; RoPE has width^2 of them, CRoPE (Eq. 30) half as many.
    """
    pairs = width // 2
    layer = ComplexLinear(width, width)
    with torch.no_grad():
        layer.a.copy_(torch.arange(1, pairs**2 + 1).view(pairs, pairs))
        layer.b.copy_(torch.arange(pairs**2 + 1, 2 * pairs**2 + 1).view(pairs, pairs))
        crope = layer.weight.int().tolist()
    return {"rope": np.arange(1, width**2 + 1).reshape(width, width).tolist(), "crope": crope}


def function_space() -> dict[str, Any]:
    """Fig. 1's entries; the glyph and its image under each basis (a) and under four maps (b), with their parts."""
    return {
        "entries": tied_entries(6),
        "glyph": GLYPH.tolist(),
        "marked": MARKED,
        "bases": [_picture(f"σ{index}", matrix) for index, matrix in enumerate(SIGMA)],
        "maps": [_picture(name, matrix) for name, matrix in _maps().items()],
    }


def _maps() -> dict[str, Array]:
    """A turn with scaling, the reflection that moves the marked corner to the same place, a map with both, its part."""
    corner = as_complex(GLYPH[MARKED])[0]
    turn = as_real(np.array([[0.9 * np.exp(1j * np.pi / 3)], [0.9 * np.exp(1j * np.pi / 3) * 1j]])).T
    # z -> c conj(z) with c = w corner / conj(corner): the reflections are the maps of sigma_1 and sigma_3.
    c = 0.9 * np.exp(1j * np.pi / 3) * corner / np.conj(corner)
    mirror = c.imag * SIGMA[1] + c.real * SIGMA[3]
    mixed = 0.8 * turn + 0.35 * mirror
    return {"complex": turn, "mirrored": mirror, "mixed": mixed, "kept": complex_part(mixed)}


def _picture(name: str, matrix: Array) -> dict[str, Any]:
    return {
        "name": name,
        "matrix": matrix.tolist(),
        "image": (GLYPH @ matrix.T).tolist(),
        "sigma": sigma_components(matrix).ravel().tolist(),
        "share": complex_share(matrix),
    }
