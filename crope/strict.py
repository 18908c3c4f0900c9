"""Strict reading of what a run wrote: files and values as they must be, or Damage that says in one line what is not so.

Nothing is repaired, guessed or left out here; `record.read_metrics`, which a resumed run uses, forgives a torn line.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

# Sums of the same numbers may differ in their last bit between versions of Python; no table shows ten digits.
RELATIVE_TOLERANCE = 1e-10

# What a function may raise that expects a run's values and is given others.
MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, StopIteration, TypeError, ValueError)


class Damage(Exception):
    """What is wrong with a file of a run, in one line."""


def read_object(path: Path) -> dict[str, Any]:
    """The keys and values of a .json or .yaml file. Raises Damage where it is absent, cut short or of another kind."""
    parse = _parse_json if path.suffix == ".json" else yaml.safe_load
    try:
        value = parse(_read_bytes(path).decode("utf-8"))
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise Damage(f"{path.name} is cut short or damaged ({reason[:120]})") from None
    if not isinstance(value, dict):
        raise Damage(f"{path.name} holds no keys and values")
    return value


def read_finished_metrics(path: Path, *, sha256: str) -> list[dict[str, Any]]:
    """Rows of a complete run's metrics.jsonl: finite numbers by name, at rising steps. Raises Damage."""
    data = _read_bytes(path)
    if not data.endswith(b"\n"):
        raise Damage("metrics.jsonl is cut short: it ends inside a line")
    if hashlib.sha256(data).hexdigest() != sha256:
        raise Damage("metrics.jsonl was edited or damaged: its sha256 is not metrics_sha256 of summary.json")
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            row = json.loads(line)
            ordered = is_count(row["step"]) and (not rows or row["step"] > rows[-1]["step"])
            sound = ordered and all(map(is_number, row.values()))
        except MALFORMED:
            sound = False
        if not sound:
            raise Damage(f"metrics.jsonl, line {number:,}: not finite numbers by name at a step past the line before")
        rows.append(row)
    return rows


def require(found: Any, file: str, expected: Mapping[str, Any], path: str = "") -> None:
    """Raises Damage for the first key of `expected` (key -> check of its value, or keys below it) that is not so."""
    for key, check in expected.items():
        name = f"{path}{key}"
        if not isinstance(found, dict) or key not in found:
            raise Damage(f"{file} lacks {name}")
        if isinstance(check, dict):
            require(found[key], file, check, f"{name}.")
        elif not check(found[key]):
            raise Damage(f"{file}: {name} is {show(found[key])}, which no run writes")


def agree(summary: Any, expected: Mapping[str, Any], source: str, path: str = "") -> None:
    """Raises Damage for the first value of `expected`, worked out from `source`, that summary.json does not have."""
    for key, value in expected.items():
        name = f"{path}{key}"
        if not isinstance(summary, dict) or key not in summary:
            raise Damage(f"summary.json lacks {name}")
        if isinstance(value, dict):
            agree(summary[key], value, source, f"{name}.")
        elif not _equal(summary[key], value):
            raise Damage(f"summary.json: {name} is {show(summary[key])}, but {show(value)} by {source}; one was edited")


def _equal(found: Any, expected: Any) -> bool:
    if isinstance(expected, float):
        return is_number(found) and math.isclose(found, expected, rel_tol=RELATIVE_TOLERANCE)
    return type(found) is type(expected) and bool(found == expected)


def _read_bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise Damage(f"{path.name} is missing") from None
    except OSError as error:
        raise Damage(f"{path.name} cannot be read ({error.strerror})") from None
    if not data.strip():
        raise Damage(f"{path.name} is empty")
    return data


def _parse_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON number")

    return json.loads(text, parse_constant=refuse)


def show(value: Any) -> str:
    """A value for a message: one line of printable characters, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def is_object(value: Any) -> bool:
    return isinstance(value, dict)


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def is_positive(value: Any) -> bool:
    return is_count(value) and value > 0


def is_number(value: Any) -> bool:
    """Finite; a bool is none."""
    return type(value) in (int, float) and abs(value) < 1e300


def is_none(value: Any) -> bool:
    return value is None


def is_none_or(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)
