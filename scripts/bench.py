"""Times this project's training step against `transformers` GPT-2 and a plain PyTorch loop, all in
one run.

python scripts/bench.py --write                       # the shapes of docs/performance.md, into it
python scripts/bench.py scale=paper model=rope        # any configuration (scale: quick unless given)
python scripts/bench.py --profile scale=paper         # torch.profiler's table of ten steps
python scripts/bench.py --smoke                       # tiny sizes: shows that it runs, not how fast

All implementations share one process, so the baselines also have this project's allocator and
thread settings. Each makes a few steps per round, so that a change in the machine's speed affects
all of them. Times are medians over the rounds' mean steps, after compilation and warm-up.
"""

import itertools
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli import Parser, arguments, main_errors, refuse_repeats

# cli says what to do where torch is not installed.
# isort: split
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crope.config import ROOT, Config
from crope.data.batches import resident
from crope.errors import log_line, one_line
from crope.files import write_text
from crope.model.counting import train_flops_per_token
from crope.runs.compose import load_run
from crope.runs.load import build_model
from crope.train.checkpoint import TrainState
from crope.train.device import can_compile, device_name, peak_flops, prepare_device, resolve_device
from crope.train.loop import build_losses, build_optimizer, compiles, train_step

PAGE = ROOT / "docs" / "performance.md"
OURS = "this project"
WARM_UP, TURN = 5, {"cpu": 4, "cuda": 20}  # steps
ROUNDS = 10  # turns of each implementation
B2_ROW = ("scale=paper", "ablation=b2_l512_g09_s1000", "model=crope")
SHAPES = {
    # The head dominates at the paper's vocabulary, the layers at the quick scale's.
    "cpu": (B2_ROW, ("scale=quick", "model=crope", "train.batch_size=8", "train.seq_len=256")),
    "cuda": (("scale=paper", "model=crope"), B2_ROW),
}
SMOKE = ("scale=smoke", "data=tiny", "model=crope", "train.batch_size=2", "train.seq_len=16")

FLAGS = {
    "--profile": "torch.profiler's table of ten steps, no times",
    "--write": "write the tables into docs/performance.md",
    "--smoke": "tiny sizes, one round",
}

Step = Callable[[], None]


def main() -> None:
    parser = Parser(description=__doc__)
    for flag, text in FLAGS.items():
        parser.add_argument(flag, action="store_true", help=text)
    parser.add_argument("overrides", nargs="*", help="one configuration, instead of those shapes")
    options = parser.parse_intermixed_args(arguments())
    refuse_repeats(options.overrides)
    shapes = SHAPES[resolve_device("auto").type]
    if options.smoke:
        shapes = ((*SMOKE, *options.overrides),)
    elif options.overrides:
        shapes = (options.overrides,)
    tables = []
    for shape in shapes:
        config = load_run([*shape, "tracker=none"]).config
        device = prepare_device(config.runtime)
        if options.profile:
            print(profile(config, device))
            continue
        rounds = 1 if options.smoke else ROUNDS
        times = time_steps(implementations(config), device, rounds=rounds)
        tables.append(render_steps(config, times))
        print(tables[-1], flush=True)
    if options.write and tables:
        write_table(PAGE, f"steps {device.type}", "\n".join(tables))


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


def implementations(config: Config) -> dict[str, Callable[[], Step]]:
    """This project and each baseline, as shipped and at their strongest; nothing is compiled with
    runtime.compile=false or without a compiler.
    """
    precision, kind = config.train.precision, resolve_device(config.runtime.device).type
    compiled = config.runtime.compile != "false" and can_compile(kind)
    ours = partial(our_step, config)
    builders: dict[str, Callable[[], Step]] = {
        f"{OURS}: eager, {precision}": partial(ours, compiled=False)
    }
    if compiled:
        builders[f"{OURS}: compiled, {precision}"] = partial(ours, compiled=True)
    baselines = {"plain PyTorch loop": PlainGPT}
    if find_spec("transformers"):
        baselines["transformers GPT-2"] = transformers_gpt2
    mode = "compiled" if compiled else "eager"
    for name, build in baselines.items():
        baseline = partial(baseline_step, config, build)
        builders[f"{name}: as shipped (eager, fp32)"] = partial(baseline, "fp32", False, 1)
        strongest = f"{name}: {mode}, {precision}, vocabulary padded"
        builders[strongest] = partial(baseline, precision, compiled, 64)
    return builders


def time_steps(
    chosen: dict[str, Callable[[], Step]], device: torch.device, *, rounds: int
) -> dict[str, float]:
    """Median milliseconds of a step of each implementation; one that fails is reported and left
    out.
    """
    steps = {}
    for name, build in chosen.items():
        try:
            step = build()
            for _ in range(WARM_UP):
                step()
        except Exception as error:  # a library's compiler or too little memory
            log_line(f"{name}: {type(error).__name__}: {one_line(error)[:300]}")
        else:
            steps[name] = step
    times: dict[str, list[float]] = {name: [] for name in steps}
    for name in list(steps) * rounds:  # in turn: a machine that slows down slows all of them
        synchronize()
        began = time.perf_counter()
        for _ in range(TURN[device.type]):
            steps[name]()
        synchronize()  # once per turn: training does not wait for each step either
        times[name].append(1000 * (time.perf_counter() - began) / TURN[device.type])
    return {name: statistics.median(values) for name, values in times.items()}


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def our_step(config: Config, *, compiled: bool) -> Step:
    """The trainer's own step on random tokens."""
    runtime = replace(config.runtime, compile=str(compiled).lower())
    config = replace(config, runtime=runtime)
    device = resolve_device(config.runtime.device)
    vocab_size = config.tokenizer.vocab_size
    ids = np.random.default_rng(0).integers(vocab_size, size=1_000_000)
    tokens = resident(ids.astype(np.uint16), device)
    model = build_model(config).to(device)
    state = TrainState(model, build_optimizer(model, config.train))
    (loss_function, _), numbers = build_losses(model, config, device), itertools.count()

    def step() -> None:
        train_step(state, loss_function, tokens, config, step=next(numbers), device=device)

    return step


def baseline_step(
    config: Config,
    build: Callable[[Config, int], nn.Module],
    precision: str,
    compiled: bool,
    multiple: int,
) -> Step:
    """A decoder of the same shape on random tokens, its vocabulary rounded up to a multiple: loss,
    backward, AdamW.
    """
    device, vocab_size = resolve_device(config.runtime.device), config.tokenizer.vocab_size
    shape = (config.train.batch_size, config.train.seq_len)
    padded = -(-vocab_size // multiple) * multiple  # matrix units prefer multiples of 64
    model = build(config, padded).to(device).train()
    # All batches have one shape, so code for any shape would only be slower.
    loss_function: Any = torch.compile(model, dynamic=False) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.train.lr, fused=True)

    def step() -> None:
        tokens_BT = torch.randint(vocab_size, shape, device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_function(input_ids=tokens_BT, labels=tokens_BT)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def transformers_gpt2(config: Config, vocab: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocab,
            n_positions=config.train.seq_len,
            n_embd=config.model.d_model,
            n_layer=config.model.n_layers,
            n_head=config.model.n_heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
        )
    )


class Block(nn.Module):
    """Attention and feed-forward layer of GPT-2, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        qkv_BT3HK = self.qkv(self.norm1(x_BTD)).unflatten(-1, (3, self.heads, -1))
        q_BHTK, k_BHTK, v_BHTK = qkv_BT3HK.permute(2, 0, 3, 1, 4)
        y_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        x_BTD = x_BTD + self.out(y_BHTK.transpose(1, 2).flatten(-2))
        hidden_BTF = F.gelu(self.up(self.norm2(x_BTD)), approximate="tanh")
        return x_BTD + self.down(hidden_BTF)


class PlainGPT(nn.Module):
    """A decoder as a short training script writes it: fused QKV, learned positions, tied head."""

    def __init__(self, config: Config, vocab: int) -> None:
        super().__init__()
        width, depth = config.model.d_model, config.model.n_layers
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(config.train.seq_len, width)
        self.layers = nn.Sequential(*[Block(width, config.model.n_heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x_BTD = self.layers(self.tokens(input_ids) + self.positions.weight)
        logits_BTV = F.linear(self.norm(x_BTD), self.tokens.weight)
        return {"loss": F.cross_entropy(logits_BTV.flatten(0, 1), labels.flatten())}


def render_steps(config: Config, times: dict[str, float]) -> str:
    """A Markdown table; the last column is each implementation's time over that of this project's
    fastest setting.
    """
    train, model, vocab_size = config.train, config.model, config.tokenizer.vocab_size
    tokens = train.batch_size * train.seq_len
    flops = tokens * train_flops_per_token(model, vocab_size=vocab_size, seq_len=train.seq_len)
    device = resolve_device(config.runtime.device)
    peak = peak_flops(device, train.precision)
    ours = filter(lambda name: name.startswith(OURS), times)
    best = min([times[name] for name in ours], default=math.nan)
    sizes = f"B {train.batch_size}, L {train.seq_len}, D {model.d_model}, V {vocab_size:,}"
    machine = f"{device_name(device)}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    lines = [
        f"{sizes}; {machine}",
        "",
        "| implementation | ms/step | tokens/s | MFU | time / our best |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, ms in times.items():
        mfu = "–"  # no peak is known of a CPU, and fp32 is no rate of the tensor cores
        if peak and "fp32" not in name:
            mfu = f"{1e5 * flops / ms / peak:.1f} %"
        lines.append(f"| {name} | {ms:.4g} | {1000 * tokens / ms:,.0f} | {mfu} | {ms / best:.2f} |")
    return "\n".join([*lines, ""])


def profile(config: Config, device: torch.device) -> str:
    """torch.profiler's table of ten steps as they are trained, sorted by the device's own time."""
    step = our_step(config, compiled=compiles(config, device))
    for _ in range(WARM_UP):
        step()
    with torch.profiler.profile() as recorded:
        for _ in range(10):
            step()
        synchronize()
    order = f"self_{device.type}_time_total"
    return recorded.key_averages().table(sort_by=order, row_limit=25)


if __name__ == "__main__":
    with main_errors():
        main()
