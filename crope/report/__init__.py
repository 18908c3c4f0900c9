"""Tables, figures and a page from run records; the same records give the same bytes. Imports neither torch nor wandb."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

from crope.record import write_bytes

STALE = ("study-*.svg", "studies.*", "study_losses.csv", "conversion.*", "theory-*")  # outputs that not every report has


def build_report(
    *, results_dir: Path, scale: str | None = None, folders: Sequence[Path] = (), out_dir: Path | None = None
) -> Path:
    """Reads run directories, writes the report and prints both tables, the verdicts and the path of the page, returned.

    scale    defaults to the first of paper, quick, smoke that has a run
    folders  default to results_dir/runs, or to the published records if these hold no run
    out_dir  defaults to results_dir/report
    An invalid record enters no number and is named on the page and on stderr. Raises UserError if runs of one table row
    are not comparable.
    """
    from crope.report import claims, figures, page, studies
    from crope.report.frame import choose_source, load_published
    from crope.report.tables import loss_table, render, runs_table, savings_line
    from crope.study import TABLES, expected_cells, expected_rows

    source, out_dir = choose_source(results_dir=results_dir, scale=scale, folders=folders), out_dir or results_dir / "report"
    studied = (load_published(source.scale, studies=True) if source.machine else None) or source
    cells, rows = expected_cells(source.scale, source.datasets), expected_rows(source.scale, studied.datasets)
    places = list(dict.fromkeys((cell.dataset, cell.row) for cell in cells))
    files: dict[str, str | bytes] = {}

    def add(table: Table, *kinds: str) -> Table: ...
