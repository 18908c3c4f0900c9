"""The findings in plain sentences, for the first screen of the page and the README; differences
against the step.

A difference is first - second at equal seed, in nats per token, with its 95 % interval over seeds.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from crope.report import claims
from crope.report.claims import DECIMALS, MARGIN, MISSING, number, pair_label, row_label, signed
from crope.report.figures import PHASES
from crope.report.frame import DATASET_LABELS, load_curves
from crope.report.questions import QUESTIONS, answer_text
from crope.report.stats import seeds_range
from crope.report.tables import Table
from crope.study import TABLES, planned_seeds

GAP_MODELS = ("crope", "rope", "nope")
SAME, ANY = "the same precision", "any precision"
FACTS = {  # in which two executions of a run may differ -> column
    "commit": "provenance.commit",
    "device": "provenance.device",
    "threads": "threads",
    "precision": "precision",
}
ORDER = (
    "The order of operations, and so rounding, may change between commits under one run id: compare"
    " devices at equal commits."
)
PLAIN = (
    "base",
    "baselines",
    "horizon",
    "schemes",
)  # studies whose runs differ in the model and the steps alone
LEAD = (
    "Differences at equal seed, nats per token, of the final validation loss at the paper's learning rate unless said"
    " otherwise. An interval (95 %, over n seeds) is for one difference alone; answers are adjusted for all tests of"
    " the report, so that they may be inconclusive although the interval leaves out 0. Both assume that differences are"
    " normally distributed over seeds. Seeds needed: for a power of 80 % if the observed mean is the true one."
)


def answers(lines: pd.DataFrame) -> list[dict[str, str]]:
    """Question, answer and numbers of every judged line that could be tested."""
    found = []
    for line in lines[lines["judged"] & (lines["conclusion"] != MISSING)].to_dict("records"):
        where = f": {line['by_part']}" if line["by_part"] else f", {line['where']}"
        text = f"{line['difference']} {number(line)}{where}"
        found.append({"question": line["question"], "answer": answer_text(line), "text": text})
    return found


def listed(lines: pd.DataFrame, statements: Sequence[str]) -> list[str]:
    """Answers and statements as items of a Markdown list."""
    found = [f"**{one['question']}** {one['answer']}. {one['text']}." for one in answers(lines)]
    return [f"- {text}" for text in (*found, *statements)]


def shown(lines: pd.DataFrame) -> list[str]:
    """The questions that are not judged, one sentence each: the difference at every place that has
    an interval.
    """
    of = lines[(lines["share"] == 0) & lines["t_low_nats"].notna()] if len(lines) else lines
    found = []
    for (question, label), part in (
        of.groupby(["question", "difference"], sort=False) if len(of) else ()
    ):
        places = [f"{line['where']} {number(line)}" for line in part.to_dict("records")]
        found.append(f"{question} (Not judged.) {label}: {'; '.join(places)}.")
    return found


def waiting(lines: pd.DataFrame) -> str:
    """How many questions have not all of their planned seeds."""
    judged, asked = lines[lines["judged"]], sum(bool(question.answers) for question in QUESTIONS)
    complete = int((judged["conclusion"] != MISSING).sum())
    return (
        f"Questions with all planned seeds: {complete} of {asked}."
        if len(judged) and complete < asked
        else ""
    )


def pooled(comparisons: pd.DataFrame) -> str:
    """CRoPE - RoPE averaged, seed by seed, over the rows of the tables.

    Every row has the same weight. A few seeds give no usable weights: with three, a random-effects
    interval covers less than 90 %, and Cochran's test finds heterogeneity between equal rows in 40
    % of all cases.
    """
    of = comparisons[(comparisons["first"] == "crope") & (comparisons["second"] == "rope")]
    of = of[of["n"] == len(planned_seeds(TABLES[0]))].sort_values("mean_nats")
    if len(of) < 2:
        return ""
    extreme = 0 if -of["mean_nats"].iloc[0] > of["mean_nats"].iloc[-1] else len(of) - 1
    mean, others = (claims.describe(pd.Series(np.mean(part["values"].to_list(), axis=0)))
                    for part in (of, of.drop(of.index[extreme])))  # fmt: skip
    ends = [f"{signed(end['mean_nats'])} ({row_label(end['dataset'], end['row'])})"
            for end in (of.iloc[0], of.iloc[-1])]  # fmt: skip
    return (
        f"{len(of)} rows of Tables 1 and 2: {pair_label('crope', 'rope')} {number(mean)} on average, single rows"
        f" {' to '.join(ends)}. Without the row farthest from 0: {number(others)}."
    )


def by_phase(runs: pd.DataFrame) -> pd.DataFrame:
    """Sampled validation losses by place (dataset and steps), model, planned seed and phase; runs
    of PLAIN.

    At equal seed and step all models are validated on the same batches, so that their differences
    are quiet.
    """
    of = runs[runs["study"].isin(PLAIN) & runs["model"].isin(GAP_MODELS)]
    of = of[[run.seed in planned_seeds(run.study) for run in of.itertuples()]].drop_duplicates(
        "run_id"
    )
    parts = []
    for run in of.to_dict("records"):
        curve = load_curves(run["path"]).dropna(subset="val/loss_nats")
        curve = curve[curve["step"] > 0]  # at step 0 nothing is trained
        last = int(curve["step"].max())
        phase = (curve["step"] - 1) * PHASES // last
        losses = curve.groupby(phase)["val/loss_nats"].mean()
        place = f"{DATASET_LABELS.get(run['dataset'], run['dataset'])}, {last:,} steps"
        known = {"place": place, "model": run["model"], "seed": run["seed"], "steps": last}
        parts.append(
            pd.DataFrame({"phase": losses.index, "loss": losses.to_numpy()}).assign(**known)
        )
    return (
        pd.concat(parts, ignore_index=True)
        if parts
        else pd.DataFrame(columns=["place", "model", "phase", "steps"])
    )


def gaps(losses: pd.DataFrame, first: str, second: str) -> dict[str, pd.DataFrame]:
    """By place: first - second, a row per seed and a column per phase; places without both models
    are left out.
    """
    found = {}
    for place, of in losses.groupby("place", sort=False):
        wide = {
            model: part.pivot(index="seed", columns="phase", values="loss")
            for model, part in of.groupby("model")
        }
        if {first, second} <= wide.keys() and len(both := (wide[first] - wide[second]).dropna()):
            found[str(place)] = both
    return found


def growth(losses: pd.DataFrame) -> list[str]:
    """How CRoPE - RoPE changes while a run is trained, beside what positions are worth in its last
    part.
    """
    found, worth = [], gaps(losses, "nope", "rope")
    for place, of in gaps(losses, "crope", "rope").items():
        change = claims.describe(of[PHASES - 1] - of[0])
        text = f"{place}: {pair_label('crope', 'rope')} is {signed(of[0].mean())} in the first tenth of training and"
        text += f" {signed(of[PHASES - 1].mean())} in the last; change {number(change)}"
        if place in worth:
            last = claims.describe(worth[place][PHASES - 1])
            text += f". In the last tenth {pair_label('nope', 'rope')} is {number(last)}"
        found.append(f"{text}.")
    return found


def by_rate(runs: pd.DataFrame) -> str:
    """CRoPE - RoPE at each learning rate, mean over the corpora, and each model's best rate.

    Empty unless all runs have a finite loss: rates with other corpora or seeds do not compare.
    """
    of = runs[(runs["study"] == "fair_lr") & runs["seed"].isin(planned_seeds("fair_lr"))]
    rates = sorted(of["config.train.lr"].unique())
    wide = of.pivot_table(
        index=["dataset", "seed"], columns=["model", "config.train.lr"], values="final"
    )
    wide = wide.reindex(columns=pd.MultiIndex.from_product([("crope", "rope"), rates]))
    if len(rates) < 2 or not np.isfinite(wide).all(axis=None):
        return ""
    losses = wide.groupby("seed").mean()
    found = [
        f"{rate:g} (RoPE {losses['rope', rate].mean():.4f}): "
        f"{number(claims.describe(losses['crope', rate] - losses['rope', rate]))}"
        for rate in rates
    ]
    lowest = losses.mean().unstack().idxmin(axis=1)
    best = [f"{claims.model_label(str(model))} {rate:g}" for model, rate in lowest.items()]
    corpora = " and ".join(DATASET_LABELS.get(name, name) for name in of["dataset"].unique())
    return (
        f"Learning rates ({corpora}): {pair_label('crope', 'rope')} at {'; '.join(found)}."
        f" Lowest mean loss at: {', '.join(best)}."
    )


def fraction(conversions: pd.DataFrame) -> str:
    """Whether training moves RoPE's projections towards Eq. 30."""
    if conversions.empty:
        return ""
    of = conversions.drop_duplicates("run_id")
    line = claims.describe(of["kept_share"] - of["kept_share_by_chance"])
    corpora = " and ".join(DATASET_LABELS.get(name, name) for name in of["dataset"].unique())
    return (
        f"Complex-linear fraction of RoPE's trained Q, K and V ({corpora}): {of['kept_share'].mean():.3f}; by chance"
        f" {of['kept_share_by_chance'].mean():.3f}; difference {number(line)}. It is 1 if they satisfy Eq. 30."
    )


def halved(lines: pd.DataFrame, runs: pd.DataFrame) -> str:
    """Sec. 5.1 to the letter, "halved output dimensions", next to Eq. 30: weights and loss."""
    of = lines[lines["judged"] & (lines["second"] == "halved") & (lines["study"] == "controls")]
    counts = (
        runs[runs["study"] == "controls"]
        .drop_duplicates("model")
        .set_index("model")["parameters.total"]
    )
    if of.empty or not {"rope", "crope", "halved"} <= set(counts.index):
        return ""
    saved = {model: counts["rope"] - counts[model] for model in ("halved", "crope")}
    return (
        f"Sec. 5.1 to the letter (half the output dimensions) saves {saved['halved']:,} weights, Eq. 30"
        f" {saved['crope']:,}; {pair_label('crope', 'halved')} {number(of.iloc[0].to_dict())}."
    )


def repeats(frames: Mapping[str, pd.DataFrame], scale: str) -> pd.DataFrame:
    """Published runs of one configuration and seed that were executed more than once: one row per
    table row, dataset and `kind`.

    frames: by the name of their folder. `differ` names those of FACTS in which executions of a run
    differ; in rows of ANY precision is one of them. largest, median: of the range of a run's final
    losses; std: over seeds, mean over models and executions.
    """
    parts = [frame[(frame["status"] == "complete") & (frame["scale"] == scale)].assign(folder=name)
             for name, frame in frames.items()]  # fmt: skip
    if not parts:
        return pd.DataFrame()
    runs = pd.concat(parts, ignore_index=True).drop_duplicates(
        ["run_id", "finished_utc"]
    )  # no copies
    order = {name: i for i, name in enumerate(DATASET_LABELS)}
    runs = runs.sort_values("dataset", key=lambda names: names.map(order), kind="stable")
    lines = []
    for kind, keys in ((SAME, ["run_id"]), (ANY, ["cell_key", "model", "seed"])):
        for (dataset, row), of in runs.groupby(["dataset", "row"], sort=False):
            again = of[of.duplicated(keys, keep=False)]
            if again.empty or (kind == ANY and again["precision"].nunique() == 1):
                continue
            ranges = again.groupby(keys)["val_full.final_nats"].agg(np.ptp)
            spread = (
                again.groupby(["folder", "cell_key", "model"])["val_full.final_nats"].std().dropna()
            )
            varies = again.groupby(keys)[list(FACTS.values())].nunique(dropna=False).max() > 1
            sets = [
                f"{folder} ({', '.join(sorted(commits.str[:7].unique()))})"
                for folder, commits in again.groupby("folder")["provenance.commit"]
            ]
            lines.append({
                "dataset": dataset, "row": row, "kind": kind, "runs": len(ranges), "sets": ", ".join(sets),
                "differ": ", ".join(name for name, column in FACTS.items() if varies[column]),
                "largest_nats": ranges.max(), "median_nats": ranges.median(), "std_over_seeds_nats": spread.mean(),
            })  # fmt: skip
    return pd.DataFrame(lines)


def repeats_table(lines: pd.DataFrame, scale: str) -> Table:
    frame = pd.DataFrame({
        "Row": [row_label(*place) for place in zip(lines["dataset"], lines["row"], strict=True)],
        "Executed": lines["kind"], "Sets (commits)": lines["sets"], "Differ": lines["differ"],
        "Runs": lines["runs"].astype(str),
        "Largest": lines["largest_nats"].map("{:.4f}".format), "Median": lines["median_nats"].map("{:.4f}".format),
        "Std over seeds": lines["std_over_seeds_nats"].map("{:.4f}".format, na_action="ignore").fillna(""),
    })  # fmt: skip
    notes = [
        "Published runs of one configuration and seed that were executed more than once: how far their final full"
        f" validation losses, nats per token, lie apart, next to the spread over seeds. {ORDER}"
    ]
    caption = f"Runs executed more than once. Scale: {scale}."
    return Table("repeats", caption, frame, notes, text=(0, 1, 2, 3), numbers=lines.round(DECIMALS))


def rounding(lines: pd.DataFrame) -> str:
    """How far published runs of the base rows lie apart that were executed more than once."""
    of = lines[lines["row"] == "base"] if len(lines) else lines
    parts = []
    for kind in (SAME, ANY) if len(of) else ():
        lines = of[of["kind"] == kind]
        distances = zip(
            lines["dataset"], np.ceil((1e4 * lines["largest_nats"]).round(3)) / 1e4, strict=True
        )
        found = ", ".join(
            f"{x:.4f} nats ({DATASET_LABELS.get(name, name)})" for name, x in distances
        )
        differ = ", ".join(name for name in FACTS if lines["differ"].str.contains(name).any())
        parts += [f"in {kind} up to {found} away ({differ} differ)"] if found else []
    lead = "Published runs of the base rows that were executed again ended"
    return f"{lead}, {'; '.join(parts)}. {ORDER}" if parts else ""


def undecided(comparisons: pd.DataFrame) -> str:
    """Seeds that equality on PG-19's base row needs, from the spread of the differences there."""
    place = (comparisons["dataset"] == "pg19") & (comparisons["row"] == "base")
    of = comparisons[place & (comparisons["first"] == "crope")].to_dict("records")
    if not of or np.isnan(of[0]["t_low_nats"]):
        return ""
    values = np.array(of[0]["values"])
    centred = values - values.mean()
    if seeds_range(centred, MARGIN, claims.LEVEL)[0] <= of[0]["n"]:
        return ""
    needed = claims.seeds_text(centred, claims.LEVEL)
    return f"PG-19's base row has {of[0]['n']} seeds; even if CRoPE and RoPE are equal there, {needed}."


def agreement(own: pd.DataFrame, published: Mapping[str, pd.DataFrame], scale: str) -> str:
    """The user's runs against published runs of the same id and scale, by which FACTS differ."""
    columns = ["run_id", "dataset", "row", "finished_utc", "val_full.final_nats", *FACTS.values()]
    mine, *others = (
        frame[(frame["status"] == "complete") & (frame["scale"] == scale)].reindex(columns=columns)
        for frame in (own, *published.values())
    )
    if mine.empty or all(frame.empty for frame in others):
        return ""
    pairs = mine.merge(pd.concat(others), on="run_id", suffixes=("", " published"))
    pairs = pairs[pairs["finished_utc"] != pairs["finished_utc published"]]  # no copies
    if pairs.empty:
        return ""
    distance = (pairs["val_full.final_nats"] - pairs["val_full.final_nats published"]).abs()
    differ = [
        ", ".join(name for name, key in FACTS.items() if pair[key] != pair[f"{key} published"])
        for pair in pairs.to_dict("records")
    ]
    pairs = pairs.assign(distance=distance, differ=differ).sort_values("distance", ascending=False)
    parts = []
    for names in pairs["differ"].unique():
        group = pairs[pairs["differ"] == names]
        farthest, n = group.iloc[0], group["run_id"].nunique()
        row = row_label(farthest["dataset"], farthest["row"])
        what = f"another {names}" if names else f"the same {', '.join(FACTS)}"
        runs = f"{n} {'run' if n == 1 else 'runs'} with {what}"
        parts.append(f"{farthest['distance']:.4f} nats ({row}; {runs})")
    text = (
        f"{pairs['run_id'].nunique()} of your runs are published too."
        f" Largest difference of their final losses: {'; '.join(parts)}."
    )
    return f"{text} {ORDER}" if any("commit" in names for names in differ) else text
