"""The loop: evaluate if due, batch, forward, loss, backward, AdamW, StepLR, log if due, save if due.

"step" is everywhere the number of optimiser updates done: the line of step s holds the validation loss after s updates
and the training loss of the batch that makes update s + 1.
"""

from __future__ import annotations

import gc
import os
import shutil
from dataclasses import replace

import torch
from torch import Tensor

from crope.checkpoint import TrainState, load_checkpoint, save_checkpoint, save_weights
from crope.compose import Run
from crope.config import Config
from crope.data.batches import Corpus, resident, sample_batch
from crope.data.tokens import TokenSet
from crope.device import keep_freed_memory, resolve_device
from crope.errors import UserError
from crope.evaluate import LossFunction, full_batch_size, full_loss, sampled_loss
from crope.fused_loss import fused_cross_entropy, load_kernel
from crope.interrupt import Stopped, StopSignal
from crope.lock import Lock
from crope.loss import cross_entropy
from crope.meter import Meter
from crope.model.gpt import GPT
from crope.optim import build_optimizer
from crope.progress import Progress
from crope.record import MetricsWriter
from crope.seeding import torch_seed
from crope.tracking import Tracker

# On two CPU cores compiling takes about 30 s and saves about a quarter of each step (docs/performance.md).
COMPILE_PAYS_TOKENS = 5_000_000


def train(run: Run, tokens: TokenSet, *, tracker: Tracker, stop: StopSignal, lock: Lock) -> GPT:
    """Trains to the last step, from the checkpoint where there is one, and leaves metrics.jsonl and weights.pt.

    Raises NonFiniteLoss; Stopped (on request, saved); UserError where the run's folder vanished under it.
    """
    config, folder = run.config, run.path
    total, device = config.train.max_steps, prepare_device(config)
    model = GPT(config.model, vocab_size=tokens.vocab_size, max_len=config.train.seq_len, seed=config.seed).to(device)
    optimizer, scheduler = build_optimizer(model, config.train)
    state = TrainState(model, optimizer, scheduler)
    loss_function, training_loss = build_loss(model, config, device), build_training_loss(model, config, device)
    corpus = replace(tokens, train=resident(tokens.train, device), validation=resident(tokens.validation, device))
    made_with = {"kind of device": device.type} | {
        f"{split} text": tokens.meta["splits"][split]["sha256"] for split in ("train", "validation")
    }
    start, written = load_checkpoint(folder, state, made_with=made_with)
    meter = Meter(config, tokens.vocab_size, device)
    metrics_file = MetricsWriter(folder / "metrics.jsonl", keep=written)
    with metrics_file as metrics, Progress(run.run_id, start=start, total=total) as progress:

        def save(step: int) -> None:
            meter.check_finite()
            if not lock.is_current():  # writing would bring the folder back with half a record in it
                raise UserError(f"{folder}: removed while the run trained; the same command starts it again")
            save_checkpoint(folder, state, step=step, metrics=metrics.mark(), made_with=made_with)

        for step in range(start, total + 1):
            if step > start and step % config.runtime.checkpoint_every == 0:
                save(step)
            try:
                leave_if_asked(stop, step)
                with meter.paused(config.validates_at(step)):
                    line = validate(model, loss_function, corpus, config=config, step=step, device=device, stop=stop)
            except Stopped:  # after `step` updates, whether before or within their validation
                save(step)
                raise
            if step < total:
                loss = train_step(state, training_loss, corpus.train, config=config, step=step, device=device)
                meter.add(loss, step)
                if step % config.runtime.log_every == 0:
                    line |= meter.read(loss, lr=float(scheduler.get_last_lr()[0]))
                if progress.due():
                    progress.show(step + 1, loss=loss.item(), tokens_per_step=meter.tokens_per_step)
                scheduler.step()
            if line:
                meter.check_finite(line, step)
                metrics.write({"step": step, **line})
                tracker.log({"step": step, **line})
    save_weights(folder / "weights.pt", model)
    return model


def leave_if_asked(stop: StopSignal, step: int) -> None:
    if stop.signal_number is not None:
        raise Stopped(f"saved at step {step}", stop.signal_number)


def train_step(
    state: TrainState,
    loss_function: LossFunction,
    tokens: Corpus,
    *,
    config: Config,
    step: int,
    device: torch.device,
) -> Tensor:
    """One update of the parameters; returns the loss of its batch, still on the device."""
    inputs_BT, targets_BT = sample_batch(
        tokens,
        seed=config.seed,
        step=step,
        batch_size=config.train.batch_size,
        seq_len=config.train.seq_len,
        purpose="train",
    )
    if config.model.dropout:
        torch.manual_seed(torch_seed(config.seed, "dropout", step))
    if not state.model.training:  # setting it walks through all modules
        state.model.train()
    parts, losses = config.runtime.accumulate, []
    for inputs, targets in zip(inputs_BT.chunk(parts), targets_BT.chunk(parts), strict=True):
        loss = loss_function(inputs.to(device), targets.to(device)) / parts
        loss.backward()
        losses.append(loss.detach())
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    return torch.stack(losses).sum()


@torch.no_grad()
def validate(
    model: GPT,
    loss_function: LossFunction,
    tokens: TokenSet,
    *,
    config: Config,
    step: int,
    device: torch.device,
    stop: StopSignal,
) -> dict[str, float]:
    """The validation losses that are due after `step` updates; at the end also the training split, measured alike.

    Raises Stopped between two batches: a whole split may take longer than one who asks to stop can wait.
    """
    line: dict[str, float] = {}
    last = step == config.train.max_steps
    if not config.validates_at(step):
        return line
    model.eval()
    parts = config.runtime.accumulate  # who trains in parts has no memory for a whole batch here either
    rows = full_batch_size(config) if parts == 1 else config.train.batch_size // parts

    def loss(inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        leave_if_asked(stop, step)
        pairs = zip(inputs_BT.split(rows), targets_BT.split(rows), strict=True)
        return torch.stack([loss_function(*pair) * len(pair[0]) for pair in pairs]).sum() / len(inputs_BT)

    if last or step % config.eval.every == 0:
        line["val/loss_nats"] = sampled_loss(loss, tokens.validation, config=config, step=step, device=device)
    if last or (step and step % config.eval.full_every == 0):
        line["val_full/loss_nats"], count = full_loss(loss, tokens.validation, config=config, device=device)
        line["val_full/tokens"] = count
        if last:
            same_size = full_loss(loss, tokens.train, config=config, device=device, max_tokens=count)
            line["train_full/loss_nats"], line["train_full/tokens"] = same_size
    return line


def prepare_device(config: Config) -> torch.device:
    """Sets what torch keeps per process, and clears what an earlier run of this process left there."""
    device = resolve_device(config.runtime.device)
    if config.runtime.threads:
        torch.set_num_threads(config.runtime.threads)
    if config.runtime.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    torch.use_deterministic_algorithms(config.runtime.deterministic)
    torch._dynamo.reset()
    # Falling back, to eager or to launches one by one, would be a silent slowness.
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    torch._inductor.config.triton.cudagraph_or_error = True
    if device.type == "cuda":
        gc.collect()  # an optimiser and its schedule refer to each other: the last run's would count in this one's peak
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    else:
        keep_freed_memory()
    return device


def build_loss(model: GPT, config: Config, device: torch.device) -> LossFunction:
    """(inputs_BT, targets_BT) -> mean loss in nats; bf16 autocast where the precision says so, compiled where it pays.

    Compiled is one graph, without a way back to eager: what cannot be compiled is an error. The shorter batches at the
    end of a pass are few and have shapes of their own; they run as they are rather than be compiled for one use, and
    row by row: eager, the logits of many would need more memory than a training step.
    """
    bf16 = config.train.precision == "bf16"

    def loss_function(inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            return cross_entropy(model, inputs_BT, targets_BT)

    if not compiles(config, device):
        return loss_function
    compiled = torch.compile(loss_function, dynamic=False, fullgraph=True)
    batch, length = config.train.batch_size // config.runtime.accumulate, config.train.seq_len
    frequent = {(batch, length)} | ({(full_batch_size(config), length)} if config.runtime.accumulate == 1 else set())

    def chosen(inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        if tuple(inputs_BT.shape) in frequent:
            return compiled(inputs_BT, targets_BT)
        rows = zip(inputs_BT.split(1), targets_BT.split(1), strict=True)
        return torch.stack([loss_function(*row) for row in rows]).mean()

    return chosen


def build_training_loss(model: GPT, config: Config, device: torch.device) -> LossFunction:
    """The same for training steps: with the kernel of runtime.loss, replayed as CUDA graphs where asked.

    A kernel of its own stays outside of the compiled graph, which then is the model alone.
    """
    runtime, bf16 = config.runtime, config.train.precision == "bf16"
    if runtime.loss == "plain" and not runtime.cuda_graphs:
        return build_loss(model, config, device)
    kernel = None if runtime.loss == "plain" else load_kernel(runtime.loss, device)

    def inner(inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """The loss, or where a kernel makes it, the hidden states."""
        return model(inputs_BT) if kernel else cross_entropy(model, inputs_BT, targets_BT)

    if compiles(config, device):
        # Graphs replay into the same memory. train_step adds up what it needs of a loss before the next one is asked
        # for, and accumulate=1 (config.py) keeps gradients of two replays from meeting.
        mode = "reduce-overhead" if runtime.cuda_graphs and device.type == "cuda" else None
        inner = torch.compile(inner, dynamic=False, fullgraph=True, mode=mode)

    def training_loss(inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            found = inner(inputs_BT, targets_BT)
            return fused_cross_entropy(kernel, found, model, targets_BT) if kernel else found

    return training_loss


def compiles(config: Config, device: torch.device) -> bool:
    """Whether torch.compile is wanted: `auto` where it pays within the run's length."""
    if config.runtime.compile != "auto":
        return config.runtime.compile == "true"
    tokens = config.train.max_steps * config.train.batch_size * config.train.seq_len
    return device.type == "cuda" or (tokens >= COMPILE_PAYS_TOKENS and shutil.which("g++") is not None)
