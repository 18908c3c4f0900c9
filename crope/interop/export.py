"""Export of a finished run to a folder that `transformers` opens without code of this project.

Rotary models become GPT-NeoX, models with absolute positions or none GPT-2. Logits are equal to
1e-5 in float32 (tests/interop/test_export.py); at 1,024 tokens GPT-NeoX's angles, computed in
float32, add as much. Structured Q, K and V are written as their dense matrices (Eq. 30 and all
others), a single head of K and V (`multi_query`) once for every head of Q. What the two
architectures do otherwise is folded into the weights: `reordered_pairs`, `fold_embed_factor`.

Shapes: D model width, H heads, K head width, T tokens.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crope.config import ModelConfig
from crope.errors import UserError
from crope.files import write_bytes, write_json, write_text
from crope.interop.adapt import merge
from crope.interop.fused import PARTS, separate_layers
from crope.model.gpt import GPT
from crope.model.positions import BASE
from crope.runs.compose import load_config
from crope.runs.load import load_run_tokens, load_trained
from crope.runs.record import Record

# Values of `model.position` -> model_type of the architecture that computes them.
ARCHITECTURES = {
    "rotary": "gpt_neox",
    "none": "gpt2",
    "sinusoidal": "gpt2",
    "sinusoidal_balanced": "gpt2",
    "learned": "gpt2",
}
# Parts of the dotted names of our tensors -> what an architecture calls them. Q, K and V are one
# layer in both, which is separated while the weights are set.
NAMES = {
    "gpt_neox": {
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
    "gpt2": {
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
}

CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
license: mit
---
# {run_id}

A small decoder of the reproduction of "CRoPE: Efficient Parametrization of Rotary Positional Embedding".
It is one run of an experiment that compares position schemes, not a model for use.

    from transformers import pipeline

    pipeline("text-generation", model="{folder}")("The")

| | |
|---|---|
| model | {summary[model]}: position {model[position]}, projection {model[projection]} |
| size | {model[n_layers]} layers, {model[n_heads]} heads, width {model[d_model]} |
| parameters | {summary[parameters][total]:,} trained, {written:,} in this form ({kind}, with dense Q, K and V) |
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
    something else; OSError if it cannot be written.
    """
    architecture_of(load_config(record.config).model)  # before anything is read
    found = out / "config.json"
    earlier = found.is_file() and b'"crope_run"' in found.read_bytes()
    if not earlier and out.exists() and any(out.iterdir()):
        raise UserError(f"{out}: exists and is no earlier export; choose another folder")
    try:
        from transformers import GenerationConfig
    except ImportError as error:
        raise UserError(
            "the package transformers is missing; install it: pip install transformers"
        ) from error
    model, tokens = load_trained(record), load_run_tokens(record)
    exported = as_transformers(model)
    exported.config.crope_run = record.path.name  # by which the next export knows this one
    # Half of the context, so that a prompt may be as long: past the end GPT-2 has no positions. A
    # max_length would make transformers warn at every call with max_new_tokens.
    generation = GenerationConfig(do_sample=True, max_new_tokens=max(1, model.max_len // 2))
    exported.generation_config = generation
    exported.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)  # written as 0600
    # The file itself: a tokenizer that transformers saves again may split text differently.
    write_bytes(out / "tokenizer.json", (tokens.folder / "tokenizer.json").read_bytes())
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.max_len,
        "clean_up_tokenization_spaces": False,  # True takes spaces before commas away
    }
    write_json(out / "tokenizer_config.json", tokenizer)
    write_text(out / "README.md", render_card(record, exported, out))


def architecture_of(config: ModelConfig) -> str:
    """The model_type that computes a model. Raises UserError if neither does."""
    reason = f"position={config.position}"
    if config.attention != "softmax":
        reason = f"attention={config.attention}"
    elif config.attention_width != config.d_model:
        reason = f"projection={config.projection}"  # both have heads of D/H channels
    elif config.position in ARCHITECTURES:
        return ARCHITECTURES[config.position]
    raise UserError(f"{reason}: neither GPT-NeoX nor GPT-2 has it; export another run")


def as_transformers(model: GPT) -> Any:
    """The `transformers` model with equal logits, in evaluation mode."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config, kind = model.config, architecture_of(model.config)
    activation, dropout = "gelu_pytorch_tanh", config.dropout
    rotation = {"rope_type": "default", "rope_theta": BASE, "partial_rotary_factor": 1.0}
    own = {
        "gpt_neox": {
            "intermediate_size": config.ffn_width,
            "hidden_act": activation,
            "layer_norm_eps": model.norm.eps,
            "hidden_dropout": dropout,
            "attention_dropout": dropout,
            "use_parallel_residual": False,
            "rope_parameters": rotation,
        },
        "gpt2": {
            "n_inner": config.ffn_width,
            "activation_function": activation,
            "layer_norm_epsilon": model.norm.eps,
            "resid_pdrop": dropout,
            "embd_pdrop": dropout,
            "attn_pdrop": dropout,
        },
    }
    exported_config = AutoConfig.for_model(
        kind,
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
        **own[kind],
    )
    if kind == "gpt_neox":
        # Versions before 5 read these two, and would rotate a quarter of each head without them.
        exported_config.rotary_pct, exported_config.rotary_emb_base = 1.0, BASE
    exported = AutoModelForCausalLM.from_config(exported_config)
    separate_layers(exported)
    exported.load_state_dict(weights_for(model, kind))
    merge(exported)
    return exported.eval()


@torch.no_grad()
def weights_for(model: GPT, kind: str) -> dict[str, Tensor]:
    """The state dict of the `transformers` model whose Q, K and V are separate."""
    config = model.config
    state = {}
    for name, tensor in model.state_dict().items():
        if set(PARTS).isdisjoint(name.split(".")):
            state[name] = tensor
    fold_embed_factor(state, model)
    if kind == "gpt2":
        # It adds a trained table: fixed sinusoids, or zeros for no positions, are one too.
        no_tokens_1TD = torch.zeros(1, model.max_len, config.d_model)
        state["positions.weight"] = model.positions.embed(no_tokens_1TD)[0]
    for index, block in enumerate(model.blocks):
        attention: Any = block.attn  # nn.ModuleList loses the type
        for part, layer in zip(PARTS, attention.qkv, strict=True):
            heads_HKD = dense_heads(layer, config)
            if kind == "gpt_neox" and part != "v_proj":
                heads_HKD = reordered_pairs(heads_HKD)
            rows = heads_HKD.flatten(0, 1)
            name = f"blocks.{index}.attn.qkv.{part}"
            state[f"{name}.weight"], state[f"{name}.bias"] = rows[:, :-1], rows[:, -1]
    named = {}
    for name, tensor in state.items():
        theirs = ".".join(NAMES[kind].get(part, part) for part in name.split("."))
        # GPT-2's other linear layers hold their weight as (inputs, outputs).
        transposed = name.endswith(("out_proj.weight", "ffn_up.weight", "ffn_down.weight"))
        named[theirs] = tensor.T if kind == "gpt2" and transposed else tensor
    return named


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
    state["head.weight"] = model.head_weight[rows]
    if model.head is None:
        state["head.weight"] = state["embedding.weight"]
        for name in ("norm.weight", "norm.bias"):
            state[name] = state[name] / factor


def render_card(record: Record, exported: Any, out: Path) -> str:
    """The model card of the folder `out`: what was trained, on what, its losses, the commit, the
    limits.
    """
    whole = record.summary["val_full"]["whole_split"]
    return CARD.format(
        **record.config,
        summary=record.summary,
        provenance=record.provenance,
        kind=exported.config.model_type,
        run_id=record.path.name,
        folder=out.resolve().name,
        written=exported.num_parameters(),
        measured="whole split" if whole else "part of the split",
        edits=" with uncommitted changes" if record.provenance["dirty"] else "",
        end="" if record.config["model"]["position"] == "rotary" else ", where its positions end",
    )
