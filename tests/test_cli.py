"""The command line as a user meets it: subprocesses, their output and their exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from crope.config import ROOT
from tests.conftest import TOY_OVERRIDES


def script(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / f"{name}.py"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=ROOT, check=False, env={**os.environ, **environment}
    )


def test_cfg_job_prints_the_whole_resolved_configuration() -> None:
    done = script("train", "model=crope", "scale=paper", "train.precision=bf16", "--cfg", "job")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# crope-ptb-base-s0-")
    shown = yaml.safe_load(done.stdout)
    assert (shown["train"]["batch_size"], shown["model"]["projection"]) == (16, "complex")
    assert "${" not in done.stdout and "???" not in done.stdout


@pytest.mark.parametrize("arguments", [["+foo=1"], ["-m", "seed=0,1", "+model.thetaa=3"], ["model=rop"], ["seed=0,1"]])
def test_a_mistake_is_one_line_and_status_1(arguments: list[str], tmp_path: Path) -> None:
    done = script("train", *arguments, f"results_dir={tmp_path}")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "runs").exists()


def test_no_gpu_and_no_place_to_write_are_one_line(tmp_path: Path) -> None:
    import torch

    if not torch.cuda.is_available():
        done = script("train", *TOY_OVERRIDES, "runtime.device=cuda", f"results_dir={tmp_path}")
        said = done.stdout + done.stderr
        assert done.returncode == 1 and "Traceback" not in said
        assert "runtime.device=cuda: torch finds no CUDA device here" in said
    (tmp_path / "file").write_text("")
    done = script("train", *TOY_OVERRIDES, f"results_dir={tmp_path / 'file'}")
    said = done.stdout + done.stderr
    assert done.returncode == 1 and "Traceback" not in said
    assert f"error: {tmp_path / 'file'}" in said


def test_a_sweep_makes_each_run_once_and_then_none(tmp_path: Path) -> None:
    sweep = ["-m", "model=xpos,rope,crope", "seed=0,1", *TOY_OVERRIDES, f"results_dir={tmp_path}"]
    first = script("train", *sweep)
    assert first.returncode == 0, first.stdout + first.stderr
    runs = sorted((tmp_path / "runs").iterdir())
    assert len(runs) == 6
    before = [(run / "summary.json").read_bytes() for run in runs]
    second = script("train", *sweep)
    assert second.returncode == 0
    assert second.stdout.count("complete already") == 6
    assert [(run / "summary.json").read_bytes() for run in runs] == before


def test_a_sweep_goes_on_after_a_failed_run_and_ends_with_status_1(tmp_path: Path) -> None:
    done = script("train", "-m", "train.lr=1e30,1e-3", *TOY_OVERRIDES, f"results_dir={tmp_path}")
    assert done.returncode == 1
    assert "1 of 2 runs failed:" in done.stdout and "not finite at step" in done.stdout
    statuses = {yaml.safe_load(path.read_text())["status"] for path in tmp_path.glob("runs/*/summary.json")}
    assert statuses == {"failed", "complete"}


def test_help_and_report_need_no_torch() -> None:
    code = (
        "import runpy, sys\n"
        "sys.argv = ['report.py', '--help']\n"
        "try: runpy.run_path('scripts/report.py', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules or 'wandb' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_every_script_has_help() -> None:
    for path in sorted((ROOT / "scripts").glob("*.py")):
        if path.stem in ("golden", "readme"):  # no arguments: they act at once
            continue
        done = script(path.stem, "--help")
        assert done.returncode == 0 and done.stdout, path.stem
