"""How several seeds of one small run fill a machine best: in turn, as processes at once, or as one batched program.

All ways of one shape are measured in one run, turn by turn; what counts is the time until every seed has made a step.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from crope.bench import random_tokens, trainers_step
from crope.bench_worker import STEPS, Worker
from crope.compose import Run
from crope.device import device_name, resolve_device
from crope.peers import Step

IN_TURN, PROCESSES, BATCHED = "one after another", "a process each, at once", "one batched program"


@dataclass(frozen=True)
class Way:
    """`median_ms`: until each of the seeds has made one step; `peak_gib`: of all processes together."""

    name: str
    seeds: int
    median_ms: float
    peak_gib: float
    first_step_s: float


def bench_seeds(run: Run, *, counts: Sequence[int], rounds: int) -> list[Way]:
    """The three ways to train each number of seeds of `run`'s configuration.

    In turn and batched have every core of a CPU, processes at once share them.
    """
    device = resolve_device(run.config.runtime.device)
    cores = os.cpu_count() or 1
    alone = Worker(IN_TURN, partial(_steps_of, run, [0], cores), device)
    groups: dict[tuple[str, int], list[Worker]] = {(IN_TURN, 1): [alone]}
    for count in counts:
        share = max(1, cores // count)
        each = [Worker(PROCESSES, partial(_steps_of, run, [seed], share), device) for seed in range(count)]
        groups[PROCESSES, count] = each
        groups[BATCHED, count] = [Worker(BATCHED, partial(_steps_of, run, list(range(count)), cores), device)]
    for worker in (worker for group in groups.values() for worker in group):
        worker.await_first_step()
    times: dict[tuple[str, int], list[float]] = {key: [] for key in groups}
    for _ in range(rounds):
        for key, group in groups.items():
            times[key].append(_turn(group, STEPS[device.type]))
    found = {}
    for (name, count), group in groups.items():
        peaks = [worker.close() for worker in group]
        median_ms = 1000 * statistics.median(times[name, count])
        found[name, count] = Way(name, count, median_ms, sum(peaks), max(worker.first_step_s for worker in group))
    one = found.pop((IN_TURN, 1))
    in_turn = [replace(one, seeds=count, median_ms=count * one.median_ms) for count in counts]
    return sorted([*in_turn, *found.values()], key=lambda way: way.seeds)


def _turn(group: Sequence[Worker], steps: int) -> float:
    """Seconds a step until the last of the processes has made its steps."""
    began = time.perf_counter()
    for worker in group:
        worker.ask(steps)
    for worker in group:
        worker.answer()
    return (time.perf_counter() - began) / steps


def _steps_of(run: Run, seeds: Sequence[int], threads: int) -> Step:
    """A step of one seed or of several batched, compiled where a run of this length would be."""
    config = replace(run.config, seed=seeds[0], runtime=replace(run.config.runtime, threads=threads))
    if len(seeds) == 1:
        return trainers_step(config)
    from crope.seed_batch import SeedBatch
    from crope.trainer import prepare_device

    device, vocab_size, made = prepare_device(config), config.tokenizer.vocab_size, itertools.count()
    tokens = random_tokens(vocab_size, device)
    batch = SeedBatch(config, seeds, vocab_size=vocab_size, device=device)
    return lambda: batch.train_step(tokens, next(made))


def describe_seeds(run: Run, ways: Sequence[Way]) -> dict[str, Any]:
    """What `bench_seeds` found, ready for JSON."""
    train, device = run.config.train, resolve_device(run.config.runtime.device)
    tokens = train.batch_size * train.seq_len
    vocab_size = run.config.tokenizer.vocab_size
    return {
        "model": run.model,
        "shape": {"B": train.batch_size, "L": train.seq_len, "D": run.config.model.d_model, "V": vocab_size},
        "device": device_name(device),
        "torch": torch.__version__,
        "precision": train.precision,
        "ways": [
            {
                "name": way.name,
                "seeds": way.seeds,
                "median_ms": way.median_ms,
                "tokens_per_s": 1000 * way.seeds * tokens / way.median_ms,
                "peak_gib": way.peak_gib,
                "first_step_s": way.first_step_s,
            }
            for way in ways
        ],
    }


def render_seeds(found: dict[str, Any]) -> str:
    """A Markdown table; its last column is the pace of all seeds together, to that of one after another."""
    shape = ", ".join(f"{name} {value:,}" for name, value in found["shape"].items())
    head = ["seeds", "trained", "ms until each has made a step", "tokens/s, all", "peak GiB", "first step, s", "pace"]
    table = [f"Several seeds at once: {shape}; {found['precision']}, {found['device']}, torch {found['torch']}", ""]
    table += ["| " + " | ".join(head) + " |", "| ---: | --- |" + " ---: |" * (len(head) - 2)]
    in_turn = {way["seeds"]: way["median_ms"] for way in found["ways"] if way["name"] == IN_TURN}
    for way in found["ways"]:
        cells = [
            str(way["seeds"]),
            way["name"],
            f"{way['median_ms']:.1f}",
            f"{way['tokens_per_s']:,.0f}",
            f"{way['peak_gib']:.2f}",
            f"{way['first_step_s']:.1f}",
            f"{in_turn[way['seeds']] / way['median_ms']:.2f} ×",
        ]
        table.append("| " + " | ".join(cells) + " |")
    return "\n".join(table) + "\n"
