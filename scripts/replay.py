"""Mirrors finished runs to wandb from their records: those trained with tracker=none, or that wandb did not take.

python scripts/replay.py crope-ptb-base-s3-1a2b3c4d              # into offline files under results/wandb
python scripts/replay.py --mode online results/runs/*            # to the server, after `wandb login`
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from crope.cli import main_errors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's id, or its folder")
    parser.add_argument("--mode", choices=("offline", "online"), default="offline", help="default %(default)s")
    parser.add_argument("--again", action="store_true", help="also what is mirrored already")
    parser.add_argument(
        "--results-dir", type=Path, default=Path("results"), help="holds runs/, published/ and wandb/ (default results)"
    )
    arguments = parser.parse_args()
    from crope.replay import replay

    return replay(arguments.runs, results_dir=arguments.results_dir, mode=arguments.mode, again=arguments.again)


if __name__ == "__main__":
    with main_errors():
        sys.exit(main())
