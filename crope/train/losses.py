"""Reference loss, the loss functions of a run, sampled and full validation."""

import signal
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from crope.config import Config
from crope.data.batches import TokenArray, full_pass, sample_batch
from crope.model.gpt import GPT
from crope.train.device import compiles, return_freed_memory
from crope.train.graphs import Captured, Graphs

# The mean does not depend on how windows are batched; one window at a time would leave most of a
# device idle.
FULL_BATCH_TOKENS = 4096

# (inputs_BT, targets_BT) -> nats, the mean over all tokens.
LossFunction = Callable[[Tensor, Tensor], Tensor]
# (inputs_BT, targets_BT) -> the mean of each window by name, (B,) each.
ValidationFunction = Callable[[Tensor, Tensor], dict[str, Tensor]]


def cross_entropy(
    model: GPT, inputs_BT: Tensor, targets_BT: Tensor, *, bf16: bool = False, masked: bool = False
) -> Tensor:
    """Computes the reference loss, the source of every reported number: mean next-token cross
    entropy in nats, on request under bf16 autocast.

    masked    equal to rounding, without a copy of the logits' gradient (`GPT.masked_logits`)
    """
    logits_BTV = float_logits(model, inputs_BT, bf16=bf16, masked=masked)
    return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())


def float_logits(model: GPT, inputs_BT: Tensor, *, bf16: bool, masked: bool = False) -> Tensor:
    """Computes logits, (B, T, V or P), in float32 under autocast too, as the log-sum-exp of the loss
    then is; those of float64 models (tests) stay float64.
    """
    # None, not a disabled one: a function that enters autocast is no part of the compiler's cache.
    autocast = torch.autocast(inputs_BT.device.type, torch.bfloat16) if bf16 else nullcontext()
    with autocast:
        logits_BTV = (model.masked_logits if masked else model.logits)(model(inputs_BT))
    return logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32))


def token_losses(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Computes the reference loss of each token, (B, T), not averaged."""
    losses = F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction="none")
    return losses.view_as(targets_BT)


def build_losses(
    model: GPT, config: Config, device: torch.device, graphs: Graphs | None = None
) -> tuple[LossFunction, ValidationFunction]:
    """Builds functions of (inputs_BT, targets_BT): for training the loss in nats, the mean over all
    tokens, for validation the means of each window.

    They use bf16 autocast if train.precision says so and are compiled where that pays, as one graph
    without fallback to eager; with `graphs` a validation batch is a CUDA graph. Shorter last batches
    of a full pass run eagerly, row by row: each shape would need its own compilation, and eager
    logits of many rows would exceed a training step's memory.
    """
    bf16 = config.train.precision == "bf16"

    def training(inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        return cross_entropy(model, inputs_BT, targets_BT, bf16=bf16, masked=True)

    def window_means(inputs_BT: Tensor, targets_BT: Tensor) -> dict[str, Tensor]:
        logits_BTV = float_logits(model, inputs_BT, bf16=bf16)
        return {"loss_nats": token_losses(logits_BTV, targets_BT).mean(dim=-1)}

    whole: ValidationFunction = window_means
    if compiles(config, device):
        training = shielded(torch.compile(training, dynamic=False, fullgraph=True))
        whole = shielded(torch.compile(window_means, dynamic=False, fullgraph=True))
    elif graphs is None:
        return training, window_means
    batch_sizes = (config.train.batch_size, full_batch_size(config))
    by_size = {size: Captured(whole, graphs) if graphs else whole for size in batch_sizes}

    def validation(inputs_BT: Tensor, targets_BT: Tensor) -> dict[str, Tensor]:
        if inputs_BT.shape[1] == config.train.seq_len and len(inputs_BT) in by_size:
            return by_size[len(inputs_BT)](inputs_BT, targets_BT)
        pairs = zip(inputs_BT.split(1), targets_BT.split(1), strict=True)
        rows = [window_means(*pair) for pair in pairs]
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}

    return training, validation


def shielded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps Ctrl-C and a scheduler's signal, which reach a whole process group, from the compilers
    that a call starts: one that ends so leaves an empty library in torch's cache, and every later
    run would fail on it. A stop is requested after the call.
    """

    def call_shielded(inputs_BT: Tensor, targets_BT: Tensor) -> Any:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            return function(inputs_BT, targets_BT)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return call_shielded


def sampled_means(
    validation: ValidationFunction, tokens: TokenArray, *, config: Config, step: int
) -> dict[str, float]:
    """Computes the means over eval.batches random B x L batches, by metric (val/loss_nats)."""
    totals: dict[str, Any] = defaultdict(float)  # tensors on the device, for which nothing waits
    for index in range(config.eval.batches):
        batch = sample_batch(tokens, config=config, step=step, purpose=f"validation/{index}")
        for key, mean_B in validation(*batch).items():
            totals[f"val/{key}"] += mean_B.double().mean()
    return {metric: float(total) / config.eval.batches for metric, total in totals.items()}


def full_means(
    validation: ValidationFunction,
    tokens: TokenArray,
    *,
    name: str,
    config: Config,
    max_tokens: int,
    may_end: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Computes the means over the split by metric (<name>/loss_nats), and in <name>/tokens how many
    targets they average.

    max_tokens selects an evenly spaced subset of windows; 0 is the whole split. `may_end` is called
    before each batch: the pass can take minutes.
    """
    totals: dict[str, Any] = defaultdict(float)
    count = 0
    windows = full_pass(
        tokens,
        seq_len=config.train.seq_len,
        batch_size=full_batch_size(config),
        max_tokens=max_tokens,
    )
    for number, (inputs_BT, targets_BT) in enumerate(windows, 1):
        may_end()
        for key, mean_B in validation(inputs_BT, targets_BT).items():
            # By targets, not by windows: the last one of a split may be shorter.
            totals[f"{name}/{key}"] += mean_B.double().sum() * targets_BT.shape[1]
        count += targets_BT.numel()
        if inputs_BT.is_cpu and number % 4 == 0:
            return_freed_memory()
    means = {metric: float(total) / count for metric, total in totals.items()}
    return {**means, f"{name}/tokens": count}


def full_batch_size(config: Config) -> int:
    """Returns how many windows a batch of a full pass has; the last may have fewer."""
    return max(config.train.batch_size, FULL_BATCH_TOKENS // config.train.seq_len)
