"""Positions in rings: from an index, counted without end, to a stage and a phase's parity.

Index x of a ring of D stages is at stage x mod D, in phase floor(x / D), of which a wait asks the
parity.  An index is known + terms: the known part is split, known = base + turns D, so that what
has to be computed, base + terms, is never negative, also where the index is (n - D, the last use of
a stage).  The parity is then that of base + terms, flipped if turns is odd.

In a running loop that the index counts by 1, stage and parity are two registers, set before the
loop and turned at the end of each iteration, so that no remainder is taken inside.

>>> from tinygpu.term.program import var
>>> text = Text()
>>> rings = Rings(text, lambda terms, scope, start: "%r9")
>>> rings.position(3, var("k") + -3, Scope(running={"k": "%r9"}))
('%r0', '%r4')
>>> rings.position(3, var("k") + -3, Scope(static={"k": 7}))
(1, 1)

Source: PTX ISA 9, "mbarrier.test_wait/mbarrier.try_wait" (phaseParity).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tinygpu.codegen.kernel.ptx import Scalar as Number
from tinygpu.codegen.kernel.ptx import Text
from tinygpu.codegen.kernel.scope import Scope, Terms
from tinygpu.errors import ProgramError
from tinygpu.term.program import Affine, Barrier, Body, Do

__all__ = ["Ring", "Rings", "split_index"]


@dataclass(frozen=True, slots=True)
class Ring:
    """The registers of a position that a loop turns."""

    slot: str
    parity: str
    stages: int


class Rings:
    """The positions of one kernel; ``sum_of(terms, scope, start)`` gives the value of terms."""

    def __init__(self, text: Text, sum_of: Callable[[Terms, Scope, Number], Number]) -> None:
        self.text, self.sum_of = text, sum_of

    def position(self, stages: int, index: Affine, scope: Scope) -> tuple[Number, Number]:
        """Return the stage of a ring's index, and the parity of its phase.

        Raises ProgramError for an index that counts down.
        """
        text = self.text
        turns, base, terms = split_index(stages, index, scope)
        if not terms:
            return base, turns & 1
        key = ("ring", stages, base, terms)
        slot = text.known(key)
        if slot is None:
            here, parity = text.register("u32"), text.register("u32")
            self._set(self.sum_of(terms, scope, base), stages, (here, parity))
            text.remember(key, here)
            text.remember((*key, "parity"), parity)
            slot = here
        parity_now = text.known((*key, "parity"))
        assert parity_now is not None
        return slot, text.exclusive_or(parity_now, 1) if turns % 2 else parity_now

    def turning(self, body: Body, name: str, start: int, scope: Scope) -> list[Ring]:
        """Make the positions that the loop over ``name`` turns by one, at its first iteration."""
        text = self.text
        found: dict[tuple[object, ...], Ring] = {}
        for stages, index, here in _uses(body, scope):
            _, base, terms = split_index(stages, index, here)
            inner = any(other in here.running and other not in scope.running for other, _ in terms)
            key = ("ring", stages, base, terms)
            steps = [factor for other, factor in terms if other == name]
            if steps != [1] or inner or key in found or stages == 1:
                continue  # what an inner loop counts, that one turns
            rest = tuple(t for t in terms if t[0] != name)
            slot, parity = text.register("u32"), text.register("u32")
            self._set(self.sum_of(rest, here, base + start), stages, (slot, parity))
            text.remember(key, slot)
            text.remember((*key, "parity"), parity)
            found[key] = Ring(slot, parity, stages)
        return list(found.values())

    def turn(self, ring: Ring) -> None:
        """Turn a position by one."""
        text, wraps = self.text, self.text.register("pred")
        text.emit(f"add.s32 {ring.slot}, {ring.slot}, 1")
        text.emit(f"setp.eq.s32 {wraps}, {ring.slot}, {ring.stages}")
        text.emit(f"@{wraps} mov.u32 {ring.slot}, 0")
        text.emit(f"@{wraps} xor.b32 {ring.parity}, {ring.parity}, 1")

    def _set(self, at: Number, stages: int, to: tuple[str, str]) -> None:
        """Set stage and parity of an index that is not negative."""
        text = self.text
        slot, parity = to
        text.emit(f"mov.u32 {slot}, {text.modulo(at, stages)}")
        if isinstance(at, str):
            text.emit(f"and.b32 {parity}, {text.divide(at, stages)}, 1")
        else:
            text.emit(f"mov.u32 {parity}, {at // stages & 1}")


def split_index(stages: int, index: Affine, scope: Scope) -> tuple[int, int, Terms]:
    """Return turns, base and terms of an index.

    Raises ProgramError for an index that counts down.
    """
    known, terms = scope.split(index)
    if any(isinstance(factor, int) and factor < 0 for _, factor in terms):
        raise ProgramError(f"index {index}: a ring's index has to count up where it is not known")
    return *divmod(known, stages), terms


def _uses(body: Body, scope: Scope) -> Iterator[tuple[int, Affine, Scope]]:
    """Yield depth and index of uses of rings but by threads' addresses, and the loops around."""
    for statement in body:
        own = isinstance(statement, Do) and not statement.instruction.of_tile
        for ring, index, *_ in () if own else statement.uses:
            if isinstance(ring, Barrier) or ring.level == "smem":
                yield ring.stages, index, scope
        for inner in scope.within(statement):
            yield from _uses(statement.body, inner)
