"""Recall: the task and its answers by hand, accuracy, thresholds, and runs that continue."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import Linear

from crope.model.complex_linear import ComplexLinear
from crope.model.projections import ConjugateLinear, LowRankLinear
from crope.theory import recall
from crope.theory import report as make
from crope.theory.constructions import set_map
from crope.theory.recall import (
    PROJECTIONS,
    Plan,
    plan_runs,
    query_logits,
    read_result,
    recall_accuracy,
    recall_frame,
    recall_model,
    result_path,
    run_recall,
    sample_recall,
    threshold,
    train_recall,
)
from tests.conftest import contents

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


def sample(plan: Plan = SMALL, **changes: object) -> tuple[torch.Tensor, torch.Tensor]:
    options = {"seed": 0, "step": 0, "pairs": 6, "sequences": 50, "purpose": "train"}
    return sample_recall(plan, **(options | changes))


def test_answers_are_the_values_of_the_queried_keys() -> None:
    tokens_BT, answers_BP = sample()
    for tokens, answers in zip(tokens_BT.tolist(), answers_BP.tolist(), strict=True):
        stored, queries = tokens[:12], tokens[12:]
        value_of = dict(zip(stored[::2], stored[1::2], strict=True))
        assert [value_of[key] for key in queries] == answers
        assert sorted(queries) == sorted(value_of) and len(value_of) == 6
        assert max(stored[::2]) < 12 <= min(stored[1::2]) <= max(stored[1::2]) < 17


def test_sequences_are_a_function_of_their_arguments() -> None:
    assert torch.equal(sample()[0], sample()[0])
    for changed in ({"seed": 1}, {"step": 1}, {"purpose": "test"}):
        assert not (sample()[0] == sample(**changed)[0]).all(dim=1).any()


def test_neither_key_nor_place_nor_order_tells_the_answer() -> None:
    """Each key has each value, and each pair is queried at each place, equally often."""
    tokens_BT, answers_BP = sample(sequences=20_000)
    keys, answers = tokens_BT[:, 12:].flatten(), answers_BP.flatten() - 12
    share = torch.bincount(keys * 5 + answers).double() / len(keys)
    assert share.numpy() == pytest.approx(np.full(60, 1 / 60), rel=0.1)
    at_BPP = tokens_BT[:, 12:, None] == tokens_BT[:, None, :12:2]
    assert at_BPP.double().mean(0).numpy() == pytest.approx(np.full((6, 6), 1 / 6), rel=0.1)


def test_accuracy_by_hand() -> None:
    """Right, wrong, right, and a wrong one of another sequence: 2 of 4."""
    logits_BPV = torch.tensor(
        [[[0.1, 0.9, 0.0], [5.0, 4.0, 3.0]], [[-3.0, -2.0, -1.0], [0.0, 1.0, 0.5]]]
    )
    assert recall_accuracy(logits_BPV, torch.tensor([[1, 1], [2, 0]])) == 0.5


def solve_by_hand(projection: str, gain: float) -> float:
    """Accuracy of a model set by hand. Keys are orthogonal in the first half of the channels, so
    that ShiftedRotary's roll puts a value's key into the second half; Q reads the former, K the
    latter.
    """
    plan = replace(SMALL, keys=8, values=8, d_model=64)
    model = recall_model(projection, plan, width=64, seed=0)
    attention = model.blocks[0].attn
    pairs = torch.arange(8)
    with torch.no_grad():
        for parameter in model.blocks[0].ffn_down.parameters():
            parameter.zero_()
        model.embedding.weight.zero_()
        model.embedding.weight[pairs, 2 * pairs] = 1.0  # key i: the real channel of pair i
        model.embedding.weight[8 + pairs, 16 + 2 * pairs] = 1.0  # value i: that of pair 8 + i
        slow = 24 + pairs  # rotated least
        maps = np.zeros((3, 32, 32))
        maps[0, slow, pairs] = maps[1, slow, 16 + pairs] = gain
        maps[2, slow, 8 + pairs] = 1.0
        layers = (attention.q_proj, attention.k_proj, attention.v_proj)
        for layer, values in zip(layers, maps, strict=True):
            set_map(layer, values)
        attention.out_proj.weight.zero_()
        attention.out_proj.weight[16 + 2 * pairs, 2 * slow] = 50.0
    tokens_BT, answers_BP = sample(plan)
    return recall_accuracy(query_logits(model, tokens_BT), answers_BP)


@pytest.mark.parametrize("projection", ["real", "complex"])
def test_weights_set_by_hand_solve_the_task(projection: str) -> None:
    """As the objection has it: equality is a complex-linear form. Without a score, they do not."""
    assert solve_by_hand(projection, gain=10.0) == 1
    assert solve_by_hand(projection, gain=0.0) < 0.5


def test_training_learns() -> None:
    """2 pairs: far above the 1/2 of naming either value."""
    plan = replace(SMALL, pairs=(2,), batch_size=32, max_steps=160, lr=1e-2)
    assert train_recall("crope", plan, width=16, seed=1)["accuracy_2"] > 0.9


def test_halved_is_rope_at_half_the_head_width_to_the_bit() -> None:
    tokens_BT, _ = sample()
    halved, rope = (
        recall_model(projection, SMALL, width=width, seed=3)
        for projection, width in (("halved", 16), ("real", 8))
    )
    assert torch.equal(query_logits(halved, tokens_BT), query_logits(rope, tokens_BT))


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("rope", Linear),
        ("crope", ComplexLinear),
        ("conjugate", ConjugateLinear),
        ("lowrank", LowRankLinear),
    ],
)
def test_only_the_projections_follow_the_head_width(model: str, kind: type) -> None:
    small, large = (
        recall_model(PROJECTIONS[model], SMALL, width=width, seed=0) for width in SMALL.widths
    )
    assert type(small.blocks[0].attn.q_proj) is kind
    other = dict(large.named_parameters())
    changed = {
        name for name, values in small.named_parameters() if values.shape != other[name].shape
    }
    assert changed and all(".attn." in name for name in changed)


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([0.1, 0.5, 0.9, 1.0], 16.0),
        ([0.1, 0.8, 1.0, 1.0], 8 * 2**0.5),  # half way in log width between 8 and 16
        ([0.95, 0.5, 1.0, 1.0], 4.0),
        ([0.1, 0.95, 0.2, 1.0], 4 * 2 ** (0.8 / 0.85)),  # the first crossing
        ([0.1, 0.2, 0.3, 0.89], math.inf),
    ],
)
def test_threshold_by_hand(accuracies: list[float], expected: float) -> None:
    assert threshold([4, 8, 16, 32], accuracies, 0.9) == pytest.approx(expected)


def made_up_runs() -> pd.DataFrame:
    """RoPE reaches 0.9 at 8, or half way to it; CRoPE never; conjugate at once, but seed 2 lacks a
    width. In no order.
    """
    at_8 = {("rope", 1): 0.9, ("rope", 2): 1.0, ("crope", 1): 0.5, ("crope", 2): 0.5}
    rows = [
        (model, width, seed, 0.0, 0.0, high if width == 8 else 0.8 if model == "rope" else 0.1)
        for (model, seed), high in at_8.items()
        for width in SMALL.widths
    ]
    rows += [("conjugate", width, seed, 0.0, 0.0, 1.0) for width, seed in ((4, 1), (8, 1), (8, 2))]
    columns = ["model", "width", "seed", "loss_nats", "accuracy_2", "accuracy_6"]
    return pd.DataFrame(rows, columns=columns).sample(frac=1, random_state=0, ignore_index=True)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Runs that were trained; training gives made-up numbers at once."""
    runs: list[tuple[str, int, int]] = []

    def train(model: str, plan: Plan, *, width: int, seed: int) -> dict[str, object]:
        runs.append((model, width, seed))
        accuracies = {f"accuracy_{pairs}": width / 10 for pairs in plan.pairs}
        return {"model": model, "width": width, "seed": seed, "loss_nats": 0.5} | accuracies

    monkeypatch.setattr(recall, "train_recall", train)
    return runs


def test_a_second_command_trains_only_what_is_missing_corrupt_or_of_other_settings(
    trained: list[tuple[str, int, int]], tmp_path: Path
) -> None:
    run_recall(SMALL, tmp_path)
    runs = plan_runs(SMALL)
    assert trained == runs and len(runs) == len(set(runs)) == 8
    before = contents(tmp_path)
    paths = [result_path(tmp_path, *run) for run in runs]
    paths[0].unlink()
    paths[1].write_text(paths[1].read_text()[:40])
    for path, key, value in (
        (paths[2], "settings", SMALL.run_settings | {"lr": 1.0}),
        (paths[3], "accuracy_6", 1.5),
        (paths[4], "width", 6),
        (paths[5], "loss_nats", None),
    ):
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    assert len(recall_frame(SMALL, tmp_path)) == 2
    trained.clear()
    run_recall(replace(SMALL, seeds=(1, 2)), tmp_path)
    assert trained == runs[:6] + [(model, width, 2) for model, width, _ in runs]
    assert before.items() < contents(tmp_path).items()


def test_a_real_run_is_stored_and_found_again(tmp_path: Path) -> None:
    plan = replace(SMALL, widths=(4,))
    run_recall(plan, tmp_path)
    result = read_result(tmp_path, plan, "lowrank", 4, 1)
    assert result and result["settings"]["pairs"] == [2, 6]
    again = train_recall("lowrank", plan, width=4, seed=1)
    assert again == {key: value for key, value in result.items() if key != "settings"}


def test_the_section_states_medians_ranges_and_bounds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of published runs; without any, the section names the command."""
    monkeypatch.setattr(make, "PUBLISHED", tmp_path)
    assert "--part recall" in make.write_recall(tmp_path / "own", SMALL)
    made_up_runs().to_csv(tmp_path / "recall.csv", index=False)
    text = make.write_recall(tmp_path / "own", SMALL)
    rows = {line.split(" | ")[0][2:]: line.split(" | ")[2:] for line in text.splitlines()}
    assert rows["RoPE (n = 2)"] == ["6.8 (5.7 to 8.0)", "1.00 |"]
    assert rows["halved (n = 2)"] == ["13.7 (11.3 to 16.0)", "2.00 |"]
    assert rows["CRoPE (n = 2)"] == ["> 8", "≥ 1.21 (1.00 to 1.41) |"]
    assert rows["conjugate Q (n = 1)"] == ["≤ 4", "≤ 0.50 |"]
    assert rows["low rank (n = 0)"] == ["—", "— |"]
    written = pd.read_csv(tmp_path / "own" / "recall.csv")
    pd.testing.assert_frame_equal(written, made_up_runs())
    assert b"<svg" in (tmp_path / "own" / "recall.svg").read_bytes()


def test_the_readme_has_a_line_when_all_runs_are_published(tmp_path: Path) -> None:
    """Of accuracies width / (8 times the model's place from 1), RoPE reaches 0.9 at 4 · 2^0.8 = 6.96,
    CRoPE and the others at no width up to 8: above 8 / 6.96.
    """
    assert make.publish_recall(tmp_path, SMALL) == ""
    runs = pd.DataFrame(plan_runs(SMALL), columns=["model", "width", "seed"]).assign(loss_nats=0.5)
    place = runs["model"].map(list(PROJECTIONS).index) + 1
    runs = runs.assign(accuracy_2=1.0, accuracy_6=runs["width"] / (8 * place))
    runs[:-1].to_csv(tmp_path / "recall.csv", index=False)
    assert make.publish_recall(tmp_path, SMALL) == "" and not (tmp_path / "recall.png").exists()
    runs.to_csv(tmp_path / "recall.csv", index=False)
    line = make.publish_recall(tmp_path, SMALL)
    assert "90 % of 6 stored pairs" in line
    assert "CRoPE ≥ 1.15, conjugate Q ≥ 1.15, halved 2.00, low rank ≥ 1.15." in line
    assert (tmp_path / "recall.png").read_bytes().startswith(b"\x89PNG")


def test_own_runs_take_the_place_of_published_ones(
    trained: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(make, "PUBLISHED", tmp_path)
    made_up_runs().to_csv(tmp_path / "recall.csv", index=False)
    make.make_recall(tmp_path / "own", plan=SMALL)
    assert len(trained) == 8
    assert len(pd.read_csv(tmp_path / "own" / "recall.csv")) == 8
