"""Tables, figures and index.html from run directories. Trains and downloads nothing; exits 1 if a
record is invalid.

python scripts/report.py
python scripts/report.py --scale quick --runs results/published/quick-bf16 --out results/bf16-report

If results/runs has no run of Tables 1 and 2 at the scale, the published ones are reported.
"""

import sys
from pathlib import Path

from cli import Parser, main_errors


def main() -> None:
    from crope.plan.study import SCALES

    parser = Parser(description=__doc__)
    parser.add_shared("--results-dir", "--runs")
    parser.add_argument("--scale", choices=SCALES, help="default: the one with most runs")
    parser.add_argument(
        "--out", type=Path, help="default: RESULTS_DIR/report (smoke: report-smoke)"
    )
    args = parser.parse_args()

    from crope.report.page import build_report

    invalid = build_report(
        results_dir=args.results_dir, scale=args.scale, folders=args.runs, out_dir=args.out
    )
    sys.exit(1 if invalid else 0)


if __name__ == "__main__":
    with main_errors():
        main()
