"""Length extrapolation: validation losses of finished runs on sequences longer than in training.

The validation split is cut into spans of the longest length, and every span is read whole, in
halves and in quarters: all lengths predict the same targets, with more or less context.

Shapes: B spans, T tokens of the longest length.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from crope.config import Config
from crope.data.batches import full_pass
from crope.errors import InvalidRecord, UserError, one_line
from crope.files import write_json
from crope.model.gpt import GPT
from crope.plan.compose import Run, load_config
from crope.records.run_json import EXTRAPOLATION
from crope.records.store import Record, read_record
from crope.runs.load import load_run_tokens, load_trained
from crope.train.device import prepare_device
from crope.train.losses import FULL_BATCH_TOKENS, float_logits, token_losses

FACTORS = (1, 2, 4)


def extrapolate_all(runs: Sequence[Run]) -> list[str]:
    """Measures the complete runs; returns a line for each that failed."""
    problems = []
    for run in runs:
        try:
            record = read_record(run.path)
            if record.summary["status"] == "complete":
                extrapolate(record)
        except InvalidRecord:
            continue  # none, or one that was told when the run was to be trained
        except (UserError, RuntimeError, PermissionError) as error:  # out of memory, too
            problems.append(f"{run.run_id}: {one_line(error)}")
    return problems


def extrapolate(record: Record) -> dict[str, Any]:
    """Measures a run at each of FACTORS times its training length, on the tokens that validated it,
    and writes extrapolation.json to its folder. An earlier result is returned as it is.

    lengths       seq_len, loss_nats (nats per token; None and a note where the positions or the
                  split end before), tokens
    """
    if record.extrapolation:  # on the same weights: otherwise the record would not be valid
        return record.extrapolation
    config = load_config(record.config)
    trained = config.train.seq_len
    split = load_run_tokens(record).validation
    extends = load_trained(record).positions.extends
    lines = []
    for factor in FACTORS:
        line: dict[str, Any] = {"seq_len": factor * trained, "loss_nats": None}
        if factor > 1 and not extends:
            line["note"] = f"not defined: {config.model.position} positions end at {trained}"
        elif line["seq_len"] >= len(split):  # the last position would have no target
            line["note"] = f"not measured: the validation split has only {len(split):,} tokens"
        lines.append(line)
    measured = [line for line in lines if "note" not in line]
    lengths = [line["seq_len"] for line in measured]
    model = load_trained(record, max_len=lengths[-1])
    runtime = replace(config.runtime, device="auto")  # the run's device may not be here
    model.to(prepare_device(runtime))
    means, count = losses_by_length(model, split, lengths, config=config)
    for line, mean in zip(measured, means, strict=True):
        line |= {"loss_nats": mean, "tokens": count}
    result = {
        "weights_sha256": record.summary["weights_sha256"],
        "trained_seq_len": trained,
        "factors": list(FACTORS),
        "max_tokens": config.eval.full_tokens,
        "lengths": lines,
    }
    write_json(record.path / EXTRAPOLATION, result)
    return result


@torch.no_grad()
def losses_by_length(
    model: GPT, split: np.ndarray, lengths: Sequence[int], *, config: Config
) -> tuple[list[float], int]:
    """Computes the mean loss at each of the ascending lengths, and the number of targets."""
    model.eval()  # a dropped channel would be part of the loss
    device, longest = model.embedding.weight.device, lengths[-1]
    bf16 = config.train.precision == "bf16"  # as in the run
    totals = torch.zeros(len(lengths), dtype=torch.float64, device=device)
    count = 0
    batches = full_pass(
        split,
        seq_len=longest,
        batch_size=max(1, FULL_BATCH_TOKENS // longest),
        max_tokens=config.eval.full_tokens,
    )
    for inputs_BT, targets_BT in batches:
        inputs_BT, targets_BT = inputs_BT.to(device), targets_BT.to(device)
        count += targets_BT.numel()
        for index, length in enumerate(lengths):
            # Consecutive pieces of this length; the rest of the split makes a shorter one.
            inputs, targets = inputs_BT.split(length, dim=1), targets_BT.split(length, dim=1)
            for piece, its_targets in zip(inputs, targets, strict=True):
                loss_BT = token_losses(float_logits(model, piece, bf16=bf16), its_targets)
                totals[index] += loss_BT.double().sum()
    return (totals / count).tolist(), count
