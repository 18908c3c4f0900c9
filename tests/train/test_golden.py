"""Golden losses of every model through both attention branches, and how they are remade."""

import pytest

from crope.config import GOLDEN_FILE
from crope.files import read_json, write_json
from crope.model import attention
from crope.train import golden

MODELS = golden.golden_models()
BRANCHES = {"written out": attention.SHORT, "scaled_dot_product": 0}


@pytest.fixture(scope="module", params=BRANCHES)
def measured(request):
    """The losses of every model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "SHORT", BRANCHES[request.param])
        return {name: golden.golden_losses(model) for name, model in MODELS.items()}


@pytest.mark.parametrize("name", MODELS)
def test_losses_are_the_committed_ones(name, measured):
    """If they are meant to move: `make golden`, and NUMERICS in crope/plan/identity.py, by which this
    model's old runs become stale.
    """
    expected = read_json(GOLDEN_FILE).get(name)
    assert expected, f"a new model: run `make golden` once, to record the losses of {name}"
    assert golden.agree(expected, measured[name])


def test_no_two_models_have_the_same_losses(measured):
    different = {tuple(losses["train"]) for losses in measured.values()}
    assert len(different) == len(MODELS)


def test_remake_changes_the_models_whose_losses_moved_only(tmp_path, monkeypatch):
    """`learned` moved by 1e-9 of itself, `rope` by 5e-11; `gone` has no file any more, `new` has one."""
    file = tmp_path / "golden.json"
    write_json(file, {"rope": {"val": [2.0]}, "learned": {"val": [3.0]}, "gone": {"val": [5.0]}})
    models = {"rope": 2.0 + 1e-10, "learned": 3.0 + 3e-9, "new": 1.0}  # each stands for its loss
    monkeypatch.setattr(golden, "golden_models", lambda: models)
    monkeypatch.setattr(golden, "golden_losses", lambda loss: {"val": [loss]})
    assert golden.remake(file) == ["learned", "new"]
    assert read_json(file) == {
        "rope": {"val": [2.0]},
        "learned": {"val": [3.000000003]},
        "new": {"val": [1.0]},
    }
    assert golden.remake(file) == []


def test_values_have_the_types_of_the_schema(tmp_path, monkeypatch):
    """YAML on its own reads 5e5 as text."""
    (tmp_path / "conf/model").mkdir(parents=True)
    (tmp_path / "conf/model/new.yaml").write_text(
        "{position: rotary, projection: real, rope_base: 5e5}"
    )
    monkeypatch.setattr(golden, "ROOT", tmp_path)
    assert golden.golden_models()["new"].rope_base == 500000.0
