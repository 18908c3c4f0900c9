"""Parameters against closed forms written from the architecture, the paper's shares, and counted operations."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from crope.config import ROOT
from crope.loss import cross_entropy
from crope.model.counting import count_parameters, savings, train_flops_per_token
from crope.model.gpt import GPT

MODELS = ["xpos", "rope", "crope"]


def counted(config, vocab: int = 300):
    return count_parameters(GPT(config, vocab_size=vocab, max_len=8, seed=0))


@pytest.mark.parametrize("qkv_bias", [False, True])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("width", "layers"), [(128, 4), (64, 4), (24, 1)])
@pytest.mark.parametrize("model", MODELS)
def test_closed_forms(model: str, width: int, layers: int, tied: bool, qkv_bias: bool, model_config) -> None:
    """A block: Q, K, V; output projection and FFN (D -> 4D -> D) with biases; two LayerNorms. One more at the end."""
    matrix = width * width // 2 if model == "crope" else width * width
    expected = {
        "qkv": layers * 3 * (matrix + (width if qkv_bias else 0)),
        "output_projection": layers * (width * width + width),
        "ffn": layers * (4 * width * width + 4 * width + 4 * width * width + width),
        "norms": layers * 2 * 2 * width + 2 * width,
        "embeddings": 300 * width * (1 if tied else 2),
    }
    config = model_config(model, d_model=width, n_layers=layers, tied_head=tied, qkv_bias=qkv_bias)
    found = counted(config)
    assert asdict(found) == expected
    assert found.total == sum(expected.values())


@pytest.mark.parametrize("tied", [True, False])
def test_parts_are_all_that_is_stored_but_padding(tied: bool, model_config) -> None:
    """300 rows are stored as 320."""
    decoder = GPT(model_config("crope", tied_head=tied), vocab_size=300, max_len=8, seed=0)
    padding = 20 * 24 * (1 if tied else 2)
    assert count_parameters(decoder).total == sum(p.numel() for p in decoder.parameters()) - padding


@pytest.mark.parametrize("qkv_bias", [False, True])
@pytest.mark.parametrize("width", [128, 64])
def test_savings_that_the_paper_states(width: int, qkv_bias: bool, model_config) -> None:
    """Sec. 6.1: half of Q/K/V, 1.5 of 4 squares with the output projection, 1.5 of 12 with an FFN of ratio 4."""
    size = {"d_model": width, "n_layers": 4, "qkv_bias": qkv_bias}
    rope, crope = (counted(model_config(name, **size)) for name in ("rope", "crope"))
    found = savings(rope, crope, n_layers=4, d_model=width)
    assert [found[name] for name in ("Q/K/V", "attention", "block")] == [50.0, 37.5, 12.5]


@pytest.mark.parametrize(("tied", "total", "share"), [(True, 7_224_704, 1.4), (False, 13_657_600, 0.7)])
def test_share_of_the_whole_model_at_gpt2s_vocabulary(tied: bool, total: int, share: float, model_config) -> None:
    """4 (12 D^2 + 10 D) + 2 D in blocks and norms, 50,257 D an embedding; CRoPE saves 4 (3/2) D^2 = 98,304."""
    size = {"d_model": 128, "n_layers": 4, "tied_head": tied}
    rope, crope = (counted(model_config(name, **size), vocab=50257) for name in ("rope", "crope"))
    assert (rope.total, rope.total - crope.total) == (total, 98_304)
    found = savings(rope, crope, n_layers=4, d_model=128)["model"]
    assert found == pytest.approx(100 * 98_304 / total, rel=1e-12)
    assert round(found, 1) == share


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model", MODELS)
def test_flops_against_torchs_counter(model: str, tied: bool, model_config) -> None:
    """torch counts both attention products over the whole T x T square, 4 T D a token and layer forward.

    The closed form counts what causality leaves, half of that, so it lies 3 * 2 T D * layers a token below.
    """
    batch, length, layers, width, vocab = 2, 16, 3, 24, 128  # 128 is a multiple of 64: no padding
    config = model_config(model, n_layers=layers, d_model=width, tied_head=tied)
    decoder = GPT(config, vocab_size=vocab, max_len=length, seed=0)
    tokens_BT = torch.zeros(batch, length, dtype=torch.int64)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        cross_entropy(decoder, tokens_BT, tokens_BT).backward()
    found = train_flops_per_token(config, vocab_size=vocab, seq_len=length)
    assert counter.get_total_flops() / (batch * length) - found == 3 * layers * 2 * length * width


# Every scheme of conf/model. E: width of Q, K and V; a block's other parts are RoPE's.

SCHEMES = sorted(path.stem for path in (ROOT / "conf" / "model").glob("*.yaml"))
WIDTHS = {"halved": 32, "complex_wide": 104}  # at D = 64 with 4 heads; 1.6 * 64 = 102.4
MATRICES = {  # weights in Q, K and V of a layer at D = E = 64 unless named: 4,096 dense
    "real": 3 * 4096,
    "complex": 3 * 2048,
    "halved": 3 * 64 * 32,
    "lowrank": 3 * 2 * 16 * 64,
    "blockdiag": 3 * 2 * 32 * 32,
    "complex_misaligned": 3 * 2048,
    "complex_qk": 2 * 2048 + 4096,
    "complex_v": 2 * 4096 + 2048,
    "complex_wide": 3 * 64 * 104 // 2,
}
TABLES = {"learned": 8 * 64, "relative_bias": 32 * 4}  # max_len 8


@pytest.mark.parametrize("model", SCHEMES)
def test_closed_forms_of_every_scheme(model: str, model_config) -> None:
    config = model_config(model, d_model=64, n_layers=3)
    width = WIDTHS.get(config.projection, 64)
    expected = {
        "qkv": 3 * MATRICES[config.projection],
        "output_projection": 3 * (width * 64 + 64),
        "ffn": 3 * (2 * 4 * 64 * 64 + 5 * 64),
        "norms": (2 * 3 + 1) * 2 * 64,
        "embeddings": 300 * 64 + TABLES.get(config.position, 0),  # 20 pad rows in no count
    }
    assert asdict(counted(config)) == expected


def test_savings_of_the_literal_reading(model_config) -> None:
    """Sec. 5.1's sentence halves the output projection's input as well: 50 % of attention, 2 of 12 squares."""
    rope, halved = (counted(model_config(name, d_model=64, n_layers=3)) for name in ("rope", "halved"))
    found = savings(rope, halved, n_layers=3, d_model=64)
    assert (found["Q/K/V"], found["attention"]) == (50.0, 50.0)
    assert found["block"] == pytest.approx(100 / 6, rel=1e-12)


@pytest.mark.parametrize("length", [16, 128])
@pytest.mark.parametrize("model", SCHEMES)
def test_flops_of_every_scheme_against_torchs_counter(model: str, length: int, model_config) -> None:
    """Forward. What torch counts more are the halves of squares that causality leaves out.

    Softmax: 2 T E a token and layer. Linear, in chunks of C = 64 tokens: 3 C E for the two scores and the sum of
    values, C H for the sum of scores. Low rank: its factors are multiplied, not their product.
    """
    batch, layers, vocab = 2, 2, 128
    config = model_config(model, n_layers=layers, d_model=64)
    decoder = GPT(config, vocab_size=vocab, max_len=length, seed=0)
    tokens_BT = torch.zeros(batch, length, dtype=torch.int64)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        cross_entropy(decoder, tokens_BT, tokens_BT)
    found = train_flops_per_token(config, vocab_size=vocab, seq_len=length)
    width, chunk = WIDTHS.get(config.projection, 64), min(64, length)
    skipped = 3 * chunk * width + chunk * 4 if config.attention == "linear" else 2 * length * width
    assert counter.get_total_flops() / (batch * length) - found / 3 == layers * skipped
