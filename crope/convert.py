"""Conversion of a trained RoPE model into a CRoPE model: Q, K and V are projected onto Eq. 30 and fine-tuned.

Which channels of the residual stream form complex pairs is arbitrary, so the stream is first rotated into the basis in
which Q, K and V are closest to complex-linear. The rotation does not change the model's function:

- LayerNorm subtracts the mean, so the rotation keeps the direction (1, ..., 1). LayerNorm gains are folded into the
  projections that read the norm; LayerNorm shifts are rotated with the stream.
- The values of each head are rotated as well, and the output projection rotates them back.
- A tied head cannot absorb the last norm's gain without changing the embedding, so the converted model has an untied
  head: V D weights more where the trained head was tied. All layers share one basis of the stream.

(A fixed matrix before Q, K and V would allow one basis per layer, but would store D^2 numbers to save 1.5 D^2.)

Shapes: D width of the stream, E = H K common width of Q, K and V, H heads, K head width. numpy arrays are float64.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import block_diag
from scipy.stats import ortho_group
from torch import Tensor, nn

from crope.checkpoint import TrainState, save_weights
from crope.compose import load_config
from crope.config import Config, ModelConfig
from crope.data.tokens import TokenSet
from crope.errors import UserError
from crope.evaluate import full_loss
from crope.export import QKV_NAMES
from crope.model.complex_linear import ComplexLinear
from crope.model.counting import count_parameters
from crope.model.gpt import GPT, Block
from crope.record import Record, find_record, write_json
from crope.run import load_run_tokens, load_trained
from crope.seeding import stream
from crope.trainer import build_losses, build_optimizer, prepare_device, train_step

Array = NDArray[np.float64]
Layer = tuple[Array, Array, Array]  # Q, K and V as (E, D) matrices

CHANCE_DRAWS = 3
SWEEPS = 50  # alternating updates in `fit_basis`; one more adds less than 1e-4 to the fraction
MIN_GAIN = 1e-6  # LayerNorm shifts are divided by their gains

ARMS = {
    "rope": "real Q, K, V",
    "best": "projected, best basis",
    "random": "projected, random basis",
    "fresh": "complex, initial values",
}


def main(name: str, *, results_dir: Path, steps: int = 200, lr: float | None = None) -> None:
    """Converts the run with this folder, run id or prefix, and prints the losses; see `convert`."""
    print(render(convert(find_record(name, results_dir=results_dir), steps=steps, lr=lr)))


def convert(record: Record, *, steps: int, lr: float | None = None) -> dict[str, Any]:
    """Converts a run and fine-tunes it for `steps` updates at the constant rate `lr` (default: its last).

    Writes conversion.json and converted.pt (state dict of the fine-tuned CRoPE model, head untied) to the run's folder.
    Losses are full validation losses in nats per token, of the trained model and before and after fine-tuning of
    four arms:

    rope      real Q, K and V: what the fine-tuning itself is worth
    best      Q, K and V projected in the best basis: the converted model
    random    Q, K and V projected in a random basis
    fresh     complex Q, K and V at initial values: what the trained ones are worth

    `kept_share` holds complex-linear fractions of Q, K and V. The best basis gives more than 1/2 for any matrices, so
    `best_by_chance` has the same for matrices whose channels were rotated at random within each head.

    Raises UserError if the run is not a complete RoPE run, if `steps` or `lr` is negative, or if fine-tuning diverges.
    """
    config, path = load_config(record.config), record.path
    if (config.model.position, config.model.projection) != ("rotary", "real"):
        raise UserError(f"{path}: not a RoPE run (model.position=rotary, model.projection=real); choose one to convert")
    if steps < 0 or (lr is not None and not 0 < lr < math.inf):
        raise UserError(f"steps={steps}, lr={lr}: steps must be at least 0 and lr a finite number above 0")
    model, tokens = load_trained(path, config), load_run_tokens(config)
    decay = config.train.lr_gamma ** ((config.train.max_steps - 1) // config.train.lr_step_size)
    rate = config.train.lr * decay if lr is None else lr
    layers, n_heads, generator = read_qkv(model), config.model.n_heads, stream(config.seed, "convert/structure")
    best, random = fit_basis(layers, n_heads), random_basis(layers, n_heads, generator)
    shuffled = [rotate_heads(layers, n_heads, generator) for _ in range(CHANCE_DRAWS)]
    rotated = rotate(model, best)
    arms = {
        "rope": rotated,
        "best": project(rotated),
        "random": project(rotate(model, random)),
        "fresh": with_initial_qkv(project(rotated), config.model, seed=config.seed),
    }
    result: dict[str, Any] = {
        "steps": steps,
        "lr": rate,
        "kept_share": {
            "best": complex_fraction(layers, best),
            "random": complex_fraction(layers, random),
            "by_layer": [complex_fraction([layer], fit_basis([layer], n_heads)) for layer in layers],
            "best_by_chance": [complex_fraction(each, fit_basis(each, n_heads)) for each in shuffled],
        },
        "parameters": {"trained": asdict(count_parameters(model)), "converted": asdict(count_parameters(arms["best"]))},
        "loss_nats": {"trained": measure(model, tokens, config=config)},
        "tuned_loss_nats": {},
    }
    for name, arm in arms.items():
        arm.to(model.head_weight.dtype)
        result["loss_nats"][name] = measure(arm, tokens, config=config)
        fine_tune(arm, tokens, config=config, steps=steps, lr=rate)
        result["tuned_loss_nats"][name] = measure(arm, tokens, config=config)
        if not math.isfinite(result["tuned_loss_nats"][name]):
            raise UserError(f"{path}: fine-tuning of '{name}' diverged at lr={rate}; choose a lower lr")
    save_weights(path / "converted.pt", arms["best"])
    write_json(path / "conversion.json", result)
    return result


def render(result: dict[str, Any]) -> str:
    """The losses, complex-linear fractions and parameter counts of `convert` as text."""
    before, after, fractions = result["loss_nats"], result["tuned_loss_nats"], result["kept_share"]
    lines = [f"trained: {before['trained']:.4f} nats/token; fine-tuned {result['steps']} steps at {result['lr']:g}:"]
    lines += [f"  {label:<24} {before[arm]:.4f} -> {after[arm]:.4f}" for arm, label in ARMS.items()]
    by_layer = ", ".join(f"{fraction:.3f}" for fraction in fractions["by_layer"])
    chance = fractions["best_by_chance"]
    lines.append(
        f"complex-linear fraction of Q, K, V: {fractions['best']:.3f} in the best basis (chance: {min(chance):.3f} to "
        f"{max(chance):.3f}), {fractions['random']:.3f} in a random basis; best basis per layer: {by_layer}"
    )
    trained, converted = result["parameters"]["trained"], result["parameters"]["converted"]
    total = f"{sum(trained.values()):,} -> {sum(converted.values()):,}"
    lines.append(f"parameters: {total}, of Q, K, V {trained['qkv']:,} -> {converted['qkv']:,}")
    return "\n".join(lines)


# A complex structure J (orthogonal, J^2 = -1: multiplication by i) is held as an orthogonal matrix R that takes vectors
# to interleaved pairs (Eq. 8): J = R^T J0 R, where J0 acts on the pairs (2j, 2j+1).


@dataclass(frozen=True)
class Basis:
    """R of the residual stream, (D, D), and of the values of each head, [layer][head] (K, K)."""

    stream_DD: Array
    heads: list[list[Array]]


def fit_basis(layers: Sequence[Layer], n_heads: int) -> Basis:
    """The basis with the largest complex-linear fraction of Q, K and V of all layers (a local maximum).

    The outputs of Q and K are paired by the rotary positions. The outputs of V may be paired in any way inside a head,
    because the output projection can undo it. So stream and heads are maximised in turn; the fraction only grows.
    """
    basis = Basis(np.eye(layers[0][0].shape[1]), _unrotated(layers, n_heads))
    for _ in range(SWEEPS):
        stream_DD = best_rotation(*_with_outputs(layers, basis.heads))
        j_DD = structure(stream_DD)
        heads = [[best_rotation([head.T], [j_DD]) for head in np.split(v, n_heads)] for _, _, v in layers]
        basis = Basis(stream_DD, heads)
    return basis


def random_basis(layers: Sequence[Layer], n_heads: int, generator: np.random.Generator) -> Basis:
    """A random basis of the stream, heads unrotated."""
    width = layers[0][0].shape[1]
    normal_DD = generator.standard_normal((width, width))
    return Basis(best_rotation([np.eye(width)], [normal_DD - normal_DD.T]), _unrotated(layers, n_heads))


def complex_fraction(layers: Sequence[Layer], basis: Basis) -> float:
    """||(W - J_out W J) / 2||^2 / ||W||^2 over Q, K and V of all layers; 1/2 on average for a random J."""
    weights, outputs = _with_outputs(layers, basis.heads)
    j_DD = structure(basis.stream_DD)
    kept = sum(np.sum((w - j_EE @ w @ j_DD) ** 2) / 4 for w, j_EE in zip(weights, outputs, strict=True))
    return float(kept / sum(np.sum(w**2) for w in weights))


def rotate_heads(layers: Sequence[Layer], n_heads: int, generator: np.random.Generator) -> list[Layer]:
    """Q, K and V with the output channels of each head rotated at random: the chance level of `fit_basis`.

    What each head reads and its singular values stay; only the relation to the rotary pairs is lost.
    """

    def rotated(w_ED: Array) -> Array:
        heads = np.split(w_ED, n_heads)
        return np.concatenate([ortho_group.rvs(len(head), random_state=generator) @ head for head in heads])

    return [(rotated(q), rotated(k), rotated(v)) for q, k, v in layers]


def best_rotation(weights: Sequence[Array], outputs: Sequence[Array]) -> Array:
    """R of the input space for which `weights`, whose outputs have structures `outputs`, are closest to complex-linear.

    Their complex-linear fraction is 1/2 - tr(A J) / (2 ||W||^2) with A = sum W^T J_out W, so the best J is the polar
    factor of the antisymmetric A: its eigenvectors for i are those of -iA with positive eigenvalues.
    Raises UserError if A is singular: the best J is not unique then.
    """
    total_DD = np.sum([w.T @ j_EE @ w for w, j_EE in zip(weights, outputs, strict=True)], axis=0)
    values, vectors = np.linalg.eigh(-1j * total_DD)  # ascending, in pairs +-value
    half = len(values) // 2
    if not values[half] > 1e-12 * values[-1]:
        raise UserError("Q, K and V of this run are singular and have no unique best basis; convert another run")
    return _interleave(np.sqrt(2) * vectors[:, half:].conj().T)


def structure(rotation: Array) -> Array:
    """J = R^T J0 R."""
    return rotation.T @ np.kron(np.eye(len(rotation) // 2), np.array([[0.0, -1.0], [1.0, 0.0]])) @ rotation


def keep_mean(rotation: Array) -> Array:
    """R with the same J that keeps (1, ..., 1): a unitary matrix on the pairs takes any unit vector to any other."""
    mean_D = np.full(len(rotation), len(rotation) ** -0.5)
    basis = rotation[0::2] + 1j * rotation[1::2]
    return _interleave(_unitary(mean_D[0::2] + 1j * mean_D[1::2]) @ _unitary(basis @ mean_D).conj().T @ basis)


def _interleave(basis: NDArray[np.complex128]) -> Array:
    """The real matrix of complex coordinates: real and imaginary parts in turn."""
    return np.stack((basis.real, basis.imag), axis=1).reshape(-1, basis.shape[1])


def _unitary(first: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """A unitary matrix with this unit vector as its first column."""
    matrix, _ = np.linalg.qr(np.column_stack((first, np.eye(len(first)))))
    matrix[:, 0] = first  # QR gives it up to a phase
    return matrix


def _unrotated(layers: Sequence[Layer], n_heads: int) -> list[list[Array]]:
    return [[np.eye(len(v) // n_heads)] * n_heads for _, _, v in layers]


def _with_outputs(layers: Sequence[Layer], heads: list[list[Array]]) -> tuple[list[Array], list[Array]]:
    """Every Q, K and V, and the structure of its outputs."""
    rotary = structure(np.eye(len(layers[0][0])))
    outputs = [[rotary, rotary, block_diag(*map(structure, of_layer))] for of_layer in heads]
    return [w for layer in layers for w in layer], [j for of_layer in outputs for j in of_layer]


def read_qkv(model: GPT) -> list[Layer]:
    """Q, K and V of each layer as they act on the normalised stream, LayerNorm gains folded in."""
    layers = []
    for block in _blocks(model):
        folded = [cast(Tensor, getattr(block.attn, name).weight) * block.attn_norm.weight for name in QKV_NAMES]
        q, k, v = (weight.detach().double().cpu().numpy() for weight in folded)
        layers.append((q, k, v))
    return layers


@torch.no_grad()
def rotate(model: GPT, basis: Basis) -> GPT:
    """The same function in another basis, float64: real Q, K and V, gains 1, untied head.

    Raises UserError if a LayerNorm gain is zero, because the shift is divided by it.
    """
    rotated = copy.deepcopy(model).double()
    head = nn.Linear(model.head_weight.shape[1], len(model.head_weight), bias=False)
    head.weight = nn.Parameter(model.head_weight.detach().clone().double())
    rotated.head = head
    rotation_DD = torch.from_numpy(keep_mean(basis.stream_DD))
    for block, heads in zip(_blocks(rotated), basis.heads, strict=True):
        attn = block.attn
        values_EE = torch.from_numpy(block_diag(*heads))
        _rotate_outputs(attn.v_proj, values_EE)
        attn.out_proj.weight.copy_(attn.out_proj.weight @ values_EE.T)
        _rotate_inputs(block.attn_norm, (attn.q_proj, attn.k_proj, attn.v_proj), rotation_DD)
        _rotate_outputs(attn.out_proj, rotation_DD)
        _rotate_inputs(block.ffn_norm, (block.ffn_up,), rotation_DD)
        _rotate_outputs(block.ffn_down, rotation_DD)
    _rotate_inputs(rotated.norm, (head,), rotation_DD)
    rotated.embedding.weight.copy_(rotated.embedding.weight @ rotation_DD.T)
    return rotated


def _rotate_inputs(norm: nn.LayerNorm, readers: Iterable[Any], rotation_DD: Tensor) -> None:
    """gain n + shift = gain (n + shift / gain): readers absorb the gain, the rest rotates with the stream."""
    if norm.weight.abs().min() < MIN_GAIN:
        raise UserError("a LayerNorm gain of this run is zero, so it cannot be folded into the next projection")
    for reader in readers:
        reader.weight.copy_((reader.weight * norm.weight) @ rotation_DD.T)
    norm.bias.copy_(rotation_DD @ (norm.bias / norm.weight))
    norm.weight.fill_(1.0)


def _rotate_outputs(layer: Any, rotation: Tensor) -> None:
    layer.weight.copy_(rotation @ layer.weight)
    if layer.bias is not None:
        layer.bias.copy_(rotation @ layer.bias)


def project(model: GPT) -> GPT:
    """The CRoPE model nearest to a RoPE model: Q, K and V lose their antilinear part (least squares)."""
    projected = copy.deepcopy(model)
    for block in _blocks(projected):
        for name in QKV_NAMES:
            setattr(block.attn, name, ComplexLinear.from_linear(getattr(block.attn, name)))
    return projected


def with_initial_qkv(model: GPT, config: ModelConfig, *, seed: int) -> GPT:
    """A CRoPE model with Q, K and V at the initial values of this seed and the rest of `model`."""
    complex_config = replace(config, projection="complex", tied_head=False)
    fresh = GPT(complex_config, vocab_size=model.vocab_size, max_len=model.max_len, seed=seed)
    rest = {name: value for name, value in model.state_dict().items() if not any(part in name for part in QKV_NAMES)}
    fresh.to(model.head_weight.dtype).load_state_dict(fresh.state_dict() | rest)
    return fresh


def fine_tune(model: GPT, tokens: TokenSet, *, config: Config, steps: int, lr: float) -> None:
    """`steps` updates in place at a constant rate, with a new AdamW, on the batches after the run's last."""
    train = replace(config.train, lr=lr, lr_gamma=1.0)
    config, device = replace(config, train=train), prepare_device(config)
    model.to(device)
    state, loss_function = TrainState(model, *build_optimizer(model, train)), build_losses(model, config, device)[0]
    for step in range(train.max_steps, train.max_steps + steps):
        train_step(state, loss_function, tokens.train, config=config, step=step, device=device)


@torch.no_grad()
def measure(model: GPT, tokens: TokenSet, *, config: Config) -> float:
    """The run's full validation loss, in nats per token."""
    device = prepare_device(config)
    model.to(device).eval()
    return full_loss(build_losses(model, config, device)[1], tokens.validation, config=config, device=device)[0]


def _blocks(model: GPT) -> Iterable[Block]:
    return cast(Iterable[Block], model.blocks)
