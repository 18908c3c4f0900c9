"""Trains one run, or with -m every run of a Hydra multirun; runs that are complete are skipped.

python scripts/train.py model=crope data=ptb seed=3
python scripts/train.py -m study=table1 seed=0,1,2
python scripts/train.py --cfg job                      # the whole resolved configuration, and the run's id
"""

from __future__ import annotations

import sys

from crope.cli import main_errors, run_hydra

if __name__ == "__main__":
    with main_errors():
        sys.exit(run_hydra(sys.argv[1:]))
