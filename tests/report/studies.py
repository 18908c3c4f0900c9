"""Studies in memory: every cell of both tables with the losses that a test chooses, without any file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from crope import paper
from crope.config import NUMERICS_VERSION
from crope.record import Record
from crope.report.frame import CellResult, resolve_cells
from crope.study import Cell
from tests.report.conftest import SPLITS, make_config, make_parameters

FACTS = {"commit": "0" * 40, "dirty": False, "data": {"splits": SPLITS}}
Loss = Callable[[Cell, int], float]

# Two patterns over five seeds with mean 0 and standard deviation 1, the second uncorrelated with the first.
UNIT = {"xpos": (-1.2649, -0.6325, 0.0, 0.6325, 1.2649), "crope": (1.0690, -0.5345, -1.0690, -0.5345, 1.0690)}


def losses(*, spread: float = 0.003, **offsets: float) -> Loss:
    """5 + the model's offset (rope 0); paired differences to rope have this standard deviation over five seeds."""
    return lambda cell, seed: (
        5.0
        + 0.1 * seed  # shared by the models: pairing removes it
        + offsets.get(cell.model, 0.0)
        + spread * UNIT.get(cell.model, (0.0,) * 5)[seed % 5]
    )


def make_results(
    cells: Sequence[Cell],
    final: Loss,
    *,
    best: Loss | None = None,
    train: Loss | None = None,
    seeds: Iterable[int] = range(5),
    without: Callable[[Cell], bool] = lambda cell: False,
    change: Callable[[Cell, dict[str, Any]], None] = lambda cell, summary: None,
) -> list[CellResult]:
    """Resolved cells; `without` leaves cells out, `change` edits a run's summary."""
    runs = []
    for cell in {cell.key: cell for cell in cells if not without(cell)}.values():
        for seed in seeds:
            summary = {
                "status": "complete", "run_id": f"{cell.model}-{cell.dataset}-{cell.row}-s{seed}", "model": cell.model,
                "dataset": cell.dataset, "row": cell.row, "scale": cell.scale, "seed": seed, "error": None,
                "numerics_version": NUMERICS_VERSION, "precision": "fp32", "device_kind": "cpu",
                "val_sampled": {"mean_nats": final(cell, seed), "std_nats": 0.02, "n": 51},
                "val_full": {
                    "final_nats": final(cell, seed), "best_nats": (best or final)(cell, seed), "best_step": 80,
                    "tokens": 65_536, "whole_split": False,
                },
                "train": {"final_nats": (train or final)(cell, seed), "tokens": 65_536},
                "parameters": make_parameters(cell.model, paper.ROWS[cell.row]["d_model"]),
            }  # fmt: skip
            change(cell, summary)
            config = make_config(cell.model, cell.dataset, cell.row, seed=seed)
            runs.append(Record(Path(summary["run_id"]), config, summary, FACTS))
    return resolve_cells(runs, cells, unavailable={})
