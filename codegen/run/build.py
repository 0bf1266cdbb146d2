"""Building: the PTX and cubins of many terms, made in parallel processes.

Emission is Python's work and assembly that of ptxas, so that each of ``jobs`` worker processes
takes the next term, emits and assembles it; the cubin comes to the caller through the cache of
``assemble.py``.  A cubin that lacks a wait is an error (``scoreboards.py``).  Few terms are built
here, where no process has to start.

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> term = Simt().program(matmul("f32"), Chosen(LADDER["naive"]))
>>> (built,) = build_many([(term, "sm_90a", None)])
>>> built.arch, built.ptx.count("fma.rn.f32") > 0
('sm_90a', True)

Source: ``worker.py``, whose processes these are.
"""

from __future__ import annotations

import base64
import pickle
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Lock
from typing import Any

from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.assemble import Cubin, assemble, check_waits, find_ptxas
from tinygpu.codegen.run.worker import Worker, serve
from tinygpu.cores import cores
from tinygpu.deadline import NEVER, Deadline
from tinygpu.errors import AssemblyError, TinyGpuError
from tinygpu.term.plan import Term

__all__ = ["Builders", "Built", "build_many"]

_COMMAND = (sys.executable, "-m", "tinygpu.codegen.run.build")
_FEW = 4
_LIMIT_SECONDS = 600.0

Progress = Callable[[int, int], None]
Wanted = tuple[Term, str, Mapping[str, int] | None]  # a term, an architecture, sizes


@dataclass(frozen=True, slots=True)
class Built:
    """A term's PTX text for ``arch``, its cubin, and what is said of its waits: right, or why not.

    ``waits`` is "right" or begins with "not checked".
    """

    arch: str
    ptx: str
    cubin: Cubin
    waits: str = ""


def build_many(
    wanted: Sequence[Wanted],
    *,
    jobs: int | None = None,
    progress: Progress = lambda _done, _every: None,
) -> tuple[Built | TinyGpuError, ...]:
    """Emit and assemble (term, architecture, sizes); one that fails gives its error in its place.

    Only terms that are specialised need sizes.  ``progress(done, all)`` is called after each.
    Raises AssemblyError where there is no ptxas.
    """
    built: list[Built | TinyGpuError] = []
    with Builders(jobs) as builders:
        for one in builders.each(wanted):
            built.append(one)
            progress(len(built), len(wanted))
    return tuple(built)


class Builders(ExitStack):
    """Up to ``jobs`` processes that build, started as they are needed; a context manager."""

    def __init__(self, jobs: int | None = None) -> None:
        """Start none yet.  Raises AssemblyError where there is no ptxas."""
        super().__init__()
        find_ptxas()
        self._workers = [self.enter_context(Worker(_COMMAND)) for _ in range(jobs or cores())]

    def begin(self, limit_seconds: float) -> None:
        """Start all beside what the caller does next: Python takes a second or two to begin."""
        for worker in self._workers:
            worker.begin(limit_seconds)

    def each(
        self, wanted: Sequence[Wanted], until: Deadline = NEVER
    ) -> Generator[Built | TinyGpuError]:
        """Yield what ``build_many`` returns, in order, each as soon as it is there.

        It ends at the deadline, with fewer; what is being built then is given up.
        """
        jobs = min(len(self._workers), len(wanted))
        if until.open and (jobs <= 1 or len(wanted) <= _FEW):
            for one in wanted:
                try:
                    yield _built(*one)
                except TinyGpuError as error:
                    yield error
            return
        asking = self._asking("build", jobs)

        def ask(one: Wanted) -> Built | TinyGpuError:
            answer = asking(one)
            if isinstance(answer, TinyGpuError):
                return answer
            return Built(one[1], answer["ptx"], assemble(answer["ptx"], one[1]), answer["waits"])

        if not wanted:
            return
        pool, busy, there = ThreadPoolExecutor(jobs), self._workers[:jobs], 0
        seconds = None if until.open else until.left()
        try:
            for found in pool.map(ask, wanted, timeout=seconds):
                there += 1
                yield found
        except TimeoutError:
            pass
        finally:  # who leaves before the last leaves nothing that is being built
            pool.shutdown(wait=False, cancel_futures=True)
            given_up = busy if there < len(wanted) else []
            for worker in given_up:
                worker.kill()
            pool.shutdown(wait=True)
            for worker in given_up:
                worker.close()  # one that was idle, too: the next request starts another

    def codes(
        self, wanted: Sequence[Wanted], until: Deadline = NEVER
    ) -> Iterator[tuple[int, int] | TinyGpuError]:
        """Yield the registers and spilled bytes that ptxas says of each term, in order.

        Cubins go into the cache.  After the deadline none is begun: it ends with fewer.
        """
        jobs = min(len(self._workers), len(wanted))
        if not jobs:
            return
        asking = self._asking("assemble", jobs)
        with ThreadPoolExecutor(jobs) as pool:
            for answer in pool.map(lambda one: None if until.passed() else asking(one), wanted):
                if answer is None:
                    return
                if isinstance(answer, TinyGpuError):
                    yield answer
                else:
                    yield int(answer["registers"]), int(answer["spilled_bytes"])

    def _asking(self, what: str, jobs: int) -> Callable[[Wanted], Mapping[str, Any] | TinyGpuError]:
        """Return what asks one of the first workers that is free."""
        free, lock = self._workers[:jobs], Lock()

        def ask(one: Wanted) -> Mapping[str, Any] | TinyGpuError:
            job = {"job": base64.b64encode(pickle.dumps(one)).decode()}
            with lock:
                worker = free.pop()
            answer = worker.ask({"do": what, **job}, _LIMIT_SECONDS)
            with lock:
                free.append(worker)
            said = answer.get("failed") or answer.get("error")
            return AssemblyError(str(said)) if said else answer

        return ask


def _built(program: Term, arch: str, sizes: Mapping[str, int] | None) -> Built:
    ptx = emit(program, arch, sizes)
    cubin = assemble(ptx, arch)
    return Built(arch, ptx, cubin, str(check_waits(cubin)))


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """Build or assemble a term in a worker; the cubin goes into the cache."""
    if request["do"] == "hello":
        return {}
    program, arch, sizes = pickle.loads(base64.b64decode(request["job"]))
    try:
        if request["do"] == "assemble":
            cubin = assemble(emit(program, arch, sizes), arch)
            spilled = cubin.spill_stores_bytes + cubin.spill_loads_bytes
            return {"registers": cubin.registers, "spilled_bytes": spilled}
        built = _built(program, arch, sizes)
    except TinyGpuError as error:
        return {"error": str(error)}
    return {"ptx": built.ptx, "waits": built.waits}


if __name__ == "__main__":
    serve(_answer)
