"""Sentences about results, written by a person in docs/findings.yaml.

An entry says a sentence with placeholders, and what each of them rests on:

    - says: At the paper's learning rate CRoPE ends higher than RoPE, by {small}.
      rests: {small: {from: P1, is: above 0}}

    from, at   the contrast of conf/contrasts.yaml and, where it has several, the setting
    in         a corpus; without it all, but in Tables 1 and 2 the first
    is         what its interval said of 0: above 0, below 0 or open
    show       size: the mean without sign and interval

A planned difference is marked by †.

A sentence whose answer has changed is refused, so that nobody publishes it unread.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from crope.config import ROOT
from crope.errors import UserError
from crope.report.evidence import load_contrasts
from crope.report.tables import interval_text

FINDINGS_FILE = ROOT / "docs" / "findings.yaml"


def findings(differences: pd.DataFrame, file: Path = FINDINGS_FILE) -> list[str]:
    """Fills the numbers into the sentences, from the lines of `answers`.

    Raises UserError for a sentence that rests on a line that is not there, or whose answer is
    another now.
    """
    planned = [name for name, contrast in load_contrasts().items() if contrast.date]
    sentences = []
    for entry in yaml.safe_load(file.read_text(encoding="utf-8")):
        numbers = {}
        for name, basis in entry["rests"].items():
            line = _answer_line(differences, basis)
            now = reading(line)
            if now != basis["is"]:
                raise UserError(
                    f"{file.name}: {basis['from']} is now {now}, not {basis['is']};"
                    f" write again: {entry['says']}"
                )
            text = interval_text(line, 3)
            if basis.get("show") == "size":
                text = f"{abs(line['mean']):.2g}"
            numbers[name] = text + "†" * (basis["from"] in planned)
        sentences.append(entry["says"].format_map(numbers))
    return sentences


def reading(line: Mapping[Any, Any]) -> str:
    """Says where an interval lies: above 0, below 0 or open; incomplete without an interval."""
    if not line.get("complete") or np.isnan(line["low"]):
        return "incomplete"
    if line["low"] > 0:
        return "above 0"
    return "below 0" if line["high"] < 0 else "open"


def _answer_line(differences: pd.DataFrame, basis: Mapping[str, str]) -> dict[Any, Any]:
    """Finds the line of a contrast at this setting and of this corpus; empty if there is none."""
    lines = differences[differences["name"] == basis["from"]]
    lines = lines[lines["setting"] == basis.get("at", "")]
    if "in" in basis:
        lines = lines[lines["dataset"] == basis["in"]]
    return lines.iloc[0].to_dict() if len(lines) else {}
