"""Fits to activations, and which tokens count."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from crope.adapt import complexify, merge
from crope.interop.calibration import calibrate
from tests.interop.toys import IDS, build, logits


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
    options = {
        "names": ["0"],
        "pairing": pairing,
        "head_dim": 4,
    }
    batches = [{"input": x[:30]}, x[30:]]
    [replaced] = complexify(model, init="activations", inputs=batches, **options)
    fit = model(x)
    assert_least_squares(model, fit, y)
    kept = 1 - (y - fit).square().sum() / y.square().sum()
    assert replaced.kept == pytest.approx(kept.item(), abs=1e-3)


class Masked(nn.Module):
    """A layer that gets its tokens with a mask, as models of transformers do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2, bias=False)
        self.other = nn.Linear(2, 2)
        self.flat = False

    def forward(self, x, attention_mask=None):
        return self.layer(x.flatten(0, 1) if self.flat else x)


TOKENS = torch.tensor([[[1.0, 0], [9, 9], [9, 9]], [[0, 2], [3, 0], [9, 9]]])
MASK = torch.tensor([[1, 0, 0], [1, 1, 0]])


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("mask", [MASK, MASK.bool(), MASK.float()])
def test_padding_does_not_count(mask, flat):
    """The tokens are (1, 0), (0, 2) and (3, 0)."""
    model = Masked()
    model.flat = flat
    batch = {"x": TOKENS, "attention_mask": mask}
    [(_, moments)] = calibrate(model, ["layer"], [batch])
    expected = torch.tensor([[10.0, 0, 4], [0, 4, 2], [4, 2, 3]]) / 3
    torch.testing.assert_close(moments, expected.double().expand(3, -1, -1))


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


class Chain(nn.Module):
    """Two layers, of which the second reads what the first writes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.ModuleDict({"q_proj": nn.Linear(2, 2, bias=False)})
        self.second = nn.ModuleDict({"q_proj": nn.Linear(2, 2)})

    def forward(self, x):
        return self.second["q_proj"](self.first["q_proj"](x).relu())


def test_sequential_fits_each_layer_to_the_dense_outputs_on_what_it_will_get():
    """Weights and bias of the second layer, on the first layer's fit."""
    dense, model, x = Chain(), Chain(), torch.randn(50, 2)
    options = {
        "names": ["q_proj"],
        "pairing": "half",
        "head_dim": 2,
    }
    complexify(model, init="sequential", inputs=[x[:20], x[20:]], **options)
    assert_least_squares(model.second, model(x), dense(x).detach())


def test_a_dry_run_with_labels_logs_the_losses_and_what_is_kept(
    caplog,
):
    model = build()
    nn.init.normal_(model.lm_head.weight)  # losses that differ in the first digit
    batch = {"input_ids": IDS, "labels": IDS}

    def loss():
        predicted = logits(model)[:, :-1].flatten(0, 1)
        return F.cross_entropy(predicted, IDS[:, 1:].flatten()).item()

    before = loss()
    layer = complexify(model, names=["1.self_attn.v_proj"], inputs=batch, dry_run=True)[0]
    kept, losses = caplog.messages
    complexify(model, names=["1.self_attn.v_proj"])
    after = loss()
    assert abs(after - before) > 0.1
    assert f"keep {layer.kept:.2f}" in kept
    assert losses == f"loss on labels: {before:.3f} nats per token before, {after:.3f} after"


def test_nothing_is_logged_where_nothing_is_lost(caplog):
    model = build()
    complexify(model, init="fresh")
    merge(model)
    complexify(model)  # these weights are complex-linear
    assert not caplog.messages
