"""Length extrapolation: the same targets at every length, against one window at a time in float64."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from crope.errors import UserError
from crope.model.gpt import GPT
from crope.runs.compose import load_run
from crope.runs.extrapolate import extrapolate, losses, segments
from crope.runs.load import load_trained
from tests.conftest import TOY_OVERRIDES, TOY_VOCAB, make_toy_tokens
from tests.model.oracles import slow_losses
from tests.toy_runs import toy_corpus, train_toy

LENGTH = 16  # train.seq_len of TOY_OVERRIDES
SPLIT = np.random.default_rng(2).integers(TOY_VOCAB, size=300).astype(np.uint16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("runs")
    with toy_corpus(path / "tokens"):
        yield path


def build(model: str, seed: int = 3) -> tuple[GPT, object]:
    """A model with large random weights, so that positions matter to its losses."""
    config = load_run([*TOY_OVERRIDES, f"model={model}"]).config
    gpt = GPT(config.model, vocab_size=TOY_VOCAB, max_len=4 * LENGTH, seed=seed)
    with torch.no_grad():
        for name, parameter in gpt.named_parameters():
            parameter *= 20 if "q_proj" in name or "k_proj" in name else 5
    return gpt, config


@pytest.mark.parametrize(
    "name", ["xpos", "rope", "crope", "relative_bias", "alibi", "nope", "crope_linear"]
)
def test_losses_at_each_length(name: str) -> None:
    """299 targets, not a multiple of any length: every length has all of them."""
    model, config = build(name)
    means, count, curve_T = losses(model, SPLIT, (16, 32, 64), config=config, max_tokens=0)
    assert count == 299
    for length, mean in means.items():
        assert mean == pytest.approx(slow_losses(model, SPLIT, length).mean(), rel=1e-5)
    whole = slow_losses(model, SPLIT, 64)[: 4 * 64].reshape(4, 64)  # whole spans only
    np.testing.assert_allclose(curve_T, whole.mean(axis=0), rtol=1e-4)
    assert max(means.values()) - min(means.values()) > 1e-3  # context does matter to these weights


def test_segments_are_means_over_positions() -> None:
    assert segments(np.arange(10.0), 4) == [
        {"first": 0, "last": 3, "loss_nats": 1.5},
        {"first": 4, "last": 7, "loss_nats": 5.5},
        {"first": 8, "last": 9, "loss_nats": 8.5},
    ]


def test_the_file_of_a_run(folder: Path) -> None:
    """The trained length has the recorded loss; a file that has the same settings is not measured
    again.
    """
    record = train_toy(folder, "model=rope", "eval.full_tokens=0")
    trained = record.summary["val_full"]["final_nats"]
    result = extrapolate(record, factors=(4, 1, 32))
    assert json.loads((record.path / "extrapolation.json").read_text()) == result
    assert (result["trained_seq_len"], result["factors"]) == (16, [1, 4, 32])
    first, second, third = result["lengths"]
    assert first["loss_nats"] == pytest.approx(trained, rel=1e-3)  # other spans
    assert (first["tokens"], second["tokens"], second["seq_len"]) == (299, 299, 64)
    assert third["loss_nats"] is None and "300 tokens" in third["note"]
    segments = [(row["first"], row["last"]) for row in result["by_position"]]
    assert segments == [(i, i + 3) for i in range(0, 64, 4)]
    subset = extrapolate(record, factors=(1, 2, 2), max_tokens=70)["lengths"]
    assert [row["tokens"] for row in subset] == [64, 64]
    split = make_toy_tokens(folder).validation
    model = load_trained(record, max_len=32)
    for row in subset:  # of two spans, the first and the last whole one of the split
        spans = [
            slow_losses(model, tokens, row["seq_len"]) for tokens in (split[:33], split[256:289])
        ]
        assert row["loss_nats"] == pytest.approx(np.mean(spans), rel=1e-5)
    result = extrapolate(record, factors=(1,))
    assert result["max_tokens"] == 0
    assert result["lengths"][0]["loss_nats"] == pytest.approx(trained, rel=1e-6)
    (record.path / "weights.pt").unlink()
    assert extrapolate(record, factors=(1,)) == result
    with pytest.raises(UserError, match=r"weights\.pt"):
        extrapolate(record, factors=(2,))


def test_a_file_that_cannot_be_read_or_is_of_other_weights_is_measured_again(folder: Path) -> None:
    record = train_toy(folder, "model=rope", "seed=1")
    result = extrapolate(record, factors=(1,))
    assert result["weights_sha256"] == record.summary["weights_sha256"]
    file = record.path / "extrapolation.json"
    for content in ("{", "[]", "{}", json.dumps(result | {"weights_sha256": "0", "lengths": []})):
        file.write_text(content)
        assert extrapolate(record, factors=(1,)) == result == json.loads(file.read_text())


def test_subset_and_precision_are_those_of_the_run(folder: Path) -> None:
    """64 tokens under bf16 autocast: otherwise the loss would not be the recorded one."""
    record = train_toy(folder, "model=crope", "train.precision=bf16")
    (row,) = extrapolate(record, factors=(1,))["lengths"]
    assert row["tokens"] == 64
    assert row["loss_nats"] == pytest.approx(record.summary["val_full"]["final_nats"], rel=1e-6)


def test_learned_positions_are_not_defined_past_their_table(folder: Path) -> None:
    record = train_toy(folder, "model=learned")
    result = extrapolate(record)
    trained, *longer = result["lengths"]
    assert trained["loss_nats"] > 0 and [row["seq_len"] for row in longer] == [32, 64]
    assert all(row["loss_nats"] is None and "not defined" in row["note"] for row in longer)
    assert result["by_position"][-1]["last"] == 15
    with pytest.raises(UserError, match="factors"):
        extrapolate(record, factors=(0, 1))
