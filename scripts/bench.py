"""Times this project's training step against `transformers` GPT-2 and a plain PyTorch loop, all in
one run.

python scripts/bench.py                               # the shapes of docs/performance.md, and one
                                                      projection alone
python scripts/bench.py scale=paper model=rope        # any configuration, as for train.py
python scripts/bench.py --part projections --write    # one part; --write puts the tables into
                                                      docs/performance.md
python scripts/bench.py --part profile scale=paper    # torch.profiler's table of this project's
                                                      step
python scripts/bench.py --smoke                       # tiny sizes: shows that it runs, not how fast

All implementations share one process, so the baselines also have this project's allocator and
thread settings. Each makes a few steps per round, so that a change in the machine's speed affects
all of them. Times are medians over the rounds' mean steps, after compilation and warm-up.
"""

import itertools
import re
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.benchmark import Timer

from crope.checkpoint import TrainState
from crope.compose import load_run
from crope.config import ROOT, Config
from crope.data.batches import resident
from crope.device import device_name, peak_flops, resolve_device
from crope.errors import Parser, main_errors, positive
from crope.model.complex_linear import ComplexLinear
from crope.model.counting import train_flops_per_token
from crope.record import write_text
from crope.run import build_model
from crope.trainer import build_losses, build_optimizer, prepare_device, train_step

PAGE = ROOT / "docs" / "performance.md"
OURS = "this project"
WARM_UP, TURN = 5, {"cpu": 4, "cuda": 20}  # steps
SHAPES = (  # the head dominates at the paper's vocabulary, the layers at the quick scale's
    ("scale=paper", "ablation=b2_l512_g09_s1000", "model=crope"),
    ("scale=quick", "model=crope", "train.batch_size=8", "train.seq_len=256"),
)
SMOKE = (
    "scale=smoke",
    "data=tiny",
    "model=crope",
    "train.batch_size=2",
    "train.seq_len=16",
    "runtime.compile=false",
)
WIDTHS = (128, 256, 512, 1024, 2048, 4096)

Step = Callable[[], None]


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument(
        "--part", choices=("steps", "projections", "profile"), help="default: steps and projections"
    )
    parser.add_argument(
        "--rounds",
        type=positive,
        default=10,
        help="turns of each implementation (default %(default)s)",
    )
    parser.add_argument(
        "--write", action="store_true", help="write the tables into docs/performance.md"
    )
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, one round")
    parser.add_argument(
        "overrides",
        nargs="*",
        help="one configuration (default: the shapes of docs/performance.md)",
    )
    options = parser.parse_args()
    shapes = [SMOKE] if options.smoke else [options.overrides] if options.overrides else SHAPES
    configs = [load_run([*shape, "tracker=none"]).config for shape in shapes]
    device = resolve_device(configs[0].runtime.device)
    if options.part == "profile":
        print(profile(configs[0]))
    rounds, widths, seconds = (1, (8,), 0.01) if options.smoke else (options.rounds, WIDTHS, 0.5)
    tables = []
    if options.part in (None, "steps"):
        timed = [
            render_steps(config, time_steps(implementations(config), device, rounds=rounds))
            for config in configs
        ]
        tables.append(("steps", "\n".join(timed)))
    if options.part in (None, "projections"):
        tables.append(("projections", time_projections(widths, device, seconds=seconds)))
    for part, table in tables:
        print(table)
        if options.write:
            write_text(
                PAGE, with_table(PAGE.read_text(encoding="utf-8"), f"{part} {device.type}", table)
            )


def with_table(page: str, name: str, table: str) -> str:
    """The page with the table between the markers of `name` replaced; appended if the page has no
    such markers.
    """
    begin, end = f"<!-- generated: bench {name} -->", "<!-- end of generated -->"
    block, pattern = (
        f"{begin}\n\n{table}\n{end}",
        re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL),
    )
    return (
        pattern.sub(lambda _: block, page)
        if pattern.search(page)
        else f"{page.rstrip()}\n\n{block}\n"
    )


def implementations(config: Config) -> dict[str, Callable[[], Step]]:
    """This project and each baseline, as shipped and at their strongest (no compilation with
    runtime.compile=false).
    """
    precision, compiles = config.train.precision, config.runtime.compile != "false"
    found: dict[str, Callable[[], Step]] = {
        f"{OURS}: eager, {precision}": lambda: our_step(config, compiled=False)
    }
    if compiles:
        found[f"{OURS}: compiled, {precision}"] = lambda: our_step(config, compiled=True)
    if compiles and resolve_device(config.runtime.device).type == "cuda":
        graphs = f"{OURS}: compiled, {precision}, CUDA graphs"
        found[graphs] = lambda: our_step(config, compiled=True, cuda_graphs=True)
    mode = "compiled" if compiles else "eager"
    for name, build in (
        ("plain PyTorch loop", PlainGPT),
        ("transformers GPT-2", transformers_gpt2),
    ):
        if build is PlainGPT or find_spec("transformers"):
            found[f"{name}: as shipped (eager, fp32)"] = partial(
                baseline_step, config, build, "fp32", False, 1
            )
            strongest = partial(baseline_step, config, build, precision, compiles, 64)
            found[f"{name}: {mode}, {precision}, vocabulary padded"] = strongest
    return found


def time_steps(
    chosen: dict[str, Callable[[], Step]], device: torch.device, *, rounds: int
) -> dict[str, float]:
    """Median milliseconds of a step of each implementation."""
    steps = {}
    for name, build in chosen.items():
        steps[name] = build()
        for _ in range(WARM_UP):
            steps[name]()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for name in list(steps) * rounds:
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


def our_step(config: Config, *, compiled: bool, cuda_graphs: bool = False) -> Step:
    """The trainer's own step on random tokens."""
    runtime = replace(
        config.runtime, compile="true" if compiled else "false", cuda_graphs=cuda_graphs
    )
    config = replace(config, runtime=runtime)
    device, vocab_size = prepare_device(config), config.tokenizer.vocab_size
    tokens = resident(
        np.random.default_rng(0).integers(vocab_size, size=1_000_000).astype(np.uint16), device
    )
    model = build_model(config).to(device)
    state = TrainState(model, *build_optimizer(model, config.train))
    (loss_function, _), numbers = build_losses(model, config, device), itertools.count()

    def step() -> None:
        train_step(state, loss_function, tokens, config=config, step=next(numbers), device=device)
        state.scheduler.step()

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
    model = build(config, -(-vocab_size // multiple) * multiple).to(device).train()
    loss_function: Any = torch.compile(model, dynamic=False) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.train.lr, fused=True)

    def step() -> None:
        tokens_BT = torch.randint(
            vocab_size, (config.train.batch_size, config.train.seq_len), device=device
        )
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_function(input_ids=tokens_BT, labels=tokens_BT)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def transformers_gpt2(config: Config, vocab: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    size = {
        "n_embd": config.model.d_model,
        "n_layer": config.model.n_layers,
        "n_head": config.model.n_heads,
    }
    options = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=vocab, n_positions=config.train.seq_len, **size, **options)
    )


class PlainGPT(nn.Module):
    """A decoder as a short training script writes it: fused QKV, learned positions, tied head."""

    def __init__(self, config: Config, vocab: int) -> None:
        super().__init__()
        width, self.heads = config.model.d_model, config.model.n_heads
        self.tokens, self.positions = (
            nn.Embedding(vocab, width),
            nn.Embedding(config.train.seq_len, width),
        )
        sizes = {
            "qkv": (width, 3 * width),
            "out": (width, width),
            "up": (width, 4 * width),
            "down": (4 * width, width),
        }
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {name: nn.Linear(*size) for name, size in sizes.items()}
                | {"norm1": nn.LayerNorm(width), "norm2": nn.LayerNorm(width)}
            )
            for _ in range(config.model.n_layers)
        )
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x_BTD = self.tokens(input_ids) + self.positions.weight
        layer: Any
        for layer in self.layers:
            heads_3BHTK = (
                layer["qkv"](layer["norm1"](x_BTD))
                .unflatten(-1, (3, self.heads, -1))
                .permute(2, 0, 3, 1, 4)
            )
            y_BHTK = F.scaled_dot_product_attention(
                heads_3BHTK[0], heads_3BHTK[1], heads_3BHTK[2], is_causal=True
            )
            x_BTD = x_BTD + layer["out"](y_BHTK.transpose(1, 2).flatten(-2))
            x_BTD = x_BTD + layer["down"](
                F.gelu(layer["up"](layer["norm2"](x_BTD)), approximate="tanh")
            )
        logits_BTV = F.linear(self.norm(x_BTD), self.tokens.weight)
        return {"loss": F.cross_entropy(logits_BTV.flatten(0, 1), labels.flatten())}


def render_steps(config: Config, times: dict[str, float]) -> str:
    """A Markdown table; the last column is each implementation's time over that of this project's
    fastest setting.
    """
    batch, length, vocab_size = (
        config.train.batch_size,
        config.train.seq_len,
        config.tokenizer.vocab_size,
    )
    flops = (
        batch * length * train_flops_per_token(config.model, vocab_size=vocab_size, seq_len=length)
    )
    device = resolve_device(config.runtime.device)
    peak = peak_flops(device, config.train.precision)
    best = min(ms for name, ms in times.items() if name.startswith(OURS))
    rows = [
        (
            name,
            f"{ms:.1f}",
            f"{1000 * batch * length / ms:,.0f}",
            f"{1e5 * flops / ms / peak:.1f} %" if peak else "–",
            f"{ms / best:.2f}",
        )
        for name, ms in times.items()
    ]
    about = f"B {batch}, L {length}, D {config.model.d_model}, V {vocab_size:,}; {machine(device)}"
    return render(about, ("implementation", "ms/step", "tokens/s", "MFU", "time / our best"), rows)


def render(about: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    dashes = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(
        [about, "", *(f"| {' | '.join(cells)} |" for cells in (head, dashes, *rows)), ""]
    )


def machine(device: torch.device) -> str:
    return f"{device_name(device)}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def profile(config: Config) -> str:
    """torch.profiler's table of ten steps of this project, sorted by the device's own time."""
    runtime = config.runtime
    step = our_step(config, compiled=runtime.compile == "true", cuda_graphs=runtime.cuda_graphs)
    for _ in range(WARM_UP):
        step()
    with torch.profiler.profile() as recorded:
        for _ in range(10):
            step()
        synchronize()
    order = f"self_{resolve_device(runtime.device).type}_time_total"
    return recorded.key_averages().table(sort_by=order, row_limit=25)


# One D x D projection. a, b: (D/2, D/2) of Eq. 30; x0, x1: the even and odd channels.


def two_products(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """(a x0 + b x1, a x1 - b x0): as many multiplications as the dense product, from half as many
    weights.
    """
    pair = torch.stack(x.unflatten(-1, (-1, 2)).unbind(-1))
    (a_even, a_odd), (b_even, b_odd) = F.linear(pair, a), F.linear(pair, b)
    return torch.stack((a_even + b_odd, a_odd - b_even), dim=-1).flatten(-2)


def three_products(x: Tensor, a: Tensor, b_minus_a: Tensor, a_plus_b: Tensor) -> Tensor:
    """Gauss: with s = a (x0 + x1), outputs s + (b - a) x1 and s - (a + b) x0: 3/4 of the
    multiplications.
    """
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    both = F.linear(even + odd, a)
    return torch.stack(
        (both + F.linear(odd, b_minus_a), both - F.linear(even, a_plus_b)), dim=-1
    ).flatten(-2)


def time_projections(
    widths: Sequence[int], device: torch.device, *, seconds: float, tokens: int = 512
) -> str:
    """A Markdown table: times of a dense projection in fp32, and those of three forms of Eq. 30
    relative to it.

    training    forward and backward of `tokens` tokens
    decoding    forward of one token without gradients, the sums of weights for three products made
                beforehand
    """
    rows = []
    for width in widths:
        linear = nn.Linear(width, width, bias=False, device=device)
        layer = ComplexLinear.from_linear(linear)
        a, b, sums = layer.a, layer.b, ((layer.b - layer.a).detach(), (layer.a + layer.b).detach())
        x_ND = torch.randn(tokens, width, device=device, requires_grad=True)
        names = {"x": x_ND, "gradient": torch.randn_like(x_ND), "one": x_ND[:1], "sums": sums}
        names |= {"linear": linear, "w": linear.weight, "layer": layer, "a": a, "b": b}
        names |= {"two": two_products, "three": three_products, "grad": torch.autograd.grad}
        trained = ["linear(x), (x, w)", "layer(x), (x, a, b)", "two(x, a, b), (x, a, b)"]
        trained += ["three(x, a, b - a, a + b), (x, a, b)"]
        training = [
            median_seconds(f"grad({arguments}, gradient)", names, seconds) for arguments in trained
        ]
        decoded = ("linear(one)", "layer(one)", "two(one, a, b)", "three(one, a, *sums)")
        with torch.no_grad():
            decoding = [median_seconds(statement, names, seconds) for statement in decoded]
        cells = [f"{width:,}"]
        for times, scale, unit in ((training, 1e3, "ms"), (decoding, 1e6, "µs")):
            cells += [
                f"{scale * times[0]:.3g} {unit}",
                *(f"{other / times[0]:.2f}" for other in times[1:]),
            ]
        rows.append(cells)
    forms = ("dense", "dense from (a, b)", "two products", "three products")
    head = ["D", *(f"{what}, {form}" for what in ("training", "decoding") for form in forms)]
    return render(f"fp32; {tokens} tokens per training step; {machine(device)}", head, rows)


def median_seconds(statement: str, names: dict[str, Any], seconds: float) -> float:
    timer = Timer(statement, globals=names, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=seconds).median


if __name__ == "__main__":
    with main_errors():
        main()
