"""Which layers of a model can become complex-linear, with which pairs and heads, and which cannot.

Errors are ValueErrors of one line that name the layer and the way out.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from torch import nn

Pairing = Literal["interleaved", "half"]

# Pairs of the rotation by `config.model_type` of `transformers`, verified by `check` on tiny models
# (DeepSeek's, where `check` has no K to compare, by its rotation itself).
HALF = """
    afmoe apertus arcee aria_text bitnet cwm diffllama doge emu3 exaone4 exaone_moe falcon flex_olmo
    gemma gemma2 gemma3_text gpt_neox gpt_oss granite granitemoe granitemoeshared hyperclovax
    internlm3 jais2 lfm2 llama minimax minimax_m2 ministral3 mistral mixtral mllama_text_model
    nanochat nemotron olmo olmo2 olmo3 olmoe phi phi3 phimoe qwen2 qwen2_5_vl_text qwen2_moe
    qwen2_vl_text qwen3 qwen3_moe qwen3_vl_text seed_oss smollm3 solar_open stablelm starcoder2
    vaultgemma
"""
INTERLEAVED = """
    cohere cohere2 deepseek_v2 deepseek_v3 ernie4_5 ernie4_5_moe ernie4_5_vl_moe_text glm glm4
    glm4v_text glm_ocr_text gptj helium llama4_text
"""
PAIRINGS: dict[str, Pairing] = dict.fromkeys(HALF.split(), "half")
PAIRINGS |= dict.fromkeys(INTERLEAVED.split(), "interleaved")

# Last parts of names under which one layer holds two or three of Q, K and V.
FUSED = re.compile(r"q_?k|k_?v|query_?key|key_?value|c_attn|w_?pack|in_proj")


def select(model: nn.Module, names: Iterable[str] | str) -> dict[str, Any]:
    """Path -> layer, for the suffixes or the regular expression `names`."""
    modules = dict(model.named_modules(remove_duplicate=False))
    patterns = {names: names} if isinstance(names, str) else {}
    patterns = patterns or {name: rf"(.*\.)?{re.escape(name)}" for name in names}
    if not patterns:
        raise ValueError("names is empty; name the layers of Q, K and V")
    chosen: set[str] = set()
    for name, pattern in patterns.items():
        try:
            matches = {path for path in modules if re.fullmatch(pattern, path)}
        except re.error as error:
            raise ValueError(f"names={name!r} is no regular expression ({error})") from error
        if not matches:
            linear = [path for path, layer in modules.items() if isinstance(layer, nn.Linear)]
            choice = ", ".join(sorted({path.rpartition(".")[2] for path in linear}))
            raise ValueError(
                f"no layer is named {name} (a list has ends of paths, a string is an expression for"
                " whole ones); name those of Q, K and V (names=...), or first split the layer that"
                f" holds all three (split_qkv): {choice or 'there is no nn.Linear'}"
            )
        chosen |= matches
    return {path: layer for path, layer in modules.items() if path in chosen}


def check_replaceable(model: nn.Module, layers: Mapping[str, Any]) -> None:
    """Raises for a layer that is not plain, or whose weight another one has too."""
    uses = Counter(id(value) for _, value in model.named_parameters(remove_duplicate=False))
    for name, layer in layers.items():
        if FUSED.search(name.rpartition(".")[2].lower()):
            raise ValueError(f"{name} {SEVERAL}")
        weight: Any = getattr(layer, "weight", None)
        plain = type(layer) is nn.Linear and type(weight) is nn.Parameter
        if not plain or not weight.is_floating_point() or weight.itemsize < 2:
            raise ValueError(
                f"{name} is a {type(layer).__name__}, not an nn.Linear with plain floating-point"
                " weights; complexify the model before it is quantised or gets adapters, and once"
            )
        check_untouched(name, layer)
        if not weight.is_meta and not weight.isfinite().all():
            raise ValueError(
                f"{name} has weights that are NaN or infinite; load the model again, or go back to"
                " a checkpoint from before its training diverged"
            )
        if uses[id(weight)] > 1:
            raise ValueError(
                f"{name}: its weight is also held by another layer, which would keep the old one;"
                " give each layer a weight of its own"
            )


SEVERAL = "holds several of Q, K and V; separate them first, by split_qkv(model) or by hand"


def check_untouched(name: str, layer: nn.Module) -> None:
    """Raises for what a replaced layer would lose, or take along although others need it: adapters
    around it, weights that are elsewhere, hooks.
    """
    # peft's wrappers read the parameters of their base layer by name.
    if "base_layer" in name.split(".") or hasattr(layer, "parametrizations"):
        raise ValueError(
            f"{name} is wrapped by an adapter or a parametrization; merge it first (merge_and_unload"
            " of peft, torch.nn.utils.parametrize.remove_parametrizations)"
        )
    # torch lists the hooks of a module in private attributes only.
    forward_or_backward = ("ward_hooks", "ward_pre_hooks")
    hooks = [value for key, value in vars(layer).items() if key.endswith(forward_or_backward)]
    for part, value in layer.named_parameters():
        if not value.numel() or (part != "bias" and value.dim() != 2):
            raise ValueError(
                f"{name}: its {part} is only a part, of shape {tuple(value.shape)}, as ZeRO-3 and"
                " FSDP leave it; complexify and merge where whole weights are in memory"
            )
    # `forward` as an attribute is how accelerate offloads.
    if any(hooks) or "forward" in vars(layer):
        raise ValueError(
            f"{name} has hooks (as offloading by accelerate sets them), which would be lost; load"
            " the model without them (no device_map) and add them afterwards"
        )


def pairs_of(
    model: nn.Module, layers: Mapping[str, Any], pairing: Pairing | None, head_dim: int | None
) -> dict[str, dict[str, Any]]:
    """Name -> `pairing` and `head_dim` of the ComplexLinear that can replace this layer, as given or
    from PAIRINGS and the configuration; raises where these disagree.
    """
    attentions, configs = {}, {}
    for name in layers:
        attentions[name] = model.get_submodule(name.rpartition(".")[0])
        configs[name] = getattr(attentions[name], "config", getattr(model, "config", None))
    pairing = _pairing(configs, pairing)
    found = {}
    for name, layer in layers.items():
        width = _head_dim(name, layer, attentions[name], configs[name], head_dim)
        found[name] = {"pairing": pairing, "head_dim": width}
    return found


def _pairing(configs: Mapping[str, Any], pairing: Pairing | None) -> Pairing:
    """The pairing of all layers' rotation; raises where they differ, or where "half" rotates only a
    part of each head.
    """
    families = {getattr(config, "model_type", None) for config in configs.values()}
    if len(families) > 1:
        raise ValueError(
            f"the layers belong to several parts ({', '.join(sorted(map(str, families)))}); choose"
            " those of one by names=..., or pass that part of the model"
        )
    family = str(families.pop())
    listed = PAIRINGS.get(family, pairing)
    if listed is None:
        raise ValueError(
            f"the pairs of the rotation of model_type {family!r} are not known; name them"
            " (pairing='half' or 'interleaved') and verify them with crope.adapt.check"
        )
    if pairing not in (None, listed):
        raise ValueError(f"the rotation of {family} pairs other channels; use pairing={listed!r}")
    for name, config in configs.items():
        if listed == "interleaved" and getattr(config, "rope_interleave", True) is False:
            raise ValueError(
                f"{name}: rope_interleave=False rotates half-split pairs of a part of each head,"
                " which is not supported; use a model that rotates whole heads"
            )
        share = _rotated_share(config)
        if listed == "half" and share < 1:
            raise ValueError(
                f"{name}: only {share:.0%} of each head is rotated, which pairing='half' does not"
                " support; use a model that rotates whole heads"
            )
    return listed


def _rotated_share(config: Any) -> float:
    """The smallest share of a head that is rotated by pairs (i, i + rotated / 2)."""
    rope = getattr(config, "rope_parameters", None) or {}  # or one dictionary per type of layer
    shares = [1.0]
    for values in (getattr(config, "__dict__", {}), rope, *rope.values()):
        if isinstance(values, Mapping) and values.get("rope_type") != "proportional":
            shares.append(values.get("partial_rotary_factor") or 1.0)
            shares.append(values.get("rotary_pct") or 1.0)  # GPT-NeoX before transformers 5
    return min(shares)


def _head_dim(
    name: str, layer: nn.Linear, attention: nn.Module, config: Any, head_dim: int | None
) -> int:
    """K as the attention layer or its configuration says it; raises unless heads fill the layer."""
    hidden = getattr(config, "hidden_size", None)
    heads = getattr(config, "num_attention_heads", None)
    stated = (
        getattr(attention, "qk_head_dim", None)
        or getattr(attention, "head_dim", None)
        or getattr(config, "head_dim", None)
    )
    width = head_dim or stated or (hidden and heads and hidden // heads)
    if not width or width != (stated or width):
        raise ValueError(
            f"{name}: the width of a head is {stated or 'unknown'}; name it (head_dim=...)"
        )
    if width % 2 or layer.out_features % width or layer.in_features % 2:
        raise ValueError(
            f"{name}: {layer.in_features} inputs and {layer.out_features} outputs do not divide"
            f" into channel pairs of heads of width {width}; head_dim must be even and divide the"
            " outputs, and the inputs must be even. Leave a layer without such heads out of `names`"
        )
    if heads and layer.out_features > heads * width:
        raise ValueError(f"{name} has more outputs than {heads} heads: it {SEVERAL}")
    return int(width)
