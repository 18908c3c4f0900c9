"""What two runs differ in: configuration, provenance, results, and the first step at which their curves part.

Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from crope.errors import DataError
from crope.lookup import shown
from crope.record import Record

ABSENT = "(absent)"
TIMES = ("started_utc", "finished_utc")  # differ between any two runs and say nothing
LOSSES = {
    "full, final": ("val_full", "final_nats"),
    "full, best": ("val_full", "best_nats"),
    "sampled, mean": ("val_sampled", "mean_nats"),
    "train, final": ("train", "final_nats"),
}
FACTS = ("status", "numerics_version", "steps", "precision", "device_kind", "parameters.total")
HASH_SHOWN = 12  # digits of a commit or sha256


@dataclass(frozen=True)
class Line:
    """One thing in which the runs differ, as printed."""

    name: str
    first: str
    second: str
    more: str = ""


def render_diff(first: Record, second: Record) -> str:
    """The differences as text; a part in which the runs do not differ says so."""
    parts = [f"A  {shown(first.path)}\nB  {shown(second.path)}"]
    parts.append(_part("configuration", differences(first.config, second.config)))
    facts = [{name: _at(run.summary, name) for name in FACTS} for run in (first, second)]
    provenance = [{key: value for key, value in run.provenance.items() if key not in TIMES} for run in (first, second)]
    parts.append(_part("provenance", differences(*provenance)))
    parts.append(_part("run", differences(*facts)))
    parts.append(_part("losses, nats per token", list(loss_lines(first.summary, second.summary)), more="B − A"))
    parts.append("\n".join(["curves", *(f"  {line}" for line in curve_lines(first, second))]))
    return "\n\n".join(parts) + "\n"


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Line]:
    """Leaves of nested mappings that are not equal, by dotted name, in the order in which they stand."""
    one, other = dict(_leaves(first)), dict(_leaves(second))
    absent = object()
    return [
        Line(name, *(_text(values.get(name, ABSENT)) for values in (one, other)))
        for name in dict.fromkeys([*one, *other])
        if one.get(name, absent) != other.get(name, absent)
    ]


def _leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


def _at(node: Any, path: str) -> Any:
    for part in path.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    is_hash = len(text) in (40, 64) and set(text) <= set("0123456789abcdef")
    return text[:HASH_SHOWN] if is_hash else text


def loss_lines(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Line]:
    """Final and best losses of both, differing or not: that two runs agree is worth seeing."""
    for name, path in LOSSES.items():
        one, other = (_at(summary, ".".join(path)) for summary in (first, second))
        if one is None and other is None:
            continue
        both = one is not None and other is not None
        texts = [ABSENT if loss is None else f"{loss:.6f}" for loss in (one, other)]
        yield Line(name, texts[0], texts[1], f"{other - one:+.6f}".replace("-", "−") if both else "")


def curve_lines(first: Record, second: Record) -> list[str]:
    """One line a loss curve: where it first differs, in the digits that are stored, or that it does not."""
    curves = [_curves(run) for run in (first, second)]
    return [
        f"{name}: {_compare(*(by_name.get(name, {}) for by_name in curves))}"
        for name in dict.fromkeys([*curves[0], *curves[1]])
    ] or ["no losses were logged"]


def _curves(run: Record) -> dict[str, dict[int, float]]:
    try:
        rows = run.metrics()
    except (OSError, ValueError) as error:
        raise DataError(f"{run.path / 'metrics.jsonl'}: cannot be read ({' '.join(str(error).split())})") from error
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        for name, value in row.items():
            if name.endswith("loss_nats"):
                found.setdefault(name, {})[row["step"]] = value
    return found


def _compare(first: Mapping[int, float], second: Mapping[int, float]) -> str:
    shared = sorted(first.keys() & second.keys())
    if not shared:
        return f"no shared step ({len(first)} in A, {len(second)} in B)"
    count = f"{len(shared)} shared step{'s' if len(shared) > 1 else ''}"
    if len(first) != len(shared) or len(second) != len(shared):
        count += f" ({len(first)} in A, {len(second)} in B)"
    step = next((step for step in shared if first[step] != second[step]), None)
    if step is None:
        return f"equal at {count}"
    return f"first differ at step {step}: {first[step]!r} and {second[step]!r}; {count}"


def _part(title: str, lines: list[Line], *, more: str = "") -> str:
    if not lines:
        return f"{title}\n  no difference"
    table = [
        Line(title, "A", "B", more),
        *(Line(f"  {line.name}", line.first, line.second, line.more) for line in lines),
    ]
    widths = [max(len(getattr(line, name)) for line in table) for name in ("name", "first", "second")]
    return "\n".join(
        "  ".join([
            line.name.ljust(widths[0]), line.first.ljust(widths[1]), line.second.ljust(widths[2]), line.more
        ]).rstrip()
        for line in table
    )  # fmt: skip
