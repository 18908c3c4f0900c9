"""The runs behind one number of a table, and how it is worked out from them.

python scripts/explain.py table1/ptb/crope
python scripts/explain.py table2/b2_l512_d64/pg19/rope --scale quick
python scripts/explain.py                                  # every cell

Runs are looked up in results/runs, or, where that has none, in results/published.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from crope.cli import main_errors
from crope.report import SCALES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cell", nargs="?", help="table1/<dataset>/<model> or table2/<row>/<dataset>/<model>")
    parser.add_argument("--scale", choices=SCALES, help="default: the first of %(choices)s that has a run")
    parser.add_argument("--results-dir", type=Path, default=Path("results"), help="holds runs/ (default results)")
    parser.add_argument("--runs", type=Path, action="append", default=[], metavar="DIR", help="may be repeated")
    arguments = parser.parse_args()
    from crope.report.explain import explain, list_cells, load_evidence

    evidence = load_evidence(results_dir=arguments.results_dir, scale=arguments.scale, folders=arguments.runs)
    print(explain(arguments.cell, evidence) if arguments.cell else list_cells(evidence), end="")


if __name__ == "__main__":
    with main_errors():
        main()
