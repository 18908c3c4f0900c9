"""Parameters against closed forms of the architecture, the paper's savings, and FLOPs against
torch's counter.
"""

from collections import Counter
from dataclasses import asdict, replace

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from crope.model.counting import count_parameters, train_flops_per_token
from tests.model.oracles import CHOICES, VOCAB, build, cross_entropy, model_config, random_tokens

PARTS = {
    "norm": "norms",
    ".ffn_": "ffn",
    ".out_proj.": "output_projection",
    "_proj.": "qkv",
}


def counted(model, *, vocab=VOCAB, **changes):
    return count_parameters(model_config(model, **changes), vocab_size=vocab, max_len=8)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied_head": False, "qkv_bias": True, "n_layers": 3},
    ],
)
@pytest.mark.parametrize("model", CHOICES)
def test_parameters_are_those_that_the_decoder_stores(model, changes):
    """By part, without padding rows."""
    decoder = build(model_config(model, d_model=64, **changes), max_len=8)
    stored = Counter()
    for name, parameter in decoder.named_parameters():
        if name in ("embedding.weight", "head.weight"):
            parameter = parameter[:VOCAB]
        part = next((part for key, part in PARTS.items() if key in name), "embeddings")
        stored[part] += parameter.numel()
    assert asdict(counted(model, d_model=64, **changes)) == stored


def test_a_projection_without_an_entry_is_named_before_it_is_trained():
    """The FLOPs are counted before the first step, the parameters after the last one."""
    model = model_config("rope", projection="mine")
    with pytest.raises(ValueError, match="mine"):
        train_flops_per_token(model, vocab_size=70, seq_len=8)


def test_savings_that_the_paper_states():
    """Sec. 6.1: half of the 3 D^2 of Q/K/V per layer, so 1.5 of 4 with the output projection and 1.5
    of 12 with an FFN of ratio 4; nothing else. With GPT-2's vocabulary the whole of RoPE's model has
    4 (12 D^2 + 10 D) + 2 D in blocks and norms, 50,257 D in the embedding.
    """
    size = {"vocab": 50257, "d_model": 128, "n_layers": 4}
    rope, crope = counted("rope", **size), counted("crope", **size)
    assert (rope.qkv, crope.qkv) == (196_608, 98_304)
    assert replace(rope, qkv=crope.qkv) == crope
    assert rope.total == 7_224_704


def test_savings_of_the_literal_reading():
    """Sec. 5.1's sentence halves the output projection's input as well: 3 (1.5 + 0.5) D^2 in all."""
    rope, halved = (counted(name, d_model=64, n_layers=3) for name in ("rope", "halved"))
    assert rope.qkv - halved.qkv == 18_432
    assert rope.output_projection - halved.output_projection == 6_144


def test_the_wide_model_is_as_large_as_rope():
    """At D = 64, E is 104, next to 1.6 * 64: 2.5 * 64 * 104 = 16,640 weights of 4 * 64^2 = 16,384."""
    rope, wide = (counted(name, d_model=64, n_layers=3) for name in ("rope", "complex_wide"))
    assert wide.total - rope.total == 3 * 256


@pytest.mark.parametrize("length", [16, 128])
@pytest.mark.parametrize("model", CHOICES)
def test_flops_against_torchs_counter(model, length):
    """torch counts whole squares, the closed form the half that causality leaves.

    The other half per token and layer: 2 T E for softmax; for linear attention in chunks of C = 64
    tokens 3 C E (two score matrices, weighted values) and C H (sum of scores). The backward pass of
    linear attention is counted as twice the forward pass, although no gradient of the ones in its
    denominator is needed. 128 words need no padding.
    """
    config = model_config(model, d_model=64, tied_head=length == 16)
    linear = config.attention == "linear"
    decoder = build(config, vocab=128, max_len=length)
    tokens_BT = random_tokens(length=length)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss = cross_entropy(decoder, tokens_BT, tokens_BT)
        if not linear:
            loss.backward()
    flops = counter.get_total_flops() * (3 if linear else 1) / (2 * length)
    width = config.attention_width
    skipped = 2 * length * width
    if linear:
        chunk = min(64, length)
        skipped = 3 * chunk * width + chunk * 4
    found = train_flops_per_token(config, vocab_size=128, seq_len=length)
    assert flops - found == 3 * 2 * skipped
