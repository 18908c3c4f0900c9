"""Published records (results/published/<machine>/) and the README's tables, which are made from
them alone.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from crope import paper
from crope.config import ROOT
from crope.data.ngrams import NGRAMS_FILE, stored_ngrams
from crope.data.tokens import TOKENS_DIR
from crope.errors import DataError, InvalidRecord, UserError
from crope.files import read_json, write_bytes, write_json, write_text
from crope.report.evidence import DIVERGED
from crope.report.frame import cell_name, cell_runs, load_frame, load_published, read_ngrams
from crope.report.tables import (
    Table,
    claims_table,
    render,
    savings_line,
    without_repeated_notes,
    without_sampled,
)
from crope.runs.record import MEASURED_LATER, PUBLISHED, Record, read_record
from crope.runs.study import SCALES

README = ROOT / "README.md"
FIGURE = "forest.png"
START, END = "<!-- generated: tables -->", "<!-- end of generated -->"
FACTS = [  # that tell the runs of one machine apart
    "provenance.commit",
    "provenance.device",
    "provenance.driver",
    "provenance.python",
    "provenance.packages.torch",
    "provenance.packages.numpy",
    "provenance.packages.tokenizers",
]
# Byte by byte: summary.json, which is copied last, has the hashes of the others.
COPIED = ("metrics.jsonl", "val_windows.npy", "summary.json")


def publish(
    results_dir: Path,
    machine: str,
    *,
    scale: str,
    published: Path = PUBLISHED,
    tokens_dir: Path = TOKENS_DIR,
) -> list[str]:
    """Copies the complete and the diverged runs of one scale to <published>/<machine>/, without
    weights, and the n-gram losses of their corpora and the paper's from `tokens_dir`; returns the run ids.

    Absolute paths of results_dir, data_dir, the repository and a local corpus are replaced by
    `results`, `data`, `.` and `local`. Raises UserError if a run was made from uncommitted code or
    there is none, DataError for invalid records.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", machine):
        raise UserError(f"machine '{machine}': use letters, digits, '.', '_' and '-'")
    frame, invalid = load_frame([results_dir / "runs"])
    _check_valid(invalid)
    # A run that diverged is a result of its learning rate.
    diverged = (frame["status"] == "failed") & (frame["error.type"] == DIVERGED)
    results = frame[(frame["scale"] == scale) & (diverged | (frame["status"] == "complete"))]
    chosen = [read_record(Path(path)) for path in results["path"]]
    if not chosen:
        raise UserError(
            f"{results_dir / 'runs'}: no complete run; `make reproduce SCALE={scale}` makes them"
        )
    for record in chosen:
        attempts = [record.provenance, *record.provenance.get("resumed_from", [])]
        if any(attempt["commit"] is None or attempt["dirty"] for attempt in attempts):
            raise UserError(
                f"{record.path}: made from uncommitted or unknown code; commit, remove the folder and run it again"
            )
    for record in chosen:
        copy_record(record, published / machine / record.path.name)
    frame, invalid = load_frame([published / machine])
    _check_valid(invalid)
    write_text(published / machine / "README.md", render_machine(machine, frame))
    corpora = {*paper.DATASET_LABELS, *(record.config["data"]["corpus"] for record in chosen)}
    _publish_ngrams(published, tokens_dir, corpora)
    return [record.path.name for record in chosen]


def _publish_ngrams(published: Path, tokens_dir: Path, corpora: Collection[str]) -> None:
    """Merges the n-gram losses stored with the prepared tokens of `corpora` into those published."""
    merged = {_ngrams_key(ngrams): ngrams for ngrams in read_ngrams(published)}
    for path in tokens_dir.glob("*/"):
        ngrams = stored_ngrams(path)
        if ngrams and ngrams["corpus"] in corpora:
            merged[_ngrams_key(ngrams)] = ngrams
    write_json(published / NGRAMS_FILE, [merged[key] for key in sorted(merged)])


def _ngrams_key(ngrams: Mapping[str, Any]) -> str:
    return json.dumps([ngrams[key] for key in ("corpus", "tokenizer", "sha256")])


def copy_record(record: Record, target: Path) -> None:
    """A record without its weights and without absolute paths, validated as it is read again.

    summary.json comes last: it makes the copy a finished record.
    """
    config = _anonymise(record.config, record.config)
    write_text(target / "config.yaml", yaml.safe_dump(config, sort_keys=False))
    write_json(target / "provenance.json", _anonymise(record.provenance, record.config))
    for name in MEASURED_LATER:
        path = record.path / name
        if path.exists():
            measured = read_json(path)
            write_json(target / name, _anonymise(measured, record.config))
    for name in COPIED:
        path = record.path / name
        if path.exists():  # runs of earlier versions have no val_windows.npy
            write_bytes(target / name, path.read_bytes())
    read_record(target)


def _anonymise(value: Any, config: dict[str, Any]) -> Any:
    results_dir, data_dir = config["results_dir"].rstrip("/"), config["data_dir"].rstrip("/")
    names = {results_dir: "results", data_dir: "data", str(ROOT): "."}
    if hub := config["data"].get("hub"):
        names[hub["path"].rstrip("/")] = "local"  # if it is an absolute path, and not a repository
    text = json.dumps(value)
    for path in sorted(names, key=len, reverse=True):  # one may lie in another
        if Path(path).is_absolute():
            text = text.replace(json.dumps(path)[1:-1], names[path])
    return json.loads(text)


def _check_valid(invalid: Sequence[InvalidRecord]) -> None:
    if invalid:
        more = f"; and {len(invalid) - 3} more" if len(invalid) > 3 else ""
        raise DataError("; ".join(map(str, invalid[:3])) + more)


def render_machine(machine: str, frame: pd.DataFrame) -> str:
    """README.md of one machine's records: one line for each combination of scale, commit, device
    and versions.
    """
    keys = ["scale", "precision", *FACTS]
    frame = frame.reindex(columns=[*keys, "run_id", "seed", "time.total_s"])  # no time if diverged
    frame = frame.fillna({"provenance.driver": "none"})
    frame["provenance.commit"] = frame["provenance.commit"].str[:12]
    table = frame.groupby(keys, as_index=False).agg(
        runs=("run_id", "size"), seeds=("seed", "nunique"), hours=("time.total_s", "sum")
    )
    table["hours"] = (table["hours"] / 3600).map("{:.2f}".format)
    table.columns = [name.rsplit(".", 1)[-1] for name in table.columns]
    note = "Each folder is one run: its configuration, provenance, metrics and summary, without its weights."
    title = f"Records made on {machine}"
    words = range(len(keys))
    return render(Table("records", title, table.astype(str), notes=[note], text=words), "md")


def update_readme(readme: Path = README, published: Path = PUBLISHED) -> None:
    """Rewrites the generated block of README.md and the figures in `published` from the published
    records.

    Raises UserError without records or without the markers, DataError for an invalid record.
    """
    from crope.report import agreement as repeats
    from crope.report import figures
    from crope.report import page as build

    source = load_published(*SCALES, published=published)
    if source is None:
        raise UserError(f"{published}: no published records; `scripts/tools.py publish` makes them")
    _check_valid(source.invalid)
    text = readme.read_text(encoding="utf-8")
    before, start, generated = text.partition(f"{START}\n")
    _, end, after = generated.partition(END)
    if not (start and end):
        raise UserError(
            f"{readme}: the markers '{START}' and '{END}' are missing; put them around the tables"
        )
    report = build.collect(source)
    frames = {source.machine: source.frame, **source.others}
    (rope,) = [cell for cell in report.cells if cell_name(cell) == "table1/ptb/rope"]
    printed = report.evidence.claims
    claims = claims_table(printed[printed["family"] != "Fig. 4"])  # it has no numbers
    parts = [
        START,
        report.lead,
        savings_line(report.evidence.exploratory),
        f"![Each model minus RoPE, with 95 % intervals](results/published/{FIGURE})",
        figures.forest_caption(report.evidence.forest, report.evidence.paper_row),
        render(report.primary, "md"),
        render(claims, "md"),
        "\n".join(report.others),
        *(render(without_sampled(table), "md") for table in without_repeated_notes(report.losses)),
        repeats.expectation(cell_runs(source.frame, rope), repeats.repeats(frames, source.scale)),
        END,
    ]
    block = "\n\n".join(part.strip("\n") for part in parts if part)
    picture = figures.forest(report.evidence.forest, report.evidence.paper_row)
    write_bytes(published / FIGURE, figures.render(picture, "png"))
    write_text(readme, before + block + after)
