"""Makes the report in wandb: Fig. 4 and Table 1 from the mirrored runs. Again, it replaces the one before.

python scripts/wandb_report.py --scale quick             # after `make wandb-sync`; needs the extra wandb-report
"""

from __future__ import annotations

import argparse
from pathlib import Path

from crope.cli import main_errors


def main() -> None:
    from crope.report import SCALES
    from crope.wandb_report import save_report

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--scale", choices=SCALES, required=True, help="whose runs; losses of two scales do not compare"
    )
    parser.add_argument("--project", default="crope", help="tracker.project of the runs (default crope)")
    parser.add_argument("--entity", default="", help="default: the account's own")
    parser.add_argument("--results-dir", type=Path, default=Path("results"), help="keeps the report's address")
    parser.add_argument("--new", action="store_true", help="another report beside the one before")
    arguments = parser.parse_args()
    print(save_report(**vars(arguments)))


if __name__ == "__main__":
    with main_errors():
        main()
