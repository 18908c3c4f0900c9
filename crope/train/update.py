"""One update of the parameters: batch, forward, loss, backward, clipping, AdamW."""

import re
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import AdamW

from crope.config import Config, TrainConfig
from crope.data.batches import TokenArray, draw_offsets, windows
from crope.seeding import torch_seed
from crope.train.checkpoint import TrainState
from crope.train.graphs import Captured, Graphs
from crope.train.losses import LossFunction

QKV = re.compile(r"\.[qkv]_proj\.")


class Updates:
    """The updates of an attempt that begins at step `start`; each is one CUDA graph if `graphs` are
    given.

    Offsets and rates of all steps are made at once and lie on the device: a step then copies nothing
    from the host, for which a GPU would wait.
    """

    def __init__(
        self,
        state: TrainState,
        loss_function: LossFunction,
        tokens: TokenArray,
        config: Config,
        *,
        start: int = 0,
        graphs: Graphs | None = None,
    ) -> None:
        self.state, self.loss_function, self.config = state, loss_function, config
        self.tokens, self.start = torch.as_tensor(tokens), start
        device, steps = self.tokens.device, range(start, config.train.max_steps)
        offsets_SB = [
            draw_offsets(tokens, config=config, step=step, purpose="train") for step in steps
        ]
        self.offsets_SB = torch.from_numpy(np.array(offsets_SB)).to(device)
        # Numbers on a CPU, where AdamW rounds a tensor to float32.
        self.rates: Any = [config.train.learning_rate(step) for step in steps]
        if device.type == "cuda":
            self.rates = torch.tensor(self.rates, device=device)
        self.update = Captured(self._update, graphs) if graphs else self._update

    def train_step(self, *, step: int) -> tuple[Tensor, Tensor | None]:
        """Updates the parameters once; returns the batch's loss and, if train.grad_clip is set, the
        gradient norm before clipping, both still on the device. The norm is valid until the next
        step.
        """
        if self.config.model.dropout:
            torch.manual_seed(torch_seed(self.config.seed, "dropout", step))
        at = step - self.start
        loss, norm = self.update(self.offsets_SB[at], self.rates[at])
        return loss.clone(), norm

    def _update(self, offsets_B: Tensor, lr: float | Tensor) -> tuple[Tensor, Tensor | None]:
        """Makes an update. A replay runs none of its Python, and writes the same gradients."""
        train, optimizer = self.config.train, self.state.optimizer
        self.state.model.train()
        # Not after the update: `Meter.add` takes the norm of the gradients.
        optimizer.zero_grad(set_to_none=True)
        loss = self.loss_function(*windows(self.tokens, offsets_B, train.seq_len))
        loss.backward()
        norm = None
        if train.grad_clip:
            norm = nn.utils.clip_grad_norm_(self.state.model.parameters(), train.grad_clip)
        for group in optimizer.param_groups:
            group["lr"] = group["lr_factor"] * lr
            # Always true, AdamW would warn of the warm-up.
            group["capturable"] = self.tokens.is_cuda and torch.cuda.is_current_stream_capturing()
        optimizer.step()
        return loss.detach(), norm


def build_optimizer(model: nn.Module, config: TrainConfig) -> AdamW:
    """Builds AdamW of Sec. 5.3; on request Q, K and V as a second group, with another rate.

    Weight decay applies to every parameter, as with torch's model.parameters().
    """
    groups: list[dict[str, Any]] = [{"params": list(model.parameters()), "lr_factor": 1.0}]
    if config.qkv_lr_factor != 1:
        qkv: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            (qkv if QKV.search(name) else others).append(parameter)
        groups = [
            {"params": others, "lr_factor": 1.0},
            {"params": qkv, "lr_factor": config.qkv_lr_factor},
        ]
    return AdamW(
        groups,
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )
