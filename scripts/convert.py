"""Makes a finished RoPE run a CRoPE model and tunes it; see crope/convert.py.

python scripts/train.py model=rope data=ptb
python scripts/convert.py results/runs/rope-ptb-base-s0-<hash> --steps 200

Leaves conversion.json, converted.pt and converted_dense.pt in the run's directory.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from crope.cli import main_errors
from crope.errors import UserError

ARMS = {
    "rope": "real, tuned on",
    "best": "projected, best structure",
    "random": "projected, random structure",
    "fresh": "new complex Q, K, V",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="directory of a complete RoPE run")
    parser.add_argument("--steps", type=int, default=200, help="updates of the tuning (default %(default)s)")
    parser.add_argument("--lr", type=float, help="its constant learning rate (default: the run's last)")
    options = parser.parse_args()
    if options.steps < 0 or (options.lr is not None and not 0 < options.lr < float("inf")):
        raise UserError("--steps must be at least 0, --lr a finite number above 0")
    from crope.convert import convert

    print(render(convert(options.run, steps=options.steps, lr=options.lr)))


def render(result: dict[str, Any]) -> str:
    before, after, kept = result["loss_nats"], result["tuned_loss_nats"], result["kept_share"]
    sizes = [sum(result["parameters"][name].values()) for name in ("trained", "converted")]
    lines = [f"trained: {before['trained']:.4f} nats per token; tuned for {result['steps']} steps at {result['lr']:g}:"]
    lines += [f"  {label:<28} {before[name]:.4f} -> {after[name]:.4f}" for name, label in ARMS.items()]
    by_layer = ", ".join(f"{share:.3f}" for share in kept["by_layer"])
    by_chance = kept["best_by_chance"]
    lines.append(
        f"complex-linear share of Q, K, V: best structure {kept['best']:.3f} (by chance {min(by_chance):.3f} to"
        f" {max(by_chance):.3f}), random structure {kept['random']:.3f}, best by layer {by_layer}"
    )
    qkv = [result["parameters"][name]["qkv"] for name in ("trained", "converted")]
    lines.append(f"parameters: {sizes[0]:,} -> {sizes[1]:,}, in Q, K, V {qkv[0]:,} -> {qkv[1]:,}")
    return "\n".join(lines)


if __name__ == "__main__":
    with main_errors():
        main()
