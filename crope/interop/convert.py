"""Conversion of a trained RoPE model into a CRoPE model: Q, K and V are projected onto Eq. 30 and
fine-tuned.

Which channels of the residual stream form complex pairs is arbitrary, so the stream is first
rotated into the basis in which Q, K and V are closest to complex-linear. The rotation does not
change the model's function:

- LayerNorm subtracts the mean, so the rotation keeps the direction (1, ..., 1). LayerNorm gains are
  folded into the projections that read the norm; LayerNorm shifts are rotated with the stream.
- The values of each head are rotated as well, and the output projection rotates them back.
- A tied head cannot absorb the last norm's gain without changing the embedding, so the converted
  model has an untied head: V D weights more where the trained head was tied. All layers share one
  basis of the stream.

(A fixed matrix before Q, K and V would allow one basis per layer, but would store D^2 numbers to
save 1.5 D^2.)

Shapes: D width of the stream, E common width of Q, K and V.
"""

import copy
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from scipy.linalg import block_diag
from torch import Tensor, nn

from crope.config import Config
from crope.data.tokens import TokenSet
from crope.errors import UserError
from crope.files import sha256_file, write_json
from crope.interop.adapt import complexify
from crope.model.gpt import GPT, blocks_of
from crope.runs.compose import load_config
from crope.runs.load import load_run_tokens, load_trained
from crope.runs.record import Record
from crope.seeding import stream
from crope.theory.complex_maps import (
    StreamStructure,
    fit_stream,
    folded_qkv,
    keeping_mean,
    random_stream,
    rotate_heads,
    rotation_of,
)
from crope.train.checkpoint import TrainState, save_weights
from crope.train.device import prepare_device
from crope.train.loop import build_losses, build_optimizer, train_step
from crope.train.losses import full_loss

CHANCE_DRAWS = 3
QKV = ("q_proj", "k_proj", "v_proj")
MIN_GAIN = 1e-6  # LayerNorm shifts are divided by their gains


def convert(record: Record, *, steps: int, lr: float | None = None) -> dict[str, Any]:
    """Converts a run and fine-tunes it for `steps` updates at the constant rate `lr` (default: its
    last).

    Writes conversion.json and converted.pt (state dict of the fine-tuned CRoPE model, head untied)
    to the run's folder. Losses are full validation losses in nats per token, of the trained model
    and before and after fine-tuning of four arms:

    rope      real Q, K and V: what the fine-tuning itself is worth
    best      Q, K and V projected in the best basis: the converted model
    random    Q, K and V projected in a random basis
    fresh     complex Q, K and V at initial values: what the trained ones are worth

    `kept_share` holds complex-linear fractions of Q, K and V. The best basis gives more than 1/2
    for any matrices, so `best_by_chance` has the same for matrices whose channels were rotated at
    random within each head.

    Raises UserError if the run is not a complete RoPE run, if `steps` is negative or `lr` not above
    0, or if fine-tuning diverges.
    """
    config, path = load_config(record.config), record.path
    config.runtime.compile = "false"  # four models, each for a few hundred steps
    config.runtime.device = "auto"  # the run's may not be here
    if (config.model.position, config.model.projection) != ("rotary", "real"):
        raise UserError(
            f"{path}: not a RoPE run (model.position=rotary, model.projection=real); choose one to convert"
        )
    if steps < 0 or (lr is not None and not 0 < lr < math.inf):
        raise UserError(
            f"steps={steps}, lr={lr}: steps must be at least 0 and lr a finite number above 0"
        )
    rate = lr or config.train.learning_rate(config.train.max_steps - 1)
    model, tokens = load_trained(record), load_run_tokens(record)
    try:
        arms, kept_share = build_arms(model, config)
    except ValueError as error:
        raise UserError(f"{path}: {error}; convert another run") from error
    losses, tuned = {"trained": measure(model, tokens, config=config)}, {}
    for name, arm in arms.items():
        arm.to(model.head_weight.dtype)
        losses[name] = measure(arm, tokens, config=config)
        fine_tune(arm, tokens, config=config, steps=steps, lr=rate)
        tuned[name] = measure(arm, tokens, config=config)
        if not math.isfinite(tuned[name]):
            raise UserError(
                f"{path}: fine-tuning of '{name}' diverged at lr={rate}; choose a lower lr"
            )
    save_weights(path / "converted.pt", arms["best"])
    result = {
        "weights_sha256": record.summary["weights_sha256"],
        "converted_sha256": sha256_file(path / "converted.pt"),
        "steps": steps,
        "lr": rate,
        "kept_share": kept_share,
        "loss_nats": losses,
        "tuned_loss_nats": tuned,
    }
    write_json(path / "conversion.json", result)
    return result


def build_arms(model: GPT, config: Config) -> tuple[dict[str, GPT], dict[str, Any]]:
    """The four arms before fine-tuning, in float64, and `kept_share`.

    Raises ValueError if no basis is the best one.
    """
    layers, n_heads = folded_qkv(model), config.model.n_heads
    generator = stream(config.seed, "convert/structure")
    best, random = fit_stream(layers, n_heads), random_stream(layers, n_heads, generator)
    by_chance = [
        fit_stream(rotate_heads(layers, n_heads=n_heads, generator=generator), n_heads).kept
        for _ in range(CHANCE_DRAWS)
    ]
    rotated = rotate(model, best)
    arms = {
        "rope": rotated,
        "best": project(rotated),
        "random": project(rotate(model, random)),
        "fresh": with_initial_qkv(rotated, seed=config.seed),
    }
    return arms, {"best": best.kept, "random": random.kept, "best_by_chance": by_chance}


@torch.no_grad()
def rotate(model: GPT, structure: StreamStructure) -> GPT:
    """The same function in another basis, float64: real Q, K and V, gains 1, untied head.

    Raises UserError if a LayerNorm gain is zero, because the shift is divided by it.
    """
    rotated = copy.deepcopy(model).double()
    rotated.head = head = nn.Linear(model.head_weight.shape[1], len(model.head_weight), bias=False)
    head.weight = nn.Parameter(model.head_weight.detach().clone().double())
    rotation_DD = torch.from_numpy(rotation_of(keeping_mean(structure.basis)))
    for block, heads in zip(blocks_of(rotated), structure.heads, strict=True):
        attn = block.attn
        values_EE = torch.from_numpy(block_diag(*map(rotation_of, heads)))
        _rotate_outputs(attn.v_proj, values_EE)
        attn.out_proj.weight.copy_(attn.out_proj.weight @ values_EE.T)
        _rotate_inputs(block.attn_norm, attn.qkv, rotation_DD)
        _rotate_outputs(attn.out_proj, rotation_DD)
        _rotate_inputs(block.ffn_norm, (block.ffn_up,), rotation_DD)
        _rotate_outputs(block.ffn_down, rotation_DD)
    _rotate_inputs(rotated.norm, (head,), rotation_DD)
    rotated.embedding.weight.copy_(rotated.embedding.weight @ rotation_DD.T)
    return rotated


def _rotate_inputs(norm: nn.LayerNorm, readers: Iterable[Any], rotation_DD: Tensor) -> None:
    """gain n + shift = gain (n + shift / gain): readers absorb the gain, the rest rotates with the
    stream.
    """
    if norm.weight.abs().min() < MIN_GAIN:
        raise UserError(
            "a LayerNorm gain of this run is zero, so it cannot be folded into the next projection"
        )
    for reader in readers:
        reader.weight.copy_((reader.weight * norm.weight) @ rotation_DD.T)
    norm.bias.copy_(rotation_DD @ (norm.bias / norm.weight))
    norm.weight.fill_(1.0)


def _rotate_outputs(layer: Any, rotation: Tensor) -> None:
    layer.weight.copy_(rotation @ layer.weight)
    if layer.bias is not None:
        layer.bias.copy_(rotation @ layer.bias)


def project(model: GPT) -> GPT:
    """The CRoPE model nearest to a RoPE model: Q, K and V lose their antilinear part (least
    squares).
    """
    projected = copy.deepcopy(model)
    complexify(projected, pairing="interleaved", head_dim=model.config.head_width)
    return projected


def with_initial_qkv(model: GPT, *, seed: int) -> GPT:
    """A CRoPE model with Q, K and V at the initial values of this seed and the rest of `model`."""
    fresh = project(model)
    complex_config = replace(model.config, projection="complex")
    initial = GPT(complex_config, vocab_size=model.vocab_size, max_len=model.max_len, seed=seed)
    qkv = {
        name: value
        for name, value in initial.state_dict().items()
        if any(part in name for part in QKV)
    }
    fresh.load_state_dict(qkv, strict=False)
    return fresh


def fine_tune(model: GPT, tokens: TokenSet, *, config: Config, steps: int, lr: float) -> None:
    """`steps` updates in place at a constant rate, with a new AdamW, on the batches after the run's
    last.
    """
    train = replace(config.train, qkv_lr_factor=1.0)
    config, device = replace(config, train=train), prepare_device(config.runtime)
    model.to(device)
    state = TrainState(model, build_optimizer(model, train))
    loss = build_losses(model, config, device)[0]
    for step in range(train.max_steps, train.max_steps + steps):
        train_step(state, loss, tokens.train, config=config, step=step, lr=lr, device=device)


@torch.no_grad()
def measure(model: GPT, tokens: TokenSet, *, config: Config) -> float:
    """Full validation loss of the model on the run's validation split, in nats per token."""
    device = prepare_device(config.runtime)
    model.to(device).eval()
    loss = build_losses(model, config, device)[1]
    return full_loss(loss, tokens.validation, config=config, device=device)[0]
