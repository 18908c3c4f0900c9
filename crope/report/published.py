"""Committed records (results/published/<machine>/) and the README's tables, which are made from them alone."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from crope.config import NUMERICS_VERSION, ROOT
from crope.errors import DataError, UserError
from crope.lookup import PUBLISHED
from crope.record import Record, write_bytes, write_text
from crope.report import SCALES
from crope.report.conversions import FILE as CONVERSION
from crope.report.curves import read_curves
from crope.report.details import savings_line
from crope.report.fig4 import build_fig4
from crope.report.figures import render_files
from crope.report.frame import resolve_cells
from crope.report.lengths import FILE as BEYOND
from crope.report.markdown import escape_markdown, markdown_row, render_markdown
from crope.report.sources import load_published
from crope.report.tables import build_table
from crope.study import TABLES, expected_cells
from crope.verify import DamagedRun, read_runs

README = ROOT / "README.md"
FIGURE = "fig4.png"
MEASURED_LATER = (BEYOND, CONVERSION)
RECORD_FILES = ("config.yaml", "provenance.json", "metrics.jsonl", "summary.json")


def publish(results_dir: Path, machine: str, *, scale: str, published: Path = PUBLISHED) -> list[str]:
    """Copies the complete runs of one scale to <published>/<machine>/, writes its table, returns the run ids.

    A results folder that was named by an absolute path is called `results` there.

    Raises UserError where there is nothing to publish, a run is damaged or was made from uncommitted code.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", machine):
        raise UserError(f"machine '{machine}': name it in letters, digits, '.', '_' and '-'")
    chosen = [
        run
        for run in load_sound_runs(results_dir / "runs")
        if (run.summary["status"], run.summary["scale"], run.summary["numerics_version"])
        == ("complete", scale, NUMERICS_VERSION)
    ]
    if not chosen:
        raise UserError(
            f"{results_dir}/runs: no complete run of scale {scale}; `make reproduce SCALE={scale}` makes them"
        )
    for run in chosen:
        attempts = [run.provenance, *run.provenance.get("resumed_from", [])]
        if any(attempt["commit"] is None or attempt["dirty"] for attempt in attempts):
            raise UserError(f"{run.path}: made from uncommitted code; commit, remove the run and make it again")
        for name in (*RECORD_FILES, *(name for name in MEASURED_LATER if (run.path / name).exists())):
            target = published / machine / run.path.name / name
            target.parent.mkdir(parents=True, exist_ok=True)
            text = (run.path / name).read_text(encoding="utf-8")
            write_text(target, text.replace(run.config["results_dir"], "results") if _is_absolute(run) else text)
    write_text(published / machine / "README.md", render_machine(machine, load_sound_runs(published / machine)))
    return [run.path.name for run in chosen]


def _is_absolute(run: Record) -> bool:
    """Whether configuration and command name a folder of the machine, which is nobody's business elsewhere."""
    return Path(run.config["results_dir"]).is_absolute()


def load_sound_runs(folder: Path) -> list[Record]:
    """Every finished run below `folder`. Raises DataError for a damaged one: nothing is published around it."""
    runs, damaged = read_runs(folder)
    check_sound(damaged)
    return runs


def check_sound(damaged: Sequence[DamagedRun]) -> None:
    if damaged:
        raise DataError("; ".join(f"{run.path}: {run.advice}" for run in damaged))


def render_machine(machine: str, runs: Sequence[Record]) -> str:
    """What the records of one machine are: scale, commit, device, versions, a line each."""
    groups = defaultdict(list)
    for run in runs:
        facts = run.provenance
        versions = ", ".join(f"{name} {facts['packages'][name]}" for name in ("torch", "numpy", "tokenizers"))
        device = facts["device"] + (f", driver {facts['driver']}" if facts["driver"] else "")
        groups[run.summary["scale"], facts["commit"][:12], device, f"Python {facts['python']}, {versions}"].append(run)
    lines = [
        f"# Records made on {machine}",
        "",
        "Each folder is one run: its configuration, provenance, metrics and summary. Weights are not kept here.",
        "",
        markdown_row(["scale", "commit", "device", "versions", "precision", "runs", "seeds", "hours"]),
        markdown_row(["---"] * 5 + ["---:"] * 3),
    ]
    for (scale, commit, device, versions), group in sorted(groups.items()):
        precisions = ", ".join(sorted({run.summary["precision"] for run in group}))
        seeds = len({run.summary["seed"] for run in group})
        hours = sum(run.summary["time"]["total_s"] for run in group) / 3600
        cells = [scale, commit, device, versions, precisions, str(len(group)), str(seeds), f"{hours:.2f}"]
        lines.append(markdown_row([escape_markdown(cell) for cell in cells]))
    return "\n".join(lines) + "\n"


def update_readme(readme: Path = README, published: Path = PUBLISHED) -> None:
    """Rewrites the README's generated part and the picture beside the records."""
    text, figure = render_readme(readme.read_text(encoding="utf-8"), published)
    write_bytes(published / FIGURE, figure)
    write_text(readme, text)


def render_readme(text: str, published: Path = PUBLISHED) -> tuple[str, bytes]:
    """The README with its generated part made anew, and the picture's bytes.

    The records of the largest published scale are taken, of the machine that has most of them.
    Raises UserError where there are no records or no markers, DataError for a damaged record.
    """
    source = next((found for scale in SCALES if (found := load_published(scale, published))), None)
    if source is None:
        raise UserError(f"{published}: no published records; scripts/publish.py makes them")
    check_sound(source.damaged)
    scale = source.scale
    results = resolve_cells(source.runs, expected_cells(scale), unavailable={})
    tables = [build_table(results, name, scale=scale) for name in TABLES]
    parts = [render_markdown(table, with_notes=table is tables[-1]) for table in tables]  # both have the same notes
    if savings := savings_line(results):
        parts.append(savings + "\n")
    generated = "\n".join(parts)
    pattern = re.compile(r"(<!-- generated: tables -->\n).*?(<!-- end of generated -->)", re.DOTALL)
    if not pattern.search(text):
        raise UserError("README.md: the markers '<!-- generated: tables -->' and '<!-- end of generated -->' are gone")
    points = read_curves([run for result in results for run in result.runs])
    figure = render_files(build_fig4(results, points), scale=scale, kinds=["png"])[FIGURE]
    return pattern.sub(lambda found: f"{found[1]}\n{generated}\n{found[2]}", text), figure
