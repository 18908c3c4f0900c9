"""The tutorial done to the letter in a copy of the repository: its files are written, nothing else, and used."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from crope.config import ROOT

TEXT = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"`([\w./]+)`:\n\n```\w+\n(.*?)```", TEXT, re.DOTALL))
SCHEME, ITS_TEST = "crope/model/positions/gaussian.py", "tests/model/test_gaussian.py"
SHORT = (
    "tracker=none",
    "tokenizer.vocab_size=260",
    "train.max_steps=4",
    "train.seq_len=16",
    "eval.every=2",
    "eval.full_every=4",
    "eval.full_tokens=64",
    "model.d_model=16",
    "model.n_layers=1",
    "runtime.device=cpu",
)
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
ASKS_FOR_A_TEST = "tests/model/test_schemes.py::test_every_scheme_is_compared_with_the_written_out_decoder"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tutorial")
    for name in ("crope", "conf", "docs", "scripts", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name, text in FILES.items():
        assert not (folder / name).exists()
        (folder / name).write_text(text, encoding="utf-8")
    letters = folder / "data" / "raw" / "letters"
    letters.mkdir(parents=True)
    (letters / "train.txt").write_text("Dear Q, how is K? Yours, V.\n" * 400)
    (letters / "valid.txt").write_text("Dear K, Q is well. Yours, V.\n" * 40)
    return folder


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CROPE_")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )


def test_one_file_each() -> None:
    assert set(FILES) == {"conf/study/heads.yaml", "conf/data/letters.yaml", SCHEME, ITS_TEST}


def test_the_scheme_and_the_dataset_train(copy: Path) -> None:
    words = ["model=rope,gaussian", "data=tiny,letters", "scale=smoke", *SHORT]
    done = python(copy, "scripts/train.py", "-m", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = {}
    for run in (copy / "results" / "runs").iterdir():
        summary = json.loads((run / "summary.json").read_text())
        assert summary["status"] == "complete"
        losses[run.name.rsplit("-", 1)[0]] = summary["val_full"]["final_nats"]
    assert set(losses) == {f"{model}-{data}-base-s0" for model in ("rope", "gaussian") for data in ("tiny", "letters")}
    assert len(set(losses.values())) == 4


def test_linear_attention_refuses_it_in_one_line(copy: Path) -> None:
    done = python(copy, "scripts/train.py", "model=gaussian", "model.attention=linear", "data=tiny", "--cfg", "job")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert f"model.position=gaussian ({SCHEME}): is added to the matrix of scores" in done.stderr


def test_no_test_that_is_there_needs_an_edit(copy: Path) -> None:
    files = (ITS_TEST, "tests/model/test_schemes.py", "tests/test_compose.py", "tests/test_reference.py")
    one_projection = "gaussian and not complex and not halved and not lowrank and not blockdiag"
    words = f"{one_projection} or letters or heads or compared or page or studies or same_model"
    done = python(copy, *PYTEST, *files, "-k", words)
    assert done.returncode == 0, done.stdout


def test_a_wrong_scheme_fails_its_test_and_one_without_a_test_is_named(copy: Path) -> None:
    scheme, other = copy / SCHEME, (copy / SCHEME).with_name("other.py")
    scheme.write_text(FILES[SCHEME].replace("WIDTH = 32.0", "WIDTH = 31.0"))
    other.write_text(FILES[SCHEME])
    done = python(copy, *PYTEST, ITS_TEST, ASKS_FOR_A_TEST)
    scheme.write_text(FILES[SCHEME])
    other.unlink()
    assert "2 failed" in done.stdout and "'other'" in done.stdout, done.stdout
