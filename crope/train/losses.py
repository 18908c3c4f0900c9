"""Reference loss, the loss functions of a run, sampled and full validation."""

import signal
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from crope.config import Config
from crope.data.batches import TokenArray, full_pass, sample_batch
from crope.model.gpt import GPT
from crope.train.device import compiles, return_freed_memory

# The mean does not depend on how windows are batched; one window at a time would leave most of a
# device idle.
FULL_BATCH_TOKENS = 4096

# (inputs_BT, targets_BT) -> nats: the mean over all tokens in training, (B,) in validation.
LossFunction = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(
    model: GPT,
    inputs_BT: Tensor,
    targets_BT: Tensor,
    *,
    bf16: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Computes the reference loss, the source of every reported number: mean next-token cross
    entropy in nats, on request under bf16 autocast.

    The log-sum-exp is in float32 under autocast too. The head's padding columns are cut off before
    the softmax.
    """
    with torch.autocast(inputs_BT.device.type, torch.bfloat16, enabled=bf16):
        logits_BTV = model.logits(model(inputs_BT))
        # float64 models (tests) stay float64.
        logits_BTV = logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32))
        return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction=reduction)


def token_losses(model: GPT, inputs_BT: Tensor, targets_BT: Tensor, *, bf16: bool) -> Tensor:
    """Computes the reference loss of each token, (B, T), not averaged."""
    losses = cross_entropy(model, inputs_BT, targets_BT, bf16=bf16, reduction="none")
    return losses.view_as(targets_BT)


def build_losses(
    model: GPT, config: Config, device: torch.device
) -> tuple[LossFunction, LossFunction]:
    """Builds loss functions of (inputs_BT, targets_BT) in nats: for training the mean over all
    tokens, for validation the mean of each window, (B,).

    They use bf16 autocast if train.precision says so and are compiled where that pays, as one graph
    without fallback to eager. Shorter last batches of a full pass run eagerly, row by row: each
    shape would need its own compilation, and eager logits of many rows would exceed a training
    step's memory.
    """
    bf16 = config.train.precision == "bf16"

    def mean_loss(inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        return cross_entropy(model, inputs_BT, targets_BT, bf16=bf16)

    def window_losses(inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        return token_losses(model, inputs_BT, targets_BT, bf16=bf16).mean(dim=-1)

    if not compiles(config, device):
        return mean_loss, window_losses
    training = shielded(torch.compile(mean_loss, dynamic=False, fullgraph=True))
    compiled = shielded(torch.compile(window_losses, dynamic=False, fullgraph=True))
    batch_sizes = (config.train.batch_size, full_batch_size(config))
    shapes = [(batch_size, config.train.seq_len) for batch_size in batch_sizes]

    def validation(inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        if tuple(inputs_BT.shape) in shapes:
            return compiled(inputs_BT, targets_BT)
        rows = zip(inputs_BT.split(1), targets_BT.split(1), strict=True)
        return torch.cat([window_losses(*row) for row in rows])

    return training, validation


def shielded(loss: LossFunction) -> LossFunction:
    """Keeps Ctrl-C and a scheduler's signal, which reach a whole process group, from the compilers
    that a call starts: one that ends so leaves an empty library in torch's cache, and every later
    run would fail on it. A stop is requested after the call.
    """

    def shielded_loss(inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            return loss(inputs_BT, targets_BT)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return shielded_loss


def sampled_loss(loss: LossFunction, tokens: TokenArray, *, config: Config, step: int) -> float:
    """Computes the mean loss in nats over eval.batches random B x L batches."""
    total: Any = 0.0  # a tensor on the device, for which nothing waits
    for index in range(config.eval.batches):
        batch = sample_batch(tokens, config=config, step=step, purpose=f"validation/{index}")
        total += loss(*batch).double().mean()
    return float(total) / config.eval.batches


def full_loss(
    loss: LossFunction, tokens: TokenArray, *, config: Config, max_tokens: int | None = None
) -> tuple[float, int]:
    """Computes the mean loss in nats over the split, and how many targets it averages.

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
    """Returns how many windows a batch of a full pass has; the last may have fewer."""
    return max(config.train.batch_size, FULL_BATCH_TOKENS // config.train.seq_len)
