"""Times this project's training step against `transformers` GPT-2 and a plain PyTorch loop, all in
one run.

python scripts/bench.py scale=paper model=crope       # any configuration (scale: quick unless given)
python scripts/bench.py --profile scale=paper         # torch.profiler's table of ten steps

Each is timed eagerly in fp32, as `transformers` and a plain loop are shipped, and at its strongest:
compiled (unless runtime.compile=false), in the configuration's precision, with a vocabulary that is
a multiple of 64. All share one process, so the baselines also have this project's allocator and
thread settings. They take turns, so that a change in the machine's speed affects all of them. Times
are medians over the turns.
"""

import time
from collections.abc import Callable

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
from crope.train.losses import build_losses
from crope.train.update import Updates, build_optimizer

TURNS, STEPS = 5, 10  # STEPS of each implementation in each turn

Step = Callable[[int], Tensor]  # from its number to its loss


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="profile ten steps, time none")
    options, overrides = parser.parse_known_args()
    config = load_run(overrides).config
    device = prepare_device(config.runtime)
    if options.profile:
        step = our_step(config, device)
        repeat(step)
        with torch.profiler.profile() as recorded:
            repeat(step)
        order = f"self_{device.type}_time_total"
        print(recorded.key_averages().table(order, row_limit=25))
    else:
        print(render(config, device, time_steps(build_steps(overrides, device))))


def build_steps(overrides: list[str], device: torch.device) -> dict[str, Step]:
    """Builds what is timed, each under a name that says what it is."""
    from transformers import GPT2Config, GPT2LMHeadModel

    shipped = load_run([*overrides, "runtime.compile=false", "train.precision=fp32"]).config
    strongest = load_run(["runtime.compile=true", *overrides]).config
    strongest.tokenizer.vocab_size += -strongest.tokenizer.vocab_size % 64
    steps = {}
    for config in (shipped, strongest):
        model, vocab_size = config.model, config.tokenizer.vocab_size
        mode = "compiled" if compiles(config, device) else "eager"
        setting = f"{mode}, {config.train.precision}, V {vocab_size:,}"
        gpt2 = GPT2Config(
            vocab_size=vocab_size,
            n_positions=config.train.seq_len,
            n_embd=model.d_model,
            n_layer=model.n_layers,
            n_head=model.n_heads,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
            use_cache=False,
        )
        steps |= {
            f"this project: {setting}": our_step(config, device),
            f"plain PyTorch loop: {setting}": baseline_step(PlainGPT(config), config, device),
            f"transformers GPT-2: {setting}": baseline_step(GPT2LMHeadModel(gpt2), config, device),
        }
    return steps


def time_steps(steps: dict[str, Step]) -> "pd.Series[float]":
    """Measures the milliseconds of a step of each implementation."""
    turns = [{name: repeat(step) for name, step in steps.items()} for _ in range(1 + TURNS)]
    return pd.DataFrame(turns)[1:].median()  # the first turn compiles


def repeat(step: Step) -> float:
    """Makes STEPS steps; returns the mean milliseconds of one."""
    began = time.perf_counter()
    for number in range(STEPS):
        loss = step(number)
    loss.item()  # waits for the device: once, as training does not wait for each step either
    return 1000 * (time.perf_counter() - began) / STEPS


def our_step(config: Config, device: torch.device) -> Step:
    """Builds the trainer's own step, on random tokens."""
    tokens = torch.randint(config.tokenizer.vocab_size, (1_000_000,), device=device)
    model = build_model(config).to(device)
    state = TrainState(model, build_optimizer(model, config.train), made_with={})
    loss, _ = build_losses(model, config, device)
    updates = Updates(state, loss, tokens, config)
    return lambda number: updates.train_step(step=number)[0]


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


def render(config: Config, device: torch.device, ms: "pd.Series[float]") -> str:
    """Prints each time, and how many times the shortest it is."""
    sizes = f"B {config.train.batch_size}, L {config.train.seq_len}, D {config.model.d_model}"
    machine = f"{device_name(device)}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    columns = {"ms/step": ms, "over the shortest": ms / ms.min()}
    return f"{sizes}; {machine}\n{pd.DataFrame(columns).round(2)}"


if __name__ == "__main__":
    with main_errors():
        main()
