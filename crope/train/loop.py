"""The training loop: evaluate if due, batch, forward, loss, backward, AdamW, log if due, save if
due.

"step" is always the number of optimiser updates done: the line of step s holds the validation loss
after s updates and the training loss of the batch that makes update s + 1.
"""

import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from crope.config import Config, TrainConfig
from crope.data.batches import TokenArray, resident, sample_batch
from crope.data.corpora import SPLITS
from crope.data.tokens import TokenSet
from crope.files import MetricsWriter, write_array
from crope.model.counting import train_flops_per_token
from crope.model.gpt import GPT
from crope.runs.identity import run_hash
from crope.seeding import torch_seed
from crope.train.checkpoint import TrainState, load_checkpoint, save_checkpoint, save_weights
from crope.train.device import can_compile, peak_flops, prepare_device
from crope.train.losses import (
    LossFunction,
    cross_entropy,
    full_batch_size,
    full_loss,
    sampled_loss,
    token_losses,
)

# Compiling takes about 30 s. On two CPU cores it saves about a quarter of each step; on a GPU it
# saves the launches of several hundred kernels, an estimated 5 to 10 ms per step
# (docs/performance.md).
COMPILE_PAYS_TOKENS = 5_000_000  # of a run on a CPU
COMPILE_PAYS_STEPS = 2_000  # of a run on a GPU

QKV = re.compile(r"\.[qkv]_proj\.")

Line = dict[str, float]


class Stopped(BaseException):
    """Training ended early on request; everything up to `step` is saved.

    A BaseException like KeyboardInterrupt, so that code which catches a failing run's exception
    does not catch it.
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after a checkpoint at step {step}")


class NonFiniteLoss(ArithmeticError):
    """A loss, or another metric of this name, became NaN or infinite after `step` updates."""

    def __init__(self, metric: str, step: int) -> None:
        super().__init__(
            f"{metric} is not finite at step {step}; try a lower train.lr or train.precision=fp32"
        )
        self.step = step


def train(
    model: GPT,
    tokens: TokenSet,
    config: Config,
    folder: Path,
    *,
    log: Callable[[Line], None] = lambda line: None,
    stop_requested: Callable[[], bool] = lambda: False,
) -> float:
    """Trains to the last step, from the newest checkpoint if there is one; writes checkpoints,
    metrics.jsonl, val_windows.npy and weights.pt. Returns the seconds it took, those before the
    checkpoint included.

    Raises NonFiniteLoss; Stopped after saving, if `stop_requested()`.
    """
    device = prepare_device(config.runtime)
    model.to(device)
    state = TrainState(model, build_optimizer(model, config.train))
    training_loss, validation_loss = build_losses(model, config, device)
    corpus = replace(
        tokens, train=resident(tokens.train, device), validation=resident(tokens.validation, device)
    )
    made_with = {"run": run_hash(asdict(config)), "kind of device": device.type}
    for split in SPLITS:
        made_with[f"{split} corpus"] = str(tokens.meta["splits"][split]["sha256"])
    start, seconds_before, kept_bytes = load_checkpoint(folder, state, made_with=made_with)
    began = time.perf_counter() - seconds_before
    meter = Meter(config, tokens.vocab_size, device)
    with MetricsWriter(folder / "metrics.jsonl", keep=kept_bytes) as metrics:

        def save(step: int) -> None:
            meter.check_finite()
            save_checkpoint(
                folder,
                state,
                step=step,
                seconds=time.perf_counter() - began,
                metrics_size=metrics.sync(),
                made_with=made_with,
            )

        saved_at = time.perf_counter()
        for step in range(start, config.train.max_steps + 1):
            unsaved_seconds = time.perf_counter() - saved_at
            if step > start and unsaved_seconds >= config.runtime.checkpoint_seconds:
                with meter.paused():
                    save(step)
                saved_at = time.perf_counter()
            try:
                with meter.paused(config.validates_at(step)):
                    line, window_nats = validate(
                        validation_loss, state, corpus, config, step, device, stop_requested
                    )
            except Stopped:  # after `step` updates, before or within their validation
                save(step)
                raise
            if step < config.train.max_steps:
                loss = train_step(
                    state,
                    training_loss,
                    corpus.train,
                    config=config,
                    step=step,
                    lr=config.train.learning_rate(step),
                    device=device,
                )
                meter.add(loss, step)
                if step % config.runtime.log_every == 0:
                    line |= meter.read(loss, model, lr=state.optimizer.param_groups[0]["lr"])
            if line:
                meter.check_finite()
                for metric, value in line.items():
                    if not math.isfinite(value):
                        raise NonFiniteLoss(metric, step)
                metrics.write({"step": step, **line})
                log({"step": step, **line})
    assert window_nats is not None  # of the last step
    write_array(folder / "val_windows.npy", window_nats)
    save_weights(folder / "weights.pt", model)
    return time.perf_counter() - began


def train_step(
    state: TrainState,
    loss_function: LossFunction,
    tokens: TokenArray,
    *,
    config: Config,
    step: int,
    lr: float,
    device: torch.device,
) -> Tensor:
    """One update of the parameters at the rate `lr`; returns the loss of its batch, still on the
    device.
    """
    inputs_BT, targets_BT = sample_batch(
        tokens,
        seed=config.seed,
        step=step,
        batch_size=config.train.batch_size,
        seq_len=config.train.seq_len,
        purpose="train",
    )
    if config.model.dropout:
        torch.manual_seed(torch_seed(config.seed, "dropout", step))
    if not state.model.training:  # setting it walks through all modules
        state.model.train()
    # Not after the update: `Meter.read` takes the norm of the gradients.
    state.optimizer.zero_grad(set_to_none=True)
    loss = loss_function(inputs_BT.to(device), targets_BT.to(device))
    loss.backward()
    factors = (1.0, config.train.qkv_lr_factor)  # as build_optimizer makes the groups
    for group, factor in zip(state.optimizer.param_groups, factors, strict=False):
        group["lr"] = factor * lr
    state.optimizer.step()
    return loss.detach().clone()  # a CUDA graph's next replay overwrites the loss itself


@torch.no_grad()
def validate(
    loss_function: LossFunction,
    state: TrainState,
    tokens: TokenSet,
    config: Config,
    step: int,
    device: torch.device,
    stop_requested: Callable[[], bool],
) -> tuple[Line, Tensor | None]:
    """The validation losses that are due after `step` updates; after the last one also the training
    split's, and the loss of each window of the full validation pass.

    Raises Stopped on a stop request, also between validation batches, because a full pass can take
    minutes.
    """
    line: Line = {}
    last = step == config.train.max_steps

    def loss(inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        if stop_requested():
            raise Stopped(step)
        return loss_function(inputs_BT, targets_BT)

    if stop_requested():
        raise Stopped(step)
    if not config.validates_at(step):
        return line, None
    state.model.eval()
    window_nats = None
    if last or step % config.eval.every == 0:
        line["val/loss_nats"] = sampled_loss(
            loss, tokens.validation, config=config, step=step, device=device
        )
    if last or (step and step % config.eval.full_every == 0):
        line["val_full/loss_nats"], count, windows = full_loss(
            loss, tokens.validation, config=config, device=device
        )
        line["val_full/tokens"] = count
        if last:
            window_nats = windows
            line["train_full/loss_nats"], line["train_full/tokens"], _ = full_loss(
                loss, tokens.train, config=config, device=device, max_tokens=count
            )
    return line, window_nats


def build_optimizer(model: nn.Module, config: TrainConfig) -> AdamW:
    """AdamW of Sec. 5.3; on request Q, K and V as a second group, with another rate.

    Weight decay applies to every parameter, as with torch's model.parameters().
    """
    groups: list[dict[str, Any]] = [{"params": list(model.parameters())}]
    if config.qkv_lr_factor != 1:
        qkv = [p for name, p in model.named_parameters() if QKV.search(name)]
        others = [p for name, p in model.named_parameters() if not QKV.search(name)]
        groups = [{"params": others}, {"params": qkv}]
    return AdamW(
        groups,
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def build_losses(
    model: GPT, config: Config, device: torch.device
) -> tuple[LossFunction, LossFunction]:
    """Loss functions of (inputs_BT, targets_BT) in nats: for training the mean over all tokens, for
    validation the mean of each window, (B,).

    Under bf16 autocast if train.precision says so; compiled where that pays, as one graph without
    fallback to eager. The shorter last batches of a full pass run eagerly and row by row: each
    shape would need a compilation of its own, and eager logits of many rows would exceed the memory
    of a training step.
    """
    bf16 = config.train.precision == "bf16"

    def mean_loss(inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            return cross_entropy(model, inputs_BT, targets_BT)

    def window_losses(inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        return token_losses(model, inputs_BT, targets_BT, bf16=bf16).mean(dim=-1)

    if not compiles(config, device):
        return mean_loss, window_losses
    mode = "reduce-overhead" if config.runtime.cuda_graphs and device.type == "cuda" else None
    training = torch.compile(mean_loss, dynamic=False, fullgraph=True, mode=mode)
    compiled = torch.compile(window_losses, dynamic=False, fullgraph=True)
    shapes = {
        (batch, config.train.seq_len)
        for batch in (config.train.batch_size, full_batch_size(config))
    }

    def validation(inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        if tuple(inputs_BT.shape) in shapes:
            return compiled(inputs_BT, targets_BT)
        rows = zip(inputs_BT.split(1), targets_BT.split(1), strict=True)
        return torch.cat([window_losses(*row) for row in rows])

    return training, validation


def compiles(config: Config, device: torch.device) -> bool:
    """Whether a run uses torch.compile: if asked to, or by `auto` for CUDA graphs or if it pays
    within the run's length; never where the machine cannot compile.
    """
    wanted = config.runtime.compile == "true"
    if config.runtime.compile == "auto":
        tokens = config.train.max_steps * config.train.batch_size * config.train.seq_len
        if device.type == "cpu":
            wanted = tokens >= COMPILE_PAYS_TOKENS
        else:
            wanted = config.runtime.cuda_graphs or config.train.max_steps >= COMPILE_PAYS_STEPS
    return wanted and can_compile(device.type)


class Meter:
    """Speed and finiteness of the training steps.

    Only `read`, `check_finite` and `paused` wait for the device.
    """

    def __init__(self, config: Config, vocab_size: int, device: torch.device) -> None:
        self.device = device
        self.tokens_per_step = config.train.batch_size * config.train.seq_len
        self.flops_per_step = self.tokens_per_step * train_flops_per_token(
            config.model, vocab_size=vocab_size, seq_len=config.train.seq_len
        )
        self.peak = peak_flops(device, config.train.precision)
        self.losses: list[Tensor] = []  # not yet checked, the last one that of step `last_step`
        self.last_step = 0
        self.steps, self.started, self.pause = 0, time.perf_counter(), 0.0

    def add(self, loss: Tensor, step: int) -> None:
        self.steps += 1
        self.last_step = step
        self.losses.append(loss)

    def check_finite(self) -> None:
        """Raises NonFiniteLoss for the first non-finite training loss since the last call."""
        if not self.losses:
            return
        finite = torch.stack(self.losses).isfinite().tolist()
        first_step = self.last_step - len(finite) + 1
        self.losses.clear()
        if not all(finite):
            raise NonFiniteLoss("train/loss_nats", first_step + finite.index(False))

    def read(self, loss: Tensor, model: nn.Module, *, lr: float) -> Line:
        """A training line: this batch's loss and the norm of its gradient, and the mean speed since
        the last line without validation.
        """
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients).item()
        line: Line = {"train/loss_nats": loss.item(), "train/grad_norm": norm, "train/lr": lr}
        seconds = (time.perf_counter() - self.started - self.pause) / self.steps
        line["time/step_ms"] = 1000 * seconds
        line["speed/tokens_per_s"] = self.tokens_per_step / seconds
        if self.peak:
            line["speed/mfu_pct"] = 100 * self.flops_per_step / seconds / self.peak
        if self.device.type == "cuda":
            line["memory/peak_gib"] = torch.cuda.max_memory_allocated(self.device) / 2**30
        self.steps, self.started, self.pause = 0, time.perf_counter(), 0.0
        return line

    @contextmanager
    def paused(self, wanted: bool = True) -> Iterator[None]:
        """Excludes the block (validation, a checkpoint) from the step times; waits first for steps
        queued on a GPU.
        """
        if wanted and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        started = time.perf_counter()
        yield
        self.pause += time.perf_counter() - started
