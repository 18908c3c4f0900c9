"""Reference loss, sampled and full validation."""

from collections.abc import Callable

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
    """The reference loss, from which every reported number comes: mean next-token cross entropy in
    nats.

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
    """The reference loss of each token, (B, T), not averaged; under bf16 autocast if asked to."""
    with torch.autocast(inputs_BT.device.type, torch.bfloat16, enabled=bf16):
        losses = cross_entropy(model, inputs_BT, targets_BT, reduction="none")
    return losses.view_as(targets_BT)


def random_batch(
    tokens: TokenArray, *, config: Config, step: int, purpose: str, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, (B, L), on the device: the same for all models at the same seed and step."""
    inputs_BT, targets_BT = sample_batch(
        tokens,
        seed=config.seed,
        step=step,
        batch_size=config.train.batch_size,
        seq_len=config.train.seq_len,
        purpose=purpose,
    )
    return inputs_BT.to(device), targets_BT.to(device)


def sampled_loss(
    loss: LossFunction, tokens: TokenArray, *, config: Config, step: int, device: torch.device
) -> float:
    """Mean loss in nats over eval.batches random B x L batches."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    for index in range(config.eval.batches):
        batch = random_batch(
            tokens, config=config, step=step, purpose=f"validation/{index}", device=device
        )
        total += loss(*batch).double().mean()  # on the device: nothing waits for it
    return total.item() / config.eval.batches


def full_loss(
    loss: LossFunction,
    tokens: TokenArray,
    *,
    config: Config,
    device: torch.device,
    max_tokens: int | None = None,
) -> tuple[float, int, torch.Tensor]:
    """Mean loss in nats over the split, the number of targets in that mean, and the mean loss of
    each window, (N,) in float64.

    max_tokens (default eval.full_tokens) selects an evenly spaced subset of windows; 0 is the whole
    split.
    """
    total = torch.zeros((), dtype=torch.float64, device=device)
    count, window_nats = 0, []
    windows = full_pass(
        tokens,
        seq_len=config.train.seq_len,
        batch_size=full_batch_size(config),
        max_tokens=config.eval.full_tokens if max_tokens is None else max_tokens,
    )
    for inputs_BT, targets_BT in windows:
        loss_B = loss(inputs_BT.to(device), targets_BT.to(device)).double()
        # By targets, not by windows: the last one of a split may be shorter.
        total += loss_B.sum() * targets_BT.shape[1]
        count += targets_BT.numel()
        window_nats.append(loss_B)
        if device.type == "cpu" and len(window_nats) % 4 == 0:
            return_freed_memory()
    return total.item() / count, count, torch.cat(window_nats).cpu()


def full_batch_size(config: Config) -> int:
    """Windows per batch of a full pass; the last batch may be smaller."""
    return max(config.train.batch_size, FULL_BATCH_TOKENS // config.train.seq_len)
