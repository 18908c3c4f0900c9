"""CRoPE in a model that you already have: its Q, K and V layers made complex-linear in place, and
made dense again.

Any `torch.nn.Module` whose projections are separate `nn.Linear` layers, such as Llama, Mistral,
Qwen2, Gemma and GPT-J in `transformers` (docs/own-model.md). Needs no other package than torch.
Errors are ValueErrors of one line, raised before anything is changed.

Shapes: D in-features, E out-features, K width of a head.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from crope.interop.calibration import Batches, fit_outputs, input_moments
from crope.interop.layers import (
    Pairing,
    check_finite,
    check_replaceable,
    check_untouched,
    pairs_of,
    select,
)
from crope.interop.stored import replace
from crope.model.complex_linear import ComplexLinear
from crope.model.projections import StructuredLinear, dense_linear


class Replaced(NamedTuple):
    """One replaced layer: its name, its parameters before and after, and what is kept of it.

    kept    1 - |W - M|^2 / |W|^2 of the dense weight W and the complex-linear M; the same of the
            outputs on the calibration inputs for init="activations"; 0 for "fresh"
    """

    name: str
    before: int
    after: int
    kept: float


def complexify(
    model: nn.Module,
    *,
    names: Iterable[str] | str = ("q_proj", "k_proj", "v_proj"),
    pairing: Pairing | None = None,
    head_dim: int | None = None,
    init: Literal["nearest", "activations", "fresh"] = "nearest",
    inputs: Batches = (),
    dry_run: bool = False,
) -> list[Replaced]:
    """Replaces `nn.Linear` layers by a `ComplexLinear` of half the weights, in place.

    names      layers whose path ends with one of these, whole parts of it ("q_proj", a full path);
               a single string is a regular expression for the full path
    pairing    of the model's rotation: "half" (Llama), "interleaved" (GPT-J); None: from PAIRINGS.
               For a model that is not listed there it has to be named, and `check` verifies it
    head_dim   K; None: `head_dim` of the attention layer or of its configuration
    init       nearest: least squares (Eq. 30's part of each 2x2 block), for a trained model;
               activations: least squares of the outputs on `inputs`; fresh: normal, with the
               standard deviation of the replaced weight (a zero weight stays zero), biases 0
    inputs     for "activations": a batch or several, each a tensor or a mapping of the arguments of
               the model's forward; more tokens than D, padding marked by an `attention_mask`
    dry_run    replaces nothing and returns what would be replaced

    Call it before optimisers and wrappers (DistributedDataParallel) are made: they would keep the
    old weights. Keeps dtype, device and requires_grad of each parameter. Biases are kept, except
    that "activations" adds the mean output that the projection loses. Norms between projection and
    rotation (Qwen3's) keep their gains: only with equal gains in a pair does the rotation still
    commute with the projection.

    Raises for what docs/own-model.md lists under "What is refused", with the name of the layer.
    """
    if init not in INITS:
        raise ValueError(f"init={init!r}: must be one of {', '.join(INITS)}")
    layers = select(model, names)
    check_replaceable(model, layers)
    check_finite(layers)
    pairs = pairs_of(model, layers, pairing, head_dim)
    moments: Any = input_moments(model, layers, inputs) if init == "activations" else {}
    replaced = []
    with ExitStack() as undo:
        for name, layer in layers.items():
            new = ComplexLinear.from_linear(layer, **pairs[name])
            kept = INITS[init](new, layer, moments.pop(name, None))
            undo.callback(model.set_submodule, name, layer)
            replace(model, name, new.train(layer.training))
            replaced.append(Replaced(name, _size(layer), _size(new), kept))
        if not dry_run:
            undo.pop_all()
    return replaced


def merge(model: nn.Module) -> list[str]:
    """Replaces every ComplexLinear and StructuredLinear by the `nn.Linear` with its dense weight, in
    place; returns the names.

    The model then has its original architecture and equal outputs, and every stack saves and serves
    it. For a merged copy, merge `copy.deepcopy(model)`. Raises if one of these layers has hooks or
    adapters, or is of a class that this package does not know.
    """
    layers: dict[str, Any] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, ComplexLinear | StructuredLinear):
            check_untouched(name, layer)
            # A subclass of another package may compute something else than its dense weight.
            if not type(layer).__module__.startswith("crope."):
                raise ValueError(
                    f"{name} is a {type(layer).__name__}; make it a ComplexLinear first"
                )
            layers[name] = layer
    for name, layer in layers.items():
        model.set_submodule(name, dense_linear(layer).train(layer.training))
    return list(layers)


def _size(layer: nn.Module) -> int:
    return sum(value.numel() for value in layer.parameters())


@torch.no_grad()
def _share_kept(new: ComplexLinear, layer: Any, moments: None) -> float:
    """1 - |W - M|^2 / |W|^2; `new` is the nearest layer already."""
    dense = layer.weight.float()
    if dense.is_meta:
        return float("nan")
    lost = (dense - new.weight.float()).square().sum() / dense.square().sum()
    return 1 - lost.item()


@torch.no_grad()
def _draw(new: ComplexLinear, layer: Any, moments: None) -> float:
    """Normal values with the standard deviation of the dense weight."""
    for part in (new.a, new.b):
        part.normal_().mul_(layer.weight.float().std())
    if new.bias is not None:
        new.bias.zero_()
    return 0.0


# Sets the values of the layer nearest to a dense one; returns what is kept of that.
INITS: dict[str, Callable[[ComplexLinear, Any, Any], float]] = {
    "nearest": _share_kept,
    "activations": fit_outputs,
    "fresh": _draw,
}
