"""Both tables of the paper, or other studies: data, every run, report. Interrupted, the same
command continues.

python scripts/reproduce.py [--scale paper|medium|quick|smoke] [--seeds N] [--study NAME ...]
                            [tracker=none]
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli import Parser, arguments, main_errors, refuse_repeats, say_where


def main() -> int:
    parser = Parser(description=__doc__)
    parser.add_argument(
        "--scale", help="default: the studies' own; else paper with a CUDA device, quick without"
    )
    parser.add_shared("--seeds", "--study", "--results-dir")
    parser.add_argument(
        "overrides", nargs="*", help="of tracker and runtime: tracker=none, runtime.jobs=4"
    )
    options = parser.parse_intermixed_args(arguments())
    refuse_repeats(options.overrides)

    from crope.runs.study import TABLES, planned_scale
    from crope.runs.sweep import reproduce
    from crope.train.device import default_scale

    studies = options.study or TABLES
    say_where(options.results_dir)
    return reproduce(
        scale=options.scale or planned_scale(studies) or default_scale(),
        seeds=options.seeds,
        results_dir=options.results_dir,
        studies=studies,
        overrides=options.overrides,
    )


if __name__ == "__main__":
    with main_errors():
        sys.exit(main())
