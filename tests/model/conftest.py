"""The models of conf/model at a small size, and a decoder written out with loops in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from crope.config import ROOT, ModelConfig
from crope.model.attention import CausalAttention, LinearAttention
from crope.model.complex_linear import ComplexLinear
from crope.model.gpt import GPT
from crope.model.projections import BlockDiagonalLinear, LowRankLinear, MisalignedComplexLinear

Array = np.ndarray
MakeConfig = Callable[..., ModelConfig]
Bias = Callable[[int, int], float]  # head, distance m - n


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These tensors are tiny: on a busy machine threads that wait for each other take four fifths of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model_config() -> MakeConfig:
    """`model_config("crope", d_model=32)`: what conf/model/crope.yaml selects, small unless told otherwise."""

    def make(name: str, **changes: object) -> ModelConfig:
        chosen = OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / "model" / f"{name}.yaml"))
        assert isinstance(chosen, dict)
        # Three pairs a head: no power of two, so that a wrong split of channels cannot coincide with the right one.
        size = {"n_layers": 2, "n_heads": 4, "d_model": 24}
        return ModelConfig(**{**size, **{str(key): value for key, value in chosen.items()}, **changes})

    return make


@pytest.fixture(scope="session")
def randomise() -> Callable[[nn.Module], nn.Module]:
    """Float64, and every parameter of order 1: at the initial 0.02 the scores are nearly equal and hide mistakes."""

    def fill(module: nn.Module) -> nn.Module:
        generator = torch.Generator().manual_seed(1)
        module.double()
        with torch.no_grad():
            for parameter in module.parameters():
                scale = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.5
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        return module

    return fill


@pytest.fixture(scope="session")
def slow_attention() -> Callable[..., Array]:
    return attention_by_loops


@pytest.fixture(scope="session")
def slow_decoder() -> Callable[..., Array]:
    return decoder_by_loops


def numbers(tensor: torch.Tensor) -> Array:
    return tensor.detach().double().numpy()


def project(layer: nn.Module, x_TD: Array) -> Array:
    """Eqs. 13 and 30 in complex arithmetic, w = a - ib, for the complex layers; x W^T for the real ones."""
    if isinstance(layer, ComplexLinear):
        w = numbers(layer.a) - 1j * numbers(layer.b)
        y_complex = (x_TD[:, 0::2] + 1j * x_TD[:, 1::2]) @ w.T
        y_TE = np.empty((len(x_TD), 2 * len(w)))
        for j in range(len(w)):
            real, imaginary = 2 * j, 2 * j + 1
            if isinstance(layer, MisalignedComplexLinear):  # pair j of a head stands at (j, j + K/2)
                head, pair = divmod(j, layer.d_head // 2)
                real = head * layer.d_head + pair
                imaginary = real + layer.d_head // 2
            y_TE[:, real], y_TE[:, imaginary] = y_complex[:, j].real, y_complex[:, j].imag
    elif isinstance(layer, LowRankLinear):
        y_TE = (x_TD @ numbers(layer.down).T) @ numbers(layer.up).T
    elif isinstance(layer, BlockDiagonalLinear):
        half = x_TD.shape[1] // 2
        y_TE = np.hstack([x_TD[:, :half] @ numbers(layer.first).T, x_TD[:, half:] @ numbers(layer.second).T])
    else:
        assert isinstance(layer, nn.Linear)
        y_TE = x_TD @ numbers(layer.weight).T
    bias = layer.bias
    return y_TE if bias is None else y_TE + numbers(bias)


def rotated_product(q_K: Array, k_K: Array, turn: int) -> float:
    """Re[conj(q) k e^{i turn theta}], theta_i = 10000^(-2i/K), over pairs (2i, 2i+1)."""
    total = 0.0
    for i in range(len(q_K) // 2):
        angle = turn * 10000.0 ** (-2 * i / len(q_K))
        q_pair, k_pair = complex(q_K[2 * i], q_K[2 * i + 1]), complex(k_K[2 * i], k_K[2 * i + 1])
        total += (q_pair.conjugate() * k_pair * complex(math.cos(angle), math.sin(angle))).real
    return total


def attention_by_loops(
    attention: CausalAttention, x_TD: Array, *, n_heads: int, rotary: bool, bias: Bias = lambda head, distance: 0.0
) -> Array:
    """Eqs. 2, 3, 7 for one sequence: softmax over n <= m of Re[conj(q e^{im theta}) k e^{in theta}] / sqrt(K) + bias.

    For LinearAttention RoFormer's Eq. 19: rotated features above, features as they are below.
    """
    q, k, v = (project(layer, x_TD) for layer in (attention.q_proj, attention.k_proj, attention.v_proj))
    k_width = q.shape[1] // n_heads
    linear = isinstance(attention, LinearAttention)
    if linear:
        q, k = (np.where(x > 0, x, np.expm1(np.minimum(x, 0))) + 1 for x in (q, k))  # elu + 1
    y_TE = np.zeros(q.shape)
    for head in range(n_heads):
        part = slice(head * k_width, (head + 1) * k_width)
        for m in range(len(x_TD)):
            products = [rotated_product(q[m, part], k[n, part], (n - m) * rotary) for n in range(m + 1)]
            if linear:
                weights, total = products, sum(q[m, part] @ k[n, part] for n in range(m + 1))
            else:
                scores = [product / math.sqrt(k_width) + bias(head, m - n) for n, product in enumerate(products)]
                weights = [math.exp(score) for score in scores]
                total = sum(weights)
            for n, weight in enumerate(weights):
                y_TE[m, part] += weight / total * v[n, part]
    return y_TE @ numbers(attention.out_proj.weight).T + numbers(attention.out_proj.bias)


def t5_bias(weight: Array, head: int, distance: int) -> float:
    """T5's buckets, unidirectional, 32 of them, furthest 128 (Raffel et al. 2020): 16 exact, 16 logarithmic."""
    logarithmic = 16 + math.floor(16 * math.log(max(distance, 1) / 16) / math.log(128 / 16))
    bucket = distance if distance < 16 else min(31, logarithmic)
    return float(weight[bucket, head])


def alibi_bias(n_heads: int, head: int, distance: int) -> float:
    """Press et al. (2022) for a power of two: a geometric sequence that starts at its own ratio 2^(-8/H)."""
    assert n_heads & (n_heads - 1) == 0
    return -distance * (2 ** (-8 / n_heads)) ** (head + 1)


def layer_norm(norm: nn.LayerNorm, x_TD: Array) -> Array:
    centred = x_TD - x_TD.mean(axis=1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    return scaled * numbers(norm.weight) + numbers(norm.bias)


def decoder_by_loops(model: GPT, tokens_T: Array, config: ModelConfig) -> Array:
    """GPT-2's pre-LN decoder for one sequence, up to the final norm."""
    width, n_heads = config.d_model, config.n_heads
    biases: dict[str, Bias] = {
        "relative_bias": lambda head, distance: t5_bias(numbers(model.positions.weight), head, distance),
        "alibi": lambda head, distance: alibi_bias(n_heads, head, distance),
    }
    rules = {"rotary": config.position == "rotary", "bias": biases.get(config.position, lambda head, distance: 0.0)}
    x_TD = numbers(model.embedding.weight)[tokens_T] * (math.sqrt(width) if config.embed_scale == "sqrt_d" else 1.0)
    if config.position == "sinusoidal":
        for m in range(len(x_TD)):
            for i in range(width // 2):
                x_TD[m, 2 * i] += math.sin(m / 10000.0 ** (2 * i / width))
                x_TD[m, 2 * i + 1] += math.cos(m / 10000.0 ** (2 * i / width))
    if config.position == "learned":
        x_TD = x_TD + numbers(model.positions.weight)[: len(x_TD)]
    for block in model.blocks:
        normed = layer_norm(block.attn_norm, x_TD)
        x_TD = x_TD + attention_by_loops(block.attn, normed, n_heads=n_heads, **rules)
        up = project(block.ffn_up, layer_norm(block.ffn_norm, x_TD))
        gelu = 0.5 * up * (1 + np.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
        x_TD = x_TD + project(block.ffn_down, gelu)
    return layer_norm(model.norm, x_TD)
