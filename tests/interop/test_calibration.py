"""Fits to activations, and which tokens count."""

import pytest
import torch
from torch import nn

from crope.adapt import complexify, merge
from crope.interop.calibration import calibrate
from tests.interop.toys import IDS, build


def assert_least_squares(layer, outputs, targets):
    """No change of the layer's weights brings the outputs nearer to the targets; but for a ridge."""
    (outputs - targets).square().mean().backward()
    for value in layer.parameters():
        assert value.grad.abs().max() < 1e-3


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_activations_is_the_least_squares_fit_of_the_outputs(pairing):
    torch.manual_seed(0)
    x = torch.randn(40, 6) @ torch.randn(6, 6) + 1
    model = nn.Sequential(nn.Linear(6, 8, bias=False))
    y = model(x).detach()
    pairs = {"names": ["0"], "pairing": pairing, "head_dim": 4}
    batches = [{"input": x[:30]}, x[30:]]
    [replaced] = complexify(model, init="activations", inputs=batches, **pairs)
    fit = model(x)
    assert_least_squares(model, fit, y)
    kept = 1 - (y - fit).square().sum() / y.square().sum()
    assert replaced.kept == pytest.approx(kept.item(), abs=1e-3)


class Masked(nn.Module):
    """A layer that gets its tokens in a row, but with the mask of a batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.other = nn.Linear(2, 2)

    def forward(self, x, attention_mask=None):
        return self.layer(x.flatten(0, -2))


TOKENS = torch.arange(12.0).view(2, 3, 2)
MASK = torch.tensor([[1, 0, 0], [1, 1, 0]])


def test_padding_does_not_count():
    """Moments are those of the three tokens alone."""
    [(_, found)] = calibrate(Masked(), ["layer"], [{"x": TOKENS, "attention_mask": MASK}])
    [(_, expected)] = calibrate(Masked(), ["layer"], [torch.tensor([[0.0, 1], [6, 7], [8, 9]])])
    assert torch.equal(found, expected)


@pytest.mark.parametrize("mask", [MASK[:, :2], {"full": MASK}])
def test_a_mask_that_does_not_fit_the_inputs_is_refused(mask):
    batch = {"x": TOKENS, "attention_mask": mask}
    with pytest.raises(ValueError, match="layer: its inputs are"):
        list(calibrate(Masked(), ["layer"], [batch]))


BAD = [
    ("layer", torch.randn(2, 2), "2 tokens"),
    ("layer", torch.zeros(9, 2), "not all 0"),
    ("layer", torch.full((9, 2), torch.inf), "finite"),
    ("other", TOKENS, "other was not run"),
]


@pytest.mark.parametrize(("name", "x", "word"), BAD)
def test_inputs_that_do_not_determine_the_weights_are_refused(name, x, word):
    with pytest.raises(ValueError, match=word):
        list(calibrate(Masked(), [name], [x]))


def test_sequential_fits_each_layer_to_the_dense_outputs_on_what_it_will_get():
    """Weights and bias of the second layer, on the first layer's fit. A sequence is one attention."""
    torch.manual_seed(0)
    first, second = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))
    model, x = nn.Sequential(first, nn.ReLU(), second), torch.randn(50, 2)
    y = model(x).detach()
    pairs = {"names": ["0.0", "2.0"], "pairing": "half", "head_dim": 2}
    complexify(model, init="sequential", inputs=[x[:20], x[20:]], **pairs)
    assert_least_squares(second, model(x), y)


def test_a_dry_run_with_labels_logs_the_losses_and_what_is_kept(caplog):
    model, names = build(), ["1.self_attn.v_proj"]
    nn.init.normal_(model.lm_head.weight)  # losses that differ in the first digit
    batch = {"input_ids": IDS, "labels": IDS}
    before = model(**batch).loss
    [layer] = complexify(model, names=names, inputs=batch, dry_run=True)
    kept, losses = caplog.messages
    complexify(model, names=names)
    after = model(**batch).loss
    assert abs(after - before) > 0.1
    assert f"keep {layer.kept:.2f}" in kept
    assert losses == f"loss on labels: {before:.3f} nats per token before, {after:.3f} after"


def test_nothing_is_logged_where_nothing_is_lost(caplog):
    model = build()
    complexify(model, init="fresh")
    merge(model)
    complexify(model)  # these weights are complex-linear
    assert not caplog.messages
