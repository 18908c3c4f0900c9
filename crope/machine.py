"""What this machine has; torch, which takes seconds to import, is asked only where a GPU is."""

import os
from functools import cache
from pathlib import Path

# Device files of a GPU: NVIDIA's driver, Windows' subsystem for Linux, AMD's driver.
GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
BF16_FLAGS = {"avx512_bf16", "amx_tile"}  # elsewhere bf16 on a CPU is emulated, slower than fp32
CPU_INFO = Path("/proc/cpuinfo")
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@cache
def has_gpu() -> bool:
    """Tells whether torch finds a CUDA device."""
    if CPU_INFO.exists() and not any(Path(name).exists() for name in GPU_FILES):
        return False
    import torch

    return torch.cuda.is_available()


def default_scale() -> str:
    """Returns `paper` with a CUDA device, else `quick`."""
    return "paper" if has_gpu() else "quick"


def auto_precision(device: str) -> str:
    """Returns bf16 where the hardware multiplies it faster than fp32, else fp32."""
    if device != "cpu" and has_gpu():
        import torch

        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if BF16_FLAGS & set(cpu_info("flags").split()) else "fp32"


def cpu_info(key: str) -> str:
    """Returns a key's first value in /proc/cpuinfo; empty if there is none."""
    if not CPU_INFO.exists():
        return ""
    for line in CPU_INFO.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def usable_cores() -> int:
    """Counts the CPU cores this process may use, by its affinity and a container's quota."""
    affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1
    if CPU_QUOTA.exists():
        quota, period = CPU_QUOTA.read_text(encoding="utf-8").split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores
