"""Compares the ways in which `crope.interop.adapt` starts complex-linear layers from trained weights, on
finished RoPE runs.

python scripts/init_table.py RUN... --write    # --write puts the table into docs/own-model.md

Losses are full validation losses, right after the conversion and after 200 steps of tuning all
weights at the run's last learning rate, on the batches after its last. Low rank has as many weights
as complex-linear: the truncated singular value decomposition of W, or with "activations" of W L for
the inputs' second moments L L^T, which is nearest in the outputs.
"""

import copy
from pathlib import Path
from statistics import mean

import torch
from bench import write_table
from torch import Tensor

from crope.config import ROOT
from crope.data.batches import sample_batch
from crope.errors import Parser, UserError, main_errors
from crope.interop.adapt import complexify
from crope.interop.calibration import input_moments
from crope.interop.convert import fine_tune, measure
from crope.model.gpt import GPT
from crope.model.projections import LowRankLinear
from crope.runs.compose import load_config
from crope.runs.load import load_run_tokens, load_trained
from crope.runs.record import find_record

PAGE = ROOT / "docs" / "own-model.md"
STEPS, BATCHES = 200, 16
NAMES = ("q_proj", "k_proj", "v_proj")
ARMS = (
    ("dense", "unchanged"),
    ("complex-linear", "fresh"),
    ("complex-linear", "nearest"),
    ("complex-linear", "activations"),
    ("low rank", "nearest"),
    ("low rank", "activations"),
)

Losses = dict[tuple[str, str], tuple[float, float]]  # arm -> right after, after tuning


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a finished RoPE run")
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    options = parser.parse_args()
    table = render([losses_of_run(run) for run in options.runs])
    print(table)
    if options.write:
        write_table(PAGE, "init", table)


def losses_of_run(run: str) -> Losses:
    record = find_record(run, results_dir=Path("results"))
    config = load_config(record.config)
    if (config.model.position, config.model.projection) != ("rotary", "real"):
        raise UserError(f"{record.path}: no RoPE run; choose another")
    train, tokens, model = config.train, load_run_tokens(record), load_trained(record)
    rate = train.learning_rate(train.max_steps - 1)
    sizes = {"batch_size": train.batch_size, "seq_len": train.seq_len}
    batches = [
        sample_batch(tokens.train, seed=config.seed, step=step, purpose="train", **sizes)[0]
        for step in range(BATCHES)
    ]
    losses = {}
    for kind, init in ARMS:
        arm = copy.deepcopy(model)
        if kind == "complex-linear":
            options = {"head_dim": config.model.head_width, "inputs": batches}
            complexify(arm, pairing="interleaved", init=init, **options)
        elif kind == "low rank":
            make_low_rank(arm, batches if init == "activations" else [])
        before = measure(arm, tokens, config=config)
        fine_tune(arm, tokens, config=config, steps=STEPS, lr=rate)
        losses[kind, init] = before, measure(arm, tokens, config=config)
    return losses


@torch.no_grad()
def make_low_rank(model: GPT, batches: list[Tensor]) -> None:
    """Replaces Q, K and V by the nearest LowRankLinear, in the outputs on `batches` if any."""
    layers = {name: layer for name, layer in model.named_modules() if name.endswith(NAMES)}
    moments = input_moments(model, layers, batches) if batches else {}
    for name, layer in layers.items():
        dense = layer.weight.double()
        weighted = dense
        if batches:
            weighted = dense @ torch.linalg.cholesky(moments[name][:-1, :-1])
        new = LowRankLinear(layer.in_features, layer.out_features)
        directions = torch.linalg.svd(weighted).U[:, : new.up.shape[1]]
        new.up.copy_(directions)
        new.down.copy_(directions.T @ dense)
        model.set_submodule(name, new)


def render(losses: list[Losses]) -> str:
    lines = [
        f"| Q, K and V | start | right after | after {STEPS} steps |",
        "|---|---|---:|---:|",
    ]
    for arm in ARMS:
        columns = [*arm, *(f"{mean(run[arm][index] for run in losses):.3f}" for index in (0, 1))]
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines) + f"\n\nMeans over {len(losses)} runs.\n"


if __name__ == "__main__":
    with main_errors():
        main()
