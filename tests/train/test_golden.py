"""Golden losses of every model through both attention branches, and the numerics versions that
depend on them.
"""

import json

import numpy as np
import pytest

from crope.model import attention
from crope.runs import identity
from crope.runs.compose import group_files
from crope.train import golden

BRANCHES = {"written out": attention.SHORT, "scaled_dot_product": 0}


def test_every_model_has_golden_losses() -> None:
    assert identity.GOLDEN.keys() == group_files("model").keys(), "run `make golden`"


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("model", identity.GOLDEN)
def test_losses_are_the_committed_ones(
    model: str, branch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = identity.GOLDEN[model]
    if entry["choices"][2] == "linear" and branch != "written out":
        return  # linear attention has one branch
    monkeypatch.setattr(attention, "SHORT", BRANCHES[branch])
    choices, found = golden.golden_losses(model)
    assert choices == entry["choices"]
    for kind, committed in entry["losses"].items():
        np.testing.assert_allclose(
            found[kind],
            committed,
            rtol=golden.RELATIVE_TOLERANCE,
            atol=0,
            err_msg=f"{model} {kind}: numbers changed. If intended: make golden (this model's old runs become stale)",
        )


def test_models_differ_and_learn() -> None:
    curves = [entry["losses"] for entry in identity.GOLDEN.values()]
    assert len({tuple(losses["train"]) for losses in curves}) == len(curves)
    assert all(losses["val_full"][-1] < losses["val_full"][0] for losses in curves)


def test_remake_raises_the_version_of_the_changed_model_only(tmp_path, monkeypatch) -> None:
    def entry(version: int, loss: float) -> dict:
        return {"choices": ["a", "b", "c"], "numerics_version": version, "losses": {"val": [loss]}}

    file = tmp_path / "golden.json"
    before = {"rope": entry(4, 2.0), "learned": entry(1, 3.0), "gone": entry(1, 5.0)}
    file.write_text(json.dumps(before))
    measured = {"rope": 2.0, "learned": 3.0 + 1e-7, "new": 1.0}
    monkeypatch.setattr(golden, "group_files", lambda group: measured)
    losses = {name: (["a", "b", "c"], {"val": [loss]}) for name, loss in measured.items()}
    monkeypatch.setattr(golden, "golden_losses", losses.get)
    assert golden.remake(file) == ["learned", "new"]
    after = {
        name: entry["numerics_version"] for name, entry in json.loads(file.read_text()).items()
    }
    assert after == {"rope": 4, "learned": 2, "new": 1}
    assert golden.remake(file) == []


def test_numerics_version_of_a_model_and_of_a_combination(monkeypatch) -> None:
    entries = {
        ("learned", "real", "softmax"): 2,
        ("learned", "complex", "softmax"): 3,
        ("rotary", "real", "softmax"): 1,
        ("rotary", "complex", "softmax"): 1,
    }
    monkeypatch.setattr(
        identity,
        "GOLDEN",
        {str(c): {"choices": [*c, 4.0], "numerics_version": v} for c, v in entries.items()},
    )

    def version(*choices: str, **more: float) -> int:
        names = ("position", "projection", "attention")
        return identity.numerics_version(dict(zip(names, choices, strict=True)) | more)

    assert all(version(*choices) == expected for choices, expected in entries.items())
    # Both models with learned positions are past version 1.
    assert version("learned", "halved", "softmax") == 2
    assert version("rotary", "halved", "softmax") == 1  # not every model with softmax is
    # A new file of the same choices, sorted first, makes no run of the others stale.
    deep = {"choices": ["learned", "real", "softmax", 4.0], "numerics_version": 1}
    monkeypatch.setattr(identity, "GOLDEN", {"deep": deep} | identity.GOLDEN)
    assert version("learned", "real", "softmax") == 2
    thin = {"choices": ["rotary", "real", "softmax", 3.25], "numerics_version": 7}
    monkeypatch.setitem(identity.GOLDEN, "thin_ffn", thin)
    assert version("rotary", "real", "softmax", ffn_ratio=3.25) == 7
    assert version("rotary", "real", "softmax") == 1
