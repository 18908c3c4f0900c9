"""How long runs will take on this machine: a few real steps of each shape, timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import astuple, replace

import numpy as np
import torch

from crope.checkpoint import TrainState
from crope.compose import Run
from crope.device import resolve_device
from crope.model.gpt import GPT
from crope.optim import build_optimizer
from crope.trainer import build_training_loss, prepare_device, train_step
from crope.work import FORWARD_SHARE, run_forwards

WARM_UP, TIMED = 2, 3


def estimate_seconds(runs: Sequence[Run], *, threads: int = 0) -> float:
    """Seconds of all `runs`, one after another; see `estimate_each`."""
    return sum(estimate_each(runs, threads=threads).values())


def estimate_each(runs: Sequence[Run], *, threads: int = 0) -> dict[str, float]:
    """Seconds of training and validation by run id. Each distinct shape is timed once, on random tokens.

    threads as runtime.threads (0: torch's own choice). On a CPU steps are timed without torch.compile, which takes
    longer than the estimate is worth; on a GPU with it: what it compiles is kept on disk and the runs find it there.
    """
    step_seconds: dict[tuple[object, ...], float] = {}
    seconds = {}
    for run in runs:
        config = run.config
        shape = (*astuple(config.model), config.tokenizer.vocab_size, config.train.batch_size, config.train.seq_len)
        if shape not in step_seconds:
            step_seconds[shape] = time_step(run, threads=threads)
        seconds[run.run_id] = step_seconds[shape] * (config.train.max_steps + FORWARD_SHARE * run_forwards(run))
    return seconds


def time_step(run: Run, *, threads: int = 0) -> float:
    """Median seconds of one training step of this run's shape."""
    config = run.config
    on_gpu = resolve_device(config.runtime.device).type == "cuda"
    runtime = replace(config.runtime, threads=threads or config.runtime.threads)
    if not on_gpu:
        runtime = replace(runtime, compile="false", cuda_graphs=False)
    config = replace(config, runtime=runtime)
    device = prepare_device(config)
    vocab_size, seq_len = config.tokenizer.vocab_size, config.train.seq_len
    tokens = np.random.default_rng(0).integers(vocab_size, size=10 * seq_len, dtype=np.int64)
    model = GPT(config.model, vocab_size=vocab_size, max_len=seq_len, seed=0).to(device)
    state = TrainState(model, *build_optimizer(model, config.train))
    loss_function = build_training_loss(model, config, device)
    seconds = []
    for step in range(WARM_UP + TIMED):
        began = time.perf_counter()
        train_step(state, loss_function, tokens, config=config, step=step, device=device)
        if on_gpu:
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[WARM_UP:])
