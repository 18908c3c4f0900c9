"""Devices; numerics; what torch.compile needs."""

import pytest
import torch

from crope.config import RuntimeConfig
from crope.errors import ConfigError
from crope.machine import auto_precision
from crope.train.device import (
    prepare_device,
    resolve_device,
    set_numerics,
)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no CUDA device"):
        resolve_device("cuda")
    assert resolve_device("auto").type == "cpu"


@pytest.mark.parametrize(
    ("native", "precision"),
    [
        (True, "bf16"),
        (False, "fp32"),
    ],
)
def test_auto_takes_bf16_on_a_gpu_that_has_it_in_hardware(native, precision, monkeypatch):
    """Every GPU of torch's can emulate it, more slowly than fp32."""

    def is_bf16_supported(including_emulation=True):
        return native or including_emulation

    monkeypatch.setattr("crope.machine.has_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_bf16_supported)
    assert auto_precision("auto") == precision


def test_a_run_computes_with_the_threads_that_it_is_given():
    """Otherwise each of a sweep's runs would take all cores."""
    try:
        prepare_device(RuntimeConfig(device="cpu", threads=2))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_numerics_are_stated_whatever_was_set_before(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    matmul = torch.backends.cuda.matmul
    torch.set_float32_matmul_precision("high")
    matmul.allow_bf16_reduced_precision_reduction = True
    torch.backends.cuda.enable_cudnn_sdp(True)
    for deterministic in (True, False):
        set_numerics(deterministic=deterministic)
        assert torch._inductor.config.deterministic == deterministic
        assert torch.are_deterministic_algorithms_enabled() == deterministic
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch._inductor.config.fallback_random
    assert not matmul.allow_tf32
    assert not matmul.allow_bf16_reduced_precision_reduction
    assert not torch.backends.cuda.cudnn_sdp_enabled()
