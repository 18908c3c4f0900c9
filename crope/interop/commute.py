"""A measurement of whether a converted model's rotation commutes with the complex structure of its
Q and K, without knowing the model's code.
"""

import copy
import math
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from crope.model.complex_linear import ComplexLinear

# With the right pairs errors are below 6e-4, also in bfloat16; with others they grow with the angles
# of the rotation, from 0.02 (Llama 3) at two tokens to 0.7.
TOLERANCE = 1e-3


class Checked(NamedTuple):
    """How far the rotation of one attention layer is from commuting with the pairs of Q and K."""

    name: str
    error: float
    commutes: bool


@torch.no_grad()
def check(model: nn.Module, inputs: Mapping[str, Any] | Tensor) -> list[Checked]:
    """Measures for each attention layer of a converted model whether its rotation commutes with the
    complex structure of Q and K.

    inputs    one batch, a tensor or the arguments of the model's forward; 64 tokens or more show
              wrong pairs of slow rotations better

    Q and K of each attention layer must be complex-linear. Normal noise replaces the outputs of Q,
    K and V. Multiplying both Q and K by i leaves the attention unchanged exactly if the code
    between projection and score commutes with i: (Jq)^T R (Jk) = q^T R k. `error` is the change of
    the attention's output relative to the change when Q alone is multiplied. Norms with unequal
    gains in a pair do not commute.

    The error is NaN where the inputs do not reach an attention layer. Raises ValueError for a
    single complex-linear layer in an attention, a single token, or a model that was not converted.
    """
    errors: dict[str, float] = {}

    def measure(name: str, attention: nn.Module, args: Any, kwargs: Any) -> None:
        # A copy, in which dropout is off; noise replaces all that the model's dropout changes.
        errors[name] = _rotation_error(name, copy.deepcopy(attention).eval(), args, kwargs)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if any(isinstance(layer, ComplexLinear) for layer in module.children()):
                errors[name] = math.nan
                hook = partial(measure, name)
                hooks.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))
        if isinstance(inputs, Mapping):
            model(**inputs)
        else:
            model(inputs)
    if not errors:
        raise ValueError("the model has no ComplexLinear; call complexify before check")
    return [Checked(name, error, error < TOLERANCE) for name, error in errors.items()]


def _rotation_error(name: str, attention: nn.Module, args: Any, kwargs: Any) -> float:
    """Returns `Checked.error` of an attention layer called with these arguments."""
    layers = [layer for layer in attention.children() if isinstance(layer, ComplexLinear)]

    def output(factors: Mapping[Any, complex]) -> Tensor:
        with ExitStack() as hooks:
            for seed, layer in enumerate(layers):
                noise = partial(_noise, seed=seed, factor=factors.get(layer, 1))
                hooks.enter_context(layer.register_forward_hook(noise))
            # Copies, because each call adds to a cache of keys and values. Not by a call of the
            # module, in which the hook that measures would run again.
            y = attention.forward(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        # On the CPU: Apple's GPUs have no float64.
        return (y if isinstance(y, Tensor) else y[0]).cpu().double()

    before = output({})
    alone = {layer: (output({layer: 1j}) - before).norm() for layer in layers}
    if len(layers) < 2 or min(alone.values()) == 0:
        raise ValueError(
            f"{name}: nothing to compare. Make Q and K both complex-linear, and give inputs of two"
            " tokens or more"
        )
    # Of Q, K and V, the pair Q and K changes the output least.
    return min(
        (output({first: 1j, second: 1j}) - before).norm().item() / alone[first].item()
        for first, second in combinations(layers, 2)
    )


def _noise(layer: Any, args: Any, y: Tensor, *, seed: int, factor: complex) -> Tensor:
    """Returns normal noise in place of a layer's output, equal at each call, times `factor`."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(y.shape, generator=generator, device="cpu").to(y)
    first, second = noise.unflatten(-1, layer.pairs).unbind(y.dim())
    times_i = torch.stack((-second, first), dim=y.dim()).flatten(y.dim() - 1)
    return factor.real * noise + factor.imag * times_i
