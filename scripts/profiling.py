"""Where the time of a training step goes: a trace for chrome://tracing or Perfetto, and a table of operators.

python scripts/profiling.py                                   # a step of the quick scale
python scripts/profiling.py scale=paper runtime.compile=true  # any configuration, as for train.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from crope.cli import main_errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="steps that are recorded (default 10)")
    parser.add_argument("--out", type=Path, default=Path("results/profile"), help="folder of trace and table")
    parser.add_argument("overrides", nargs="*", default=["scale=quick"])
    arguments = parser.parse_args()

    from crope.bench import profile
    from crope.compose import load_run

    print(profile(load_run(arguments.overrides), steps=arguments.steps, out=arguments.out))


if __name__ == "__main__":
    with main_errors():
        main()
