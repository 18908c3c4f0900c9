"""From the lines of metrics.jsonl to the numbers of summary.json."""

from __future__ import annotations

import statistics
from typing import Any

LAST_SHARE = 0.1  # the sampled validation losses of the last 10 % of steps are the paper protocol's final loss


def summarise(rows: list[dict[str, Any]], *, max_steps: int, validation: dict[str, Any]) -> dict[str, Any]:
    """Losses in nats per token unless named otherwise. `validation` is the split's entry in the data's meta.json.

    val_sampled   mean and sample std of the sampled losses at step >= 0.9 max_steps: a spread over batches and steps
    val_full      final and best of the fixed pass
    train_full    the train split measured as val_full is, at the end
    """
    sampled = [(row["step"], row["val/loss_nats"]) for row in rows if "val/loss_nats" in row]
    full = [(row["step"], row["val_full/loss_nats"]) for row in rows if "val_full/loss_nats" in row]
    tail = [loss for step, loss in sampled if step >= (1 - LAST_SHARE) * max_steps]
    last = rows[-1]
    best_step, best = min(full, key=lambda item: item[1])
    best_sampled_step, best_sampled = min(sampled, key=lambda item: item[1])
    final = last["val_full/loss_nats"]
    return {
        "val_sampled": {
            "mean_nats": statistics.fmean(tail),
            "std_nats": statistics.stdev(tail) if len(tail) > 1 else None,
            "n": len(tail),
            "first_step": next(step for step, _ in sampled if step >= (1 - LAST_SHARE) * max_steps),
            "last_step": sampled[-1][0],
            "best_nats": best_sampled,
            "best_step": best_sampled_step,
        },
        "val_full": {
            "final_nats": final,
            "best_nats": best,
            "best_step": best_step,
            "tokens": last["val_full/tokens"],
            "whole_split": last["val_full/tokens"] == validation["tokens"] - 1,
        },
        "train": {"final_nats": last["train_full/loss_nats"], "tokens": last["train_full/tokens"]},
        "train_val_gap_nats": final - last["train_full/loss_nats"],
        "val_nats_per_byte": final * validation["tokens"] / validation["bytes"],
    }


def speeds(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Median step time and pace over the training lines but the first, which holds the warm-up."""
    steps = [row["time/step_ms"] for row in rows if "time/step_ms" in row]
    paces = [row["speed/tokens_per_s"] for row in rows if "time/step_ms" in row]
    steps, paces = steps[1:] or steps, paces[1:] or paces
    return {"median_step_ms": statistics.median(steps), "tokens_per_s": statistics.median(paces)}
