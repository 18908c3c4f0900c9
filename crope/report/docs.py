"""README.md, docs/results.md and docs/models.md, made from the published sets and docs/findings.yaml alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any

import pandas as pd
from scipy import stats

from crope import paper
from crope.config import PUBLISHED, ROOT
from crope.data.ngrams import ORDERS
from crope.files import write_bytes, write_text
from crope.plan.study import OFFLINE
from crope.report import agreement, content, losses, models, page, pictures, tables
from crope.report.contrasts import load_contrasts, subjects
from crope.report.evidence import estimate, holm
from crope.report.findings import findings, reading
from crope.report.frame import dataset_label, load_runs
from crope.report.losses import LARGE, LossTable
from crope.report.publish import read_ngrams
from crope.report.tables import Table
from crope.style import render

DOCS = {
    ROOT / "README.md": ROOT / "docs" / "README.md.j2",
    ROOT / "docs" / "results.md": ROOT / "docs" / "results.md.j2",
    ROOT / "docs" / "models.md": ROOT / "docs" / "models.md.j2",
}
PLANNED_AT_99 = ("P1", "P2", "P3", "P4", "P5")  # whose plans asked for intervals of 99 %
# Widths of models that people train: D, of keys (or values), of the feed-forward layer with its matrices.
ARCHITECTURES = {
    "GPT-2": (768, 768, 2 * 3072),
    "Llama-3-8B": (4096, 1024, 3 * 14336),
    "Llama-3.2-1B": (2048, 512, 3 * 8192),
}


def update_readme() -> None:
    """Writes README.md, pages of docs/ and their pictures from the published sets alone."""
    report = content.collect(load_runs(results_dir=PUBLISHED / "none"))
    texts = render_docs(report)
    drawn = pictures.draw_published(report.published)
    drawn["schemes"] = models.draw_schemes(report.published.lines)
    for name, figure in drawn.items():
        write_bytes(PUBLISHED / f"{name}.png", render(figure, "png"))
    for target, text in texts.items():
        write_text(target, text)


def render_docs(report: content.Report) -> dict[Path, str]:
    """Fills the templates of README.md and pages of docs/: file -> text.

    Raises UserError for a sentence of docs/findings.yaml whose answer has changed.
    """
    published = report.runs.published
    found = findings(report.published.stated)
    long = long_table1(report.published)
    quick = report.losses[0].numbers.query("dataset == 'ptb' and protocol == 'full'")
    whole = tables.planned_lines(report.published.lines).query("complete")
    of_gpu = published["device_kind"] == "cuda"
    hours = published["time.total_s"].astype(float).groupby(of_gpu).sum() / 3600
    context = {
        "found": found,
        "expected": f"{quick.set_index('model')['mean']['crope']:.2f}",
        "runs": f"{len(published):,}",
        "hours": f"{hours[False]:.0f}",
        "gpu_hours": f"{hours[True]:.1f}",
        "llama": f"{saved_share(*ARCHITECTURES['Llama-3-8B']):.1f} %",
        "sample": sample_output(report.shown, report.losses[0]),
        "table1": readme_table1(long),
        "losses": [long.select("full"), *map(shorter, report.losses)],
        "notes": page.PROTOCOL_NOTES,
        "planned": planned_table(whole),
        "excluding": sum(reading(line) != "open" for line in whole.to_dict("records")),
        "asked": len(whole),
        "holm": holm(whole),
        "at_99": planned_at_99(report.published.lines),
        "unfinished": unfinished(report.published),
        "pooled": pooled_table(report.published.stated),
        "costs": costs_table(published),
        "models": models.models_table(published, report.published.joined),
        "passes": passes(published),
        "ngrams": ngram_table(read_ngrams()),
        "repeats": quick_repeats(published),
    }
    texts = {}
    for target, template in DOCS.items():
        texts[target] = page.render_template(template, context, autoescape=False)
    return texts


def long_table1(published: content.Results) -> LossTable:
    """Makes Table 1 of small models, trained for as many steps as the paper's."""
    study, of_xpos = subjects()["long_table"]

    def as_table1(frame: pd.DataFrame) -> pd.DataFrame:
        chosen = (frame["study"] == study) | (frame["study"] == of_xpos) & (
            frame["model"] == "xpos"
        )
        return frame[chosen].assign(study="table1", row="base")

    cells = published.cells.sort_values("study", ascending=False, kind="stable")  # XPOS first
    runs = as_table1(published.joined)
    table = losses.loss_table("table1", as_table1(cells), runs, runs[:0], {})
    caption = "Table 1, small models after 10,000 steps (B 2, L 512, γ 0.9), nats per token"
    return replace(table, caption=caption, parameters={})  # docs/models.md has them


def readme_table1(table: LossTable) -> Table:
    """Leaves the full losses of RoPE and CRoPE beside the paper's."""
    frame = table.select("paper", "full", models=["rope", "crope"]).frame
    label, kind, *_ = frame.columns
    frame[label] = frame[label].where(frame[kind] == "paper", "")
    return Table("table1", "", frame.replace({kind: {"full": "here"}}))


def sample_output(runs: pd.DataFrame, table: LossTable) -> str:
    """Prints what a reproduction with one seed ends with, from a published run of each model."""
    first = runs.query("dataset == 'ptb' and seed == 0 and study == 'table1'")
    lines = losses.paper_lines("table1", "ptb", "base", table.models)
    lines += losses.measured_lines("table1", ("ptb", "base"), table.models, first, [""] * 3)
    return indent(replace(table, lines=lines, parameters={}).text(), 4 * " ")


def shorter(table: LossTable) -> LossTable:
    """Leaves out the sampled losses of small runs, which few tokens make noise, and of Table 1 the
    others, too: `long_table1` is of longer ones.
    """
    kinds = ["paper", "lowest", *(kind + LARGE for kind in losses.PROTOCOLS)]
    table = replace(table, parameters={})  # docs/models.md has them
    if table.name == "table1":
        return replace(table, sizes=dict.fromkeys(table.sizes, "")).select(*kinds)
    return table.select("full", *kinds)


def planned_table(lines: pd.DataFrame) -> Table:
    """Prints the planned questions whose plan is complete; each names its place itself."""
    table = tables.difference_table(lines, "")
    return replace(table, frame=table.frame.drop(columns="Where"))


def planned_at_99(lines: pd.DataFrame) -> Table:
    """Prints the intervals of 99 % that the first five questions were planned with, by the rule of
    their plan, which took the corpora as independent, and by today's, where these read differently.
    """
    printed = []
    for name in PLANNED_AT_99:
        of_name = lines[lines["name"] == name]
        overall, *corpora = of_name["by_seed"]
        today = estimate(overall, level=0.99)
        planned = today
        if corpora:
            first, second = corpora  # their mean is half the difference of one and minus the other
            test = stats.ttest_ind(first, -second, equal_var=False).confidence_interval(0.99)
            planned = today | {"low": test.low / 2, "high": test.high / 2}
        if reading(planned) != reading(today):
            printed.append([name, tables.interval_text(planned), tables.interval_text(today)])
    columns = ["", "as planned (99 %)", "by today's rule (99 %)"]
    return Table("at_99", "", pd.DataFrame(printed, columns=columns))


def unfinished(published: content.Results) -> list[str]:
    """Lists the studies of planned questions, and others with a seed, that lack seeds, by the row with
    fewest.
    """
    contrasts, lacking = load_contrasts(), {}
    incomplete = published.lines.query("not complete").sort_values("there", ascending=False)
    for line in incomplete.to_dict("records"):
        contrast = contrasts[line["name"]]
        study = contrast.studies[0]
        # Published runs of OFFLINE are of one seed, for their rounding alone.
        if contrast.date or (line["there"] and study != OFFLINE):
            lacking[study] = f"`{study}` ({line['there']} of {line['planned']})"
    return list(lacking.values())


def pooled_table(stated: pd.DataFrame) -> Table:
    """Prints the pooled estimates with their heterogeneity."""
    printed = []
    for line in stated[stated["name"].str.startswith("pooled")].to_dict("records"):
        printed.append(
            [
                f"{line['says']}: `{line['name']}`",
                tables.interval_text(line),
                f"{line['units']:.0f}",
                line["n"],
                f"{line['tau']:.3f}",
                f"{100 * line['i2']:.0f} %",
            ]
        )
    columns = ["", "Nats per token (95 %)", "Settings", "Pairs", "τ", "I²"]
    return Table("pooled", "Pooled estimates", pd.DataFrame(printed, columns=columns))


def costs_table(published: pd.DataFrame) -> Table:
    """Tabulates what CRoPE saves and costs beside RoPE: weights, memory and time."""
    sizes = published[published["scale"] == "paper"].groupby("model")["parameters.total"].max()
    saved = f"−{100 * (1 - sizes['crope'] / sizes['rope']):.1f} %"
    blocks = [f"{name} −{saved_share(*sizes):.1f} %" for name, sizes in ARCHITECTURES.items()]
    low, high = step_ratios(published[published["device_kind"] == "cuda"])
    printed = [
        ["weights of a block", ", ".join(blocks)],
        ["weights, gradients and AdamW's moments of the paper's model", saved],
        ["KV cache", "none: keys and values are as wide"],
        ["step time on an H200, compiled, several runs at a time", f"× {low:.2f} to {high:.2f}"],
        ["decoding", "slower until `merge` or export, then equal"],
    ]
    return Table("costs", "", pd.DataFrame(printed, columns=["CRoPE beside RoPE", ""]))


def saved_share(width: int, of_keys: int, of_ffn: int) -> float:
    """Computes the share of a block's weights that CRoPE saves, in percent: half of Q, K and V."""
    qkv = width * (width + 2 * of_keys)
    return 100 * qkv / 2 / (qkv + width**2 + width * of_ffn)


def step_ratios(runs: pd.DataFrame) -> tuple[float, float]:
    """Gives the lowest and highest ratio of CRoPE's to RoPE's median step, by set and row."""
    places = runs.groupby(["record_set", "row", "model"])["time.median_step_ms"].median().unstack()
    ratios = places["crope"] / places["rope"]
    return ratios.min(), ratios.max()


def passes(published: pd.DataFrame) -> str:
    """Says how often a run of Table 1 at the paper's size reads each corpus."""
    runs = published.query("scale == 'paper' and row == 'base'")
    counts = runs.groupby("dataset")["train_passes"].max()
    return ", ".join(f"{dataset_label(str(name))} {count:.0f}" for name, count in counts.items())


def quick_repeats(published: pd.DataFrame) -> Table:
    """Prints how far runs of Table 1 at the quick scale that were repeated lie apart."""
    table = agreement.repeats_table(
        published.query("scale == 'quick' and row == 'base'"), "precision"
    )
    return replace(table, frame=table.frame.drop(columns=["Scale", "Row"]))


def ngram_table(ngrams: Sequence[Mapping[str, Any]]) -> Table:
    """Tabulates losses of n-gram models on the same tokens, beside the paper's lowest loss."""
    printed = []
    for entry in ngrams:
        of_paper = paper.TABLE1.get(entry["corpus"])
        if of_paper is None:
            continue
        counted = [f"{entry['loss_nats'][order]:.3f}" for order in ORDERS]
        lowest = min(loss.mean_nats for loss in of_paper.values())
        tokens = f"{entry['tokenizer']['name']} {entry['tokenizer']['vocab_size']:,}"
        theirs = f"{lowest:.3f}" if entry["tokenizer"]["name"] == "gpt2" else ""
        printed.append([dataset_label(entry["corpus"]), tokens, *counted, theirs])
    columns = ["Dataset", "Tokens", *ORDERS, "The paper's best model"]
    caption = (
        "Losses of n-gram models (interpolated Witten-Bell), nats per token; compare within a"
        " vocabulary"
    )
    return Table("ngrams", caption, pd.DataFrame(sorted(printed), columns=columns))
