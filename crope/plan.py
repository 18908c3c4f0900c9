"""`make plan`: what a study would cost here, before it is started."""

from __future__ import annotations

from collections.abc import Sequence

from crope.compose import Run
from crope.estimate import estimate_each
from crope.progress import format_duration
from crope.state import DONE, read_states
from crope.sweep_table import show, swept
from crope.work import run_flops, run_tokens


def render_plan(runs: Sequence[Run], *, workers: int) -> str:
    """A line for each choice but the seed: how many runs, done ones, tokens and operations of one, time left.

    A short calibration times a few steps of each distinct shape that is left, `workers` runs at once.
    """
    states = {run.run_id: state for run, state in zip(runs, read_states(runs), strict=True)}
    todo = [run for run in runs if states[run.run_id].status != DONE]
    seconds = estimate_each(todo, threads=1 if workers > 1 else 0)
    columns = {name: values for name, values in swept(runs).items() if name != "seed"}
    groups: dict[tuple[str, ...], list[Run]] = {}
    for number, run in enumerate(runs):
        names = tuple(show(values[number]) for values in columns.values())
        groups.setdefault((*names, *_size(run)), []).append(run)
    rows: list[tuple[str, ...]] = [(*columns, "B", "L", "steps", "runs", "done", "tokens", "TFLOP", "to do")]
    for names, members in groups.items():
        done = sum(states[run.run_id].status == DONE for run in members)
        left = sum(seconds[run.run_id] * (1 - states[run.run_id].share) for run in members if run.run_id in seconds)
        cost = (f"{run_tokens(members[0]):,}", f"{run_flops(members[0]) / 1e12:,.1f}")
        rows.append((*names, str(len(members)), str(done), *cost, format_duration(left) if done < len(members) else ""))
    left = sum(seconds[run.run_id] * (1 - states[run.run_id].share) for run in todo) / workers
    total = (
        f"{len(runs)} runs at scale {runs[0].scale}, {len(runs) - len(todo)} done; "
        f"in all {sum(map(run_tokens, runs)):,} tokens and {sum(map(run_flops, runs)) / 1e12:,.1f} TFLOP"
    )
    time = f"about {format_duration(left)} left here, {workers} at once" if todo else "nothing is left to do"
    notes = (
        "Tokens and TFLOP (10^12 operations, validation included) are of one run, `to do` of the line's runs one after",
        "another, from a few timed steps of each shape; compiling, data and wandb come on top.",
    )
    return "\n".join([*_aligned(rows, names=len(columns)), "", f"{total}; {time}", *notes])


def _size(run: Run) -> tuple[str, str, str]:
    train = run.config.train
    return str(train.batch_size), str(train.seq_len), f"{train.max_steps:,}"


def _aligned(rows: Sequence[Sequence[str]], *, names: int) -> list[str]:
    """Names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.ljust(width) if number < names else text.rjust(width)
            for number, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
