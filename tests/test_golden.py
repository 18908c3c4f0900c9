"""20 steps of each model against committed losses: a changed constant anywhere on the way turns this red."""

from __future__ import annotations

import json

import numpy as np
import pytest

from crope import config, golden


@pytest.mark.parametrize("model", golden.MODELS)
def test_losses_are_the_committed_ones(model: str) -> None:
    committed = json.loads(config.GOLDEN_FILE.read_text())["losses"][model]
    found = golden.golden_losses(model)
    assert found.keys() == committed.keys()
    for name, losses in found.items():
        np.testing.assert_allclose(
            losses,
            committed[name],
            rtol=golden.RELATIVE_TOLERANCE,
            atol=0,
            err_msg=f"{model} {name}: numbers changed. If that is meant: make golden (old runs become stale)",
        )


def test_models_differ_and_learn() -> None:
    """Guards the golden file itself: three different curves, each lower at its end than at its start."""
    committed = json.loads(config.GOLDEN_FILE.read_text())["losses"]
    assert len({tuple(committed[model]["train"]) for model in golden.MODELS}) == 3
    assert all(committed[model]["val_full"][-1] < committed[model]["val_full"][0] for model in golden.MODELS)


def test_remake_raises_the_version_exactly_when_a_loss_moved(tmp_path, monkeypatch) -> None:
    losses = {"rope": {"train": [1.0], "val": [2.0], "val_full": [3.0]}}
    file = tmp_path / "golden.json"
    file.write_text(json.dumps({"numerics_version": 4, "losses": losses}))
    monkeypatch.setattr(golden, "GOLDEN_FILE", file)
    monkeypatch.setattr(golden, "MODELS", ("rope",))

    monkeypatch.setattr(golden, "golden_losses", lambda _: losses["rope"])
    assert not golden.remake()
    assert json.loads(file.read_text())["numerics_version"] == 4

    moved = {**losses["rope"], "val": [2.0 + 1e-7]}
    monkeypatch.setattr(golden, "golden_losses", lambda _: moved)
    assert golden.remake()
    assert json.loads(file.read_text()) == {"numerics_version": 5, "losses": {"rope": moved}}
