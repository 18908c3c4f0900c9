"""Export: read back with the format's own library into a plain model, whose outputs are the run's."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from crope.compose import load_run
from crope.config import ModelConfig
from crope.errors import UserError
from crope.export import export
from crope.model.gpt import GPT
from crope.record import Record, sha256_file, write_json
from crope.run import build_model
from tests.conftest import TOY_OVERRIDES, TOY_VOCAB, toy_run
from tests.report.records import make_conversion

LENGTH = 16


def record_of(
    folder: Path, *overrides: str, weights: str = "weights.pt", **changes: object
) -> tuple[Record, GPT]:
    """A run with random weights of order 1; `changes` are made to the model whose weights are
    saved.
    """
    run = load_run([*TOY_OVERRIDES, f"results_dir={folder}", *overrides])
    model = GPT(replace(run.config.model, **changes), vocab_size=TOY_VOCAB, max_len=LENGTH, seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            generator = torch.Generator().manual_seed(parameter.numel())
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    run.path.mkdir(parents=True)
    torch.save(model.state_dict(), run.path / weights)
    digest = sha256_file(run.path / weights)
    if weights == "converted.pt":
        write_json(run.path / "conversion.json", make_conversion() | {"converted_sha256": digest})
        digest = make_conversion()["weights_sha256"]
    return Record(run.path, run.container, {"weights_sha256": digest}, {}), model


def read_back(path: Path) -> tuple[dict[str, str], GPT]:
    with safe_open(path, "pt") as file:
        about = file.metadata()
    config = ModelConfig(**json.loads(about["model"]))
    model = GPT(config, vocab_size=int(about["vocab_size"]), max_len=int(about["max_len"]), seed=0)
    model.load_state_dict(load_file(path))
    return about, model


def logits(model: GPT) -> torch.Tensor:
    with torch.no_grad():
        return model.double().logits(model(torch.arange(LENGTH)[None]))


@pytest.mark.parametrize(
    "name", ["crope", "lowrank", "blockdiag", "complex_misaligned", "complex_v", "conjugate"]
)
@pytest.mark.parametrize("more", [(), ("model.qkv_bias=true", "model.tied_head=false")])
def test_dense_export_has_equal_logits_in_a_plain_model(
    name: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    record, source = record_of(tmp_path, f"model={name}", *more)
    export(record, tmp_path / "dense.safetensors", dense=True)
    about, plain = read_back(tmp_path / "dense.safetensors")
    assert about["run_id"] == record.path.name
    assert json.loads(about["model"])["projection"] == "real"
    torch.testing.assert_close(logits(plain), logits(source), rtol=0, atol=1e-5)


def test_as_trained_the_tensors_are_those_of_the_run(tmp_path: Path) -> None:
    record, source = record_of(tmp_path, "model=crope")
    out = tmp_path / "new" / "crope.safetensors"
    export(record, out, dense=False)
    read, expected = load_file(out), source.state_dict()
    assert read.keys() == expected.keys() and any(name.endswith("q_proj.b") for name in read)
    assert all(torch.equal(read[name], expected[name]) for name in expected)


@pytest.mark.parametrize("dense", [False, True])
def test_converted_weights_are_exported_with_the_configuration_that_loads_them(
    dense: bool, tmp_path: Path
) -> None:
    record, converted = record_of(
        tmp_path, "model=rope", weights="converted.pt", projection="complex", tied_head=False
    )
    export(record, tmp_path / "converted.safetensors", dense=dense, converted=True)
    about, model = read_back(tmp_path / "converted.safetensors")
    assert json.loads(about["model"])["projection"] == ("real" if dense else "complex")
    torch.testing.assert_close(logits(model), logits(converted), rtol=0, atol=1e-5)


@pytest.mark.parametrize("weights", ["weights.pt", "converted.pt"])
def test_weights_that_are_not_the_recorded_ones_are_not_exported(
    weights: str, tmp_path: Path
) -> None:
    record, _ = record_of(
        tmp_path / "a", "model=rope", weights=weights, projection="complex", tied_head=False
    )
    torch.save(build_model(toy_run(tmp_path, "seed=5").config).state_dict(), record.path / weights)
    with pytest.raises(UserError, match=f"{weights}: corrupt"):
        export(record, tmp_path / "x.safetensors", dense=False, converted="conv" in weights)


@pytest.mark.parametrize("name", ["mqa", "halved", "complex_wide"])
def test_no_dense_export_where_k_and_v_have_another_width(name: str, tmp_path: Path) -> None:
    record, _ = record_of(tmp_path, f"model={name}")
    with pytest.raises(UserError, match="width"):
        export(record, tmp_path / "out.safetensors", dense=True)


def test_what_cannot_be_exported_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, _ = record_of(tmp_path, "model=complex_wide")
    with pytest.raises(UserError, match=r"\.safetensors"):
        export(record, tmp_path / "out.bin", dense=False)
    with pytest.raises(UserError, match=r"converted\.pt"):
        export(record, tmp_path / "out.safetensors", dense=False, converted=True)
    (tmp_path / "file").touch()
    (tmp_path / "folder.safetensors").mkdir()
    for out in ("file/out.safetensors", "folder.safetensors"):
        with pytest.raises(UserError, match=out):
            export(record, tmp_path / out, dense=False)
    other, _ = record_of(tmp_path, "model=rope", n_layers=2)
    with pytest.raises(UserError, match=r"weights\.pt"):
        export(other, tmp_path / "out.safetensors", dense=False)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(UserError, match="install"):
        export(record, tmp_path / "out.safetensors", dense=False)
