"""Writes a finished run's weights for others; see crope/export.py.

python scripts/export.py results/runs/crope-ptb-base-s0-<hash> crope.safetensors            # as trained: a and b
python scripts/export.py results/runs/crope-ptb-base-s0-<hash> rope.safetensors --dense     # a plain RoPE model's
python scripts/export.py results/runs/rope-ptb-base-s0-<hash> crope.safetensors --converted # made by scripts/convert.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from crope.cli import main_errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="directory of a complete run")
    parser.add_argument("out", type=Path, metavar="FILE", help="ends in .safetensors or .pt")
    parser.add_argument("--dense", action="store_true", help="Q, K and V as full matrices")
    parser.add_argument("--converted", action="store_true", help="what scripts/convert.py made of a RoPE run")
    options = parser.parse_args()
    from crope.export import export

    export(options.run, options.out, dense=options.dense, converted=options.converted)
    print(options.out)


if __name__ == "__main__":
    with main_errors():
        main()
