"""Peak rates that MFU is relative to."""

import pytest
import torch

from crope.device import peak_flops


@pytest.mark.parametrize(
    ("name", "rate"),
    [("NVIDIA H200", 989e12), ("NVIDIA A100-SXM4-80GB", 312e12), ("another", None)],
)
def test_peak_is_the_dense_bf16_rate_of_known_gpus(
    name: str, rate: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vendors print twice as much for sparse matrices."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    cuda = torch.device("cuda")
    assert peak_flops(cuda, "bf16") == rate
    assert peak_flops(cuda, "fp32") is peak_flops(torch.device("cpu"), "bf16") is None
