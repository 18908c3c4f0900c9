"""Where does Eq. 30 save time, not only memory? Times one D x D map, real against complex in three forms.

python scripts/bench_projection.py                                # widths 128 to 4096, a table
python scripts/bench_projection.py --device cuda --dtype bfloat16 --tokens 16384 --out bench.json
python scripts/bench_projection.py --write                        # into docs/performance.md

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

from crope.bench_page import PAGE, with_tables
from crope.cli import main_errors
from crope.device import device_name, resolve_device
from crope.model.complex_linear import ComplexLinear
from crope.model.forms import three_products, two_products
from crope.record import write_json, write_text

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
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
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
    if options.write:
        made = f"{name}, {options.dtype}, {threads} threads, torch {torch.__version__}; {options.tokens} tokens a step"
        page = PAGE.read_text(encoding="utf-8")
        write_text(PAGE, with_tables(page, f"{device.type} projection", render(rows, made)))


def render(rows: list[dict[str, Any]], about: str) -> str:
    """A Markdown table: the real map's times, each complex form's as a multiple, and from where on one saves."""
    head = ["D", *(f"{what}, {form}" for what in ("training", "decoding") for form in ("real", *FORMS[1:]))]
    lines = [about, "", "| " + " | ".join(head) + " |", "|" + " ---: |" * len(head)]
    for width in dict.fromkeys(row["width"] for row in rows):
        of_width = {row["form"]: row for row in rows if row["width"] == width}
        cells = [f"{width:,}"]
        for key, unit in (("training_ms", ".2f} ms"), ("decoding_us", ".0f} µs")):
            real = of_width["real"][key]
            cells += [f"{{:,{unit}".format(real), *(f"{of_width[form][key] / real:.2f} ×" for form in FORMS[1:])]
        lines.append("| " + " | ".join(cells) + " |")
    saves = [
        f"{what} {saves_from(rows, key)}" for what, key in (("training", "training_ms"), ("decoding", "decoding_us"))
    ]
    return "\n".join([*lines, "", f"Eq. 30 saves time in {', in '.join(saves)}."]) + "\n"


def saves_from(rows: list[dict[str, Any]], key: str) -> str:
    """The smallest width from which on a form is faster than the real map at every width, and the form."""
    times = {(row["width"], row["form"]): row[key] for row in rows}
    found = []
    for form in FORMS[1:]:
        slower = [width for width, one in times if one == form and times[width, form] >= times[width, "real"]]
        faster = [width for width, one in times if one == form and width > max(slower, default=0)]
        found += [(min(faster), form)] if faster else []
    return "from D = {:,} on ({})".format(*min(found, key=lambda one: one[0])) if found else "at none of these widths"


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
