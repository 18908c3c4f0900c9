"""Checkpoints of a complexified model in the shape of the original one, with dense weights.

`save_pretrained` of transformers writes them, and so do its Trainer and push_to_hub: halved weights
would leave `from_pretrained` with random Q, K and V. The complexified model loads them again.
"""

import copy
import functools
import sys
from typing import Any

import torch
from torch import Tensor, nn

from crope.interop.fused import SplitLinear
from crope.interop.layers import Pairing, check_untouched
from crope.model.complex_linear import ComplexLinear

VARIANT = "complex"  # of the files that keep the halved weights


def nearest(weight: Tensor, pairing: Pairing = "interleaved", head_dim: int | None = None) -> Any:
    """The ComplexLinear nearest to a dense weight (E, D), without a bias."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return ComplexLinear.from_linear(linear, pairing=pairing, head_dim=head_dim)


def dense_state(model: nn.Module, state: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """The state dict of the model, or this one of it, with the weights of the dense model.

    Raises ValueError if a complex-linear layer is wrapped by adapters.
    """
    state = dict(state or model.state_dict())
    for name, layer in model.named_modules():
        if type(layer) is ComplexLinear and f"{name}.a" in state:
            check_untouched(name, layer)
            new = copy.deepcopy(layer)  # with the values of `state`, which may be gathered ones
            new.a, new.b = (nn.Parameter(state.pop(f"{name}.{part}")) for part in "ab")
            state[f"{name}.weight"] = new.weight.detach()
    for name, layer in model.named_modules():
        if isinstance(layer, SplitLinear):
            layer.check_parts(name)
            layer.fuse(state, f"{name}.")
    return state


def accept_dense(layer: Any, state: dict[str, Tensor], prefix: str, *rest: Any) -> None:
    """A pre-hook of load_state_dict: a dense weight is taken if it is complex-linear."""
    weight = state.pop(f"{prefix}weight", None)
    if weight is not None:
        new = nearest(weight, layer.pairing, layer.head_dim)
        # Equal to the last bit: (a + a) / 2 is a.
        if not torch.equal(new.weight, weight):
            errors: list[str] = rest[-1]
            errors.append(f"{prefix}weight is not complex-linear; load it into the dense model")
        state[f"{prefix}a"], state[f"{prefix}b"] = new.a, new.b


def write_dense_checkpoints() -> None:
    """Makes `save_pretrained` write complexified models with dense weights.

    On the class: complexify may have seen a part of the model only, Trainer passes state dicts of
    its own, and an attribute of the instance would be lost by pickling. Other models are saved as
    before.
    """
    modeling = sys.modules.get("transformers.modeling_utils")
    if modeling is None or hasattr(modeling.PreTrainedModel.save_pretrained, "writes_dense"):
        return
    original = modeling.PreTrainedModel.save_pretrained

    @functools.wraps(original)
    def save_pretrained(
        self: Any,
        save_directory: Any,  # all of its own names, by which it may be called
        is_main_process: bool = True,
        state_dict: Any = None,
        *more: Any,
        **options: Any,
    ) -> Any:
        only_adapters = getattr(self, "_hf_peft_config_loaded", False)
        # peft's own format holds adapters only; the variant is what `save` asks for.
        changed = any(type(layer) in (ComplexLinear, SplitLinear) for layer in self.modules())
        if changed and not only_adapters and options.get("variant") != VARIANT:
            state_dict = dense_state(self, state_dict)
        return original(self, save_directory, is_main_process, state_dict, *more, **options)

    save_pretrained.writes_dense = True  # type: ignore[attr-defined]
    modeling.PreTrainedModel.save_pretrained = save_pretrained
