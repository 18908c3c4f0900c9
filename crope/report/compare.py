"""Runs against runs: what differs between them, final losses, the difference along training.

Equal seeds read equal batches, so the noise of batches cancels in a difference. The spread between
seeds does not: with one seed there is no interval.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure

from crope.config import keys
from crope.errors import UserError, log_line
from crope.files import write_bytes
from crope.plan.compose import group_files
from crope.report.contrasts import load_contrasts, term_label
from crope.report.evidence import estimate, term_runs
from crope.report.frame import COMPARED, load_curves, load_frame
from crope.report.tables import MINUS, place
from crope.style import MUTED, new_figure, render

LOSS = "val/loss_nats"  # of the sampled validation
PART = 10  # a point of a curve is the mean over so large a part of the run around it: a tenth
RATES = (0.0005, 0.001, 0.008)  # of the published picture
PALETTE = [colormaps["Dark2"](place) for place in range(8)]  # no model's: these are differences
HOW = "Mean over a tenth of the run; band: 95 % over seeds, at each step by itself"
EQUAL_IN_PAIR = ["record_set", "data", "ablation", "scale", *COMPARED]
SECTIONS = ("model.", "tokenizer.", "train.", "eval.")  # of what makes a run's numbers, without:
IGNORED = {"model.label", "eval.full_every", "train.precision"}  # the last is among COMPARED
WHERE = ["dataset", "row", "setting"]  # of a curve of a study


def compare(words: Sequence[str], folders: Iterable[Path], out: Path) -> str:
    """Subtracts the runs of the first word from those of each other; draws the curves into `out`.

    Runs of a pair are equal in seed, data, row, scale and all settings but those that tell the two
    words apart: each has one value of them. Raises UserError if a word has no run or no pair.
    """
    frame = complete_runs(folders)
    # Not of `settings`: a file of conf/, from which these differ, may have changed between runs.
    settings = {key for key in keys() if key.startswith(SECTIONS) and key in frame} - IGNORED
    base, *others = [select(frame, word) for word in words]
    text = []
    curves = {}
    for word, runs in zip(words[1:], others, strict=True):
        name, same = f"{word} {MINUS} {words[0]}", [*EQUAL_IN_PAIR]
        for key in sorted({"model", *settings}):
            old, new = base[key].unique(), runs[key].unique()
            one_each = len(old) == len(new) == 1 and old[0] != new[0]
            if one_each and not key.startswith("eval."):  # other losses could not be compared
                text.append(f"{key}: {old[0]}, then {new[0]}")
            else:
                same.append(key)
        pairs = runs.reset_index().merge(
            base.reset_index(), on=["seed", *same], suffixes=("", "_base")
        )
        pairs = pairs[pairs["run_id"] != pairs["run_id_base"]]
        if pairs.empty:
            raise UserError(
                f"{name}: no two runs are equal in seed, data, precision, device, set and settings"
            )
        ended = np.isfinite((pairs["loss"] - pairs["loss_base"]).astype(float))
        if not ended.all():
            text.append(f"{name}: {(~ended).sum()} of {len(pairs)} pairs diverged and are left out")
        pairs = pairs[ended]
        noted = pd.concat([pairs["code"], pairs["code_base"]]) != ""
        if noted.any():
            text.append(f"{name}: {noted.sum()} of {len(noted)} runs were trained by other code")
        varied = [key for key in same if pairs[key].nunique() > 1 and "sha256" not in key]
        for _, part in pairs.groupby(varied or ["scale"], dropna=False):
            label = ", ".join([name, *(f"{key}={part[key].iloc[0]}" for key in varied)])
            curve = difference_curves(frame.loc[part["index"]], frame.loc[part["index_base"]])
            curves[label] = curve
            shown = curve.iloc[:: -(len(curve) // 4 or 1)][::-1]
            shown.loc["final"] = estimate(part["loss"] - part["loss_base"])
            shown = shown[["n", "mean", "low", "high"]].dropna(axis="columns")
            one = " (one seed: no interval)" * (len(part) == 1)
            means = f"{part['loss'].mean():.4f} {MINUS} {part['loss_base'].mean():.4f}"
            text += [f"{label}: {means}{one}", shown.to_string(float_format="{:+.4f}".format)]
    write_bytes(out, render(draw_differences(curves), "png"))
    drawn = min(len(curves), len(PALETTE))
    return "\n".join([*text, f"nats per token; {out}: {drawn} of {len(curves)} differences"])


def complete_runs(folders: Iterable[Path]) -> pd.DataFrame:
    """Reads the complete and diverged runs; their keys are columns, named as on the command line."""
    frame, invalid = load_frame(folders)
    for error in invalid:
        log_line(f"invalid: {error}")
    frame = frame[frame["loss"].notna() & (frame["status"] != "stale")]
    frame = frame.drop(columns="config.seed", errors="ignore")
    frame.columns = frame.columns.str.removeprefix("config.")
    return frame.assign(data=frame["dataset"], ablation=frame["row"]).reset_index(drop=True)


def select(runs: pd.DataFrame, text: str) -> pd.DataFrame:
    """Selects the runs of a model, of a folder, with these letters in their id, or with all of these
    values: `crope`, `s0-3f0c`, `model=crope,train.lr=0.002`. Raises UserError if there is none.
    """
    for word in text.split(","):
        word = word if "=" in word else Path(word).absolute().name  # of a folder, also `.`
        key, _, value = word.partition("=")
        column = runs.get(key)
        if value and column is not None:
            words = column.astype(str)
            numbers = pd.to_numeric(words, errors="coerce")
            equal = numbers == pd.to_numeric(value, errors="coerce")  # 2e-3 is 0.002, 2 is 2.0
            chosen = equal | (words.str.lower() == value.lower())  # true is True
        else:
            chosen = runs["model"] == word
            if not chosen.any() and word not in group_files("model"):  # "rope" is a part of "crope"
                chosen = runs["run_id"].astype(str).str.contains(word, regex=False)
        runs = runs[chosen]
    if runs.empty:
        raise UserError(f"no complete run has {text} (python scripts/tools.py list)")
    return runs


def difference_curves(
    first: pd.DataFrame, second: pd.DataFrame, planned: Sequence[int] = ()
) -> pd.DataFrame:
    """Computes first - second of the sampled validation losses by step: `estimate` over the seeds
    that both have, at each point by itself, of losses smoothed over a tenth of the run.

    first, second   runs of one place, one for each seed
    planned         seeds without all of which there is no interval
    """
    sides = []
    for runs in (first, second):
        curves = load_curves(runs).dropna(subset=LOSS)
        sides.append(curves.pivot(index="step", columns="seed", values=LOSS))
    by_seed = (sides[0] - sides[1]).dropna(axis="columns", how="all").dropna()
    points = 2 * (len(by_seed) // (2 * PART)) + 1
    smooth = by_seed.rolling(points, center=True, min_periods=1).mean()
    lines = [estimate(at, planned) for _, at in smooth.iterrows()]
    return pd.DataFrame(lines, index=smooth.index.astype(int))  # of a folder's runs: object


def draw_differences(curves: Mapping[str, pd.DataFrame]) -> Figure:
    """Draws curves of `difference_curves` by their labels, with the 95 % interval of each point."""
    figure = new_figure(7, 4)
    axis = figure.subplots()
    axis.axhline(0, color=MUTED, linewidth=0.8)
    for colour, (label, curve) in zip(PALETTE, curves.items(), strict=False):
        axis.plot(curve["mean"], color=colour, label=f"{label}, n\u00a0=\u00a0{curve['n'].max()}")
        style: dict[str, Any] = {"color": colour, "alpha": 0.15, "linewidth": 0}
        axis.fill_between(curve.index, curve["low"], curve["high"], **style)
    more = f"; {len(PALETTE)} of {len(curves)} differences" if len(curves) > len(PALETTE) else ""
    axis.set(xlabel="step", ylabel="difference, nats per token", title=HOW + more)
    figure.legend(loc="outside lower left")
    return figure


def study_curves(joined: pd.DataFrame, study: str) -> dict[str, pd.DataFrame]:
    """Computes the curves of a study's own contrasts (without any: each model minus the first), by
    label: one for each corpus, row and setting.
    """
    runs = joined[joined["study"] == study]
    models = list(runs["model"].unique())
    asked = [one for one in load_contrasts().values() if one.studies == (study,)]
    pairs = [one.terms for one in asked if len(one.seconds) == 1]
    seen = [one.terms for one in asked if not one.date and one.of == "loss"]
    unseen = {one.terms for one in asked if one.date}.difference(seen)  # before their plan's end
    curves = {}
    for first, second in dict.fromkeys(pairs) or [
        ((name, ""), (models[0], "")) for name in models[1:]
    ]:
        base = term_runs(runs, second).groupby(WHERE)
        for where, of_place in term_runs(runs, first).groupby(WHERE, sort=False):
            if where in base.groups:
                label = f"{term_label(*first)} {MINUS} {term_label(*second)}"
                planned = of_place["planned"].iloc[0]
                curve = difference_curves(of_place, base.get_group(where), planned)
                early = (first, second) in unseen and not curve["complete"].all()
                if len(curve) and not early:  # runs have a step in common
                    curves[f"{label}; {place(of_place.iloc[0].to_dict())}"] = curve
    return curves


def rate_curves(published: pd.DataFrame) -> Figure:
    """Draws CRoPE - RoPE along training at RATES, of the published runs that `by_study` gives."""
    runs = published.query("study == 'rates' and dataset == 'ptb'")
    curves = {}
    for rate in RATES:
        at_rate = runs[runs["config.train.lr"] == rate]
        crope, rope = (at_rate[at_rate["model"] == model] for model in ("crope", "rope"))
        curves[f"CRoPE − RoPE, learning rate {rate:g}"] = difference_curves(crope, rope)
    return draw_differences(curves)
