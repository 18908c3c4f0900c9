"""CRoPE in a model that you already have: its Q, K and V layers made complex-linear in place, and
made dense again.

Any `torch.nn.Module` whose projections are separate `nn.Linear` layers, such as Llama, Mistral,
Qwen2, Gemma and GPT-J in `transformers` (docs/own-model.md). Needs no other package than torch.
Errors are ValueErrors of one line, raised before anything is changed.

Shapes: D in-features, E out-features, K width of a head.
"""

import logging
import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from statistics import fmean
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from crope.interop.calibration import (
    Batches,
    as_batches,
    calibrate,
    fit_outputs,
    mean_loss,
)
from crope.interop.dense import write_dense_checkpoints
from crope.interop.fused import FUSED_NAMES, SplitLinear, separate_layers
from crope.interop.layers import (
    Pairing,
    check_replaceable,
    check_untouched,
    pairs_of,
    select,
)
from crope.interop.stored import replace
from crope.model.complex_linear import ComplexLinear
from crope.model.projections import StructuredLinear, dense_linear

LOG = logging.getLogger("crope.adapt")


class Replaced(NamedTuple):
    """One replaced layer: its name, its parameters before and after, and what is kept of it.

    kept    1 - |W - M|^2 / |W|^2 of the dense weight W and the complex-linear M; the same of the
            outputs on the calibration inputs, if there are any; 0 for "fresh"
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
    init: Literal["nearest", "activations", "sequential", "fresh"] = "nearest",
    inputs: Batches = (),
    dry_run: bool = False,
) -> list[Replaced]:
    """Replaces `nn.Linear` layers by a `ComplexLinear` of half the weights, in place.

    names      layers whose path ends with one of these, whole parts of it ("q_proj", a full path);
               a single string is a regular expression for the full path
    pairing    of the model's rotation: "half" (Llama), "interleaved" (GPT-J); None: from PAIRINGS
    head_dim   K; None: `head_dim` of the attention layer or of its configuration
    init       nearest: least squares (Eq. 30's part of each 2x2 block), for a trained model;
               activations: least squares of the outputs on `inputs`; sequential: the same, but
               each attention on what those already converted give it; fresh: normal, with the
               standard deviation of the replaced weight (a zero weight stays zero), biases 0
    inputs     for "activations" and "sequential": a batch or several, each a tensor or a mapping of
               the arguments of the model's forward; more tokens than D, padding marked by an
               `attention_mask`
    dry_run    replaces nothing and returns what would be replaced; of `inputs` with `labels`, the
               loss before and after is logged too

    What is kept of trained weights is logged as a warning: the model is worse until it is trained on.
    Call it before optimisers and wrappers (DistributedDataParallel) are made: they would keep the
    old weights. Keeps dtype, device and requires_grad of each parameter. Biases are kept, except
    that fits to outputs add the mean output that the projection loses.
    Raises for what docs/own-model.md lists under "What is refused", with the name of the layer.
    """
    if init not in INITS:
        raise ValueError(f"init={init!r}: must be one of {', '.join(INITS)}")
    layers = select(model, names)
    check_replaceable(model, layers)
    pairs = pairs_of(model, layers, pairing, head_dim)
    batches = as_batches(inputs)
    fits: Iterable[tuple[str, Any]] = dict.fromkeys(layers).items()
    if INITS[init] is fit_outputs:
        if not batches:
            raise ValueError(f"init={init!r} needs calibration batches; give some (inputs=)")
        fits = calibrate(model, layers, batches, sequential=init == "sequential")
    replaced = []
    losses = [mean_loss(model, batches)] if dry_run else []
    with ExitStack() as undo:
        # One at a time: what a "sequential" layer gets depends on those that are replaced by then.
        for name, moments in fits:
            layer = layers[name]
            new = ComplexLinear.from_linear(layer, **pairs[name])
            kept = INITS[init](new, layer, moments)
            undo.callback(model.set_submodule, name, layer)
            replace(model, name, new.train(layer.training))
            replaced.append(Replaced(name, _size(layer), _size(new), kept))
        if losses:
            losses.append(mean_loss(model, batches))
        if not dry_run:
            undo.pop_all()
    _report(replaced, losses)
    return replaced


def _report(replaced: list[Replaced], losses: list[float]) -> None:
    """Logs what is kept of trained weights, unless it is nearly everything, and the losses."""
    mean = fmean(layer.kept for layer in replaced)
    worst = min(replaced, key=lambda layer: layer.kept)
    if 0 < mean < 0.99:  # 0: fresh values; 1: weights that were complex-linear
        LOG.warning(
            f"{len(replaced)} complex-linear layers keep {mean:.2f} of the dense ones in the mean,"
            f" {worst.kept:.2f} at worst ({worst.name}); train the model on before it is used"
        )
    if losses and not math.isnan(losses[0]):
        before, after = losses
        LOG.warning(f"loss on labels: {before:.3f} nats per token before, {after:.3f} after")


def split_qkv(model: nn.Module) -> list[str]:
    """Separates the layers that hold Q, K and V together, in place; returns their names.

    Of GPT-2, GPT-NeoX (Pythia), Phi-3 and Falcon in `transformers`; the outputs stay the same to the
    last bit. The parts are named q_proj, k_proj and v_proj, below the fused layer's name.
    `save_pretrained` writes the fused layer, and `merge` puts it back. Raises ValueError if the model
    has no such layer, or a quantised or adapted one.
    """
    names = separate_layers(model)
    if not names:
        raise ValueError(
            f"no layer of Q, K and V is known here; it splits {', '.join(FUSED_NAMES)}"
        )
    write_dense_checkpoints()
    return names


def merge(model: nn.Module) -> list[str]:
    """Replaces every ComplexLinear and StructuredLinear by the `nn.Linear` with its dense weight, in
    place; returns the names.

    The model then has its original architecture, fused layers too, and equal outputs, and every
    stack saves and serves it. For a merged copy, merge `copy.deepcopy(model)`. Raises if one of
    these layers has hooks or adapters.
    """
    layers: dict[str, Any] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, ComplexLinear | StructuredLinear):
            check_untouched(name, layer)
            layers[name] = layer
        if isinstance(layer, SplitLinear):
            layer.check_parts(name)
    for name, layer in layers.items():
        model.set_submodule(name, dense_linear(layer).train(layer.training))
    # A layer that split_qkv has separated is one again when its parts are dense.
    for name, split in list(model.named_modules()):
        if isinstance(split, SplitLinear):
            model.set_submodule(name, split.as_fused())
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


# By name: what sets the values of the layer nearest to a dense one and returns what is kept of that.
INITS: dict[str, Callable[[ComplexLinear, Any, Any], float]] = {
    "nearest": _share_kept,
    "activations": fit_outputs,
    "sequential": fit_outputs,
    "fresh": _draw,
}
