"""Hydra launchers: the same bits as in one process, nothing trained twice, failures reported (`make
test-engines`).
"""

import json

import pytest

from tests.conftest import TOY_OVERRIDES, run_script, same_bits, toy_run

# Toy sizes with the real tokenizer: a process of a launcher cannot be handed the toy corpus.
OVERRIDES = (*TOY_OVERRIDES, "scale=smoke", "runtime.threads=1")
MORE = {
    "joblib": ["hydra.launcher.n_jobs=2"],
    "ray": ["hydra.launcher.ray.remote.num_gpus=0"],
}


def sweep(launcher, results, *more):
    chosen = (f"hydra/launcher={launcher}", *MORE.get(launcher, ()))
    return run_script("train.py", "-m", *chosen, *OVERRIDES, f"results_dir={results}", *more)


@pytest.fixture(params=["joblib", "submitit_local", "ray"])
def launcher(request):
    pytest.importorskip(f"hydra_plugins.hydra_{request.param.split('_')[0]}_launcher")
    return request.param


def test_a_launcher_makes_the_same_bits_once(launcher, tmp_path):
    alone = tmp_path / "alone"
    for name, results in (("basic", alone), (launcher, tmp_path)):
        done = sweep(name, results, "model=rope,crope")
        assert done.returncode == 0, done.stdout + done.stderr
    for model in ("rope", "crope"):
        options = ("scale=smoke", "runtime.threads=1", f"model={model}")
        assert same_bits(toy_run(alone, *options), toy_run(tmp_path, *options))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*")}
    assert sweep(launcher, tmp_path, "model=rope,crope").returncode == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_run_that_fails_stops_no_other_and_ends_in_status_1(launcher, tmp_path):
    done = sweep(launcher, tmp_path, "model=crope", "train.lr=1e30,1e-3")
    assert done.returncode == 1
    assert "not finite" in done.stderr
    summaries = tmp_path.glob("runs/*/summary.json")
    statuses = {json.loads(path.read_text())["status"] for path in summaries}
    assert statuses == {"complete", "failed"}


def test_the_file_for_slurm_composes():
    """Without a cluster this is all that is tested."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    shown = run_script("train.py", "--cfg", "hydra", "hydra/launcher=submitit_slurm", "scale=smoke")
    assert "_target_: hydra_plugins" in shown.stdout
