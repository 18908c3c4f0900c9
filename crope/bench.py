"""Step times of this repository beside peers that do the same work, all in one run on one machine.

Every contender has a process of its own (what one sets, threads or allocator, must not help or harm another) and is
asked in turn for a few steps, round after round, so that a machine that slows down slows all of them. Medians are over
all timed steps; compiling and warming up come before the first round.
"""

from __future__ import annotations

import itertools
import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crope.bench_worker import STEPS, WARM_UP, Worker, WorkerFailed, wait
from crope.compose import Run
from crope.config import Config
from crope.data.batches import Corpus, resident
from crope.device import device_name, peak_flops, resolve_device
from crope.fused_loss import kernels_here
from crope.model.counting import train_flops_per_token
from crope.peers import Setting, Step, plain_step, transformers_step
from crope.record import write_text

OURS, PLAIN, TRANSFORMERS = "this repository", "plain loop", "transformers GPT-2"


@dataclass(frozen=True)
class Contender:
    name: str
    setting: Setting

    @property
    def label(self) -> str:
        return f"{self.name}: {self.setting}"


@dataclass(frozen=True)
class Timing:
    """Median and fastest step of a contender, in ms; peak memory of its process (GPU memory on a GPU), in GiB."""

    contender: Contender
    median_ms: float
    fastest_ms: float
    peak_gib: float
    first_step_s: float


def contenders(run: Run) -> list[Contender]:
    """Ours as it is, compiled, with each loss kernel that is here, and as CUDA graphs; each peer as shipped (eager,
    fp32, the vocabulary as it is) and at its strongest.
    """
    strongest = Setting(run.config.train.precision, True, True)
    peers = [PLAIN, *([TRANSFORMERS] if find_spec("transformers") else [])]
    shipped = Setting("fp32", False, False)
    device = resolve_device(run.config.runtime.device)
    settings = [replace(strongest, compiled=False), strongest]
    settings += [replace(strongest, loss=name) for name in kernels_here(device)]
    settings += [replace(strongest, cuda_graphs=True)] if device.type == "cuda" else []
    ours = [Contender(OURS, setting) for setting in settings]
    return [*ours, *(Contender(name, setting) for name in peers for setting in (shipped, strongest))]


def bench(run: Run, *, rounds: int, chosen: Sequence[Contender] = ()) -> tuple[list[Timing], list[str]]:
    """Times every contender (or the chosen ones) on the shape, device and precision of `run`.

    Also returns who failed, with why: one that cannot run here costs the others nothing.
    """
    device = resolve_device(run.config.runtime.device)
    workers = {one: Worker(one.label, partial(_build, run, one), device) for one in chosen or contenders(run)}
    failed = []
    for one, worker in list(workers.items()):
        try:
            worker.await_first_step()  # one after another: two that compile at once would starve each other
        except WorkerFailed as error:
            failed.append(str(error))
            del workers[one]
    times: dict[Contender, list[float]] = {contender: [] for contender in workers}
    for _ in range(rounds):
        for contender, worker in workers.items():
            worker.ask(STEPS[device.type])
            times[contender] += worker.answer()
    timings = [
        Timing(one, 1000 * statistics.median(times[one]), 1000 * min(times[one]), worker.close(), worker.first_step_s)
        for one, worker in workers.items()
    ]
    return timings, failed


def _build(run: Run, contender: Contender) -> Step:
    device = resolve_device(run.config.runtime.device)
    if contender.name == PLAIN:
        return plain_step(run, contender.setting, device)
    if contender.name == TRANSFORMERS:
        return transformers_step(run, contender.setting, device)
    return _our_step(run, contender.setting)


def _our_step(run: Run, setting: Setting) -> Step:
    compile_choice = "true" if setting.compiled else "false"
    runtime = replace(run.config.runtime, compile=compile_choice, loss=setting.loss, cuda_graphs=setting.cuda_graphs)
    return trainers_step(replace(run.config, runtime=runtime))


def trainers_step(config: Config) -> Step:
    """The trainer's own step on random tokens, batches drawn as in training."""
    from crope.checkpoint import TrainState
    from crope.model.gpt import GPT
    from crope.optim import build_optimizer
    from crope.trainer import build_training_loss, prepare_device, train_step

    device, made = prepare_device(config), itertools.count()
    vocab_size, length = config.tokenizer.vocab_size, config.train.seq_len
    tokens = random_tokens(vocab_size, device)
    model = GPT(config.model, vocab_size=vocab_size, max_len=length, seed=config.seed).to(device)
    state = TrainState(model, *build_optimizer(model, config.train))
    loss_function = build_training_loss(model, config, device)

    def step() -> Tensor:
        loss = train_step(state, loss_function, tokens, config=config, step=next(made), device=device)
        state.scheduler.step()
        return loss

    return step


def random_tokens(vocab_size: int, device: torch.device) -> Corpus:
    """A corpus to draw batches from, where training has it."""
    return resident(np.random.default_rng(0).integers(vocab_size, size=1_000_000).astype(np.uint16), device)


def profile(run: Run, *, steps: int, out: Path) -> str:
    """Records some steps in this process: trace.json, and table.txt, which is also returned.

    "outside operators" is the share of a step's time in which no operator runs: Python, and the wait for it.
    """
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recorder

    device = resolve_device(run.config.runtime.device)
    step = _our_step(run, Setting(run.config.train.precision, run.config.runtime.compile == "true", True))
    for _ in range(WARM_UP):
        step()
    wait(device)
    cuda = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    with recorder(activities=[ProfilerActivity.CPU, *cuda]) as record:
        began = time.perf_counter()
        for _ in range(steps):
            step()
        wait(device)
        seconds = time.perf_counter() - began
    out.mkdir(parents=True, exist_ok=True)
    record.export_chrome_trace(str(out / "trace.json"))
    averages = record.key_averages()
    of_operators = sum(event.self_cpu_time_total for event in averages) / 1e6
    kind = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    table = averages.table(sort_by=kind, row_limit=25, max_name_column_width=60)
    text = f"{run.run_id}: {1000 * seconds / steps:.1f} ms a step (recorded), "
    text += f"{100 * max(0.0, 1 - of_operators / seconds):.0f} % outside operators\n\n{table}\n\n{out / 'trace.json'}\n"
    write_text(out / "table.txt", text)
    return text


def describe(run: Run, timings: Sequence[Timing], failed: Sequence[str] = ()) -> dict[str, Any]:
    """What `bench` found, ready for JSON: shape, machine, a line a contender, and who failed."""
    config = run.config
    device = resolve_device(config.runtime.device)
    tokens = config.train.batch_size * config.train.seq_len
    vocab_size = config.tokenizer.vocab_size
    flops = tokens * train_flops_per_token(config.model, vocab_size=vocab_size, seq_len=config.train.seq_len)
    peak = peak_flops(device)
    return {
        "model": run.model,
        "shape": {"B": config.train.batch_size, "L": config.train.seq_len, "D": config.model.d_model, "V": vocab_size},
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "flops_per_step": flops,
        "failed": list(failed),
        "contenders": [
            {
                "name": timing.contender.name,
                "setting": str(timing.contender.setting),
                "median_step_ms": timing.median_ms,
                "fastest_step_ms": timing.fastest_ms,
                "tokens_per_s": 1000 * tokens / timing.median_ms,
                "tflop_per_s": flops / timing.median_ms / 1e9,
                "mfu_pct": None if peak is None else 100 * 1000 * flops / timing.median_ms / peak,
                "peak_gib": timing.peak_gib,
                "first_step_s": timing.first_step_s,
            }
            for timing in timings
        ],
    }


def render_bench(found: dict[str, Any]) -> str:
    """A Markdown table; its last column is how many times a contender's pace the faster of our settings has."""
    lines = found["contenders"]
    best = min(line["median_step_ms"] for line in lines if line["name"] == OURS)
    shape = ", ".join(f"{name} {value:,}" for name, value in found["shape"].items())
    head = ["contender", "setting", "ms a step", "tokens/s", "MFU", "peak GiB", "first step, s", "best of ours is"]
    table = [f"{shape}; {found['device']}, {found['threads']} threads, torch {found['torch']}", ""]
    table += ["| " + " | ".join(head) + " |", "| --- | --- |" + " ---: |" * (len(head) - 2)]
    for line in lines:
        mfu = "–" if line["mfu_pct"] is None else f"{line['mfu_pct']:.1f} %"
        cells = [
            line["name"],
            line["setting"],
            f"{line['median_step_ms']:.1f}",
            f"{line['tokens_per_s']:,.0f}",
            mfu,
            f"{line['peak_gib']:.2f}",
            f"{line['first_step_s']:.1f}",
            f"{line['median_step_ms'] / best:.2f} ×",
        ]
        table.append("| " + " | ".join(cells) + " |")
    if found["failed"]:
        table += ["", "Failed: " + "; ".join(found["failed"])]
    return "\n".join(table) + "\n"
