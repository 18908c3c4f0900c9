"""docs/equations.md: every name of code and test in it exists, and every equation has one row in
order.
"""

import re
from importlib import import_module

import pytest

from crope.config import ROOT

TEXT = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(crope\.[\w.]+:\w+)`", TEXT))))
def test_code_exists(name):
    module, attribute = name.split(":")
    assert callable(getattr(import_module(module), attribute))


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(tests/[\w/.:]+)`", TEXT))))
def test_tests_exist(name):
    file, _, function = name.partition("::")
    text = (ROOT / file).read_text(encoding="utf-8")
    assert f"def {function}" in text


def test_every_equation_has_one_row_in_order():
    """CRoPE's 1 to 30, then RoFormer's 11 to 37."""
    numbers = re.findall(r"^\| (\d+)(?: E)? \|", TEXT, flags=re.MULTILINE)
    assert list(map(int, numbers)) == [*range(1, 31), *range(11, 38)]
