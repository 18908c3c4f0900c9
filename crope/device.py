"""Device, precision, peak rate, and CPU allocator settings."""

import ctypes
import os
import platform
from pathlib import Path

import torch

from crope.errors import ConfigError

# Dense rates of the vendor's data sheets for speed/mfu_pct; other devices get no MFU.
PEAK_BF16_FLOPS = {
    "NVIDIA H200": 989e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
}


def resolve_device(name: str) -> torch.device:
    """`auto`: the GPU where there is one. Raises ConfigError for `cuda` where there is none."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ConfigError(
            "runtime.device=cuda: torch finds no CUDA device here; take runtime.device=cpu or auto"
        )
    return torch.device("cuda" if name != "cpu" and available else "cpu")


def auto_precision(device: str) -> str:
    """bf16 where the hardware multiplies it faster than fp32, else fp32."""
    if resolve_device(device).type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if cpu_has_bf16() else "fp32"


def cpu_has_bf16() -> bool:
    """AVX512-BF16 or AMX; elsewhere bf16 on a CPU is emulated and slower than fp32."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name, info = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if info.exists():  # Linux, where platform.processor() says little
        lines = info.read_text(encoding="utf-8").splitlines()
        name = next(
            (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name
        )
    return f"{name} ({os.cpu_count()} cores)"


def keep_freed_memory() -> None:
    """Makes the C library keep memory that torch frees on a CPU instead of returning it to the
    system.

    By default each large tensor is a new mapping whose pages the kernel clears one by one, which
    takes a third of a step's time (docs/performance.md). Without mallopt, or where it refuses a
    value, nothing changes.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        trim_threshold, mmap_threshold = -1, -3  # names of malloc.h
        library.mallopt(mmap_threshold, 2**30)
        library.mallopt(trim_threshold, 2**31 - 1)


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Peak bf16 rate in FLOP/s; None for fp32 runs and for devices that are not in the table."""
    if device.type != "cuda" or precision != "bf16":
        return None
    return PEAK_BF16_FLOPS.get(torch.cuda.get_device_name(device))


def default_scale() -> str:
    """`paper` with a CUDA device, else `quick`."""
    return "paper" if torch.cuda.is_available() else "quick"
