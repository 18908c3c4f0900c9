"""One logged value of several runs in a picture, and where it ends: `tools.py plot RUN RUN ...`."""

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from crope.errors import UserError
from crope.files import read_json, write_bytes
from crope.report.frame import load_curves
from crope.runs.compose import Run, load_config, special
from crope.runs.published import is_set, read_set, set_folders
from crope.runs.record import match_runs, run_folders
from crope.style import new_figure, render

MOST_RUNS = 20
EARLY = 0.1  # fraction of the steps whose high values may leave the frame


def plot(names: Sequence[str], *, key: str, out: Path | None, results_dir: Path) -> str:
    """Draws `key` of the runs by step; returns a table of the last values and the file's name.

    names   each a folder, a run id, a unique start of one, or a pattern
    out     .png or .svg (default: results_dir/plot.png)

    The difference is to the first run, at the last step that both have. Raises UserError.
    """
    out = out or results_dir / "plot.png"
    if out.suffix not in (".png", ".svg"):
        raise UserError(f"{out}: give a name that ends in .png or .svg")
    curves = {}
    for path in find_runs(names, results_dir):
        label = legend_label(path)
        # A run that was executed in two folders has one label.
        curves[f"{label} ({path})" if label in curves else label] = read_curve(path, key)
    write_bytes(out, render(draw(curves, key), out.suffix[1:]))
    return f"{end_values(curves).to_string(index=False)}\n{out}"


def find_runs(names: Sequence[str], results_dir: Path) -> list[Path]:
    """Folders of runs, finished or not, each once; of a name that none of the user's has, <set>/<run
    id> of published ones. Raises UserError for none, and for more than MOST_RUNS.
    """
    own = run_folders(results_dir)
    published = {}
    for folder in set_folders():
        for run in read_set(folder):
            published[run.run_id] = run.path
    found: list[Path] = []
    for name in names:
        is_folder = (Path(name) / "metrics.jsonl").exists()
        known = own if fnmatch.filter(own, f"{name}*") else published
        found += [Path(name)] if is_folder else match_runs(name, known)
    if len(found) > MOST_RUNS:
        raise UserError(
            f"{len(found)} runs match; name at most {MOST_RUNS}, which can be told apart"
        )
    return list(dict.fromkeys(found))


def legend_label(path: Path) -> str:
    """The run's id, and what its group files do not give."""
    if is_set(path.parent):
        (line,) = [line for line in read_set(path.parent) if line.run_id == path.name]
        config, scale = line.config, line.summary["scale"]
    else:
        config = yaml.safe_load((path / "config.yaml").read_bytes())
        scale = read_json(path / "provenance.json")["scale"]
    dataset = config["data"]["corpus"]
    model, _, rest = path.name.partition(f"-{dataset}-")
    row = rest.rpartition(f"-s{config['seed']}-")[0]
    run = Run(load_config(config), model, dataset, row, scale)
    return " ".join([path.name, *special(run)])


def read_curve(path: Path, key: str) -> "pd.Series[Any]":
    """The logged values of a run by step. Raises UserError if there are none."""
    curve = load_curves(path).dropna(axis="columns", how="all")
    if key not in curve:
        valid = ", ".join(curve.columns.drop(["path", "step"]))
        raise UserError(f"{path}: no {key}; --key is one of {valid}")
    return curve.set_index("step")[key].dropna()


def draw(curves: dict[str, "pd.Series[Any]"], key: str) -> Any:
    """A line per run; its early values may lie above the frame of a loss."""
    figure = new_figure(7.5, 4 + 0.15 * len(curves))
    axis = figure.add_subplot()
    late = []
    for name, values in curves.items():
        axis.plot(values.index, values, label=name, linewidth=1)
        late.append(values[values.index >= EARLY * values.index.max()])
    if key.endswith("_nats"):
        shown = pd.concat(late)
        margin = 0.05 * (shown.max() - shown.min()) or 0.1
        axis.set_ylim(shown.min() - margin, shown.max() + margin)
    axis.set_xlabel("step")
    axis.set_ylabel(key)
    figure.legend(loc="outside lower center")
    return figure


def end_values(curves: dict[str, "pd.Series[Any]"]) -> pd.DataFrame:
    """run, step, value and its difference to the first run, as text."""
    first = next(iter(curves.values()))
    lines = []
    for name, values in curves.items():
        common = values.index.intersection(first.index)
        difference = ""
        if len(common) and values is not first:
            difference = f"{values[common[-1]] - first[common[-1]]:+#.4g}"
        line = {"run": name, "step": str(values.index[-1]), "value": f"{values.iloc[-1]:#.5g}"}
        lines.append(line | {"minus first": difference})
    return pd.DataFrame(lines)
