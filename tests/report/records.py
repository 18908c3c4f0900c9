"""Finished runs on disk, as small as the report allows; their losses stand where they are used."""

import json

from crope.records.store import Record

CONFIG = {
    "model": {"position": "rotary", "projection": "real", "attention": "softmax"},
    "data": {"corpus": "ptb"},
    "tokenizer": {"name": "bpe", "vocab_size": 4096},
    "train": {"seq_len": 16, "precision": "fp32"},
    "eval": {},
    "seed": 0,
    "results_dir": "results",
    "data_dir": "data/raw",
}
METRICS = [
    {"step": 0, "val/loss_nats": 9.25},
    {"step": 10, "train/loss_nats": 7.5, "train/lr": 0.001, "time/step_ms": 3.0},
    {"step": 20, "val/loss_nats": 5.5, "val_full/loss_nats": 5.25, "val_full/tokens": 4096.0},
]
RUN = {
    "model": "rope",
    "dataset": "ptb",
    "row": "base",
    "scale": "quick",
    "seed": 0,
    "settings": [],
    "cell_key": "rope-ptb",
    "precision": "fp32",
    "device_kind": "cpu",
    "numerics_version": 1,
}


def record(folder, run_id="rope-ptb-base-s0-1", *, loss=5.0, summary=(), **run):
    """A complete run with the lines of METRICS. run, summary: what differs from the usual."""
    path = folder / run_id
    path.mkdir(parents=True)
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in METRICS))
    told = {"run_id": run_id, **RUN} | run
    usual = {"status": "complete", "weights_sha256": "w", "val_full": {"final_nats": loss}}
    made = {"commit": "c", "device": "a CPU"}
    return Record(folder, run_id, told, CONFIG, usual | dict(summary), made)


def failed(folder, run_id, error, **run):
    """A run that ended with an error of this type."""
    details = {"type": error, "message": "loss is nan", "step": 20}
    ended = record(folder, run_id, summary={"status": "failed", "error": details}, **run)
    del ended.summary["val_full"]
    return ended
