"""Speed and finiteness of training steps."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from crope.config import Config
from crope.device import peak_flops
from crope.model.counting import train_flops_per_token


class NonFiniteLoss(ArithmeticError):
    """A loss became NaN or infinite; `step` says after how many updates."""

    def __init__(self, split: str, step: int) -> None:
        super().__init__(
            f"{split} loss is not finite at step {step}; a lower train.lr or train.precision=fp32 may help"
        )
        self.step = step


NEVER = 2**62  # a step that no run has


class Meter:
    """Speed and finiteness of the training steps. The device is read only by `read` and `check_finite`."""

    def __init__(self, config: Config, vocab_size: int, device: torch.device) -> None:
        self.device = device
        self.tokens_per_step = config.train.batch_size * config.train.seq_len
        self.flops_per_step = self.tokens_per_step * train_flops_per_token(
            config.model, vocab_size=vocab_size, seq_len=config.train.seq_len
        )
        self.peak = peak_flops(device)
        self.never = torch.tensor(NEVER, device=device)
        self.first_bad = self.never.clone()
        self.steps, self.began, self.pause = 0, time.perf_counter(), 0.0

    def add(self, loss: Tensor, step: int) -> None:
        self.steps += 1
        self.first_bad = torch.minimum(self.first_bad, torch.where(loss.isfinite(), self.never, step))

    def check_finite(self, line: dict[str, float] | None = None, step: int = 0) -> None:
        """Raises NonFiniteLoss for the first bad training loss since the start, else for a bad number in `line`."""
        first_bad = int(self.first_bad)
        if first_bad != NEVER:
            raise NonFiniteLoss("training", first_bad)
        if line and not all(map(math.isfinite, line.values())):
            raise NonFiniteLoss("validation", step)

    def read(self, loss: Tensor, *, lr: float) -> dict[str, float]:
        """A training line: this batch's loss and the mean speed since the last line, validation left out."""
        line: dict[str, float] = {"train/loss_nats": loss.item(), "train/lr": lr}
        seconds = (time.perf_counter() - self.began - self.pause) / self.steps
        line["time/step_ms"] = 1000 * seconds
        line["speed/tokens_per_s"] = self.tokens_per_step / seconds
        if self.peak:
            line["speed/mfu_pct"] = 100 * self.flops_per_step / seconds / self.peak
        if self.device.type == "cuda":
            line["memory/peak_gib"] = torch.cuda.max_memory_allocated(self.device) / 2**30
        self.steps, self.began, self.pause = 0, time.perf_counter(), 0.0
        return line

    @contextmanager
    def paused(self, wanted: bool) -> Iterator[None]:
        """Time within the block (validation) counts as no step's; steps queued on a GPU are waited for first."""
        if wanted and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        began = time.perf_counter()
        yield
        self.pause += time.perf_counter() - began
