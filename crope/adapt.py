"""CRoPE in a model that you already have: its Q, K and V layers made complex-linear in place, and dense again.

Any `torch.nn.Module` whose projections are separate `nn.Linear` layers, such as Llama, Mistral, Qwen2, Gemma and GPT-J
in `transformers` (docs/own-model.md).

Shapes: D in-features, E out-features, K width of a head.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from crope.model.complex_linear import ComplexLinear

FUSED = ("query_key_value", "qkv_proj", "c_attn", "Wqkv", "in_proj")  # one layer for Q, K and V


@dataclass(frozen=True)
class Replaced:
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
    """Replaces every `nn.Linear` with one of `names` by a `ComplexLinear` of half its weights, in place.

    pairing    of the model's rotation: "half" (Llama, GPT-NeoX) or "interleaved" (GPT-J)
    head_dim   K; None: `head_dim` of the attention layer or of `model.config`
    init       nearest: least squares (Eq. 30's part of each 2x2 block), for a trained model; fresh: normal, with the
               standard deviation of the replaced weight

    Keeps dtype, device and biases (a fresh layer's bias is 0). Norms between the projection and the rotation (Qwen3's)
    keep their gains: only with equal gains in a pair does the rotation still commute with the projection. Raises
    ValueError, before anything is replaced, for layers that cannot be: not a plain `nn.Linear` (quantised, adapted), a
    shared weight, a width that heads do not fill, or rotation of a part of each head with pairing="half".
    """
    if init not in ("nearest", "fresh"):
        raise ValueError(f"init={init!r}: must be 'nearest' or 'fresh'")
    found = {
        f"{path}.{child}".lstrip("."): (parent, child)
        for path, parent in model.named_modules()
        for child in names
        if isinstance(getattr(parent, child, None), nn.Module)
    }
    if not found:
        raise ValueError(_no_layer(model, names))
    owners = Counter(id(value) for _, value in model.named_parameters(remove_duplicate=False))
    widths = {}
    for name, (parent, child) in found.items():
        layer, config = getattr(parent, child), getattr(model, "config", None)
        if type(layer) is not nn.Linear or not layer.weight.is_floating_point():
            raise ValueError(
                f"{name} is a {type(layer).__name__}, not a plain floating-point nn.Linear; complexify the model before"
                " it is quantised or gets adapters"
            )
        if owners[id(layer.weight)] > 1:
            raise ValueError(f"{name} shares its weight with another layer; give each a weight of its own first")
        widths[name] = _head_dim(name, parent, layer, config, head_dim)
        if pairing == "half":
            _check_rotation(name, config, widths[name])
    replaced = []
    for name, (parent, child) in found.items():
        layer = getattr(parent, child)
        new = ComplexLinear.from_linear(layer, pairing=pairing, head_dim=widths[name])
        if init == "fresh":
            with torch.no_grad():
                for part in (new.a, new.b):
                    part.normal_(std=float(layer.weight.float().std()))
                if new.bias is not None:
                    new.bias.zero_()
        new.train(layer.training)
        setattr(parent, child, new)
        replaced.append(Replaced(name, _count(layer), _count(new)))
    return replaced


def merge(model: nn.Module) -> list[str]:
    """Replaces every ComplexLinear by the `nn.Linear` with the dense weight of Eq. 30, in place; returns the names.

    The model then has its original architecture and equal outputs, and every stack saves and serves it.
    """
    merged = []
    for path, parent in list(model.named_modules()):
        for child, layer in list(parent.named_children()):
            if isinstance(layer, ComplexLinear):
                setattr(parent, child, layer.to_linear().train(layer.training))
                merged.append(f"{path}.{child}".lstrip("."))
    return merged


def _head_dim(name: str, parent: nn.Module, layer: nn.Linear, config: Any, head_dim: int | None) -> int:
    heads = getattr(config, "num_attention_heads", None)
    by_heads = config.hidden_size // heads if heads else None
    width = head_dim or getattr(parent, "head_dim", None) or getattr(config, "head_dim", None) or by_heads
    if width is None:
        raise ValueError(f"{name}: the width of a head is unknown; name it (head_dim=...)")
    if width % 2 or layer.out_features % width or layer.in_features % 2:
        raise ValueError(
            f"{name}: {layer.in_features} inputs and {layer.out_features} outputs do not divide into channel pairs of"
            f" heads of width {width}; head_dim must be even and divide the outputs, and the inputs must be even"
        )
    return int(width)


def _check_rotation(name: str, config: Any, head_dim: int) -> None:
    """Where only R < K channels of a head are rotated, half-split pairs are (i, i + R/2), not (i, i + K/2)."""
    rope = getattr(config, "rope_parameters", None) or {}
    factors = [getattr(config, key, None) for key in ("partial_rotary_factor", "rotary_pct")]
    factor = next((one for one in [rope.get("partial_rotary_factor"), *factors] if one is not None), 1.0)
    rotated = getattr(config, "rotary_dim", None) or round(factor * head_dim)
    if rotated < head_dim:
        raise ValueError(
            f"{name}: only {rotated} of {head_dim} channels of a head are rotated, which pairing='half' does not"
            " support; use a model that rotates whole heads, or pairing='interleaved' if its rotation is (GPT-J)"
        )


def _no_layer(model: nn.Module, names: Sequence[str]) -> str:
    linear = sorted({name.rpartition(".")[2] for name, layer in model.named_modules() if isinstance(layer, nn.Linear)})
    modules = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    fused, absent = [name for name in FUSED if name in modules], f"no layer is named {', '.join(names)}"
    if fused:
        return f"{absent}: {fused[0]} holds Q, K and V in one; split it into three nn.Linear first"
    return f"{absent}; linear layers of this model: {', '.join(linear) or 'none'}"


def _count(layer: nn.Module) -> int:
    return sum(value.numel() for value in layer.parameters())
