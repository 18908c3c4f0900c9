"""Multi-query associative recall (MQAR): which head width does a model need to find stored pairs?

A sequence stores pairs of a key and a value, then repeats its keys in random order; at each
repeated key, the model has to predict the value of that key (Arora et al. 2023, "Zoology"). All
models are the GPT of this repository with one head, whose width is varied while d_model is fixed.

Prediction, written before the first run. A common phase of all tokens leaves CRoPE's score
unchanged: its bilinear form commutes with J, so matching one feature costs a pair of channels.
CRoPE therefore needs twice the head width of RoPE for the same pairs, as much as `halved`.
`conjugate` has the weights and the channel pairs of CRoPE, but its score depends on the phase: it
needs less than CRoPE. `lowrank` is limited by its rank, which is below half the head width, and
needs at least as much as `halved`.

Objection, written at the same time. Equality of tokens needs every feature, not one, and the form
of all features (x.y, the identity) does commute with J; codes of K real channels for the keys are
codes of K/2 complex ones. If that is all that recall needs, CRoPE needs no wider head than RoPE.

`halved` is RoPE at half the head width, to the bit at equal seed, so its results are read off
RoPE's.

Shapes: B batch, P pairs, T = 3 P tokens, V vocabulary.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from crope.config import ModelConfig
from crope.model.gpt import GPT
from crope.seeding import stream
from crope.theory.pointer_task import optimise

PROJECTIONS = {"rope": "real", "crope": "complex", "conjugate": "conjugate", "lowrank": "lowrank"}
COLUMNS = ["model", "width", "seed", "accuracy", "loss_nats"]


@dataclass(frozen=True)
class Plan:
    """All settings of the experiment; fixed before its first run, the same for all models."""

    # What a run depends on.
    keys: int = 64
    values: int = 64
    pairs: int = 16
    d_model: int = 64
    n_layers: int = 2
    ffn_ratio: float = 1.0
    batch_size: int = 32
    max_steps: int = 4000
    lr: float = 3e-3
    lr_gamma: float = 0.8  # StepLR, decays every tenth of the run: the proportions of Sec. 5.3
    sequences: int = 256  # held out, the same for all runs
    # Which runs there are, and how they are judged.
    widths: tuple[int, ...] = (4, 6, 8, 12, 16, 24, 32)
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    level: float = 0.9  # the accuracy that defines the threshold

    @property
    def run_settings(self) -> dict[str, Any]:
        """What one run depends on, besides model, width and seed."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in ("widths", "seeds", "level")
        }


@dataclass
class HeadConfig(ModelConfig):
    """A decoder whose head width does not follow from d_model: the embedding stays as wide."""

    width: int = 64

    @property
    def attention_width(self) -> int:
        return self.n_heads * self.width // (2 if self.projection == "halved" else 1)


def recall_model(projection: str, plan: Plan, *, width: int, seed: int) -> GPT:
    """Rotary positions, one head of `width` channels (`halved`: half as many)."""
    config = HeadConfig(
        position="rotary",
        projection=projection,
        n_layers=plan.n_layers,
        n_heads=1,
        d_model=plan.d_model,
        ffn_ratio=plan.ffn_ratio,
        width=width,
    )
    return GPT(config, vocab_size=plan.keys + plan.values, max_len=3 * plan.pairs, seed=seed)


def sample_recall(
    plan: Plan, *, seed: int, step: int, sequences: int, purpose: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """tokens_BT: P pairs key value, then the P keys in random order; answers_BP: the values of the
    latter.

    Keys are tokens 0 .. keys - 1, no two alike in a sequence. Values are the tokens after them,
    drawn independently: without the pairs, no guess is better than one of `values`.
    """
    generator = stream(seed, f"recall/{purpose}", step)
    every_key = np.tile(np.arange(plan.keys), (sequences, 1))
    keys_BP = generator.permuted(every_key, axis=1)[:, : plan.pairs]
    values_BP = plan.keys + generator.integers(plan.values, size=keys_BP.shape)
    order_BP = generator.permuted(np.tile(np.arange(plan.pairs), (sequences, 1)), axis=1)
    stored_BT = np.stack((keys_BP, values_BP), axis=-1).reshape(sequences, -1)
    queries_BP, answers_BP = (
        np.take_along_axis(tokens_BP, order_BP, axis=1) for tokens_BP in (keys_BP, values_BP)
    )
    tokens_BT = np.concatenate((stored_BT, queries_BP), axis=1)
    return torch.from_numpy(tokens_BT), torch.from_numpy(answers_BP)


def query_logits(model: GPT, tokens_BT: torch.Tensor) -> torch.Tensor:
    """Logits at the queries, (B, P, V)."""
    return model.logits(model(tokens_BT)[:, tokens_BT.shape[1] * 2 // 3 :])


def recall_accuracy(logits_BPV: torch.Tensor, answers_BP: torch.Tensor) -> float:
    """Fraction of queries whose most likely token, of the whole vocabulary, is the answer."""
    return (logits_BPV.argmax(-1) == answers_BP).double().mean().item()


def train_recall(model: str, plan: Plan, *, width: int, seed: int) -> dict[str, Any]:
    """One run: `loss_nats` over the last 50 steps, `accuracy` on held-out sequences.

    All models see the same batches at the same seed, and all runs the same held-out sequences.
    """
    gpt = recall_model(PROJECTIONS[model], plan, width=width, seed=seed)

    def batch_loss(step: int) -> torch.Tensor:
        tokens_BT, answers_BP = sample_recall(
            plan, seed=seed, step=step, sequences=plan.batch_size, purpose="train"
        )
        return F.cross_entropy(query_logits(gpt, tokens_BT).mT, answers_BP)

    loss = optimise(gpt, batch_loss, steps=plan.max_steps, lr=plan.lr, lr_gamma=plan.lr_gamma)
    tokens_BT, answers_BP = sample_recall(
        plan, seed=0, step=0, sequences=plan.sequences, purpose="test"
    )
    with torch.no_grad():
        accuracy = recall_accuracy(query_logits(gpt, tokens_BT), answers_BP)
    return {"model": model, "width": width, "seed": seed, "accuracy": accuracy, "loss_nats": loss}
