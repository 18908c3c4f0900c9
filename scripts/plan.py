"""What a study costs on this machine: runs, tokens, operations and time, and what of it is done. Trains nothing.

python scripts/plan.py                                   # both tables at the scale of `make reproduce`
python scripts/plan.py --study fair_lr --seeds 3 --scale paper
"""

from __future__ import annotations

import argparse
from pathlib import Path

from crope.cli import default_scale, main_errors


def main() -> None:
    from crope.compose import load_run
    from crope.plan import render_plan
    from crope.report import SCALES
    from crope.status import study_jobs
    from crope.workers import worker_count

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", help="a file of conf/study; default: both tables")
    parser.add_argument("--scale", choices=SCALES, help="default: paper with a CUDA device, else quick")
    parser.add_argument("--seeds", type=int, help="how many seeds, from 0; default: the study's own")
    parser.add_argument("--results-dir", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    jobs = study_jobs(
        arguments.study,
        scale=arguments.scale or default_scale()[0],
        seeds=arguments.seeds,
        results_dir=arguments.results_dir,
    )
    runs = [load_run(job) for job in jobs]
    print(render_plan(runs, workers=worker_count(runs[0])))


if __name__ == "__main__":
    with main_errors():
        main()
