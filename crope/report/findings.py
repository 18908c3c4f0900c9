"""What was found, in sentences that a person wrote: docs/findings.yaml.

    answer     the first sentences of the README and the page; `below` stands under the picture
    readme     what else the README says was found
    claims     what the paper claims, and what was found of it
    results    sentences of docs/results.md by section

A sentence has placeholders, and what each of them rests on:

    - says: At the paper's learning rate CRoPE ends higher than RoPE, by {small}.
      rests: {small: {from: P1, is: above 0}}

    from, at   the contrast or pool of conf/contrasts.yaml and, where it has several, the setting
    row        where it has several, the row
    in         a corpus; without it all, but in Tables 1 and 2 the first
    is         what its interval said of 0: above 0, below 0 or open
    show       a key of SHOWN; without it the mean with its interval

† marks a planned difference; a single corpus gets no †: only the average was planned. A sentence
whose answer has changed is refused, so that nobody publishes it unread.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from crope.config import ROOT
from crope.errors import UserError
from crope.files import read_yaml
from crope.report.contrasts import load_contrasts
from crope.report.tables import Table, interval_text, signed

FINDINGS_FILE = ROOT / "docs" / "findings.yaml"
SHOWN: dict[str, Callable[[Mapping[Any, Any]], str]] = {
    "mean": lambda line: signed(line["mean"], 3),
    "size": lambda line: f"{abs(line['mean']):.2g}",
    "cost": lambda line: interval_text(line, 3).replace("+", ""),  # of an interval above 0
    "listed": lambda line: re.sub(r" \((.*)\)", r", \1", interval_text(line, 3)),
    "by": lambda line: SHOWN["listed"](line).replace("+", ""),  # of an interval above 0
    "n": lambda line: str(line["n"]),
    "units": lambda line: f"{line['units']:.0f}",
    "above": lambda line: f"{line['above']:.0f}",  # units with a mean above 0
    "tau": lambda line: f"{line['tau']:.3f}",
}


@dataclass(frozen=True)
class Findings:
    """What docs/findings.yaml says, with its numbers; sentences of `readme` have links of the README."""

    answer: str
    below: str
    readme: list[str]
    claims: Table
    results: dict[str, list[str]]


def findings(lines: pd.DataFrame) -> Findings:
    """Fills the numbers into the sentences.

    lines   of `answers`, `pooled_lines` and `rate_lines`

    Raises UserError for a sentence that rests on a missing line, or whose answer has changed.
    """
    content = read_yaml(FINDINGS_FILE)
    claims = []
    for entry in content["claims"]:
        bases = dict.fromkeys(f"`{basis['from']}`" for basis in entry["rests"].values())
        claims.append([entry["claim"], _sentence(lines, entry), "; ".join(bases)])
    table = pd.DataFrame(claims, columns=["The paper", "Here", "Rests on"])
    results = {}
    for section, entries in content["results"].items():
        results[section] = [_sentence(lines, entry) for entry in entries]
    return Findings(
        answer=_sentence(lines, content["answer"]),
        below=_sentence(lines, content["below"]),
        readme=[_sentence(lines, entry) for entry in content["readme"]],
        claims=Table("claims", "", table),
        results=results,
    )


def _sentence(lines: pd.DataFrame, entry: Mapping[str, Any]) -> str:
    numbers = {}
    for name, basis in entry["rests"].items():
        line = _answer_line(lines, basis)
        now = reading(line)
        if now != basis["is"]:
            raise UserError(
                f"docs/findings.yaml: {basis['from']} is now {now}, not {basis['is']};"
                f" write again: {entry['says']}"
            )
        if "show" in basis:
            numbers[name] = SHOWN[basis["show"]](line)
        else:
            numbers[name] = interval_text(line, 3) + "†" * _is_planned(basis)
    return str(entry["says"].format_map(numbers))


def _is_planned(basis: Mapping[str, str]) -> bool:
    contrast = load_contrasts().get(basis["from"])
    return bool(contrast and contrast.date) and "in" not in basis


def reading(line: Mapping[Any, Any]) -> str:
    """Says where an interval lies: above 0, below 0 or open; incomplete without an interval."""
    if not line.get("complete") or np.isnan(line["low"]):
        return "incomplete"
    if line["low"] > 0:
        return "above 0"
    return "below 0" if line["high"] < 0 else "open"


def _answer_line(lines: pd.DataFrame, basis: Mapping[str, str]) -> dict[Any, Any]:
    """Finds a contrast's line at this setting and corpus. Raises UserError."""
    lines = lines[lines["name"] == basis["from"]]
    for key, column in (("at", "setting"), ("row", "row"), ("in", "dataset")):
        if key in basis:
            lines = lines[lines[column] == basis[key]]
    if len(lines[["row", "setting"]].drop_duplicates()) != 1:  # or several, of which none is named
        raise UserError(f"docs/findings.yaml: {basis['from']} has no such line")
    return lines.iloc[0].to_dict()
