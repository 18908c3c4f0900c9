"""The reference loss: every number that is reported comes from it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from crope.model.gpt import GPT


def cross_entropy(model: GPT, tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    """Mean next-token cross entropy in nats, with the log-sum-exp in float32 under autocast as well.

    Padding columns of the head are cut off before the softmax: they carry no mass.
    """
    logits_BTV = model.logits(model(tokens_BT))
    # float64 models (tests) stay float64.
    logits_BTV = logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32))
    return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())
