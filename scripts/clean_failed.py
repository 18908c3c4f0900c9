"""Removes the folders of failed runs after listing them; a run that a process works on stays.

python scripts/clean_failed.py --dry-run                 # lists, removes nothing
"""

from __future__ import annotations

import argparse
from pathlib import Path

from crope.cli import main_errors


def main() -> None:
    from crope.clean import clean_failed

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="list, remove nothing")
    parser.add_argument("--results-dir", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    clean_failed(arguments.results_dir, dry_run=arguments.dry_run)


if __name__ == "__main__":
    with main_errors():
        main()
