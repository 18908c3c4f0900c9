"""The pointer task: tokens and targets by hand, and that evaluation tells a solved task from an
unsolved one.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from crope.model.complex_linear import ComplexLinear
from crope.model.positions import RotaryEmbedding, SinusoidalPositions
from crope.seeding import stream
from crope.theory.constructions import set_map
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
from crope.theory.rotary import frequencies

SMALL = Task(
    width=16,
    words=6,
    seq_len=12,
    lengths=(12, 24),
    sequences=4,
)
ONE_STEP = replace(SMALL, max_steps=1)


def sample(length: int, sequences: int = 400) -> torch.Tensor:
    return sample_tokens(SMALL, (sequences, length), stream(0, "test"))


def test_targets_by_hand():
    """next = 0 and nexnext = 1; the last two pointers lead out of the text and are not asked."""
    target_BT, asked_BT = targets(torch.tensor([[0, 5, 1, 0, 7, 1, 0]]))
    assert asked_BT.tolist() == [[True, False, True, True, False, False, False]]
    assert target_BT[asked_BT].tolist() == [1, 4, 4]


def test_a_quarter_of_the_tokens_is_of_either_kind_and_words_are_uniform():
    shares = torch.bincount(sample(50).flatten(), minlength=8) / 20_000
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


def solved() -> PointerModel:
    """A CRoPE model set by hand (Eqs. 27 to 29): real channel of complex pair t is token t; one
    value a token.
    """
    model = PointerModel("crope", SMALL, seed=0)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    phase_J = np.exp(1j * frequencies(16))
    query = np.zeros((8, 8), dtype=complex)
    query[:, 0] = 3000 * phase_J
    query[:, 1] = 3000 * phase_J**2
    set_map(model.attention.q_proj, query)
    set_map(model.attention.k_proj, np.ones((8, 8)))
    set_map(model.attention.v_proj, np.eye(8))
    tokens = torch.arange(8)
    with torch.no_grad():
        model.embedding.weight[tokens, 2 * tokens] = 1.0
        model.attention.out_proj.weight.copy_(torch.eye(16))
        model.head.weight[tokens, 2 * tokens] = 50.0
    return model


@pytest.mark.parametrize("length", [12, 24])
def test_a_solved_model_scores_one_at_every_length(length):
    model, tokens_BT = solved(), sample(length, sequences=20)
    found = evaluate_pointers(model, tokens_BT)
    assert found["accuracy"] == 1
    assert found["weight"] > 0.999
    assert pointer_loss(model, tokens_BT).item() < 1e-3


def test_accuracy_leaves_pointers_to_pointers_out():
    """A head that always names word 2 is right at the second of two pointers to words; the others
    point to pointers or out of the text.
    """
    model = solved()
    nn.init.zeros_(model.head.weight)
    with torch.no_grad():
        model.head.bias[2] = 1.0
    tokens_BT = torch.tensor([[0, 5, 0, 2, 1, 3, 0, 1]])
    assert evaluate_pointers(model, tokens_BT)["accuracy"] == 0.5


@pytest.mark.parametrize("name", ["xpos", "rope", "crope"])
def test_training_learns(name):
    """Below the loss of the best guess without attention: 2 * 1/4 ln 4 + 1/2 ln 12 = 1.94 nats."""
    task = Task(
        width=16,
        words=6,
        seq_len=12,
        batch_size=16,
        max_steps=300,
        lr=1e-2,
        lengths=(12,),
    )
    _, loss = train_pointers(name, task, seed=0)
    assert loss < 0.8 * (0.5 * math.log(4) + 0.5 * math.log(12))


def test_the_rate_decays_every_tenth_of_a_run():
    """With a constant gradient each step of Adam is as long as the rate; weights are recorded
    before each of 20 steps.
    """
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    weights = []

    def batch_loss(step: int) -> torch.Tensor:
        weights.append(model.weight.item())
        return model.weight.sum()

    training = Training(max_steps=20, lr=1e-3, lr_gamma=0.5)
    optimise(model, batch_loss, training)
    rates = -np.diff(weights)
    assert rates[:6] == pytest.approx([1e-3, 1e-3, 5e-4, 5e-4, 2.5e-4, 2.5e-4], rel=1e-3)


def test_each_step_and_seed_has_a_batch_of_its_own():
    first_BT = training_batch(SMALL, seed=3, step=0)
    later_BT = training_batch(SMALL, seed=3, step=1)
    other_BT = training_batch(SMALL, seed=4, step=0)
    assert first_BT.shape == (32, 12)
    assert not torch.equal(first_BT, later_BT)
    assert not torch.equal(first_BT, other_BT)


def test_one_step_reports_the_loss_of_the_seeds_model_and_batch():
    _, loss = train_pointers("rope", ONE_STEP, seed=2)
    model = PointerModel("rope", ONE_STEP, seed=2)
    expected = pointer_loss(model, training_batch(ONE_STEP, seed=2, step=0))
    assert loss == expected.item()


@pytest.fixture(scope="module")
def results():
    """Two seeds of each model after one step."""
    return pointer_results(ONE_STEP, seeds=2)


@pytest.mark.parametrize(("index", "name"), [(0, "xpos"), (1, "rope"), (2, "crope")])
def test_results_are_those_of_the_models_they_name(index, name, results):
    """Of seed 0, the first three runs; 4 held-out sequences of 24 tokens."""
    model, loss = train_pointers(name, ONE_STEP, seed=0)
    tokens_BT = sample_tokens(SMALL, (4, 24), stream(0, "pointer/test", 24))
    example_TT = model.weights(torch.tensor([EXAMPLE]))[0]
    run = results["runs"][index]
    assert run["model"] == name
    assert run["loss_nats"] == loss
    assert run["by_length"]["24"] == evaluate_pointers(model, tokens_BT)
    assert results["attention"][name] == example_TT.tolist()
