"""CRoPE in a model that you already have: its Q, K and V layers made complex-linear in place, and
dense again.

Any `torch.nn.Module` whose projections are separate `nn.Linear` layers, such as Llama, Mistral,
Qwen2, Gemma and GPT-J in `transformers` (docs/own-model.md).

Shapes: D in-features, E out-features, K width of a head.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from crope.model.complex_linear import ComplexLinear
from crope.model.projections import StructuredLinear, dense_linear

FUSED = ("query_key_value", "qkv_proj", "c_attn", "Wqkv", "qkv")  # one layer for Q, K and V


class Replaced(NamedTuple):
    """One replaced layer: its name in the model, and its parameters before and after."""

    name: str
    before: int
    after: int


def complexify(
    model: nn.Module,
    *,
    names: Sequence[str] = ("q_proj", "k_proj", "v_proj"),
    pairing: Literal["interleaved", "half"] = "half",
    head_dim: int | None = None,
    init: Literal["nearest", "fresh"] = "nearest",
) -> list[Replaced]:
    """Replaces every `nn.Linear` with one of `names` by a `ComplexLinear` of half its weights, in
    place.

    pairing    of the model's rotation: "half" (Llama, GPT-NeoX) or "interleaved" (GPT-J, Cohere)
    head_dim   K; None: `head_dim` of the attention layer or of its configuration
    init       nearest: least squares (Eq. 30's part of each 2x2 block), for a trained model; fresh:
               normal, with the standard deviation of the replaced weight, biases 0

    Keeps dtype, device, biases and requires_grad. Norms between projection and rotation (Qwen3's)
    keep their gains: only with equal gains in a pair does the rotation still commute with the
    projection. Raises ValueError, before anything is replaced, for a name without a layer, a layer
    that is no plain `nn.Linear` (quantised, adapted), a shared weight, a width that heads do not
    fill, a rotation of other pairs or, half-split, of a part of each head.
    """
    if init not in ("nearest", "fresh") or isinstance(names, str):
        raise ValueError(
            f"init={init!r}, names={names!r}: init must be 'nearest' or 'fresh', names a sequence"
        )
    found = {
        f"{path}.{child}".lstrip("."): (parent, child)
        for path, parent in model.named_modules()
        for child in names
        if parent._modules.get(child)
        is not None  # getattr would also find those of a wrapped model
    }
    if absent := [child for child in names if child not in {child for _, child in found.values()}]:
        raise ValueError(_no_layer(model, absent))
    owners = Counter(id(value) for _, value in model.named_parameters(remove_duplicate=False))
    widths = {}
    for name, (parent, child) in found.items():
        layer, config = (
            getattr(parent, child),
            getattr(parent, "config", getattr(model, "config", None)),
        )
        plain = type(layer) is nn.Linear and type(layer.weight) is nn.Parameter
        if not plain or not layer.weight.is_floating_point() or layer.weight.itemsize < 2:
            raise ValueError(
                f"{name} is a {type(layer).__name__}, not an nn.Linear with a plain floating-point weight; complexify"
                " the model once, before it is quantised or gets adapters"
            )
        if owners[id(layer.weight)] > 1:
            raise ValueError(
                f"{name} shares its weight with another layer; give each a weight of its own first"
            )
        widths[name] = _head_dim(name, parent, layer, config, head_dim)
        _check_rotation(name, parent, config, widths[name], pairing)
    replaced = []
    for name, (parent, child) in found.items():
        layer = getattr(parent, child)
        new = ComplexLinear.from_linear(layer, pairing=pairing, head_dim=widths[name])
        if init == "fresh":
            with torch.no_grad():
                for part in (new.a, new.b):
                    part.normal_().mul_(layer.weight.float().std())
                if new.bias is not None:
                    new.bias.zero_()
        new.train(layer.training)
        setattr(parent, child, new)
        replaced.append(
            Replaced(
                name, *(sum(value.numel() for value in one.parameters()) for one in (layer, new))
            )
        )
    return replaced


def merge(model: nn.Module) -> list[str]:
    """Replaces every ComplexLinear by the `nn.Linear` with the dense weight of Eq. 30, in place;
    returns the names.

    The model then has its original architecture and equal outputs, and every stack saves and serves
    it.
    """
    merged = []
    for path, parent in list(model.named_modules()):
        for child, layer in list(parent.named_children()):
            if isinstance(layer, ComplexLinear | StructuredLinear):
                setattr(parent, child, dense_linear(layer).train(layer.training))
                merged.append(f"{path}.{child}".lstrip("."))
    return merged


def _head_dim(
    name: str, parent: nn.Module, layer: nn.Linear, config: Any, head_dim: int | None
) -> int:
    own = (
        getattr(parent, "qk_head_dim", None)
        or getattr(parent, "head_dim", None)
        or getattr(config, "head_dim", None)
    )
    heads, hidden = (
        getattr(config, "num_attention_heads", None),
        getattr(config, "hidden_size", None),
    )
    if own is None and isinstance(heads, int) and isinstance(hidden, int):
        own = hidden // heads
    width = own if head_dim is None else head_dim
    if width is None or width != (own or width):
        raise ValueError(
            f"{name}: the width of a head is {own or 'unknown'}; name it (head_dim=...)"
        )
    if width < 2 or width % 2 or layer.out_features % width or layer.in_features % 2:
        raise ValueError(
            f"{name}: {layer.in_features} inputs and {layer.out_features} outputs do not divide into channel pairs of"
            f" heads of width {width}; head_dim must be even and divide the outputs, and the inputs must be even. Leave"
            " a layer that has no such heads out of `names`"
        )
    return int(width)


def _check_rotation(name: str, parent: nn.Module, config: Any, head_dim: int, pairing: str) -> None:
    """By the function that rotates in the code of the attention layer, as `transformers` names it,
    and its settings.
    """
    code = vars(sys.modules.get(type(parent).__module__, sys))
    turns = [
        turn
        for key, turn in code.items()
        if key.startswith("rotate_half") or key == "rotate_every_two"
    ]
    partners = {
        abs(int(turn(torch.arange(4.0).view(1, 1, 1, 4)).flatten()[0])) for turn in turns
    }  # of channel 0 of 4
    for wrong, partner, right in (("half", 1, "interleaved"), ("interleaved", 2, "half")):
        if pairing == wrong and partners == {partner}:
            raise ValueError(
                f"{name}: the rotation of this model pairs channels otherwise; use pairing={right!r}"
            )
    rope = (
        getattr(config, "rope_parameters", None) or {}
    )  # may hold one dictionary per type of layer
    ropes = [
        one
        for one in (rope, *rope.values())
        if isinstance(one, dict) and one.get("rope_type") != "proportional"
    ]
    factors = [one.get("partial_rotary_factor") for one in ropes]
    factors += [getattr(config, key, None) for key in ("partial_rotary_factor", "rotary_pct")]
    rotated = min(
        (round(factor * head_dim) for factor in factors if factor is not None), default=head_dim
    )
    rotated = (
        getattr(config, "qk_rope_head_dim", None) or getattr(config, "rotary_dim", None) or rotated
    )
    if pairing == "half" and rotated < head_dim:  # pairs are (i, i + rotated / 2)
        raise ValueError(
            f"{name}: only {rotated} of {head_dim} channels of a head are rotated, which pairing='half' does not"
            " support; use a model that rotates whole heads"
        )


def _no_layer(model: nn.Module, names: Sequence[str]) -> str:
    linear = sorted(
        {
            name.rpartition(".")[2]
            for name, layer in model.named_modules()
            if isinstance(layer, nn.Linear)
        }
    )
    modules = [name for name, layer in model.named_modules() if name.rpartition(".")[2] in FUSED]
    absent = f"no layer is named {', '.join(names)}"
    if modules:
        return (
            f"{absent}: {modules[0]} holds Q, K and V in one; split it into three nn.Linear first"
        )
    return f"{absent}; name the layers of Q, K and V (names=...): {', '.join(linear) or 'there is no nn.Linear'}"
