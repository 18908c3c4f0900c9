"""CUDA graphs: the launches of a function that is called many times, recorded once and replayed.

A step of a small model is bound by Python and the launches of some 300 kernels; a replay is one
launch.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from crope.config import RuntimeConfig
from crope.errors import log_line, one_line

# Ordinary calls before a capture. They compile, choose kernels and create the optimiser's state.
WARM_UP = 3


class Graphs:
    """The graphs of a run.

    They share memory: what one returned may be overwritten by the next replay of any, so read or
    copy it before.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream, self.pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    def warm_up(self, function: Callable[[], Any]) -> Any:
        """Calls `function` on the stream that captures: autograd adds a parameter's gradients on
        the stream on which it was first used.
        """
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            outputs = function()
        torch.cuda.current_stream().wait_stream(self.stream)
        return outputs

    def capture(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Records the launches of `function`, of which none runs; returns what replays them.

        Raises RuntimeError if one cannot be recorded, because it waits for the device.
        """
        graph = torch.cuda.CUDAGraph()
        # The outer context restores the stream after a failure, too.
        with (
            torch.cuda.stream(torch.cuda.current_stream()),
            torch.cuda.graph(graph, pool=self.pool, stream=self.stream),
        ):
            outputs = function()

        def replay() -> Any:
            graph.replay()
            return outputs

        return replay


def build_graphs(runtime: RuntimeConfig, device: torch.device) -> Graphs | None:
    """Builds the graphs of a run, if it asks for them and trains on a GPU."""
    return Graphs(device) if runtime.cuda_graph and device.type == "cuda" else None


class Captured:
    """A function of tensors of fixed shapes: WARM_UP ordinary calls, then one capture and replays.

    Each call copies its arguments to where the graph reads them. If the capture fails, one line
    says so, and all calls are ordinary ones.
    """

    def __init__(self, function: Callable[..., Any], graphs: Graphs) -> None:
        self.function, self.graphs = function, graphs
        self.inputs: list[Tensor] = []
        self.calls = 0
        self.replay: Callable[[], Any] | None = None

    def __call__(self, *inputs: Tensor) -> Any:
        self.inputs = self.inputs or [torch.empty_like(new) for new in inputs]
        for kept, new in zip(self.inputs, inputs, strict=True):
            kept.copy_(new)
        if self.calls == WARM_UP:
            try:
                self.replay = self.graphs.capture(self._call)
            except RuntimeError as error:
                cause = error.__context__ or error  # of the operation, before that of the capture
                log_line(f"trains without a CUDA graph: {one_line(cause)[:300]}")
        self.calls += 1
        return self.replay() if self.replay else self.graphs.warm_up(self._call)

    def _call(self) -> Any:
        return self.function(*self.inputs)
