"""Length extrapolation: validation losses of finished runs on sequences longer than those they were
trained on.

The validation split is cut into spans of the longest length, and every span is read at each length:
whole, in halves, in quarters. So all lengths predict the same targets and differ only in how much
context a target has.

Shapes: B spans, T tokens of the longest length.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crope.config import Config
from crope.data.batches import full_pass
from crope.errors import InvalidRecord, UserError
from crope.files import write_json
from crope.model.gpt import GPT
from crope.runs.compose import load_config
from crope.runs.load import load_run_tokens, load_trained
from crope.runs.record import Record, read_measurement
from crope.train.device import prepare_device
from crope.train.losses import FULL_BATCH_TOKENS, token_losses

FACTORS = (1, 2, 4)
SEGMENTS = 4  # means over positions per training length


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
    config, path = load_config(record.config), record.path
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
    file = path / "extrapolation.json"
    with suppress(InvalidRecord):  # absent too
        measured_before: dict[str, Any] = read_measurement(file, record.summary)
        if settings.items() <= measured_before.items():
            return measured_before
    model, split = load_trained(record), load_run_tokens(record).validation
    lengths = [factor * trained for factor in factors]
    notes = {}
    for length in lengths:
        if length > trained and not model.positions.extends:
            notes[length] = f"not defined: {config.model.position} positions end at {trained}"
        elif length > len(split) - 1:
            notes[length] = f"not measured: the validation split has only {len(split):,} tokens"
    measured = [length for length in lengths if length not in notes]
    rows: list[dict[str, Any]] = [
        {"seq_len": length, "loss_nats": None, "note": note} for length, note in notes.items()
    ]
    by_position: list[dict[str, Any]] = []
    if measured:
        model = load_trained(record, max_len=max(measured))
        runtime = replace(config.runtime, device="auto")  # the run's device may not be here
        model.to(prepare_device(runtime))
        means, count, curve_T = losses(model, split, measured, config=config, max_tokens=limit)
        rows += [{"seq_len": n, "loss_nats": means[n], "tokens": count} for n in measured]
        by_position = segments(curve_T, max(1, trained // SEGMENTS))
    rows.sort(key=lambda row: row["seq_len"])
    result = settings | {"lengths": rows, "by_position": by_position}
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
    totals = {length: torch.zeros((), dtype=torch.float64, device=device) for length in lengths}
    curve_T, spans, count = torch.zeros(longest, dtype=torch.float64, device=device), 0, 0
    batch_size = max(1, FULL_BATCH_TOKENS // longest)
    for inputs_BT, targets_BT in full_pass(
        split, seq_len=longest, batch_size=batch_size, max_tokens=max_tokens
    ):
        count += targets_BT.numel()
        for length in lengths:
            for inputs, targets in pieces(inputs_BT.to(device), targets_BT.to(device), length):
                bf16 = config.train.precision == "bf16"
                loss_BT = token_losses(model, inputs, targets, bf16=bf16).double()
                totals[length] += loss_BT.sum()
                if inputs.shape[1] == longest:
                    curve_T += loss_BT.sum(dim=0)
                    spans += len(loss_BT)
    means = {length: total.item() / count for length, total in totals.items()}
    return means, count, (curve_T / spans).cpu().numpy()


def pieces(inputs_BT: Tensor, targets_BT: Tensor, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The spans in consecutive pieces of `length`; the rest of a span that is not a multiple of it
    comes last.
    """
    whole = inputs_BT.shape[1] // length * length
    if whole:
        yield inputs_BT[:, :whole].reshape(-1, length), targets_BT[:, :whole].reshape(-1, length)
    if whole < inputs_BT.shape[1]:
        yield inputs_BT[:, whole:], targets_BT[:, whole:]


def segments(curve_T: np.ndarray, length: int) -> list[dict[str, Any]]:
    """Means over consecutive `length` positions; the last may be shorter."""
    parts = [(first, curve_T[first : first + length]) for first in range(0, len(curve_T), length)]
    return [
        {"first": first, "last": first + len(part) - 1, "loss_nats": float(part.mean())}
        for first, part in parts
    ]
