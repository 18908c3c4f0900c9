"""A SLURM cluster of one node in one folder: munged, slurmctld, slurmd, every port on 127.0.0.1, one fake GPU.

No accounting, as on the smallest clusters. Needs Debian's slurm-wlm and munge, and no privilege beyond starting them.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
MUNGED, SLURMCTLD, SLURMD = DAEMONS
READY_S = 40.0  # patience for a daemon
REQUEUE_S = 5  # that a requeued job waits; SLURM's own is 120


def missing() -> list[str]:
    """Programs that are not on this machine."""
    return [name for name in (*DAEMONS, "sbatch", "srun") if _program(name) is None]


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Yields the environment in which SLURM's commands find the cluster. Stops its daemons by their pid files."""
    folder.chmod(0o755)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    try:
        _start_munge(folder)
        _write_configuration(folder)
        for daemon, options in ((SLURMCTLD, []), (SLURMD, ["-N", "node"])):
            log = folder / f"{daemon}.log"
            subprocess.run([_program(daemon), *options, "-L", log], env=environment, check=True, timeout=READY_S)
        _wait(lambda: "idle" in _said(["sinfo", "-h", "-o", "%T"], environment), f"no idle node: {folder}/*.log")
        yield environment
    finally:
        _said(["scancel", "--user", getpass.getuser()], environment)
        for daemon in reversed(DAEMONS):
            _stop(folder / f"{daemon}.pid")


def _start_munge(folder: Path) -> None:
    private = folder / "munge"
    private.mkdir(mode=0o755)
    key = private / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    files = {"key-file": key, "socket": folder / "munge.socket", "pid-file": folder / "munged.pid"}
    files |= {"log-file": private / "log", "seed-file": private / "seed"}
    options = [f"--{name}={path}" for name, path in files.items()]
    subprocess.run([_program(MUNGED), "--force", *options], check=True, timeout=READY_S)


def _write_configuration(folder: Path) -> None:
    state = folder / "state"
    state.mkdir()
    host, user = socket.gethostname().split(".")[0], getpass.getuser()
    (folder / "gres.conf").write_text("NodeName=node Name=gpu File=/dev/null\n")
    (folder / "slurm.conf").write_text(
        f"""ClusterName=toy
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={_free_port()}
SlurmdPort={_free_port()}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={REQUEUE_S}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={state}
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobRequeue=1
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=node NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=4000 Gres=gpu:1 State=UNKNOWN
PartitionName=all Nodes=node Default=YES MaxTime=INFINITE State=UP
"""
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _program(name: str) -> str | None:
    """Daemons are in sbin, which a user's PATH may lack."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def _said(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=READY_S, check=False).stdout


def _stop(pid_file: Path) -> None:
    if not pid_file.exists():
        return
    pid = int(pid_file.read_text())
    os.kill(pid, signal.SIGTERM)
    _wait(lambda: not Path(f"/proc/{pid}").exists(), f"process {pid} of {pid_file} does not end")


def _wait(ready, failure: str) -> None:
    deadline = time.monotonic() + READY_S
    while not ready():
        assert time.monotonic() < deadline, failure
        time.sleep(0.2)
