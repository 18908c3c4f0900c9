"""Another basis of V's heads, in which less of V is lost by a complex-linear layer.

The attention mixes the tokens of V and no channels, and the output projection follows: any rotation
of a head's channels can be undone there, so that the model stays the same.

Shapes: D in-features, E outputs of V, K width of a head.
"""

from collections.abc import Collection
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from crope.interop.calibration import RIDGE, Batches, Inputs, as_batches, calibrate, run
from crope.interop.layers import Pairing, check_replaceable, pairs_of, select

TOLERANCE = 0.02  # of the outputs: far above rounding in bfloat16, far below another function


@torch.no_grad()
def align_values(
    model: nn.Module,
    inputs: Batches,
    *,
    names: tuple[str, str] = ("v_proj", "o_proj"),
    pairing: Pairing | None = None,
    head_dim: int | None = None,
) -> list[str]:
    """Rotates each head of V, so that the fit of `complexify` on `inputs` keeps the most, and the
    output projection back, in place; returns the names of V's layers.

    names      ends of the paths of V and of the output projection of the same attention

    Call it before `complexify`, whose other arguments it shares. The outputs stay equal to rounding.
    Raises ValueError, with the model as it was, if they do not: between V and the output projection
    some models have a norm or a gate.
    """
    batches = as_batches(inputs)
    if not batches:
        raise ValueError("align_values needs calibration batches; give some (inputs)")
    values = select(model, [names[0]])
    outputs = {name: f"{name.removesuffix(names[0])}{names[1]}" for name in values}
    layers = {name: model.get_submodule(name) for name in [*values, *outputs.values()]}
    check_replaceable(model, layers)
    pairs = pairs_of(model, values, pairing, head_dim)
    before = _outputs(model, outputs.values(), batches)
    moments = dict(calibrate(model, values, batches))
    with ExitStack() as undo:
        for name, value in values.items():
            output: Any = layers[outputs[name]]
            for parameter in (*value.parameters(), output.weight):
                undo.callback(parameter.copy_, parameter.clone())
            bases = best_bases(value.weight, moments[name][0], **pairs[name])
            for parameter in value.parameters():  # rows of the weight, and the bias
                heads = parameter.to(bases).unflatten(0, bases.shape[:2])
                rotated = torch.einsum("gjk,gk...->gj...", bases, heads)
                parameter.copy_(rotated.flatten(0, 1))
            heads = output.weight.to(bases).unflatten(1, (-1, bases.shape[-1]))
            # A head of V serves several heads of queries in a row.
            bases = bases.repeat_interleave(heads.shape[1] // len(bases), dim=0)
            output.weight.copy_(torch.einsum("hjk,dhk->dhj", bases, heads).flatten(1))
        for name, y in _outputs(model, outputs.values(), batches).items():
            if not (y - before[name]).norm() < TOLERANCE * before[name].norm():
                raise ValueError(
                    f"{name} cannot undo a rotation of V: something is between them; leave"
                    " align_values out for this model"
                )
        undo.pop_all()
    return list(values)


def best_bases(weight_ED: Tensor, moments: Tensor, pairing: Pairing, head_dim: int) -> Tensor:
    """The rotation of each head after which the fit to the outputs keeps the most, (heads, K, K).

    Of a pair of orthonormal channels p and q the fit keeps u C u^H, with u = p + i q and a Hermitian
    C. That is p C p + q C q, whose sum over the pairs is the same in each basis, and 2 p Im(C) q,
    whose sum is largest on the eigenvectors of i Im(C).
    """
    second_DD = moments[:-1, :-1].clone()
    second_DD.diagonal().add_(RIDGE * second_DD.diagonal().mean())
    xz = torch.complex(second_DD[:, 0::2], -second_DD[:, 1::2])  # E[x z^H] of complex inputs z
    yz = weight_ED.to(xz) @ xz
    kept_EE = yz @ torch.linalg.solve(xz[0::2] + 1j * xz[1::2], yz.mH)
    same = torch.eye(head_dim).to(second_DD)
    bases = []
    for start in range(0, len(kept_EE), head_dim):
        skew_KK = kept_EE[start : start + head_dim, start : start + head_dim].imag
        skew_KK = (skew_KK - skew_KK.T) / 2
        # Eigenvalues come in pairs of both signs, the positive ones last.
        vectors = torch.linalg.eigh(1j * skew_KK).eigenvectors[:, head_dim // 2 :].T
        basis = 2**0.5 * torch.stack((vectors.real, -vectors.imag))
        basis = basis.flatten(0, 1) if pairing == "half" else basis.transpose(0, 1).flatten(0, 1)
        # Where C is real, as of a head that is 0, all bases are equal and these no basis.
        bases.append(basis if torch.allclose(basis @ basis.T, same) else same)
    return torch.stack(bases)


def _outputs(model: nn.Module, names: Collection[str], batches: list[Inputs]) -> dict[str, Tensor]:
    """Name -> output of the layer on the first batch."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, layer: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
        seen[name] = output.float()

    run(model, batches[0], names, keep)
    return seen
