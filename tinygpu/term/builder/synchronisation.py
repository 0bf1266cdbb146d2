"""Synchronisation: barriers and their uses, fences, groups, and sums over a cluster's CTAs.

A barrier is a ring of stages: use n has stage n mod s.  A ring's uses go on from tile to tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.term import program as term
from tinygpu.term.builder.digits import Digits, LoopIndex, error
from tinygpu.term.builder.memory import Arithmetic, Held
from tinygpu.term.operation import Operation
from tinygpu.term.program import Access, Affine, Buffer, var
from tinygpu.term.statement import Scope

__all__ = ["BarrierRing", "BarrierUse", "Parts", "Synchronisation"]


@dataclass(frozen=True, slots=True)
class BarrierUse:
    """Use number ``index`` of a ring of barriers."""

    barrier: term.Barrier
    index: Affine


@dataclass(frozen=True, slots=True, eq=False)
class BarrierRing:
    """A ring of barriers: ``ring[step]`` is a use; of mbarriers, uses before the first are over.

    ``ring[step, w]``: the numbers of several digits count on, slowest first.
    """

    declared: Digits
    barrier: term.Barrier

    def __getitem__(self, at: LoopIndex | tuple[LoopIndex, ...]) -> BarrierUse:
        return BarrierUse(self.barrier, self.declared.use_of(self.barrier.name, at, own=False))


class Synchronisation(Arithmetic):
    """Barriers, fences and groups; the barriers are its state."""

    def __init__(self, name: str, operation: Operation) -> None:
        super().__init__(name, operation)
        self._barriers: list[term.Barrier] = []

    def mbarriers(self, name: str, stages: int, *, arrivals: int, home: str = "") -> BarrierRing:
        """Declare a ring of mbarriers, each use of which ``arrivals`` complete.

        CTAs that the digit ``home`` counts use those of the first of them.
        """
        if home:
            self._digits.require_by("mbarriers", home, "the cluster")
        barrier = term.Barrier(self._free(name), stages, arrivals, home)
        self._barriers.append(barrier)
        return BarrierRing(self._digits, barrier)

    def named_barriers(self, name: str, stages: int, *, threads: int, number: int) -> BarrierRing:
        """Declare a ring of named barriers, ``number`` and those after it, of so many threads.

        ``k.wait`` of a use is bar.sync by all threads of the role's copy, ``k.arrive`` bar.arrive;
        ``threads`` are those of both.  Numbers of ``k.sync("role")`` begin at 1, one for each copy.
        """
        barrier = term.Barrier(self._free(name), stages, threads, number=number)
        self._barriers.append(barrier)
        return BarrierRing(self._digits, barrier)

    def sync(self, scope: Scope = "cta") -> None:
        """Let all threads of the CTA (or the role) wait for each other."""
        self._all_threads("sync")
        self._append(term.Sync(1, scope) if scope == "role" else term.Sync(scope=scope))

    def wait(self, use: BarrierUse) -> None:
        """Wait until a use is complete."""
        self._in_role("wait")
        self._append(term.Wait(use.barrier, use.index))

    def arrive(self, use: BarrierUse, *, expect: int = 0, to: str = "cta", after: str = "") -> None:
        """Arrive at a use; it then is complete when ``expect`` bytes have landed, too.

        ``to`` = "cluster", or digits of it as "rank_m": in each CTA that they count.  ``after`` =
        "tcgen05" (tcgen05.commit): not now, but when the thread's products so far are done.
        """
        self._in_role("arrive")
        if after:
            self._one_thread("arrive", "the thread that multiplies commits")
        self._append(term.Arrive(use.barrier, use.index, expect, to, after))

    def fence(self, scope: str) -> None:
        """Order what the threads did before what another proxy does."""
        self._append(term.Fence(scope))

    def commit(self, group: str = "cp.async") -> None:
        """End a group, for which ``wait_group`` waits."""
        self._append(term.Commit(group))

    def wait_group(self, group: str, pending: int, *, read: bool = False) -> None:
        """Wait until all but the newest ``pending`` groups are done."""
        self._append(term.WaitGroup(pending, group, read))

    def send(self, held: Held, *, over: str, vector: str, slices: str = "") -> Parts:
        """Send registers to the CTAs of a cluster, which take them after ``k.sync("cluster")``.

        CTA p of those that ``over`` counts gets the values at p of the digit ``slices``; all get
        all of them if there is no such digit.  They go through its shared memory in the order in
        which threads hold them: the digits ``vector`` of a thread, 16 B at most, then those of the
        next thread, so that no two lanes of a warp meet a bank twice.  Pieces go to one CTA after
        the other, so that no CTA has to take what all send at once.
        """
        self._warpgroup("send")
        self._digits.require_by("send", over, "the cluster")
        ctas = int(self._digits.extent(over))
        if slices and (slices not in held.digits or self._digits.extent(slices) != ctas):
            text = f"send: {held.name} has no slice for each of the {ctas} CTAs of {over}"
            raise error(text, slices)
        modes = tuple(vector.split())[::-1]
        kept = [d for d in held.digits if d != slices]
        if kept[::-1][: len(modes)] != [*modes]:
            text = f"send: {held.name} has {' '.join(kept)}, which do not end in {vector}"
            raise error(text, vector)
        slow = tuple(kept[::-1][len(modes) :])
        digits = (*modes, *self._digits.threads, *slow)
        shape = self._digits.extents(digits)
        strides = tuple(math.prod(shape[:i]) for i in range(len(digits)))
        place = Buffer(self._free("parts"), "smem", held.buffer.dtype, shape, strides, ctas,
                       math.prod(shape), copies=self._copies, home=over)  # fmt: skip
        self._lay_out(place, last=False)
        parts = Parts(self, place, modes, slow, ctas)
        for _ in parts.pieces():
            for peer in range(ctas):
                at = {slices: Affine(peer)} if slices else {}
                own = self._own(held, modes, len(self._digits.threads), at)
                parts.move("st.shared", parts.place(var(over), peer), own)
        return parts

    def cluster_sum(self, sums: Held, *, over: str, slices: str) -> Held:
        """Add up a tile's sums over CTAs of a cluster, and return the slice that is this CTA's.

        Each slice is one value of the digit ``slices``.  Parts are added by rank.
        """
        half, pair = [d for d in sums.digits if d != slices][-2:]
        parts = self.send(sums, over=over, slices=slices, vector=f"{half} {pair}")
        part = self.registers("part", "f32", half, pair)
        self.sync("cluster")
        added = self.zeros("added", "f32", *(d for d in sums.digits if d != slices))
        for _ in parts.pieces():
            for rank in self.unrolled("r", parts.ctas):
                parts.take(rank, part)
                self.add(added, part)
        return added


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What CTAs of a cluster have sent to this one: a stage of shared memory for each of them.

    A piece of it is one value of each digit of ``slow``; ``modes`` are the digits of a vector.
    """

    k: Synchronisation
    buffer: Buffer
    modes: tuple[str, ...]
    slow: tuple[str, ...]
    ctas: int

    def pieces(self) -> Iterator[None]:
        """Go through the digits of the registers but for a vector's."""
        return self._every(self.slow)

    def take(self, rank: LoopIndex, into: Held) -> None:
        """Read a piece that CTA ``rank`` sent."""
        own = self.k._own(into, self.modes, len(self.k._digits.threads), {})
        self.move("ld.shared", own, self.place(rank.affine))

    def place(self, number: Affine, peer: int = 0) -> Access:
        """Return where the piece of CTA ``number`` lies in the shared memory of CTA ``peer``."""
        threads = self.k._digits.threads
        digits = (*self.modes, *threads, *self.slow)
        value, thread = (tuple(tuple(int(d == e) for e in digits) for d in each)
                         for each in (self.modes, threads))  # fmt: skip
        gone = self.k._digits.gone_through
        origin = tuple(var(d) if d in gone else Affine() for d in digits)
        index = self.k._turn() * self.ctas + number
        return Access(self.buffer, value, thread, origin, index, peer=peer)

    def move(self, by: str, to: Access, of: Access) -> None:
        """Move a vector between registers and shared memory."""
        wide = math.prod(self.k._digits.extents(self.modes))
        self.k._do(INSTRUCTIONS[by], to, of, self.modes, None, vector=wide)

    def _every(self, left: tuple[str, ...]) -> Iterator[None]:
        for _ in self.k.each(left[-1]) if left else (None,):
            if left:
                yield from self._every(left[:-1])
            else:
                yield None
