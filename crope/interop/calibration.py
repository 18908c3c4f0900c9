"""Fits of complex-linear layers to the outputs of dense ones on calibration batches.

Shapes: T tokens that are not padding, D in-features, E out-features.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from crope.interop.dense import nearest
from crope.model.complex_linear import ComplexLinear

Inputs = Mapping[str, Any] | Tensor
Batches = Inputs | Iterable[Inputs]

RIDGE = 1e-4  # of the inputs' mean second moment: unseen directions are fitted in weights


@torch.no_grad()
def fit_outputs(new: ComplexLinear, layer: Any, moments: Tensor) -> float:
    """Sets `new` to the least-squares fit of the outputs of `layer`; returns what is kept of them.

    moments    of `input_moments`. With a bias, the outputs are fitted around their mean, which the
               bias then restores.

    With complex inputs z and outputs y, the weight w of y = w z is E[y z^H] E[z z^H]^-1. Both
    factors are complex-linear parts of real matrices, E[y x^T] and E[x x^T].
    """
    mean_D, moments_DD = moments[:-1, -1], moments[:-1, :-1].clone()
    if layer.bias is not None:
        moments_DD -= mean_D.outer(mean_D)
    moments_DD.diagonal().add_(RIDGE * moments_DD.diagonal().mean())
    dense = layer.weight.to(moments)
    yz = nearest(dense @ moments_DD, new.pairing, new.head_dim)
    zz = nearest(moments_DD)
    w = torch.linalg.solve(torch.complex(zz.a, -zz.b), torch.complex(yz.a, -yz.b), left=False)
    new.a.copy_(w.real)
    new.b.copy_(-w.imag)
    lost = dense - new.weight.to(dense)
    if new.bias is not None:
        new.bias.add_((lost @ mean_D).to(new.bias))
    return 1 - (_energy(lost, moments_DD) / _energy(dense, moments_DD)).item()


def _energy(weight: Tensor, moments_DD: Tensor) -> Tensor:
    """Mean squared norm of the outputs."""
    return (weight @ moments_DD * weight).sum()


def input_moments(model: nn.Module, names: Collection[str], inputs: Batches) -> dict[str, Tensor]:
    """Name -> mean of (x, 1) (x, 1)^T over the inputs x of these layers, (D+1, D+1), float64.

    Positions that the `attention_mask` of a batch marks as padding are left out.
    """
    sums: dict[str, Tensor] = {}

    def add(batch: Inputs, name: str, layer: nn.Module, args: Any, *rest: Any) -> None:
        x = _real_tokens(name, args[0], batch)
        sums[name] = sums.get(name, 0) + x.T @ x

    for batch in [inputs] if isinstance(inputs, Mapping | Tensor) else inputs:
        run(model, batch, names, partial(add, batch))
    if not sums:
        raise ValueError("there is no calibration batch; give some (inputs=)")
    for name in names:
        tokens, width = sums[name][-1, -1], len(sums[name]) - 1
        seen = sums[name][:-1, :-1]
        if tokens <= width or not seen.isfinite().all() or not seen.any():
            raise ValueError(
                f"{name}: {int(tokens)} tokens (inputs=) cannot determine the weights of {width}"
                " inputs; give some thousands more, whose activations are finite and not all 0"
            )
    return {name: value / value[-1, -1] for name, value in sums.items()}


def _real_tokens(name: str, x: Tensor, batch: Inputs) -> Tensor:
    """The inputs without those of padding, and a 1: (T, D+1), float64."""
    rows = x.flatten(0, -2)
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if mask is not None:
        shape = tuple(getattr(mask, "shape", ()))
        if len(shape) != 2 or x.shape[:-1] not in (shape, (shape[0] * shape[1],)):
            raise ValueError(
                f"{name}: its inputs are {tuple(x.shape)}, the attention_mask is {shape}; give a"
                " mask (batch, tokens) of these inputs, or batches without padding"
            )
        rows = rows[mask.to(x.device).flatten().bool()]
    device = "cpu" if x.device.type == "mps" else x.device  # Apple's GPUs have no float64
    rows = rows.to(device, torch.float64)
    return torch.cat((rows, rows.new_ones(len(rows), 1)), dim=1)


@torch.no_grad()
def run(model: nn.Module, batch: Inputs, names: Collection[str], hook: Callable[..., None]) -> None:
    """Runs the model on a batch; `hook(name, module, args, kwargs, output)` is called after each
    call of a named module. Raises where it was not called.
    """
    called = set()

    def call(name: str, *args: Any) -> None:
        called.add(name)
        hook(name, *args)

    with evaluation(model), ExitStack() as hooks:
        for name in names:
            module = model.get_submodule(name)
            handle = module.register_forward_hook(partial(call, name), with_kwargs=True)
            hooks.enter_context(handle)
        if isinstance(batch, Mapping):
            model(**batch)
        else:
            model(batch)
    missing = [name for name in names if name not in called]
    if missing:
        raise ValueError(f"{missing[0]} was not run; give inputs (inputs=) that reach it")


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
