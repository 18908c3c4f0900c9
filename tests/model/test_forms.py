"""The products that never build the dense weight: equal to ComplexLinear in value and gradient."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from crope.config import ROOT
from crope.model.complex_linear import ComplexLinear
from crope.model.forms import three_products, two_products

FORMS = {
    "two": two_products,
    "three": lambda x, a, b: three_products(x, a, b - a, a + b),
}


@pytest.mark.parametrize("shape", [(8,), (5, 8), (2, 5, 8)])
@pytest.mark.parametrize("form", FORMS)
def test_same_map_and_same_gradients(form: str, shape: tuple[int, ...], randomise) -> None:
    layer = randomise(ComplexLinear(8, 12))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    expected, found = layer(x), FORMS[form](x, layer.a, layer.b)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    seen = torch.randn_like(expected)
    leaves = (x, layer.a, layer.b)
    for one, other in zip(
        torch.autograd.grad(found, leaves, seen), torch.autograd.grad(expected, leaves, seen), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("form", "share"), [("two", 1.0), ("three", 0.75)])
def test_multiplications_against_the_dense_product(form: str, share: float) -> None:
    layer, x = ComplexLinear(64, 96), torch.zeros(10, 64)
    with FlopCounterMode(display=False) as counter:
        FORMS[form](x, layer.a, layer.b)
    assert counter.get_total_flops() == share * 2 * 10 * 64 * 96


def test_the_table_holds_multiples_of_the_real_map() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "bench_projection.py"))
    times = {"real": (2.0, 100.0), "dense from (a, b)": (3.0, 150.0), "two products": (4.0, 50.0),
             "three products": (1.5, 75.0)}  # fmt: skip
    rows = [{"width": 2048, "form": form, "training_ms": a, "decoding_us": b} for form, (a, b) in times.items()]
    rows += [{**row, "width": 128, "training_ms": 2.0} for row in rows]
    first, _, _, sentence = script["render"](rows, "here").splitlines()[4:]
    assert first == "| 2,048 | 2.00 ms | 1.50 × | 2.00 × | 0.75 × | 100 µs | 1.50 × | 0.50 × | 0.75 × |"
    assert sentence == (
        "Eq. 30 saves time in training from D = 2,048 on (three products), in decoding from D = 128 on (two products)."
    )


def test_script_writes_a_row_for_each_form_and_width(tmp_path: Path, monkeypatch, capsys) -> None:
    out = tmp_path / "bench.json"
    arguments = ["--widths", "8", "12", "--tokens", "4", "--seconds", "0.001", "--device", "cpu", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["bench_projection.py", *arguments])
    runpy.run_path(str(ROOT / "scripts" / "bench_projection.py"), run_name="__main__")
    found = json.loads(out.read_text())
    forms = ["real", "dense from (a, b)", "two products", "three products"]
    assert [(row["width"], row["form"]) for row in found["rows"]] == [(w, form) for w in (8, 12) for form in forms]
    assert all(row["training_ms"] > 0 and row["decoding_us"] > 0 for row in found["rows"])
    assert (found["tokens"], found["dtype"]) == (4, "float32")
    assert len(capsys.readouterr().out.splitlines()) == 2 + 8
