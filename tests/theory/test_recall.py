"""Recall: the task and its answers by hand, accuracy, thresholds, and runs that continue."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
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
)

SMALL = Plan(
    keys=12,
    values=5,
    pairs=(2, 6),
    d_model=32,
    batch_size=4,
    max_steps=2,
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
        keys, values, queries = tokens[:12:2], tokens[1:12:2], tokens[12:]
        value_of = dict(zip(keys, values, strict=True))
        assert [value_of[key] for key in queries] == answers
        assert sorted(queries) == sorted(keys)
        assert len(set(keys)) == 6
        assert max(keys) < 12 <= min(values)


def test_a_key_says_nothing_about_its_value():
    """Each of 12 keys has each of 5 values equally often."""
    tokens_BT, answers_BP = sample(sequences=20_000)
    both = 5 * tokens_BT[:, 12:] + answers_BP - 12
    shares = torch.bincount(both.flatten()) / both.numel()
    assert shares.tolist() == pytest.approx([1 / 60] * 60, rel=0.1)


def test_accuracy_by_hand():
    """Right, wrong, right."""
    logits_BPV = torch.tensor([[[0.1, 0.9, 0.0], [5.0, 4.0, 3.0], [-3.0, -2.0, -1.0]]])
    assert recall_accuracy(logits_BPV, torch.tensor([[1, 1, 2]])) == pytest.approx(2 / 3)


# The models


def solve_by_hand(projection, gain):
    """Accuracy of a model set by hand. Keys are orthogonal in the first half of the channels, so
    that ShiftedRotary's roll puts a value's key into the second half; Q reads the former, K the
    latter.
    """
    plan = replace(SMALL, keys=8, values=8, d_model=64)
    model = recall_model(projection, plan, width=64, seed=0)
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
    with torch.no_grad():
        model.embedding.weight[pairs, 2 * pairs] = 1.0  # key i: the real channel of pair i
        model.embedding.weight[8 + pairs, 16 + 2 * pairs] = 1.0  # value i: that of pair 8 + i
        block.attn.out_proj.weight[16 + 2 * pairs, 2 * slow] = 50.0
        tokens_BT, answers_BP = sample(plan)
        return recall_accuracy(query_logits(model, tokens_BT), answers_BP)


@pytest.mark.parametrize("projection", ["real", "complex"])
def test_weights_set_by_hand_solve_the_task(projection):
    """As the objection has it: equality is a complex-linear form. Without a score, they do not."""
    assert solve_by_hand(projection, gain=10.0) == 1
    assert solve_by_hand(projection, gain=0.0) < 0.5


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
    plan = replace(
        SMALL,
        pairs=(2,),
        batch_size=32,
        max_steps=160,
        lr=1e-2,
    )
    assert train_recall("crope", plan, width=16, seed=1)["accuracy_2"] > 0.9


@pytest.fixture
def sampled(monkeypatch):
    """The sequences that train_recall asks for, in order."""
    seen = []
    real = recall.sample_recall

    def note(*args, **options):
        tokens_BT, answers_BP = real(*args, **options)
        seen.append(tokens_BT)
        return tokens_BT, answers_BP

    monkeypatch.setattr(recall, "sample_recall", note)
    return seen


def test_numbers_of_pairs_take_turns(sampled):
    """Five steps of training on 4 sequences, then 8 held-out ones of each number of pairs."""
    train_recall("rope", replace(SMALL, max_steps=5), width=4, seed=1)
    pairs = [(len(tokens_BT), tokens_BT.shape[1] // 3) for tokens_BT in sampled]
    assert pairs == [(4, 2), (4, 6), (4, 2), (4, 6), (4, 2), (8, 2), (8, 6)]


def test_models_share_batches_and_all_runs_share_held_out_sequences(sampled):
    """Two steps and two held-out samples a run."""
    train_recall("rope", SMALL, width=4, seed=1)
    train_recall("crope", SMALL, width=8, seed=1)
    train_recall("rope", SMALL, width=4, seed=2)
    sequences = [tokens_BT.tolist() for tokens_BT in sampled]
    rope, crope, second_seed = sequences[:4], sequences[4:8], sequences[8:]
    assert crope == rope
    assert second_seed[0] not in rope
    assert second_seed[2:] == rope[2:]


ALL = [
    ("rope", 4, 1),
    ("crope", 4, 1),
    ("conjugate", 4, 1),
    ("lowrank", 4, 1),
    ("rope", 8, 1),
    ("crope", 8, 1),
    ("conjugate", 8, 1),
    ("lowrank", 8, 1),
]


class Trained(list):
    """Runs that were trained, in place of train_recall; training gives made-up numbers at once."""

    killed_at = 99

    def __call__(self, model, plan, *, width, seed):
        if len(self) == self.killed_at:
            raise KeyboardInterrupt
        self.append((model, width, seed))
        row = {
            "model": model,
            "width": width,
            "seed": seed,
            "loss_nats": 0.1 + 0.2,  # a number of 17 digits
            "settings": plan.settings,
        }
        for pairs in plan.pairs:
            row[f"accuracy_{pairs}"] = width / 10
        return row


@pytest.fixture
def trained(monkeypatch):
    trained = Trained()
    monkeypatch.setattr(recall, "train_recall", trained)
    return trained


def test_a_killed_command_continues_where_it_stopped(trained, tmp_path):
    """Rows stay as they are, to the byte."""
    file = tmp_path / "new" / "recall.csv"
    trained.killed_at = 3
    with pytest.raises(KeyboardInterrupt):
        run_recall(SMALL, file)
    before = file.read_text()
    trained.killed_at = 99
    run_recall(SMALL, file)
    assert trained == ALL
    assert before.splitlines()[1] == f"rope,4,1,0.30000000000000004,{SMALL.settings},0.4,0.4"
    assert file.read_text().startswith(before)
    assert len(read_runs(file, SMALL)) == 8


@pytest.mark.parametrize("change", [{"lr": 1.0}, {"pairs": (2, 4)}])
def test_runs_of_other_settings_are_kept_apart(change, trained, tmp_path):
    file = tmp_path / "recall.csv"
    other = replace(SMALL, **change)
    run_recall(SMALL, file)
    run_recall(other, file)
    assert trained == ALL * 2
    for plan in (SMALL, other):
        runs = read_runs(file, plan)
        assert len(runs) == 8
        assert runs[f"accuracy_{plan.pairs[1]}"].notna().all()


def test_a_real_run_is_stored_and_found_again(tmp_path):
    plan = replace(SMALL, widths=(4,))
    run_recall(plan, tmp_path / "recall.csv")
    runs = read_runs(tmp_path / "recall.csv", plan).to_dict("records")
    assert runs[3] == train_recall("lowrank", plan, width=4, seed=1)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "No columns"),
        ("model,width,seed\nrope,4,1\n", "settings"),
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
        ([0.1, 0.8, 1.0, 1.0], 8 * 2**0.5),  # half way in log width between 8 and 16
        ([0.95, 0.5, 1.0, 1.0], 0.0),
        ([0.1, 0.95, 0.2, 1.0], 4 * 2 ** (0.8 / 0.85)),  # the first crossing
        ([0.1, 0.2, 0.3, 0.89], math.inf),
    ],
)
def test_threshold_by_hand(accuracies, expected):
    assert threshold([4, 8, 16, 32], accuracies, 0.9) == pytest.approx(expected)
