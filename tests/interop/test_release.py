"""A release: its files, checksums and bytes, and what it leaves out."""

import hashlib
import tarfile
from pathlib import Path

import pandas as pd
import pytest
from transformers import AutoModelForCausalLM

from crope.errors import UserError
from crope.files import sha256_file
from crope.interop import release as release_module
from crope.interop.release import release
from crope.runs.identity import cell_key
from crope.runs.record import read_record
from crope.runs.study import Cell
from tests.toy_runs import toy_corpus, train_toy


def test_a_release_holds_models_records_and_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of five cells, one is released: the others have no run, no weights, or another seed only."""
    with toy_corpus(tmp_path / "tokens"):
        names = ("rope", "crope", "xpos", "nope")
        runs = {name: train_toy(tmp_path, f"model={name}") for name in names[:2]}
        runs["xpos"] = train_toy(tmp_path, "model=xpos", "seed=1")
        runs["nope"] = train_toy(tmp_path, "model=nope")
        # Computes what rope does, under another name: no run of its cell.
        train_toy(tmp_path, "model=crope", "model.projection=real")
        (runs["crope"].path / "weights.pt").unlink()
        (runs["nope"].path / "metrics.jsonl").write_text("")
        cells = [
            Cell("table1", "base", "tiny", name, "smoke", cell_key(run.config))
            for name, run in runs.items()
        ]
        cells.append(Cell("table1", "base", "ptb", "rope", "smoke", "none"))
        monkeypatch.setattr(release_module, "expected_cells", lambda scale: [*cells, cells[0]])
        capsys.readouterr()
        archive = release(tmp_path, scale="smoke")
        lines = capsys.readouterr().out.splitlines()
        digest = sha256_file(archive)
        assert release(tmp_path, scale="smoke") == archive and sha256_file(archive) == digest
        with pytest.raises(UserError, match="seed 7"):
            release(tmp_path, scale="smoke", seed=7)
        frame, _ = release_module.load_frame([tmp_path / "runs"])
        twice = pd.concat([frame, frame])
        monkeypatch.setattr(release_module, "load_frame", lambda folders: (twice, []))
        with pytest.raises(UserError, match="two runs"):
            release(tmp_path, scale="smoke")
        twice["status"] = "stale"
        with pytest.raises(UserError, match="no run of the tables"):
            release(tmp_path, scale="smoke")
    left_out = [line for line in lines if line.startswith("left out")]
    for line, word in zip(left_out, ("weights", "seed 0", "seed 0", "rope on ptb"), strict=True):
        assert word in line
    assert f"{digest}  {archive.name}\n" == archive.with_name(f"{archive.name}.sha256").read_text()
    assert [path.name for path in archive.parent.iterdir() if path.name.startswith(".")] == []

    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "out", filter="data")
    folder, record = tmp_path / "out" / "crope-smoke-s0", runs["rope"]
    sums = dict(line.split("  ")[::-1] for line in (folder / "SHA256SUMS").read_text().splitlines())
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert sums.keys() == files - {"SHA256SUMS"}
    for name, stated in sums.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == stated, name
    copy = read_record(folder / "records" / record.path.name)
    assert copy.summary == record.summary and str(tmp_path) not in str(copy.config)
    opened = AutoModelForCausalLM.from_pretrained(folder / "models" / record.path.name)
    assert opened.config.crope_run == record.path.name
    assert f"{record.summary['val_full']['final_nats']:.4f}" in (folder / "README.md").read_text()
