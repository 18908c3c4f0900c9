"""Slow float64 references: attention, position schemes and the whole decoder, one number at a time."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
import yaml

from crope.config import ROOT, ModelConfig
from crope.model.attention import LinearAttention
from crope.model.complex_linear import ComplexLinear
from crope.model.gpt import GPT
from crope.model.projections import BlockDiagonalLinear, ConjugateLinear, LowRankLinear

# Position, projection and attention of every model of conf/model.
CHOICES = {
    path.stem: yaml.safe_load(path.read_text())
    for path in sorted((ROOT / "conf" / "model").glob("*.yaml"))
}
# To an absolute tolerance, atol.
assert_close = partial(torch.testing.assert_close, rtol=0)
assert_allclose = partial(np.testing.assert_allclose, rtol=0)
VOCAB, LENGTH = 70, 12  # 70 rows are padded to 128
WIDTH = 48  # heads of 12 channels, 6 in `halved`, 20 in `complex_wide`


def model_config(name, **changes):
    """The model of conf/model/<name>.yaml at a small size: heads of three pairs, so that no split
    of channels is right by coincidence."""
    size = {"n_layers": 2, "n_heads": 4, "d_model": 24}
    return ModelConfig(**{**size, **CHOICES[name], **changes})


def build(config, *, vocab=VOCAB, max_len=LENGTH, seed=0):
    return GPT(config, vocab_size=vocab, max_len=max_len, seed=seed)


def random_tokens(batch=2, length=LENGTH, vocab=VOCAB):
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(2))


def normal(*shape, seed=3):
    """A float64 tensor of standard normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gaussian(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def randomise(module):
    """Float64, and every parameter of order 1: at the initial 0.02 all scores are nearly equal and
    hide mistakes.
    """
    module.double()
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            scale = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.5
            parameter.copy_(scale * normal(*parameter.shape, seed=seed))
    return module


def cross_entropy(model, tokens_BT, targets_BT):
    return F.cross_entropy(model.logits(model(tokens_BT)).flatten(0, 1), targets_BT.flatten())


def slow_losses(model, tokens, length):
    """The loss of every target, one window of `length` at a time."""
    losses = []
    for start in range(0, len(tokens) - 1, length):
        window = torch.from_numpy(tokens[start : start + length + 1].astype(np.int64))
        with torch.no_grad():
            logits_TV = model.logits(model(window[None, :-1]))[0].double()
        losses.append(F.cross_entropy(logits_TV, window[1:], reduction="none"))
    return torch.cat(losses).numpy()


def numbers(tensor):
    return tensor.detach().double().numpy()


@dataclass(frozen=True)
class Oracle:
    """What a position scheme computes in each of its three places, for one token, pair of tokens or
    head at a time.

    embed      (positions, token m, x_D) -> x_D as it enters the first block
    product    (q_K at m, k_K at n, m, n) -> their product, not divided by sqrt(K)
    bias       (positions, head, distance m - n) -> the number added to the score
    """

    embed: Callable = lambda positions, m, x_D: x_D
    product: Callable = lambda q_K, k_K, m, n: q_K @ k_K
    bias: Callable = lambda positions, head, distance: 0.0


def turn_by_complex_multiplication(x, position, base=10000.0):
    """Channel pairs (2i, 2i+1) at `position` times e^{i position theta_i} (Eqs. 6 and 10). An array
    has the position of each vector along the last dimension but one.
    """
    width = x.shape[-1]
    theta_J = base ** (-np.arange(0, width, 2) / width)
    angle = np.multiply.outer(position, theta_J)
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)
    return np.stack((turned.real, turned.imag), axis=-1).reshape(x.shape)


def rotated_product(q_K, k_K, m, n):
    """(R_m q) . (R_n k) (Eq. 7)."""
    return turn_by_complex_multiplication(q_K, m) @ turn_by_complex_multiplication(k_K, n)


def sinusoid(m, width):
    """Vaswani et al., Sec. 3.5."""
    values = []
    for channel in range(0, width, 2):
        angle = m / 10000.0 ** (channel / width)
        values += [math.sin(angle), math.cos(angle)]
    return np.array(values)


def t5_bias(positions, head, distance):
    """T5's buckets, unidirectional, 32 of them, furthest 128 (Raffel et al. 2020): 16 exact, 16
    logarithmic.
    """
    logarithmic = 16 + math.floor(16 * math.log(max(distance, 1) / 16) / math.log(128 / 16))
    bucket = distance if distance < 16 else min(31, logarithmic)
    return float(numbers(positions.weight)[bucket, head])


def alibi_bias(positions, head, distance):
    """Press et al. (2022) for 4 heads: a geometric sequence that starts at its own ratio, 2^(-8/4)."""
    return -distance * 0.25 ** (head + 1)


ORACLES = {
    "none": Oracle(),
    "sinusoidal": Oracle(embed=lambda positions, m, x_D: x_D + sinusoid(m, len(x_D))),
    # The embedding has std 0.02 sqrt(D) here (embed_scale is sqrt_d), a sinusoid rms 1/sqrt(2).
    "sinusoidal_balanced": Oracle(
        embed=lambda positions, m, x_D: x_D + 0.02 * math.sqrt(2 * len(x_D)) * sinusoid(m, len(x_D))
    ),
    "learned": Oracle(embed=lambda positions, m, x_D: x_D + numbers(positions.weight)[m]),
    "rotary": Oracle(product=rotated_product),
    "relative_bias": Oracle(bias=t5_bias),
    "alibi": Oracle(bias=alibi_bias),
}


def project(layer, x_TD):
    """Eqs. 13 and 30 in complex arithmetic, w = a - ib, for the complex layers (of conj(x) for the
    conjugate-linear one); x W^T for the real ones.
    """
    if isinstance(layer, ComplexLinear):
        y_TE = multiply_complex(layer, x_TD)
    elif isinstance(layer, LowRankLinear):
        y_TE = x_TD @ numbers(layer.down).T @ numbers(layer.up).T
    elif isinstance(layer, BlockDiagonalLinear):
        first_TD, second_TD = np.split(x_TD, 2, axis=1)
        first_TE = first_TD @ numbers(layer.first).T
        second_TE = second_TD @ numbers(layer.second).T
        y_TE = np.hstack([first_TE, second_TE])
    else:
        y_TE = x_TD @ numbers(layer.weight).T
    if layer.bias is not None:
        y_TE = y_TE + numbers(layer.bias)
    return y_TE


def multiply_complex(layer, x_TD):
    """Output pair j is in channels (2j, 2j + 1), or (j, j + K/2) of a head."""
    w = numbers(layer.a) - 1j * numbers(layer.b)
    x = x_TD[:, 0::2] + 1j * x_TD[:, 1::2]
    if isinstance(layer, ConjugateLinear):
        x = x.conj()
    distance = layer.head_dim // 2 if layer.pairing == "half" else 1
    y = (x @ w.T).reshape(len(x), -1, distance)
    return np.concatenate((y.real, y.imag), axis=-1).reshape(len(x), -1)


def attention_by_loops(attention, x_TD, *, position, positions):
    """Eqs. 2, 3, 7 for one sequence: softmax over n <= m of the scheme's product / sqrt(K) + its
    bias.

    LinearAttention: RoFormer's Eq. 19, the scheme's product of features over their plain product.
    """
    oracle = ORACLES[position]
    shape_THK = (len(x_TD), attention.n_heads, attention.head_width)
    heads = []
    for layer in attention.qkv:
        y_THK = project(layer, x_TD).reshape(len(x_TD), -1, attention.head_width)
        heads.append(np.broadcast_to(y_THK, shape_THK))  # one head of K and V for all
    q, k, v = heads
    linear = isinstance(attention, LinearAttention)
    if linear:
        q, k = (np.where(x > 0, x + 1, np.exp(x)) for x in (q, k))  # elu + 1
    y_THK = np.zeros(shape_THK)
    for m, head in np.ndindex(shape_THK[:2]):
        total = 0.0
        for n in range(m + 1):
            weight = oracle.product(q[m, head], k[n, head], m, n)
            if linear:
                total += q[m, head] @ k[n, head]
            else:
                bias = oracle.bias(positions, head, m - n)
                weight = math.exp(weight / math.sqrt(attention.head_width) + bias)
                total += weight
            y_THK[m, head] += weight * v[n, head]
        y_THK[m, head] /= total
    return project(attention.out_proj, y_THK.reshape(len(x_TD), -1))


def layer_norm(norm, x_TD):
    centred = x_TD - x_TD.mean(axis=1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    return scaled * numbers(norm.weight) + numbers(norm.bias)


def decoder_by_loops(model, tokens_T, config):
    """GPT-2's pre-LN decoder for one sequence, up to the final norm."""
    scale = math.sqrt(config.d_model) if config.embed_scale == "sqrt_d" else 1.0
    x_TD = numbers(model.embedding.weight)[tokens_T] * scale
    embed = ORACLES[config.position].embed
    x_TD = np.stack([embed(model.positions, m, x_D) for m, x_D in enumerate(x_TD)])
    for block in model.blocks:
        normed_TD = layer_norm(block.attn_norm, x_TD)
        x_TD = x_TD + attention_by_loops(
            block.attn, normed_TD, position=config.position, positions=model.positions
        )
        up = project(block.ffn_up, layer_norm(block.ffn_norm, x_TD))
        gelu = 0.5 * up * (1 + np.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
        x_TD = x_TD + project(block.ffn_down, gelu)
    return layer_norm(model.norm, x_TD)
