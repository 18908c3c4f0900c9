"""Valid run directories and cells made by code, with losses that can be checked by hand."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from crope import paper
from crope.config import cell_key, numerics_version, run_hash
from crope.record import summarise
from crope.study import Cell

STEPS, SCALE = 100, "quick"
CHOICES = {
    "xpos": ("sinusoidal", "real"),
    "rope": ("rotary", "real"),
    "crope": ("rotary", "complex"),
}
PARAMETERS = {
    "qkv": 196_608,
    "output_projection": 66_048,
    "ffn": 526_848,
    "norms": 2_304,
    "embeddings": 524_288,
}


def make_config(
    model: str, dataset: str, row: str = "base", *, seed: int = 0, precision: str = "fp32"
) -> dict[str, Any]:
    position, projection = CHOICES[model]
    train: dict[str, Any] = {
        **paper.ROWS[row],
        "lr": 0.001,
        "max_steps": STEPS,
        "precision": precision,
    }
    d_model = train.pop("d_model")
    return {
        "model": {
            "position": position, "projection": projection, "attention": "softmax", "n_layers": 4, "d_model": d_model,
            "tied_head": True,
        },
        "data": {"corpus": dataset},
        "tokenizer": {"name": "bpe", "vocab_size": 4096},
        "train": train,
        "eval": {"every": 20},
        "runtime": {"loss": "plain"},  # published configurations have keys that no longer exist
        "seed": seed,
        "results_dir": "results",
        "data_dir": "data/raw",
    }  # fmt: skip


def make_cell(model: str, dataset: str = "ptb", row: str = "base", table: str = "table1") -> Cell:
    return Cell(table, row, dataset, model, SCALE, cell_key(make_config(model, dataset, row)))


def write_run(
    folder: Path,
    model: str = "crope",
    dataset: str = "ptb",
    row: str = "base",
    *,
    seed: int = 0,
    scale: str = SCALE,
    precision: str = "fp32",
    device_kind: str = "cpu",
    sampled: Sequence[float] = (5.1, 5.3),
    final: float = 5.0,
    best: float = 4.5,
    error: Mapping[str, Any] | None = None,
    version: int | None = None,
    sha256: str = "a" * 64,
    config: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """One finished run: `sampled` are its losses at steps 90 and 100, `best` and `final` the full
    at 50 and 100.
    """
    settings = {
        **make_config(model, dataset, row, seed=seed, precision=precision),
        **(config or {}),
    }
    version = numerics_version(settings["model"]) if version is None else version
    name = f"{model}-{dataset}-{row}-s{seed}-{run_hash(settings, version=version)}"
    splits = {
        key: {"tokens": 100_001, "bytes": 300_003, "sha256": sha256}
        for key in ("train", "validation")
    }
    full = {"train_full/loss_nats": 4.0, "train_full/tokens": 1000, "val_full/tokens": 65_536}
    rows: list[dict[str, Any]] = [
        {
            "step": 10,
            "val/loss_nats": 9.0,
            "train/loss_nats": 9.0,
            "time/step_ms": 10.0,
            "speed/tokens_per_s": 1e4,
        },
        {"step": 50, "val/loss_nats": 8.0, "val_full/loss_nats": best, **full},
        {"step": 90, "val/loss_nats": sampled[0], "time/step_ms": 12.0, "speed/tokens_per_s": 1e4},
        {"step": 100, "val/loss_nats": sampled[1], "val_full/loss_nats": final, **full},
    ]
    metrics = "".join(json.dumps(line) + "\n" for line in rows)
    halved = 98_304 if model == "crope" else 0
    parts = {**PARAMETERS, "qkv": PARAMETERS["qkv"] - halved}
    results = summarise(rows, max_steps=STEPS, validation=splits["validation"])
    summary = {
        "run_id": name, "model": model, "dataset": dataset, "row": row, "scale": scale, "seed": seed, "error": error,
        "status": "failed" if error else "complete", "numerics_version": version, "precision": precision,
        "device_kind": device_kind,
    } | ({} if error else results | {
        "steps": STEPS, "train_tokens": 1_638_400, "train_passes": 16.4, "unigram_nats": 6.0,
        "parameters": parts | {"total": sum(parts.values())}, "time": results["time"] | {"total_s": 3600.0},
        "metrics_sha256": hashlib.sha256(metrics.encode()).hexdigest(),
    })  # fmt: skip
    facts = {
        "commit": "c" * 40, "dirty": False, "command": "scripts/train.py", "python": "3.11.7", "device": "a CPU",
        "device_kind": "cpu", "driver": None, "started_utc": "2026-01-01T00:00:00+00:00",
        "packages": {"torch": "2.13", "numpy": "2.4", "tokenizers": "0.23"}, "data": {"splits": splits},
        **(provenance or {}),
    }  # fmt: skip
    path = folder / name
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    (path / "provenance.json").write_text(json.dumps(facts), encoding="utf-8")
    (path / "metrics.jsonl").write_text(metrics, encoding="utf-8")
    (path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return path
