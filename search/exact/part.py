"""Processes of a climb in parts: ``python -m tinygpu.search.exact.part SOCKET``, by ``parts.py``.

Python and the task are loaded once; each process is a copy of this one.  It sends a PartResult for
each of its parts, an empty one where the time is over.  All end at once when the first process has
ended.

Source: fork(2).
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Thread

from tinygpu.deadline import Deadline
from tinygpu.search.exact.branch import Search
from tinygpu.search.exact.parts import PartResult, PartTask
from tinygpu.search.exact.process import Failed, told
from tinygpu.search.exact.scorer import Scorers
from tinygpu.space.space import Space

__all__ = ["serve"]


def serve(pipe: Connection) -> None:
    """Do the task that comes, and send what comes of each of its parts."""
    one_at_a_time = multiprocessing.get_context("fork").Lock()

    def send(one: PartResult | Failed) -> None:
        with one_at_a_time:
            pipe.send(one)

    try:
        task: PartTask = pickle.loads(pipe.recv_bytes())
    except Exception as error:  # whatever it is, the first process has to hear of it
        send(Failed(told(error), True))
        return
    for number in range(task.processes):
        if not os.fork():
            _climb(task, number, send)
            os._exit(0)
    Thread(target=_end_with, args=(pipe,), daemon=True).start()
    for _ in range(task.processes):
        _, status = os.wait()
        if status:
            send(Failed(RuntimeError(f"a process of the search ended: {status}"), False))


def _end_with(pipe: Connection) -> None:
    """End this process and its copies, a group, when nobody waits for the result."""
    with suppress(EOFError, OSError):
        pipe.recv_bytes()
    os.killpg(0, signal.SIGKILL)


def _climb(task: PartTask, number: int, send: Callable[[PartResult | Failed], None]) -> None:
    """Climb in each of a process's parts."""
    loading = True
    try:
        until = Deadline(task.end, time.monotonic)
        space = Space(task.machine, task.problem, task.device, fixed=task.fixed)
        loading, every = False, Scorers(space)
        faster = space.machine.measured(space.problem)
        for turn, structures in enumerate(task.parts[number :: task.processes]):
            search = Search(space, task.k, task.spread, task.below, every)
            if turn and until.passed():  # of each process at least one is climbed in
                send(PartResult([], 0, 0))
                continue
            part = number + turn * task.processes
            admissible = search.start(
                exact=task.exact, until=until, structures=structures,
                begin=faster[part :: len(task.parts)],
            )  # fmt: skip
            if task.exact:
                search.finish()
            send(PartResult(search.entries(), admissible, search.scored))
    except Exception as error:  # as above
        send(Failed(told(error), loading))


if __name__ == "__main__":
    gc.disable()  # a search keeps nearly all that it makes
    serve(Connection(int(sys.argv[1])))
