"""The papers' theory in numbers: results/theory/*.json for the report, and docs/equations.md.

python scripts/theory.py
python scripts/theory.py --runs results/runs --seeds 3
"""

from __future__ import annotations

import argparse
from pathlib import Path

from crope.cli import main_errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--results-dir", type=Path, default=Path("results"), help="holds runs/ and theory/ (default results)"
    )
    parser.add_argument(
        "--runs",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="trained models for the complex share; may be repeated (default RESULTS_DIR/runs)",
    )
    parser.add_argument("--seeds", type=int, default=5, help="of the pointer task, per model (default 5)")
    arguments = parser.parse_args()
    if arguments.seeds < 1:
        parser.error("--seeds must be at least 1")

    from crope.theory.artefacts import make_theory

    make_theory(results_dir=arguments.results_dir, folders=arguments.runs, seeds=arguments.seeds)


if __name__ == "__main__":
    with main_errors():
        main()
