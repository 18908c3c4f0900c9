"""Parameters against closed forms of the architecture, the paper's shares, and FLOPs against
torch's counter.
"""

from collections import Counter
from dataclasses import asdict

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from crope.model.counting import (
    count_parameters,
    kv_cache_values,
    savings,
    train_flops_per_token,
)
from crope.paper import SAVED_PERCENT
from tests.model.oracles import CHOICES, build, cross_entropy, model_config

WIDTHS = {"halved": 32, "complex_wide": 104}  # E at D = 64 with 4 heads; 1.6 * 64 = 102.4
MATRICES = {  # weights of Q, K and V in one layer at D = E = 64 unless named: 4,096 each if dense
    "real": 3 * 4096,
    "complex": 3 * 2048,
    "halved": 3 * 64 * 32,
    "lowrank": 3 * 2 * 16 * 64,
    "blockdiag": 3 * 2 * 32 * 32,
    "complex_misaligned": 3 * 2048,
    "complex_qk": 2 * 2048 + 4096,
    "complex_v": 2 * 4096 + 2048,
    "complex_wide": 3 * 64 * 104 // 2,
    "conjugate": 3 * 2048,
    "multi_query": 4096 + 2 * 64 * 16,  # heads of 16
}
PARTS = {
    "norm": "norms",
    ".ffn_": "ffn",
    ".out_proj.": "output_projection",
    "_proj.": "qkv",
}
TABLES = {"learned": 8 * 64, "relative_bias": 32 * 4}  # max_len 8


def counted(model, *, vocab=300, **changes):
    return count_parameters(model_config(model, **changes), vocab_size=vocab, max_len=8)


def stored(decoder):
    """Numbers of the decoder's parameters by part, without padding rows."""
    counts = Counter()
    for name, parameter in decoder.named_parameters():
        rows = len(parameter)
        if name in ("embedding.weight", "head.weight"):
            rows = decoder.vocab_size
        part = next((part for key, part in PARTS.items() if key in name), "embeddings")
        counts[part] += rows * parameter[0].numel()
    return counts


@pytest.mark.parametrize(
    ("tied", "qkv_bias"),
    [
        (True, False),
        (False, True),
    ],
)
@pytest.mark.parametrize("model", CHOICES)
def test_closed_forms(model, tied, qkv_bias):
    """A block: Q, K, V; output projection and FFN (D -> 4D -> D) with biases; two LayerNorms.

    One more at the end.
    """
    sizes = {
        "d_model": 64,
        "n_layers": 3,
        "tied_head": tied,
        "qkv_bias": qkv_bias,
    }
    config = model_config(model, **sizes)
    width = WIDTHS.get(config.projection, 64)
    kv_width = 16 if config.projection == "multi_query" else width
    channels = 208 if model == "thin_ffn" else 256  # 3.25 * 64
    expected = {
        "qkv": 3 * (MATRICES[config.projection] + (width + 2 * kv_width) * qkv_bias),
        "output_projection": 3 * (width * 64 + 64),
        "ffn": 3 * (2 * 64 * channels + channels + 64),
        "norms": (2 * 3 + 1) * 2 * 64,
        "embeddings": 300 * 64 * (2 - tied) + TABLES.get(config.position, 0),
    }
    found = count_parameters(config, vocab_size=300, max_len=8)
    assert asdict(found) == expected
    assert stored(build(config, vocab=300, max_len=8)) == expected
    assert found.total == sum(expected.values())


def test_a_projection_without_an_entry_is_named_before_it_is_trained():
    """The FLOPs are counted before the first step, the parameters after the last one."""
    model = model_config("rope", projection="mine")
    with pytest.raises(ValueError, match="mine"):
        train_flops_per_token(model, vocab_size=70, seq_len=8)


def test_savings_that_the_paper_states():
    """Sec. 6.1: half of Q/K/V, 1.5 of 4 squares with the output projection, 1.5 of 12 with an FFN
    of ratio 4.
    """
    size = {"d_model": 128, "n_layers": 4}
    found = savings(counted("rope", **size), counted("crope", **size), **size)
    assert {name: found[name] for name in SAVED_PERCENT} == SAVED_PERCENT


@pytest.mark.parametrize(
    ("model", "values"),
    [
        ("rope", 1024),
        ("crope", 1024),
        ("halved", 512),
        ("mqa", 256),
    ],
)
def test_kv_cache_by_hand(model, values):
    """K and V of 4 layers: 2 x 4 x 128, of half the width, of one head of four."""
    assert kv_cache_values(model_config(model, d_model=128, n_layers=4)) == values


def test_savings_of_the_literal_reading():
    """Sec. 5.1's sentence halves the output projection's input as well: 50 % of attention, 2 of 12
    squares.
    """
    size = {"d_model": 64, "n_layers": 3}
    found = savings(counted("rope", **size), counted("halved", **size), **size)
    assert (found["Q/K/V"], found["attention"]) == (50.0, 50.0)
    assert found["block"] == pytest.approx(100 / 6, rel=1e-12)


@pytest.mark.parametrize(
    ("tied", "total", "share"),
    [
        (True, 7_224_704, 1.36066),
        (False, 13_657_600, 0.71978),
    ],
)
def test_share_of_the_whole_model_with_gpt2s_vocabulary(tied, total, share):
    """4 (12 D^2 + 10 D) + 2 D in blocks and norms, 50,257 D per embedding; CRoPE saves 4 (3/2) D^2
    = 98,304.
    """
    size = {"d_model": 128, "n_layers": 4}
    rope = counted("rope", vocab=50257, tied_head=tied, **size)
    crope = counted("crope", vocab=50257, tied_head=tied, **size)
    assert rope.total == total
    assert rope.total - crope.total == 98_304
    assert savings(rope, crope, **size)["model"] == pytest.approx(share, abs=1e-5)


@pytest.mark.parametrize("length", [16, 128])
@pytest.mark.parametrize("model", CHOICES)
def test_flops_against_torchs_counter(model, length):
    """torch counts whole squares, the closed form the half that causality leaves.

    The other half per token and layer: 2 T E for softmax; for linear attention in chunks of C = 64
    tokens 3 C E (two score matrices, weighted values) and C H (sum of scores). The backward pass of
    linear attention is counted as twice the forward pass, although no gradient of the ones in its
    denominator is needed. 128 words need no padding.
    """
    config = model_config(model, n_layers=2, d_model=64, tied_head=length == 16)
    linear = config.attention == "linear"
    decoder = build(config, vocab=128, max_len=length)
    tokens_BT = torch.zeros(2, length, dtype=torch.int64)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss = cross_entropy(decoder, tokens_BT, tokens_BT)
        if not linear:
            loss.backward()
    flops = counter.get_total_flops() * (3 if linear else 1) / (2 * length)
    width = WIDTHS.get(config.projection, 64)
    skipped = 2 * length * width
    if linear:
        chunk = min(64, length)
        skipped = 3 * chunk * width + chunk * 4
    found = train_flops_per_token(config, vocab_size=128, seq_len=length)
    assert flops - found == 3 * 2 * skipped
