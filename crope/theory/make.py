"""`make theory`: results/theory with one JSON file per topic, Figs. 1 to 3 and the decay figure, and theory.md.

Everything is computed anew each time; the contents depend on the code and the trained weights only. Every number in
theory.md is read from the JSON data.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from crope import paper
from crope.compose import load_config
from crope.config import cell_key
from crope.record import Record, read_records, run_status, write_bytes, write_json, write_text
from crope.run import build_model, load_trained
from crope.seeding import stream
from crope.study import expected_cells
from crope.theory import figures
from crope.theory.complex_maps import MEASURES, folded_qkv, fractions, turned
from crope.theory.constructions import construction_results
from crope.theory.pointer_task import EXAMPLE, Task, pointer_results
from crope.theory.rotary import decay_curves

SCALES = ("paper", "quick", "smoke")  # largest first

TEMPLATE = """# The theory in numbers

Written by `make theory`. Equations, code, tests and errata: `docs/equations.md`. Cells: mean (lowest to highest).

## Figs. 1 and 2: the function space of CRoPE

![Fig. 1: free numbers of a weight between 6 channels; hatched: the negative of another cell (Eq. 30)](fig1.svg)
![Fig. 2: a letter under the four bases of real 2x2 matrices (top) and under maps of the plane (bottom)](fig2.svg)

## Complex-linear fraction of trained Q, K and V

Fraction of the energy (Sec. 3.2), LayerNorm gains folded in. The pairing of residual channels is arbitrary, so the best
complex structure J is chosen, for the chance levels too: Gaussian maps ({draws} draws), and the trained maps with the
channels of each head rotated at random (turned), which keeps what they read and their singular values. Excess: after
training minus the mean of its own turned maps. XPOS is a control without rotary pairs.

{fractions}

## Eqs. 21, 23 and 28: distance from a delta function

The sums are no delta function: for D → ∞ they keep {limit:.3f} of the peak at distance 1. The softmax weight that
misses the target (mean over {window} tokens, scores / √D) does fall: from {missed_by_width[0]:.3f} at D = {widths[0]}
to {missed_by_width[1]:.3f} at D = {widths[1]}; at D = {width}, from {missed_by_gain[0]:.3f} at gain 1 of the queries
to {missed_by_gain[1]:.3f} at gain {gain:.0f}.

## Fig. 3: attending to the targets of “next” and “nexnext”

By hand: Eqs. 27 to 29 with the conjugate phase (CRoPE's weights), and absolute sinusoids in one layer, which Sec. 4.3
calls impossible and a finite window allows. Learned: one attention layer (D = {width}), trained on {seq_len} tokens to
predict the target; accuracy of pointers to words (chance 1/{words}), mean weight on the target. High accuracy with a
weight near one half: the layer decodes the answer from a mixture.

![Fig. 3: attention of the pointers of one sequence; frames mark the targets](fig3.svg)

{pointers}

## Long-term decay (RoFormer, Eqs. 35 to 37)

![Left: mean of |S_j| of Eq. 37. Right: score of equal queries and keys](decay.svg)

The bound decays as a trend and not at every step.
"""


def make_theory(
    out_dir: Path, *, folders: Sequence[Path] = (), seeds: int = 5, draws: int = 100, task: Task | None = None
) -> None:
    """Writes all files of `out_dir`. `folders` hold run directories: those of Table 1 with weights.pt are measured.

    `seeds`: runs of the pointer task per model. `draws`: random maps behind each chance level.
    """
    task, runs = task or Task(), find_trained(folders)
    if not runs:
        print("no complete run with weights: chance levels only; `make reproduce` makes runs", flush=True)
    data = {
        "function_space": figures.function_space(),
        "decay": decay_curves(width=128, longest=256),
        "constructions": construction_results(EXAMPLE, width=task.width),
        "complex_fraction": complex_fractions(runs, draws=draws),
        "pointer_task": pointer_results(task, seeds=seeds),
    }
    for name, value in data.items():
        write_json(out_dir / f"{name}.json", value)
    ideal = [[float(t < 2 and n == m + t + 1) for n in range(len(EXAMPLE))] for m, t in enumerate(EXAMPLE)]
    by_hand, learned = data["constructions"]["attention"], data["pointer_task"]["attention"]
    panels = {"ideal": ideal} | {f"{name}, by hand": weights for name, weights in by_hand.items()}
    panels |= {f"{label}, learned": learned[model] for model, label in paper.MODEL_LABELS.items()}
    for name, draw, value, size in (
        ("fig1", figures.draw_entries, data["function_space"], (6.6, 3.3)),
        ("fig2", figures.draw_function_space, data["function_space"], (7.6, 4.0)),
        ("fig3", figures.draw_attention, {"tokens": EXAMPLE, "panels": panels}, (9.0, 4.3)),
        ("decay", figures.draw_decay, data["decay"], (7.6, 2.9)),
    ):
        write_bytes(out_dir / f"{name}.svg", figures.render_svg(draw, value, size=size))
    write_text(out_dir / "theory.md", render_markdown(data))
    print(f"{out_dir / 'theory.md'}: written, with {len(data)} JSON and 4 SVG files", flush=True)


def find_trained(folders: Sequence[Path]) -> list[Record]:
    """Complete runs of Table 1 with weights.pt, of the largest scale that has any; sorted by run id."""
    records = [record for folder in folders for record in read_records(folder)[0] if run_status(record) == "complete"]
    records = [record for record in records if (record.path / "weights.pt").exists()]
    for scale in SCALES if records else ():
        cells = expected_cells(scale, datasets=[*paper.DATASET_LABELS, "tiny"])
        keys = {cell.key for cell in cells if cell.table == "table1"}
        if found := [record for record in records if cell_key(record.config) in keys]:
            return sorted(found, key=lambda record: record.path.name)
    return []


def complex_fractions(runs: Sequence[Record], *, draws: int) -> dict[str, Any]:
    """Fractions of each run's maps, and of Gaussian maps of Sec. 5.1's size, of which initial weights are a draw."""
    generator, shape = stream(0, "theory/gaussian"), (4, 3, 128, 128)
    gaussian = [fractions([tuple(qkv) for qkv in generator.standard_normal(shape)], n_heads=4) for _ in range(draws)]
    return {
        "gaussian": {"shape": shape, "draws": draws, "fractions": chance_level(gaussian)},
        "runs": [measure_run(run, draws=draws) for run in runs],
    }


def measure_run(record: Record, *, draws: int) -> dict[str, Any]:
    """The run's identity and its fractions before and after training, with the chance level of the trained maps."""
    config = load_config(record.config)
    n_heads, layers = config.model.n_heads, folded_qkv(load_trained(record.path, config))
    generator = stream(0, f"theory/turned/{record.path.name}")
    chance = [fractions(turned(layers, n_heads=n_heads, generator=generator), n_heads=n_heads) for _ in range(draws)]
    after, level = fractions(layers, n_heads=n_heads), chance_level(chance)
    return {name: record.summary[name] for name in ("run_id", "model", "dataset", "scale", "seed")} | {
        "before": fractions(folded_qkv(build_model(config)), n_heads=n_heads),
        "after": after,
        "turned": level,
        "excess": {name: after[name] - level[name]["mean"] for name in MEASURES},
    }


def chance_level(draws: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Mean, standard deviation and range of each measure over random draws."""
    columns = {name: [draw[name] for draw in draws] for name in MEASURES}
    return {name: {"mean": fmean(x), "std": stdev(x), "low": min(x), "high": max(x)} for name, x in columns.items()}


def render_markdown(data: dict[str, Any]) -> str:
    """theory.md: figures, captions and tables; `data` as in the JSON files."""
    points, task, maps = data["constructions"], data["pointer_task"]["task"], data["complex_fraction"]
    lengths = [f"{length} tokens" for length in task["lengths"]]
    return TEMPLATE.format(
        fractions=_table(["maps", "state", *MEASURES.values()], _fraction_rows(maps)),
        draws=maps["gaussian"]["draws"],
        limit=data["decay"]["limit"][1],
        pointers=_table(["model", "measure", *lengths], _pointer_rows(data["pointer_task"]["runs"], task["lengths"])),
        **points,
        **task,
    )


def _fraction_rows(data: dict[str, Any]) -> list[list[str]]:
    """Per model and dataset: before, after, after rotation at random, and the excess of after over the mean of that."""
    rows = [["Gaussian", "", *(_spread([data["gaussian"]["fractions"][name]]) for name in MEASURES)]]
    groups: dict[str, list[dict[str, Any]]] = {}
    models = list(paper.MODEL_LABELS)
    for run in sorted(data["runs"], key=lambda run: (models.index(run["model"]), run["dataset"])):
        corpus = paper.DATASET_LABELS.get(run["dataset"], run["dataset"])
        groups.setdefault(f"{paper.MODEL_LABELS[run['model']]}, {corpus}, {run['scale']}", []).append(run)
    for label, runs in groups.items():
        for state in ("before", "after", "turned", "excess"):
            cells = [_spread([run[state][name] for run in runs]) for name in MEASURES]
            rows.append([f"{label} (n = {len(runs)})", state, *cells])
    return rows


def _pointer_rows(runs: Sequence[dict[str, Any]], lengths: Sequence[int]) -> list[list[str]]:
    rows = []
    for model, label in paper.MODEL_LABELS.items():
        found = [run["by_length"] for run in runs if run["model"] == model]
        for measure in ("accuracy", "weight"):
            cells = [_spread([one[str(length)][measure] for one in found], decimals=3) for length in lengths]
            rows.append([f"{label} (n = {len(found)})", measure, *cells])
    return rows


def _spread(values: Sequence[Any], *, decimals: int = 4) -> str:
    """Mean, and lowest to highest if they differ; of numbers, or of summaries with `mean`, `low` and `high`."""
    triples = [(v["mean"], v["low"], v["high"]) if isinstance(v, dict) else (v, v, v) for v in values]
    means, lows, highs = zip(*triples, strict=True)
    mean, low, high = (f"{value:.{decimals}f}" for value in (fmean(means), min(lows), max(highs)))
    return mean if low == high else f"{mean} ({low} to {high})"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [headings, ["---"] * len(headings), *rows])
