"""Runs of the four studies, made by code as conftest.make_run makes those of the tables."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from crope.config import cell_key
from crope.study import STUDIES, Cell, StudyRow, study_axes
from tests.report.conftest import LEVEL, SCALE, make_config, make_run

# Nats above RoPE, and what the four sequences of a run at 1, 2 and 4 times its length lose by more context.
OFFSETS = {
    "xpos": 0.3, "rope": 0.0, "crope": 0.01, "lowrank": 0.09, "blockdiag": 0.05, "halved": 0.01,
    "complex_misaligned": 0.02, "complex_qk": 0.004, "complex_v": 0.005, "complex_wide": -0.03, "learned": 0.25,
    "relative_bias": 0.05, "alibi": 0.02, "nope": 0.15,
}  # fmt: skip
PER_LENGTH = {"xpos": 0.8, "rope": 0.3, "crope": 0.25, "alibi": -0.05, "relative_bias": 0.0, "nope": 0.1}
NOISE = (0.0, 0.004, -0.003)
WIDTH_STEP = {64: 0.0, 128: 0.002, 256: 0.004, 512: 0.006}
FACTORS = (1, 2, 4)
Final = Callable[[str, str, int, int], float]  # model, dataset, width, seed


@cache
def make_rows() -> tuple[StudyRow, ...]:
    """As crope.study.expected_rows gives them, for the configurations of conftest.make_config."""
    rows = []
    for study in STUDIES:
        axes = study_axes(study)
        widths = [int(width) for width in axes.get("model.d_model", ["128"])]
        for dataset, width in itertools.product(axes["data"], widths):
            cells = tuple(Cell(study, "base", dataset, m, SCALE, _key(m, dataset, width)) for m in axes["model"])
            rows.append(StudyRow(study, dataset, width, cells))
    return tuple(rows)


def _key(model: str, dataset: str, width: int) -> str:
    config = make_config(model, dataset)
    config["model"]["d_model"] = width
    return cell_key(config)


def usual(model: str, dataset: str, width: int, seed: int) -> float:
    """A level that the seed moves for all alike, the model's offset, a little noise of its own."""
    offset = OFFSETS.get(model, 0.02 + OFFSETS.get(model.removeprefix("complex_"), 0.1))
    own = 0.0 if model == "rope" else NOISE[(seed + len(model)) % 3]
    drift = WIDTH_STEP[width] if model == "crope" else 0.0
    return LEVEL[dataset] - (width.bit_length() - 8) * 0.2 + 0.1 * seed + offset + drift + own


def make_studies(
    folder: Path,
    studies: Sequence[str],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    datasets: Sequence[str] = ("pg19", "wikitext2"),
    final: Final = usual,
    without: Sequence[str] = (),
) -> None:
    """Every run of the studies on these texts but of the models `without`, measured beyond its length where asked."""
    paths: dict[tuple[str, int], Path] = {}  # a run that two studies share is written once
    for row in make_rows():
        if row.study in studies and row.dataset in datasets:
            for cell, seed in itertools.product(row.cells, seeds):
                if cell.model not in without:
                    path = paths.get((cell.key, seed))
                    path = path or write_one(folder, cell.model, row.dataset, seed, row.width, final=final)
                    paths[cell.key, seed] = path
                    if row.study == "length":
                        measure(path, cell.model)


def write_one(folder: Path, model: str, dataset: str, seed: int, width: int = 128, *, final: Final = usual) -> Path:
    loss, change = final(model, dataset, width, seed), {"model": {"d_model": width}}
    return make_run(folder, model, dataset, seed=seed, final=loss, change=change)


def measure(path: Path, model: str, *, max_tokens: int = 65_536, losses: Sequence[float] | None = None) -> None:
    """What scripts/extrapolate.py leaves: learned positions end, the others change with each doubling."""
    summary = json.loads((path / "summary.json").read_text())
    trained, start = 1024, summary["val_full"]["final_nats"]
    seed_noise = NOISE[summary["seed"] % 3]
    rows = []
    for power, factor in enumerate(FACTORS):
        row = {"seq_len": trained * factor, "loss_nats": None, "note": "not defined: learned positions end at 1024"}
        if model != "learned" or factor == 1:
            loss = losses[power] if losses else start + power * (PER_LENGTH.get(model, 0.0) + seed_noise)
            row = {"seq_len": trained * factor, "loss_nats": loss, "tokens": max_tokens}
        rows.append(row)
    ends = 1 if model == "learned" else 4
    parts = [
        {
            "first": 256 * i,
            "last": 256 * i + 255,
            "loss_nats": start + 0.5 / (i + 1) + PER_LENGTH.get(model, 0) * (i > 3),
        }
        for i in range(4 * ends)
    ]
    asked = {"trained_seq_len": trained, "factors": list(FACTORS), "max_tokens": max_tokens}
    (path / "extrapolation.json").write_text(json.dumps(asked | {"lengths": rows, "by_position": parts}))
