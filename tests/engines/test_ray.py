"""hydra/launcher=ray on a Ray of its own: the same bits, and no port that another machine could reach."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.engines.conftest import needs
from tests.engines.study import Sweep, differences

pytestmark = needs("hydra_ray_launcher", "ray")

NO_GPU = ("hydra.launcher.ray.remote.num_gpus=0", "train.precision=fp32")


def listening() -> set[str]:
    """address:port, in /proc's hexadecimal, of every TCP listener that is not on loopback."""
    lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    found = {fields[1] for line in lines if (fields := line.split())[3] == "0A"}
    local = ("0100007F:", "0000000000000000FFFF00000100007F:", "00000000000000000000000001000000:")
    return {address for address in found if not address.startswith(local)}


def test_ray_makes_the_same_bits_quietly_and_on_loopback(whole: Path, tmp_path: Path) -> None:
    before = listening()
    sweep = Sweep("ray", tmp_path, *NO_GPU)
    sweep.run_at_work()
    assert listening() - before == set()
    said = sweep.end()
    assert sweep.process.returncode == 0, said
    assert "3 of 3 runs are complete" in said
    assert differences(whole, tmp_path) == []


def test_a_run_whose_process_is_killed_goes_on_from_its_checkpoint(whole: Path, tmp_path: Path) -> None:
    """Ray starts it again by itself."""
    sweep = Sweep("ray", tmp_path, *NO_GPU, "model=xpos,rope,crope")
    run = sweep.run_at_work()
    pid = re.match(r"process (\d+) on ", (run / ".lock").read_text())
    assert pid
    subprocess.run(["kill", "-KILL", pid[1]], check=True)
    said = sweep.end()
    assert sweep.process.returncode == 0, said
    assert '"resumed_from"' in (run / "provenance.json").read_text()
    assert differences(whole, tmp_path) == []
