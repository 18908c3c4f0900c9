"""Which runs of a study are done, running, failed or missing, and how long it still takes.

python scripts/status.py                                 # both tables, the scale that has runs
python scripts/status.py --study fair_lr --watch         # renews in place, until all is done
"""

from __future__ import annotations

import argparse
from pathlib import Path

from crope.cli import main_errors


def main() -> None:
    from crope.report import SCALES
    from crope.state import read_states
    from crope.status import render_status, study_runs, watch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", help="a file of conf/study; default: both tables")
    parser.add_argument("--scale", choices=SCALES, help="default: the first of %(choices)s that has a run, else quick")
    parser.add_argument("--seeds", type=int, help="how many seeds, from 0; default: the study's own")
    parser.add_argument("--results-dir", type=Path, default=Path("results"))
    parser.add_argument("--watch", action="store_true", help="renew in place on a terminal")
    arguments = parser.parse_args()
    runs = study_runs(arguments.study, scale=arguments.scale, seeds=arguments.seeds, results_dir=arguments.results_dir)
    if arguments.watch:
        watch(runs)
    else:
        print(render_status(list(read_states(runs))))


if __name__ == "__main__":
    with main_errors():
        main()
