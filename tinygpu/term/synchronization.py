"""Order: the statements of a term that move no data but say what comes after what.

    Sync(barrier, scope)          bar.sync: all threads of the CTA, a role's copy, the cluster
    Commit(group), WaitGroup(..)  groups of copies (cp.async), products (wgmma), stores (bulk)
    Arrive, Wait                  an mbarrier: a phase ends when all arrivals and bytes are there
    Fence                         fence.proxy.async, wgmma.fence, tcgen05.fence

**An mbarrier is a ring too.**  A ``Barrier`` has D stages, each an mbarrier of its own.  Whatever
names it carries an index x, affine in the loop variables, and means phase floor(x / D) of stage
x mod D.  Phases before 0 are over from the start, so that a producer waits for index n - D, the
last use of the stage that it is about to fill, without a special case.

>>> from tinygpu.term.access_map import var
>>> full = Barrier("full", 4, arrivals=1)
>>> print(Wait(full, var("k")), "|", Arrive(full, var("k"), bytes=32768))
wait full@(k) | arrive full@(k) expecting 32768 B

Source: PTX ISA 9, "Parallel Synchronization and Communication Instructions"; ``docs/model.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tinygpu.term.access_map import Affine

__all__ = ["Arrive", "Barrier", "Commit", "Fence", "Group", "Scope", "Sync", "Wait", "WaitGroup"]

Scope = Literal["cta", "role", "cluster"]
Group = Literal["cp.async", "wgmma", "bulk", "tcgen05.ld", "tcgen05.st"]


@dataclass(frozen=True, slots=True)
class Sync:
    """``bar.sync``: every thread of the scope arrives and waits.

    "role" is one copy of the role (copy c uses barrier ``barrier + c``); "cluster" is
    ``barrier.cluster`` by every thread of every CTA of the cluster, and has no number.
    """

    barrier: int = 0
    scope: Scope = "cta"

    def __str__(self) -> str:
        if self.scope == "cluster":
            return "barrier.cluster"
        return f"bar.sync {self.barrier}" + (" of the role" if self.scope == "role" else "")


@dataclass(frozen=True, slots=True)
class Commit:
    """Close the group of this thread's copies, of its stores, of this warpgroup's products."""

    group: Group = "cp.async"

    def __str__(self) -> str:
        return f"{_GROUPS[self.group]}.commit_group"


@dataclass(frozen=True, slots=True)
class WaitGroup:
    """All but the newest ``pending`` groups are done; ``read``: their sources have been read.

    Of "tcgen05.ld" and "tcgen05.st" (tcgen05.wait) all are, without a Commit: ``pending`` is 0.
    """

    pending: int = 0
    group: Group = "cp.async"
    read: bool = False

    def __str__(self) -> str:
        if self.group in ("tcgen05.ld", "tcgen05.st"):
            return f"tcgen05.wait::{self.group[-2:]}"
        return f"{_GROUPS[self.group]}.wait_group{'.read' * self.read} {self.pending}"


_GROUPS = {"cp.async": "cp.async", "wgmma": "wgmma", "bulk": "cp.async.bulk"}


@dataclass(frozen=True, slots=True)
class Barrier:
    """A ring of mbarriers in shared memory, each of which ``arrivals`` complete.

    With ``home`` = a cluster axis's variable, CTAs along it use the one of the CTA at 0: whatever
    arrives or lands at it does so there.  Only that CTA may wait for it.
    """

    name: str
    stages: int = 1
    arrivals: int = 1
    home: str = ""

    def __str__(self) -> str:
        where = f", at {self.home} 0" if self.home else ""
        return f"{self.name:8} mbarrier  {self.arrivals} arrivals x {self.stages} stages{where}"


@dataclass(frozen=True, slots=True)
class Wait:
    """``mbarrier.try_wait``: until phase floor(index / stages) of the stage is complete."""

    barrier: Barrier
    index: Affine

    def __str__(self) -> str:
        return f"wait {self.barrier.name}@({self.index})"


@dataclass(frozen=True, slots=True)
class Arrive:
    """``mbarrier.arrive``: one arrival; with ``bytes``, which the phase then also has to see land.

    ``to`` "cluster": at the same barrier of every CTA of the cluster, the own one too; a cluster
    axis's variable, or several with blanks between: of every CTA along it.
    ``after`` "tcgen05" (tcgen05.commit): not now, but when all products (tcgen05.mma) that the
    thread has issued are done.
    """

    barrier: Barrier
    index: Affine
    bytes: int = 0
    to: str = "cta"
    after: Literal["", "tcgen05"] = ""

    def __str__(self) -> str:
        text = "tcgen05.commit" if self.after else "arrive"
        text += f" {self.barrier.name}@({self.index})"
        text += " of the cluster" if self.to == "cluster" else ""
        text += f" along {self.to}" if self.to not in ("cta", "cluster") else ""
        return text if str(self.bytes) == "0" else f"{text} expecting {self.bytes} B"


FenceKind = Literal["proxy.async", "wgmma", "tcgen05.before", "tcgen05.after"]


@dataclass(frozen=True, slots=True)
class Fence:
    """A fence by each thread.

    "proxy.async": what it wrote before, the asynchronous proxy (TMA, wgmma) will see.  "wgmma":
    what it did to registers before, products that it issues later will see.  "tcgen05.before": what
    its tcgen05 instructions did is told by what it does next to tell others (an arrival, a
    barrier); "tcgen05.after": its tcgen05 instructions from here on come after what it waited for.
    """

    kind: FenceKind

    def __str__(self) -> str:
        return _FENCES[self.kind]


_FENCES = {
    "proxy.async": "fence.proxy.async",
    "wgmma": "wgmma.fence",
    "tcgen05.before": "tcgen05.fence::before_thread_sync",
    "tcgen05.after": "tcgen05.fence::after_thread_sync",
}
