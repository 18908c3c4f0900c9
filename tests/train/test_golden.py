"""Golden losses of every model through both attention branches, and how they are remade."""

import pytest

from crope.files import read_json, write_json
from crope.model import attention
from crope.runs.identity import golden_entries
from crope.train import golden

MODELS = golden.golden_models()
BRANCHES = {"written out": attention.SHORT, "scaled_dot_product": 0}


@pytest.fixture(scope="module", params=BRANCHES)
def measured(request):
    """Choices and losses of every model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "SHORT", BRANCHES[request.param])
        return {name: golden.golden_losses(model) for name, model in MODELS.items()}


@pytest.mark.parametrize("name", MODELS)
def test_losses_are_the_committed_ones(name, measured):
    """If they are meant to move, or missing: `make golden`, by which this model's old runs become
    stale.
    """
    choices, found = measured[name]
    committed = golden_entries()[name]
    assert choices == committed["choices"]
    assert golden.agree(committed["losses"], found)


def test_no_two_models_have_the_same_losses(measured):
    different = {tuple(losses["train"]) for _, losses in measured.values()}
    assert len(different) == len(MODELS)


def test_remake_raises_the_version_of_the_changed_model_only(tmp_path, monkeypatch):
    """`learned` moved by 3e-8 of itself; `gone` has no file any more, `new` has one."""
    file = tmp_path / "golden.json"
    before = {
        "rope": {"numerics_version": 4, "losses": {"val": [2.0]}},
        "learned": {"numerics_version": 1, "losses": {"val": [3.0]}},
        "gone": {"numerics_version": 1, "losses": {"val": [5.0]}},
    }
    write_json(file, before)
    models = {"rope": 2.0, "learned": 3.0 + 1e-7, "new": 1.0}  # each stands for its loss
    monkeypatch.setattr(golden, "golden_models", lambda: models)
    monkeypatch.setattr(golden, "golden_losses", lambda loss: ([], {"val": [loss]}))
    assert golden.remake(file) == ["learned", "new"]
    after = read_json(file)
    versions = {name: entry["numerics_version"] for name, entry in after.items()}
    assert versions == {"rope": 4, "learned": 2, "new": 1}
    assert golden.remake(file) == []


def test_losses_agree_to_ten_digits():
    losses = {"train": [1.0, 2.0]}
    assert golden.agree(losses, {"train": [1.0, 2.0 + 1e-10]})
    assert not golden.agree(losses, {"train": [1.0, 2.0 + 1e-9]})
    assert not golden.agree(losses, {"train": [1.0]})
    assert not golden.agree(losses, losses | {"val": [3.0]})
