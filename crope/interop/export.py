"""Export of a finished run to a folder that `transformers` opens without code of this project.

Rotary models become GPT-NeoX, models with absolute positions or none GPT-2. Logits are equal to
1e-5 in float32 (tests/interop/test_export.py); at 1,024 tokens GPT-NeoX's angles, computed in
float32, add as much. Structured Q, K and V are written as their dense matrices (Eq. 30 and all
others), a single head of K and V (`multi_query`) once for every head of Q. What the two
architectures do otherwise is folded into the weights: `reordered_pairs`, `fold_embed_factor` and
`padded_heads`.

Shapes: D model width, H heads, K head width, W = D/H head width of the exported model, T tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from crope.config import ModelConfig
from crope.errors import UserError
from crope.files import write_bytes, write_json, write_text
from crope.model.counting import count_parameters
from crope.model.gpt import GPT, blocks_of
from crope.model.positions import BASE
from crope.runs.compose import load_config
from crope.runs.load import load_run_tokens, load_trained
from crope.runs.record import Record


@dataclass(frozen=True)
class Target:
    """An architecture of `transformers`, and what it calls ours.

    positions    values of `model.position` that it can compute
    modules      our modules -> its modules, by part of their dotted names
    sizes        keys of its configuration -> our sizes, where the two architectures differ
    options      further keys of its configuration
    stack_dim    where Q, K and V are joined: 0, all heads of Q before those of K; 1, head by head
    transposed   linear layers hold their weight as (inputs, outputs)
    """

    model_type: str
    positions: tuple[str, ...]
    modules: Mapping[str, str]
    sizes: Mapping[str, str]
    options: Mapping[str, Any]
    stack_dim: int
    transposed: bool

    def name_of(self, name: str) -> str:
        """Its name of one of our tensors."""
        return ".".join(self.modules.get(part, part) for part in name.split("."))

    def stored(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor as it holds it."""
        linear = name.startswith("blocks.") and tensor.dim() == 2
        return tensor.T if linear and self.transposed else tensor


GPT_NEOX = Target(
    model_type="gpt_neox",
    positions=("rotary",),
    modules={
        "embedding": "gpt_neox.embed_in",
        "blocks": "gpt_neox.layers",
        "attn_norm": "input_layernorm",
        "attn": "attention",
        "qkv": "query_key_value",
        "out_proj": "dense",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.dense_h_to_4h",
        "ffn_down": "mlp.dense_4h_to_h",
        "norm": "gpt_neox.final_layer_norm",
        "head": "lm_head",
    },
    sizes={
        "intermediate_size": "ffn_width",
        "hidden_act": "activation",
        "layer_norm_eps": "norm_eps",
        "hidden_dropout": "dropout",
        "attention_dropout": "dropout",
    },
    options={"use_parallel_residual": False},
    stack_dim=1,
    transposed=False,
)
GPT2 = Target(
    model_type="gpt2",
    positions=("none", "sinusoidal", "sinusoidal_balanced", "learned"),
    modules={
        "embedding": "transformer.wte",
        "positions": "transformer.wpe",
        "blocks": "transformer.h",
        "attn_norm": "ln_1",
        "qkv": "c_attn",
        "out_proj": "c_proj",
        "ffn_norm": "ln_2",
        "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj",
        "norm": "transformer.ln_f",
        "head": "lm_head",
    },
    sizes={
        "n_inner": "ffn_width",
        "activation_function": "activation",
        "layer_norm_epsilon": "norm_eps",
        "resid_pdrop": "dropout",
        "embd_pdrop": "dropout",
        "attn_pdrop": "dropout",
    },
    options={},
    stack_dim=0,
    transposed=True,
)

SEPARATE = {"q_proj", "k_proj", "v_proj"}  # here; one matrix in both architectures

CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
license: mit
tags: [{tags}]
---
# {run_id}

A small decoder of the reproduction of "CRoPE: Efficient Parametrization of Rotary Positional Embedding".
It is one run of an experiment that compares position schemes, not a model for use.

    from transformers import pipeline

    pipeline("text-generation", model="{folder}")("The")

| | |
|---|---|
| model | {summary[model]}: position {model.position}, projection {model.projection} |
| size | {model.n_layers} layers, {model.n_heads} heads, width {model.d_model} |
| parameters | {trained:,} trained, {written:,} in this form ({exported.config.model_type}, with dense Q, K and V) |
| data | {summary[dataset]}, {provenance[data][splits][train][tokens]:,} tokens |
| tokenizer | byte-level BPE, {tokenizer[vocab_size]:,} entries ({tokenizer[name]}) |
| training | {train[max_steps]:,} steps of {train[batch_size]} x {train[seq_len]:,} tokens, AdamW, {train[precision]} |
| learning rate, seed, scale | {train[lr]:g}, seed {seed}, {summary[scale]} |
| validation loss | {summary[val_full][final_nats]:.4f} nats per token ({measured}, {train[precision]}) |
| commit | {provenance[commit]}{edits} |
| training loss | {summary[train][final_nats]:.4f} nats per token |

Limits: trained on one small corpus, on sequences of {train[seq_len]:,} tokens{end}; no special tokens,
no padding token, no instruction tuning and no filter of any kind. The text of the corpus has a licence of its own.
"""


def export_transformers(record: Record, out: Path) -> None:
    """Writes a run as a folder for `from_pretrained`: model, tokenizer, generation_config, card.

    An earlier export in `out` is overwritten. Raises UserError if neither GPT-NeoX nor GPT-2 has
    the model, if weights, tokenizer or the package transformers are missing, or if `out` holds
    something else or cannot be written.
    """
    target_of(load_config(record.config).model)  # before anything is read
    _check_folder(out)
    try:
        from transformers import GenerationConfig
        from transformers.utils.logging import disable_progress_bar
    except ImportError as error:
        raise UserError(
            "the package transformers is missing; install it: pip install transformers"
        ) from error
    disable_progress_bar()
    model, tokens = load_trained(record), load_run_tokens(record)
    exported = as_transformers(model)
    exported.config.crope_run = record.path.name  # by which `_check_folder` knows an export
    # Half of the context, so that a prompt may be as long: past the end GPT-2 has no positions. A
    # max_length would make transformers warn at every call with max_new_tokens.
    generation = GenerationConfig(do_sample=True, max_new_tokens=max(1, model.max_len // 2))
    exported.generation_config = generation
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.max_len,
        "clean_up_tokenization_spaces": False,  # True takes spaces before commas away
    }
    try:
        exported.save_pretrained(out)
        (out / "model.safetensors").chmod(0o644)  # written as 0600
        # The file itself: a tokenizer that transformers saves again may split text differently.
        write_bytes(out / "tokenizer.json", (tokens.folder / "tokenizer.json").read_bytes())
        write_json(out / "tokenizer_config.json", tokenizer)
        write_text(out / "README.md", render_card(record, exported, model.config, out))
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{out}: cannot be written ({reason}); choose another folder") from error


def target_of(config: ModelConfig) -> Target:
    """The architecture that computes a model. Raises UserError if neither does."""
    if config.attention != "softmax":
        raise UserError(
            f"attention={config.attention}: GPT-NeoX and GPT-2 have softmax attention only;"
            " export another run"
        )
    if config.attention_width > config.d_model:
        raise UserError(
            f"projection={config.projection}: its heads have {config.head_width} channels, those of"
            f" GPT-NeoX and GPT-2 d_model / n_heads = {config.d_model // config.n_heads}; export"
            " another run"
        )
    for target in (GPT_NEOX, GPT2):
        if config.position in target.positions:
            return target
    raise UserError(
        f"position={config.position}: GPT-NeoX has rotary positions only, GPT-2 absolute ones or"
        " none; export another run"
    )


def as_transformers(model: GPT) -> Any:
    """The `transformers` model with equal logits, in evaluation mode."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config, target = model.config, target_of(model.config)
    sizes = {
        "ffn_width": config.ffn_width,
        "activation": "gelu_pytorch_tanh",
        "norm_eps": model.norm.eps,
        "dropout": config.dropout,
    }
    exported_config = AutoConfig.for_model(
        target.model_type,
        # GPT-2's configuration translates these names into its own (its attribute_map).
        vocab_size=model.vocab_size,
        hidden_size=config.d_model,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        max_position_embeddings=model.max_len,
        tie_word_embeddings=config.tied_head,
        # Ours has no special tokens; the default ids, such as 50256, may lie past the vocabulary.
        bos_token_id=None,
        eos_token_id=None,
        **{key: sizes[name] for key, name in target.sizes.items()},
        **target.options,
    )
    if target is GPT_NEOX:
        share = config.attention_width / config.d_model  # of a head; the rest is zero
        rotation = {"rope_theta": BASE, "partial_rotary_factor": share}
        exported_config.rope_parameters = {"rope_type": "default", **rotation}
        # Versions before 5 read these two, and would rotate a quarter of each head without them.
        exported_config.rotary_pct, exported_config.rotary_emb_base = share, BASE
    exported = AutoModelForCausalLM.from_config(exported_config)
    exported.load_state_dict(weights_for(model))
    return exported.eval()


@torch.no_grad()
def weights_for(model: GPT) -> dict[str, Tensor]:
    """The state dict of the `transformers` model."""
    target, config = target_of(model.config), model.config
    state = {}
    for name, tensor in model.state_dict().items():
        if SEPARATE.isdisjoint(name.split(".")):
            state[name] = tensor
    fold_embed_factor(state, model)
    if target is GPT2:
        # GPT-2 adds a trained table: fixed sinusoids, or zeros for no positions, are one too.
        no_tokens_1TD = torch.zeros(1, model.max_len, config.d_model)
        state["positions.weight"] = model.positions.embed(no_tokens_1TD)[0]
    for index, block in enumerate(blocks_of(model)):
        qkv, out = f"blocks.{index}.attn.qkv", f"blocks.{index}.attn.out_proj.weight"
        q, k, v = (dense_heads(layer, config) for layer in block.attn.qkv)
        if target is GPT_NEOX:
            q, k = reordered_pairs(q), reordered_pairs(k)
        # Scores are divided by sqrt(W) there, by sqrt(K) here.
        q = q * (config.d_model / config.attention_width) ** 0.5
        heads = [padded_heads(part, config) for part in (q, k, v)]
        joined = torch.stack(heads, dim=target.stack_dim).flatten(0, 2)
        state[f"{qkv}.weight"], state[f"{qkv}.bias"] = joined[:, :-1], joined[:, -1]
        out_HKD = state[out].T.unflatten(0, (config.n_heads, -1))
        state[out] = padded_heads(out_HKD, config).flatten(0, 1).T
    return {target.name_of(name): target.stored(name, tensor) for name, tensor in state.items()}


def dense_heads(layer: Any, config: ModelConfig) -> Tensor:
    """Dense weight of Q, K or V by heads, the bias as last column: (H, K, D + 1)."""
    weight = layer.weight
    # Both architectures have a bias in Q, K and V.
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias
    heads_HKD = torch.cat((weight, bias[:, None]), dim=1).unflatten(0, (-1, config.head_width))
    return heads_HKD.expand(config.n_heads, -1, -1)


def reordered_pairs(heads_HKD: Tensor) -> Tensor:
    """Channels (2j, 2j+1) of each head as (j, j + K/2), which GPT-NeoX rotates together.

    Scores do not change, because Q and K are reordered alike.
    """
    return heads_HKD.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)


def fold_embed_factor(state: dict[str, Tensor], model: GPT) -> None:
    """Multiplies the token embedding by `embed_factor`, for which the architectures have no place,
    and cuts the padding rows off.

    A tied head is multiplied with it, so the last norm, which only the head reads, is divided by
    it.
    """
    factor, rows = model.embed_factor, slice(model.vocab_size)
    state["embedding.weight"] = factor * model.embedding.weight[rows]
    state["head.weight"] = state["embedding.weight"]
    if model.head is not None:
        state["head.weight"], factor = model.head.weight[rows], 1.0
    for name in ("norm.weight", "norm.bias"):
        state[name] = state[name] / factor


def padded_heads(heads_HKD: Tensor, config: ModelConfig) -> Tensor:
    """Heads of W channels, the new ones zero: the architectures have no narrower heads (`halved`)."""
    return F.pad(heads_HKD, (0, 0, 0, config.d_model // config.n_heads - heads_HKD.shape[1]))


def render_card(record: Record, exported: Any, config: ModelConfig, out: Path) -> str:
    """The model card of the folder `out`: what was trained, on what, its losses, the commit, the
    limits.
    """
    settings, summary, rotary = record.config, record.summary, config.position == "rotary"
    sizes = {
        "vocab_size": settings["tokenizer"]["vocab_size"],
        "max_len": settings["train"]["seq_len"],
    }
    tags = {
        "rotary-position-embedding": rotary,
        "complex-linear": config.projection.startswith("complex"),
    }
    return CARD.format(
        **settings | {"model": config},
        summary=summary,
        provenance=record.provenance,
        exported=exported,
        tags=", ".join(tag for tag, holds in tags.items() if holds),
        run_id=record.path.name,
        folder=out.resolve().name,
        trained=count_parameters(config, **sizes).total,
        written=exported.num_parameters(),
        measured="whole split" if summary["val_full"]["whole_split"] else "part of the split",
        edits=" with uncommitted changes" if record.provenance["dirty"] else "",
        end="" if rotary else ", where its positions end",
    )


def _check_folder(out: Path) -> None:
    """Raises UserError if `out` is a file, or holds anything but an earlier export."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    config = out / "config.json"
    if not config.is_file() or b'"crope_run"' not in config.read_bytes():
        raise UserError(f"{out}: exists and is no earlier export; choose another folder")
