"""Independent random streams, each a pure function of (seed, purpose, index).

The values of numpy's Philox do not depend on the machine; torch's CPU normals do. With a stream per
purpose and step, models of all sizes read the same data, and a resumed run draws what an
uninterrupted one would.
"""

import hashlib

import numpy as np


def stream(seed: int, purpose: str, index: int = 0) -> np.random.Generator:
    """Makes the generator for one purpose ("init/blocks.0.ffn.weight", "batches/train") at one
    index (a step).
    """
    # 128 bits: the same for everyone, whatever Python's hash seed.
    key = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()[:16]
    philox = np.random.Philox(key=int.from_bytes(key, "little"), counter=[0, 0, 0, index])
    return np.random.Generator(philox)


def torch_seed(seed: int, purpose: str, index: int = 0) -> int:
    """Draws a 63-bit seed for torch's own generators (dropout) from such a stream."""
    return int(stream(seed, purpose, index).integers(2**63))
