"""Another basis of V's heads, in which less of V is lost by a complex-linear layer.

The attention mixes the tokens of V and no channels, and the output projection follows: any rotation
of a head's channels can be undone there, so that the model stays the same.

Shapes: D in-features, E outputs of V, K width of a head.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from crope.interop.calibration import RIDGE, Batches, Inputs, as_batches, calibrate, layer_inputs
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
) -> None:
    """Rotates each head of V, so that the fit of `complexify` on `inputs` keeps the most, and the
    output projection back, in place.

    names      ends of the paths of V and of the output projection of the same attention

    Call it before `complexify`, whose other arguments it shares. The outputs stay equal to rounding.
    Raises ValueError, with the model as it was, if they do not: between V and the output projection
    some models have a norm or a gate.
    """
    batches = as_batches(inputs)
    if not batches:
        raise ValueError("align_values needs calibration batches; give some (inputs=)")
    values = select(model, [names[0]])
    paths = {name: f"{name.removesuffix(names[0])}{names[1]}" for name in values}
    found = select(model, [names[1]])
    if missing := sorted(set(paths.values()) - set(found)):
        raise ValueError(f"{missing[0]} is missing; name the output projection (names=...)")
    outputs = {path: found[path] for path in paths.values()}
    layers = values | outputs
    check_replaceable(model, layers)
    pairs = pairs_of(model, values, pairing, head_dim)
    before = _outputs(model, outputs, batches[0])
    originals = copy.deepcopy(layers)
    # All of them first: an error in one must leave the model as it was.
    for name, moments in dict(calibrate(model, values, batches)).items():
        value, output = values[name], outputs[paths[name]]
        heads = best_rotations(value.weight, moments[0], **pairs[name])
        rotation_EE = torch.block_diag(*heads)
        for parameter in value.parameters():  # the bias too
            parameter.copy_(rotation_EE @ parameter.to(heads))
        # A head of V serves several heads of queries in a row.
        shared = output.in_features // value.out_features
        back = torch.block_diag(*heads.mT.repeat_interleave(shared, dim=0))
        output.weight.copy_(output.weight.to(heads) @ back)
    for path, y in _outputs(model, outputs, batches[0]).items():
        if not (y - before[path]).norm() < TOLERANCE * before[path].norm():
            for name, layer in originals.items():
                layers[name].load_state_dict(layer.state_dict())
            raise ValueError(
                f"{path} cannot undo a rotation of V: something is between them; leave"
                " align_values out for this model"
            )


def best_rotations(
    weight_ED: Tensor, moments: Tensor, *, pairing: Pairing, head_dim: int
) -> Tensor:
    """The rotation of each head after which the fit to the outputs keeps the most, (heads, K, K).

    Of a pair of orthonormal channels p and q the fit keeps u C u^H, with u = p + i q and a Hermitian
    C. That is p C p + q C q, whose sum over the pairs is the same in each basis, and 2 p Im(C) q,
    whose sum is largest on the eigenvectors of i Im(C).
    """
    second_DD = moments[:-1, :-1].clone()
    second_DD.diagonal().add_(RIDGE * second_DD.diagonal().mean())
    xz = torch.complex(second_DD[:, 0::2], -second_DD[:, 1::2])  # E[x z^H] of complex inputs z
    yz = weight_ED.to(xz) @ xz
    kept_EE = (yz @ torch.linalg.solve(xz[0::2] + 1j * xz[1::2], yz.mH)).imag
    rotations = []
    for start in range(0, len(kept_EE), head_dim):
        skew_KK = kept_EE[start : start + head_dim, start : start + head_dim]
        # Eigenvalues come in pairs of both signs, the positive ones last.
        vectors = torch.linalg.eigh(1j * (skew_KK - skew_KK.T)).eigenvectors[:, head_dim // 2 :].T
        basis = 2**0.5 * torch.stack((vectors.real, -vectors.imag))
        rotations.append(basis.transpose(0, int(pairing == "interleaved")).flatten(0, 1))
    return torch.stack(rotations)


def _outputs(model: nn.Module, layers: Mapping[str, Any], batch: Inputs) -> dict[str, Tensor]:
    """Name -> outputs of the layer on a batch."""
    inputs = layer_inputs(model, layers, batch)
    return {name: layer(torch.cat(inputs[name])).float() for name, layer in layers.items()}
