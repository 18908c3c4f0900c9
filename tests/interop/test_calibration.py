"""Fits to activations against torch.linalg.lstsq, and which tokens count."""

from typing import Any

import pytest
import torch
from torch import nn

from crope.adapt import complexify
from crope.interop.calibration import input_moments
from crope.model.complex_linear import ComplexLinear
from tests.interop.toys import IDS, build


def unit_outputs(x: torch.Tensor, pairing: Any) -> torch.Tensor:
    """Outputs of each weight of a and b alone, for a layer 6 -> 8: a column for each."""
    columns = []
    for weights in torch.eye(24).unflatten(1, (2, 4, 3)):
        unit = ComplexLinear(6, 8, pairing=pairing, head_dim=4)
        unit.a.data, unit.b.data = weights
        columns.append(unit(x).detach().flatten())
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_activations_is_the_least_squares_fit_of_the_outputs(pairing: Any, bias: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 6) @ torch.randn(6, 6) + 1
    model = nn.Sequential(nn.Linear(6, 8, bias=bias))
    y = model(x).detach()
    matrix = unit_outputs(x, pairing)
    if bias:
        matrix = torch.cat((matrix, torch.eye(8).repeat(40, 1)), dim=1)
    solution = torch.linalg.lstsq(matrix, y.flatten()[:, None]).solution
    fit = (matrix @ solution).view_as(y)
    options: dict[str, Any] = {"names": ["0"], "pairing": pairing, "head_dim": 4}
    batches = [{"input": x[:30]}, x[30:]]
    [replaced] = complexify(model, init="activations", inputs=batches, **options)
    assert model.training
    torch.testing.assert_close(model(x), fit, rtol=0, atol=2e-3)  # the ridge
    total = (y - y.mean(dim=0) if bias else y).square().sum()
    kept = 1 - (y - fit).square().sum() / total
    assert replaced.kept == pytest.approx(kept.item(), abs=1e-3)


class Masked(nn.Module):
    """A layer that gets its tokens with a mask, as models of transformers do."""

    def __init__(self, *, flat: bool = False) -> None:
        super().__init__()
        self.flat = flat
        self.layer = nn.Linear(2, 2, bias=False)

    def forward(self, x: torch.Tensor, attention_mask: Any) -> torch.Tensor:
        return self.layer(x.flatten(0, 1) if self.flat else x)


TOKENS = torch.tensor([[[1.0, 0], [9, 9], [9, 9]], [[0, 2], [3, 0], [9, 9]]])
MASK = torch.tensor([[1, 0, 0], [1, 1, 0]])


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_padding_does_not_count(flat: bool, dtype: torch.dtype) -> None:
    """The tokens are (1, 0), (0, 2) and (3, 0)."""
    batch = {"x": TOKENS, "attention_mask": MASK.to(dtype)}
    moments = input_moments(Masked(flat=flat), ["layer"], batch)["layer"]
    expected = torch.tensor([[10.0, 0, 4], [0, 4, 2], [4, 2, 3]]).double() / 3
    torch.testing.assert_close(moments, expected)


@pytest.mark.parametrize("mask", [MASK.T, MASK[:, None], {"full": MASK}])
def test_a_mask_that_does_not_fit_the_inputs_is_refused(mask: Any) -> None:
    batch = {"x": TOKENS, "attention_mask": mask}
    with pytest.raises(ValueError, match=r"layer: its inputs are .* the attention_mask is"):
        input_moments(Masked(), ["layer"], batch)


BAD = [
    (torch.randn(2, 2), "2 tokens .* cannot determine the weights of 2"),
    (torch.zeros(9, 2), "not all 0"),
    (torch.full((9, 2), torch.inf), "finite"),
]


@pytest.mark.parametrize(("x", "word"), BAD)
def test_inputs_that_do_not_determine_the_weights_are_refused(x: torch.Tensor, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        input_moments(nn.Sequential(nn.Linear(2, 2)), ["0"], x)


def test_a_layer_that_the_inputs_do_not_reach_is_named() -> None:
    model = Masked()
    model.other = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="other was not run"):
        input_moments(model, ["other"], {"x": TOKENS, "attention_mask": None})


def test_calibration_keeps_no_keys_and_values_and_leaves_the_configuration() -> None:
    model = build()
    caches = []

    def note(layer: Any, args: Any, kwargs: Any, output: Any) -> None:
        caches.append(kwargs["past_key_values"])

    model.model.layers[0].self_attn.register_forward_hook(note, with_kwargs=True)
    input_moments(model, ["model.layers.0.mlp.up_proj"], IDS)
    assert caches == [None]
    assert model.config.use_cache is True
