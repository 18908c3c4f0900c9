"""What complex-linear layers cost a trained model, right after the conversion and after tuning,
beside the dense model and low rank of equal size, all tuned alike.

python scripts/init_table.py RUN... --write            # finished RoPE runs of this project
python scripts/init_table.py --model NAME --write      # of transformers: folder, hub name, GGUF file

--write puts the tables into docs/own-model.md. Each loss is kept in RESULTS_DIR/init/NAME.jsonl as
soon as it is measured; the same command goes on with the row where it was interrupted, and the tables
are made of all that is there.

Losses are of validation, in nats per token: of a run on the whole windows of the split, of another model on
--windows windows of WikiText-2. Calibration and tuning use the training split, tuning with AdamW: a
run's at its last rate, another model's at 5e-4, which falls to 0 as half a cosine. Low rank has as many
weights as complex-linear: the truncated singular value decomposition of W, or with "activations" of
W L for the inputs' second moments L L^T, which is nearest in the outputs. "aligned": after align_values.
"""

import copy
import json
import math
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli import Parser, arguments, folder, main_errors, positive

# cli says what to do where torch is not installed.
# isort: split
import pandas as pd
import torch
from torch import Tensor, nn

from crope.adapt import align_values, complexify
from crope.config import ROOT
from crope.data.batches import sample_batch
from crope.data.corpora import load_corpus
from crope.errors import UserError, log_line
from crope.files import write_text
from crope.interop.calibration import calibrate, evaluation
from crope.model.projections import LowRankLinear
from crope.runs.compose import load_config
from crope.runs.load import load_run_tokens, load_trained
from crope.runs.record import find_record
from crope.train.losses import cross_entropy

PAGE = ROOT / "docs" / "own-model.md"
QKV = ("q_proj", "k_proj", "v_proj")
LAYERS = {"": QKV, "Q and K only": ("q_proj", "k_proj"), "V only": ("v_proj",)}
TRAINED = {"qkv": "Q, K and V", "all": "all weights"}
LENGTH = 512  # tokens of a window of another model
KEYS = ("arm", "windows", "calibration", "trained", "steps", "step")  # of a loss
DENSE = "dense | unchanged"
# `kind, layers | start` of each row.
ARMS = [
    DENSE,
    "complex-linear | fresh",
    "complex-linear | nearest",
    "complex-linear | activations",
    "complex-linear | sequential",
    "complex-linear | aligned, activations",
    "complex-linear | aligned, sequential",
    "complex-linear, Q and K only | activations",
    "complex-linear, Q and K only | sequential",
    "complex-linear, V only | activations",
    "complex-linear, V only | sequential",
    "low rank | nearest",
    "low rank | activations",
]


class Source(NamedTuple):
    """A trained model with its data.

    pairs         options of complexify that the model does not tell itself
    output        name of the output projection
    calibration   ids, (B, T) each
    validation    ids of windows, (T,) each
    batch         ids of a training batch by step, (B, T)
    loss          mean loss of a model on ids
    rate          learning rate by step and number of steps
    """

    name: str
    model: nn.Module
    pairs: dict[str, Any]
    output: str
    calibration: list[Tensor]
    validation: Tensor
    batch: Callable[[int], Tensor]
    loss: Callable[[Any, Tensor], Tensor]
    rate: Callable[[int, int], float]


def main() -> None:
    options = build_parser().parse_args(arguments())
    if bool(options.runs) == bool(options.model):
        raise UserError("name finished runs, or one model by --model")
    sources = [of_run(run, options.results_dir) for run in options.runs] or [of_pretrained(options)]
    lines = []
    for source in sources:
        file = options.results_dir / "init" / f"{source.name}.jsonl"
        for arm in ARMS:
            if options.only in arm:
                measure(source, arm, file, options)
        lines += [line for line in read_lines(file) if line["windows"] == len(source.validation)]
    if not lines:
        raise UserError(f"--only={options.only}: no row has this text, and nothing was measured")
    for name, table in render(lines, calibration_windows(sources[0]), len(sources)).items():
        print(table)
        if options.write and table:
            write_table(PAGE, f"{name} pretrained" if options.model else name, table)


def write_table(page: Path, name: str, table: str) -> None:
    """Replaces the table between the markers of `name`; appends it if the page has no such
    markers.
    """
    begin, end = f"<!-- generated: bench {name} -->", "<!-- end of generated -->"
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(begin)
    if end not in rest:
        before, rest = f"{text.rstrip()}\n\n", f"{end}\n"
    after = rest.partition(end)[2]
    write_text(page, f"{before}{begin}\n\n{table}\n{end}{after}")


def build_parser() -> Parser:
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUN", help="a finished RoPE run")
    add("--model", metavar="NAME", help="a folder, a name on the hub, a GGUF file")
    add("--steps", type=int, default=200, help="of tuning; 0: none (default: 200)")
    add("--trained", choices=TRAINED, default="all", help="weights tuned (default: all)")
    add("--windows", type=positive, default=64, help="of validation (default: 64)")
    add("--calibration", type=positive, default=24, help="windows of calibration (default: 24)")
    add("--only", metavar="TEXT", default="", help="measure rows whose label has this text")
    add("--results-dir", type=folder, default=Path("results"))
    add("--write", action="store_true", help="write the tables into the page")
    return parser


def read_lines(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def calibration_windows(source: Source) -> int:
    return sum(len(ids) for ids in source.calibration)


def measure(source: Source, arm: str, file: Path, options: Namespace) -> None:
    """Adds to the file the losses of this arm that it lacks: right after, and along the tuning."""
    model_and_data = (arm, len(source.validation), calibration_windows(source))
    wanted = {0: (*model_and_data, None, 0, 0)}
    for part in (8, 4, 2, 1):
        if step := options.steps // part:
            wanted[step] = (*model_and_data, options.trained, options.steps, step)
    done = {tuple(line[key] for key in KEYS) for line in read_lines(file)}
    wanted = {step: row for step, row in wanted.items() if row not in done}
    if not wanted:
        return
    model = copy.deepcopy(source.model)
    try:
        convert(model, arm, source)
    except ValueError as error:  # of a model with other layers than those of Llama
        raise UserError(f"{source.name}, {arm}: {error}") from error
    file.parent.mkdir(parents=True, exist_ok=True)
    for step in tune(model, source, options.trained, options.steps if max(wanted) else 0):
        if step in wanted:
            line = dict(zip(KEYS, wanted[step], strict=True))
            line["loss"] = validation_loss(model, source)
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(line) + "\n")
            log_line(f"{file.name}: {line}")


def convert(model: nn.Module, arm: str, source: Source) -> None:
    """Replaces the layers of a row of the table, in place."""
    changed, init = arm.split(" | ")
    kind, _, layers = changed.partition(", ")
    if kind == "low rank":
        make_low_rank(model, source.calibration if init == "activations" else [])
    if kind == "complex-linear":
        *aligned, init = init.split(", ")
        if aligned:
            names = ("v_proj", source.output)
            align_values(model, source.calibration, names=names, **source.pairs)
        torch.manual_seed(0)  # of "fresh"
        options = source.pairs | {"names": LAYERS[layers], "init": init}
        complexify(model, inputs=source.calibration, **options)


@torch.no_grad()
def make_low_rank(model: nn.Module, batches: list[Tensor]) -> None:
    """Replaces Q, K and V by the nearest LowRankLinear, in the outputs on `batches` if any."""
    layers = {name: layer for name, layer in model.named_modules() if name.endswith(QKV)}
    moments = dict(calibrate(model, layers, batches)) if batches else {}
    for name, layer in layers.items():
        dense = layer.weight.double()
        weighted = dense
        if batches:
            weighted = dense @ torch.linalg.cholesky(moments[name][0, :-1, :-1])
        new = LowRankLinear(layer.in_features, layer.out_features)
        directions = torch.linalg.svd(weighted).U[:, : new.up.shape[1]]
        new.up.copy_(directions)
        new.down.copy_(directions.T @ dense)
        new.bias = copy.deepcopy(layer.bias)
        model.set_submodule(name, new)


@torch.no_grad()
def validation_loss(model: nn.Module, source: Source) -> float:
    with evaluation(model):
        return mean(source.loss(model, window[None]).item() for window in source.validation)


def tune(model: nn.Module, source: Source, trained: str, steps: int) -> Iterator[int]:
    """Trains in place; yields the number of steps done, 0 first."""
    yield 0
    if trained == "qkv":
        model.requires_grad_(False)
        for name, value in model.named_parameters():
            value.requires_grad_(not {*QKV}.isdisjoint(name.split(".")))
    weights = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(weights, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    for step in range(steps):
        model.train()
        optimizer.param_groups[0]["lr"] = source.rate(step, steps)
        optimizer.zero_grad()
        source.loss(model, source.batch(step)).backward()
        optimizer.step()
        yield step + 1


def of_run(run: str, results_dir: Path) -> Source:
    """A finished RoPE run; tuned at its last rate on the batches after its last."""
    record = find_record(run, results_dir=results_dir)
    config, tokens = load_config(record.config), load_run_tokens(record)
    if (config.model.position, config.model.projection) != ("rotary", "real"):
        raise UserError(f"{record.path}: no RoPE run; choose another")
    train = config.train
    last_rate = train.learning_rate(train.max_steps - 1)
    sizes = {"batch_size": train.batch_size, "seq_len": train.seq_len, "purpose": "train"}

    def batch(step: int) -> Tensor:
        inputs, targets = sample_batch(tokens.train, seed=config.seed, step=step, **sizes)
        return torch.cat((inputs, targets[:, -1:]), dim=1)

    validation = torch.from_numpy(tokens.validation.astype("int64"))
    return Source(
        name=record.path.name,
        model=load_trained(record),
        pairs={"pairing": "interleaved", "head_dim": config.model.head_width},
        output="out_proj",
        calibration=[batch(step)[:, :-1] for step in range(16)],
        validation=validation.unfold(0, train.seq_len + 1, train.seq_len),
        batch=lambda step: batch(train.max_steps + step),
        loss=lambda model, ids: cross_entropy(model, ids[:, :-1], ids[:, 1:]),
        rate=lambda step, steps: last_rate,
    )


def of_pretrained(options: Namespace) -> Source:
    """A model of transformers with WikiText-2."""
    import transformers

    name, where = options.model, {}
    if name.endswith(".gguf"):
        name, where = Path(name).parent, {"gguf_file": Path(name).name}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, **where)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            name, **where, dtype=torch.float32
        )
    except (OSError, ImportError, ValueError) as error:
        raise UserError(f"{name}: transformers cannot open this model ({error})") from error
    corpus = load_corpus("wikitext2", Path(os.environ.get("CROPE_DATA_DIR", "data/raw")))
    ids = {}
    for split, documents in corpus.items():
        text = "".join(chain.from_iterable(documents))
        ids[split] = torch.tensor(tokenizer(text).input_ids)
    train = ids["train"]

    def batch(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(step)
        starts = torch.randint(len(train) - LENGTH, (4,), generator=generator)
        return torch.stack([train[start : start + LENGTH] for start in starts])

    return Source(
        name=Path(options.model).name.removesuffix(".gguf"),
        model=model,
        pairs={},
        output="o_proj",
        calibration=list(spread(train, options.calibration).split(4)),
        validation=spread(ids["validation"], options.windows),
        batch=batch,
        loss=pretrained_loss,
        rate=lambda step, steps: 5e-4 * (1 + math.cos(math.pi * step / steps)) / 2,
    )


def pretrained_loss(model: Any, ids: Tensor) -> Tensor:
    """In float32; of a model that is trained under bf16 autocast, which takes half the time."""
    with torch.autocast("cpu", torch.bfloat16, enabled=model.training):
        return model(input_ids=ids, labels=ids).loss


def spread(ids: Tensor, windows: int) -> Tensor:
    """So many windows at equal distances, (windows, LENGTH)."""
    return ids.unfold(0, LENGTH, (len(ids) - LENGTH) // max(windows - 1, 1))[:windows]


def render(lines: list[dict[str, Any]], calibration: int, sources: int) -> dict[str, str]:
    """Tables by name: losses right after and after tuning, distances from the dense model along the
    tuning, losses right after by size of the calibration. Means over the sources; a loss that not
    all of them have is missing.
    """
    keys = [key for key in KEYS if key != "windows"]
    grouped = pd.DataFrame(lines).fillna({"trained": ""}).groupby(keys, as_index=False)["loss"]
    losses = grouped.agg(["mean", "count"])
    losses = losses[(losses["count"] == sources) & losses["arm"].isin(ARMS)]
    started = losses[losses["steps"] == 0]  # of all sizes; what follows is of one
    sizes = started.pivot(index="arm", columns="calibration", values="mean").add_suffix(" windows")
    losses = losses[losses["calibration"] == calibration]
    table = {"right after": losses[losses["steps"] == 0].set_index("arm")["mean"]}
    healing = [pd.DataFrame()]
    for (trained, steps), tuned in losses[losses["steps"] > 0].groupby(["trained", "steps"]):
        curve = tuned.pivot(index="arm", columns="step", values="mean")
        if steps in curve:  # not in one that goes on
            table[f"after {steps} steps of {TRAINED[trained]}"] = curve[steps]
        above = in_order(curve - curve.reindex([DENSE]).iloc[0]).drop(DENSE, errors="ignore")
        above = above.dropna(how="all")
        above.index += f" | {TRAINED[trained]}, {steps} steps"
        healing.append(above.add_prefix("after ", axis="columns"))
    return {
        "init": markdown(in_order(pd.DataFrame(table))),
        "healing": markdown(pd.concat(healing), "trained"),
        "calibration": markdown(in_order(sizes.dropna(thresh=2))),
    }


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    return table.reindex([arm for arm in ARMS if arm in table.index])


def markdown(table: pd.DataFrame, *labels: str) -> str:
    """`labels` are headings of what a row's label has beside the arm; "" for no row."""
    if table.empty:
        return ""
    header = ["Q, K and V", "start", *labels, *map(str, table)]
    marks = ["---"] * (2 + len(labels)) + ["---:"] * table.shape[1]
    lines = [f"| {' | '.join(header)} |", f"|{'|'.join(marks)}|"]
    for label, values in table.iterrows():
        cells = [f"{value:.3f}" if value == value else "" for value in values]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with main_errors():
        main()
