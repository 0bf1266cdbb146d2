"""Workers: candidates run in a process of their own, under a watchdog.

A kernel that hangs cannot be stopped from within its process, and one that faults takes the
process's context with it.  So a *worker* process answers requests, one JSON object a line in and
one out, and ``Worker.ask`` waits for each answer only so long.  An answer is an object; one with a
"failed" gives the reason why there is nothing else.  A worker that hangs, dies or failed is killed,
and the next request starts another.  A new worker is asked ``{"do": "hello"}`` first: what it takes
to start is not the next candidate's fault.

``python -m tinygpu.codegen.run.worker`` answers by ``on_gpu.py``; any other
program may call ``serve`` with a handler of its own.

Source: POSIX pipes; CUDA Driver API, "Error Handling" (errors that a context does not survive).
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from threading import Thread, current_thread
from typing import Any

from tinygpu.errors import LaunchError, TinyGpuError, out_of_memory

__all__ = ["Worker", "lost", "serve"]

Answer = dict[str, Any]
_TAIL_BYTES, _START_SECONDS = 4096, 120.0
_HELLO = {"do": "hello"}
_HANGS = "it hangs"
_DIED = "its process died"
_NONSENSE = "its worker's answer is no JSON"
_GPU_WORKER = (sys.executable, "-m", "tinygpu.codegen.run.worker")


class Worker(AbstractContextManager["Worker"]):
    """A worker process, started when it is asked; a context manager that kills it."""

    def __init__(self, command: Sequence[str] = ()) -> None:
        """Ask the GPU worker, or what ``command`` starts, and which says hello in time."""
        self._command = tuple(command) or _GPU_WORKER
        self._process: subprocess.Popen[bytes] | None = None
        self._beginning: Thread | None = None
        self._open = ExitStack()
        self._complaints = -1
        self._rest = b""

    def begin(self, limit_seconds: float, request: Mapping[str, object] = _HELLO) -> None:
        """Ask beside what the caller does next, who needs no answer; the next request waits."""
        self._beginning = Thread(target=self.ask, args=(request, limit_seconds), daemon=True)
        self._beginning.start()

    def _begun(self) -> None:
        """Wait for one that begins."""
        if self._beginning is not None and self._beginning is not current_thread():
            self._beginning.join()
            self._beginning = None

    def ask(self, request: Mapping[str, Any], limit_seconds: float) -> Answer:
        """Return the answer, or ``{"failed": reason}`` if there is none in time."""
        self._begun()
        if self._process is None:
            answer = self._exchange(self._start(), _HELLO, _START_SECONDS)
            if "failed" in answer:
                return answer
        assert self._process is not None
        return self._exchange(self._process, request, limit_seconds)

    def _exchange(
        self, process: subprocess.Popen[bytes], request: Mapping[str, Any], limit_seconds: float
    ) -> Answer:
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            answer = self._answer(process, limit_seconds)
        except TimeoutError:
            answer = {"failed": f"{_HANGS}: no answer in {limit_seconds:g} s"}
        except (EOFError, BrokenPipeError):
            answer = {"failed": self._last_words(process)}
        except ValueError:
            answer = {"failed": _NONSENSE}
        if "failed" in answer:
            self.close()
        return answer

    def kill(self) -> None:
        """Kill the process, if there is one: who waits for its answer hears that it died."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Kill the process, if there is one, and wait for its end."""
        self.kill()
        self._begun()
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)  # the driver takes its time to stop a kernel that hangs
        with suppress(OSError):
            self._open.close()
        self._rest = b""

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        self._complaints, name = tempfile.mkstemp(prefix="tinygpu-")
        self._open.callback(os.close, self._complaints)
        os.unlink(name)
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)  # a peer may be by the script
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                env={"CUPY_ACCELERATORS": "", **os.environ, "PYTHONPATH": path},  # CUB compiles 4 s
            )
        except OSError as error:
            self._open.close()
            raise LaunchError(
                f"worker: {self._command[0]} does not start ({error.strerror}); check the command"
            ) from None
        for pipe in (process.stdout, process.stdin):
            assert pipe is not None
            self._open.callback(pipe.close)
        self._process = process
        return process

    def _answer(self, process: subprocess.Popen[bytes], limit_seconds: float) -> Answer:
        assert process.stdout is not None
        end = time.monotonic() + limit_seconds
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise TimeoutError
                more = os.read(process.stdout.fileno(), 1 << 16)
                if not more:
                    raise EOFError
                self._rest += more
        line, self._rest = self._rest.split(b"\n", 1)
        answer: Answer = json.loads(line)
        return answer

    def _last_words(self, process: subprocess.Popen[bytes]) -> str:
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        size = os.fstat(self._complaints).st_size
        tail = os.pread(self._complaints, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        said = tail.decode(errors="replace").strip().splitlines()
        status = process.returncode
        how = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        return f"{_DIED} with {how}" + (f": {said[-1].strip()}" if said else "")


def lost(reason: str) -> bool:
    """Say whether a reason is that there was no answer: a timeout or a lost worker.

    Such a failure may be the machine's and not the candidate's.

    >>> lost("it hangs: no answer in 3 s"), lost("it is wrong: its worst error is not finite")
    (True, False)
    """
    return reason.startswith((_HANGS, _DIED, _NONSENSE))


def serve(handle: Callable[[Answer], Answer]) -> None:
    """Answer requests from standard input until it ends, or until one fails.

    What is printed meanwhile goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = handle(json.loads(line))
        except TinyGpuError as error:
            answer = {"failed": str(error)}
        except Exception as error:  # whatever it is, the one who asked has to hear of it
            said = (str(error).strip().splitlines() or [""])[0]
            answer = {"failed": out_of_memory(error) or f"{type(error).__name__}: {said}"}
        print(json.dumps(answer), file=answers, flush=True)
        if "failed" in answer:
            return


if __name__ == "__main__":
    from tinygpu.codegen.run.on_gpu import answer_on_gpu

    serve(answer_on_gpu)
