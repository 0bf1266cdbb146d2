"""Timing: several candidates, side by side, under one clock.

Each candidate's launches are captured in a CUDA graph, long enough that what surrounds it does not
count.  Rounds go through all candidates, so that a clock that drifts drifts for all of them.  Every
second round has an order drawn anew, and the one after it the reverse: a kernel that draws much
power leaves the next one a lower clock (``docs/measuring.md``), and so each of a pair comes after
the other as often as before it.  The first round is thrown away.  A candidate's time is the median
over the rounds, its spread the interquartile range over that median.  The clock is read while a
candidate's graph runs.

Rounds are *paired* where one candidate is named ``against``: with q the candidate's seconds over
that one's in the same round, its time is the median of q times that one's time, and its spread is
of q.  What changes from round to round for both is in neither.

    time_interleaved({"mine": lambda i: mine[i % 3](), "theirs": lambda i: theirs[i % 3]()})

Source: ``docs/measuring.md``; CUDA Programming Guide, "CUDA Graphs".
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinygpu.codegen.run.launch import gpu
from tinygpu.codegen.run.provenance import Clock, clock

__all__ = ["Timing", "captured", "current_stream", "summary", "time_interleaved"]

_MOST_LAUNCHES = 256
"""Of a graph: capturing more costs the host more than replaying these more often."""
_Around = Callable[[str], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Timing:
    """A candidate's time; ``spread`` is the interquartile range over the median.

    Against another both are of the ratio to it.
    """

    seconds: float
    spread: float
    rounds: int
    clock_mhz: int = 0
    capped: bool = False


def summary(
    seconds: Sequence[float], clocks: Sequence[Clock], against: Sequence[float] = ()
) -> Timing:
    """Return the timing of a candidate's rounds, paired with those of another if there is one.

    >>> summary([2.0, 4.0, 8.0], [], [1.0, 2.0, 4.0]).seconds, summary([2.0, 4.0, 8.0], []).spread
    (4.0, 0.75)
    """
    base = np.array(against or [1.0] * len(seconds))
    low, middle, high = np.quantile(np.array(seconds) / base, (0.25, 0.5, 0.75))
    mhz = [c.sm_mhz for c in clocks if c.sm_mhz]
    return Timing(
        seconds=float(middle * np.median(base)),
        spread=float((high - low) / middle),
        rounds=len(seconds),
        clock_mhz=int(np.median(mhz)) if mhz else 0,
        capped=any(c.capped for c in clocks),
    )


def time_interleaved(
    candidates: Mapping[str, Callable[[int], None]],
    *,
    rounds: int = 7,
    burst_seconds: float = 0.02,
    least_launches: int = 1,
    warm_seconds: float = 0.0,
    against: str = "",
    around: _Around = nullcontext,
    failures: dict[str, str] | None = None,
) -> dict[str, Timing]:
    """Time candidates; each enqueues its i-th launch on the current stream when called with i.

    The current stream is set for CuPy and, if it is loaded, PyTorch.  A candidate's turn takes
    ``burst_seconds``: replays of a graph of at least ``least_launches``.  Before the rounds all
    run for ``warm_seconds`` without a pause, so that a clock that power holds down is down.  Rounds
    are paired with those of the candidate ``against``, if it is named and can be timed.

    The last round runs within ``around(name)``, which may prepare the outputs of a timed run and
    check them.  What a candidate raises while its graph is captured goes to ``failures``, if that
    is given, and the others are timed; else it is raised.
    """
    cupy = gpu()
    stream = cupy.cuda.Stream(non_blocking=True)
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    clocks: dict[str, list[Clock]] = {name: [] for name in candidates}
    cupy.cuda.Device().synchronize()
    with current_stream(stream):
        graphs: dict[str, tuple[Any, int, int]] = {}
        for name, candidate in candidates.items():
            try:
                graphs[name] = captured(candidate, stream, burst_seconds, least_launches)
            except Exception as error:  # a library may refuse a capture in any way
                if failures is None:
                    raise
                stream.synchronize()  # raises if the context is lost: then nothing else can run
                said, *_ = str(error).splitlines() or ["it says no more"]
                failures[name] = f"{type(error).__name__}: {said}"
        warm = time.monotonic() + warm_seconds
        while graphs and time.monotonic() < warm:
            for graph, _, times in graphs.values():
                for _ in range(times):
                    graph.launch(stream)
            stream.synchronize()
        order, draw = list(graphs), random.Random(0)
        for number in range(rounds + 1):
            if number % 2:
                order.reverse()
            else:
                draw.shuffle(order)
            for name in order:
                graph, launches, times = graphs[name]
                with around(name) if number == rounds else nullcontext():
                    start.record(stream)
                    for _ in range(times):
                        graph.launch(stream)
                    stop.record(stream)
                    now = clock()
                    stop.synchronize()
                if number:
                    elapsed_ms = cupy.cuda.get_elapsed_time(start, stop)
                    seconds[name].append(elapsed_ms * 1e-3 / (launches * times))
                    clocks[name].append(now)
    base = seconds.get(against, [])
    return {name: summary(seconds[name], clocks[name], base) for name in graphs}


def captured(
    candidate: Callable[[int], None], stream: Any, burst_seconds: float, least_launches: int
) -> tuple[Any, int, int]:
    """Capture launches; return the graph, how many there are, how many replays fill a burst."""
    cupy = gpu()
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    candidate(0)  # libraries choose and allocate at their first call
    stream.synchronize()
    start.record(stream)
    for i in range(3):
        candidate(i)
    stop.record(stream)
    stop.synchronize()
    each = cupy.cuda.get_elapsed_time(start, stop) * 1e-3 / 3
    filling = math.ceil(burst_seconds / max(each, 1e-6))
    launches = max(least_launches, min(_MOST_LAUNCHES, filling))
    launches += -launches % least_launches  # whole turns through the sets of inputs
    times = max(1, round(filling / launches))
    stream.begin_capture()
    try:
        for i in range(launches):
            candidate(i)
    except BaseException:
        with suppress(Exception):
            stream.end_capture()
        raise
    graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()
    return graph, launches, times


@contextmanager
def current_stream(stream: Any) -> Iterator[Any]:
    """Make a stream current for CuPy and, if it is loaded, for PyTorch."""
    torch = sys.modules.get("torch")
    theirs = torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)) if torch else nullcontext()
    with stream, theirs:
        yield stream
