"""Both tables of the paper, or other studies: data, every run, report. Interrupt it, type it again: it goes on.

python scripts/reproduce.py [--scale paper|quick|smoke] [--seeds N] [--study schemes --study controls] [tracker=none]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from crope.cli import default_scale, main_errors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", default="", help="default: paper with a CUDA device, else quick")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from 0 (default 1)")
    parser.add_argument(
        "--study", action="append", metavar="NAME", help="files of conf/study (default: table1 and table2)"
    )
    parser.add_argument("--results-dir", type=Path, default=Path("results"))
    parser.add_argument("overrides", nargs="*", help="such as tracker=none, tracker.mode=online, runtime.threads=4")
    arguments = parser.parse_args()

    from crope.reproduce import reproduce
    from crope.study import TABLES

    scale, why = (arguments.scale, "as asked") if arguments.scale else default_scale()
    return reproduce(
        scale=scale,
        why=why,
        seeds=range(arguments.seeds),
        studies=arguments.study or TABLES,
        results_dir=arguments.results_dir,
        overrides=arguments.overrides,
    )


if __name__ == "__main__":
    with main_errors():
        sys.exit(main())
