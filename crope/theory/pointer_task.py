"""Sec. 4.3 as a training task: does one layer learn to attend to the targets of "next" and
"nexnext"?

Sequences of random tokens, half of them pointers. At a pointer, the layer has to predict the token
one or two places ahead. One attention layer of each model (no FFN, no norm, one head, no mask)
between a token embedding and a head; trained on short sequences and evaluated on longer ones too.

Shapes: B batch, T tokens, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import StepLR

from crope.config import ModelConfig
from crope.model.attention import CausalAttention
from crope.model.positions import build_positions
from crope.seeding import stream
from crope.theory.constructions import attend, attention_weights

# Position and projection of the models.
MODELS = {
    "xpos": ("sinusoidal", "real"),
    "rope": ("rotary", "real"),
    "crope": ("rotary", "complex"),
}
NEXT, NEXNEXT = 0, 1  # token ids; a pointer's id + 1 is how far ahead it points
EXAMPLE = (2, 0, 3, 1, 4, 0, 1, 5, 6, 1, 0, 7)  # the sequence of Fig. 3


@dataclass(frozen=True)
class Training:
    """AdamW and StepLR of a task: `lr` times `lr_gamma` after every tenth of the run, which are the
    proportions of Sec. 5.3.
    """

    batch_size: int = 32
    max_steps: int = 1500
    lr: float = 3e-3
    lr_gamma: float = 0.8


@dataclass(frozen=True)
class Task(Training):
    """All settings that a result depends on; the same for all models."""

    width: int = 64
    words: int = 32
    seq_len: int = 32
    lengths: tuple[int, ...] = (32, 64, 128, 256)
    sequences: int = 64  # evaluated at each length

    @property
    def vocab_size(self) -> int:
        return 2 + self.words


class PointerModel(nn.Module):
    """tokens_BT -> logits_BTV through one attention layer without a causal mask."""

    def __init__(self, model: str, task: Task, *, seed: int) -> None:
        super().__init__()
        position, projection = MODELS[model]
        config = ModelConfig(
            position=position, projection=projection, n_layers=1, n_heads=1, d_model=task.width
        )
        self.embedding = nn.Embedding(task.vocab_size, task.width)
        self.positions = build_positions(config, max_len=max(task.lengths))
        self.attention = CausalAttention(config)
        self.head = nn.Linear(task.width, task.vocab_size)
        for name, parameter in self.named_parameters():
            # Embeddings and outputs of every layer start at order 1: there is no norm.
            std = 1.0 if name == "embedding.weight" else task.width**-0.5
            if name.endswith("bias"):
                std = 0.0
            values = stream(seed, f"pointer/{name}").normal(0.0, std, tuple(parameter.shape))
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(values))

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        x_BTD = self.positions.embed(self.embedding(tokens_BT))
        # A causal layer cannot see a target ahead.
        return self.head(attend(self.attention, self.positions, x_BTD, causal=False))

    def weights(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """Attention weights of the one head, (B, T, T)."""
        x_BTD = self.positions.embed(self.embedding(tokens_BT))
        return attention_weights(self.attention, self.positions, x_BTD, causal=False)[:, 0]


def sample_tokens(
    task: Task, shape: tuple[int, int], generator: np.random.Generator
) -> torch.Tensor:
    """Random words, each replaced by a pointer of either kind with probability 1/4; tokens_BT of
    this shape, int64.
    """
    words = generator.integers(2, task.vocab_size, size=shape)
    pointers = generator.integers(0, 2, size=shape)
    return torch.from_numpy(np.where(generator.random(shape) < 0.5, pointers, words))


def targets(tokens_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Position that each token points to, and whether it is a pointer to a token of the sequence;
    (B, T) both.
    """
    target_BT = torch.arange(tokens_BT.shape[1]) + tokens_BT + 1
    asked_BT = (tokens_BT <= NEXNEXT) & (target_BT < tokens_BT.shape[1])
    return target_BT.where(asked_BT, 0), asked_BT


def pointer_loss(model: PointerModel, tokens_BT: torch.Tensor) -> torch.Tensor:
    """Cross entropy, in nats, of the target token, averaged over pointers."""
    target_BT, asked_BT = targets(tokens_BT)
    return F.cross_entropy(model(tokens_BT)[asked_BT], tokens_BT.gather(1, target_BT)[asked_BT])


@torch.no_grad()
def evaluate_pointers(model: PointerModel, tokens_BT: torch.Tensor) -> dict[str, float]:
    """`weight`: mean attention weight of pointers on their targets. `accuracy`: fraction of
    pointers to a word whose prediction is that word.
    """
    target_BT, asked_BT = targets(tokens_BT)
    answer_BT = tokens_BT.gather(1, target_BT)
    weight_BT = model.weights(tokens_BT).gather(2, target_BT[..., None])[..., 0]
    right_BT = model(tokens_BT).argmax(-1) == answer_BT
    # Without pointers to pointers: a quarter of all tokens are of one kind, so guessing that kind
    # would score.
    to_word_BT = asked_BT & (answer_BT > NEXNEXT)
    return {
        "accuracy": right_BT[to_word_BT].double().mean().item(),
        "weight": weight_BT[asked_BT].double().mean().item(),
    }


def optimise(
    model: nn.Module, batch_loss: Callable[[int], torch.Tensor], training: Training
) -> float:
    """Trains `model` on the loss of each step's batch; returns the mean loss over the last 50 steps."""
    optimizer = AdamW(
        model.parameters(),
        lr=training.lr,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0.01,
        fused=True,
    )
    # At least 1, for the few steps of a trial.
    tenth = max(1, training.max_steps // 10)
    scheduler = StepLR(optimizer, step_size=tenth, gamma=training.lr_gamma)
    losses = []
    for step in range(training.max_steps):
        loss = batch_loss(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    # One batch alone is noisy.
    last = losses[-50:]
    return sum(last) / len(last)


def training_batch(task: Task, *, seed: int, step: int) -> torch.Tensor:
    """tokens_BT, the same for all models."""
    shape = (task.batch_size, task.seq_len)
    return sample_tokens(task, shape, stream(seed, "pointer/train", step))


def train_pointers(name: str, task: Task, *, seed: int) -> tuple[PointerModel, float]:
    """The trained model and its mean loss over the last 50 steps."""
    model = PointerModel(name, task, seed=seed)

    def batch_loss(step: int) -> torch.Tensor:
        return pointer_loss(model, training_batch(task, seed=seed, step=step))

    loss = optimise(model, batch_loss, task)
    return model, loss


def pointer_results(task: Task, *, seeds: int) -> dict[str, Any]:
    """Every model and seed: final loss, accuracy and weight at each length; the attention of seed 0
    on EXAMPLE.

    Prints one line per run.
    """
    torch.set_num_threads(1)  # numbers must not depend on the number of cores
    held_out = {}
    for length in task.lengths:
        shape, generator = (task.sequences, length), stream(0, "pointer/test", length)
        held_out[str(length)] = sample_tokens(task, shape, generator)
    runs, example = [], {}
    for seed in range(seeds):
        for name in MODELS:
            model, loss = train_pointers(name, task, seed=seed)
            by_length = {key: evaluate_pointers(model, x_BT) for key, x_BT in held_out.items()}
            runs.append({"model": name, "seed": seed, "loss_nats": loss, "by_length": by_length})
            if seed == 0:
                example[name] = model.weights(torch.tensor([EXAMPLE]))[0].tolist()
            print(f"{name} seed {seed}: loss {loss:.3f} nats", flush=True)
    return {"task": asdict(task), "runs": runs, "attention": example}
