"""Devices; numerics; what torch.compile needs."""

import re
import sysconfig

import pytest
import torch

from crope.errors import ConfigError
from crope.machine import auto_precision
from crope.train.device import (
    can_compile,
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
    assert not matmul.allow_tf32
    assert not matmul.allow_bf16_reduced_precision_reduction
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with nothing that torch.compile needs; its programs are in the folder."""
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_path", lambda *names: str(tmp_path))
    can_compile.cache_clear()
    yield tmp_path
    can_compile.cache_clear()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("cpu", r"g\+\+ \(CXX .*Python\.h"),
        ("cuda", r"gcc \(CC .*Python\.h"),
    ],
)
def test_each_thing_that_compilation_needs_is_named_once(kind, words, machine, capsys):
    assert not can_compile(kind)
    assert not can_compile(kind)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(words, line)


@pytest.mark.parametrize(
    ("kind", "program", "variable"),
    [
        ("cpu", "g++", "OTHER"),
        ("cuda", "gcc", "OTHER"),
        ("cuda", "mine", "CC"),
    ],
)
def test_a_machine_with_compiler_and_headers_compiles(
    kind, program, variable, machine, monkeypatch
):
    (machine / program).touch(mode=0o755)
    (machine / "Python.h").touch()
    monkeypatch.setenv(variable, program)
    assert can_compile(kind)
