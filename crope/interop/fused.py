"""The layer of an attention that holds Q, K and V together, separated into three and fused again.

Shapes: D in-features, N outputs of Q, K and V together, K width of a head.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from crope.interop.layers import check_untouched
from crope.model.complex_linear import ComplexLinear

PARTS = ("q_proj", "k_proj", "v_proj")


# By model_type: the name of the fused layer.
FUSED_NAMES = {
    "falcon": "query_key_value",
    "gpt2": "c_attn",
    "gpt_neox": "query_key_value",
    "phi3": "qkv_proj",
}


def order_of(config: Any) -> tuple[int, int, int, int]:
    """The order of the fused outputs as `groups, q, k, v`: so many groups of q heads for queries,
    then k for keys and v for values.
    """
    heads = config.num_attention_heads
    shared = getattr(config, "num_key_value_heads", heads)
    if config.model_type == "falcon":
        several = config.new_decoder_architecture or not config.multi_query
        shared = config.num_kv_heads if several else 1
    if FUSED_NAMES[config.model_type] == "query_key_value":
        # Each head of K and V stands beside its queries.
        return shared, heads // shared, 1, 1
    return 1, heads, shared, shared


class SplitLinear(nn.Module):
    """q_proj, k_proj and v_proj in the place of the layer that holds all three.

    While these are dense, the fused layer's own product is computed, on the weights put together:
    three products would differ from it in the last bits. Hooks of the parts are then not called.
    """

    def __init__(self, fused: Any, config: Any) -> None:
        super().__init__()
        groups, *heads = order_of(config)
        self.config = config
        self.transposed = type(fused).__name__ == "Conv1D"  # its weight is (D, N)
        outputs = fused.weight.shape[self.transposed]
        self.head_dim = outputs // (groups * sum(heads))
        # Row numbers of the fused weight, of Q, of K and of V; and where to find each of them again.
        rows = torch.arange(outputs, device="cpu").view(groups, -1, self.head_dim)
        self.rows = [part.flatten() for part in rows.split(heads, dim=1)]
        self.fused_rows = torch.cat(self.rows).argsort()
        self.fused = (copy.deepcopy(fused).to("meta"),)  # in a tuple, so that it is no submodule
        inputs, bias = fused.weight.shape[not self.transposed], fused.bias is not None
        for name, numbers in zip(PARTS, self.rows, strict=True):
            self.add_module(name, nn.Linear(inputs, len(numbers), bias=bias, device="meta"))
        self.load_state_dict(fused.state_dict(), assign=True)
        for name, parameter in self.named_parameters():
            whole = fused.get_parameter(name.rpartition(".")[2])  # weight or bias
            parameter.requires_grad_(whole.requires_grad)

    def check_parts(self, name: str) -> None:
        """Raises ValueError unless each part has weights of its own."""
        for part, layer in self.named_children():
            if type(layer) not in (nn.Linear, ComplexLinear):
                raise ValueError(f"{name}.{part} is a {type(layer).__name__}; merge it first")

    def fuse(self, state: dict[str, Tensor], prefix: str = "") -> None:
        """Puts the tensors of the fused layer in the place of those of the parts, if `state` has
        these.
        """
        for kind in ("weight", "bias"):
            names = [f"{prefix}{name}.{kind}" for name in PARTS]
            if names[0] in state:
                value = torch.cat([state.pop(name) for name in names])[self.fused_rows]
                value = value.t() if self.transposed else value
                state[f"{prefix}{kind}"] = value.contiguous()

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.children())
        if all(type(part) is nn.Linear for part in parts):
            state: dict[str, Tensor] = dict(self.named_parameters())
            self.fuse(state)
            return functional_call(self.fused[0], state, (x,))
        return torch.cat([part(x) for part in parts], dim=-1)[..., self.fused_rows]

    def as_fused(self) -> nn.Module:
        """The layer that was separated, with the weights that its parts have now."""
        layer, state = copy.deepcopy(self.fused[0]), dict(self.state_dict())
        self.fuse(state)
        layer.load_state_dict(state, assign=True)
        for kind, whole in layer.named_parameters():
            parts = [part for name, part in self.named_parameters() if name.endswith(kind)]
            whole.requires_grad_(any(part.requires_grad for part in parts))
        return layer

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """Checkpoints are those of the fused layer."""
        for kind in ("weight", "bias"):
            if f"{prefix}{kind}" in state_dict:
                value = state_dict.pop(f"{prefix}{kind}")
                value = value.t() if self.transposed else value  # of a bias, t() changes nothing
                for name, rows in zip(PARTS, self.rows, strict=True):
                    state_dict[f"{prefix}{name}.{kind}"] = value[rows].contiguous()
        super()._load_from_state_dict(state_dict, prefix, *rest)


def separate_layers(model: nn.Module) -> list[str]:
    """Replaces the layers of FUSED_NAMES by a SplitLinear, in place; returns their names."""
    split = {}
    for name, layer in model.named_modules():
        path, _, last = name.rpartition(".")
        attention = model.get_submodule(path)
        config = getattr(attention, "config", None)
        crossed = getattr(attention, "is_cross_attention", False)  # holds K and V alone
        if FUSED_NAMES.get(getattr(config, "model_type", "")) == last and not crossed:
            if type(layer).__name__ not in ("Linear", "Conv1D", "FalconLinear"):
                raise ValueError(
                    f"{name} is a {type(layer).__name__}; split the model once, before it is"
                    " quantised or gets adapters"
                )
            check_untouched(name, layer)
            split[name] = SplitLinear(layer, config)
    for name, layer in split.items():
        model.set_submodule(name, layer)
    return list(split)
