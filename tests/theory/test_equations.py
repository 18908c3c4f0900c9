"""docs/equations.md: every name of code and test in it exists, and every equation has one row in
order.
"""

import re
from importlib import import_module

from crope.config import ROOT

TEXT = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")


def test_code_exists():
    for module, name in re.findall(r"`(crope\.[\w.]+):(\w+)`", TEXT):
        assert callable(getattr(import_module(module), name))


def test_tests_exist():
    for file, name in re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", TEXT):
        text = (ROOT / file).read_text(encoding="utf-8")
        assert f"def {name}" in text, f"{file}::{name}"


def test_every_equation_has_one_row_in_order():
    """CRoPE's 1 to 30, then RoFormer's 11 to 37."""
    numbers = re.findall(r"^\| (\d+)(?: E)? \|", TEXT, flags=re.MULTILINE)
    assert list(map(int, numbers)) == [*range(1, 31), *range(11, 38)]
