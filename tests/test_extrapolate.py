"""Trained runs on longer sequences: the same targets at every length, tables that go on, a table that ends."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from crope.compose import Run, load_run
from crope.config import ROOT
from crope.data.token_files import TokenSet
from crope.errors import UserError
from crope.execute import execute
from crope.extrapolate import extrapolate
from crope.interrupt import StopRequest
from crope.model.gpt import GPT
from crope.trained import load_config
from tests.conftest import TOY_OVERRIDES, TOY_VOCAB

LENGTH = 16  # TOY_OVERRIDES'


@pytest.fixture
def make_run(toy_data: TokenSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`make_run("rope")`: a complete run whose weights are enlarged, so that positions matter to its loss."""
    monkeypatch.setattr("crope.trained.load_tokens", lambda *_, **__: toy_data)

    def make(model: str, *more: str) -> Run:
        run = load_run([*TOY_OVERRIDES, "eval.full_tokens=0", f"model={model}", f"results_dir={tmp_path}", *more])
        assert execute(run, stop=StopRequest()).status == "complete"
        return run

    return make


def enlarge(run: Run) -> None:
    state = torch.load(run.path / "weights.pt", weights_only=True)
    factors = {name: 5 if "q_proj" in name or "k_proj" in name else 2 for name in state}
    torch.save({name: value * factors[name] for name, value in state.items()}, run.path / "weights.pt")


def slow_losses(run: Run, tokens: np.ndarray, length: int) -> np.ndarray:
    """The loss of every target, one window at a time: log-softmax written out, in float64."""
    config = run.config.model
    model = GPT(config, vocab_size=TOY_VOCAB, max_len=4 * LENGTH, seed=9).double()
    model.load_state_dict(torch.load(run.path / "weights.pt", weights_only=True))
    found = []
    for start in range(0, len(tokens) - 1, length):
        window = tokens[start : start + length + 1].astype(np.int64)
        with torch.no_grad():
            logits = model.logits(model(torch.from_numpy(window[None, :-1])))[0].numpy()
        found += list(np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(window) - 1), window[1:]])
    return np.array(found)


@pytest.mark.parametrize("model", ["xpos", "rope", "crope", "relative_bias", "alibi", "nope", "crope_linear"])
def test_losses_at_each_length_against_one_window_at_a_time(model: str, make_run, toy_data: TokenSet) -> None:
    """299 targets: no multiple of any length. Every length has them all; sinusoids and rotation go on past 16."""
    run = make_run(model)
    enlarge(run)
    result = extrapolate(run.path)
    assert [row["seq_len"] for row in result["lengths"]] == [16, 32, 64]
    for row in result["lengths"]:
        expected = slow_losses(run, toy_data.validation, row["seq_len"])
        assert row["tokens"] == len(expected) == 299
        assert row["loss_nats"] == pytest.approx(expected.mean(), rel=1e-5)
    curve = slow_losses(run, toy_data.validation, 64)[: 4 * 64].reshape(4, 64).mean(axis=0)  # whole spans only
    for row in result["by_position"]:
        assert row["loss_nats"] == pytest.approx(curve[row["first"] : row["last"] + 1].mean(), rel=1e-5)
    assert [(row["first"], row["last"]) for row in result["by_position"]] == [(i, i + 3) for i in range(0, 64, 4)]


def test_the_trained_length_gives_the_recorded_loss(make_run) -> None:
    run = make_run("rope")
    recorded = json.loads((run.path / "summary.json").read_text())["val_full"]["final_nats"]
    result = extrapolate(run.path, factors=[1])
    assert result["lengths"][0]["loss_nats"] == pytest.approx(recorded, rel=1e-6)


def test_learned_positions_are_not_defined_past_their_table(make_run) -> None:
    result = extrapolate(make_run("learned").path)
    at_once, twice, four_times = result["lengths"]
    assert at_once["loss_nats"] > 0
    for row in (twice, four_times):
        assert row["loss_nats"] is None
        assert row["note"] == "not defined: learned positions end at 16"
    assert result["by_position"][-1]["last"] == 15


def test_a_split_shorter_than_a_span_is_not_measured(make_run) -> None:
    rows = extrapolate(make_run("rope").path, factors=[1, 32])["lengths"]
    assert rows[0]["loss_nats"] > 0
    assert rows[1]["note"] == "not measured: the validation split has only 300 tokens"


def test_a_subset_keeps_the_same_spans_at_every_length(make_run, toy_data: TokenSet) -> None:
    """130 tokens: two spans of 64, the first and the last whole one of the split."""
    run = make_run("alibi")
    rows = extrapolate(run.path, max_tokens=130)["lengths"]
    assert [row["tokens"] for row in rows] == [128, 128, 128]
    for row in rows:
        spans = [slow_losses(run, toy_data.validation[start : start + 65], row["seq_len"]) for start in (0, 192)]
        assert row["loss_nats"] == pytest.approx(np.mean(spans), rel=1e-5)


def test_asked_again_it_reads_its_file_and_asked_otherwise_it_measures(make_run) -> None:
    run = make_run("rope")
    first = extrapolate(run.path)
    assert json.loads((run.path / "extrapolation.json").read_text()) == first
    (run.path / "weights.pt").rename(run.path / "away.pt")
    assert extrapolate(run.path) == first
    with pytest.raises(UserError, match=r"no weights\.pt"):
        extrapolate(run.path, factors=[1])


def test_what_is_no_run_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config\.yaml, so no run directory"):
        load_config(tmp_path)


def test_script_measures_each_run_and_names_those_it_cannot(make_run, tmp_path: Path, monkeypatch, capsys) -> None:
    run = make_run("rope")
    monkeypatch.setattr("sys.argv", ["extrapolate.py", str(tmp_path / "none"), str(run.path), "--factors", "1", "2"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(ROOT / "scripts" / "extrapolate.py"), run_name="__main__")
    output = capsys.readouterr()
    assert stopped.value.code == 1
    assert output.err.startswith(f"error: {tmp_path / 'none'}: no config.yaml")
    losses = [row["loss_nats"] for row in json.loads((run.path / "extrapolation.json").read_text())["lengths"]]
    assert output.out == f"{run.run_id}: L=16 {losses[0]:.4f}; L=32 {losses[1]:.4f} (nats per token)\n"
