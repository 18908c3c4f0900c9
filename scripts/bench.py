"""Times this project's training step against `transformers` and a plain PyTorch loop, all in one
run.

python scripts/bench.py scale=paper          # any configuration (scale: the default of the device)
python scripts/bench.py --lab                # what each part of a GPU's step brings, in three rows
python scripts/bench.py --profile model=crope    # the longest kernels of a step

Like is timed with like: learned positions with the plain loop and GPT-2, RoPE with GPT-NeoX, CRoPE
with RoPE. Each is timed eagerly in fp32, as the others are shipped, and at its strongest: compiled
(unless runtime.compile=false), in the configuration's precision. All have the same vocabulary and
share one process, so the others also have this project's allocator and thread settings. They take
turns, so that a change in the machine's speed affects all of them. Times are medians over the turns.
"""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from cli import Parser, main_errors

# cli says what to do where torch is not installed.
# isort: split
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crope.config import Config
from crope.plan.compose import load_run
from crope.runs.load import build_model
from crope.runs.provenance import device_name
from crope.train.checkpoint import TrainState
from crope.train.device import compiles, prepare_device
from crope.train.graphs import build_graphs
from crope.train.losses import build_losses, sampled_means
from crope.train.update import Updates, build_optimizer

TURNS, STEPS = 5, 10  # STEPS of each implementation in each turn
OURS = "this project, "
# What a model here is compared with.
PEERS = {
    "learned": ("plain PyTorch loop", "transformers GPT-2"),
    "rope": ("transformers GPT-NeoX",),
    "crope": (f"{OURS}rope",),
}
# The paper's vocabulary of 50,257, a batch of 16 and of 2; and one of 4,096.
LAB_ROWS = {
    "base": "scale=paper",
    "small": "scale=paper ablation=b2_l512_g09_s1000",
    "medium": "scale=medium ablation=b2_l512_g09_s1000",
}
ITEM_BYTES = {"double": 8, "long int": 8, "float": 4, "int": 4, "c10::BFloat16": 2, "bool": 1}

Step = Callable[[int], Any]  # from its number to its loss


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="profile ten steps, time none")
    parser.add_argument("--lab", action="store_true", help="time the parts of a step")
    options, overrides = parser.parse_known_args()
    config = load_run(overrides).config
    device = prepare_device(config.runtime)
    if options.profile:
        print(longest_kernels(our_steps(config, device)[0], device))
    elif options.lab:
        for row, words in LAB_ROWS.items():
            print(f"\n{row}: {laboratory([*words.split(), *overrides], device)}", flush=True)
    else:
        print(compare(overrides, device))


def compare(overrides: Sequence[str], device: torch.device) -> str:
    """Times each model as shipped and at its strongest; prints its time over its fastest peer's."""
    chosen = [text for text in overrides if not text.startswith("model=")]
    shipped = [*chosen, "runtime.compile=false", "train.precision=fp32"]
    texts = []
    for words in (shipped, ["runtime.compile=true", *chosen]):
        config = load_run(words).config
        steps = baselines(config, device)
        for name in PEERS:
            steps[OURS + name], _ = our_steps(load_run([*words, f"model={name}"]).config, device)
        ms = time_steps(steps)
        peers = {OURS + name: ms[list(others)].min() for name, others in PEERS.items()}
        table = pd.DataFrame({"ms/step": ms, "over its fastest peer": ms / pd.Series(peers)})
        texts.append(f"{heading(config, device)}\n{table.round(2)}")
    return "\n\n".join(texts)


def baselines(config: Config, device: torch.device) -> dict[str, Step]:
    """Builds the steps of the plain loop and of two models of `transformers` of the same size."""
    from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig

    model, vocab_size, length = config.model, config.tokenizer.vocab_size, config.train.seq_len
    sizes: dict[str, Any] = {
        "vocab_size": vocab_size,
        "max_position_embeddings": length,
        "hidden_size": model.d_model,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": model.n_heads,
        "use_cache": False,
    }
    gpt2 = GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    neox = GPTNeoXConfig(
        **sizes,
        intermediate_size=4 * model.d_model,
        hidden_act="gelu_new",
        tie_word_embeddings=True,
        use_parallel_residual=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
    )
    models = {
        "plain PyTorch loop": PlainGPT(config),
        "transformers GPT-2": AutoModelForCausalLM.from_config(gpt2),
        "transformers GPT-NeoX": AutoModelForCausalLM.from_config(neox),
    }
    return {name: baseline_step(model, config, device) for name, model in models.items()}


def laboratory(words: Sequence[str], device: torch.device) -> str:
    """Times a row's step as it is and with each part that a GPU gains from, and a sampled validation;
    lists the longest kernels of RoPE's step.
    """
    config = load_run(words).config
    prepare_device(config.runtime)  # drops the last row's graphs and compiled code
    steps = baselines(config, device)
    for name in ("rope", "crope"):
        for graph in ("", ", graph"):
            more = [f"model={name}", f"runtime.cuda_graph={bool(graph)}"]
            part = load_run([*words, *more]).config
            steps[f"{name}, head sliced{graph}"], _ = our_steps(part, device, sliced=True)
            masked, validation = our_steps(part, device)
            steps |= {
                f"{name}, head masked{graph}": masked,
                f"{name}, validation{graph}": validation,
            }
    table = pd.DataFrame({"ms/step": time_steps(steps)}).round(3)
    kernels = longest_kernels(steps["rope, head masked"], device)
    return f"{heading(config, device)}\n{table}\n\n{kernels}"


def longest_kernels(step: Step, device: torch.device) -> pd.DataFrame:
    """Lists the twelve operations with the longest kernels of a step, with the bytes that they read
    (their inputs, each once).
    """
    repeat(step)
    with torch.profiler.profile(record_shapes=True) as recorded:
        repeat(step)
    rows = []
    for event in recorded.events():
        if event.device_type != torch.autograd.DeviceType.CPU:
            continue  # a kernel, whose time its operation has, too
        us = event.self_device_time_total if device.type == "cuda" else event.self_cpu_time_total
        dtypes = getattr(event, "input_dtypes", None)  # not in torch 2.11
        inputs = zip(event.input_shapes or [], dtypes or [], strict=False)
        moved = sum(math.prod(shape) * ITEM_BYTES.get(kind, 0) for shape, kind in inputs)
        rows.append((f"{event.name} {event.input_shapes}"[:90], us / 1000, moved / 1e6))
    frame = pd.DataFrame(rows, columns=["operation", "ms/step", "MB/step"])
    sums = frame.groupby("operation").sum() / STEPS
    sums["GB/s"] = sums["MB/step"] / sums["ms/step"]
    return sums.nlargest(12, "ms/step").round(3)


def time_steps(steps: dict[str, Step]) -> "pd.Series[float]":
    """Measures the milliseconds of a step of each implementation."""
    turns = [{name: repeat(step) for name, step in steps.items()} for _ in range(1 + TURNS)]
    return pd.DataFrame(turns)[1:].median()  # the first turn compiles


def repeat(step: Step) -> float:
    """Makes STEPS steps; returns the mean milliseconds of one."""
    began = time.perf_counter()
    for number in range(STEPS):
        loss = step(number)
    # Waits for the device: once, as training does not wait for each step either.
    torch.as_tensor(loss).item()
    return 1000 * (time.perf_counter() - began) / STEPS


def our_steps(config: Config, device: torch.device, *, sliced: bool = False) -> tuple[Step, Step]:
    """Builds the trainer's own step and a sampled validation, on random tokens. sliced: the padding
    of the head is cut off.
    """
    tokens = torch.randint(config.tokenizer.vocab_size, (1_000_000,), device=device)
    model = build_model(config).to(device)
    if sliced:
        model.masked_logits = model.logits  # type: ignore[method-assign]
    state = TrainState(model, build_optimizer(model, config.train), made_with={})
    graphs = build_graphs(config.runtime, device)
    loss, means = build_losses(model, config, device, graphs)
    updates = Updates(state, loss, tokens, config, graphs=graphs)
    sampled = torch.no_grad()(partial(sampled_means, means, tokens, config=config))
    return (
        lambda number: updates.train_step(step=number)[0],
        lambda number: sampled(step=number)["val/loss_nats"],
    )


def baseline_step(model: nn.Module, config: Config, device: torch.device) -> Step:
    """Builds a step of a model on random tokens: loss, backward, AdamW."""
    train = config.train
    shape = (train.batch_size, train.seq_len)
    optimizer = torch.optim.AdamW(model.to(device).parameters(), fused=True)
    if compiles(config, device):
        # All batches have one shape, so code for any shape would only be slower.
        model = torch.compile(model, dynamic=False)

    def step(number: int) -> Tensor:
        tokens_BT = torch.randint(config.tokenizer.vocab_size, shape, device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=train.precision == "bf16"):
            loss = model(input_ids=tokens_BT, labels=tokens_BT)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


class PlainGPT(nn.Module):
    """A decoder of PyTorch's own layers, with learned positions and a tied head."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        model, width = config.model, config.model.d_model
        self.tokens = nn.Embedding(config.tokenizer.vocab_size, width)
        self.positions = nn.Embedding(config.train.seq_len, width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(
            width, model.n_heads, 4 * width, 0, F.gelu, batch_first=True, norm_first=True
        )
        norm = nn.LayerNorm(width)
        self.layers = nn.TransformerEncoder(layer, model.n_layers, norm, enable_nested_tensor=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x_BTD = self.tokens(input_ids) + self.positions.weight
        mask_TT = nn.Transformer.generate_square_subsequent_mask(x_BTD.shape[1], x_BTD.device)
        logits_BTV = self.layers(x_BTD, mask_TT, is_causal=True) @ self.tokens.weight.T
        return {"loss": F.cross_entropy(logits_BTV.flatten(0, 1), labels.flatten())}


def heading(config: Config, device: torch.device) -> str:
    """Says what is timed, and on what."""
    train, vocab_size = config.train, config.tokenizer.vocab_size
    mode = "compiled" if compiles(config, device) else "eager"
    sizes = f"B {train.batch_size}, L {train.seq_len}, V {vocab_size:,}, D {config.model.d_model}"
    machine = f"{device_name(device)}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    return f"{mode}, {train.precision}, {sizes}; {machine}"


if __name__ == "__main__":
    with main_errors():
        main()
