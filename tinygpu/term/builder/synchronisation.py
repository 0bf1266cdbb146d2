"""Synchronisation: barriers and their uses, fences, groups, and sums over a cluster's CTAs.

A barrier is a ring of stages: use n has stage n mod s.  A ring's uses go on from tile to tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.term import program as term
from tinygpu.term.builder.digits import Digits, LoopIndex, Number, error
from tinygpu.term.builder.memory import Arithmetic, Held
from tinygpu.term.operation import Operation
from tinygpu.term.program import Access, Affine, Buffer, var
from tinygpu.term.statement import Scope

__all__ = ["BarrierRing", "BarrierUse", "Synchronisation"]

_PAIR = 2


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

    def mbarriers(
        self, name: str, stages: Number, *, arrivals: Number, home: str = ""
    ) -> BarrierRing:
        """Declare a ring of mbarriers, each use of which ``arrivals`` complete.

        CTAs that the digit ``home`` counts use those of the first of them.
        """
        if home:
            self._digits.require_by("mbarriers", home, "the cluster")
        barrier = term.Barrier(self._free(name), stages, arrivals, home)
        self._barriers.append(barrier)
        return BarrierRing(self._digits, barrier)

    def named_barriers(
        self, name: str, stages: Number, *, threads: Number, number: Number
    ) -> BarrierRing:
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

    def arrive(
        self, use: BarrierUse, *, expect: Number = 0, to: str = "cta", after: str = ""
    ) -> None:
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

    def wait_group(self, group: str, pending: Number, *, read: bool = False) -> None:
        """Wait until all but the newest ``pending`` groups are done."""
        self._append(term.WaitGroup(pending, group, read))

    def cluster_sum(self, sums: Held, *, over: str, slices: str) -> Held:
        """Add up a tile's sums over CTAs of a cluster, and return the slice that is this CTA's.

        Each slice, one value of the digit ``slices``, goes through shared memory of the CTA with
        its number, in the order in which threads hold it: 16 B of a thread, then those of the next,
        so that no two lanes of a warp meet a bank twice.  Pieces of 16 B go to one CTA after the
        other, so that no CTA has to take what all send at once.  Parts are added by rank.
        """
        self._warpgroup("cluster_sum")
        self._digits.require_by("cluster_sum", over, "the cluster")
        threads, turn, ctas = self._digits.threads, self._turn(), int(self._digits.extent(over))
        if slices not in sums.digits or self._digits.extent(slices) != ctas:
            text = f"cluster_sum: {sums.name} has no slice for each of the {ctas} CTAs of {over}"
            raise error(text, slices)
        kept = tuple(d for d in sums.digits if d != slices)
        pair, half, *slow = kept[::-1]
        digits = (pair, half, *threads, *slow)
        shape, strides = self._digits.extents(digits), [math.prod(self._digits.extents(digits[:i]))
                                                 for i in range(len(digits))]  # fmt: skip
        parts = Buffer(self._free("parts"), "smem", "f32", shape, tuple(strides), ctas,
                       math.prod(shape), copies=self._copies, home=over)  # fmt: skip
        self._lay_out(parts, last=False)
        part = self.registers("part", "f32", half, pair)
        modes = (pair, half)

        def there(number: Affine, peer: int = 0) -> Access:
            value, thread = (tuple(tuple(int(d == e) for e in digits) for d in each)
                             for each in (modes, threads))  # fmt: skip
            origin = tuple(var(d) if d in self._digits.gone_through else Affine() for d in digits)
            return Access(parts, value, thread, origin, turn * ctas + number, peer=peer)

        def move(by: str, to: Access, of: Access) -> None:
            self._do(INSTRUCTIONS[by], to, of, modes, None, vector=_PAIR * _PAIR)

        def every(left: Sequence[str]) -> Iterator[object]:
            for _ in self.each(left[-1]) if left else (None,):
                yield from every(left[:-1]) if left else (None,)

        for _ in every(slow):
            for peer in range(ctas):
                own = self._own(sums, modes, len(threads), {slices: Affine(peer)})
                move("st.shared", there(var(over), peer), own)
        self.sync("cluster")
        added = self.zeros("added", "f32", *kept)
        for _ in every(slow):
            with self._nested() as body:
                move("ld.shared", self._own(part, modes, len(threads), {}), there(var("r")))
                self.add(added, part)
            self._append(term.For("r", ctas, tuple(body), unrolled=True))
        return added
