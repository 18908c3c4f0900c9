"""The scripts as commands: output, one line per error, exit status; one subprocess test per script
at most.
"""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from crope.config import ROOT
from crope.errors import UserError
from crope.record import PUBLISHED, read_record
from tests.conftest import TOY_OVERRIDES
from tests.toy_runs import toy_corpus, train_toy

sys.path.insert(0, str(ROOT / "scripts"))
import tools
import train as train_script


def run_script(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"scripts/{name}", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False
    )


def train(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[str, str, str]:
    """stdout, stderr and the error line of train.py in this process; no error: ''."""
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    monkeypatch.setattr(train_script, "failures", [])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    error = ""
    try:
        train_script.main()
    except UserError as raised:  # main_errors() prints it
        error = f"error: {raised}"
    except SystemExit as raised:
        error = str(raised.code)
    return *capsys.readouterr(), error


@pytest.mark.parametrize(
    ("argument", "word"),
    [
        ("train.seq_len=9999999", "train.seq_len"),
        ("+foo=1", "foo"),
        ("model=rope,crope", "-m"),
        ("hydra/launcher=ray", "ray"),
    ],
)
def test_every_mistake_is_one_line(
    argument: str, word: str, toy_data, monkeypatch, capsys, tmp_path: Path
) -> None:
    settings = [text for text in TOY_OVERRIDES if text.split("=")[0] != argument.split("=")[0]]
    out, err, error = train(
        monkeypatch, capsys, *settings, "scale=smoke", argument, f"results_dir={tmp_path}"
    )
    assert (out, err) == ("", "")
    assert error.startswith("error: ") and word in error and "\n" not in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("toy_data")
def test_a_multirun_skips_what_is_complete_and_lists_what_failed(
    monkeypatch, capsys, tmp_path: Path
) -> None:
    command = ["-m", *TOY_OVERRIDES, f"results_dir={tmp_path}", "model=rope,crope"]
    out, err, error = train(monkeypatch, capsys, *command)
    assert (err, error, out.count("nats per token")) == ("", "", 2)
    out, err, error = train(monkeypatch, capsys, *command, "train.lr=0.001,1e30,nan")
    assert out.count("already complete") == 2
    assert err.startswith("4 runs failed") and len(error.splitlines()) == 4
    assert error.count("not finite") == 2 and error.count("train.lr=nan") == 2


def test_cfg_job_prints_the_resolved_configuration_and_the_run_id(monkeypatch, capsys) -> None:
    out, _, error = train(
        monkeypatch, capsys, "--cfg", "job", "model=crope", "scale=smoke", "train.precision=fp32"
    )
    assert error == "" and out.startswith("# crope-ptb-base-s0-")
    assert "d_model: 128" in out and "${" not in out


def test_train_as_a_command(tmp_path: Path) -> None:
    """Exit status 1, one line on stderr, nothing on stdout; and few modules are imported."""
    done = run_script("train.py", "train.lr=nan", f"results_dir={tmp_path}")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    modules = "import sys; sys.path.insert(0, 'scripts'); import train; print(*sys.modules)"
    listed = subprocess.run(
        [sys.executable, "-c", modules], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert len([name for name in listed.split() if name.split(".")[0] == "crope"]) <= 25


def test_reproduce_without_data_and_network(tmp_path: Path) -> None:
    """Table 1 on `tiny`; the paper's rows say missing and why; run again, nothing is trained or
    changed.
    """
    hidden = {
        "CROPE_DATA_DIR": str(tmp_path / "none"),
        "CROPE_CACHE_DIR": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "1",
    }
    command = [
        "--scale",
        "smoke",
        "--study",
        "table1",
        "--seeds",
        "1",
        "--results-dir",
        str(tmp_path),
        "tracker=none",
    ]
    done = run_script("reproduce.py", *command, **hidden)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 runs, 3 to train" in done.stdout and "error: ptb" in done.stderr
    with (tmp_path / "report" / "table1.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["dataset"] == "tiny", row["status"]) for row in rows} == {
        (True, "complete"),
        (False, "missing"),
    }
    assert "HF_HUB_OFFLINE" in (tmp_path / "unavailable.json").read_text()
    before = {path: path.read_bytes() for path in tmp_path.glob("r*/*/*") if path.is_file()}
    assert "3 runs, 0 to train" in run_script("reproduce.py", *command, **hidden).stdout
    assert {path: path.read_bytes() for path in before} == before
    assert all(
        read_record(path).config["runtime"]["threads"] >= 1
        for path in (tmp_path / "runs").iterdir()
    )


def test_tools_find_runs_and_fail_in_one_line_per_run(monkeypatch, capsys, tmp_path: Path) -> None:
    sent = []
    monkeypatch.setattr(
        "crope.tracking.upload", lambda record, results_dir: sent.append(record.path.name)
    )
    published = next(PUBLISHED.glob("*/crope-ptb-base-s0-*"))
    monkeypatch.setattr(
        sys,
        "argv",
        ["tools.py", "upload", "nosuch", str(published), "--results-dir", str(tmp_path)],
    )
    assert tools.main() == 1
    assert sent == [published.name]
    assert capsys.readouterr().err.startswith("error: run 'nosuch'")


def test_tools_measure_convert_and_export_a_run(monkeypatch, capsys, tmp_path: Path) -> None:
    with toy_corpus(tmp_path / "tokens"):
        record, out = (
            train_toy(tmp_path, "model=rope", "eval.full_tokens=0"),
            tmp_path / "out.safetensors",
        )
        for command, *options in (
            ["extrapolate"],
            ["convert", "--steps=1"],
            ["export", str(out), "--converted"],
        ):
            arguments = [
                "tools.py",
                command,
                record.path.name[:12],
                *options,
                f"--results-dir={tmp_path}",
            ]
            monkeypatch.setattr(sys, "argv", arguments)
            assert not tools.main()
    printed = capsys.readouterr().out
    loss = f"{record.summary['val_full']['final_nats']:.4f}"
    assert (
        f"L=16 {loss}; L=32" in printed
        and f"trained {loss}; rope {loss} -> " in printed
        and out.exists()
    )


def test_the_recall_experiment_is_a_command_of_its_own(monkeypatch, tmp_path: Path) -> None:
    folders = []
    monkeypatch.setattr("crope.theory.make.make_recall", folders.append)
    command = ["tools.py", "theory", "--part=recall", f"--results-dir={tmp_path}"]
    monkeypatch.setattr(sys, "argv", command)
    assert not tools.main()
    assert folders == [tmp_path / "theory"]
