"""Measures finished runs at 1, 2 and 4 times the length that they were trained at; see crope/extrapolate.py.

python scripts/train.py -m study=length
python scripts/extrapolate.py results/runs/*            # leaves extrapolation.json in each
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from crope.cli import main_errors
from crope.errors import UserError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directories")
    parser.add_argument("--factors", nargs="+", type=int, default=[1, 2, 4], help="times the training length")
    parser.add_argument(
        "--tokens", type=int, help="how much of the split; 0: all (default: the run's eval.full_tokens)"
    )
    options = parser.parse_args()
    if min(options.factors) < 1 or (options.tokens or 0) < 0:
        raise UserError("--factors must be at least 1, --tokens at least 0")
    from crope.extrapolate import extrapolate

    failed = False
    for path in options.runs:
        try:
            result = extrapolate(path, factors=options.factors, max_tokens=options.tokens)
        except UserError as error:  # one unfinished run must not hide the others
            print(f"error: {error}", file=sys.stderr)
            failed = True
            continue
        print(f"{path.name}: {'; '.join(map(render_length, result['lengths']))} (nats per token)", flush=True)
    return int(failed)


def render_length(row: dict[str, object]) -> str:
    loss = row["loss_nats"]
    return f"L={row['seq_len']} {row['note'] if loss is None else f'{loss:.4f}'}"


if __name__ == "__main__":
    with main_errors():
        sys.exit(main())
