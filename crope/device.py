"""What the machine has: device, precision that pays, peak rate."""

from __future__ import annotations

import torch

# Dense bf16 rates of the vendors' data sheets, for speed/mfu_pct; other devices get no MFU.
PEAK_BF16_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}


def resolve_device(name: str) -> torch.device:
    """`auto`: the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


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
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return f"{names[0]} ({len(names)} cores)" if names else "CPU"


def peak_flops(device: torch.device) -> float | None:
    """Peak bf16 rate in FLOP/s, or None where the data sheet is not in the table."""
    if device.type != "cuda":
        return None
    return next((rate for name, rate in PEAK_BF16_FLOPS.items() if name in torch.cuda.get_device_name(device)), None)
