"""Export of a finished run to a folder that `transformers` opens without this project's code.

Rotary models become GPT-NeoX, models with absolute positions or none GPT-2. Logits are equal to
1e-5 in float32; at 1,024 tokens GPT-NeoX's angles, computed in float32, add as much. Structured Q,
K and V are written as dense matrices, a single head of K and V once for every head of Q.

Shapes: D model width, H heads, K head width, T tokens.
"""

import re
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crope.config import ModelConfig
from crope.errors import UserError
from crope.files import write_bytes, write_json, write_text
from crope.model.gpt import GPT
from crope.records.store import Record
from crope.runs.load import load_run_tokens, load_trained

# Values of `model.position` -> model_type of the architecture that computes them.
ARCHITECTURES = {
    "rotary": "gpt_neox",
    "none": "gpt2",
    "sinusoidal": "gpt2",
    "sinusoidal_balanced": "gpt2",
    "learned": "gpt2",
}
# Parts of the dotted names of our tensors -> what an architecture calls them. Q, K and V are one
# layer in both.
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

# A control character (byte 0x14), which byte-level vocabularies have and texts do not. Programs such
# as lm-eval pad with it and put it before a text; a token more would change all probabilities.
END = "Ĕ"
CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
license: mit
---
# {run.run_id}

A small decoder of the reproduction of "CRoPE: Efficient Parametrization of Rotary Positional Embedding".
It is one run of an experiment that compares position schemes, not a model for use.

| | |
|---|---|
| model | {run.run[model]}: position {run.config[model][position]}, projection {run.config[model][projection]} |
| size | {run.config[model][n_layers]} layers, {run.config[model][n_heads]} heads, width {run.config[model][d_model]} |
| parameters | {run.summary[parameters][total]:,} trained; here Q, K and V are dense |
| data | {run.run[dataset]}, {run.provenance[data][splits][train][tokens]:,} tokens |
| tokenizer | byte-level BPE, {run.config[tokenizer][vocab_size]:,} entries ({run.config[tokenizer][name]}) |
| training | {run.config[train][max_steps]:,} steps, {run.config[train][precision]} |
| batch | {run.config[train][batch_size]} x {run.config[train][seq_len]:,} tokens |
| learning rate, seed, scale | {run.config[train][lr]:g}, seed {run.config[seed]}, {run.run[scale]} |
| validation loss | {run.summary[val_full][final_nats]:.4f} nats per token |
| validation tokens | {run.summary[val_full][tokens]:,} |
| commit | {run.provenance[commit]} (uncommitted changes: {run.provenance[dirty]}) |

Limits: trained on one small corpus, on sequences of {run.config[train][seq_len]:,} tokens; no instruction
tuning and no filter of any kind. The end and padding token is a control character that no text had. The text of the
corpus has a licence of its own.
"""


def export_transformers(record: Record, out: Path) -> None:
    """Writes a run as a folder for `from_pretrained`: model, tokenizer, generation settings, card.

    An earlier export in `out` is replaced when all of the new one is written. Raises UserError if
    neither GPT-NeoX nor GPT-2 has the model, if weights or tokenizer are missing, or if `out` holds
    something else.
    """
    from transformers import GenerationConfig

    found, new = out / "config.json", out / ".export"
    earlier = new.is_dir() or (found.is_file() and "crope_run" in found.read_text())
    if any(out.glob("*")) and not earlier:
        raise UserError(f"{out} is not empty and no earlier export; choose another folder")
    model, tokens = load_trained(record), load_run_tokens(record)
    exported = as_transformers(model)
    exported.config.crope_run = record.run_id  # by which the next export knows this one
    # Half of the context, so that a prompt may be as long: past the end GPT-2 has no positions.
    length = max(1, model.max_len // 2)
    exported.generation_config = GenerationConfig(do_sample=True, max_new_tokens=length)
    shutil.rmtree(new, ignore_errors=True)  # of one that was cut off
    exported.save_pretrained(new)
    # The file itself: a tokenizer that transformers saves again may split text differently.
    write_bytes(new / "tokenizer.json", (tokens.folder / "tokenizer.json").read_bytes())
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.max_len,
        "eos_token": END,
        "pad_token": END,
        "split_special_tokens": True,  # the letter of this name is text
        "clean_up_tokenization_spaces": False,  # True takes spaces before commas away
    }
    write_json(new / "tokenizer_config.json", tokenizer)
    write_text(new / "README.md", CARD.format(run=record))
    found.unlink(missing_ok=True)  # first and last: without it nothing opens files of two runs
    for file in sorted(new.iterdir(), key=lambda file: file.name == found.name):
        file.replace(out / file.name)
    new.rmdir()


def architecture_of(config: ModelConfig) -> str:
    """Returns the model_type that computes a model. Raises UserError if neither does."""
    reason = f"position={config.position}"
    if config.attention != "softmax":
        reason = f"attention={config.attention}"
    elif config.attention_width != config.d_model:
        reason = f"projection={config.projection}"  # both have heads of D/H channels
    elif config.position in ARCHITECTURES:
        return ARCHITECTURES[config.position]
    raise UserError(f"{reason}: export to GPT-NeoX or GPT-2 does not have it; export another run")


def as_transformers(model: GPT) -> Any:
    """Builds the `transformers` model with equal logits, in evaluation mode."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config, kind = model.config, architecture_of(model.config)
    base = config.rope_base
    rotation = {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": 1.0}
    own = {
        "gpt_neox": {
            "intermediate_size": config.ffn_width,
            "hidden_act": "gelu_pytorch_tanh",
            "layer_norm_eps": model.norm.eps,
            "hidden_dropout": config.dropout,
            "attention_dropout": config.dropout,
            "use_parallel_residual": False,
            "rope_parameters": rotation,
        },
        "gpt2": {
            "n_inner": config.ffn_width,
            "activation_function": "gelu_pytorch_tanh",
            "layer_norm_epsilon": model.norm.eps,
            "resid_pdrop": config.dropout,
            "embd_pdrop": config.dropout,
            "attn_pdrop": config.dropout,
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
        exported_config.rotary_pct, exported_config.rotary_emb_base = 1.0, base
    exported = AutoModelForCausalLM.from_config(exported_config)
    exported.load_state_dict(weights_for(model, kind))
    return exported.eval()


@torch.no_grad()
def weights_for(model: GPT, kind: str) -> dict[str, Tensor]:
    """Returns the `transformers` model's state dict, with the differences of its architecture
    folded into the weights.
    """
    config = model.config
    state = model.state_dict()
    # The factor of the embedding, which neither has; the padding rows are cut off. A tied head is
    # multiplied with it, so the last norm, which only the head reads, is divided by it.
    factor, rows = model.embed_factor, slice(model.vocab_size)
    state["embedding.weight"] = factor * model.embedding.weight[rows]
    state["head.weight"] = model.head_weight[rows]
    if model.head is None:
        state["head.weight"] = state["embedding.weight"]
        for name in ("norm.weight", "norm.bias"):
            state[name] = state[name] / factor
    if kind == "gpt2":
        # It adds a trained table: fixed sinusoids, or zeros for no positions, are one too.
        no_tokens_1TD = torch.zeros(1, model.max_len, config.d_model)
        state["positions.weight"] = model.positions.embed(no_tokens_1TD)[0]
    for index, block in enumerate(model.blocks):
        attention: Any = block.attn  # nn.ModuleList loses the type
        q, k, v = (dense_heads(layer, config) for layer in attention.qkv)
        if kind == "gpt_neox":
            # Each head of Q stands beside its K and V.
            rows_ED = torch.stack((reordered_pairs(q), reordered_pairs(k), v), dim=1).flatten(0, 2)
        else:
            rows_ED = torch.stack((q, k, v)).flatten(0, 2)
        name = f"blocks.{index}.attn.qkv"
        state[f"{name}.weight"], state[f"{name}.bias"] = rows_ED[:, :-1], rows_ED[:, -1]
    named = {}
    for name, tensor in state.items():
        if re.search(r"\.[qkv]_proj\.", name):
            continue
        theirs = ".".join(NAMES[kind].get(part, part) for part in name.split("."))
        # GPT-2's linear layers hold their weight as (inputs, outputs).
        transposed = kind == "gpt2" and re.search(r"(qkv|out_proj|ffn_up|ffn_down)\.weight", name)
        named[theirs] = tensor.T if transposed else tensor
    return named


def dense_heads(layer: Any, config: ModelConfig) -> Tensor:
    """Returns the dense weight of Q, K or V by heads, the bias as last column: (H, K, D + 1)."""
    weight = layer.weight
    # Both architectures have a bias in Q, K and V.
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias
    heads_HKD = torch.cat((weight, bias[:, None]), dim=1).unflatten(0, (-1, config.head_width))
    return heads_HKD.expand(config.n_heads, -1, -1)


def reordered_pairs(heads_HKD: Tensor) -> Tensor:
    """Moves channels (2j, 2j+1) of each head to (j, j + K/2), which GPT-NeoX rotates together.

    Scores do not change, because Q and K are reordered alike.
    """
    return heads_HKD.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)
