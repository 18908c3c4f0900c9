"""Several seeds of one configuration trained as one program: each parameter holds N seeds along a leading dimension.

One of the ways to fill a GPU that one small run leaves idle; `make bench` times it beside the others
(docs/performance.md). Every seed has the initial values, batches and updates that it has alone, so its curve differs
from that one only in the order in which numbers are added up.

Shapes: N seeds, B batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from crope.config import Config
from crope.data.batches import Corpus, sample_batch
from crope.errors import ConfigError
from crope.loss import cross_entropy
from crope.model.gpt import GPT
from crope.optim import build_optimizer
from crope.trainer import compiles


class SeedBatch:
    """Models, optimiser and schedule of N seeds.

    Raises    ConfigError with dropout (the seeds would share one stream of random numbers), with a loss kernel of its
              own, with CUDA graphs, and with accumulation: none of them has been written for N seeds.
    """

    def __init__(self, config: Config, seeds: Sequence[int], *, vocab_size: int, device: torch.device) -> None:
        runtime = config.runtime
        if config.model.dropout or runtime.loss != "plain" or runtime.cuda_graphs or runtime.accumulate != 1:
            raise ConfigError(
                "seeds train as one program only with model.dropout=0, runtime.loss=plain, runtime.cuda_graphs=false "
                "and runtime.accumulate=1"
            )
        self.config, self.seeds, self.device = config, tuple(seeds), device
        length = config.train.seq_len
        models = [GPT(config.model, vocab_size=vocab_size, max_len=length, seed=seed).to(device) for seed in seeds]
        stacked, _ = stack_module_state(models)
        leaves = nn.ParameterList(stacked.values())
        self.parameters = dict(zip(stacked, leaves, strict=True))
        self.optimizer, self.scheduler = build_optimizer(leaves, config.train)
        loss_N = vmap(_loss_of(models[0]))
        self._loss_N = torch.compile(loss_N, dynamic=False, fullgraph=True) if compiles(config, device) else loss_N

    def train_step(self, tokens: Corpus, step: int) -> Tensor:
        """One update of every seed's parameters; returns the losses of their batches, shape (N,), on the device."""
        train = self.config.train
        pairs = [
            sample_batch(
                tokens, seed=seed, step=step, batch_size=train.batch_size, seq_len=train.seq_len, purpose="train"
            )
            for seed in self.seeds
        ]
        inputs_NBT, targets_NBT = (torch.stack(part).to(self.device) for part in zip(*pairs, strict=True))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=train.precision == "bf16"):
            loss_N = self._loss_N(self.parameters, inputs_NBT, targets_NBT)
        loss_N.sum().backward()  # no seed's loss depends on another's parameters: each gets its own gradient
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.scheduler.step()
        return loss_N.detach()


class _Loss(nn.Module):
    """The reference loss as a module, which is what torch.func calls with other parameters."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        return cross_entropy(self.model, inputs_BT, targets_BT)


def _loss_of(model: GPT) -> Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]:
    """(parameters, inputs_BT, targets_BT) -> loss; tables of the position scheme are the model's own, for all seeds."""
    module = _Loss(model)

    def loss(parameters: dict[str, Tensor], inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        named = {f"model.{name}": parameter for name, parameter in parameters.items()}
        return functional_call(module, named, (inputs_BT, targets_BT))

    return loss
