"""Where does Eq. 30 save time, not only memory? Times one D x D map, real against complex in three forms.

python scripts/bench_projection.py                                # widths 128 to 4096, a table
python scripts/bench_projection.py --device cuda --dtype bfloat16 --tokens 16384 --out bench.json

training   forward and backward of `--tokens` tokens; the complex forms start from (a, b)
decoding   one token without gradients; sums of weights that Gauss needs are made beforehand
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from crope.cli import main_errors
from crope.device import device_name, resolve_device
from crope.model.complex_linear import ComplexLinear
from crope.model.forms import three_products, two_products
from crope.record import write_json

FORMS = ("real", "dense from (a, b)", "two products", "three products")
WEIGHTS_READ = (1.0, 0.5, 0.5, 0.75)  # of D^2 when decoding


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--tokens", type=int, default=512, help="of a training step (default %(default)s)")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--seconds", type=float, default=0.5, help="spent on each number (default %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the numbers as JSON")
    options = parser.parse_args()
    device, dtype = resolve_device(options.device), getattr(torch, options.dtype)
    name, threads = device_name(device), torch.get_num_threads()
    print(f"{name}, {options.dtype}, {threads} threads, {options.tokens} tokens a training step; medians")
    print(f"{'D':>5}  {'form':<18} {'training ms':>12} {'to real':>8} {'decoding us':>12} {'to real':>8}")
    rows: list[dict[str, Any]] = []
    for width in options.widths:
        real = None
        for form, training, decoding, read in cases(width, options.tokens, device, dtype):
            times = {
                "training_ms": 1e3 * median_seconds(training, options.seconds),
                "decoding_us": 1e6 * median_seconds(decoding, options.seconds),
            }
            real = real or times
            rows.append({"width": width, "form": form, "weights_read_when_decoding": read, **times})
            ratios = {key: times[key] / real[key] for key in times}
            print(
                f"{width:>5}  {form:<18} {times['training_ms']:>12.3f} {ratios['training_ms']:>7.2f}x "
                f"{times['decoding_us']:>12.1f} {ratios['decoding_us']:>7.2f}x",
                flush=True,
            )
    if options.out:
        about = {"device": name, "dtype": options.dtype, "threads": threads, "tokens": options.tokens}
        write_json(options.out, {**about, "torch": torch.__version__, "rows": rows})


def cases(width: int, tokens: int, device: torch.device, dtype: torch.dtype) -> list[tuple[str, Any, Any, float]]:
    """(form, a training step, a decoding step, weights read) of each form, on random numbers."""
    linear = torch.nn.Linear(width, width, bias=False, device=device, dtype=dtype)
    layer = ComplexLinear.from_linear(linear)
    a, b = layer.a, layer.b
    sums = ((b - a).detach(), (a + b).detach())
    x_TD = torch.randn(tokens, width, device=device, dtype=dtype, requires_grad=True)
    training: list[Callable[[Tensor], Tensor]] = [
        linear,
        layer,
        lambda x: two_products(x, a, b),
        lambda x: three_products(x, a, b - a, a + b),
    ]
    decoding = [*training[:3], lambda x: three_products(x, a, *sums)]
    leaves = [x_TD, linear.weight, a, b]
    return [
        (form, _training(step, x_TD, leaves), _decoding(one, x_TD[:1].detach()), read)
        for form, step, one, read in zip(FORMS, training, decoding, WEIGHTS_READ, strict=True)
    ]


def _training(form: Callable[[Tensor], Tensor], x_TD: Tensor, leaves: list[Tensor]) -> Callable[[], None]:
    gradient_TD = torch.randn_like(x_TD)

    def step() -> None:
        for leaf in leaves:
            leaf.grad = None
        form(x_TD).backward(gradient_TD)

    return step


def _decoding(form: Callable[[Tensor], Tensor], x_1D: Tensor) -> Callable[[], Tensor]:
    return torch.no_grad()(lambda: form(x_1D))


def median_seconds(step: Callable[[], Any], seconds: float) -> float:
    timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=seconds).median


if __name__ == "__main__":
    with main_errors():
        main()
