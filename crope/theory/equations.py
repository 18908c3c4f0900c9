"""Equation -> code -> test: Eqs. 1-30 of the CRoPE paper and 11-37 of RoFormer; docs/equations.md is made of it.

What the table names is imported by its test, not here.
"""

from __future__ import annotations

from collections.abc import Sequence

from crope.config import ROOT
from crope.record import write_text
from crope.theory.equation import Equation
from crope.theory.equations_crope import CROPE_EQUATIONS
from crope.theory.equations_roformer import ROFORMER_EQUATIONS
from crope.theory.errata import CROPE, ERRATA, ROFORMER, Erratum

EQUATIONS: dict[str, tuple[Equation, ...]] = {CROPE: CROPE_EQUATIONS, ROFORMER: ROFORMER_EQUATIONS}
DOCUMENT = ROOT / "docs" / "equations.md"

_HEAD = """# From the papers' equations to code and tests

Made from `crope/theory/equations.py` and `crope/theory/errata.py` by `make theory`; a test keeps this file, the table
and the code together. Where an equation has no code, its reason stands in that column. E: see Errata below.
"""


def render_equations() -> str:
    """docs/equations.md: a table a paper, then the errata."""
    parts = [_HEAD]
    for paper, rows in EQUATIONS.items():
        parts.append(f"## {paper}\n\n| Eq. | states | code | tests |\n| --- | --- | --- | --- |\n")
        parts.append("\n".join(_equation_row(paper, row) for row in rows) + "\n")
    parts.append("## Errata\n\n| document | Eq. | printed | what holds | test |\n| --- | --- | --- | --- | --- |\n")
    parts.append("\n".join(_erratum_row(erratum) for erratum in ERRATA) + "\n")
    return "\n".join(parts).replace("|\n\n|", "|\n|")


def write_equations() -> bool:
    """Writes docs/equations.md where it differs from the table; True if it did."""
    text = render_equations()
    if DOCUMENT.exists() and DOCUMENT.read_text(encoding="utf-8") == text:
        return False
    write_text(DOCUMENT, text)
    return True


def has_erratum(paper: str, number: str) -> bool:
    """Whether an erratum of that paper names the equation, alone, in a list or in a range ("24-26")."""
    return any(number in _numbers(erratum) for erratum in ERRATA if erratum.document == paper)


def _numbers(erratum: Erratum) -> set[str]:
    found: set[str] = set()
    for part in erratum.equation.partition(" (")[0].split(", "):
        first, _, last = part.partition("-")
        found |= {str(n) for n in range(int(first), int(last or first) + 1)} if first.isdigit() else set()
    return found


def _equation_row(paper: str, row: Equation) -> str:
    number = row.number + (" E" if has_erratum(paper, row.number) else "")
    code = "<br>".join(f"`{name}`" for name in row.code) or row.reason
    return _row([number, row.states, code, "<br>".join(f"`{node}`" for node in row.tests) or "—"])


def _erratum_row(erratum: Erratum) -> str:
    return _row([erratum.document, erratum.equation, erratum.printed, erratum.holds, f"`{erratum.test}`"])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
