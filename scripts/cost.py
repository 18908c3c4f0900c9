"""Hours and price of the tables' runs, by kind of machine, from the step times of published records.

python scripts/cost.py --scale paper --seeds 5 --price 2.50       # per machine and hour, in whatever currency
"""

from __future__ import annotations

import argparse

from crope.cli import main_errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=("paper", "quick", "smoke"), default="paper")
    parser.add_argument("--seeds", type=int, default=1, help="seeds per cell")
    parser.add_argument("--price", type=float, help="of a machine for an hour")
    options = parser.parse_args()
    from crope.compose import load_run
    from crope.cost import cost, measured_steps
    from crope.report.published import PUBLISHED
    from crope.study import TABLES, jobs

    chosen = jobs(TABLES, scale=options.scale, seeds=range(options.seeds))
    runs = [load_run([*overrides, "train.precision=bf16"]) for overrides in chosen]
    plain = cost(runs, {})
    print(f"{plain.runs} runs, {plain.steps:,} steps, {plain.train_flops:.3e} FLOP of training")
    for device, step_ms in measured_steps(PUBLISHED).items():
        hours = cost(runs, step_ms).hours
        if hours is None:
            print(f"{device}: no step time of scale {options.scale} in results/published")
        else:
            price = f", {hours * options.price:.2f} in all" if options.price is not None else ""
            print(f"{device}: {hours:.2f} hours of training{price}; validation comes on top")


if __name__ == "__main__":
    with main_errors():
        main()
