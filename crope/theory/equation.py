"""One row of the table equation -> code -> test, and the short forms in which rows are written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Equation:
    """`code` as module:object; empty where the equation is a definition or a step, with the `reason`. `tests` as pytest
    nodes: for an equation that does not hold as printed, they show what does (errata.py)."""

    number: str
    states: str
    code: tuple[str, ...]
    tests: tuple[str, ...]
    reason: str


def equation(number: str, states: str, *, code: str = "", tests: str = "", reason: str = "") -> Equation:
    """A row. Words of `code` are modules below crope ("theory.kernel:kernel"), of `tests` files without test_ and .py,
    below tests/theory or tests/<folder> ("kernel::test_x", "model/positions::test_y")."""
    return Equation(
        number, states, tuple(f"crope.{word}" for word in code.split()), tuple(map(_node, tests.split())), reason
    )


def _node(short: str) -> str:
    file, _, name = short.partition("::")
    folder, _, file = file.rpartition("/")
    return f"tests/{folder or 'theory'}/test_{file}.py::{name}"
