"""Multi-query associative recall (MQAR): which head width does a model need to find stored pairs?

A sequence stores pairs of a key and a value, then repeats its keys in random order; at each
repeated key, the model has to predict the value of that key (Arora et al. 2023, "Zoology"). All
models are the GPT of this repository with one layer and one head, whose width is varied while
d_model is fixed.

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

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from crope.config import ModelConfig
from crope.files import write_json
from crope.model.gpt import GPT
from crope.model.positions import RotaryEmbedding
from crope.seeding import stream
from crope.theory.pointer_task import one_thread, optimise

PROJECTIONS = {"rope": "real", "crope": "complex", "conjugate": "conjugate", "lowrank": "lowrank"}
LABELS = {
    "rope": "RoPE",
    "crope": "CRoPE",
    "conjugate": "conjugate Q",
    "halved": "halved",
    "lowrank": "low rank",
}


@dataclass(frozen=True)
class Plan:
    """All settings of the experiment, fixed before its first run and the same for all models.

    Judged by `threshold` at the most pairs: its median over seeds with the lowest and the highest
    seed, between which the median of all seeds lies with 94 % probability at five seeds. A model
    needs a wider head than RoPE if its threshold over RoPE's is above 1 at every seed.

    Known from the pilot (seed 0; RoPE unless stated otherwise; the numbers are accuracies):
    - Two layers without ShiftedRotary did not learn 8 pairs in 2,000 steps; one layer with it did.
    - Sequences of 16 pairs alone left the initial plateau late or not at all, depending on the
      width; with 4, 8, 16 and 32 in turn, width 6 left it within 500 steps.
    - A rate of 0.02 failed, 0.01 failed with d_model 256; 0.003 and 0.005 gave the same accuracy.
    - 32 pairs: nothing learned at width 4, 0.43 at width 6 (0.42 with d_model 256: the embedding is
      no bottleneck), 0.98 at width 8 (rate 0.005), 0.999 at width 16 (rate 0.01).
    - CRoPE was run twice, on an easier task (8 pairs of 64 keys): 1.000 at widths 8 and 16, as RoPE
      at width 8. So the prediction had not met the task below, but the objection had some support.
    """

    # What a run depends on.
    keys: int = 256
    values: int = 256
    pairs: tuple[int, ...] = (4, 8, 16, 32)  # stored in a sequence, in turn from step to step
    d_model: int = 128
    ffn_ratio: float = 1 / 16  # 8 hidden units: attention has to do the work
    batch_size: int = 32
    max_steps: int = 3000
    lr: float = 3e-3
    lr_gamma: float = 0.8  # StepLR, decays every tenth of the run: the proportions of Sec. 5.3
    sequences: int = 256  # held out for each number of pairs, the same for all runs
    # Which runs there are, and how they are judged.
    widths: tuple[int, ...] = (4, 6, 8, 10, 12, 14, 16, 20, 24)
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    level: float = 0.9  # the accuracy that defines the threshold

    @property
    def run_settings(self) -> dict[str, Any]:
        """What one run depends on besides model, width and seed, as JSON gives it back."""
        judged = ("widths", "seeds", "level")
        settings = {name: value for name, value in asdict(self).items() if name not in judged}
        return settings | {"pairs": list(self.pairs)}


@dataclass
class HeadConfig(ModelConfig):
    """A decoder whose head width does not follow from d_model: the embedding stays as wide."""

    width: int = 64

    @property
    def attention_width(self) -> int:
        return self.n_heads * self.width // (2 if self.projection == "halved" else 1)


class ShiftedRotary(RotaryEmbedding):
    """Rotary positions for inputs that hold the previous token too, its channels rolled by D/2.

    A value's position then holds its key as well. Otherwise a first layer would have to move it
    there, and its head would be a second bottleneck. The roll takes pairs to pairs.
    """

    def embed(self, x_BTD: torch.Tensor) -> torch.Tensor:
        previous_BTD = F.pad(x_BTD, (0, 0, 1, -1))
        return x_BTD + previous_BTD.roll(x_BTD.shape[-1] // 2, dims=-1)


def recall_model(projection: str, plan: Plan, *, width: int, seed: int) -> GPT:
    """One layer with one head of `width` channels (`halved`: half as many)."""
    config = HeadConfig(
        position="rotary",
        projection=projection,
        n_layers=1,
        n_heads=1,
        d_model=plan.d_model,
        ffn_ratio=plan.ffn_ratio,
        width=width,
    )
    max_len = 3 * max(plan.pairs)
    model = GPT(config, vocab_size=plan.keys + plan.values, max_len=max_len, seed=seed)
    model.positions = ShiftedRotary(config.head_width, max_len)
    return model


def sample_recall(
    plan: Plan, *, seed: int, step: int, pairs: int, sequences: int, purpose: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """tokens_BT: P pairs key value, then the P keys in random order; answers_BP: the values of the
    latter.

    Keys are tokens 0 .. keys - 1, no two alike in a sequence. Values are the tokens after them,
    drawn independently: a key says nothing about its value.
    """
    generator = stream(seed, f"recall/{purpose}/{pairs}", step)
    every_key = np.tile(np.arange(plan.keys), (sequences, 1))
    keys_BP = generator.permuted(every_key, axis=1)[:, :pairs]
    values_BP = plan.keys + generator.integers(plan.values, size=keys_BP.shape)
    order_BP = generator.permuted(np.tile(np.arange(pairs), (sequences, 1)), axis=1)
    stored_BT = np.stack((keys_BP, values_BP), axis=-1).reshape(sequences, -1)
    queries_BP = np.take_along_axis(keys_BP, order_BP, axis=1)
    answers_BP = np.take_along_axis(values_BP, order_BP, axis=1)
    tokens_BT = np.concatenate((stored_BT, queries_BP), axis=1)
    return torch.from_numpy(tokens_BT), torch.from_numpy(answers_BP)


def query_logits(model: GPT, tokens_BT: torch.Tensor) -> torch.Tensor:
    """Logits at the queries, (B, P, V)."""
    return model.logits(model(tokens_BT)[:, tokens_BT.shape[1] * 2 // 3 :])


def recall_accuracy(logits_BPV: torch.Tensor, answers_BP: torch.Tensor) -> float:
    """Fraction of queries whose most likely token, of the whole vocabulary, is the answer."""
    return (logits_BPV.argmax(-1) == answers_BP).double().mean().item()


def train_recall(model: str, plan: Plan, *, width: int, seed: int) -> dict[str, Any]:
    """One run: `loss_nats` over the last 50 steps, `accuracy_<P>` on held-out sequences of P pairs.

    All models see the same batches at the same seed, and all runs the same held-out sequences.
    """
    gpt = recall_model(PROJECTIONS[model], plan, width=width, seed=seed)

    def batch_loss(step: int) -> torch.Tensor:
        tokens_BT, answers_BP = sample_recall(
            plan,
            seed=seed,
            step=step,
            pairs=plan.pairs[step % len(plan.pairs)],
            sequences=plan.batch_size,
            purpose="train",
        )
        return F.cross_entropy(query_logits(gpt, tokens_BT).mT, answers_BP)

    loss = optimise(gpt, batch_loss, steps=plan.max_steps, lr=plan.lr, lr_gamma=plan.lr_gamma)
    result = {"model": model, "width": width, "seed": seed, "loss_nats": loss}
    for pairs in plan.pairs:
        tokens_BT, answers_BP = sample_recall(
            plan, seed=0, step=0, pairs=pairs, sequences=plan.sequences, purpose="test"
        )
        with torch.no_grad():
            logits_BPV = query_logits(gpt, tokens_BT)
        result[f"accuracy_{pairs}"] = recall_accuracy(logits_BPV, answers_BP)
    return result


@one_thread()
def run_recall(plan: Plan, folder: Path) -> None:
    """Trains the runs of the plan without a valid result in `folder`, and writes one file for each.

    Prints one line per run.
    """
    for run in plan_runs(plan):
        if read_result(folder, plan, *run):
            continue
        model, width, seed = run
        result = train_recall(model, plan, width=width, seed=seed)
        write_json(result_path(folder, *run), result | {"settings": plan.run_settings})
        accuracies = [f"{result[f'accuracy_{pairs}']:.3f} at {pairs}" for pairs in plan.pairs]
        text = f"accuracy {', '.join(accuracies)} pairs"
        print(f"{model} width {width} seed {seed}: {text}", flush=True)


def plan_runs(plan: Plan) -> list[tuple[str, int, int]]:
    """(model, width, seed) of every run; seeds outermost, so that one full seed is finished first."""
    runs = product(plan.seeds, plan.widths, PROJECTIONS)
    return [(model, width, seed) for seed, width, model in runs]


def result_path(folder: Path, model: str, width: int, seed: int) -> Path:
    return folder / f"{model}-w{width}-s{seed}.json"


def read_result(
    folder: Path, plan: Plan, model: str, width: int, seed: int
) -> dict[str, Any] | None:
    """The stored result of one run; None if there is none, or it is corrupt or of other settings."""
    try:
        text = result_path(folder, model, width, seed).read_text(encoding="utf-8")
        result: dict[str, Any] = json.loads(text)
        accuracies = [result[f"accuracy_{pairs}"] for pairs in plan.pairs]
        run = (result["model"], result["width"], result["seed"])
        valid = (
            run == (model, width, seed)
            and result["settings"] == plan.run_settings
            and all(0 <= accuracy <= 1 for accuracy in accuracies)
            and math.isfinite(result["loss_nats"])
        )
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        return None
    return result if valid else None


def recall_frame(plan: Plan, folder: Path) -> pd.DataFrame:
    """The finished runs in `folder`: one row per run, without its settings."""
    results = [read_result(folder, plan, *run) for run in plan_runs(plan)]
    accuracies = [f"accuracy_{pairs}" for pairs in plan.pairs]
    columns = ["model", "width", "seed", "loss_nats", *accuracies]
    return pd.DataFrame(filter(None, results), columns=columns)


def with_halved(runs: pd.DataFrame) -> pd.DataFrame:
    """`runs` and those of `halved`, which are RoPE's under twice the width."""
    rope = runs[runs["model"] == "rope"]
    return pd.concat([runs, rope.assign(model="halved", width=2 * rope["width"])])


def threshold(widths: Sequence[int], accuracies: Sequence[float], level: float) -> float:
    """Smallest width that reaches `level`: linear in log width between the first grid width that
    does and the one before it.

    The smallest width of the grid if that one does (an upper bound), inf if none does.
    """
    reached = np.asarray(accuracies) >= level
    if not reached.any():
        return math.inf
    first = int(reached.argmax())
    if first == 0:
        return float(widths[0])
    around = slice(first - 1, first + 1)
    return float(np.exp(np.interp(level, accuracies[around], np.log(widths[around]))))


def thresholds(runs: pd.DataFrame, plan: Plan, *, pairs: int) -> pd.DataFrame:
    """Threshold of each seed (row) and model (column); NaN where a width is not finished."""
    rows = []
    by_model = with_halved(runs).sort_values("width").groupby(["seed", "model"])
    for (seed, model), of_model in by_model:
        if len(of_model) == len(plan.widths):
            accuracies = of_model[f"accuracy_{pairs}"].tolist()
            width = threshold(of_model["width"].tolist(), accuracies, plan.level)
            rows.append((seed, model, width))
    table = pd.DataFrame(rows, columns=["seed", "model", "width"])
    return table.pivot(index="seed", columns="model", values="width").reindex(columns=list(LABELS))
