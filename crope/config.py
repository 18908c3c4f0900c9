"""The typed schema of a run (the one home of defaults), and its checks.

Imports no torch: the report and the study tools read configurations too.
"""

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "results" / "published"  # committed sets of runs and losses
CACHE_DIR = Path(os.environ.get("CROPE_CACHE_DIR") or ROOT / "data")  # holds raw/ and tokens/
MISSING: Any = "???"  # omegaconf.MISSING: layers and adapter need no package but torch
GOLDEN_FILE = Path(__file__).with_name("golden_losses.json")

GPT2_VOCAB_SIZE = 50257
INIT_STD = 0.02  # of the initial weights, as in GPT-2
CHUNK = 64  # tokens per chunk of linear attention


def option(default: Any, **rule: Any) -> Any:
    """Makes a schema field from its default and its allowed values: least, above, below, one_of."""
    return field(default=default, metadata=rule)


@dataclass
class ModelConfig:
    """One decoder.

    Models differ in `position`, `projection` and `attention` only (`thin_ffn` in `ffn_ratio`); the
    sizes are those of Sec. 5.1.
    """

    # Each is a name in a registry of crope/model, which needs torch: the command line is checked
    # against the names that conf/model uses (`compose.check_value`).
    position: str = MISSING  # position scheme
    projection: str = MISSING  # layers of Q, K and V
    attention: str = "softmax"  # softmax, or RoFormer's linear attention
    rope_base: float = option(10000.0, above=0)  # theta_i = base^(-2i/K); of position=rotary alone
    n_layers: int = option(4, least=1)  # L of Sec. 5.1
    n_heads: int = option(4, least=1)  # H of Sec. 5.1
    d_model: int = option(128, least=2)  # D; d_model / n_heads must be even
    # Width of the feed-forward layer over d_model (Sec. 6.1).
    ffn_ratio: float = option(4.0, above=0)
    # On embedding, attention weights and residual branches.
    dropout: float = option(0.0, least=0, below=1)
    tied_head: bool = True  # output head = token embedding, as in GPT-2
    qkv_bias: bool = False  # bias in Q, K and V of all models alike; Eqs. 4-30 have none
    # Factor on the token embedding: 1 (GPT-2) or sqrt(d_model).
    embed_scale: str = option("sqrt_d", one_of=("one", "sqrt_d"))
    label: str = ""  # in tables and figures; no part of a run's identity

    @property
    def attention_width(self) -> int:
        """Gives E, the width of each of Q, K and V over all heads: d_model except for `halved` and
        `complex_wide`.

        In `complex_wide` E is 1.6 d_model, rounded to a multiple of 2 n_heads. Complex Q, K and V
        and a full output projection (2.5 E D weights) then equal RoPE's attention (4 D^2) in size.
        Rounding moves E by at most n_heads, so the block differs from RoPE's (12 D^2) by at most
        2.5 n_heads / (12 D): 0.65 % at D = 128 and 4 heads.
        """
        if self.projection == "halved":
            return self.d_model // 2
        if self.projection == "complex_wide":
            step = 2 * self.n_heads
            return step * round(1.6 * self.d_model / step)
        return self.d_model

    @property
    def head_width(self) -> int:
        """Gives K = E / n_heads."""
        return self.attention_width // self.n_heads

    @property
    def kv_width(self) -> int:
        """Gives the width of K and of V over all heads: K in `multi_query`, else E."""
        return self.head_width if self.projection == "multi_query" else self.attention_width

    @property
    def ffn_width(self) -> int:
        """Gives F, the width of the feed-forward layer."""
        return round(self.ffn_ratio * self.d_model)

    @property
    def embed_factor(self) -> float:
        """Gives the factor on the token embedding; sqrt(d_model) is Vaswani et al., Sec. 3.4."""
        return math.sqrt(self.d_model) if self.embed_scale == "sqrt_d" else 1.0


@dataclass
class HubConfig:
    """The source of a corpus: a Hugging Face hub dataset at a fixed revision. `train` and
    `validation` are its file patterns.
    """

    path: str = MISSING  # repository (owner/name)
    revision: str | None = None  # commit, tag or named ref; not a branch, which moves
    column: str = "text"
    train: str = MISSING
    validation: str = MISSING
    # Streams the first rows, up to so many bytes of training text and a tenth as many of validation.
    max_bytes: int | None = None


@dataclass
class DataConfig:
    """The corpus of a run."""

    # In conf/data only, no keys of the command line: a run's label is the name of the file.
    corpus: str = MISSING
    hub: HubConfig | None = None
    books: int | None = None  # of PG-19's training split, the first in reading order
    validation_share: float | None = None  # cut from the end of <corpus>.txt; None: two files


@dataclass
class AblationConfig:
    """A row of Table 2 in the paper's numbers, set in conf/ablation.

    `model`, `train` and `eval` hold what is run. Unset keys follow from the row and the scale; a
    set key replaces the row's number. On the command line set `model.d_model`, `train.batch_size`
    and so on.
    """

    batch_size: int = option(16, least=1)  # B
    seq_len: int = option(1024, least=1)  # L of Table 2
    d_model: int = option(128, least=2)  # D
    lr_gamma: float = option(0.8, above=0)  # gamma, decay ratio of StepLR
    lr_step_size: int = option(1000, least=1)  # step, decay step size of StepLR
    # Steps between full validations at the paper and medium scales.
    full_every: int = option(1000, least=1)


@dataclass
class TokenizerConfig:
    """The tokenizer of a run, byte-level BPE."""

    # Byte-level BPE: OpenAI's, or trained on the train split.
    name: str = option(MISSING, one_of=("gpt2", "bpe"))
    vocab_size: int = option(MISSING, least=257)  # entries, padding not counted


@dataclass
class TrainConfig:
    """AdamW and StepLR (Sec. 5.3); betas, eps, weight decay: torch's defaults, written out.

    By default no warm-up or clipping.
    """

    batch_size: int = option(MISSING, least=1)  # B, sequences a step
    seq_len: int = option(MISSING, least=1)  # L, tokens a sequence
    max_steps: int = option(MISSING, least=1)  # optimiser updates
    lr: float = option(0.001, above=0)  # initial learning rate
    schedule: str = option("step", one_of=("step", "cosine"))  # formulas: `learning_rate`
    # These two mean nothing under cosine, but are part of a run's id all the same.
    lr_gamma: float = option(0.8, above=0)  # factor on lr every lr_step_size steps
    lr_step_size: int = option(MISSING, least=1)  # steps between decays
    # First updates, over which lr rises linearly to its value.
    warmup_steps: int = option(0, least=0)
    qkv_lr_factor: float = option(1.0, above=0)  # factor on lr for the weights of Q, K and V
    beta1: float = option(0.9, least=0, below=1)  # AdamW
    beta2: float = option(0.999, least=0, below=1)  # AdamW
    eps: float = option(1e-8, above=0)  # AdamW
    weight_decay: float = option(0.01, least=0)  # AdamW, on every parameter as torch does
    grad_clip: float = option(0.0, least=0)  # largest norm of the whole gradient; 0: any
    # bf16 where the hardware gains from it (`machine.auto_precision`).
    precision: str = option("${auto_precision:${runtime.device}}", one_of=("fp32", "bf16"))

    def learning_rate(self, step: int) -> float:
        """Returns the rate of the update after `step` updates.

        step      StepLR: lr gamma^floor(step / lr_step_size)
        cosine    lr (1 + cos(pi step / max_steps)) / 2, from lr to 0 after the last update; that is
                  lr cos(pi step / (2 max_steps))^2

        Both are multiplied by the linear warm-up, min(1, (step + 1) / warmup_steps). The loop and
        `verify` both use this function; write a new schedule here.
        """
        rise = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        if self.schedule == "cosine":
            return rise * self.lr * math.cos(math.pi / 2 * step / self.max_steps) ** 2
        return rise * self.lr * self.lr_gamma ** (step // self.lr_step_size)


@dataclass
class EvalConfig:
    """Sampled and full validation (Sec. 5.3)."""

    every: int = option(20, least=1)  # steps between sampled validations (Sec. 5.3)
    batches: int = option(MISSING, least=1)  # random batches of B x L a sampled validation
    # Steps between full validations; one at the end always.
    full_every: int = option(MISSING, least=1)
    # Evenly spaced windows of so many tokens in all; 0: the whole split.
    full_tokens: int = option(MISSING, least=0)


@dataclass
class RuntimeConfig:
    """How a run is executed. Nothing here changes a number beyond rounding."""

    device: str = option("auto", one_of=("auto", "cpu", "cuda"))  # auto: cuda where there is one
    compile: str = option("auto", one_of=("auto", "true", "false"))  # auto: where it pays
    # On a GPU an update, and a validation batch, as one CUDA graph (never run on one yet).
    cuda_graph: bool = False
    # Parallel runs in `make reproduce`; 0: one per GPU, or one per usable CPU core.
    jobs: int = option(0, least=0)
    threads: int = option(0, least=0)  # CPU threads; 0: torch's own choice
    deterministic: bool = False  # the same bits in every run of one GPU machine
    # Whether to train a run anew that other code has trained; its folder is moved to replaced/.
    again: bool = False
    log_every: int = option(10, least=1)  # steps between training lines in metrics.jsonl
    # Seconds between checkpoints; one at a stop always.
    checkpoint_seconds: float = option(60.0, least=0)

    def __post_init__(self) -> None:
        self.compile = self.compile.lower()  # Hydra reads `true` as a bool, which becomes "True"


@dataclass
class TrackerConfig:
    """Where the curves of a run are logged."""

    name: str = option("wandb", one_of=("wandb", "none"))  # where curves are logged
    # online needs `wandb login`; disabled logs nothing.
    mode: str = option("offline", one_of=("offline", "online", "disabled"))
    project: str = "crope"  # wandb project


@dataclass
class Config:
    """The whole configuration; a run's id hashes some of its sections (`identity`)."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    ablation: AblationConfig = field(default_factory=AblationConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    seed: int = option(0, least=0)  # initialisation, data order and dropout
    results_dir: str = "results"  # runs and reports go here
    data_dir: str = "${oc.env:CROPE_DATA_DIR,data/raw}"  # raw text, layout in data/README.md

    def validates_at(self, step: int) -> bool:
        """Tells whether a validation loss is due after `step` updates."""
        due = step % self.eval.every == 0 or (step > 0 and step % self.eval.full_every == 0)
        return due or step == self.train.max_steps


def known_values(schema: Any, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Selects the values of a config.yaml, or of a section, whose keys the schema still has."""
    values = {}
    for item in dataclasses.fields(schema):
        if item.name in saved:
            value, section = saved[item.name], item.default_factory
            nested = dataclasses.is_dataclass(section)
            values[item.name] = known_values(section, value) if nested else value
    return values


def keys(node: Any = Config, prefix: str = "") -> dict[str, dataclasses.Field[Any]]:
    """Returns every leaf key of the command line, dotted, with its field."""
    leaves: dict[str, dataclasses.Field[Any]] = {}
    for item in dataclasses.fields(node):
        section = item.default_factory
        if dataclasses.is_dataclass(section):
            leaves |= keys(section, f"{prefix}{item.name}.")
        elif node is not DataConfig:  # its fields are set in conf/data alone
            leaves[prefix + item.name] = item
    return leaves


def problems(config: Config) -> Iterator[tuple[str, str]]:
    """Yields (key, what is wrong and what is allowed) for every wrong value of the right type.

    A later problem may follow from an earlier one, so callers stop at the first.
    """
    yield from value_problems(config)
    yield from model_problems(config.model)
    if config.tokenizer.name == "gpt2" and config.tokenizer.vocab_size != GPT2_VOCAB_SIZE:
        yield (
            "tokenizer.vocab_size",
            f"must be {GPT2_VOCAB_SIZE} with tokenizer.name=gpt2 (a size of your own needs tokenizer.name=bpe)",
        )


def value_problems(section: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields (key, what is allowed) for every value of a configuration or section that the option
    of its field forbids.
    """
    for name, item in keys(section).items():
        value, rule = attrgetter(name)(section), item.metadata
        if "one_of" in rule and value not in rule["one_of"]:
            yield prefix + name, f"must be one of {', '.join(rule['one_of'])}"
        elif isinstance(value, int | float) and (text := broken_rule(value, rule)):
            yield prefix + name, text


def broken_rule(value: float, rule: Mapping[str, Any]) -> str:
    """Says what an option's rule allows, if not this number; else nothing."""
    if not math.isfinite(value):
        return "must be a finite number"
    if "least" in rule and value < rule["least"]:
        return f"must be at least {rule['least']}"
    if "above" in rule and value <= rule["above"]:
        return f"must be above {rule['above']}"
    if "below" in rule and value >= rule["below"]:
        return f"must be below {rule['below']}"
    return ""


def model_problems(model: ModelConfig) -> Iterator[tuple[str, str]]:
    """Yields (key, what is wrong and what to do) for sizes and combinations that no model has; at
    most one per key. Call it after `value_problems`.
    """
    if model.d_model % model.n_heads:
        yield "model.d_model", f"is not divisible by model.n_heads={model.n_heads}"
    elif (width := model.d_model // model.n_heads) % 2 or (width := model.head_width) % 2:
        yield (
            "model.d_model",
            f"gives heads of odd width {width} (model.n_heads={model.n_heads}, model.projection={model.projection}); "
            "channels are rotated in pairs, so the width must be even",
        )
    rotated = model.position == "rotary" and model.head_width > 2
    if model.projection == "complex_misaligned" and not rotated:
        yield (
            "model.projection",
            "needs model.position=rotary and at least two channel pairs per head; use"
            " model.projection=complex",
        )
