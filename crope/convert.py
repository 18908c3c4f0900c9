"""A trained RoPE model made complex: Q, K and V projected onto Eq. 30, and tuned there.

The residual stream is turned by a rotation that carries its best complex structure (crope/complex_structure.py) to the
channel pairs of Eq. 30. The model's function stays as it was, and once projected it is an ordinary CRoPE model:

- LayerNorm takes away the mean, so the rotation keeps the direction (1, ..., 1). Gains are folded into the maps that
  read the norm; shifts turn with the stream.
- The values of a head are turned as well, and the output projection turns them back.
- A tied head cannot take the last norm's gain without changing the embedding, so the converted model has a head of its
  own: V D weights more where the trained head was tied, none elsewhere. There is one structure for all layers.

The other way leaves the stream alone and puts a fixed orthogonal matrix before Q, K and V. Then each layer could have
its own structure (`kept_share.by_layer` of the report), but would store D^2 more numbers to save 1.5 D^2.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from crope.checkpoint import TrainState, save_weights
from crope.complex_structure import QKV, StreamStructure, fit_stream, keeping_mean, random_stream, rotation_of
from crope.config import Config, ModelConfig
from crope.data.tokens import TokenSet
from crope.errors import UserError
from crope.evaluate import full_loss
from crope.export import QKV_NAMES, with_dense_qkv
from crope.model.complex_linear import ComplexLinear
from crope.model.counting import count_parameters
from crope.model.gpt import GPT, Block
from crope.optim import build_optimizer
from crope.record import write_json
from crope.seeding import stream
from crope.theory.trained_share import turned as turned_maps
from crope.trained import load_config, load_model, load_run_tokens
from crope.trainer import build_loss, prepare_device, train_step

CHANCE_DRAWS = 3
LEAST_GAIN = 1e-6  # a shift is divided by its gain


def convert(path: Path, *, steps: int, lr: float | None = None) -> dict[str, Any]:
    """Converts the run in `path` and tunes it for `steps` updates at the constant rate `lr` (default: the run's last).

    Leaves in `path` conversion.json, converted.pt (state dict of the tuned CRoPE model, head untied) and
    converted_dense.pt (the same for a RoPE model). Losses are the run's own full validation, in nats per token: of the
    trained model, and before and after the same tuning of

    rope      the turned model with its real Q, K and V: what the tuning is worth by itself
    best      Q, K and V projected in the best structure: the converted model
    random    Q, K and V projected in a random structure
    fresh     complex Q, K and V at initial values: what the trained ones are worth

    A best structure keeps more than half of any maps: `kept_share` also has what it keeps where the channels of each
    head were turned away from the rotation's pairs at random (`best_by_chance`). No more than that is no structure.

    Raises UserError where the run is not a complete RoPE run, or where the tuning diverges.
    """
    config = load_config(path)
    if (config.model.position, config.model.projection) != ("rotary", "real"):
        raise UserError(f"{path}: conversion starts from a RoPE run (model.position=rotary, model.projection=real)")
    model, tokens = load_model(path, config), load_run_tokens(config)
    decay = config.train.lr_gamma ** ((config.train.max_steps - 1) // config.train.lr_step_size)
    rate = config.train.lr * decay if lr is None else lr
    layers, n_heads, draw = folded_qkv(model), config.model.n_heads, stream(config.seed, "convert/structure")
    best = fit_stream(layers, n_heads)
    chance = random_stream(layers, n_heads, draw)
    unrelated = [turned_maps(layers, n_heads=n_heads, generator=draw) for _ in range(CHANCE_DRAWS)]
    turned = turn(model, best)
    arms = {
        "rope": turned,
        "best": project(turned),
        "random": project(turn(model, chance)),
        "fresh": with_initial_qkv(project(turned), config.model, seed=config.seed),
    }
    result: dict[str, Any] = {
        "steps": steps,
        "lr": rate,
        "kept_share": {
            "best": best.kept,
            "random": chance.kept,
            "by_layer": [fit_stream([layer], n_heads).kept for layer in layers],
            "best_by_chance": [fit_stream(maps, n_heads).kept for maps in unrelated],
        },
        "parameters": {"trained": asdict(count_parameters(model)), "converted": asdict(count_parameters(arms["best"]))},
        "loss_nats": {"trained": measure(model, tokens, config=config)},
        "tuned_loss_nats": {},
    }
    for name, arm in arms.items():
        arm.to(model.head_weight.dtype)
        result["loss_nats"][name] = measure(arm, tokens, config=config)
        tune(arm, tokens, config=config, steps=steps, lr=rate)
        result["tuned_loss_nats"][name] = measure(arm, tokens, config=config)
        if not math.isfinite(result["tuned_loss_nats"][name]):
            raise UserError(f"{path}: tuning of '{name}' diverged at lr {rate}; take a lower --lr")
    save_weights(path / "converted.pt", arms["best"])
    save_weights(path / "converted_dense.pt", with_dense_qkv(arms["best"]))
    write_json(path / "conversion.json", result)
    return result


def folded_qkv(model: GPT) -> list[QKV]:
    """Q, K and V of each layer as they act on the normalised stream, the norm's gain folded in; float64."""
    found = []
    for block in _blocks(model):
        maps = [cast(Tensor, getattr(block.attn, name).weight) * block.attn_norm.weight for name in QKV_NAMES]
        q, k, v = (weight.detach().double().cpu().numpy() for weight in maps)
        found.append((q, k, v))
    return found


@torch.no_grad()
def turn(model: GPT, structure: StreamStructure) -> GPT:
    """The same function in the structure's coordinates, float64: real Q, K and V, gains 1, a head of its own.

    Raises UserError where a gain is zero: the shift behind it has no place before it.
    """
    turned = copy.deepcopy(model).double()
    head = nn.Linear(model.head_weight.shape[1], len(model.head_weight), bias=False)
    head.weight = nn.Parameter(model.head_weight.detach().clone().double())
    turned.head = head
    rotation_DD = torch.from_numpy(rotation_of(keeping_mean(structure.basis)))
    for block, heads in zip(_blocks(turned), structure.heads, strict=True):
        attn = block.attn
        values_EE = torch.block_diag(*(torch.from_numpy(rotation_of(basis)) for basis in heads))
        _turn_outputs(attn.v_proj, values_EE)
        attn.out_proj.weight.copy_(attn.out_proj.weight @ values_EE.T)
        _turn_inputs(block.attn_norm, (attn.q_proj, attn.k_proj, attn.v_proj), rotation_DD)
        _turn_outputs(attn.out_proj, rotation_DD)
        _turn_inputs(block.ffn_norm, (block.ffn_up,), rotation_DD)
        _turn_outputs(block.ffn_down, rotation_DD)
    _turn_inputs(turned.norm, (head,), rotation_DD)
    turned.embedding.weight.copy_(turned.embedding.weight @ rotation_DD.T)
    return turned


def _turn_inputs(norm: nn.LayerNorm, readers: Iterable[Any], rotation_DD: Tensor) -> None:
    """gain n + shift is gain (n + shift / gain): the gain goes into the readers, the rest turns with the stream."""
    if norm.weight.abs().min() < LEAST_GAIN:
        raise UserError("a LayerNorm gain of this run is zero and cannot be folded into the maps behind it")
    for reader in readers:
        reader.weight.copy_((reader.weight * norm.weight) @ rotation_DD.T)
    norm.bias.copy_(rotation_DD @ (norm.bias / norm.weight))
    norm.weight.fill_(1.0)


def _turn_outputs(layer: Any, rotation: Tensor) -> None:
    layer.weight.copy_(rotation @ layer.weight)
    if layer.bias is not None:
        layer.bias.copy_(rotation @ layer.bias)


def project(model: GPT) -> GPT:
    """The CRoPE model nearest to a real one: Q, K and V lose their antilinear part."""
    lean = copy.deepcopy(model)
    for block in _blocks(lean):
        for name in QKV_NAMES:
            setattr(block.attn, name, ComplexLinear.from_linear(getattr(block.attn, name)))
    return lean


def with_initial_qkv(model: GPT, config: ModelConfig, *, seed: int) -> GPT:
    """A CRoPE model whose Q, K and V stand at the initial values of this seed, the rest as in `model`."""
    lean = replace(config, projection="complex", tied_head=False)
    fresh = GPT(lean, vocab_size=model.vocab_size, max_len=model.max_len, seed=seed).to(model.head_weight.dtype)
    rest = {name: value for name, value in model.state_dict().items() if not any(part in name for part in QKV_NAMES)}
    fresh.load_state_dict(fresh.state_dict() | rest)
    return fresh


def tune(model: GPT, tokens: TokenSet, *, config: Config, steps: int, lr: float) -> None:
    """`steps` updates in place, with the run's batch size and fresh AdamW, on the batches that follow its last."""
    train = replace(config.train, lr=lr, lr_gamma=1.0)
    config, device = replace(config, train=train), prepare_device(config)
    model.to(device)
    state, loss_function = TrainState(model, *build_optimizer(model, train)), build_loss(model, config, device)
    for step in range(train.max_steps, train.max_steps + steps):
        train_step(state, loss_function, tokens.train, config=config, step=step, device=device)


@torch.no_grad()
def measure(model: GPT, tokens: TokenSet, *, config: Config) -> float:
    """The run's full validation loss, in nats per token."""
    device = prepare_device(config)
    model.to(device).eval()
    return full_loss(build_loss(model, config, device), tokens.validation, config=config, device=device)[0]


def _blocks(model: GPT) -> Iterable[Block]:
    return cast(Iterable[Block], model.blocks)
