"""Export of a finished run's weights: a folder that `transformers` opens, or one safetensors file.

The folder needs no code of this project. Rotary models become GPT-NeoX, models with absolute
positions or none GPT-2. Logits are equal to 1e-5 in float32 (tests/interop/test_export.py); at 1,024 tokens
GPT-NeoX's angles, computed in float32, add as much. What the two architectures do otherwise is
folded into the weights:

- Structured Q, K and V are written as their dense matrices (Eq. 30 and all others).
- GPT-NeoX rotates channels (j, j + K/2) of a head, our models (2j, 2j+1): rows of Q and K are
  reordered. Scores do not change, because Q and K are reordered alike.
- The token embedding is multiplied by `embed_factor`, and so is a tied head with it: the last norm,
  which the head reads, is divided by it.
- A single head of K and V (`multi_query`) is repeated for every head of Q.
- Narrower heads (`halved`) are padded with zeros from K to W channels, and Q is multiplied by
  sqrt(W / K), because the exported model divides scores by sqrt(W) instead of sqrt(K).

Shapes: D model width, H heads, K head width, W = D/H head width of the exported model, T tokens.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from crope.config import ModelConfig
from crope.errors import UserError
from crope.files import read_json, write_bytes, write_json, write_text
from crope.interop.adapt import merge
from crope.model.counting import count_parameters
from crope.model.gpt import GPT, blocks_of
from crope.model.positions import BASE
from crope.runs.compose import load_config
from crope.runs.load import load_run_tokens, load_trained
from crope.runs.record import Record, read_measurement

ABSOLUTE = ("none", "sinusoidal", "sinusoidal_balanced", "learned")

# Our modules -> those of the two architectures.
GPT_NEOX = {
    "embedding": "gpt_neox.embed_in",
    "blocks": "gpt_neox.layers",
    "attn_norm": "input_layernorm",
    "qkv": "attention.query_key_value",
    "out_proj": "attention.dense",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
    "norm": "gpt_neox.final_layer_norm",
}
GPT2 = {
    "embedding": "transformer.wte",
    "blocks": "transformer.h",
    "attn_norm": "ln_1",
    "qkv": "attn.c_attn",
    "out_proj": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
    "norm": "transformer.ln_f",
}

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
{rows}

Limits: trained on one small corpus, on sequences of {seq_len:,} tokens{end}; no special tokens, no padding token,
no instruction tuning and no filter of any kind. The text of the corpus has a licence of its own.
"""


def export(record: Record, out: Path, *, dense: bool, converted: bool = False) -> None:
    """Writes the weights of a run to a safetensors file, as trained or with dense Q, K and V.

    dense       every structured projection as its full matrix: a plain model (`projection=real`)
                with the same positions loads it and has equal outputs
    converted   the model that `convert` made of a RoPE run

    Tensor names are those of crope.model.gpt; embedding rows past the vocabulary are padding. The
    metadata hold the model's configuration (JSON under "model"), vocabulary size, context length
    and run id. Raises UserError if the weights or the package safetensors are missing, if `out` has
    another suffix or cannot be written, or, with `dense`, if the projection's width differs from
    d_model, which no plain model has.
    """
    if out.suffix != ".safetensors":
        raise UserError(f"{out}: not a safetensors file; choose a name that ends in .safetensors")
    model = load_trained(record, converted=converted)
    config = model.config
    if dense:
        if config.kv_width != config.d_model:
            raise UserError(
                f"{record.path}: {config.projection} Q, K and V have another width; export without"
                " --dense"
            )
        merge(model)
        config = replace(config, projection="real")
    try:
        from safetensors.torch import save
    except ImportError as error:
        raise _missing_package("safetensors") from error
    metadata = {
        "model": json.dumps(asdict(config)),
        "run_id": record.path.name,
        "vocab_size": str(model.vocab_size),
        "max_len": str(model.max_len),
    }
    # safetensors refuses tensors that share memory, as those of a model with shared layers do.
    state = {name: value.contiguous().clone() for name, value in model.state_dict().items()}
    data = save(state, metadata)
    try:
        write_bytes(out, data)
    except OSError as error:
        raise UserError(
            f"{out}: cannot be written ({error.strerror}); choose another name or folder"
        ) from error


def export_transformers(record: Record, out: Path, *, converted: bool = False) -> None:
    """Writes a run as a folder for `from_pretrained`: model, tokenizer, generation_config, card.

    An earlier export in `out` is overwritten. Raises UserError if neither GPT-NeoX nor GPT-2 has
    the model (see `refusal`), if weights, tokenizer or the package transformers are missing, or if
    `out` holds something else.
    """
    reason = refusal(load_config(record.config).model)
    if reason:
        raise UserError(f"{record.path.name}: {reason}; export it with --format safetensors")
    _check_folder(out)
    try:
        from transformers import GenerationConfig
        from transformers.utils.logging import disable_progress_bar
    except ImportError as error:
        raise _missing_package("transformers") from error
    disable_progress_bar()
    model, tokens = load_trained(record, converted=converted), load_run_tokens(record)
    exported = as_transformers(model)
    exported.config.crope_run = record.path.name
    exported.generation_config = GenerationConfig(do_sample=True, max_length=model.max_len)
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.max_len,
        "clean_up_tokenization_spaces": False,
    }
    try:
        exported.save_pretrained(out)
        (out / "model.safetensors").chmod(0o644)  # written as 0600
        write_bytes(out / "tokenizer.json", (tokens.folder / "tokenizer.json").read_bytes())
        write_json(out / "tokenizer_config.json", tokenizer)
        write_text(out / "README.md", render_card(record, exported, model.config, out))
    except OSError as error:
        raise UserError(
            f"{out}: cannot be written ({error.strerror or error}); choose another folder"
        ) from error


def refusal(config: ModelConfig) -> str:
    """Why neither GPT-NeoX nor GPT-2 can compute a model; empty if one can."""
    if config.attention != "softmax":
        return f"attention={config.attention}: GPT-NeoX and GPT-2 have softmax attention only"
    if config.position not in ("rotary", *ABSOLUTE):
        return (
            f"position={config.position}: GPT-NeoX has rotary positions only, GPT-2 absolute ones or"
            " none"
        )
    if config.attention_width > config.d_model:
        return (
            f"projection={config.projection}: its heads have {config.head_width} channels, those of"
            f" GPT-NeoX and GPT-2 d_model / n_heads = {config.d_model // config.n_heads}"
        )
    return ""


def as_transformers(model: GPT) -> Any:
    """The `transformers` model with equal logits: GPT-NeoX for rotary positions, else GPT-2."""
    build = _gpt_neox if model.config.position == "rotary" else _gpt2
    exported = build(model)
    exported.load_state_dict(weights_for(model))
    return exported.eval()


def weights_for(model: GPT) -> dict[str, Tensor]:
    """The state dict of the `transformers` model."""
    config = model.config
    rotary = config.position == "rotary"
    names = GPT_NEOX if rotary else GPT2
    embedding = model.embedding.weight[: model.vocab_size] * model.embed_factor
    head, head_factor = embedding, model.embed_factor
    if model.head is not None:
        head, head_factor = model.head.weight[: model.vocab_size], 1.0
    state = {
        f"{names['embedding']}.weight": embedding,
        f"{names['norm']}.weight": model.norm.weight / head_factor,
        f"{names['norm']}.bias": model.norm.bias / head_factor,
        "lm_head.weight": head,
    }
    if not rotary:
        no_tokens_1TD = torch.zeros(1, model.max_len, config.d_model)
        state["transformer.wpe.weight"] = model.positions.embed(no_tokens_1TD)[0]
    for index, block in enumerate(blocks_of(model)):
        heads = [
            heads_of(layer, config, rotated=rotary and layer is not block.attn.v_proj)
            for layer in block.attn.qkv
        ]
        heads[0] = heads[0] * (config.d_model / config.attention_width) ** 0.5
        # GPT-NeoX: Q, K and V of each head in turn; GPT-2: all heads of Q, of K, of V.
        qkv = torch.stack(heads, dim=1 if rotary else 0).flatten(0, 2)
        out_HKD = block.attn.out_proj.weight.T.unflatten(0, (config.n_heads, -1))
        out = zero_padded(out_HKD, config).flatten(0, 1).T
        layers = {
            "attn_norm": (block.attn_norm.weight, block.attn_norm.bias),
            "qkv": (qkv[:, :-1], qkv[:, -1]),
            "out_proj": (out, block.attn.out_proj.bias),
            "ffn_norm": (block.ffn_norm.weight, block.ffn_norm.bias),
            "ffn_up": (block.ffn_up.weight, block.ffn_up.bias),
            "ffn_down": (block.ffn_down.weight, block.ffn_down.bias),
        }
        prefix = f"{names['blocks']}.{index}"
        for name, (weight, bias) in layers.items():
            if not rotary and weight.dim() == 2:
                weight = weight.T  # GPT-2's layers hold it as (inputs, outputs)
            state[f"{prefix}.{names[name]}.weight"] = weight
            state[f"{prefix}.{names[name]}.bias"] = bias
    return {name: value.detach() for name, value in state.items()}


def heads_of(layer: Any, config: ModelConfig, *, rotated: bool) -> Tensor:
    """Dense weight of Q, K or V by heads, the bias as last column: (H, W, D + 1).

    rotated   channels (2j, 2j+1) of each head become (j, j + K/2), as GPT-NeoX pairs them
    """
    weight = layer.weight
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias
    heads = torch.cat((weight, bias[:, None]), dim=1).unflatten(0, (-1, config.head_width))
    if rotated:
        heads = heads.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)
    return zero_padded(heads, config).expand(config.n_heads, -1, -1)


def zero_padded(heads_HKD: Tensor, config: ModelConfig) -> Tensor:
    """Heads of the width W = d_model / n_heads, with zeros in the new channels."""
    return F.pad(heads_HKD, (0, 0, 0, config.d_model // config.n_heads - heads_HKD.shape[1]))


def _gpt_neox(model: GPT) -> Any:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = model.config
    share = config.attention_width / config.d_model  # of a head that is rotated; the rest is zero
    neox = GPTNeoXConfig(
        vocab_size=model.vocab_size,
        hidden_size=config.d_model,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        intermediate_size=config.ffn_width,
        max_position_embeddings=model.max_len,
        hidden_act="gelu_pytorch_tanh",
        layer_norm_eps=model.norm.eps,
        hidden_dropout=config.dropout,
        attention_dropout=config.dropout,
        use_parallel_residual=False,
        tie_word_embeddings=config.tied_head,
        bos_token_id=None,
        eos_token_id=None,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": BASE,
            "partial_rotary_factor": share,
        },
    )
    # Versions before 5 read these two, and would rotate a quarter of each head without them.
    neox.rotary_pct, neox.rotary_emb_base = share, BASE
    return GPTNeoXForCausalLM(neox)


def _gpt2(model: GPT) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = model.config
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=model.vocab_size,
            n_positions=model.max_len,
            n_embd=config.d_model,
            n_layer=config.n_layers,
            n_head=config.n_heads,
            n_inner=config.ffn_width,
            activation_function="gelu_pytorch_tanh",
            layer_norm_epsilon=model.norm.eps,
            resid_pdrop=config.dropout,
            embd_pdrop=config.dropout,
            attn_pdrop=config.dropout,
            tie_word_embeddings=config.tied_head,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def render_card(record: Record, exported: Any, config: ModelConfig, out: Path) -> str:
    """The model card of the folder `out`: what was trained, on what, its losses, the commit, the
    limits.
    """
    summary, train = record.summary, record.config["train"]
    provenance, tokenizer = record.provenance, record.config["tokenizer"]
    loss, model = summary["val_full"]["final_nats"], summary["model"]
    converted = config.projection != record.config["model"]["projection"]
    if converted:
        conversion = read_measurement(record.path / "conversion.json", summary)
        loss = conversion["tuned_loss_nats"]["best"]
        model = f"{model} converted to CRoPE (tuned for {conversion['steps']} steps)"
    measured = "whole split" if summary["val_full"]["whole_split"] else "part of the split"
    edits = " with uncommitted changes" if provenance["dirty"] else ""
    trained = count_parameters(config, vocab_size=tokenizer["vocab_size"], max_len=train["seq_len"])
    rows = {
        "model": f"{model}: position {config.position}, projection {config.projection}",
        "size": f"{config.n_layers} layers, {config.n_heads} heads, width {config.d_model}",
        "parameters": f"{trained.total:,} trained, {exported.num_parameters():,} in this form"
        f" ({exported.config.model_type}, with dense Q, K and V)",
        "data": f"{summary['dataset']}, {provenance['data']['splits']['train']['tokens']:,} tokens",
        "tokenizer": f"byte-level BPE, {tokenizer['vocab_size']:,} entries ({tokenizer['name']})",
        "training": f"{train['max_steps']:,} steps of {train['batch_size']} x {train['seq_len']:,}"
        f" tokens, AdamW, learning rate {train['lr']:g}, seed {record.config['seed']},"
        f" {train['precision']}; scale {summary['scale']}",
        "validation loss": f"{loss:.4f} nats per token ({measured}, {train['precision']})",
        "commit": f"{provenance['commit']}{edits}",
    }
    if not converted:  # it was not measured again
        rows["training loss"] = f"{summary['train']['final_nats']:.4f} nats per token"
    tags = {
        "rotary-position-embedding": config.position == "rotary",
        "complex-linear": config.projection.startswith("complex"),
    }
    return CARD.format(
        tags=", ".join(tag for tag, holds in tags.items() if holds),
        run_id=record.path.name,
        folder=out.resolve().name,
        rows="\n".join(f"| {name} | {text} |" for name, text in rows.items()),
        seq_len=train["seq_len"],
        end="" if config.position == "rotary" else ", where its positions end",
    )


def _check_folder(out: Path) -> None:
    """Raises UserError if `out` is a file, or holds anything but an earlier export."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        earlier = read_json(out / "config.json")
    except (OSError, ValueError):
        earlier = {}
    if "crope_run" not in earlier:
        raise UserError(f"{out}: exists and is no earlier export; choose another folder")


def _missing_package(name: str) -> UserError:
    return UserError(f"the package {name} is missing; install it: pip install {name}")
