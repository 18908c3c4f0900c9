"""Device, numerics, compiler, and CPU allocator settings."""

import ctypes
import gc
import os
import shutil
import sysconfig
from functools import cache
from pathlib import Path

import torch

from crope.config import Config, RuntimeConfig
from crope.errors import ConfigError, log_line

# The first run of a model pays 30 to 85 s of processor time, each later one 5 to 10 s (torch's
# cache). On a CPU this saves about 20 us per token, 30 s in a run of this length, and a sweep
# compiles each model once. On a GPU it saves the launches of several hundred kernels, an estimated
# 5 to 10 ms per step.
COMPILE_PAYS_TOKENS = 1_500_000  # of a run on a CPU
COMPILE_PAYS_STEPS = 2_000  # of a run on a GPU


def resolve_device(name: str) -> torch.device:
    """Returns the device; for `auto` the GPU, if there is one. Raises ConfigError for `cuda`
    without a GPU.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ConfigError(
            "runtime.device=cuda: torch finds no CUDA device here; take runtime.device=cpu or auto"
        )
    return torch.device("cuda" if name != "cpu" and available else "cpu")


def prepare_device(runtime: RuntimeConfig) -> torch.device:
    """Sets torch's process-wide options and clears what an earlier run of this process left."""
    device = resolve_device(runtime.device)
    if runtime.threads:
        torch.set_num_threads(runtime.threads)
    set_numerics(deterministic=runtime.deterministic)
    torch._dynamo.reset()
    # torch has no public setting. Falling back to eager would cost speed without notice.
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    if device.type == "cuda":
        gc.collect()  # the last run's optimiser is in a reference cycle and would count in this run's peak
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    else:
        keep_freed_memory()
    return device


def set_numerics(*, deterministic: bool) -> None:
    """Sets explicitly how torch computes.

    fp32 products      in float32, not TF32, which rounds the factors to 10 bits: fp32 runs are the
                       reference for bf16 runs. (Attention's kernel adds up three TF32 products.)
    bf16 products      summed in float32: the head's weight gradient has B L terms, 16,384 in the
                       base row, and split sums rounded to bf16 would lose digits.
    attention          never cuDNN's kernel, torch's first choice on Hopper: wrong gradients are
                       reported for it, and other GPUs use flash attention's kernels.
    dropout masks      those of eager torch at the same seed, also in compiled steps.
    deterministic      kernels without atomic sums, and none chosen by timing in Inductor: the same
                       bits on every run of one machine.
    """
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch._inductor.config.fallback_random = True
    torch.use_deterministic_algorithms(deterministic)
    if hasattr(torch._inductor.config, "deterministic"):  # not in the oldest supported torch
        torch._inductor.config.deterministic = deterministic
    if deterministic:  # cuBLAS reads it when it starts
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def compiles(config: Config, device: torch.device) -> bool:
    """Tells whether a run uses torch.compile: on request, or by `auto` if it pays within the run;
    never where the machine cannot compile.
    """
    steps = config.train.max_steps
    pays = steps >= COMPILE_PAYS_STEPS
    if device.type == "cpu":
        pays = steps * config.train.batch_size * config.train.seq_len >= COMPILE_PAYS_TOKENS
    wanted = {"auto": pays, "true": True, "false": False}[config.runtime.compile]
    return wanted and can_compile(device.type)


@cache
def can_compile(kind: str) -> bool:
    """Tells whether torch.compile has what it needs on this kind of device; if not, prints once
    what to install.

    Inductor compiles C++ for a CPU; Triton compiles its launcher in C for a GPU.
    """
    variable, default = ("CXX", "g++") if kind == "cpu" else ("CC", "gcc")
    compiler = os.environ.get(variable, default)
    headers = Path(sysconfig.get_path("include", "posix_prefix"), "Python.h")
    found = shutil.which(compiler) is not None and headers.exists()
    if not found:
        log_line(
            f"torch.compile needs the compiler {compiler} ({variable} may name another) and Python's"
            f" headers ({headers}; Debian: python3-dev); until they are installed, runs train without"
            " compilation, more slowly"
        )
    return found


def keep_freed_memory() -> None:
    """Makes the C library keep memory that torch frees on a CPU.

    By default each large tensor is a new mapping, and clearing its pages takes a third of a step's
    time (docs/performance.md). Without mallopt, or where it refuses a value, nothing changes.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        trim_threshold, mmap_threshold = -1, -3  # names of malloc.h
        # Older versions of glibc refuse more than 32 MiB.
        if any(library.mallopt(mmap_threshold, size) for size in (2**30, 2**25)):
            library.mallopt(trim_threshold, 2**31 - 1)


def return_freed_memory() -> None:
    """Returns to the system what `keep_freed_memory` has kept.

    In glibc before 2.38 a freed tensor's place is often too short for the next one of its size: the
    eager full pass at the paper's vocabulary would grow by 0.4 GB a batch.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
