"""docs/equations.md: every name of code and test in it exists, and every equation has one row in order."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from crope.config import ROOT
from crope.paper import SAVED_PERCENT

TEXT = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(crope\.[\w.]+:\w+)`", TEXT))))
def test_code_exists(name: str) -> None:
    module, attribute = name.split(":")
    assert callable(getattr(import_module(module), attribute))


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(tests/[\w/.:]+)`", TEXT))))
def test_tests_exist(name: str) -> None:
    file, _, function = name.partition("::")
    assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8") if function else (ROOT / file).exists()


def test_every_equation_has_one_row_in_order() -> None:
    numbers = [int(number) for number in re.findall(r"^\| (\d+)(?: E)? \|", TEXT, flags=re.MULTILINE)]
    assert numbers == [*range(1, 31), *range(11, 38)]


def test_the_halved_reading_contradicts_the_papers_percentages() -> None:
    """Sec. 5.1 in units of D^2, 12 per block: Eq. 30 halves Q, K, V; the sentence halves the output projection too."""
    eq_30, sentence = 3 / 2, 4 / 2
    assert [100 * eq_30 / part for part in (3, 4, 12)] == [
        SAVED_PERCENT[p].value for p in ("Q/K/V", "attention", "block")
    ]
    assert [100 * sentence / part for part in (4, 12)] == pytest.approx([50, 16.7], abs=0.04)
