"""Tables, figures and index.html from run directories. Trains nothing, fetches nothing. Exits 1 if a run is damaged.

python scripts/report.py
python scripts/report.py --scale quick --runs results/published/cpu --out results/published/report

Where results/runs has no run of the scale, the committed records of results/published are shown, and that is said.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from crope.cli import main_errors
from crope.report import SCALES, report_folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--results-dir", type=Path, default=Path("results"), help="holds runs/ and report/ (default results)"
    )
    parser.add_argument("--scale", choices=SCALES, help="default: the first of %(choices)s that has a run")
    parser.add_argument(
        "--runs",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="may be repeated (default RESULTS_DIR/runs)",
    )
    parser.add_argument("--out", type=Path, help="default RESULTS_DIR/report")
    arguments = parser.parse_args()
    _, damaged = report_folder(
        results_dir=arguments.results_dir, scale=arguments.scale, folders=arguments.runs, out_dir=arguments.out
    )
    sys.exit(1 if damaged else 0)


if __name__ == "__main__":
    with main_errors():
        main()
