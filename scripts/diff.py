"""What two runs differ in: configuration, provenance, losses, and the first step at which their curves part.

python scripts/diff.py results/runs/crope-ptb-base-s0-<hash> results/runs/rope-ptb-base-s0-<hash>
python scripts/diff.py crope-ptb-base-s0 rope-ptb-base-s0     # the start of an id, in results/runs or results/published
"""

from __future__ import annotations

import argparse
from pathlib import Path

from crope.cli import main_errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs=2, metavar="RUN", help="a run directory, its id, or the start of its id")
    parser.add_argument("--results-dir", type=Path, default=Path("results"), help="holds runs/ (default results)")
    arguments = parser.parse_args()
    from crope.diff import render_diff
    from crope.lookup import find_run

    first, second = (find_run(name, results_dir=arguments.results_dir) for name in arguments.runs)
    print(render_diff(first, second), end="")


if __name__ == "__main__":
    with main_errors():
        main()
