"""Publication: finished runs into a set of results/published."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from crope.config import PUBLISHED
from crope.data.ngrams import ngram_entry
from crope.data.tokens import TOKENS_DIR, open_tokens
from crope.errors import DataError, UserError
from crope.files import json_sha256, read_json, write_json, write_text
from crope.records.sources import code_note
from crope.records.store import Record, add_runs, data_digests, read_runs
from crope.report.frame import DIVERGED, load_frame
from crope.report.tables import Table

NGRAMS_FILE = "ngrams.json"
FACTS = {  # that tell the runs of a set apart
    "record_set": "Set",
    "scale": "Scale",
    "precision": "Precision",
    "provenance.device": "Device",
    "provenance.commit": "Commit",
    "provenance.python": "Python",
    "provenance.packages.torch": "Torch",
}


def publish(results_dir: Path, name: str, *, scale: str, why: str = "") -> list[str]:
    """Adds the complete and diverged runs of one scale to the set `name`, without weights, and the
    n-gram losses of their tokens; returns the run ids.

    why   runs of several versions of the code are one set; a sentence of its page

    Raises UserError if a run was made from uncommitted code, if other code than that of the others
    trained some and nothing says why, or if there is none, DataError for invalid records.
    """
    folder = results_dir / "runs"
    records, invalid = read_runs(folder)
    if invalid:
        raise DataError("; ".join(map(str, invalid[:3])))
    chosen = [record for record in records if _is_result(record, scale)]
    if not chosen:
        raise UserError(f"{folder}: no complete run; `make reproduce SCALE={scale}` makes them")
    for record in chosen:
        attempts = [record.provenance, *record.provenance.get("resumed_from", [])]
        if any(attempt["commit"] is None or attempt["dirty"] is not False for attempt in attempts):
            raise UserError(
                f"{record.path}: made from uncommitted or unknown code; commit and run it again in"
                " another results folder"
            )
    target = PUBLISHED / name
    runs = [record.run for record in [*read_runs(target)[0], *chosen]]
    notes = list(filter(None, map(code_note, runs)))
    if notes and len({str(run.get("code")) for run in runs}) > 1 and not why:
        raise UserError(f"{target}: some runs were {notes[0]}, or --why says why they are one set")
    add_runs(target, chosen)
    frame, _ = load_frame([target])
    write_text(target / "README.md", set_page(name, frame) + f"\n{why}\n" * bool(why))
    if scale != "smoke":  # whose tokens no table has
        _publish_ngrams(chosen)
    return [record.run_id for record in chosen]


def _is_result(record: Record, scale: str) -> bool:
    """Chooses complete and diverged runs: a run that diverged is a result of its learning rate."""
    if record.run["scale"] != scale:
        return False
    summary = record.summary
    return summary["status"] == "complete" or summary["error"]["type"] == DIVERGED


def _publish_ngrams(records: Iterable[Record]) -> None:
    """Adds the n-gram losses of these runs' tokens that are on this machine; computes them once."""
    merged = {json_sha256(entry["sha256"]): entry for entry in read_ngrams()}
    used = {json_sha256(data_digests(record.provenance["data"])) for record in records}
    for folder in TOKENS_DIR.glob("*/"):
        tokens = open_tokens(folder)
        if tokens and (key := json_sha256(data_digests(tokens.meta))) in used - merged.keys():
            merged[key] = ngram_entry(tokens)
    entries = sorted(merged.values(), key=lambda entry: (entry["corpus"], str(entry["tokenizer"])))
    write_json(PUBLISHED / NGRAMS_FILE, entries)


def read_ngrams() -> list[dict[str, Any]]:
    """Reads the published n-gram losses; none without a file."""
    path = PUBLISHED / NGRAMS_FILE
    return read_json(path) if path.exists() else []


def set_page(name: str, frame: pd.DataFrame) -> str:
    """Writes README.md of a set: how its runs were made, and how to read the files."""
    table = Table(name, f"Published runs: {name}", made_by(frame)).markdown()
    return (
        f"{table}\n\n`pandas.read_json('runs.jsonl', lines=True)` has a line per run: configuration,"
        " provenance and summary; `curves.parquet` has their logged values.\n"
    )


def made_by(frame: pd.DataFrame) -> pd.DataFrame:
    """Counts runs, seeds and hours of each combination of FACTS."""
    table = frame.groupby(list(FACTS), dropna=False).agg(
        Runs=("run_id", "size"), Seeds=("seed", "nunique"), Hours=("time.total_s", "sum")
    )
    table["Hours"] = (table["Hours"].astype(float) / 3600).map("{:.1f}".format)
    return table.reset_index().rename(columns=FACTS)
