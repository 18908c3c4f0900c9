"""Batches as a pure function of (seed, step), and the fixed pass over a split.

There is no loader state: a resumed run continues exactly, and all models see the same batches at
the same seed.

Shapes: B sequences, T = seq_len tokens, N windows.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from crope.config import Config
from crope.seeding import stream

TokenArray = np.ndarray | torch.Tensor  # flat token ids: mapped from disk, or on the device


def sample_batch(
    tokens: TokenArray, *, config: Config, step: int, purpose: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cuts windows at uniform random offsets: inputs_BT and targets_BT (shifted by one token),
    int64.
    """
    offsets_B = draw_offsets(tokens, config=config, step=step, purpose=purpose)
    return windows(tokens, offsets_B, config.train.seq_len)


def draw_offsets(tokens: TokenArray, *, config: Config, step: int, purpose: str) -> np.ndarray:
    """Draws the offsets of a batch, (B,). `purpose` ("train", "validation/0", ...) names an
    independent stream.
    """
    train = config.train
    return stream(config.seed, f"batches/{purpose}", step).integers(
        len(tokens) - train.seq_len, size=train.batch_size
    )


def full_pass(
    tokens: TokenArray, *, seq_len: int, batch_size: int, max_tokens: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields each target once, in order, in windows without overlap; the last may be shorter.

    max_tokens > 0 keeps an evenly spaced subset of whole windows with at most max_tokens targets
    (at least one window).
    """
    starts_N = np.arange(0, len(tokens) - seq_len, seq_len)
    rest = (len(tokens) - 1) % seq_len
    if max_tokens and max_tokens < len(tokens) - 1:
        keep = min(max(1, max_tokens // seq_len), len(starts_N))
        starts_N = starts_N[np.linspace(0, len(starts_N) - 1, keep).round().astype(int)]
        rest = 0
    for first in range(0, len(starts_N), batch_size):
        yield windows(tokens, starts_N[first : first + batch_size], seq_len)
    if rest:
        yield windows(tokens, np.array([len(tokens) - 1 - rest]), rest)


def resident(tokens: np.ndarray, device: torch.device) -> Any:
    """Returns the split: for a GPU in its memory (4 bytes per token), else mapped from disk."""
    return torch.from_numpy(tokens.astype(np.int32)).to(device) if device.type == "cuda" else tokens


def windows(
    tokens: TokenArray, starts_N: TokenArray, seq_len: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cuts windows of seq_len + 1 tokens: all but the last, and all but the first, int64."""
    flat = torch.as_tensor(tokens)  # no copy; only the starts are copied to a device
    starts_N1 = torch.as_tensor(starts_N).to(flat.device, non_blocking=True)[:, None]
    window_NT = flat[starts_N1 + torch.arange(seq_len + 1, device=flat.device)].long()
    return window_NT[:, :-1].contiguous(), window_NT[:, 1:].contiguous()
