"""What scripts/extrapolate.py measured: the loss of trained runs on sequences longer than those of their training."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from crope.record import Record
from crope.report.frame import CellResult, one_line

FILE = "extrapolation.json"


@dataclass(frozen=True)
class Lengths:
    """One model on one text.

    trained    its training length, tokens
    losses     length -> seed -> mean loss in nats per token; every length has the same targets
    notes      length -> why there is no loss
    positions  middle of a segment of positions -> mean loss there over seeds, in spans of the longest length
    tokens     targets behind each loss
    left_out   runs without a measurement of the same tokens and lengths, and why
    """

    trained: int
    losses: dict[int, dict[int, float]]
    notes: dict[int, str]
    positions: dict[float, float]
    tokens: int
    left_out: tuple[str, ...] = ()

    @property
    def lengths(self) -> list[int]:
        return sorted({*self.losses, *self.notes})

    def change(self, length: int) -> dict[int, float]:
        """Seed -> loss at `length` less that at the training length, of the tokens that lie beyond the latter.

        Those before it have the same context at both lengths and change by 0: the difference of the means over all
        tokens is that over the ones beyond, thinned. Below zero, more context helps.
        """
        start, end = self.losses.get(self.trained, {}), self.losses.get(length, {})
        beyond = tokens_beyond(self.trained, length, longest=max(self.losses, default=0), tokens=self.tokens)
        return {
            seed: (end[seed] - start[seed]) * self.tokens / beyond
            for seed in sorted(start.keys() & end.keys())
            if beyond
        }


def tokens_beyond(trained: int, length: int, *, longest: int, tokens: int) -> int:
    """How many of the tokens stand at positions from `trained` on when spans of `longest` are read `length` at a time.

    The spans follow each other; what is left of the tokens is a shorter last one (crope/extrapolate.py).
    """
    spans, rest = divmod(tokens, longest) if longest else (0, 0)

    def of_span(size: int) -> int:
        pieces, left = divmod(size, length)
        return pieces * max(0, length - trained) + max(0, left - trained)

    return spans * of_span(longest) + of_span(rest)


def read_lengths(result: CellResult) -> Lengths | None:
    """None where no run of the cell was measured. Runs that were measured otherwise than the first are left out."""
    found: dict[int, dict[str, Any]] = {}
    left_out = []
    for run in result.runs:
        try:
            data = _read(run)
            first = next(iter(found.values()), data)
            if _question(data) != _question(first):
                raise ValueError("measured at other lengths or on other tokens than the runs of other seeds")
            found[run.summary["seed"]] = data
        except FileNotFoundError:
            left_out.append(f"{run.path.name}: not measured beyond its length; scripts/extrapolate.py does it")
        except (OSError, ValueError, KeyError, TypeError) as error:
            cure = f"remove its {FILE}, scripts/extrapolate.py makes it anew"
            left_out.append(one_line(f"{run.path.name}: {error}; {cure}"))
    return _gather(found, left_out) if found else None


def _question(data: dict[str, Any]) -> list[Any]:
    return [data["max_tokens"], [row["seq_len"] for row in data["lengths"]]]


def _read(run: Record) -> dict[str, Any]:
    """Raises OSError, ValueError, KeyError or TypeError unless it is what a measurement of this run leaves."""
    data: dict[str, Any] = json.loads((run.path / FILE).read_text(encoding="utf-8"))
    trained = data["trained_seq_len"]
    if trained != run.config["train"]["seq_len"]:
        raise ValueError(f"it is of a run trained at {trained}")
    rows = {row["seq_len"]: row for row in data["lengths"]}
    if trained not in rows:
        raise ValueError(f"no loss at the training length {trained}")
    for length, row in rows.items():
        if row["loss_nats"] is None:
            str(row["note"])
        elif not math.isfinite(row["loss_nats"]):
            raise ValueError(f"the loss at length {length} is {row['loss_nats']}")
    for part in data["by_position"]:
        math.isfinite(part["first"] + part["last"] + part["loss_nats"])
    str(data["max_tokens"])
    return data


def _gather(found: dict[int, dict[str, Any]], left_out: Sequence[str]) -> Lengths:
    losses: dict[int, dict[int, float]] = {}
    notes: dict[int, str] = {}
    parts: dict[float, list[float]] = {}
    tokens = 0
    for seed, data in found.items():
        for row in data["lengths"]:
            if row["loss_nats"] is None:
                notes[row["seq_len"]] = one_line(row["note"])
            else:
                losses.setdefault(row["seq_len"], {})[seed] = float(row["loss_nats"])
                tokens = int(row["tokens"])
        for part in data["by_position"]:
            parts.setdefault((part["first"] + part["last"] + 1) / 2, []).append(float(part["loss_nats"]))
    positions = {place: fmean(values) for place, values in sorted(parts.items())}
    return Lengths(
        int(next(iter(found.values()))["trained_seq_len"]), losses, notes, positions, tokens, tuple(left_out)
    )
