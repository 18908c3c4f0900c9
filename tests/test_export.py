"""Exports: read back with the format's own library into a plain model, whose outputs are the run's."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file

from crope.compose import load_run
from crope.config import ROOT, ModelConfig
from crope.errors import UserError
from crope.export import export
from crope.model.gpt import GPT
from crope.record import write_text
from tests.conftest import TOY_OVERRIDES, TOY_VOCAB

LENGTH = 16


def trained(folder: Path, *overrides: str) -> tuple[Path, GPT]:
    """A run directory as export reads it, its weights all random."""
    run = load_run([*TOY_OVERRIDES, f"results_dir={folder}", *overrides])
    model = GPT(run.config.model, vocab_size=TOY_VOCAB, max_len=LENGTH, seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(
                0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
            )
    run.path.mkdir(parents=True)
    write_text(run.path / "config.yaml", yaml.safe_dump(run.container))
    torch.save(model.state_dict(), run.path / "weights.pt")
    return run.path, model


def outputs(model: GPT) -> torch.Tensor:
    with torch.no_grad():
        return model.double().logits(model(torch.arange(LENGTH)[None]))


@pytest.mark.parametrize(
    "model", ["crope", "lowrank", "blockdiag", "complex_misaligned", "complex_v", "rope", "complex_alibi"]
)
@pytest.mark.parametrize("more", [(), ("model.qkv_bias=true", "model.tied_head=false")])
def test_a_plain_model_loads_the_dense_export_with_equal_outputs(
    model: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    path, source = trained(tmp_path, f"model={model}", *more)
    export(path, tmp_path / "dense.safetensors", dense=True)
    with safe_open(tmp_path / "dense.safetensors", "pt") as file:
        about = file.metadata()
    assert (about["run_id"], about["vocab_size"], about["max_len"]) == (path.name, str(TOY_VOCAB), str(LENGTH))
    choices = ModelConfig(**json.loads(about["model"]))
    assert choices.projection == "real"
    plain = GPT(choices, vocab_size=TOY_VOCAB, max_len=LENGTH, seed=0)
    plain.load_state_dict(load_file(tmp_path / "dense.safetensors"))
    torch.testing.assert_close(outputs(plain), outputs(source), rtol=0, atol=1e-5)


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_as_trained_the_tensors_are_those_of_the_run(ending: str, tmp_path: Path) -> None:
    path, source = trained(tmp_path, "model=crope")
    out = tmp_path / f"crope.{ending}"
    export(path, out, dense=False)
    read = load_file(out) if ending == "safetensors" else torch.load(out, weights_only=True)
    expected = source.state_dict()
    assert read.keys() == expected.keys() and any(name.endswith("q_proj.b") for name in read)
    assert all(torch.equal(read[name], expected[name]) for name in expected)


def test_what_cannot_be_exported_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = trained(tmp_path, "model=complex_wide")
    with pytest.raises(UserError, match="has a width of its own"):
        export(path, tmp_path / "out.pt", dense=True)
    with pytest.raises(UserError, match=r"must end in \.safetensors or \.pt"):
        export(path, tmp_path / "out.bin", dense=False)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[export\]'"):
        export(path, tmp_path / "out.safetensors", dense=False)
    (path / "weights.pt").unlink()
    with pytest.raises(UserError, match=r"no weights\.pt"):
        export(path, tmp_path / "out.pt", dense=False)


def test_the_script_says_where_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    path, _ = trained(tmp_path, "model=rope")
    monkeypatch.setattr("sys.argv", ["export.py", str(path), str(tmp_path / "rope.safetensors"), "--dense"])
    runpy.run_path(str(ROOT / "scripts" / "export.py"), run_name="__main__")
    assert capsys.readouterr().out.strip() == str(tmp_path / "rope.safetensors")
    assert load_file(tmp_path / "rope.safetensors")
