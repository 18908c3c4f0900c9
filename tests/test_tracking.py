"""wandb: what lands in the offline files, that nothing leaves the machine, and that `none` imports nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crope.compose import load_run
from crope.execute import execute
from crope.interrupt import StopRequest
from tests.conftest import TOY_OVERRIDES

LOG_ONE_RUN = """
import sys
from crope.compose import load_run
from crope.tracking import build_tracker
run = load_run(["model=rope", "data=ptb", "seed=3", f"results_dir={sys.argv[1]}", "train.precision=fp32"])
tracker = build_tracker(run)
for step in (0, 20, 40):
    tracker.log({"step": step, "val/loss_nats": 7.0 - step / 100})
tracker.finish({"status": "complete", "val_full": {"final_nats": 6.5}})
"""


@contextmanager
def listening_proxy() -> Iterator[tuple[str, list[object]]]:
    """A loopback proxy that answers nobody and counts who calls."""
    calls: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        over = threading.Event()

        def accept() -> None:
            while not over.is_set():
                try:
                    connection, address = server.accept()
                except TimeoutError:
                    continue
                calls.append(address)
                connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}", calls
        finally:
            over.set()
            thread.join()


def log_one_run(folder: Path, **environment: str) -> None:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    command = [sys.executable, "-c", LOG_ONE_RUN, str(folder)]
    subprocess.run(command, check=True, timeout=120, env={**clean, **environment})


def test_offline_files_hold_the_run_and_nothing_leaves(tmp_path: Path) -> None:
    with listening_proxy() as (proxy, calls):
        log_one_run(tmp_path, HTTP_PROXY=proxy, HTTPS_PROXY=proxy, http_proxy=proxy, https_proxy=proxy)
        assert calls == []
        # The same with wandb's error reports let through: the proxy would have seen traffic.
        log_one_run(tmp_path / "control", HTTPS_PROXY=proxy, https_proxy=proxy, WANDB_ERROR_REPORTING="true")
        assert calls

    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    wandb = Path(sys.executable).with_name("wandb")
    shown = subprocess.run(
        [wandb, "leet", "inspect", "--json", file], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    records = [json.loads(line) for line in shown.splitlines() if line.strip()]
    run = load_run(["model=rope", "data=ptb", "seed=3", "train.precision=fp32"])
    (started,) = [record["run"] for record in records if record["type"] == "run"]
    assert started["run_id"] == started["display_name"] == run.run_id
    assert (started["run_group"], started["job_type"], started["project"]) == ("ptb", "rope", "crope")
    assert started["config"]["update"]["train"]["lr"] == 0.001
    axes = [record["metric"] for record in records if record["type"] == "metric"]
    assert any(axis.get("glob_name") == "*" and axis.get("step_metric") == "step" for axis in axes)
    items = [record["history"]["item"] for record in records if record["type"] == "history"]
    assert [(item["step"], item["val/loss_nats"]) for item in items] == [(0, 7.0), (20, 6.8), (40, 6.6)]


def test_a_tracker_that_fails_costs_no_run(toy_data, tmp_path: Path, monkeypatch, capsys) -> None:
    class Broken:
        def log(self, line: dict[str, object]) -> None:
            raise RuntimeError("the server\nis gone")

        def finish(self, summary: dict[str, object]) -> None:
            raise AssertionError("asked again after it failed")

    for build in (Broken, lambda: 1 / 0):
        monkeypatch.setattr("crope.tracking.WandbTracker", lambda _, build=build: build())
        run = load_run([*TOY_OVERRIDES, "tracker=wandb", f"seed={build is Broken:d}", f"results_dir={tmp_path}"])
        assert execute(run, stop=StopRequest()).status == "complete"
        said = capsys.readouterr().err
        assert said.count("not mirrored to wandb from here on: ") == 1
        assert ("the server is gone" in said) == (build is Broken)


def test_none_imports_nothing() -> None:
    code = (
        "import sys; from crope.compose import load_run; from crope.tracking import build_tracker; "
        "build_tracker(load_run(['tracker=none'])).log({'step': 0}); sys.exit('wandb' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
