"""Length extrapolation: validation losses of finished runs on sequences longer than those they were
trained on.

The validation split is cut into spans of the longest length, and every span is read at each length:
whole, in halves, in quarters. So all lengths predict the same targets and differ only in how much
context a target has.

Shapes: B spans, T tokens of the longest length.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from crope.config import Config
from crope.data.batches import full_pass
from crope.errors import InvalidRecord, StorageError, UserError, one_line, out_of_memory
from crope.files import write_json
from crope.model.gpt import GPT
from crope.runs.compose import Run, load_config
from crope.runs.load import load_run_tokens, load_trained
from crope.runs.progress import Display
from crope.runs.record import Record, is_complete, read_extrapolation, read_record
from crope.train.device import prepare_device
from crope.train.losses import FULL_BATCH_TOKENS, token_losses

FACTORS = (1, 2, 4)
SEGMENTS = 4  # means over positions per training length


def extrapolate_all(runs: Sequence[Run]) -> list[str]:
    """Measures those of the runs that are complete; returns a line for each that failed."""
    problems = []
    with Display() as display:
        for number, run in enumerate(runs):
            display.show([f"{number} of {len(runs)} runs read beyond their training length"])
            try:
                if is_complete(run.path):
                    extrapolate(read_record(run.path))
            except InvalidRecord:
                continue  # it has failed already, when it was to be trained
            except StorageError:
                raise  # no other run could be measured either
            except Exception as error:
                if not (isinstance(error, UserError) or out_of_memory(error)):
                    raise
                problems.append(f"{run.run_id}: {one_line(error)}")
    return problems


def extrapolate(
    record: Record, *, factors: Sequence[int] = FACTORS, max_tokens: int | None = None
) -> dict[str, Any]:
    """Measures a run at each factor times its training length and writes extrapolation.json to its
    folder.

    max_tokens is as eval.full_tokens, by default the run's own; 0 is the whole split. An existing
    file with the same factors and max_tokens is returned as it is; one that cannot be read or is of
    other weights is replaced. Losses in nats per token:

    lengths       seq_len, loss_nats (None and a note where the positions or the split end before),
                  tokens
    by_position   mean loss at positions first .. last of the longest measured spans
    """
    config = load_config(record.config)
    if min(factors) < 1 or (max_tokens or 0) < 0:
        raise UserError(
            f"factors={list(factors)}, max_tokens={max_tokens}: factors are at least 1, max_tokens 0"
        )
    trained, factors = config.train.seq_len, sorted(set(factors))
    limit = config.eval.full_tokens if max_tokens is None else max_tokens
    settings = {
        "weights_sha256": record.summary.get("weights_sha256"),
        "trained_seq_len": trained,
        "factors": factors,
        "max_tokens": limit,
    }
    file = record.path / "extrapolation.json"
    with suppress(InvalidRecord):  # absent too
        measured_before: dict[str, Any] = read_extrapolation(record)
        if settings.items() <= measured_before.items():
            return measured_before
    model, split = load_trained(record), load_run_tokens(record).validation
    lines, measured = [], []
    for length in (factor * trained for factor in factors):
        line: dict[str, Any] = {"seq_len": length, "loss_nats": None}
        if length > trained and not model.positions.extends:
            line["note"] = f"not defined: {config.model.position} positions end at {trained}"
        elif length >= len(split):  # the last position would have no target
            line["note"] = f"not measured: the validation split has only {len(split):,} tokens"
        else:
            measured.append(length)
        lines.append(line)
    by_position: list[dict[str, Any]] = []
    if measured:
        model = load_trained(record, max_len=max(measured))
        runtime = replace(config.runtime, device="auto")  # the run's device may not be here
        model.to(prepare_device(runtime))
        means, count, curve_T = losses(model, split, measured, config=config, max_tokens=limit)
        for line in lines:
            if line["seq_len"] in means:
                line |= {"loss_nats": means[line["seq_len"]], "tokens": count}
        by_position = segments(curve_T, max(1, trained // SEGMENTS))
    result = settings | {"lengths": lines, "by_position": by_position}
    write_json(file, result)
    return result


@torch.no_grad()
def losses(
    model: GPT, split: np.ndarray, lengths: Sequence[int], *, config: Config, max_tokens: int
) -> tuple[dict[int, float], int, np.ndarray]:
    """Mean loss at each length, the number of targets, and the mean loss at each position of a
    longest span.
    """
    model.eval()
    device, longest = model.embedding.weight.device, max(lengths)
    bf16 = config.train.precision == "bf16"
    totals = torch.zeros(len(lengths), dtype=torch.float64, device=device)
    curve_T, spans, count = torch.zeros(longest, dtype=torch.float64, device=device), 0, 0
    batch_size = max(1, FULL_BATCH_TOKENS // longest)
    for inputs_BT, targets_BT in full_pass(
        split, seq_len=longest, batch_size=batch_size, max_tokens=max_tokens
    ):
        inputs_BT, targets_BT = inputs_BT.to(device), targets_BT.to(device)
        count += targets_BT.numel()
        for index, length in enumerate(lengths):
            # Consecutive pieces of this length; the rest of the split makes a shorter one.
            inputs, targets = inputs_BT.split(length, dim=1), targets_BT.split(length, dim=1)
            for piece, its_targets in zip(inputs, targets, strict=True):
                loss_BT = token_losses(model, piece, its_targets, bf16=bf16).double()
                totals[index] += loss_BT.sum()
                if piece.shape[1] == longest:
                    curve_T += loss_BT.sum(dim=0)
                    spans += len(loss_BT)
    means = dict(zip(lengths, (totals / count).tolist(), strict=True))
    return means, count, (curve_T / spans).cpu().numpy()


def segments(curve_T: np.ndarray, length: int) -> list[dict[str, Any]]:
    """Means over consecutive `length` positions; the last may be shorter."""
    means = []
    for first in range(0, len(curve_T), length):
        part = curve_T[first : first + length]
        last = first + len(part) - 1
        means.append({"first": first, "last": last, "loss_nats": float(part.mean())})
    return means
