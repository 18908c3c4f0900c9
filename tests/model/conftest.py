"""The paper's three models at a small size, and a decoder written out with loops in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from crope.config import ROOT, ModelConfig
from crope.model.attention import CausalAttention
from crope.model.complex_linear import ComplexLinear
from crope.model.gpt import GPT

Array = np.ndarray
MakeConfig = Callable[..., ModelConfig]


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
    """Eqs. 13 and 30 in complex arithmetic, w = a - ib, for the complex layer; x W^T for the real one."""
    if isinstance(layer, ComplexLinear):
        w = numbers(layer.a) - 1j * numbers(layer.b)
        y_complex = (x_TD[:, 0::2] + 1j * x_TD[:, 1::2]) @ w.T
        y_TE = np.empty((len(x_TD), 2 * len(w)))
        y_TE[:, 0::2], y_TE[:, 1::2] = y_complex.real, y_complex.imag
    else:
        assert isinstance(layer, nn.Linear)
        y_TE = x_TD @ numbers(layer.weight).T
    bias = layer.bias
    return y_TE if bias is None else y_TE + numbers(bias)


def attention_by_loops(attention: CausalAttention, x_TD: Array, *, n_heads: int, rotary: bool) -> Array:
    """Eqs. 2, 3 and 7 for one sequence: Re[conj(q e^{im theta}) k e^{in theta}] / sqrt(K), softmax over n <= m."""
    length, width = x_TD.shape
    k_width = width // n_heads
    q, k, v = (project(layer, x_TD) for layer in (attention.q_proj, attention.k_proj, attention.v_proj))
    y_TD = np.zeros((length, width))
    for head in range(n_heads):
        first = head * k_width
        for m in range(length):
            scores = []
            for n in range(m + 1):
                score = 0.0
                for i in range(k_width // 2):
                    turn = (n - m) * 10000.0 ** (-2 * i / k_width) if rotary else 0.0
                    at = first + 2 * i
                    q_pair, k_pair = complex(q[m, at], q[m, at + 1]), complex(k[n, at], k[n, at + 1])
                    score += (q_pair.conjugate() * k_pair * complex(math.cos(turn), math.sin(turn))).real
                scores.append(score / math.sqrt(k_width))
            weights = [math.exp(score) for score in scores]
            for n, weight in enumerate(weights):
                y_TD[m, first : first + k_width] += weight / sum(weights) * v[n, first : first + k_width]
    return y_TD @ numbers(attention.out_proj.weight).T + numbers(attention.out_proj.bias)


def layer_norm(norm: nn.LayerNorm, x_TD: Array) -> Array:
    centred = x_TD - x_TD.mean(axis=1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    return scaled * numbers(norm.weight) + numbers(norm.bias)


def decoder_by_loops(model: GPT, tokens_T: Array, config: ModelConfig) -> Array:
    """GPT-2's pre-LN decoder for one sequence, up to the final norm."""
    width = config.d_model
    x_TD = numbers(model.embedding.weight)[tokens_T] * (math.sqrt(width) if config.embed_scale == "sqrt_d" else 1.0)
    if config.position == "sinusoidal":
        for m in range(len(x_TD)):
            for i in range(width // 2):
                x_TD[m, 2 * i] += math.sin(m / 10000.0 ** (2 * i / width))
                x_TD[m, 2 * i + 1] += math.cos(m / 10000.0 ** (2 * i / width))
    for block in model.blocks:
        normed = layer_norm(block.attn_norm, x_TD)
        x_TD = x_TD + attention_by_loops(block.attn, normed, n_heads=config.n_heads, rotary=config.position == "rotary")
        up = project(block.ffn_up, layer_norm(block.ffn_norm, x_TD))
        gelu = 0.5 * up * (1 + np.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
        x_TD = x_TD + project(block.ffn_down, gelu)
    return layer_norm(model.norm, x_TD)
