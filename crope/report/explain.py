"""The runs behind a number: a cell of Table 1 or 2 (`make explain CELL=table1/ptb/crope`), a planned
question (CELL=P1) or another difference (CELL=cost/mqa-rope). Published runs are always found.
"""

import difflib
from pathlib import Path

import pandas as pd

from crope.errors import UserError
from crope.report.evidence import Contrast, answers, differences, load_contrasts
from crope.report.frame import Runs, by_study, load_runs, relative_path
from crope.report.tables import interval_text, losses, plus_minus
from crope.runs.compose import group_files
from crope.runs.study import TABLES, expected_rows, expected_table_rows

MADE = ["path", "precision", "provenance.commit", "provenance.device"]  # where a run was made


def explain(
    name: str | None, *, results_dir: Path, scale: str | None = None, folders: tuple[Path, ...] = ()
) -> str:
    """A table of the runs behind `name`: seed, loss, where it was made; then mean, ± and interval.
    Without a name the list of all names.

    Raises UserError with similar names if there is no such number.
    """
    runs = load_runs(results_dir=results_dir, scale=scale, folders=folders)
    contrasts = load_contrasts()
    cells = _table_cells(runs)
    if name is None:
        questions = [f"{key}  {contrast.question}".rstrip() for key, contrast in contrasts.items()]
        return "\n".join([*cells, *questions])
    if name in cells:
        return _explain_cell(cells[name])
    short = {key.replace(" ", ""): contrast for key, contrast in contrasts.items()}
    contrast = short.get(name.replace(" ", "")) or _other_contrast(name)
    if contrast:
        return "\n\n".join(_explain_difference(runs, contrast))
    names = [*cells, *contrasts]
    near = ", ".join(difflib.get_close_matches(name, names)) or "one of the list"
    raise UserError(
        f"'{name}': no such cell or difference; did you mean {near}? Without CELL: a list"
    )


def _table_cells(runs: Runs) -> dict[str, pd.DataFrame]:
    """The runs of each cell of Tables 1 and 2 that has any: table1/<dataset>/<model>,
    table2/<row>/<model>.
    """
    joined = by_study(runs.shown, expected_table_rows(runs.scale, runs.datasets))
    place = joined["dataset"].where(joined["study"] == TABLES[0], joined["row"])
    names = joined["study"] + "/" + place + "/" + joined["model"]
    return {str(name): of_cell for name, of_cell in joined.groupby(names, sort=False)}


def _other_contrast(name: str) -> Contrast | None:
    """<study>/<model>-<model> of any study that is not asked in conf/contrasts.yaml."""
    study, _, models = name.partition("/")
    first, *second = (model.strip() for model in models.split("-"))
    if study not in group_files("study") or len(second) != 1:
        return None
    return Contrast(name, (study,), models, (first, ""), ((second[0], ""),))


def _explain_cell(runs: pd.DataFrame) -> str:
    names = {"loss": "full", "val_sampled.mean_nats": "sampled"}
    rows = runs.sort_values("seed").rename(columns=names)
    lines = [_printed(rows[["seed", *names.values(), *MADE]])]
    for line in losses(runs).to_dict("records"):
        mean = plus_minus(line["mean"], line["std"], 6)
        lines.append(f"{line['protocol']}: {mean}, n = {line['n']}")
    return "\n".join(lines)


def _explain_difference(runs: Runs, contrast: Contrast) -> list[str]:
    """One table per corpus and setting, and the lines that are printed of it."""
    rows = [*expected_rows(runs.scale), *expected_table_rows(runs.scale)]
    rows = [row for row in rows if row.study in contrast.studies]
    parts = []
    for title, frame in {"yours": runs.own, "published": runs.published}.items():
        joined = by_study(frame, rows)
        if not set(contrast.models) <= set(joined["model"]):
            continue
        parts += _difference_parts(joined, contrast, title)
    return parts or [f"{contrast.name}: no run yet; `make reproduce STUDY={contrast.studies[0]}`"]


def _difference_parts(runs: pd.DataFrame, contrast: Contrast, title: str) -> list[str]:
    """A table per corpus and setting with the losses behind each difference; then what is printed."""
    compared = runs[runs["study"].isin(contrast.studies) & runs["model"].isin(contrast.models)]
    places = ["study", "dataset", "row", "setting"]
    parts = []
    for _, part in differences(runs, contrast).groupby(places, sort=False):
        study, dataset, row, setting = map(str, part.iloc[0][places])
        here = compared["study"].eq(study) & compared["dataset"].eq(dataset)
        of_place = compared[here & compared["row"].eq(row)]
        names = of_place["model"] + " at " + of_place["setting"]
        if setting or not contrast.first[1]:  # one setting on both sides
            of_place = of_place[of_place["setting"] == setting]
            names = of_place["model"]
        table = of_place.assign(name=names).pivot(index="seed", columns="name", values="loss")
        table["difference"] = part.set_index("seed")["nats"]
        table = table.join(of_place.drop_duplicates("seed").set_index("seed")[MADE])
        head = ", ".join(word for word in (study, dataset, row, setting) if word)
        parts.append(f"{contrast.name} ({title}): {head}\n{_printed(table.reset_index())}")
    for line in answers(runs, {contrast.name: contrast}).to_dict("records"):
        words = (line["dataset"] or "all corpora", line["row"], line["setting"])
        place = ", ".join(word for word in words if word)
        parts.append(f"{contrast.label}; {place}: {interval_text(line)}, n = {line['n']}")
    return parts


def _printed(runs: pd.DataFrame) -> str:
    """The runs as text: seed, losses, folder, precision, commit, device."""
    shown = runs.rename(columns={name: name.rsplit(".", 1)[-1] for name in MADE})
    shown["path"] = [relative_path(Path(path).parent) for path in runs["path"]]
    shown["commit"] = shown["commit"].str[:12]
    return shown.to_string(index=False, float_format="{:.6f}".format)
