"""Uploads the runs that are in wandb's offline files, each once; interrupted, the same command goes on.

python scripts/wandb_sync.py                             # after `wandb login`
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from crope.cli import main_errors


def main() -> int:
    from crope.wandb_sync import sync

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results-dir", type=Path, default=Path("results"))
    return sync(parser.parse_args().results_dir)


if __name__ == "__main__":
    with main_errors():
        sys.exit(main())
