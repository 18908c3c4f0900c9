"""Output head and cross entropy in one kernel that never holds all logits: the other choices of `runtime.loss`.

They save memory (at B 16, L 1024 one bf16 copy of the logits is 1.65 GB), and time where a kernel beats the compiled
plain loss. Training steps alone use them: every validation loss is loss.cross_entropy's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from crope.errors import ConfigError
from crope.model.gpt import GPT

Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]  # hidden_ND, weight_VD, targets_N -> mean loss in nats
PACKAGES = {"cut_cross_entropy": "cut-cross-entropy", "liger": "liger-kernel"}


def fused_cross_entropy(kernel: Kernel, hidden_BTD: Tensor, model: GPT, targets_BT: Tensor) -> Tensor:
    """Mean next-token cross entropy in nats; under autocast head and hidden states are cast as F.linear would.

    Padding rows of the head are cut off: they carry no mass and get no gradient.
    """
    weight_VD = model.head_weight[: model.vocab_size]
    kind = hidden_BTD.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight_VD.dtype
    with torch.autocast(kind, enabled=False):
        return kernel(hidden_BTD.flatten(0, 1).to(dtype), weight_VD.to(dtype), targets_BT.flatten())


def load_kernel(name: str, device: torch.device) -> Kernel:
    """The kernel that `runtime.loss` names. Raises ConfigError where it cannot be had here."""
    if name == "torch":
        if not hasattr(F, "linear_cross_entropy"):
            raise _refusal(name, f"torch {torch.__version__} has no linear_cross_entropy (2.13 has)")
        return _torch
    if device.type != "cuda":
        raise _refusal(name, "its kernels run on CUDA devices alone")
    package = PACKAGES[name]
    if find_spec(package.replace("-", "_")) is None:
        raise _refusal(name, f"{package} is not installed: pip install -e '.[fused]'")
    return _cut_cross_entropy if name == "cut_cross_entropy" else _liger


def kernels_here(device: torch.device) -> list[str]:
    """Those that load_kernel would give."""
    found = []
    for name in ("torch", *PACKAGES):
        with suppress(ConfigError):
            load_kernel(name, device)
            found.append(name)
    return found


def _refusal(name: str, why: str) -> ConfigError:
    return ConfigError(f"runtime.loss={name}: {why}; runtime.loss=plain runs everywhere")


def _torch(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    # Without options it would be the plain loss; these take the rows in chunks, gradients included. In bf16 it returns
    # a loss of eight bits (6.97 for 6.944), so it gets fp32.
    options = torch.nn.LinearCrossEntropyOptions()
    dtype = torch.promote_types(hidden_ND.dtype, torch.float32)
    return F.linear_cross_entropy(hidden_ND.to(dtype), weight_VD.to(dtype), targets_N, options=options)


def _cut_cross_entropy(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    from cut_cross_entropy import linear_cross_entropy

    # Its default drops gradients below a threshold, which is faster and not the same training.
    return linear_cross_entropy(hidden_ND, weight_VD, targets_N, filter_eps=None)


def _liger(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    # By default the head's gradient is summed over chunks in the weight's own type, which is bf16 under autocast.
    return liger_fused_linear_cross_entropy(hidden_ND, weight_VD, targets_N, accum_dtype=torch.float32)
