"""The layer of an attention that holds Q, K and V together, separated into three and fused again.

Shapes: D in-features, N outputs of Q, K and V together, K width of a head.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from crope.interop.layers import check_untouched
from crope.model.complex_linear import ComplexLinear

PARTS = ("q_proj", "k_proj", "v_proj")


def _falcon(config: Any) -> tuple[int, int, int, int]:
    heads, shared = config.num_attention_heads, config.num_kv_heads
    if config.new_decoder_architecture:
        return shared, heads // shared, 1, 1
    return (1, heads, 1, 1) if config.multi_query else (heads, 1, 1, 1)


# By model_type: the fused layer's name, and the order of its outputs as `groups, q, k, v`: so many
# groups of q heads for queries, then k for keys and v for values.
ORDERS: dict[str, tuple[str, Callable[[Any], tuple[int, int, int, int]]]] = {
    "falcon": ("query_key_value", _falcon),
    "gpt2": ("c_attn", lambda c: (1, c.n_head, c.n_head, c.n_head)),
    "gpt_neox": ("query_key_value", lambda c: (c.num_attention_heads, 1, 1, 1)),
    "phi3": (
        "qkv_proj",
        lambda c: (1, c.num_attention_heads, c.num_key_value_heads, c.num_key_value_heads),
    ),
}


class SplitLinear(nn.Module):
    """q_proj, k_proj and v_proj in the place of the layer that holds all three.

    While these are dense, the fused layer's own product is computed, on the weights put together:
    three products would differ from it in the last bits. Hooks of the parts are then not called.
    """

    def __init__(self, fused: Any, order: tuple[int, int, int, int], config: Any) -> None:
        super().__init__()
        groups, *heads = order
        self.config = config
        self.transposed = type(fused).__name__ == "Conv1D"  # its weight is (D, N)
        outputs = fused.weight.shape[self.transposed]
        self.head_dim = outputs // (groups * sum(heads))
        # Row numbers of the fused weight, of Q, of K and of V; and where to find each of them again.
        rows = torch.arange(outputs, device="cpu").view(groups, -1, self.head_dim)
        self.rows = [part.flatten() for part in rows.split(heads, dim=1)]
        self.fused_rows = torch.cat(self.rows).argsort()
        self.fused = (copy.deepcopy(fused).to("meta"),)  # in a tuple, so that it is no submodule
        state = dict(fused.state_dict())
        kinds = list(state)
        self.separate(state, "")
        for name in PARTS:
            own = {kind: state[f"{name}.{kind}"] for kind in kinds}
            outputs, inputs = own["weight"].shape
            linear = nn.Linear(inputs, outputs, bias="bias" in own, device="meta")
            linear.load_state_dict(own, assign=True)
            self.add_module(name, linear.requires_grad_(fused.weight.requires_grad))

    def check_parts(self, name: str) -> None:
        """Raises ValueError unless each part has weights of its own."""
        for part, layer in self.named_children():
            if type(layer) not in (nn.Linear, ComplexLinear):
                raise ValueError(f"{name}.{part} is a {type(layer).__name__}; merge it first")

    def separate(self, state: dict[str, Tensor], prefix: str) -> None:
        """Puts the tensors of the parts in the place of the fused ones, if `state` has these."""
        for kind in ("weight", "bias"):
            if f"{prefix}{kind}" in state:
                value = state.pop(f"{prefix}{kind}")
                value = value.t() if self.transposed else value  # of a bias, t() changes nothing
                for name, rows in zip(PARTS, self.rows, strict=True):
                    state[f"{prefix}{name}.{kind}"] = value[rows].contiguous()

    def fuse(self, state: dict[str, Tensor], prefix: str) -> None:
        """The other way round."""
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
            self.fuse(state, "")
            return functional_call(self.fused[0], state, (x,))
        return torch.cat([part(x) for part in parts], dim=-1)[..., self.fused_rows]

    def as_fused(self) -> nn.Module:
        """The layer that was separated, with the weights that its parts have now."""
        layer, state = copy.deepcopy(self.fused[0]), dict(self.state_dict())
        self.fuse(state, "")
        layer.load_state_dict(state, assign=True)
        trained = any(value.requires_grad for value in self.parameters())
        return layer.requires_grad_(trained).train(self.training)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """Checkpoints are those of the fused layer."""
        self.separate(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def separate_layers(model: nn.Module) -> list[str]:
    """Replaces the fused layers of ORDERS by a SplitLinear, in place; returns their names."""
    split = {}
    for name, layer in model.named_modules():
        attention = model.get_submodule(name.rpartition(".")[0])
        config = getattr(attention, "config", None)
        fused, order = ORDERS.get(getattr(config, "model_type", ""), ("", None))
        crossed = getattr(attention, "is_cross_attention", False)  # holds K and V alone
        if order and name.endswith(f".{fused}") and not crossed:
            if type(layer).__name__ not in ("Linear", "Conv1D", "FalconLinear"):
                raise ValueError(
                    f"{name} is a {type(layer).__name__}; split the model once, before it is"
                    " quantised or gets adapters"
                )
            check_untouched(name, layer)
            split[name] = SplitLinear(layer, order(config), config)
    for name, layer in split.items():
        model.set_submodule(name, layer)
    return list(split)
