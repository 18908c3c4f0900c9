"""The end of a sweep: a table of its own results, one line a run, read back from the run directories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crope.compose import Run
from crope.config import SCIENTIFIC
from crope.state import DONE, RunState, read_states
from crope.strict import read_object

NAMES = ("model", "dataset", "row", "scale")  # the group files that a run was chosen by


def render_sweep(runs: Sequence[Run]) -> str:
    """Final losses of the runs of a sweep, in its order: what was swept as columns, failed and missing runs marked.

    A group (model, data, ablation, scale) is one column by its file's name; the keys that such a file sets are not
    repeated unless they were swept within it. Empty for no run.
    """
    if not runs:
        return ""
    unique = list({run.run_id: run for run in runs}.values())
    columns = swept(unique) or {"run": [run.run_id for run in unique]}
    rows = [[*columns, "validation", "best", "seconds"]]
    for number, state in enumerate(read_states(unique)):
        rows.append([*(show(column[number]) for column in columns.values()), *_results(state)])
    # What marks a run without a loss may be long: it widens no column.
    losses = [row for row in rows if len(row) == len(rows[0])]
    widths = [max(len(row[n]) for row in (rows if n < len(columns) else losses)) for n in range(len(rows[0]))]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, "validation: final loss in nats per token on the full pass; best: its lowest"])


def swept(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Name -> value by run, for the group files and scientific keys that differ among the runs."""
    columns: dict[str, list[Any]] = {
        name: [getattr(run, name) for run in runs] for name in NAMES if len({getattr(run, name) for run in runs}) > 1
    }
    groups = [tuple(getattr(run, name) for name in NAMES) for run in runs]
    flat = [_flatten({name: run.container[name] for name in SCIENTIFIC}) for run in runs]
    for key in flat[0]:
        values = [values[key] for values in flat]
        by_group: dict[tuple[str, ...], set[Any]] = {}
        for group, value in zip(groups, values, strict=True):
            by_group.setdefault(group, set()).add(value)
        if any(len(found) > 1 for found in by_group.values()):
            columns[key] = values
    if "seed" in columns:  # last: it is what the others are repeated over
        columns["seed"] = columns.pop("seed")
    return columns


def _flatten(node: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in node.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _results(state: RunState) -> list[str]:
    if state.status != DONE:
        return [f"{state.status}: {state.why}" if state.why else state.status]
    summary = read_object(state.run.path / "summary.json")
    full = summary["val_full"]
    return [f"{full['final_nats']:.4f}", f"{full['best_nats']:.4f}", f"{summary['time']['total_s']:.0f}"]


def show(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
