"""Reference loss, sampled and full validation."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from crope.config import Config
from crope.data.batches import TokenArray, full_pass, sample_batch
from crope.model.gpt import GPT
from crope.train.device import return_freed_memory

# The mean does not depend on how windows are batched; one window at a time would leave most of a
# device idle.
FULL_BATCH_TOKENS = 4096

# (inputs_BT, targets_BT) -> nats: the mean over all tokens in training, (B,) in validation.
LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def cross_entropy(
    model: GPT, tokens_BT: torch.Tensor, targets_BT: torch.Tensor, *, reduction: str = "mean"
) -> torch.Tensor:
    """Computes the reference loss, from which every reported number comes: mean next-token cross
    entropy in nats.

    The log-sum-exp is in float32 under autocast as well. Padding columns of the head are cut off
    before the softmax.
    """
    logits_BTV = model.logits(model(tokens_BT))
    # float64 models (tests) stay float64.
    logits_BTV = logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32))
    return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction=reduction)


def token_losses(
    model: GPT, inputs_BT: torch.Tensor, targets_BT: torch.Tensor, *, bf16: bool
) -> torch.Tensor:
    """Computes the reference loss of each token, (B, T), not averaged; under bf16 autocast if asked
    to.
    """
    with torch.autocast(inputs_BT.device.type, torch.bfloat16, enabled=bf16):
        losses = cross_entropy(model, inputs_BT, targets_BT, reduction="none")
    return losses.view_as(targets_BT)


def random_batch(
    tokens: TokenArray, *, config: Config, step: int, purpose: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws inputs and targets, (B, L): the same for all models at the same seed and step."""
    return sample_batch(
        tokens,
        seed=config.seed,
        step=step,
        batch_size=config.train.batch_size,
        seq_len=config.train.seq_len,
        purpose=purpose,
    )


def sampled_loss(loss: LossFunction, tokens: TokenArray, *, config: Config, step: int) -> float:
    """Computes the mean loss in nats over eval.batches random B x L batches."""
    total: Any = 0.0  # a tensor on the device, for which nothing waits
    for index in range(config.eval.batches):
        batch = random_batch(tokens, config=config, step=step, purpose=f"validation/{index}")
        total += loss(*batch).double().mean()
    return float(total) / config.eval.batches


def full_loss(
    loss: LossFunction, tokens: TokenArray, *, config: Config, max_tokens: int | None = None
) -> tuple[float, int]:
    """Computes the mean loss in nats over the split, and the number of targets in that mean.

    max_tokens (default eval.full_tokens) selects an evenly spaced subset of windows; 0 is the whole
    split.
    """
    total: Any = 0.0
    count = 0
    windows = full_pass(
        tokens,
        seq_len=config.train.seq_len,
        batch_size=full_batch_size(config),
        max_tokens=config.eval.full_tokens if max_tokens is None else max_tokens,
    )
    for number, (inputs_BT, targets_BT) in enumerate(windows, 1):
        # By targets, not by windows: the last one of a split may be shorter.
        total += loss(inputs_BT, targets_BT).double().sum() * targets_BT.shape[1]
        count += targets_BT.numel()
        if inputs_BT.is_cpu and number % 4 == 0:
            return_freed_memory()
    return float(total) / count, count


def full_batch_size(config: Config) -> int:
    """Returns the number of windows per batch of a full pass; the last batch may be smaller."""
    return max(config.train.batch_size, FULL_BATCH_TOKENS // config.train.seq_len)
