"""The runs behind a number: a cell of Table 1 or 2 (`make explain CELL=table1/ptb/crope`), a
planned question (CELL=P1), another difference (CELL=cost/mqa-rope) or a pooled estimate
(CELL=pooled). Published runs are always found.
"""

import difflib
import os
import re
from collections.abc import Sequence
from itertools import chain, product
from pathlib import Path

import pandas as pd

from crope.errors import UserError, log_line
from crope.plan.study import TABLES, load_study
from crope.records.store import set_folders
from crope.report.contrasts import Contrast, load_contrasts, make_contrast
from crope.report.evidence import PAIR_KEYS, answer, differences, of_term
from crope.report.frame import OWN_SET, PUBLISHED_SCALE, by_study, load_frame, load_runs
from crope.report.losses import PROTOCOLS, losses_by_model, plus_minus
from crope.report.pooled import Pool, load_pools, pooled_lines, units
from crope.report.tables import interval_text, line_text


def explain(
    name: str | None,
    *,
    results_dir: Path,
    scale: str | None = None,
    folders: Sequence[Path] = (),
) -> str:
    """Lists the runs behind `name`: seed, loss, how it was made; then mean, ± and interval. Without
    a name it lists all names.

    Raises UserError with similar names for an unknown name.
    """
    cells, contrasts, pools = _cell_names(), load_contrasts(), load_pools()
    if name is None:
        questions = [f"{key}  {contrast.question}".rstrip() for key, contrast in contrasts.items()]
        return "\n".join([*cells, *questions, *pools])
    if name in pools:
        return _explain_pool(pools[name])
    contrast = contrasts.get(name) or _contrast_of(name)
    if contrast is None and name not in cells:
        near = difflib.get_close_matches(name, [*cells, *contrasts, *pools])
        hint = f"did you mean {', '.join(near)}? " if near else ""
        raise UserError(f"'{name}': no such cell or difference; {hint}without CELL: a list")
    studies = contrast.needed if contrast else (name.split("/")[0],)
    runs = load_runs(results_dir=results_dir, scale=scale, folders=folders)
    for error in runs.invalid:
        log_line(f"invalid: {error}")
    sources = [("yours", runs.own, runs.scale)] if len(runs.own) else []
    for source_scale in dict.fromkeys([runs.scale, PUBLISHED_SCALE]):
        sources.append(("published", runs.published, source_scale))
    parts: list[str] = []
    for title, frame, source_scale in sources:
        if parts and source_scale != runs.scale:  # runs of another scale explain nothing of yours
            break
        asked = chain.from_iterable(load_study(study).cells(source_scale) for study in studies)
        joined = by_study(frame, asked)
        text = _explain_difference(joined, contrast) if contrast else _explain_cell(joined, name)
        if text:
            scales = ", ".join(joined["scale"].unique())
            parts.append(f"{name} ({title}, scale {scales})\n{text}")
    if not parts:
        return f"{name}: no run yet; `make reproduce STUDY={studies[0]}`"
    if len(runs.own) and "(yours, " not in parts[0]:
        parts.insert(0, f"{name}: no run of yours at scale {runs.scale}")
    return "\n\n".join(parts)


def _cell_names() -> list[str]:
    """Names the cells: table1/<dataset>/<model> and table2/<row>/<dataset>/<model>."""
    names = []
    for study in TABLES:
        axes = load_study(study).axes
        rows = [f"{row}/" for row in axes.get("ablation", ())] or [""]
        for dataset, row, model in product(axes["data"], rows, axes["model"]):
            names.append(f"{study}/{row}{dataset}/{model}")
    return names


def _contrast_of(name: str) -> Contrast | None:
    """Finds the contrast of <study>/<model>-<model>; makes one that conf/contrasts.yaml does not
    ask.
    """
    study, _, difference = name.partition("/")
    if " - " not in difference:
        difference = re.sub(r"\s*(?<!\de)-\s*", " - ", difference)  # not in a rate: 3e-05
    if asked := load_contrasts().get(f"{study}/{difference}"):
        return asked
    try:
        return make_contrast(study, difference, name)
    except ValueError:  # no such study, model or form
        return None


def _explain_cell(joined: pd.DataFrame, name: str) -> str:
    study, _, cell = name.partition("/")
    of_row = "" if study == TABLES[0] else joined["row"] + "/"
    runs = joined[of_row + joined["dataset"] + "/" + joined["model"] == cell]
    if runs.empty:
        return ""
    shown = runs.rename(columns={mean: protocol for protocol, (mean, _) in PROTOCOLS.items()})
    lines = [_printed(shown.sort_values("seed"), ["seed", *PROTOCOLS])]
    for protocol in PROTOCOLS:
        ((n, mean, std),) = losses_by_model(runs, protocol).to_numpy()
        lines.append(f"{protocol}: {plus_minus(mean, std, 6)}, n = {n:.0f}")
    return "\n".join(lines)


def _explain_difference(runs: pd.DataFrame, contrast: Contrast) -> str:
    """Lists the losses behind each difference, with how the first model's run was made; then what
    is printed of them.
    """
    by_seed = differences(runs, contrast)
    if by_seed.empty:
        return ""
    first = of_term(runs, contrast, contrast.first)
    named = [name for name in PAIR_KEYS if by_seed[name].nunique() > 1 or name == "seed"]
    by_seed = by_seed.rename(columns={"nats": "difference"})
    columns = [*named, *by_seed.columns.difference(PAIR_KEYS, sort=False)]
    lines = [_printed(by_seed.merge(first, on=PAIR_KEYS), columns)]
    lines += [line_text(contrast, line) for line in answer(runs, contrast)]
    return "\n".join(lines)


def _explain_pool(pool: Pool) -> str:
    """Lists the units of a pool and the runs of each, then the estimate."""
    published, _ = load_frame(set_folders())
    studies = dict.fromkeys(source.study for source in pool.sources)
    cells = chain.from_iterable(load_study(study).cells(PUBLISHED_SCALE) for study in studies)
    joined = by_study(published, cells)
    found = units(joined, pool).query("n > 0")
    shown = ["label", "study", "row", "n", "mean", "low", "high", "variance"]
    parts = [found[shown].to_string(index=False, float_format="{:.6f}".format)]
    for source in pool.sources:
        if source.study not in pool.without:
            title = " ".join([source.study, source.row]).strip()
            parts.append(f"{title}\n{_explain_difference(source.of_row(joined), source.contrast)}")
    (line,) = pooled_lines(joined, [pool]).to_dict("records")
    spread = f"tau {line['tau']:.4f}, I^2 {line['i2']:.2f}"
    counts = f"{line['units']:.0f} settings, {line['n']} pairs"
    parts.append(f"{pool.name}: {interval_text(line)}, {counts}, {spread}")
    return "\n\n".join(parts)


def _printed(runs: pd.DataFrame, columns: list[str]) -> str:
    """Prints these columns and how the runs were made; what all share has one line, which keeps
    rows short.
    """
    changed = {True: " and uncommitted changes"}
    commits = [
        f"{commit}"[:12] + changed.get(dirty, "")
        for commit, dirty in zip(runs["provenance.commit"], runs["provenance.dirty"], strict=True)
    ]
    shown = runs.rename(columns={"provenance.device": "device", "run_id": "run"}).assign(
        commit=commits, folder=runs["folder"].map(os.path.relpath)
    )
    made = ["precision", "commit", "device", "folder"]
    if (shown.loc[shown["record_set"] == OWN_SET, "code"] != "").any():
        made.append("code")
    common = [name for name in made if shown[name].nunique() == 1]
    columns = [*columns, *(name for name in made if name not in common), "run"]
    rows = shown[columns].to_string(index=False, float_format="{:.6f}".format)
    return "\n".join([rows, *(f"{name}: {shown[name].iloc[0]}" for name in common)])
