"""Fits of complex-linear layers to the outputs of dense ones on calibration batches.

Shapes: T tokens that are not padding, D in-features, E out-features.
"""

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from crope.interop.dense import nearest
from crope.interop.fused import SplitLinear
from crope.model.complex_linear import ComplexLinear

Inputs = Mapping[str, Any] | Tensor
Batches = Inputs | Iterable[Inputs]

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
    energy = (dense @ dense_DD * dense).sum()
    lost = energy - 2 * (fitted * yx).sum() + (fitted @ inputs_DD * fitted).sum()
    return 1 - (lost / energy).item()


def of_the_dense_model(
    model: nn.Module, names: Collection[str], batches: Sequence[Inputs]
) -> Iterator[tuple[str, Tensor]]:
    """Name and moments of each layer (see `fit_outputs`), all on the inputs of the dense model."""
    for name, value in input_moments(model, names, batches).items():
        yield name, value.expand(3, -1, -1)


def block_by_block(
    model: nn.Module, names: Collection[str], batches: Sequence[Inputs]
) -> Iterator[tuple[str, Tensor]]:
    """Name and moments of each layer (see `fit_outputs`), on the inputs that it gets once the layers
    of the blocks before its own are replaced, which the caller does with each that it is given.

    As pruning and quantisation do it (GPTQ, SparseGPT): each block is run alone, on the outputs of
    the one before. Raises ValueError unless the blocks are a list, each called once in its order.
    """
    blocks = _blocks(model, names)
    calls = [_block_calls(model, blocks, batch) for batch in batches]
    dense = [arguments[blocks[0]][0] for arguments in calls]  # the hidden states of each batch
    ours = list(dense)
    for path in blocks:
        block = model.get_submodule(path)
        inside = [name for name in names if name.startswith(f"{path}.")]
        sums: dict[str, Any] = dict.fromkeys(inside, 0)
        for index, (batch, call) in enumerate(zip(batches, calls, strict=True)):
            _, *arguments = call[path]
            _, x = _run_block(model, block, inside, batch, ours[index], *arguments)
            dense[index], d = _run_block(model, block, inside, batch, dense[index], *arguments)
            for name in inside:
                products = (x[name].T @ x[name], d[name].T @ x[name], d[name].T @ d[name])
                sums[name] += torch.stack(products)
        for name in inside:
            yield name, _mean(name, sums[name])
        for index, call in enumerate(calls):
            ours[index], _ = _run_block(model, block, (), {}, ours[index], *call[path][1:])


def _run_block(
    model: nn.Module,
    block: nn.Module,
    names: Collection[str],
    batch: Inputs,
    hidden: Tensor,
    args: Any,
    kwargs: Any,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The block's hidden states, and the inputs of the named layers as `_real_tokens`."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, layer: nn.Module, inputs: Any, *rest: Any) -> None:
        seen[name] = _real_tokens(name, inputs[0], batch)

    output = run(model, names, keep, partial(block, hidden, *args, **kwargs))
    return _hidden(output), seen


BLOCK = re.compile(r"((?:.*?\.)?\d+)\.")  # the first item of a list on a layer's path


def _blocks(model: nn.Module, names: Iterable[str]) -> list[str]:
    """Paths of all blocks of the list that the layers are in."""
    found = [BLOCK.match(name) for name in names]
    lists = {match and match[1].rpartition(".")[0] for match in found}
    if len(lists) != 1 or None in lists:
        raise ValueError(f"the layers are not all in one list of blocks{NO_SEQUENCE}")
    [path] = lists
    children = model.get_submodule(str(path)).named_children()
    return [f"{path}.{name}".lstrip(".") for name, _ in children]


NO_SEQUENCE = ", which init='sequential' needs; take init='activations', or other names"


def _block_calls(model: nn.Module, blocks: list[str], batch: Inputs) -> dict[str, Any]:
    """Path -> first argument, others and keywords of each block in a pass of the dense model."""
    calls: dict[str, Any] = {}
    previous: Any = None

    def note(name: str, block: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        nonlocal previous
        first = args[0] if args else None
        if name in calls or first is None or (calls and first is not previous):
            raise ValueError(f"{name} does not get the output of the block before{NO_SEQUENCE}")
        # The first block's inputs are kept; those of the others are computed again.
        calls[name] = (None if calls else first, args[1:], kwargs)
        previous = _hidden(output)

    run(model, blocks, note, partial(call, model, batch))
    return calls


def _hidden(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


def input_moments(
    model: nn.Module, names: Collection[str], batches: Sequence[Inputs]
) -> dict[str, Tensor]:
    """Name -> mean of (x, 1) (x, 1)^T over the inputs x of these layers, (D+1, D+1), float64.

    Positions that the `attention_mask` of a batch marks as padding are left out.
    """
    sums: dict[str, Any] = {}

    def add(batch: Inputs, name: str, layer: nn.Module, args: Any, *rest: Any) -> None:
        x = _real_tokens(name, args[0], batch)
        sums[name] = sums.get(name, 0) + x.T @ x

    for batch in batches:
        run(model, names, partial(add, batch), partial(call, model, batch))
    return {name: _mean(name, value) for name, value in sums.items()}


def _mean(name: str, sums: Tensor) -> Tensor:
    """Means of sums over tokens; raises where these cannot determine the weights."""
    tokens, width = sums[..., -1, -1].max(), sums.shape[-1] - 1
    seen = sums[..., :-1, :-1]
    if tokens <= width or not seen.isfinite().all() or not seen.any():
        raise ValueError(
            f"{name}: {int(tokens)} tokens (inputs=) cannot determine the weights of {width}"
            " inputs; give some thousands more, whose activations are finite and not all 0"
        )
    return sums / tokens


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


def as_batches(inputs: Batches) -> list[Inputs]:
    return [inputs] if isinstance(inputs, Mapping | Tensor) else list(inputs)


def call(model: nn.Module, batch: Inputs) -> Any:
    return model(**batch) if isinstance(batch, Mapping) else model(batch)


@torch.no_grad()
def run(
    model: nn.Module, names: Collection[str], hook: Callable[..., None], forward: Callable[[], Any]
) -> Any:
    """What `forward` returns; `hook(name, module, args, kwargs, output)` is called after each call
    of a named module of the model. Raises where it was not called.
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
        output = forward()
    missing = [name for name in names if name not in called]
    if missing:
        raise ValueError(f"{missing[0]} was not run; give inputs (inputs=) that reach it")
    return output


@torch.no_grad()
def next_token_loss(model: Any, batches: Sequence[Inputs]) -> float:
    """Mean of the batches' losses in nats per next token that is not padding; NaN for a model whose
    forward takes no `labels`.
    """
    if "labels" not in inspect.signature(model.forward).parameters:
        return math.nan
    losses = []
    for batch in batches:
        arguments = dict(batch) if isinstance(batch, Mapping) else {"input_ids": batch}
        labels, mask = arguments["input_ids"], arguments.get("attention_mask")
        if mask is not None:
            labels = labels.masked_fill(mask == 0, -100)  # as all models of transformers have it
        with evaluation(model):
            losses.append(model(**(arguments | {"labels": labels})).loss.item())
    return fmean(losses)


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
