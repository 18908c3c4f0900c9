"""Whether the rotation of a complexified model commutes with the complex structure of its Q and K: a
measurement, which needs no knowledge of the model's code.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from crope.interop.calibration import Inputs, run
from crope.interop.fused import SplitLinear
from crope.model.complex_linear import ComplexLinear

# With the right pairs errors are below 6e-4, also in bfloat16; with others they grow with the angles
# of the rotation, from 0.02 (Llama 3) at two tokens to 0.7.
TOLERANCE = 1e-3


class Checked(NamedTuple):
    """One attention layer: how far its rotation is from commuting with the pairs of its Q and K."""

    name: str
    error: float
    commutes: bool


@torch.no_grad()
def check(model: nn.Module, inputs: Inputs) -> list[Checked]:
    """Measures for each attention layer of a complexified model whether its rotation commutes with
    the complex structure of Q and K.

    inputs    one batch of at least two tokens per sequence, a tensor or a mapping of the arguments
              of the model's forward; more tokens show wrong pairs of slow rotations better: give 64

    In each attention layer the outputs of Q, K and V are replaced by normal noise. If Q and K are
    both multiplied by i, then the attention is unchanged exactly if the code between projection and
    score commutes with i: (Jq)^T R (Jk) = q^T R k. `error` is the change of the attention's output
    relative to the change when Q alone is multiplied; Q and K are the layers in which the output is
    not affine. Norms with unequal gains in a pair do not commute.

    Raises ValueError if there is no ComplexLinear, if an attention has nothing to compare (Q and K
    not both complex-linear, a single token), or if the inputs do not reach it.
    """
    attentions: dict[str, list[Any]] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, ComplexLinear):
            path = name.rpartition(".")[0]
            if isinstance(model.get_submodule(path), SplitLinear):
                path = path.rpartition(".")[0]
            attentions.setdefault(path, []).append(layer)
    if not attentions:
        raise ValueError("the model has no ComplexLinear; call complexify before check")
    errors: dict[str, float] = {}

    def measure(name: str, attention: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        errors[name] = _rotation_error(name, attention, attentions[name], args, kwargs)

    run(model, inputs, attentions, measure)
    return [Checked(name, error, error < TOLERANCE) for name, error in errors.items()]


def _rotation_error(
    name: str, attention: nn.Module, layers: list[Any], args: Any, kwargs: Any
) -> float:
    """`Checked.error` of an attention layer, which was called with these arguments."""

    def output(factors: Mapping[Any, complex]) -> Tensor:
        with ExitStack() as hooks:
            for seed, layer in enumerate(layers):
                noise = partial(_noise, seed=seed, factor=factors.get(layer, 1))
                hooks.enter_context(layer.register_forward_hook(noise))
            # Not by a call, in which the hook that measures would run again.
            y = attention.forward(*args, **kwargs)
        # On the CPU: Apple's GPUs have no float64.
        return (y if isinstance(y, Tensor) else y[0]).cpu().double()

    before = output({})
    alone = {layer: (output({layer: 1j}) - before).norm() for layer in layers}
    scored = []
    for layer in layers:
        without, large = output({layer: 0}), output({layer: 64})
        # In V the output is affine, in Q and K it saturates.
        if (large - without - 64 * (before - without)).norm() > (before - without).norm():
            scored.append(layer)
    scored = scored or layers  # an attention without softmax is affine in each
    if len(scored) < 2 or min(alone.values()) == 0:
        raise ValueError(
            f"{name}: nothing to compare; make Q and K both complex-linear, but not the output"
            " projection, and give inputs of two tokens or more"
        )
    errors = []
    for first, second in combinations(scored, 2):
        errors.append((output({first: 1j, second: 1j}) - before).norm() / alone[first])
    return min(errors).item()


def _noise(layer: Any, args: Any, y: Tensor, *, seed: int, factor: complex) -> Tensor:
    """A forward hook: normal noise instead of the output, equal at each call, times a number."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(y.shape, generator=generator, device="cpu").to(y)
    first, second = noise.unflatten(-1, layer.pairs).unbind(y.dim())
    times_i = torch.stack((-second, first), dim=y.dim()).flatten(y.dim() - 1)
    return factor.real * noise + factor.imag * times_i
