"""What models are called where they are printed: the paper's columns, and those that it does not have."""

from __future__ import annotations

from crope import paper

MODEL_LABELS = paper.MODEL_LABELS | {
    "complex_xpos": "complex XPOS",
    "learned": "learned",
    "complex_learned": "complex learned",
    "relative_bias": "T5 bias",
    "complex_relative_bias": "complex T5 bias",
    "alibi": "ALiBi",
    "complex_alibi": "complex ALiBi",
    "nope": "NoPE",
    "complex_nope": "complex NoPE",
    "rope_linear": "linear RoPE",
    "crope_linear": "linear CRoPE",
    "lowrank": "low rank",
    "blockdiag": "block-diagonal",
    "halved": "halved",
    "complex_misaligned": "misaligned",
    "complex_qk": "Q/K only",
    "complex_v": "V only",
    "complex_wide": "wide CRoPE",
}

SCHEMES = {  # name -> the model with complex and that with real Q, K and V
    "XPOS (sinusoids)": ("complex_xpos", "xpos"),
    "learned positions": ("complex_learned", "learned"),
    "T5's bias": ("complex_relative_bias", "relative_bias"),
    "ALiBi": ("complex_alibi", "alibi"),
    "NoPE (no positions)": ("complex_nope", "nope"),
    "RoPE": ("crope", "rope"),
    "RoPE with linear attention": ("crope_linear", "rope_linear"),
}
