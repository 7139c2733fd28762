# SPDX-License-Identifier: Apache-2.0
"""Calls captured as CUDA graphs: what a launch costs without the host, which decides at small shapes."""

from __future__ import annotations

import itertools
import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .base import GraphTime, LaunchRefused

if TYPE_CHECKING:
    from .base import Call

SPAN_MS, MOST_REPLAYS, SAMPLES = 2.0, 100, 5
"""One sample spans so much of the device's time, in at most so many replays; the median of so many counts."""
HELD_CALLS = 64
"""At most so many calls are captured in the graph of a batch."""
_NOTHING = ".*CUDA Graph is empty.*"
_REASON_LENGTH = 300


class CaptureFailed(Exception):
    """A call cannot be captured; the message is one line."""


@dataclass(frozen=True)
class Replays:
    """Graphs replayed one after the other, again and again: a call that enqueues all of it."""

    graphs: tuple[Any, ...]
    count: int

    def __call__(self) -> None:
        for graph in itertools.islice(itertools.cycle(self.graphs), self.count):
            graph.replay()


def capture(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    """All of the calls in one graph, in order, captured on a side stream after each ran there once.

    Raises:
        CaptureFailed: One of them waits for the device, does something else that a graph cannot hold, or
            leaves work on another stream; or nothing was captured.
    """
    before, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(before)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.stream(side):
            for call in dict.fromkeys(calls):  # what a call does the first time is not for the graph
                call()
        side.synchronize()
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=_NOTHING)
            with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
                for call in calls:
                    call()
    except (RuntimeError, LaunchRefused, Warning) as error:
        raise CaptureFailed(_first_line(error)) from error
    finally:
        torch.cuda.set_stream(before)  # a failed capture leaves its own stream the current one
    return graph


def graph_time(
    calls: Sequence[Call], once_ms: float, sample: Callable[[Call, int], list[float]]
) -> GraphTime:
    """The time of one launch when each call is a graph and these are replayed in rotation, back to back.

    Args:
        calls: One a set of inputs.
        once_ms: What one takes about; says how many replays a sample spans.
        sample: Times a call (of many replays) so many times, with a warm cache.
    """
    try:
        graphs = tuple(capture([call]) for call in calls)
    except CaptureFailed as error:
        return GraphTime(None, str(error))
    count = max(len(calls), min(MOST_REPLAYS, math.ceil(SPAN_MS / max(once_ms, 1e-6))))
    return GraphTime(statistics.median(sample(Replays(graphs, count), SAMPLES)) / count)


def captured_batch(calls: Sequence[Call], count: int) -> tuple[Replays, int]:
    """See `Device.batch`.

    Raises:
        CaptureFailed: See `capture`.
    """
    held = len(calls) * max(min(count, HELD_CALLS) // len(calls), 1)
    replays = -(-count // held)
    graph = capture([calls[index % len(calls)] for index in range(held)])
    return Replays((graph,), replays), replays * held


def _first_line(error: BaseException) -> str:
    """Of the error that came first: the end of a broken capture raises one more."""
    while error.__context__ is not None:
        error = error.__context__
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:_REASON_LENGTH]
