"""Which records a report is made of: the user's own, or, where there are none, the committed ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crope import paper
from crope.errors import DataError
from crope.lookup import PUBLISHED, shown
from crope.record import Record
from crope.report import SCALES
from crope.report.frame import DATASET_LABELS, TINY, CellResult, resolve_cells
from crope.study import Cell, StudyRow, expected_cells, expected_rows
from crope.verify import DamagedRun, read_runs


@dataclass(frozen=True)
class Source:
    """The runs of some folders, of any scale, and the scale that is reported.

    `machine` names whose committed records they are (results/published/<machine>/); it is empty for the user's own.
    """

    scale: str
    folders: tuple[Path, ...]
    runs: list[Record]
    damaged: list[DamagedRun]
    machine: str = ""

    @property
    def places(self) -> str:
        return ", ".join(shown(folder) for folder in self.folders)


def choose_source(
    *, results_dir: Path, scale: str | None = None, folders: Sequence[Path] = (), published: Path = PUBLISHED
) -> Source:
    """The runs of `folders` (default results_dir/runs); without one of the scale, and none named, the committed ones.

    `scale` defaults to the first of SCALES that has a run.
    """
    own = tuple(folders) or (results_dir / "runs",)
    found = [read_runs(folder) for folder in own]
    runs, damaged = [run for sound, _ in found for run in sound], [run for _, broken in found for run in broken]
    there = {run.summary["scale"] for run in runs} | {run.scale for run in damaged}  # None: it cannot be read any more
    first = scale or next((name for name in SCALES if name in there), None)
    if not folders and not there & {first, None}:
        for name in [scale] if scale else SCALES:
            if committed := load_published(name, published):
                return committed
    return Source(first or "quick", own, runs, damaged)


def load_published(scale: str, published: Path = PUBLISHED, *, of_studies: bool = False) -> Source | None:
    """The committed records of the machine that has most runs of the paper's models, or `of_studies` of the others.

    None where no machine has one at this scale.
    """
    counts = {folder: _count(folder, scale, of_studies) for folder in sorted(published.glob("*/"))}
    best = max(counts, key=counts.__getitem__, default=None)
    if best is None or not counts[best]:
        return None
    return Source(scale, (best,), *read_runs(best), machine=best.name)


def _count(folder: Path, scale: str, of_studies: bool) -> int:
    """Summaries alone: reading every machine's records whole would take seconds."""
    found = [_scale_and_model(path) for path in folder.glob("*/summary.json")]
    return sum(one == scale and (model in paper.MODEL_LABELS) != of_studies for one, model in found)


def _scale_and_model(summary: Path) -> tuple[object, object]:
    try:
        found = json.loads(summary.read_text(encoding="utf-8"))
        return found["scale"], found["model"]
    except (OSError, ValueError, TypeError, KeyError):
        return None, None  # a damaged record; whoever reads it whole names it


def expected(source: Source) -> list[Cell]:
    """The cells of both tables at the source's scale; `tiny` joins where it was run."""
    return expected_cells(source.scale, datasets=_datasets(source))


def expected_of_studies(source: Source) -> list[StudyRow]:
    """The rows of the studies, likewise."""
    return expected_rows(source.scale, datasets=_datasets(source))


def _datasets(source: Source) -> list[str] | None:
    there = {(run.summary["scale"], run.summary["dataset"]) for run in source.runs}
    there |= {(run.scale, name) for run in source.damaged for name in DATASET_LABELS if f"-{name}-" in run.path.name}
    return list(DATASET_LABELS) if (source.scale, TINY) in there else None


def resolve(source: Source, *, unavailable: dict[str, str]) -> list[CellResult]:
    """One result a cell of both tables."""
    return resolve_cells(source.runs, expected(source), unavailable=unavailable, damaged=source.damaged)


def load_unavailable(path: Path) -> dict[str, str]:
    """Why datasets could not be had, as the last `make reproduce` wrote it; empty where there is no such file."""
    if not path.exists():
        return {}
    try:
        reasons: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); remove it, `make reproduce` writes it anew") from error
    return reasons
