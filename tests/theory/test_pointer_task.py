"""The pointer task: tokens and targets by hand, and that evaluation tells a solved task from an
unsolved one.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from crope.model.complex_linear import ComplexLinear
from crope.model.positions import RotaryEmbedding, SinusoidalPositions
from crope.seeding import stream
from crope.theory.pointer_task import (
    EXAMPLE,
    PointerModel,
    Task,
    Training,
    evaluate_pointers,
    optimise,
    pointer_loss,
    pointer_results,
    sample_tokens,
    targets,
    train_pointers,
    training_batch,
)

SMALL = Task(
    width=16,
    words=6,
    seq_len=12,
    max_steps=1,
    lengths=(12, 24),
    sequences=4,
)


def sample(*shape):
    return sample_tokens(SMALL, shape, stream(0, "test"))


def test_targets_by_hand():
    """next = 0 and nexnext = 1; the last two pointers lead out of the text and are not asked."""
    target_BT, asked_BT = targets(torch.tensor([[0, 5, 1, 0, 7, 1, 0]]))
    assert asked_BT.tolist() == [[True, False, True, True, False, False, False]]
    assert target_BT[asked_BT].tolist() == [1, 4, 4]


def test_a_quarter_of_the_tokens_is_of_either_kind_and_words_are_uniform():
    shares = torch.bincount(sample(400, 50).flatten(), minlength=8) / 20_000
    assert shares[:2].tolist() == pytest.approx([0.25, 0.25], abs=0.02)
    assert shares[2:].tolist() == pytest.approx([0.5 / 6] * 6, abs=0.01)


@pytest.mark.parametrize(
    ("name", "positions", "projection"),
    [
        ("xpos", SinusoidalPositions, nn.Linear),
        ("rope", RotaryEmbedding, nn.Linear),
        ("crope", RotaryEmbedding, ComplexLinear),
    ],
)
def test_models_are_the_papers(name, positions, projection):
    model = PointerModel(name, SMALL, seed=0)
    assert type(model.positions) is positions
    for layer in model.attention.qkv:
        assert type(layer) is projection


def test_loss_accuracy_and_weight_by_loops():
    """Accuracy leaves out pointers to pointers, and all leave out those that lead out of the text."""
    model, tokens_BT = PointerModel("crope", SMALL, seed=0), sample(20, 24)
    logits_BTV, weights_BTT = model(tokens_BT), model.weights(tokens_BT)
    losses, right, weights = [], [], []
    for b, text in enumerate(tokens_BT.tolist()):
        for m, token in enumerate(text):
            target = m + token + 1
            if token < 2 and target < 24:
                losses.append(-logits_BTV[b, m].log_softmax(-1)[text[target]].item())
                weights.append(weights_BTT[b, m, target].item())
                if text[target] >= 2:
                    right.append(logits_BTV[b, m].argmax().item() == text[target])
    found = evaluate_pointers(model, tokens_BT)
    assert min(weights) > 0  # no mask
    assert pointer_loss(model, tokens_BT).item() == pytest.approx(np.mean(losses))
    assert found["accuracy"] == pytest.approx(np.mean(right))
    assert found["weight"] == pytest.approx(np.mean(weights))


def test_training_learns():
    """Below the loss of the best guess without attention: 2 * 1/4 ln 4 + 1/2 ln 12 = 1.94 nats."""
    task = replace(SMALL, batch_size=16, max_steps=300, lr=1e-2)
    _, loss = train_pointers("xpos", task, seed=0)
    assert loss < 0.8 * 1.94


def test_the_rate_decays_every_tenth_of_a_run():
    """With a constant gradient each step of Adam is as long as the rate; weights are recorded
    before each of 20 steps.
    """
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    weights = []

    def batch_loss(step):
        weights.append(model.weight.item())
        return model.weight.sum()

    optimise(model, batch_loss, Training(max_steps=20, lr=1e-3, lr_gamma=0.5))
    rates = -np.diff(weights)
    assert rates[1:5] == pytest.approx([1e-3, 5e-4, 5e-4, 2.5e-4], rel=1e-3)


def test_each_step_and_seed_has_a_batch_of_its_own():
    first_BT = training_batch(SMALL, seed=3, step=0)
    later_BT = training_batch(SMALL, seed=3, step=1)
    other_BT = training_batch(SMALL, seed=4, step=0)
    assert first_BT.shape == (32, 12)
    assert not torch.equal(first_BT, later_BT)
    assert not torch.equal(first_BT, other_BT)


def test_one_step_reports_the_loss_of_the_seeds_model_and_batch():
    _, loss = train_pointers("rope", SMALL, seed=2)
    model = PointerModel("rope", SMALL, seed=2)
    expected = pointer_loss(model, training_batch(SMALL, seed=2, step=0))
    assert loss == expected.item()


def test_results_are_those_of_the_models_they_name():
    """Of seed 0, the first three runs; 4 held-out sequences of 24 tokens."""
    results = pointer_results(SMALL, seeds=2)
    tokens_BT = sample_tokens(SMALL, (4, 24), stream(0, "pointer/test", 24))
    for run in results["runs"][:3]:
        model, loss = train_pointers(run["model"], SMALL, seed=0)
        example_TT = model.weights(torch.tensor([EXAMPLE]))[0]
        assert run["loss_nats"] == loss
        assert run["by_length"]["24"] == evaluate_pointers(model, tokens_BT)
        assert results["attention"][run["model"]] == example_TT.tolist()
