"""What a scheme fixes, without torch: its name, its sizes, and what it cannot be combined with.

The configuration's checks and the counting read these as the model does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crope.config import ModelConfig

# A position scheme is known by its file, crope/model/positions/<position>.py; `none` is their base class.
POSITION_FILES = tuple(sorted(Path(__file__).with_name("positions").glob("[!_]*.py")))
POSITIONS = (*(path.stem for path in POSITION_FILES), "none")
CHUNK = 64  # tokens that linear attention multiplies out at once; the state passes from chunk to chunk


def attention_width(model: ModelConfig) -> int:
    """E, the common width of Q, K and V over all heads: d_model but for the schemes of `WIDTHS`."""
    return WIDTHS.get(model.projection, lambda model: model.d_model)(model)


def head_width(model: ModelConfig) -> int:
    """K = E / n_heads."""
    return attention_width(model) // model.n_heads


def half_rank(in_features: int, out_features: int) -> int:
    """The largest rank r whose two factors, r (D + E) weights, hold at most half of the dense D E: D/4 where D = E."""
    return in_features * out_features // (2 * (in_features + out_features))


def saved_as_width(model: ModelConfig) -> int:
    """1.6 d_model to the nearest multiple of 2 n_heads: complex Q, K, V and a full output projection, 2.5 E D weights,
    are then the 4 D^2 of RoPE's attention. Rounding moves E by at most n_heads: a block of RoPE (12 D^2) is met within
    2.5 n_heads / (12 D), 0.65 % at D = 128 and 4 heads (in fact 0.52 %, with E = 208).
    """
    step = 2 * model.n_heads
    return step * round(1.6 * model.d_model / step)


WIDTHS: dict[str, Callable[[ModelConfig], int]] = {
    "halved": lambda model: model.d_model // 2,
    "complex_wide": saved_as_width,
}


def biases_scores(position: str) -> bool:
    """Whether a scheme needs a matrix of scores. Its class alone knows, so torch is imported where this is asked."""
    from crope.model.positions import Positions, find_scheme

    return find_scheme(position).bias is not Positions.bias


def scheme_problems(model: ModelConfig) -> Iterator[tuple[str, str]]:
    """Combinations of position, projection, attention and size that cannot be, or would be another model."""
    if model.attention == "linear" and biases_scores(model.position):
        yield (
            "model.position",
            "is added to the matrix of scores, which model.attention=linear never forms; take model.attention=softmax "
            "or another position",
        )
    if head_width(model) % 2:
        yield (
            "model.d_model",
            f"gives heads of odd width {head_width(model)} (model.n_heads={model.n_heads}, "
            f"model.projection={model.projection}); a pair of channels is one rotation",
        )
    if model.projection == "lowrank" and half_rank(model.d_model, attention_width(model)) < 1:
        yield "model.d_model", "leaves model.projection=lowrank no rank at half the weights; take at least 4"
    if model.projection == "complex_misaligned" and model.position != "rotary":
        yield (
            "model.projection",
            f"is misaligned with the rotation of model.position=rotary; with model.position={model.position} there is "
            "none, and it is complex by another name",
        )
    if model.projection == "complex_misaligned" and head_width(model) == 2:
        yield "model.projection", "needs two pairs of channels a head to misalign: a larger d_model or fewer n_heads"
