"""Run directories and cells made by code, with losses that can be checked by hand; no Hydra is needed for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from crope import paper
from crope.config import NUMERICS_VERSION, cell_key
from crope.study import Cell

WriteRun = Callable[..., Path]
SCALE = "quick"


def make_config(
    model: str, dataset: str, row: str = "base", *, seed: int = 0, precision: str = "fp32"
) -> dict[str, Any]:
    train = {**paper.ROWS[row], "max_steps": 100, "precision": precision}
    return {
        "model": {"projection": model, "tied_head": True, "n_layers": 4, "d_model": train.pop("d_model")},
        "data": {"corpus": dataset},
        "tokenizer": {"name": "bpe", "vocab_size": 4096},
        "train": train,
        "eval": {"every": 20},
        "seed": seed,
    }


def make_parameters(model: str, width: int | float) -> dict[str, int]:
    """Four layers of a GPT-2 block with biases outside Q/K/V, a tied head over 4096 entries."""
    d = int(width)
    parts = {
        "qkv": 4 * 3 * d * d // (2 if model == "crope" else 1), "output_projection": 4 * (d * d + d),
        "ffn": 4 * (8 * d * d + 5 * d), "norms": 9 * 2 * d, "embeddings": 4096 * d,
    }  # fmt: skip
    return {**parts, "total": sum(parts.values())}


def make_metrics(final: float) -> list[dict[str, float]]:
    """Falls from 8 to `final` at step 100; training runs 0.25 below validation."""
    lines = []
    for step in range(0, 101, 10):
        loss = final + (8.0 - final) * (1 - step / 100) ** 3
        lines.append({"step": step, "val/loss_nats": loss, "train/loss_nats": loss - 0.25})
    return [*lines[:-1], lines[-1] | {"val_full/loss_nats": final}]


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    return tmp_path / "results" / "runs"


@pytest.fixture
def write_run(runs_dir: Path) -> WriteRun:
    """write_run("crope", "ptb", final=4.1, ...): one run directory; `summary` overrides parts of its summary.json."""

    def write(
        model: str, dataset: str, row: str = "base", *, seed: int = 0, final: float = 5.0, sampled: float | None = None,
        std: float | None = 0.02, precision: str = "fp32", folder: Path | None = None, **summary: Any,
    ) -> Path:  # fmt: skip
        run_id = f"{model}-{dataset}-{row}-s{seed}-{precision}"
        path = (folder or runs_dir) / run_id
        path.mkdir(parents=True)
        whole = {
            "status": "complete", "run_id": run_id, "model": model, "dataset": dataset, "row": row, "scale": SCALE,
            "seed": seed, "numerics_version": NUMERICS_VERSION, "precision": precision, "device_kind": "cpu",
            "steps": 100, "train_tokens": 409_600, "train_passes": 0.35,
            "val_sampled": {"mean_nats": final if sampled is None else sampled, "std_nats": std, "n": 2},
            "val_full": {
                "final_nats": final, "best_nats": final - 0.125, "best_step": 80, "tokens": 65_536,
                "whole_split": False,
            },
            "train_val_gap_nats": 0.25, "val_nats_per_byte": 1.5, "unigram_nats": 7.0,
            "parameters": make_parameters(model, paper.ROWS[row]["d_model"]),
            "time": {"total_s": 151.2, "median_step_ms": 90.0, "tokens_per_s": 4000.0},
            "memory_peak_gib": None, "error": None,
        } | summary  # fmt: skip
        config = make_config(model, dataset, row, seed=seed, precision=precision)
        provenance = {"commit": "0123456789abcdef", "dirty": False, "device": "a CPU"}
        metrics = "".join(json.dumps(line) + "\n" for line in make_metrics(final))
        (path / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        (path / "provenance.json").write_text(json.dumps(provenance), encoding="utf-8")
        (path / "metrics.jsonl").write_text(metrics, encoding="utf-8")
        (path / "summary.json").write_text(json.dumps(whole), encoding="utf-8")
        return path

    return write


@pytest.fixture
def cells() -> list[Cell]:
    """Both tables, as `expected_cells` gives them."""
    table1 = [("table1", "base", dataset) for dataset in paper.DATASET_LABELS]
    table2 = [("table2", row, "pg19") for row in paper.ROWS]
    return [
        Cell(table, row, dataset, model, SCALE, cell_key(make_config(model, dataset, row)))
        for table, row, dataset in (*table1, *table2)
        for model in paper.MODEL_LABELS
    ]


@pytest.fixture
def tiny_cells() -> list[Cell]:
    rows = [("table1", "base"), *(("table2", row) for row in paper.ROWS)]
    return [
        Cell(table, row, "tiny", model, SCALE, cell_key(make_config(model, "tiny", row)))
        for table, row in rows
        for model in paper.MODEL_LABELS
    ]


@pytest.fixture
def whole_study(write_run: WriteRun) -> None:
    """Every cell of both tables, two seeds each; CRoPE lies 0.01 above RoPE, XPOS 0.3."""
    offset = {"xpos": 0.3, "rope": 0.0, "crope": 0.01}
    level = {"pg19": 6.0, "wikitext2": 5.0, "ptb": 4.0}
    for dataset, row in [*((name, "base") for name in level), *(("pg19", row) for row in list(paper.ROWS)[1:])]:
        for model in offset:
            for seed in (0, 1):
                write_run(model, dataset, row, seed=seed, final=level[dataset] + offset[model] + 0.1 * seed)
