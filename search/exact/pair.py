"""Two processes search a space, each a half of its batches.

The batches are those with some values of one structural decision, and those with the others: each
process builds its own.  Few batches are built by both, and dealt.

    this process                                 the other: ``python -m tinygpu.search.exact.half``
    start it, send the Task               ->     load
    start its half                               start its half
    News                                  <->    News
    finish its half                              finish its half, telling each batch that is done
    take the result                       <-     HalfResult

The other one shares nothing but a socket, so no thread and no lock is copied into it, and the
user's script is not run again.  It ends when this process does, however that ends; and this process
ends it whatever happens here.

Source: POSIX sockets; ``branch.py`` for why the two results are the whole space's.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from multiprocessing.connection import Connection
from typing import Any

from tinygpu.errors import TinyGpuError
from tinygpu.search.exact.branch import Entry, News, Progress, Search
from tinygpu.space.space import Space

__all__ = ["Failed", "HalfResult", "Task", "UnshareableError", "search_in_two", "started"]

_FEW = 64
"""Batches that are built in no time: both processes build all, and deal them out evenly."""


class UnshareableError(Exception):
    """No second process can do its part here; what to do alone is the caller's."""


@dataclass(frozen=True, slots=True)
class Task:
    """What the other process has to search: the arguments of a Space, a Search and its start."""

    machine: Any
    problem: Any
    device: Any
    fixed: Any
    k: int
    spread: tuple[str, ...]
    below: float
    deal: int | None


@dataclass(frozen=True, slots=True)
class HalfResult:
    """The best of one half or of both, and how many schedules were admissible and scored."""

    entries: list[Entry]
    admissible: int
    scored: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The other process's error; ``loading``: it has no such machine."""

    error: Exception
    loading: bool


def search_in_two(
    space: Space,
    k: int,
    spread: tuple[str, ...],
    below: float,
    progress: Progress | None,
) -> HalfResult:
    """Search both halves at once.

    Raises UnshareableError if there are no two halves or no other process can be told of this
    machine, and whatever goes wrong in either process.
    """
    part, fixed, deal = space, space.fixed, None
    if 1 < prod(len(space.values[n]) for n in space.structural) <= _FEW:
        deal = 0
    elif halves := space.halves():
        name, mine, theirs = halves
        part, fixed = space.part(name, mine), {**fixed, name: theirs}
    else:
        raise UnshareableError
    task = Task(
        space.machine,
        space.problem,
        space.device,
        fixed,
        k,
        spread,
        below,
        None if deal is None else 1,
    )
    with _other(_packed(task)) as other:
        search = Search(part, k, spread, below)
        news = search.start(deal=deal)
        other.send(news)
        told = other.news()
        search.learn(told)
        total = news.batches + told.batches

        def done(here: int, _: int = 0) -> None:
            other.look()
            if progress:
                progress(here + other.done, total)

        search.finish(done)
        while other.result is None:
            other.look(wait=True)
            done(news.batches)
        result = other.result
    return HalfResult(
        search.entries() + result.entries,
        news.admissible + told.admissible,
        search.scored + result.scored,
    )


def _packed(task: Any) -> bytes:
    """Pickle a task.  Raises UnshareableError where that names what only this process has."""
    kinds = [type(task.machine), *type(task.machine).__mro__]
    if os.name != "posix" or not sys.executable or any(c.__module__ == "__main__" for c in kinds):
        raise UnshareableError
    try:
        return pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError):
        raise UnshareableError from None


class _Other:
    """The other process, as messages: what it said last of each kind."""

    def __init__(self, process: subprocess.Popen[bytes], pipe: Connection) -> None:
        self.process, self.pipe = process, pipe
        self.done = 0
        self.told: News | None = None
        self.result: HalfResult | None = None

    def send(self, message: object) -> None:
        with suppress(OSError):
            self.pipe.send(message)
            return
        self.look(wait=True)  # it may have said why it went

    def news(self) -> News:
        while self.told is None:
            self.look(wait=True)
        return self.told

    def look(self, *, wait: bool = False) -> None:
        """Take in what it said meanwhile; ``wait`` for something, if it is nothing."""
        while self.result is None and (wait or self.pipe.poll()):
            wait = False
            try:
                message = self.pipe.recv()
            except (EOFError, OSError):
                raise TinyGpuError(
                    f"search: its second process ended with status {self.process.wait()}; "
                    "it may lack memory: narrow some decisions, or give it one core (taskset -c 0)"
                ) from None
            match message:
                case int():
                    self.done = message
                case News():
                    self.told = message
                case HalfResult():
                    self.result = message
                case Failed(error, loading):
                    raise UnshareableError if loading else error


@contextmanager
def _other(task: bytes) -> Iterator[_Other]:
    """Start the other process with its task, and end it in any case."""
    with _process(task, "tinygpu.search.exact.half") as (process, pipe):
        yield _Other(process, pipe)


@contextmanager
def started(task: Any, module: str) -> Iterator[Connection]:
    """Start a process that runs a module, with its task; give its pipe, and end it in any case.

    Raises UnshareableError where it cannot be told of the task's machine, or does not start.
    """
    with _process(_packed(task), module) as (_, pipe):
        yield pipe


@contextmanager
def _process(task: bytes, module: str) -> Iterator[tuple[subprocess.Popen[bytes], Connection]]:
    here, there = socket.socketpair()
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    with here, there:
        try:
            process = subprocess.Popen(
                (sys.executable, "-P", "-m", module, str(there.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(there.fileno(),),
                env={**os.environ, "PYTHONPATH": path},  # the machine may live beside the script
                process_group=0,  # Ctrl-C is for this process, which ends that one
            )
        except OSError:
            raise UnshareableError from None
        there.close()
        with process, Connection(here.detach()) as pipe:
            try:
                try:
                    pipe.send_bytes(task)
                except OSError:
                    raise UnshareableError from None
                yield process, pipe
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # its copies, too
