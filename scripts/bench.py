"""Step times beside peers that do the same work, and ways to train several seeds at once.

The tables in docs/performance.md are remade with --write.

python scripts/bench.py                                         # the shapes of docs/performance.md
python scripts/bench.py --part seeds                            # several seeds alone
python scripts/bench.py scale=paper ablation=base model=rope    # any configuration, as for train.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from crope.cli import main_errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="turns of each contender (default 10)")
    parser.add_argument("--out", type=Path, default=Path("results/bench"), help="folder of the JSON files")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    parser.add_argument("--part", choices=("steps", "seeds"), help="default: both")
    parser.add_argument("overrides", nargs="*", help="of one configuration; default: those of docs/performance.md")
    arguments = parser.parse_args()

    from crope.bench_page import PARTS, run_bench

    parts = [arguments.part] if arguments.part else PARTS
    run_bench(arguments.overrides, rounds=arguments.rounds, out=arguments.out, write=arguments.write, parts=parts)


if __name__ == "__main__":
    with main_errors():
        main()
