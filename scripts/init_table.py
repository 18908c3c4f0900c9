"""What complex-linear layers cost a trained model, right after the conversion and after tuning,
beside the dense model and low rank of equal size, all tuned alike.

python scripts/init_table.py RUN... --write            # finished RoPE runs of this project
python scripts/init_table.py --model NAME --write      # of transformers: folder, hub name, GGUF file

--write puts the tables into docs/own-model.md. Each loss is kept in RESULTS_DIR/init/NAME.jsonl as
soon as it is measured; the same command goes on where it was interrupted, and the tables are made of
all that is there.

Losses are of validation, in nats per token: of a run on the whole split, of another model on
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
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli import Parser, arguments, folder, main_errors, positive

# cli says what to do where torch is not installed.
# isort: split
import pandas as pd
import torch
from bench import write_table
from torch import Tensor, nn

from crope.adapt import align_values, complexify
from crope.config import ROOT
from crope.data.batches import sample_batch
from crope.data.corpora import load_corpus
from crope.errors import UserError, log_line
from crope.interop.calibration import calibrate, evaluation
from crope.model.projections import LowRankLinear
from crope.runs.compose import load_config
from crope.runs.load import load_run_tokens, load_trained
from crope.runs.record import find_record
from crope.train.losses import cross_entropy

PAGE = ROOT / "docs" / "own-model.md"
QKV, QK, V = ("q_proj", "k_proj", "v_proj"), ("q_proj", "k_proj"), ("v_proj",)
LAYERS = {QKV: "", QK: ", Q and K only", V: ", V only"}
LENGTH = 512  # tokens of a window of another model


class Arm(NamedTuple):
    """One way to replace the layers of these names."""

    kind: str
    init: str
    names: tuple[str, ...] = QKV

    @property
    def label(self) -> str:
        return f"{self.kind}{LAYERS[self.names]} | {self.init}"


ARMS = (
    Arm("dense", "unchanged"),
    Arm("complex-linear", "fresh"),
    Arm("complex-linear", "nearest"),
    Arm("complex-linear", "activations"),
    Arm("complex-linear", "sequential"),
    Arm("complex-linear", "aligned, sequential"),
    Arm("complex-linear", "activations", QK),
    Arm("complex-linear", "sequential", QK),
    Arm("complex-linear", "activations", V),
    Arm("complex-linear", "sequential", V),
    Arm("complex-linear", "aligned, sequential", V),
    Arm("low rank", "nearest"),
    Arm("low rank", "activations"),
)


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
    parser = build_parser()
    options = parser.parse_args(arguments())
    if bool(options.runs) == bool(options.model):
        raise UserError("name finished runs, or one model by --model")
    sources = [of_run(run) for run in options.runs]
    if options.model:
        sources = [of_pretrained(options.model, options.windows, options.calibration)]
    stores = []
    for source in sources:
        store = Store(options.results_dir / "init" / f"{source.name}.jsonl")
        for arm in ARMS:
            fresh = (
                options.model and arm.init == "fresh"
            )  # a question about training from the start
            if not fresh and (not options.only or options.only in arm.label):
                measure_arm(source, arm, store, options)
        stores.append(store.lines)
    [calibration] = {calibration_windows(source) for source in sources}
    for name, table in render(stores, options.windows, calibration).items():
        print(table)
        if options.write and options.model and table:  # not a heading alone
            write_table(PAGE, f"{name} pretrained", table)
        elif options.write and name == "init":
            write_table(PAGE, name, f"{table}\nMeans over {len(stores)} runs.\n")


def build_parser() -> Parser:
    parser = Parser(description=__doc__)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="a finished RoPE run")
    parser.add_argument("--model", metavar="NAME", help="a folder, a name on the hub, a GGUF file")
    parser.add_argument("--steps", type=positive, default=200, help="of tuning (default: 200)")
    parser.add_argument("--trained", choices=("qkv", "all"), default="all", help="weights tuned")
    parser.add_argument("--untuned", action="store_true", help="only right after the conversion")
    parser.add_argument("--windows", type=positive, default=64, help="of validation (default: 64)")
    parser.add_argument(
        "--calibration", type=positive, default=24, help="windows of calibration (default: 24)"
    )
    parser.add_argument("--only", metavar="TEXT", help="rows whose label has this text")
    parser.add_argument("--results-dir", type=folder, default=Path("results"))
    parser.add_argument("--write", action="store_true", help="write the tables into the page")
    return parser


class Store:
    """Lines of a JSONL file, each the loss of an arm after some steps of tuning."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.lines: list[dict[str, Any]] = []
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            self.lines = [json.loads(line) for line in text.splitlines()]

    def has(self, key: dict[str, Any]) -> bool:
        return any(key.items() <= line.items() for line in self.lines)

    def add(self, key: dict[str, Any], loss: float) -> None:
        self.lines.append(key | {"loss": loss})
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(self.lines[-1]) + "\n")
        log_line(f"{self.file.name}: {self.lines[-1]}")


def measure_arm(source: Source, arm: Arm, store: Store, options: Any) -> None:
    """Measures what the store lacks of this arm: right after, and along the tuning."""
    key = {
        "arm": arm.label,
        "windows": len(source.validation),
        "calibration": calibration_windows(source),
    }
    start = key | {"trained": None, "steps": 0, "step": 0}
    tuning = key | {"trained": options.trained, "steps": options.steps}
    points = [options.steps // part for part in (8, 4, 2, 1)]
    missing = [step for step in points if not store.has(tuning | {"step": step})]
    if options.untuned:
        missing = []
    if store.has(start) and not missing:
        return
    model = copy.deepcopy(source.model)
    convert(model, arm, source)
    if not store.has(start):
        store.add(start, validation_loss(model, source))
    if missing:
        for step in tune(model, source, options.trained, options.steps):
            if step in missing:
                store.add(tuning | {"step": step}, validation_loss(model, source))


def calibration_windows(source: Source) -> int:
    return sum(len(ids) for ids in source.calibration)


def convert(model: nn.Module, arm: Arm, source: Source) -> None:
    if arm.kind == "low rank":
        make_low_rank(model, source.calibration if arm.init == "activations" else [])
    elif arm.kind == "complex-linear":
        torch.manual_seed(0)
        *aligned, init = arm.init.split(", ")
        if aligned:
            names = ("v_proj", source.output)
            align_values(model, source.calibration, names=names, **source.pairs)
        options = source.pairs | {"names": arm.names, "init": init}
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
        model.set_submodule(name, new)


@torch.no_grad()
def validation_loss(model: nn.Module, source: Source) -> float:
    with evaluation(model):
        return mean(source.loss(model, window[None]).item() for window in source.validation)


def tune(model: nn.Module, source: Source, trained: str, steps: int) -> Iterator[int]:
    """Trains in place and yields the number of each step done."""
    for name, value in model.named_parameters():
        is_qkv = any(f".{part}." in name for part in QKV)
        value.requires_grad_(trained == "all" or is_qkv)
    weights = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(weights, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    for step in range(steps):
        model.train()
        optimizer.param_groups[0]["lr"] = source.rate(step, steps)
        optimizer.zero_grad()
        source.loss(model, source.batch(step)).backward()
        optimizer.step()
        yield step + 1


def of_run(run: str) -> Source:
    """A finished RoPE run; tuned at its last rate on the batches after its last."""
    record = find_record(run, results_dir=Path("results"))
    config = load_config(record.config)
    if (config.model.position, config.model.projection) != ("rotary", "real"):
        raise UserError(f"{record.path}: no RoPE run; choose another")
    train, tokens = config.train, load_run_tokens(record)
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


def of_pretrained(name: str, windows: int, calibration: int) -> Source:
    """A model of transformers with WikiText-2."""
    import transformers

    where: dict[str, Any] = {"pretrained_model_name_or_path": name}
    if name.endswith(".gguf"):
        where = {"pretrained_model_name_or_path": Path(name).parent, "gguf_file": Path(name).name}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
        model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    except (OSError, ImportError, ValueError) as error:
        raise UserError(f"{name}: transformers cannot open this model ({error})") from error
    corpus = load_corpus("wikitext2", Path(os.environ.get("CROPE_DATA_DIR", "data/raw")))
    ids = {}
    for split, documents in corpus.items():
        text = "".join(block for document in documents for block in document)
        ids[split] = torch.tensor(tokenizer(text).input_ids)
    train = ids["train"]

    def batch(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(step)
        starts = torch.randint(len(train) - LENGTH, (4,), generator=generator)
        return torch.stack([train[start : start + LENGTH] for start in starts])

    return Source(
        name=Path(name).stem,
        model=model,
        pairs={},
        output="o_proj",
        calibration=list(spread(train, calibration).split(4)),
        validation=spread(ids["validation"], windows),
        batch=batch,
        loss=lambda model, ids: model(input_ids=ids, labels=ids).loss,
        rate=lambda step, steps: 5e-4 * (1 + math.cos(math.pi * step / steps)) / 2,
    )


def spread(ids: Tensor, windows: int) -> Tensor:
    """So many windows at equal distances, (windows, LENGTH)."""
    return ids.unfold(0, LENGTH, (len(ids) - LENGTH) // max(windows - 1, 1))[:windows]


def render(stores: list[list[dict[str, Any]]], windows: int, calibration: int) -> dict[str, str]:
    """Tables by name: losses, distances from the dense model along the tuning, calibration sizes.

    A loss that not all stores have is missing.
    """
    lines = pd.DataFrame([line for store in stores for line in store])
    if len(stores) == 1:
        lines = lines[lines["windows"] == windows]
    where = ["arm", "calibration", "trained", "steps", "step"]
    losses = lines.groupby(where, dropna=False, as_index=False)["loss"].agg(["mean", "count"])
    losses = losses[losses["count"] == len(stores)]
    started = losses[losses["step"] == 0]
    losses = losses[losses["calibration"] == calibration]
    tuned = losses[losses["step"] > 0]
    right_after = started[started["calibration"] == calibration].set_index("arm")["mean"]
    table = {"right after": right_after}
    healing = []
    for (trained, steps), part in tuned.groupby(["trained", "steps"]):
        curve = part.pivot(index="arm", columns="step", values="mean")
        table[f"after {steps} steps of {TRAINED[trained]}"] = curve[steps]
        if ARMS[0].label in curve.index:
            above = (curve - curve.loc[ARMS[0].label]).drop(index=ARMS[0].label)
            above.columns = pd.Index([f"{step} steps" for step in above.columns])
            healing.append(f"{TRAINED[trained]} trained for {steps} steps:\n\n{markdown(above)}")
    sizes = started.pivot(index="arm", columns="calibration", values="mean")
    sizes.columns = pd.Index([f"{size} windows" for size in sizes.columns])
    fitted = sizes.index.str.endswith(("activations", "sequential"))
    return {
        "init": markdown(pd.DataFrame(table)),
        "healing": "\n".join(healing),
        "calibration": markdown(sizes[fitted]) if len(sizes.columns) > 1 else "",
    }


TRAINED = {"qkv": "Q, K and V", "all": "all weights"}


def markdown(table: pd.DataFrame) -> str:
    """Rows in the order of ARMS."""
    lines = [
        f"| Q, K and V | start | {' | '.join(table)} |",
        "|---|---|" + "---:|" * len(table.columns),
    ]
    for label in [arm.label for arm in ARMS if arm.label in table.index]:
        cells = [f"{value:.3f}" if value == value else "" for value in table.loc[label]]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with main_errors():
        main()
