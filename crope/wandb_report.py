"""A report in wandb from the mirrored runs: Fig. 4 and Table 1, a run set a dataset. Needs the extra `wandb-report`.

Runs are found by what `tracking.job` tells wandb of each: group = dataset, job type = model, tags = scale and row of
Table 2, x axis `step`. No number is read back; wandb draws.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crope import paper
from crope.errors import UserError
from crope.record import write_json

if TYPE_CHECKING:
    import wandb_workspaces.reports.v2 as wr

TITLE = "CRoPE: final and running validation losses"
EXTRA = "pip install -e '.[wandb-report]' brings wandb-workspaces, which this needs"
VALIDATION, TRAINING, FINAL = "val/loss_nats", "train/loss_nats", "val_full/loss_nats"
STEP, MODEL, BASE_ROW = "step", "JobType", "base"
HALF, PANEL_HEIGHT = 12, 8  # of wandb's grid, which is 24 wide


def save_report(*, project: str, entity: str, scale: str, results_dir: Path, new: bool = False) -> str:
    """Saves the report and returns its address. Saved again, it replaces the one before, unless `new`.

    entity: empty for the account's own. Raises UserError where the extra, a key, the project or the service is missing.
    """
    wr = _library()
    import wandb

    try:
        entity = entity or wandb.Api().default_entity or ""
        report = build_report(project=project, entity=entity, scale=scale)
        note = results_dir / "wandb" / "reports" / f"{entity}-{project}-{scale}.json"
        known = json.loads(note.read_text(encoding="utf-8")) if note.exists() and not new else {}
        report.id = known.get("id", "")
        report.save()
    except Exception as error:  # wandb's error types are many
        first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")
        if "not found" in first:
            first += f"; `make wandb-sync` uploads runs to {project} first"
        raise UserError(f"wandb: no report saved: {first}") from error
    assert isinstance(report, wr.Report)
    write_json(note, {"id": report.id, "url": report.url})
    return str(report.url)


def build_report(
    *, project: str, entity: str, scale: str, datasets: Sequence[str] = tuple(paper.DATASET_LABELS)
) -> wr.Report:
    """The report, not yet saved. `scale` chooses the runs: losses of two scales do not compare.

    Asks the service for the project alone. Raises UserError where the extra is absent.
    """
    wr = _library()
    sets = {name: _run_set(name, project=project, entity=entity, scale=scale) for name in datasets}
    blocks: list[Any] = [
        wr.P(f"Runs of scale {scale}, base row, grouped by model; bands are the spread over seeds."),
        wr.H1("Table 1: final validation loss"),
        wr.P("Mean over seeds of the loss after the last step on the full validation pass, nats per token."),
        wr.PanelGrid(runsets=list(sets.values()), panels=[_table_1()]),
        wr.H1("Fig. 4: loss by step"),
    ]
    for name, run_set in sets.items():
        blocks.append(wr.H2(paper.DATASET_LABELS.get(name, name)))
        panels = [_curve("validation", VALIDATION, x=0), _curve("training", TRAINING, x=HALF)]
        blocks.append(wr.PanelGrid(runsets=[run_set], panels=panels))
    return wr.Report(project=project, entity=entity, title=f"{TITLE} ({scale})", blocks=blocks, width="fluid")


def _library() -> Any:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read at import
    os.environ.setdefault("WANDB_SILENT", "true")
    try:
        import wandb_workspaces.reports.v2 as wr
    except ImportError as error:
        raise UserError(EXTRA) from error
    return wr


def _run_set(dataset: str, *, project: str, entity: str, scale: str) -> Any:
    wr = _library()
    import wandb_workspaces.expr as expr

    filters = [
        expr.Metric("Group") == dataset,
        expr.Tags().isin([scale]),
        expr.Tags().isin([BASE_ROW]),
        expr.Metric("State") == "finished",
    ]
    label = paper.DATASET_LABELS.get(dataset, dataset)
    return wr.Runset(entity=entity, project=project, name=label, filters=filters, groupby=[MODEL])


def _curve(title: str, metric: str, *, x: int) -> Any:
    wr = _library()
    return wr.LinePlot(
        title=f"{title}, nats per token",
        x=STEP,
        y=[metric],
        groupby=MODEL,
        groupby_aggfunc="mean",
        groupby_rangefunc="stddev",
        layout=wr.Layout(x=x, y=0, w=HALF, h=PANEL_HEIGHT),
    )


def _table_1() -> Any:
    wr = _library()
    return wr.BarPlot(
        title="final validation loss, nats per token",
        metrics=[FINAL],
        groupby=MODEL,
        groupby_aggfunc="mean",
        groupby_rangefunc="stddev",
        layout=wr.Layout(x=0, y=0, w=2 * HALF, h=PANEL_HEIGHT),
    )
