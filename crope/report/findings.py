"""What was found, in sentences that a person wrote: docs/findings.yaml.

    differences   lines of the table of the README: what they are, and the contrast of each
    readme        paragraphs of the README
    results       sentences of docs/results.md
    meanings      what the answer of each planned question means, by its name

A sentence has placeholders, and what each of them rests on:

    - says: At the paper's learning rate CRoPE ends higher than RoPE, by {small}.
      rests: {small: {from: P1, is: above 0}}

    from, at   the contrast of conf/contrasts.yaml and, where it has several, the setting
    in         a corpus; without it all, but in Tables 1 and 2 the first
    is         what its interval said of 0: above 0, below 0 or open
    show       size: the mean without sign and interval; spread: the standard deviation over seeds

† marks a planned difference; one corpus of it was no question of its own. A sentence whose answer
has changed is refused, so that nobody publishes it unread.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from crope.config import ROOT
from crope.errors import UserError
from crope.files import read_yaml
from crope.report.evidence import load_contrasts
from crope.report.tables import Table, interval_text

FINDINGS_FILE = ROOT / "docs" / "findings.yaml"
SHOWN = {"size": "mean", "spread": "std"}  # without sign and interval
CAPTION = "CRoPE − RoPE and others, final validation loss, nats per token"


@dataclass(frozen=True)
class Findings:
    """What docs/findings.yaml says, with its numbers."""

    differences: Table
    readme: list[str]
    results: list[str]
    meanings: dict[str, str]


def findings(lines: pd.DataFrame) -> Findings:
    """Fills the numbers into the sentences, from the lines of `answers`.

    Raises UserError for a sentence that rests on a missing line, or whose answer has changed.
    """
    content = read_yaml(FINDINGS_FILE)
    printed = []
    for entry in content["differences"]:
        line = _answer_line(lines, entry)
        label = entry["says"] + " †" * _is_planned(entry)
        so_far = " so far" * (line["n"] < line["planned"])
        printed.append([label, interval_text(line, 3) + so_far, line["n"]])
    table = Table(
        "headline", CAPTION, pd.DataFrame(printed, columns=["", "Difference (95 %)", "n"])
    )
    readme, found = [
        [_sentence(lines, entry) for entry in content[key]] for key in ("readme", "results")
    ]
    meanings = {}
    for name, entry in content["meanings"].items():
        meanings[name] = _sentence(lines, {**entry, "rests": {"answer": {"from": name, **entry}}})
    return Findings(table, readme, found, meanings)


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
        text = interval_text(line, 3)
        if show := SHOWN.get(basis.get("show", "")):
            text = f"{abs(line[show]):.2g}"
        numbers[name] = text + "†" * (show != "std" and _is_planned(basis))
    return str(entry["says"].format_map(numbers))


def _is_planned(basis: Mapping[str, str]) -> bool:
    return bool(load_contrasts()[basis["from"]].date) and "in" not in basis


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
    for key, column in (("at", "setting"), ("in", "dataset")):
        if key in basis:
            lines = lines[lines[column] == basis[key]]
    if lines["setting"].nunique() != 1:  # or several, of which none is named
        raise UserError(f"docs/findings.yaml: {basis['from']} has no such line")
    return lines.iloc[0].to_dict()
