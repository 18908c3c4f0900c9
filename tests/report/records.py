"""Valid run directories and cells made by code, with losses that can be checked by hand."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from crope import paper
from crope.runs.identity import cell_key, numerics_version, run_hash
from crope.runs.record import derive
from crope.runs.study import Cell

STEPS, SCALE = 100, "quick"
WEIGHTS = "d" * 64  # SHA-256
FAILED = {"type": "ValueError", "message": "loss is nan", "step": 20, "traceback": "..."}
CHOICES = {
    "xpos": ("sinusoidal", "real"),
    "rope": ("rotary", "real"),
    "crope": ("rotary", "complex"),
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
        "eval": {"every": 10, "full_every": 50},
        "runtime": {"loss": "plain"},  # published configurations have keys that no longer exist
        "seed": seed,
        "results_dir": "results",
        "data_dir": "data/raw",
    }  # fmt: skip


def make_cell(model: str, dataset: str = "ptb", row: str = "base", table: str = "table1") -> Cell:
    return Cell(table, row, dataset, model, SCALE, cell_key(make_config(model, dataset, row)))


def make_splits(train: str = "a" * 64, validation: str = "a" * 64) -> dict[str, Any]:
    """Of provenance.json, with these digests."""
    digests = {"train": train, "validation": validation}
    return {
        key: {"tokens": 100_001, "bytes": 300_003, "sha256": sha256}
        for key, sha256 in digests.items()
    }


def make_ngrams(
    corpus: str, digest: str, tokenizer: str = "bpe", bigram: float = 4.5
) -> dict[str, Any]:
    """An entry of ngrams.json: both splits have `digest`, unigrams lose a nat more than bigrams,
    trigrams half a nat less.
    """
    return {
        "corpus": corpus,
        "tokenizer": {"name": tokenizer, "vocab_size": 4096},
        "sha256": {"train": digest, "validation": digest},
        "loss_nats": {"unigram": bigram + 1, "bigram": bigram, "trigram": bigram - 0.5},
    }


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
    finished: str = "2026-01-01T01:00:00+00:00",
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
    splits = make_splits(sha256, sha256)
    rows: list[dict[str, Any]] = [
        {"step": step, "val/loss_nats": 9.0} for step in range(0, STEPS, 10)
    ]
    rows[1] |= {"train/loss_nats": 9.0, "time/step_ms": 10.0, "speed/tokens_per_s": 1e4}
    rows[5] |= {"val_full/loss_nats": best, "val_full/tokens": 65_536}
    rows[9]["val/loss_nats"] = sampled[0]
    rows.append({
        "step": STEPS, "val/loss_nats": sampled[1], "val_full/loss_nats": final, "val_full/tokens": 65_536,
        "train_full/loss_nats": 4.0, "train_full/tokens": 1000, "run": name,  # no two runs share their metrics
    })  # fmt: skip
    metrics = "".join(json.dumps(line) + "\n" for line in rows)
    derived = derive(settings, rows, splits)
    summary = {
        "run_id": name, "model": model, "dataset": dataset, "row": row, "scale": scale, "seed": seed, "error": error,
        "status": "failed" if error else "complete", "numerics_version": version, "precision": precision,
        "device_kind": device_kind, "finished_utc": finished,
    } | ({} if error else derived | {
        "time": derived["time"] | {"total_s": 3600.0},
        "metrics_sha256": hashlib.sha256(metrics.encode()).hexdigest(), "weights_sha256": WEIGHTS,
    })  # fmt: skip
    facts = {
        "commit": "c" * 40, "dirty": False, "command": "scripts/train.py", "python": "3.11.7", "device": "a CPU",
        "device_kind": device_kind, "threads": 1, "driver": None, "started_utc": "2026-01-01T00:00:00+00:00",
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


def make_extrapolation() -> dict[str, Any]:
    """extrapolation.json of a run: the loss at 32 tokens is not defined."""
    lengths = [{"seq_len": 16, "loss_nats": 5.25, "tokens": 64}, {"seq_len": 32, "loss_nats": None}]
    segments = [{"first": 0, "last": 7, "loss_nats": 5.5}, {"first": 8, "last": 15, "loss_nats": 5}]
    return {"weights_sha256": WEIGHTS, "lengths": lengths, "by_position": segments}


def make_conversion() -> dict[str, Any]:
    """conversion.json of a run."""
    losses = {"rope": 5.0, "best": 5.1, "random": 5.3, "fresh": 6.0}
    return {
        "weights_sha256": WEIGHTS, "steps": 200, "lr": 1e-4, "loss_nats": losses | {"trained": 4.9},
        "tuned_loss_nats": {arm: loss - 0.05 for arm, loss in losses.items()},
        "kept_share": {"best": 0.7, "best_by_chance": [0.5, 0.6]},
    }  # fmt: skip
