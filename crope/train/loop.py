"""The training loop: save once, then save if due, evaluate if due, batch, forward, loss, backward,
AdamW, log if due.

"step" is always the number of optimiser updates done: the line of step s holds the validation loss
after s updates and the training loss of update s + 1.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from crope.config import Config
from crope.data.batches import resident
from crope.data.corpora import SPLITS
from crope.data.tokens import TokenSet
from crope.files import MetricsWriter, write_bytes
from crope.model.gpt import GPT
from crope.train.checkpoint import TrainState, load_checkpoint, save_checkpoint, weights_bytes
from crope.train.device import prepare_device
from crope.train.graphs import build_graphs
from crope.train.losses import ValidationFunction, build_losses, full_means, sampled_means
from crope.train.update import Updates, build_optimizer

Line = dict[str, float]


class Stopped(BaseException):
    """An early end of training on request, after a checkpoint at `step`.

    A BaseException like KeyboardInterrupt: code for a failing run's exception must not catch it.
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after a checkpoint at step {step}")


class NonFiniteLoss(ArithmeticError):
    """A loss, or other metric of this name, that is NaN or infinite after `step` updates."""

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
    run_id: str,
    log: Callable[[Line], None] = lambda line: None,
    stop_requested: Callable[[], bool] = lambda: False,
) -> float:
    """Trains to the last step, from the newest checkpoint if any; returns all seconds it took.

    Writes checkpoints, metrics and weights. Raises NonFiniteLoss; Stopped if `stop_requested()`.
    """
    device = prepare_device(config.runtime)
    optimizer = build_optimizer(model.to(device), config.train)
    state = TrainState(model, optimizer, _made_with(run_id, tokens, device))
    graphs = build_graphs(config.runtime, device)
    training, validation = build_losses(model, config, device, graphs)
    corpus = _on_device(tokens, device)
    start, seconds_before, kept_bytes = load_checkpoint(folder, state)
    updates = Updates(state, training, corpus.train, config, start=start, graphs=graphs)
    saved_at = time.perf_counter()
    began = saved_at - seconds_before
    with MetricsWriter(folder / "metrics.jsonl", keep=kept_bytes) as metrics:
        meter = Meter(config, device)

        def save(step: int) -> None:
            with meter.paused():
                meter.check_finite({}, step)  # weights that are not finite are not saved
                seconds, size = time.perf_counter() - began, metrics.sync()
                save_checkpoint(folder, state, step=step, seconds=seconds, metrics_size=size)

        def may_end(step: int) -> None:
            if stop_requested():
                save(step)
                raise Stopped(step)

        if start == 0:  # a run that cannot be saved fails now, not after its last step
            weights_bytes(model, run_id=run_id)
            save(0)
        for step in range(start, config.train.max_steps + 1):
            may_end(step)
            line: Line = {}
            if step > start and time.perf_counter() - saved_at >= config.runtime.checkpoint_seconds:
                save(step)
                saved_at = time.perf_counter()
            if config.validates_at(step):
                with meter.paused():
                    line = validate(
                        state, validation, corpus, config, step=step, may_end=partial(may_end, step)
                    )
            if step < config.train.max_steps:
                line |= meter.add(*updates.train_step(step=step), step, state)
            if line:
                meter.check_finite(line, step)
                metrics.write({"step": step, **line})
                log({"step": step, **line})
    write_bytes(folder / "weights.safetensors", weights_bytes(model, run_id=run_id))
    return time.perf_counter() - began


def _on_device(tokens: TokenSet, device: torch.device) -> TokenSet:
    train, validation = (resident(part, device) for part in (tokens.train, tokens.validation))
    return replace(tokens, train=train, validation=validation)


def _made_with(run_id: str, tokens: TokenSet, device: torch.device) -> dict[str, str]:
    """Returns what must be equal for a run to continue from a checkpoint."""
    # The run by its hash alone, as checkpoints of earlier versions name it.
    made_with = {"run": run_id.rpartition("-")[2], "kind of device": device.type}
    for split in SPLITS:
        made_with[f"{split} corpus"] = tokens.meta["splits"][split]["sha256"]
    return made_with


@torch.no_grad()
def validate(
    state: TrainState,
    validation: ValidationFunction,
    tokens: TokenSet,
    config: Config,
    *,
    step: int,
    may_end: Callable[[], None],
) -> Line:
    """Computes the validation means due after `step` updates; after the last also the training
    split's. `may_end` is called before each batch of a full pass, which can take minutes.
    """
    line: Line = {}
    last = step == config.train.max_steps
    state.model.eval()
    full = partial(full_means, validation, config=config, may_end=may_end)
    if last or step % config.eval.every == 0:
        line |= sampled_means(validation, tokens.validation, config=config, step=step)
    if last or (step and step % config.eval.full_every == 0):
        line |= full(tokens.validation, name="val_full", max_tokens=config.eval.full_tokens)
    if last:  # as many training tokens, so that both means are as exact
        line |= full(tokens.train, name="train_full", max_tokens=int(line["val_full/tokens"]))
    return line


class Meter:
    """Speed and finiteness of the training steps.

    Only a training line, `check_finite` and `paused` wait for the device.
    """

    def __init__(self, config: Config, device: torch.device) -> None:
        self.device = device
        self.losses: dict[int, Tensor] = {}  # by step, not yet checked
        self.config = config
        self._restart()

    def _restart(self) -> None:
        self.steps, self.started, self.pause = 0, time.perf_counter(), 0.0

    def add(self, loss: Tensor, norm: Tensor | None, step: int, state: TrainState) -> Line:
        """Takes what `train_step` returned for update `step`; returns a training line at every
        log_every-th step, else nothing.

        The line has the loss, gradient norm before clipping and rate of this update, and the mean
        speed since the last line, validation excluded.
        """
        self.steps += 1
        self.losses[step] = loss
        if step % self.config.runtime.log_every:
            return {}
        if norm is None:
            gradients = [p.grad for p in state.model.parameters() if p.grad is not None]
            norm = nn.utils.get_total_norm(gradients)
        loss_nats = loss.item()  # waits for the device: before the clock is read
        seconds = (time.perf_counter() - self.started - self.pause) / self.steps
        line: Line = {
            "train/loss_nats": loss_nats,
            "train/grad_norm": norm.item(),
            "train/lr": self.config.train.learning_rate(step),
            "time/step_ms": 1000 * seconds,
            "speed/tokens_per_s": self.config.train.batch_size
            * self.config.train.seq_len
            / seconds,
        }
        if self.device.type == "cuda":
            line["memory/peak_gib"] = torch.cuda.max_memory_allocated(self.device) / 2**30
        self._restart()
        return line

    def check_finite(self, line: Line, step: int) -> None:
        """Raises NonFiniteLoss for the first non-finite training loss since the last call, or for
        a value of this step's line.
        """
        if self.losses:
            finite = torch.stack(list(self.losses.values())).isfinite().tolist()
            steps = list(self.losses)
            self.losses.clear()
            if not all(finite):
                raise NonFiniteLoss("train/loss_nats", steps[finite.index(False)])
        for metric, value in line.items():
            if not math.isfinite(value):
                raise NonFiniteLoss(metric, step)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the block (validation, a checkpoint) from the step times; first waits for queued
        GPU steps.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        started = time.perf_counter()
        yield
        self.pause += time.perf_counter() - started
