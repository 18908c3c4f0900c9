"""T5's trained bias by distance. Shapes: H heads, T tokens."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import nn

from crope.config import ModelConfig
from crope.model.positions._base import DistanceBias


class RelativeBias(DistanceBias):
    """T5's relative positions, unidirectional: a trained scalar for each head and bucket, shared by all layers.

    Raffel et al. (2020), Sec. 2.1: 32 buckets; distances below 16 have one each, then they grow logarithmically up to
    128, and all distances beyond share the last. Unlike T5, scores are divided by sqrt(K) as in every model here.
    """

    BUCKETS, FURTHEST = 32, 128
    bucket_T: torch.Tensor

    @classmethod
    def build(cls, config: ModelConfig, max_len: int) -> Self:
        return cls(config.n_heads)

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(self.BUCKETS, n_heads))
        buckets = torch.tensor([self.bucket(distance) for distance in range(self.FURTHEST)])
        self.register_buffer("bucket_T", buckets, persistent=False)

    @classmethod
    def bucket(cls, distance: int) -> int:
        exact = cls.BUCKETS // 2
        if distance < exact:
            return distance
        share = math.log(distance / exact) / math.log(cls.FURTHEST / exact)
        return min(cls.BUCKETS - 1, exact + int(share * (cls.BUCKETS - exact)))

    def by_distance(self, length: int) -> torch.Tensor:
        distance_T = torch.arange(length, device=self.bucket_T.device).clamp(max=self.FURTHEST - 1)
        return self.weight[self.bucket_T[distance_T]].T
