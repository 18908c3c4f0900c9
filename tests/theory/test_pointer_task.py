"""The pointer task: tokens and targets by hand, and that evaluation tells a solved task from an
unsolved one.
"""

import math

import numpy as np
import pytest
import torch

from crope.theory import pointer_task
from crope.theory.constructions import set_map
from crope.theory.pointer_task import (
    MODELS,
    NEXNEXT,
    PointerModel,
    Task,
    evaluate_pointers,
    pointer_loss,
    sample_tokens,
    targets,
    train_pointers,
)
from crope.theory.rotary import frequencies

SMALL = Task(
    width=16, words=6, seq_len=12, batch_size=8, max_steps=6, lengths=(12, 24), sequences=4
)


def sample(task: Task, **changes: object) -> torch.Tensor:
    options = {"seed": 0, "step": 0, "sequences": 400, "length": 50, "purpose": "train"}
    return sample_tokens(task, **(options | changes))


def test_targets_by_hand() -> None:
    """next = 0 and nexnext = 1; the last two pointers lead out of the text and are not asked."""
    target_BT, asked_BT = targets(torch.tensor([[0, 5, 1, 0, 7, 1, 0]]))
    assert asked_BT.tolist() == [[True, False, True, True, False, False, False]]
    assert target_BT[asked_BT].tolist() == [1, 4, 4]


def test_a_quarter_of_the_tokens_is_of_either_kind_and_words_are_uniform() -> None:
    counts = torch.bincount(sample(SMALL).flatten(), minlength=8) / 20_000
    assert counts[:2].tolist() == pytest.approx([0.25, 0.25], abs=0.02)
    assert counts[2:].tolist() == pytest.approx([0.5 / 6] * 6, abs=0.01)
    for changed in ({"seed": 1}, {"step": 1}, {"purpose": "test"}):
        assert not torch.equal(sample(SMALL), sample(SMALL, **changed))


def solved(task: Task) -> PointerModel:
    """A CRoPE model set by hand (Eqs. 27 to 29): real channel of complex pair t is token t; one
    value a token.
    """
    model = PointerModel("crope", task, seed=0)
    pairs, phase_J = task.width // 2, np.exp(1j * frequencies(task.width))
    query = np.zeros((pairs, pairs), dtype=complex)
    query[:, 0], query[:, 1] = 3000 * phase_J, 3000 * phase_J**2
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        tokens = torch.arange(task.vocab_size)
        model.embedding.weight[tokens, 2 * tokens] = 1.0
        set_map(model.attention.q_proj, query)
        set_map(model.attention.k_proj, np.ones((pairs, pairs)))
        set_map(model.attention.v_proj, np.eye(pairs))
        model.attention.out_proj.weight.copy_(torch.eye(task.width))
        model.head.weight[tokens, 2 * tokens] = 50.0
    return model


def test_a_solved_model_scores_one_at_every_length() -> None:
    model = solved(SMALL)
    for length in SMALL.lengths:
        tokens_BT = sample(SMALL, length=length, sequences=20, purpose="test")
        found = evaluate_pointers(model, tokens_BT)
        assert found["accuracy"] == 1
        assert found["weight"] > 0.999
        assert pointer_loss(model, tokens_BT).item() < 1e-3


def test_accuracy_leaves_pointers_to_pointers_out() -> None:
    """A head that always names word 2: right where the answer is that word, among answers that are
    words.
    """
    model = solved(SMALL)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias[2] = 1.0
    tokens_BT = sample(SMALL, length=24)
    target_BT, asked_BT = targets(tokens_BT)
    answers = tokens_BT.gather(1, target_BT)[asked_BT]
    words = answers[answers > NEXNEXT]
    expected = (words == 2).double().mean().item()
    assert evaluate_pointers(model, tokens_BT)["accuracy"] == pytest.approx(expected, abs=1e-12)
    assert expected == pytest.approx(1 / 6, abs=0.02)


@pytest.mark.parametrize("name", list(MODELS))
def test_training_learns(name: str) -> None:
    """Below the loss of the best guess without attention: 2 * 1/4 ln 4 + 1/2 ln 12 = 1.94 nats."""
    task = Task(width=16, words=6, seq_len=12, batch_size=16, max_steps=300, lr=1e-2)
    blind = 0.5 * math.log(4) + 0.5 * math.log(12)
    assert train_pointers(name, task, seed=0)[1] < 0.8 * blind


def test_each_length_is_evaluated_at_that_length(monkeypatch) -> None:
    monkeypatch.setattr(
        pointer_task,
        "train_pointers",
        lambda name, task, seed: (PointerModel(name, task, seed=seed), 0.5),
    )
    monkeypatch.setattr(
        pointer_task,
        "evaluate_pointers",
        lambda model, x_BT: {"accuracy": x_BT.shape[1], "weight": len(x_BT)},
    )
    run = pointer_task.pointer_results(SMALL, seeds=1)["runs"][0]
    assert run["by_length"] == {str(n): {"accuracy": n, "weight": 4} for n in (12, 24)}
