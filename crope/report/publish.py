"""Publication: finished runs into a set of results/published, and the README and docs/results.md,
made from the published sets alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from crope import paper
from crope.config import PUBLISHED, ROOT
from crope.data.ngrams import ORDERS, ngram_entry
from crope.data.tokens import TOKENS_DIR, open_tokens
from crope.errors import DataError, UserError
from crope.files import json_sha256, read_json, write_bytes, write_json, write_text
from crope.records.store import Record, add_runs, data_digests, read_runs
from crope.report import agreement, page, tables
from crope.report.findings import findings
from crope.report.frame import DIVERGED, dataset_label, load_frame, load_runs
from crope.report.tables import Table
from crope.style import render

DOCS = {
    ROOT / "README.md": ROOT / "docs" / "README.md.j2",
    ROOT / "docs" / "results.md": ROOT / "docs" / "results.md.j2",
}
NGRAMS_FILE = "ngrams.json"
LONG_STUDIES = ("table1_medium", "table1_medium_xpos")  # the README's Table 1
PICTURES = ("rates", "models")  # of the page, which the README and docs/results.md show
SET_FACTS = {
    "record_set": "set",
    "scale": "scale",
    "precision": "precision",
    "provenance.device": "device",
}
FACTS = SET_FACTS | {  # that tell the runs of a set apart
    "provenance.commit": "commit",
    "provenance.python": "python",
    "provenance.packages.torch": "torch",
}


def publish(results_dir: Path, name: str, *, scale: str) -> list[str]:
    """Adds the complete and diverged runs of one scale to the set `name`, without weights, and the
    n-gram losses of their tokens; returns the run ids.

    Raises UserError if a run was made from uncommitted code or there is none, DataError for invalid
    records.
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
        if any(attempt["commit"] is None or attempt["dirty"] for attempt in attempts):
            raise UserError(
                f"{record.path}: made from uncommitted or unknown code; commit and run it again in"
                " another results folder"
            )
    add_runs(PUBLISHED / name, chosen)
    frame, _ = load_frame([PUBLISHED / name])
    write_text(PUBLISHED / name / "README.md", set_page(name, frame))
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
    table = Table(name, f"Published runs: {name}", made_by(frame, FACTS)).markdown()
    return (
        f"{table}\n\n`pandas.read_json('runs.jsonl', lines=True)` has a line per run: configuration,"
        " provenance and summary; `curves.parquet` has their logged values.\n"
    )


def made_by(frame: pd.DataFrame, facts: Mapping[str, str]) -> pd.DataFrame:
    """Counts runs, seeds and hours of each combination of `facts` (column -> heading)."""
    table = frame.groupby(list(facts), dropna=False).agg(
        runs=("run_id", "size"), seeds=("seed", "nunique"), hours=("time.total_s", "sum")
    )
    table = table.reset_index().rename(columns=facts)
    table["hours"] = (table["hours"].astype(float) / 3600).map("{:.1f}".format)
    return table.rename(columns=str.capitalize)


def update_readme() -> None:
    """Writes README.md, docs/results.md and their pictures from the published sets alone."""
    report = page.collect(load_runs(results_dir=PUBLISHED / "none"))
    texts = render_docs(report)
    for name, figure in page.draw(report).items():
        if name in PICTURES:
            write_bytes(PUBLISHED / f"{name}.png", render(figure, "png"))
    for target, text in texts.items():
        write_text(target, text)


def render_docs(report: page.Report) -> dict[Path, str]:
    """Fills the templates of README.md and docs/results.md: file -> text.

    Raises UserError for a sentence of docs/findings.yaml whose answer has changed.
    """
    published, ngrams = report.runs.published, read_ngrams()
    found = findings(report.published.lines)
    planned = tables.planned_lines(report.published.lines)
    answered = tables.difference_table(planned, "Planned questions")
    answered.frame["What it means"] = planned["name"].map(found.meanings).fillna("").to_list()
    quick = report.losses[0].numbers.query("dataset == 'ptb' and protocol == 'full'")
    long = long_table1(report.published)
    context = {
        "found": found,
        "expected": f"{quick.set_index('model')['mean']['crope']:.2f}",
        "runs": f"{len(published):,}",
        "table1": for_readme(long, report.shown, ngrams),
        "losses": [long, *report.losses],
        "notes": page.PROTOCOL_NOTES,
        "planned": answered,
        "ngrams": ngram_table(ngrams),
        "repeats": agreement.repeats_table(published),
        "sets": Table("sets", "Published sets", made_by(published, SET_FACTS)),
    }
    texts = {}
    for target, template in DOCS.items():
        texts[target] = page.render_template(template, context, autoescape=False)
    return texts


def long_table1(published: page.Results) -> Table:
    """Makes Table 1 from LONG_STUDIES: small models, trained for as many steps as the paper's."""

    def as_table1(frame: pd.DataFrame) -> pd.DataFrame:
        first, of_xpos = (frame["study"] == study for study in LONG_STUDIES)
        chosen = frame[first | (of_xpos & (frame["model"] == "xpos"))]
        return chosen.assign(study="table1", row="base")

    cells = published.cells.sort_values("study", ascending=False, kind="stable")  # XPOS first
    runs = as_table1(published.joined)
    table = tables.loss_table("table1", as_table1(cells), runs, runs[:0], {})
    return replace(table, caption="Final validation loss after 10,000 steps, nats per token")


def for_readme(table: Table, shown: pd.DataFrame, ngrams: Sequence[Mapping[str, Any]]) -> Table:
    """Leaves the sampled losses out of Table 1, and adds what counting pairs of tokens reaches on
    the tokens of the small models.
    """
    vocabularies = shown.groupby("dataset")["config.tokenizer.vocab_size"].max()
    pairs = {}
    for entry in ngrams:
        if entry["tokenizer"]["vocab_size"] == vocabularies.get(entry["corpus"]):
            pairs[dataset_label(entry["corpus"])] = f"bigram: {entry['loss_nats']['bigram']:.4f}"
    label, kind, *_ = table.frame.columns
    lines, corpus = [], ""
    for line in table.frame.to_dict("records"):
        if line[kind] == "paper":
            corpus = line[label]
            lines.append(line)
        elif line[kind] == "full":
            lines.append(line | {label: pairs.get(corpus, ""), kind: "here"})
    frame = pd.DataFrame(lines, columns=table.frame.columns).fillna("")
    return replace(table, frame=frame)


def ngram_table(ngrams: Sequence[Mapping[str, Any]]) -> Table:
    """Tabulates losses of counting models on the same tokens, beside the paper's lowest loss."""
    printed = []
    for entry in ngrams:
        of_paper = paper.TABLE1.get(entry["corpus"])
        if of_paper is None:
            continue
        losses = [f"{entry['loss_nats'][order]:.3f}" for order in ORDERS]
        lowest = min(loss.mean_nats for loss in of_paper.values())
        tokens = f"{entry['tokenizer']['name']} {entry['tokenizer']['vocab_size']:,}"
        theirs = f"{lowest:.3f}" if entry["tokenizer"]["name"] == "gpt2" else ""
        printed.append([dataset_label(entry["corpus"]), tokens, *losses, theirs])
    columns = ["Dataset", "Tokens", *ORDERS, "The paper's best model"]
    caption = "Losses of models that count (interpolated Witten-Bell), nats per token"
    return Table("ngrams", caption, pd.DataFrame(sorted(printed), columns=columns))
