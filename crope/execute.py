"""One run from start to record: skip what is done, train, and write down how it ended."""

from __future__ import annotations

import json
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from crope import provenance
from crope.compose import Run
from crope.config import NUMERICS_VERSION
from crope.data.batches import check_length
from crope.data.tokens import TokenSet, load_tokens
from crope.device import resolve_device
from crope.errors import UserError
from crope.evaluate import unigram_cross_entropy
from crope.interrupt import Stopped, StopSignal
from crope.model.counting import count_parameters
from crope.model.gpt import GPT
from crope.record import read_metrics, sha256_file, write_json, write_text
from crope.summary import speeds, summarise
from crope.tracking import build_tracker
from crope.trainer import train


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `complete`, `skipped` (it was complete before) or `failed`, with the one line to print."""

    run_id: str
    status: str
    text: str


def is_done(path: Path) -> bool:
    """`status: complete` in summary.json is the only meaning of done."""
    try:
        return json.loads((path / "summary.json").read_text(encoding="utf-8"))["status"] == "complete"
    except (FileNotFoundError, ValueError, KeyError):
        return False


def execute(run: Run, *, stop: StopSignal) -> Outcome:
    """Makes the record of `run` unless it is there.

    A failure inside is written down and returned, not raised. Raises Stopped on request (the run is saved) and
    UserError where the configuration or the data does not allow the run: nothing has happened then.
    """
    if is_done(run.path):
        return Outcome(run.run_id, "skipped", f"{run.run_id}: complete already")
    config = run.config
    tokens = load_tokens(config.data.corpus, config.tokenizer, data_dir=Path(config.data_dir))
    for split in ("train", "validation"):
        check_length(getattr(tokens, split), config.train.seq_len, split)
    began = time.monotonic()
    write_text(run.path / "config.yaml", yaml.safe_dump(run.container, sort_keys=False))
    facts = provenance.collect(config.runtime.device, tokens.meta)
    if (run.path / "checkpoint.pt").exists():
        facts["resumed_from"] = provenance.earlier_attempts(run.path / "provenance.json")
    write_json(run.path / "provenance.json", facts)
    tracker = build_tracker(run)
    summary = _identity(run)
    try:
        model = train(run, tokens, tracker=tracker, stop=stop)
        summary |= _results(run, tokens, model, seconds=time.monotonic() - began)
    except (UserError, Stopped):
        tracker.finish(summary | {"status": "stopped"})
        raise
    except Exception as error:  # contained: one failing run must not stop a sweep
        summary |= {"status": "failed", "error": _describe(error)}
    summary["finished_utc"] = facts["finished_utc"] = provenance.now_utc()
    write_json(run.path / "provenance.json", facts)
    write_json(run.path / "summary.json", summary)
    tracker.finish(summary)
    if summary["status"] == "failed":
        return Outcome(run.run_id, "failed", f"{run.run_id}: failed: {summary['error']['message']}")
    (run.path / "checkpoint.pt").unlink(missing_ok=True)  # only now: until the summary stood, it was needed
    return Outcome(run.run_id, "complete", _line(run, summary))


def _identity(run: Run) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "model": run.model,
        "dataset": run.dataset,
        "row": run.row,
        "scale": run.scale,
        "seed": run.config.seed,
        "numerics_version": NUMERICS_VERSION,
        "precision": run.config.train.precision,
        "device_kind": resolve_device(run.config.runtime.device).type,
        "error": None,
    }


def _results(run: Run, tokens: TokenSet, model: GPT, *, seconds: float) -> dict[str, Any]:
    config, metrics = run.config, run.path / "metrics.jsonl"
    rows = read_metrics(metrics)
    parameters = count_parameters(model)
    seen = config.train.max_steps * config.train.batch_size * config.train.seq_len
    return {
        "status": "complete",
        "steps": config.train.max_steps,
        "train_tokens": seen,
        "train_passes": seen / len(tokens.train),
        **summarise(rows, max_steps=config.train.max_steps, validation=tokens.meta["splits"]["validation"]),
        "unigram_nats": unigram_cross_entropy(tokens.train, tokens.validation, tokens.vocab_size),
        "parameters": {**asdict(parameters), "total": parameters.total},
        "time": {"total_s": seconds, **speeds(rows)},
        "memory_peak_gib": max((row["memory/peak_gib"] for row in rows if "memory/peak_gib" in row), default=None),
        "metrics_sha256": sha256_file(metrics),
    }


def _describe(error: Exception) -> dict[str, Any]:
    return {
        "type": type(error).__name__,
        "message": " ".join(str(error).split()) or type(error).__name__,
        "step": getattr(error, "step", None),
        "traceback": "".join(traceback.format_exception(error)),
    }


def _line(run: Run, summary: dict[str, Any]) -> str:
    return (
        f"{run.run_id}: validation {summary['val_full']['final_nats']:.4f} nats per token "
        f"(unigram {summary['unigram_nats']:.2f}), {summary['time']['median_step_ms']:.1f} ms a step, "
        f"{summary['time']['total_s']:.0f} s"
    )
