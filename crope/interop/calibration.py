"""Fits of complex-linear layers to the outputs of dense ones on calibration batches.

Shapes: T tokens that are not padding, D in-features, E out-features.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import groupby
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from crope.interop.dense import nearest
from crope.interop.fused import SplitLinear
from crope.model.complex_linear import ComplexLinear

Inputs = Mapping[str, Any] | Tensor
Batches = Inputs | Iterable[Inputs]
LayerInputs = dict[str, list[Tensor]]

RIDGE = 1e-4  # of the inputs' mean second moment: unseen directions are fitted in weights


@torch.no_grad()
def fit_outputs(new: ComplexLinear, layer: Any, moments: Tensor) -> float:
    """Sets `new` to the least-squares fit of the outputs of `layer`; returns what is kept of them.

    moments    (3, D+1, D+1): mean of (x, 1) (x, 1)^T for the inputs x that the new layer gets, of
               (d, 1) (x, 1)^T with the inputs d that the dense layer got for the same token, and of
               (d, 1) (d, 1)^T. With a bias, the outputs are fitted around their mean, which the bias
               then restores.

    With complex inputs z and outputs y, the weight w of y = w z is E[y z^H] E[z z^H]^-1. Both
    factors are complex-linear parts of real matrices, E[y x^T] and E[x x^T].
    """
    second = moments[:, :-1, :-1].clone()
    if layer.bias is not None:
        second -= moments[:, :-1, -1:] * moments[:, -1:, :-1]
    # To all three alike: where nothing is known, the fit is to the dense weight, not to 0.
    second.diagonal(dim1=1, dim2=2).add_(RIDGE * second[0].diagonal().mean())
    inputs_DD, cross_DD, dense_DD = second
    dense = layer.weight.to(moments)
    yx = dense @ cross_DD
    yz, zz = nearest(yx, new.pairing, new.head_dim), nearest(inputs_DD)
    w = torch.linalg.solve(torch.complex(zz.a, -zz.b), torch.complex(yz.a, -yz.b), left=False)
    new.a.copy_(w.real)
    new.b.copy_(-w.imag)
    fitted = new.weight.to(dense)
    if new.bias is not None:
        mean = dense @ moments[2, :-1, -1] - fitted @ moments[0, :-1, -1]
        new.bias.add_(mean.to(new.bias))
    # Of the outputs, y and y^: |y - y^|^2 = |y|^2 - 2 y y^ + |y^|^2.
    energy = (dense @ dense_DD * dense).sum()
    lost = energy - 2 * (fitted * yx).sum() + (fitted @ inputs_DD * fitted).sum()
    return 1 - (lost / energy).item()


def calibrate(
    model: nn.Module,
    names: Collection[str],
    batches: Sequence[Inputs],
    *,
    sequential: bool = False,
) -> Iterator[tuple[str, Tensor]]:
    """Name and moments of each layer (see `fit_outputs`).

    sequential   on the inputs that an attention gets once the layers of those before it are
                 replaced, which the caller does with each that it is given. It takes a pass over
                 the batches for each attention, up to it, and holds the dense inputs of all
    """
    groups = [list(names)]
    dense: list[LayerInputs] = []
    if sequential:
        dense = [layer_inputs(model, names, batch) for batch in batches]
        # Q, K and V of an attention together: none of them changes what the others get.
        attentions = groupby(names, key=lambda name: name.rpartition(".")[0])
        groups = [list(group) for _, group in attentions]
    for group in groups:
        sums: dict[str, Any] = dict.fromkeys(group, 0)
        for number, batch in enumerate(batches):
            for name, inputs in layer_inputs(model, group, batch, stop=sequential).items():
                originals = dense[number].pop(name) if sequential else inputs
                # A pass that stops sees the first call only of a layer that is called again.
                for x_TD, d_TD in zip(inputs, originals, strict=False):
                    sums[name] += _products(x_TD, d_TD)
        for name, total in sums.items():
            yield name, _mean(name, total).expand(3, -1, -1)


def _products(x_TD: Tensor, d_TD: Tensor) -> Tensor:
    """Sums over tokens of those products whose means are moments; the first only where all three
    are equal.
    """
    x_TD, same = _with_ones(x_TD), d_TD is x_TD
    if same:
        return (x_TD.T @ x_TD)[None]
    d_TD = _with_ones(d_TD)
    return torch.stack((x_TD.T @ x_TD, d_TD.T @ x_TD, d_TD.T @ d_TD))


def _with_ones(x_TD: Tensor) -> Tensor:
    device = "cpu" if x_TD.device.type == "mps" else x_TD.device  # Apple's GPUs have no float64
    x_TD = x_TD.to(device, torch.float64)
    return torch.cat((x_TD, x_TD.new_ones(len(x_TD), 1)), dim=1)


def _mean(name: str, sums: Tensor) -> Tensor:
    """Means of sums over tokens; raises where these cannot determine the weights."""
    tokens, width = sums.flatten()[-1], sums.shape[-1] - 1
    seen = sums[..., :-1, :-1]
    if tokens <= width or not seen.isfinite().all() or not seen.any():
        raise ValueError(
            f"{name}: {int(tokens)} tokens (inputs=) cannot determine the weights of {width}"
            " inputs; give some thousands more, whose activations are finite and not all 0"
        )
    return sums / tokens


class _Reached(Exception):
    """A pass need not go on."""


def layer_inputs(
    model: nn.Module, names: Collection[str], batch: Inputs, *, stop: bool = False
) -> LayerInputs:
    """Name -> inputs (T, D) of each call of the layer, without those of padding.

    stop     ends the pass when each layer was called
    """
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    seen: LayerInputs = {name: [] for name in names}
    source = rows = torch.empty(0)

    def keep(name: str, layer: nn.Module, args: Any, *rest: Any) -> None:
        nonlocal source, rows
        if args[0] is not source:  # one copy for Q, K and V; the model may go on in place
            source, rows = args[0], _real_tokens(name, args[0], mask)
        seen[name].append(rows)
        if stop and all(seen.values()):
            raise _Reached

    with suppress(_Reached):
        run(model, batch, names, keep)
    return seen


def _real_tokens(name: str, x: Tensor, mask: Any) -> Tensor:
    """A copy of the inputs (..., D) without those of padding, (T, D)."""
    x_TD = x.flatten(0, -2)
    if mask is None:
        return x_TD.clone()
    if not isinstance(mask, Tensor) or mask.numel() != len(x_TD):
        raise ValueError(
            f"{name}: its inputs are {tuple(x.shape)}, which the attention_mask does not fit; give a"
            " mask (batch, tokens) of these inputs, or batches without padding"
        )
    return x_TD[mask.to(x.device).flatten().bool()]


def as_batches(inputs: Batches) -> list[Inputs]:
    return [inputs] if isinstance(inputs, Mapping | Tensor) else list(inputs)


@torch.no_grad()
def run(model: nn.Module, batch: Inputs, names: Collection[str], hook: Callable[..., None]) -> None:
    """Runs the model on a batch; `hook(name, module, args, kwargs, output)` is called after each
    call of a named module. Raises where it was not called.
    """
    called = set()

    def note(name: str, *args: Any) -> None:
        called.add(name)
        hook(name, *args)

    with evaluation(model), ExitStack() as hooks:
        for name in names:
            parent = model.get_submodule(name.rpartition(".")[0])
            # The parts of a split layer share their input, and while dense are called as one.
            module = parent if isinstance(parent, SplitLinear) else model.get_submodule(name)
            handle = module.register_forward_hook(partial(note, name), with_kwargs=True)
            hooks.enter_context(handle)
        if isinstance(batch, Mapping):
            model(**batch)
        else:
            model(batch)
    missing = [name for name in names if name not in called]
    if missing:
        raise ValueError(f"{missing[0]} was not run; give inputs (inputs=) that reach it")


@torch.no_grad()
def mean_loss(model: nn.Module, batches: Sequence[Inputs]) -> float:
    """Mean of the losses that a model of `transformers` computes of batches with labels, in nats per
    token; NaN if there are none.
    """
    losses = []
    for batch in batches:
        if isinstance(batch, Mapping) and "labels" in batch:
            with evaluation(model):
                losses.append(model(**batch).loss.item())
    return fmean(losses) if losses else math.nan


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Without dropout, and without a cache of keys and values."""
    with ExitStack() as undo:
        for module in model.modules():
            undo.callback(setattr, module, "training", module.training)
            config: Any = getattr(module, "config", None)
            if getattr(config, "use_cache", False):
                undo.callback(setattr, config, "use_cache", True)
                config.use_cache = False
        model.eval()
        yield
