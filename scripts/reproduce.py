"""Both tables of the paper, or other studies: data, every run, report. Interrupted, the same
command continues.

python scripts/reproduce.py [--scale paper|medium|quick|smoke] [--seeds N] [--study NAME]...
                            [tracker=none]
"""

import sys
import time
from dataclasses import replace
from datetime import timedelta

from cli import Parser, main_errors


def main() -> int:
    """Returns 1 if a run or its measurement failed, or if data or a record is corrupt. A dataset
    that cannot be had is no failure.
    """
    started = time.monotonic()
    parser = Parser(description=__doc__)
    parser.add_argument(
        "--scale", help="default: the studies' own; else paper with a CUDA device, quick without"
    )
    parser.add_shared("--seeds", "--study", "--results-dir")
    parser.add_argument(
        "overrides", nargs="*", help="of tracker and runtime: tracker=none, runtime.jobs=4"
    )
    options = parser.parse_intermixed_args()

    # Not at the top: a misspelt option or study must not wait for torch.
    from crope.errors import log_line
    from crope.machine import default_scale
    from crope.plan.study import TABLES, common_scale, load_study

    studies = options.study or TABLES
    scale = options.scale or common_scale(studies) or default_scale()

    from crope.report.page import build_report
    from crope.runs.extrapolate import extrapolate_all
    from crope.runs.provenance import say_unknown_commit
    from crope.runs.sweep import Plan, train_all, with_data

    plan = Plan(studies, scale, options.seeds, options.results_dir, options.overrides)
    for study in studies:
        planned = load_study(study)
        if planned.scale not in (None, scale):
            log_line(
                f"{study} is planned at scale {planned.scale}: runs at {scale} enter none of its"
                " numbers"
            )
        if study not in TABLES and (options.seeds or 0) > len(planned.seeds):
            log_line(
                f"{study} plans {len(planned.seeds)} seeds: further ones enter none of its numbers;"
                f" write them into conf/study/{study}.yaml"
            )
    say_unknown_commit()
    longer = length_generalisation_studies()  # minutes a run, which no other number needs
    plan, problems = with_data(plan)
    studies = plan.studies  # without data of the tables: another
    problems += train_all(plan.runs())
    plan = replace(plan, studies=[study for study in studies if study in longer])
    problems += extrapolate_all(plan.runs())
    # Studies at the scale that their files fix join the report of the scale with most runs.
    joins = all(load_study(study).scale == scale for study in studies)
    scale_shown = None if joins else scale
    invalid = build_report(results_dir=options.results_dir, scale=scale_shown, studies=studies)
    if problems:
        print(f"{len(problems)} failed:")
        for problem in problems:
            print(f"  {problem}")
    print(f"took {timedelta(seconds=round(time.monotonic() - started))} (h:min:s)")
    return 1 if problems or invalid else 0


def length_generalisation_studies() -> set[str]:
    """Returns the studies of which a contrast asks for losses on longer sequences than in training."""
    from crope.report.contrasts import load_contrasts

    return {
        study
        for contrast in load_contrasts().values()
        if contrast.of in ("beyond", "longer")
        for study in contrast.studies
    }


if __name__ == "__main__":
    with main_errors():
        sys.exit(main())
