"""Compares the ways in which `crope.adapt` starts complex-linear layers from trained ones, on finished
RoPE runs.

python scripts/init_table.py RUN... --write    # folders of runs; --write puts the table into
                                               # docs/own-model.md

Losses are full validation losses, before and after 200 steps of tuning all weights at the run's last
learning rate on the batches after its last. Low rank has as many weights as complex-linear; on
activations it is the projection of the outputs onto their leading directions.
"""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean

import torch
from bench import with_table
from torch import Tensor

from crope.adapt import complexify, input_moments
from crope.compose import load_config
from crope.config import ROOT
from crope.convert import fine_tune, measure
from crope.data.batches import sample_batch
from crope.errors import Parser, main_errors
from crope.model.gpt import GPT
from crope.model.projections import LowRankLinear
from crope.record import find_record, write_text
from crope.run import load_run_tokens, load_trained

PAGE = ROOT / "docs" / "own-model.md"
STEPS, BATCHES = 200, 16
HEAD = 32
NAMES = ("q_proj", "k_proj", "v_proj")

Arm = Callable[[GPT, list[Tensor]], object]


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a finished RoPE run")
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    options = parser.parse_args()
    losses = [losses_of_run(run) for run in options.runs]
    table = render(losses)
    print(table)
    if options.write:
        write_text(PAGE, with_table(PAGE.read_text(encoding="utf-8"), "init", table))


def losses_of_run(run: str) -> dict[str, tuple[float, float]]:
    """Arm -> validation loss right after the conversion and after tuning, in nats per token."""
    record = find_record(run, results_dir=Path("results"))
    config, tokens = load_config(record.config), load_run_tokens(load_config(record.config))
    model = load_trained(record)
    train = config.train
    rate = train.lr * train.lr_gamma ** ((train.max_steps - 1) // train.lr_step_size)
    batches = [
        sample_batch(
            tokens.train,
            batch_size=train.batch_size,
            seq_len=train.seq_len,
            seed=config.seed,
            purpose="train",
            step=step,
        )[0]
        for step in range(BATCHES)
    ]
    losses = {}
    for name, change in ARMS.items():
        arm = copy.deepcopy(model)
        change(arm, batches)
        before = measure(arm, tokens, config=config)
        fine_tune(arm, tokens, config=config, steps=STEPS, lr=rate)
        losses[name] = before, measure(arm, tokens, config=config)
    return losses


def complex_linear(model: GPT, batches: list[Tensor], *, init: str) -> None:
    complexify(model, pairing="interleaved", init=init, inputs=batches, head_dim=HEAD)


def low_rank(model: GPT, batches: list[Tensor], *, init: str) -> None:
    """Replaces Q, K and V by LowRankLinear: the truncated SVD of W, or of W S^(1/2) for input
    moments S."""
    layers = {name: layer for name, layer in model.named_modules() if name.endswith(NAMES)}
    moments = input_moments(model, layers, batches)
    for name, layer in layers.items():
        dense = layer.weight.detach().double()
        new = LowRankLinear(dense.shape[1], len(dense))
        root = torch.eye(dense.shape[1]).double()
        if init == "activations":
            root = torch.linalg.cholesky(moments[name][:-1, :-1])
        left, _, _ = torch.linalg.svd(dense @ root, full_matrices=False)
        up = left[:, : new.up.shape[1]]
        with torch.no_grad():
            new.up.copy_(up)
            new.down.copy_(up.T @ dense)
        model.set_submodule(name, new)


ARMS: dict[str, Arm] = {
    "dense (no change)": lambda model, batches: None,
    "complex-linear, fresh": partial(complex_linear, init="fresh"),
    "complex-linear, nearest": partial(complex_linear, init="nearest"),
    "complex-linear, activations": partial(complex_linear, init="activations"),
    "low rank, nearest": partial(low_rank, init="nearest"),
    "low rank, activations": partial(low_rank, init="activations"),
}


def render(losses: list[dict[str, tuple[float, float]]]) -> str:
    lines = [
        f"| Q, K and V ({len(losses)} runs) | right after | after {STEPS} steps |",
        "|---|---:|---:|",
    ]
    for name in ARMS:
        columns = [f"{mean(run[name][index] for run in losses):.3f}" for index in (0, 1)]
        lines.append(f"| {name} | {' | '.join(columns)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with main_errors():
        main()
