"""Every model that may be chosen, at a small size, and a decoder written out with loops in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from crope.compose import group_files, plain_model
from crope.config import ModelConfig
from crope.model.attention import CausalAttention, LinearAttention
from crope.model.complex_linear import ComplexLinear
from crope.model.gpt import GPT
from crope.model.positions import Positions
from crope.model.projections import BlockDiagonalLinear, LowRankLinear, MisalignedComplexLinear

Array = np.ndarray
MakeConfig = Callable[..., ModelConfig]
MODELS = group_files("model")
VOCAB, LENGTH, WIDTH = 70, 12, 48  # heads of 12 channels; of 6 where halved, of 20 where wide


@dataclass(frozen=True)
class Oracle:
    """What a position scheme does to numbers in each of its three places, for one token, pair or head at a time.

    embed      (positions, token m, x_D) -> x_D as it enters the first block
    product    (positions, q_K at m, k_K at n, m, n) -> their product, not divided by sqrt(K)
    bias       (positions, head, distance m - n) -> what is added to the score
    """

    embed: Callable[[Positions, int, Array], Array] = lambda positions, m, x_D: x_D
    product: Callable[[Positions, Array, Array, int, int], float] = lambda positions, q_K, k_K, m, n: float(q_K @ k_K)
    bias: Callable[[Positions, int, int], float] = lambda positions, head, distance: 0.0


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
        # Three pairs a head: no power of two, so that a wrong split of channels cannot coincide with the right one.
        size = {"n_layers": 2, "n_heads": 4, "d_model": 24}
        return ModelConfig(**{**size, **choices(name), **changes})

    return make


def choices(name: str) -> dict[str, str]:
    """Position, projection and attention of a model, by the name that selects it."""
    if MODELS[name].suffix == ".py":
        return plain_model(name)
    node = OmegaConf.to_container(OmegaConf.load(MODELS[name]))
    assert isinstance(node, dict)
    return {str(key): str(value) for key, value in node.items()}


def small_model(config: ModelConfig, max_len: int = LENGTH) -> GPT:
    return GPT(config, vocab_size=VOCAB, max_len=max_len, seed=0)


def random_tokens(batch: int = 2, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(2))


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


@pytest.fixture(scope="session")
def compare_with_loops(model_config, randomise) -> Callable[..., None]:
    """`compare_with_loops("alibi", bias=...)`: every model of that position against the decoder by loops.

    The keywords are the places of an Oracle.
    """

    def compare(position: str, **places: Callable[..., object]) -> None:
        names = [name for name in MODELS if choices(name)["position"] == position]
        assert names, f"no model has model.position={position}"
        for name in names:
            compare_model(name, Oracle(**places))  # type: ignore[arg-type]

    def compare_model(name: str, oracle: Oracle) -> None:
        config, tokens_BT = model_config(name, d_model=WIDTH, qkv_bias=True), random_tokens()
        decoder = randomise(small_model(config))
        found = decoder(tokens_BT).detach().numpy()
        for tokens_T, hidden_TD in zip(tokens_BT.numpy(), found, strict=True):
            expected = decoder_by_loops(decoder, tokens_T, config, oracle)
            np.testing.assert_allclose(hidden_TD, expected, rtol=0, atol=1e-5, err_msg=name)

    return compare


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
    attention: CausalAttention, x_TD: Array, *, n_heads: int, oracle: Oracle, positions: Positions
) -> Array:
    """Eqs. 2, 3, 7 for one sequence: softmax over n <= m of the scheme's product / sqrt(K) + its bias.

    For LinearAttention RoFormer's Eq. 19: the product of features above, of features as they are below.
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
            products = [oracle.product(positions, q[m, part], k[n, part], m, n) for n in range(m + 1)]
            if linear:
                weights, total = products, sum(q[m, part] @ k[n, part] for n in range(m + 1))
            else:
                biases = [oracle.bias(positions, head, m - n) for n in range(m + 1)]
                weights = [math.exp(p / math.sqrt(k_width) + b) for p, b in zip(products, biases, strict=True)]
                total = sum(weights)
            for n, weight in enumerate(weights):
                y_TE[m, part] += weight / total * v[n, part]
    return y_TE @ numbers(attention.out_proj.weight).T + numbers(attention.out_proj.bias)


def t5_bias(positions: Positions, head: int, distance: int) -> float:
    """T5's buckets, unidirectional, 32 of them, furthest 128 (Raffel et al. 2020): 16 exact, 16 logarithmic."""
    logarithmic = 16 + math.floor(16 * math.log(max(distance, 1) / 16) / math.log(128 / 16))
    bucket = distance if distance < 16 else min(31, logarithmic)
    return float(numbers(positions.weight)[bucket, head])


def alibi_bias(positions: Positions, head: int, distance: int) -> float:
    """Press et al. (2022) for 4 heads: a geometric sequence that starts at its own ratio, 2^(-8/4)."""
    return -distance * 0.25 ** (head + 1)


def sinusoid(positions: Positions, m: int, x_D: Array) -> Array:
    """Vaswani et al., Sec. 3.5."""
    y_D = x_D.copy()
    for i in range(len(x_D) // 2):
        y_D[2 * i] += math.sin(m / 10000.0 ** (2 * i / len(x_D)))
        y_D[2 * i + 1] += math.cos(m / 10000.0 ** (2 * i / len(x_D)))
    return y_D


# Of the schemes that this repository brings; another has a test of its own (docs/tutorial.md, section 4).
ORACLES = {
    "none": Oracle(),
    "sinusoidal": Oracle(embed=sinusoid),
    "learned": Oracle(embed=lambda positions, m, x_D: x_D + numbers(positions.weight)[m]),
    "rotary": Oracle(product=lambda positions, q_K, k_K, m, n: rotated_product(q_K, k_K, n - m)),
    "relative_bias": Oracle(bias=t5_bias),
    "alibi": Oracle(bias=alibi_bias),
}


def layer_norm(norm: nn.LayerNorm, x_TD: Array) -> Array:
    centred = x_TD - x_TD.mean(axis=1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    return scaled * numbers(norm.weight) + numbers(norm.bias)


def decoder_by_loops(model: GPT, tokens_T: Array, config: ModelConfig, oracle: Oracle | None = None) -> Array:
    """GPT-2's pre-LN decoder for one sequence, up to the final norm."""
    oracle = oracle or ORACLES[config.position]
    rules = {"n_heads": config.n_heads, "oracle": oracle, "positions": model.positions}
    scale = math.sqrt(config.d_model) if config.embed_scale == "sqrt_d" else 1.0
    x_TD = numbers(model.embedding.weight)[tokens_T] * scale
    x_TD = np.stack([oracle.embed(model.positions, m, x_D) for m, x_D in enumerate(x_TD)])
    for block in model.blocks:
        normed = layer_norm(block.attn_norm, x_TD)
        x_TD = x_TD + attention_by_loops(block.attn, normed, **rules)
        up = project(block.ffn_up, layer_norm(block.ffn_norm, x_TD))
        gelu = 0.5 * up * (1 + np.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
        x_TD = x_TD + project(block.ffn_down, gelu)
    return layer_norm(model.norm, x_TD)
