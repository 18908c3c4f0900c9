"""The paper's contribution: a linear layer constrained to be complex-linear (Eq. 30).

Shapes: B batch, T tokens, D in-features, E out-features (both even; pairs are interleaved).
"""

import copy
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn


class ComplexLinear(nn.Module):
    """A real linear layer constrained to be complex-linear: half the weights of nn.Linear.

    Channels (2j, 2j+1) are one complex number (Eq. 8). Each 2x2 block of the dense weight is [[a,
    b], [-b, a]] (Eq. 30): multiplication by w = a - ib. Rotation and scaling remain, reflections
    are lost (Sec. 3.2). The layer is complex-linear in its own input, never in the residual stream
    before a LayerNorm: subtracting the mean does not commute with i.

    pairing   of the outputs, as in the rotation that follows: "interleaved" as above (GPT-J), or
              "half", channels (i, i + K/2) of each head of width K = head_dim (Llama, GPT-NeoX).
              Input pairs are interleaved in both: no rotation acts on the input.

    Shapes    x_BTD -> y_BTE; a and b: (E/2, D/2) each, E*D/2 weights in total; optional real
              bias (E,).
    Raises    ValueError if a width is odd, or the heads of pairing="half" do not fill the outputs.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        pairing: Literal["interleaved", "half"] = "interleaved",
        head_dim: int | None = None,
    ) -> None:
        super().__init__()
        if in_features % 2 or out_features % 2:
            raise ValueError(
                f"ComplexLinear pairs channels: widths {in_features} -> {out_features} must be even"
            )
        if pairing not in ("interleaved", "half"):
            raise ValueError(f"pairing={pairing!r}: must be 'interleaved' or 'half'")
        if pairing == "half" and (not head_dim or head_dim % 2 or out_features % head_dim):
            raise ValueError(
                f"pairing='half' needs an even head_dim that divides {out_features} outputs, not {head_dim}"
            )
        self.in_features, self.out_features = in_features, out_features
        self.pairing, self.head_dim = pairing, head_dim
        # Shape of the outputs with the two channels of a pair along dimension 1.
        self.pairs = (-1, 2, head_dim // 2) if pairing == "half" and head_dim else (-1, 2)
        shape = (out_features // 2, in_features // 2)
        bound = in_features**-0.5  # that of nn.Linear; zeros in both Q and K would never learn
        self.a = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
        self.b = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    @property
    def weight(self) -> torch.Tensor:
        """Returns the weight of the equivalent nn.Linear. It is computed: a write to it, which
        would be lost, is a RuntimeError of torch.
        """
        with torch.inference_mode():
            return self.dense_weight()

    def dense_weight(self) -> torch.Tensor:
        """Builds the dense real weight of Eq. 30, (E, D). A method, because torch.compile follows
        no property of a superclass.
        """
        # Rows of the first channels of all pairs, a x0 + b x1, and of the second, -b x0 + a x1.
        first = torch.stack((self.a, self.b), dim=-1).flatten(-2)
        second = torch.stack((-self.b, self.a), dim=-1).flatten(-2)
        if self.pairing == "half":
            first = first.unflatten(0, (-1, self.pairs[-1]))
            second = second.unflatten(0, (-1, self.pairs[-1]))
        return torch.stack((first, second), dim=1).flatten(0, -2)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return F.linear(x_BTD, self.dense_weight(), self.bias)

    @classmethod
    def from_linear(cls, linear: nn.Linear, **pairing: Any) -> "ComplexLinear":
        """Returns the complex-linear layer nearest to `linear` (least squares): each 2x2 block
        loses its reflections.

        `pairing` holds the layer's arguments `pairing` and `head_dim`. Weight and bias each keep
        dtype, device and requires_grad.
        """
        with torch.device("meta"):  # no draw of values that are replaced below
            layer = cls(linear.in_features, linear.out_features, **pairing)
        weight = linear.weight.detach().unflatten(0, layer.pairs)
        # In float32 at least: the sum of two float16 numbers may overflow.
        weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
        # (E/2, D/2, 2) each: the rows of the first and second output channels of the pairs.
        first, second = (rows.flatten(0, -2).unflatten(-1, (-1, 2)) for rows in weight.unbind(1))
        values = {
            "a": (first[..., 0] + second[..., 1]) / 2,
            "b": (first[..., 1] - second[..., 0]) / 2,
        }
        for name, value in values.items():
            value = value.to(linear.weight.dtype)
            setattr(layer, name, nn.Parameter(value, requires_grad=linear.weight.requires_grad))
        layer.bias = copy.deepcopy(linear.bias)
        return layer

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, pairing={self.pairing!r}"
