"""Recall: the task and its answers by hand, accuracy, thresholds, and runs that continue."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from crope.errors import UserError
from crope.model.complex_linear import ComplexLinear
from crope.model.projections import ConjugateLinear, LowRankLinear
from crope.seeding import stream
from crope.theory import recall
from crope.theory.constructions import set_map
from crope.theory.recall import (
    Plan,
    query_logits,
    read_runs,
    recall_accuracy,
    recall_model,
    run_recall,
    sample_recall,
    threshold,
    train_recall,
    training_batch,
)

SMALL = Plan(
    keys=12,
    values=5,
    pairs=(2, 6),
    d_model=32,
    batch_size=4,
    max_steps=1,
    sequences=8,
    widths=(4, 8),
    seeds=(1,),
)


def sample(plan=SMALL, sequences=50):
    """Six pairs: tokens (sequences, 18) and answers (sequences, 6)."""
    return sample_recall(plan, pairs=6, sequences=sequences, generator=stream(0, "test"))


# The task


def test_answers_are_the_values_of_the_queried_keys():
    """Keys are tokens 0 to 11, values 12 to 16."""
    tokens_BT, answers_BP = sample()
    for tokens, answers in zip(tokens_BT.tolist(), answers_BP.tolist(), strict=True):
        value_of = dict(zip(tokens[:12:2], tokens[1:12:2], strict=True))
        assert [value_of[key] for key in tokens[12:]] == answers
        assert set(tokens[12:]) == set(value_of)
        assert len(value_of) == 6
        assert max(value_of) < 12 <= min(answers)


def test_a_key_says_nothing_about_its_value():
    """Each of 12 keys has each of 5 values equally often."""
    tokens_BT, answers_BP = sample(sequences=20_000)
    both = 5 * tokens_BT[:, 12:] + answers_BP - 12
    shares = torch.bincount(both.flatten()) / both.numel()
    assert shares.tolist() == pytest.approx([1 / 60] * 60, rel=0.1)


def test_accuracy_by_hand():
    """Right, wrong, right."""
    logits_PV = torch.eye(3)[[1, 0, 2]]
    assert recall_accuracy(logits_PV, torch.tensor([1, 1, 2])) == pytest.approx(2 / 3)


# The models


@pytest.mark.parametrize(("gain", "lowest", "highest"), [(10.0, 1, 1), (0.0, 0, 0.5)])
@torch.no_grad()
def test_weights_set_by_hand_solve_the_task(gain, lowest, highest):
    """As the objection has it: equality is a complex-linear form. Without a score, they do not. Keys
    are orthogonal in the first half of the channels, so that ShiftedRotary's roll puts a value's
    key into the second half; Q reads the former, K the latter.
    """
    plan = replace(SMALL, keys=8, values=8, d_model=64)
    model = recall_model("complex", plan, width=64, seed=0)
    block = model.blocks[0]
    for layer in (block.ffn_down, block.attn.out_proj, model.embedding):
        nn.init.zeros_(layer.weight)
    pairs = torch.arange(8)
    slow = 24 + pairs  # rotated least
    q, k, v = np.zeros((3, 32, 32))
    q[slow, pairs] = gain
    k[slow, 16 + pairs] = gain
    v[slow, 8 + pairs] = 1.0
    for layer, values in zip(block.attn.qkv, (q, k, v), strict=True):
        set_map(layer, values)
    model.embedding.weight[pairs, 2 * pairs] = 1.0  # key i: the real channel of pair i
    model.embedding.weight[8 + pairs, 16 + 2 * pairs] = 1.0  # value i: that of pair 8 + i
    block.attn.out_proj.weight[16 + 2 * pairs, 2 * slow] = 50.0
    tokens_BT, answers_BP = sample(plan)
    assert lowest <= recall_accuracy(query_logits(model, tokens_BT), answers_BP) <= highest


def test_halved_is_rope_at_half_the_head_width_to_the_bit():
    tokens_BT, _ = sample()
    halved = recall_model("halved", SMALL, width=16, seed=3)
    rope = recall_model("real", SMALL, width=8, seed=3)
    assert torch.equal(query_logits(halved, tokens_BT), query_logits(rope, tokens_BT))


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("rope", nn.Linear),
        ("crope", ComplexLinear),
        ("conjugate", ConjugateLinear),
        ("lowrank", LowRankLinear),
    ],
)
def test_each_model_has_its_projection(model, kind):
    made = recall_model(recall.PROJECTIONS[model], SMALL, width=8, seed=0)
    assert type(made.blocks[0].attn.q_proj) is kind


# Training


def test_training_learns():
    """2 pairs: far above the 1/2 of naming either value."""
    plan = replace(SMALL, pairs=(2,), batch_size=32, max_steps=160, lr=1e-2)
    assert train_recall("crope", plan, width=16, seed=1)["accuracy_2"] > 0.9


def test_numbers_of_pairs_take_turns():
    """2, 6, 2 pairs: 6, 18, 6 tokens."""
    shapes = [training_batch(SMALL, seed=1, step=step)[0].shape for step in range(3)]
    assert shapes == [(4, 6), (4, 18), (4, 6)]


def test_each_step_and_seed_has_a_batch_of_its_own():
    first_BT, _ = training_batch(SMALL, seed=1, step=1)
    later_BT, _ = training_batch(SMALL, seed=1, step=3)
    other_BT, _ = training_batch(SMALL, seed=2, step=1)
    assert not torch.equal(first_BT, later_BT)
    assert not torch.equal(first_BT, other_BT)


def test_one_step_reports_the_loss_of_the_seeds_model_and_batch():
    row = train_recall("rope", SMALL, width=4, seed=2)
    model = recall_model("real", SMALL, width=4, seed=2)
    tokens_BT, answers_BP = training_batch(SMALL, seed=2, step=0)
    expected = F.cross_entropy(query_logits(model, tokens_BT).mT, answers_BP)
    assert row["loss_nats"] == expected.item()


def test_a_killed_command_continues_where_it_stopped(monkeypatch, tmp_path):
    """Rows stay as they are, to the byte, and none is trained twice."""
    file = tmp_path / "new" / "recall.csv"

    def killed(model, plan, **run):
        if (model, run["width"]) == ("conjugate", 8):
            raise KeyboardInterrupt
        return train_recall(model, plan, **run)

    monkeypatch.setattr(recall, "train_recall", killed)
    with pytest.raises(KeyboardInterrupt):
        run_recall(SMALL, file)
    before = file.read_text()
    monkeypatch.undo()
    run_recall(SMALL, file)
    assert before.count("\n") == 1 + 6
    assert file.read_text().startswith(before)
    runs = read_runs(file, SMALL)
    assert runs["model"].tolist() == 2 * ["rope", "crope", "conjugate", "lowrank"]
    assert runs.iloc[7].to_dict() == train_recall("lowrank", SMALL, width=8, seed=1)


def test_runs_of_other_settings_are_kept_apart(tmp_path):
    file = tmp_path / "recall.csv"
    plans = [replace(SMALL, widths=(4,), pairs=pairs) for pairs in ((2, 6), (2, 4))]
    for plan in plans:
        run_recall(plan, file)
    for plan in plans:
        runs = read_runs(file, plan)
        assert len(runs) == 4
        assert runs[f"accuracy_{plan.pairs[1]}"].notna().all()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("model,width,seed\n", "settings"),
        ("model,width,seed,loss_nats,settings\nrope,four,1,0.1,1e234567\n", "four"),
    ],
)
def test_a_file_that_is_no_table_of_runs_is_named(text, word, tmp_path):
    file = tmp_path / "recall.csv"
    file.write_text(text)
    with pytest.raises(UserError, match=rf"recall\.csv: .*{word}"):
        run_recall(SMALL, file)
    assert file.read_text() == text


# Thresholds


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([0.1, 0.5, 0.9, 1.0], 16.0),
        ([0.95, 0.5, 1.0, 1.0], 0.0),
        ([0.1, 0.95, 0.2, 1.0], 4 * 2 ** (0.8 / 0.85)),  # the first crossing
        ([0.1, 0.2, 0.3, 0.89], math.inf),
    ],
)
def test_threshold_by_hand(accuracies, expected):
    assert threshold([4, 8, 16, 32], accuracies, 0.9) == pytest.approx(expected)
