"""Another process of a search, and what it says.

It shares nothing but a socket, so no thread and no lock is copied into it, and the user's script is
not run again.  It ends when this process does, however that ends; and this process ends it whatever
happens here.

Source: POSIX sockets.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from traceback import format_exception
from typing import Protocol

from tinygpu.errors import TinyGpuError

__all__ = ["Failed", "UnshareableError", "started", "told"]


_MODULE = "tinygpu.search.exact.part"


class UnshareableError(Exception):
    """No other process can do its part here; what to do alone is the caller's."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The other process's error; ``loading``: it has no such machine."""

    error: Exception
    loading: bool


class Task(Protocol):
    """What is done in another process, with a machine."""

    @property
    def machine(self) -> object:
        """Its machine, which has to be found there, too."""


@contextmanager
def started(task: Task) -> Iterator[Connection]:
    """Start a process, with its task; give its pipe, and end it in any case.

    Raises UnshareableError where it cannot be told of the task's machine, or does not start.
    """
    packed = _packed(task)
    here, there = socket.socketpair()
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    with here, there:
        try:
            process = subprocess.Popen(
                (sys.executable, "-P", "-m", _MODULE, str(there.fileno())),
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
                    pipe.send_bytes(packed)
                except OSError:
                    raise UnshareableError from None
                yield pipe
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # its copies, too


def _packed(task: Task) -> bytes:
    """Pickle a task.  Raises UnshareableError where that names what only this process has."""
    kinds = [type(task.machine), *type(task.machine).__mro__]
    if os.name != "posix" or not sys.executable or any(c.__module__ == "__main__" for c in kinds):
        raise UnshareableError
    try:
        return pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError):
        raise UnshareableError from None


def told(error: Exception) -> Exception:
    """Return the error, or one that says the same and survives pickling.

    One that is no TinyGpuError is a fault of the code: it says where in this process it came up.
    """
    try:
        pickle.loads(pickle.dumps(error))
        sent = error
    except Exception:  # an error's own constructor runs here
        sent = RuntimeError(f"{type(error).__name__}: {error}")
    if not isinstance(error, TinyGpuError):
        sent.add_note("in another process of the search:\n" + "".join(format_exception(error)))
    return sent
