"""Independent random streams, each a pure function of (seed, purpose, index).

numpy's Philox is counter based and its values do not depend on the machine, which torch's CPU
normals do (vectorised kernels round differently). A stream per purpose keeps them apart: a model
with fewer parameters may not shift the data of the next, and a run resumed at step t draws what the
uninterrupted run drew.
"""

import hashlib

import numpy as np


def stream(seed: int, purpose: str, index: int = 0) -> np.random.Generator:
    """The generator for one purpose ("init/blocks.0.ffn.weight", "batches/train") at one index (a
    step).
    """
    return np.random.Generator(np.random.Philox(key=_key(seed, purpose), counter=[0, 0, 0, index]))


def torch_seed(seed: int, purpose: str, index: int = 0) -> int:
    """A 63-bit seed for torch's own generators (dropout), from the same kind of stream."""
    return int(stream(seed, purpose, index).integers(2**63))


def _key(seed: int, purpose: str) -> int:
    """128 bits: the same for everyone, whatever Python's hash seed."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{purpose}".encode()).digest()[:16], "little")
