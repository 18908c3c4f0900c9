"""Copies the complete runs of one scale into results/published/<machine>/, to be committed.

python scripts/publish.py h200 --scale paper
"""

from __future__ import annotations

import argparse
from pathlib import Path

from crope.cli import main_errors
from crope.report import SCALES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machine", help="a name for the kind of machine, such as a100 or cpu-2-cores")
    parser.add_argument("--scale", choices=SCALES, required=True)
    parser.add_argument("--results-dir", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    from crope.report.published import publish

    run_ids = publish(arguments.results_dir, arguments.machine, scale=arguments.scale)
    print(f"{len(run_ids)} runs published for {arguments.machine}; `make readme` brings them into the README")


if __name__ == "__main__":
    with main_errors():
        main()
