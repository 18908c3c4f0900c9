"""The table equation -> code -> test: complete, and every name in it leads somewhere. The errata likewise."""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module

import pytest

from crope.config import ROOT
from crope.model.counting import Parameters, savings
from crope.paper import SAVED_PERCENT
from crope.theory.equations import DOCUMENT, EQUATIONS, has_erratum, render_equations
from crope.theory.errata import ARTICLE, CROPE, ERRATA, ROFORMER, SLIDES

ROWS = [row for rows in EQUATIONS.values() for row in rows]
NODES = sorted({node for row in ROWS for node in row.tests} | {erratum.test for erratum in ERRATA})


@cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_every_equation_stands_once_and_in_order() -> None:
    assert [row.number for row in EQUATIONS[CROPE]] == [str(n) for n in range(1, 31)]
    assert [row.number for row in EQUATIONS[ROFORMER]] == [str(n) for n in range(11, 38)]


@pytest.mark.parametrize("name", sorted({name for row in ROWS for name in row.code}))
def test_code_exists(name: str) -> None:
    module, _, attribute = name.partition(":")
    assert callable(getattr(import_module(module), attribute))


@pytest.mark.parametrize("node", NODES)
def test_tests_exist(node: str) -> None:
    file, _, name = node.partition("::")
    assert name.startswith("test_")
    assert name in functions_of(file)


def test_an_equation_has_code_and_a_test_or_a_reason() -> None:
    for row in ROWS:
        assert bool(row.code) != bool(row.reason), row.number
        assert row.tests or row.reason, row.number


def test_errata_name_equations_of_the_table() -> None:
    marked = {
        paper: [row.number for row in rows if has_erratum(paper, row.number)] for paper, rows in EQUATIONS.items()
    }
    assert marked[CROPE] == [str(n) for n in (2, 11, 12, 13, 16, 21, 23, 24, 25, 26, 27, 28, 29, 30)]
    assert marked[ROFORMER] == ["16", "31", "37"]
    assert {erratum.document for erratum in ERRATA} == {CROPE, ROFORMER, ARTICLE, SLIDES}


def test_the_document_is_the_tables() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == render_equations(), "run `make theory`"


def test_rows_of_the_document_have_as_many_cells_as_its_headings() -> None:
    cells = 0
    for line in render_equations().splitlines():
        if line.startswith("| --- "):
            cells = line.count("|")
        elif line.startswith("| ") and cells:
            assert line.replace("\\|", "").count("|") == cells, line
        else:
            cells = 0
    assert "| 27 E |" in render_equations() and "| 30 E |" in render_equations()


def test_the_halved_reading_contradicts_the_papers_shares() -> None:
    """Sec. 5.1 with D = 128: Eq. 30 halves Q, K, V; the sentence halves the output projection as well."""
    square = 128 * 128
    full = Parameters(qkv=3 * square, output_projection=square, ffn=8 * square, norms=0, embeddings=0)
    eq_30 = Parameters(qkv=3 * square // 2, output_projection=square, ffn=8 * square, norms=0, embeddings=0)
    found = savings(full, eq_30, n_layers=1, d_model=128)
    for part in ("Q/K/V", "attention", "block"):
        assert found[part] == SAVED_PERCENT[part].value
    halved = (3 * square + square) / 2
    assert 100 * halved / (4 * square) == 50 and 100 * halved / (12 * square) == pytest.approx(16.7, abs=0.04)
