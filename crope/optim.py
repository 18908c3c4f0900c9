"""AdamW and StepLR of Sec. 5.3, every hyperparameter written out."""

from __future__ import annotations

from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import StepLR

from crope.config import TrainConfig


def build_optimizer(model: nn.Module, config: TrainConfig) -> tuple[AdamW, StepLR]:
    """Weight decay falls on every parameter, as torch's AdamW does when given model.parameters()."""
    optimizer = AdamW(
        model.parameters(),
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )
    return optimizer, StepLR(optimizer, step_size=config.lr_step_size, gamma=config.lr_gamma)
