"""What follows from the metrics of a complete run: its losses, times and counts."""

import statistics
from collections.abc import Mapping
from typing import Any

LAST_SHARE = 0.1  # the paper's final loss: the sampled validation losses of the last 10 % of steps


def derive(
    config: Mapping[str, Any], rows: list[dict[str, Any]], splits: Mapping[str, Any]
) -> dict[str, Any]:
    """Computes a complete run's part of summary.json from its configuration, the rows of
    metrics.jsonl and the splits of the data's meta.json. Losses are in nats per token.

    val_sampled   mean and sample standard deviation of the sampled losses at step >= 0.9 max_steps
    val_full      final and best loss of the fixed pass
    train         the training split measured as val_full is, after the last step
    time          median step time over the training lines except the first, which includes
                  compilation and first allocations; None if the clock stood still
    """
    train, validation = config["train"], splits["validation"]
    max_steps = train["max_steps"]
    seen = max_steps * train["batch_size"] * train["seq_len"]
    sampled = _by_step(rows, "val/loss_nats")
    full = _by_step(rows, "val_full/loss_nats")
    tail = [step for step in sampled if step >= (1 - LAST_SHARE) * max_steps]
    losses = [sampled[step] for step in tail]
    last = rows[-1]
    final, train_final = last["val_full/loss_nats"], last["train_full/loss_nats"]
    count = last["val_full/tokens"]
    return {
        "steps": max_steps,
        "train_tokens": seen,
        "train_passes": seen / splits["train"]["tokens"],
        "val_sampled": {
            "mean_nats": statistics.fmean(losses),
            "std_nats": statistics.stdev(losses) if len(losses) > 1 else None,
            "n": len(losses),
            "first_step": tail[0],
            "last_step": tail[-1],
            **_lowest(sampled),
        },
        "val_full": {
            "final_nats": final,
            **_lowest(full),
            "tokens": count,
            "whole_split": count == validation["tokens"] - 1,
        },
        "train": {"final_nats": train_final, "tokens": last["train_full/tokens"]},
        "train_val_gap_nats": final - train_final,
        "val_nats_per_byte": final * validation["tokens"] / validation["bytes"],
        "time": {
            "median_step_ms": _median_but_first(rows, "time/step_ms"),
            "tokens_per_s": _median_but_first(rows, "speed/tokens_per_s"),
        },
        "memory_peak_gib": max(_by_step(rows, "memory/peak_gib").values(), default=None),
    }


def _by_step(rows: list[dict[str, Any]], key: str) -> dict[int, float]:
    return {row["step"]: row[key] for row in rows if key in row}


def _lowest(losses: dict[int, float]) -> dict[str, float]:
    step = min(losses, key=losses.__getitem__)  # of equal losses the first
    return {"best_nats": losses[step], "best_step": step}


def _median_but_first(rows: list[dict[str, Any]], key: str) -> float | None:
    values = list(_by_step(rows, key).values())
    return statistics.median(values[1:] or values) if values else None
