"""Length extrapolation: finished runs measured on sequences longer than those they were trained on.

The validation split is cut into spans of the longest length, and every span is read at each length: whole, in halves,
in quarters. So all lengths predict the same targets, and differ in how much context a target has. A scheme that
extrapolates does not lose by more of it.

Shapes: B spans, T tokens of the longest length.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from crope.config import Config
from crope.data.batches import full_pass
from crope.data.tokens import TokenSet
from crope.device import resolve_device
from crope.evaluate import FULL_BATCH_TOKENS
from crope.model.gpt import GPT
from crope.record import write_json
from crope.trained import load_config, load_model, load_run_tokens

FACTORS = (1, 2, 4)
SEGMENTS = 4  # a trained length is shown as so many means over positions


def extrapolate(path: Path, *, factors: Sequence[int] = FACTORS, max_tokens: int | None = None) -> dict[str, Any]:
    """Measures the run in `path` at each factor times its training length, and leaves extrapolation.json there.

    max_tokens as eval.full_tokens, the run's own by default; 0 is the whole split. A file that answers the same
    question is not made again. Losses in nats per token:

    lengths       seq_len, loss_nats (None and a note where the scheme or the split does not reach), tokens
    by_position   mean loss at positions first .. last of the longest measured spans
    """
    config = load_config(path)
    limit = config.eval.full_tokens if max_tokens is None else max_tokens
    asked = {"trained_seq_len": config.train.seq_len, "factors": sorted(factors), "max_tokens": limit}
    file = path / "extrapolation.json"
    if file.exists():
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if {key: found[key] for key in asked} == asked:
            return found
    result = asked | measure(path, config, load_run_tokens(config), factors=sorted(factors), max_tokens=limit)
    write_json(file, result)
    return result


def measure(path: Path, config: Config, tokens: TokenSet, *, factors: Sequence[int], max_tokens: int) -> dict[str, Any]:
    """The numbers of extrapolation.json."""
    trained, split = config.train.seq_len, tokens.validation
    lengths = [factor * trained for factor in factors]
    model, notes = load_model(path, config), {}
    for length in lengths:
        if length > trained and not model.positions.extends:
            notes[length] = f"not defined: {config.model.position} positions end at {trained}"
        elif length > len(split) - 1:
            notes[length] = f"not measured: the validation split has only {len(split):,} tokens"
    measured = [length for length in lengths if length not in notes]
    rows: list[dict[str, Any]] = [{"seq_len": n, "loss_nats": None, "note": text} for n, text in notes.items()]
    by_position: list[dict[str, Any]] = []
    if measured:
        model = load_model(path, config, max_len=max(measured)).to(resolve_device(config.runtime.device))
        means, count, curve_T = losses(model, split, measured, config=config, max_tokens=max_tokens)
        rows += [{"seq_len": n, "loss_nats": means[n], "tokens": count} for n in measured]
        by_position = segments(curve_T, max(1, trained // SEGMENTS))
    return {"lengths": sorted(rows, key=lambda row: row["seq_len"]), "by_position": by_position}


@torch.no_grad()
def losses(
    model: GPT, split: np.ndarray, lengths: Sequence[int], *, config: Config, max_tokens: int
) -> tuple[dict[int, float], int, np.ndarray]:
    """Mean loss at each length, the number of targets, and the mean loss at each position of a longest span."""
    model.eval()
    device, longest = model.embedding.weight.device, max(lengths)
    totals = {length: torch.zeros((), dtype=torch.float64, device=device) for length in lengths}
    curve_T, spans, count = torch.zeros(longest, dtype=torch.float64, device=device), 0, 0
    batch_size = max(1, FULL_BATCH_TOKENS // longest)
    for inputs_BT, targets_BT in full_pass(split, seq_len=longest, batch_size=batch_size, max_tokens=max_tokens):
        count += targets_BT.numel()
        for length in lengths:
            for inputs, targets in pieces(inputs_BT.to(device), targets_BT.to(device), length):
                found = token_losses(model, inputs, targets, bf16=config.train.precision == "bf16")
                totals[length] += found.sum()
                if inputs.shape[1] == longest:
                    curve_T += found.sum(dim=0)
                    spans += len(found)
    return {length: total.item() / count for length, total in totals.items()}, count, (curve_T / spans).cpu().numpy()


def pieces(inputs_BT: Tensor, targets_BT: Tensor, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The spans in consecutive pieces of `length`; what is left of a span that is no multiple of it comes last."""
    whole = inputs_BT.shape[1] // length * length
    if whole:
        yield inputs_BT[:, :whole].reshape(-1, length), targets_BT[:, :whole].reshape(-1, length)
    if whole < inputs_BT.shape[1]:
        yield inputs_BT[:, whole:], targets_BT[:, whole:]


def token_losses(model: GPT, inputs_BT: Tensor, targets_BT: Tensor, *, bf16: bool) -> Tensor:
    """The reference loss (crope/loss.py) of each token, (B, T) in float64, not yet averaged."""
    with torch.autocast(inputs_BT.device.type, torch.bfloat16, enabled=bf16):
        logits_BTV = model.logits(model(inputs_BT))
        logits_BTV = logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32))
        found = F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction="none")
    return found.view_as(targets_BT).double()


def segments(curve_T: np.ndarray, length: int) -> list[dict[str, Any]]:
    """Means over consecutive `length` positions; the last may be shorter."""
    firsts = range(0, len(curve_T), length)
    parts = [(first, curve_T[first : first + length]) for first in firsts]
    return [{"first": first, "last": first + len(part) - 1, "loss_nats": float(part.mean())} for first, part in parts]
