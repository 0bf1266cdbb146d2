"""An invariant: what is true whenever all agents stand at one node, relative to the counters.

    known     what each agent knows: a clock for each, a lag for each column
    own       of an agent that stands for several threads: what each of them did itself
    messages  of a phase that is open or the last that is over: what who waits for it will know
    open      of each stage of a barrier the phase that is open; of one that nobody names the first
    counts    of a phase with contributions: arrivals, bytes expected, bytes landed, who arrived
    groups    of each agent and kind: what a wait for the groups so far gives, the oldest first
    touched   registers of products were touched since the last wgmma.fence
    holds     of each slot which index it holds, which cells of that were written, and in which are
              sums of products that nobody has read yet

A lag t in a column says that all that was done so far at indices up to t of its residue is known,
ALL that all is.  Whatever is done anew lowers what all know of it, so a lag is about the past
alone.  More of a lag is more knowledge; of two clocks the join is the greater lag in each column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tinygpu.checker.protocol import ALL, NONE, Clock, Protocol, moved

__all__ = ["LEAST", "Contents", "Counts", "Held", "Invariant", "advanced", "follows"]

LEAST = -10_000
"""A lag below is as none."""
Clocks = NDArray[np.int32]
Counts = tuple[int, int, int, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Contents:
    """What a slot holds: an index, its cells that were written, the cells with unread sums.

    Of a slot with no written cells only the last is said, and that there are no others.
    """

    index: int
    written: int
    unread: int = 0


Held = Contents | None


@dataclass(slots=True)
class Invariant:
    """What is true at a node; see the module's text."""

    known: Clocks
    own: Clocks
    messages: dict[tuple[int, int], Clock]
    open: list[list[int]]
    counts: dict[tuple[int, int], Counts]
    groups: dict[tuple[int, str], Clocks]
    touched: list[bool]
    holds: list[list[Held]]

    @staticmethod
    def first(protocol: Protocol) -> Invariant:
        """Return what is true before the first statement."""
        start = np.full(protocol.width, ALL, np.int32)
        every = np.tile(start, (len(protocol.actors), 1))
        return Invariant(
            known=every,
            own=every.copy(),
            messages={
                (b.number, r - b.stages): start.copy()
                for b in protocol.barriers
                for r in range(b.stages)
                if not b.barrier.named
            },
            open=[list(range(b.stages)) for b in protocol.barriers],
            counts={},
            groups={key: np.tile(start, (most + 2, 1)) for key, most in protocol.groups.items()},
            touched=[True] * len(protocol.actors),
            holds=[[None] * ring.stages for ring in protocol.rings],
        )

    def copy(
        self, more: int = 0, change: Callable[[Clocks], Clocks] | None = None
    ) -> tuple[Invariant, Clocks, int]:
        """Return one that may be changed, the array of its clocks and how many rows it has.

        The array has ``more`` rows besides.  Its clocks are what ``change`` makes of these.
        """
        parts = [self.known, self.own, *self.groups.values()]
        parts += [message[None] for message in self.messages.values()]
        ends = np.cumsum([len(part) for part in parts])
        rows = int(ends[-1])
        whole = np.empty((rows + more, self.known.shape[1]), np.int32)
        np.concatenate(parts, out=whole[:rows])
        if change is not None:
            for row in range(0, rows, 16):  # so few that they stay in a cache
                some = slice(row, min(row + 16, rows))
                whole[some] = change(whole[some])
        known, own, *rest = np.split(whole[:rows], ends[:-1])
        messages = [message[0] for message in rest[len(self.groups) :]]
        found = replace(
            self, known=known, own=own,
            messages=dict(zip(self.messages, messages, strict=True)),
            open=[list(x) for x in self.open], counts=dict(self.counts),
            groups=dict(zip(self.groups, rest, strict=False)),
            touched=list(self.touched), holds=[list(x) for x in self.holds],
        )  # fmt: skip
        return found, whole, rows


def advanced(protocol: Protocol, state: Invariant, kind: str, tile: int) -> Invariant:
    """Return what is true when a step, or a tile of a residue, is counted as past."""
    source, less = protocol.moves[kind, tile]

    def clock(old: Clocks) -> Clocks:
        here = np.take(old, source, axis=1)
        found = here - less
        np.copyto(found, NONE, where=found < LEAST)
        np.copyto(found, ALL, where=here >= ALL)
        return found

    found, _, _ = state.copy(change=clock)
    messages, counts, opened = {}, {}, []
    for barrier, stages in zip(protocol.barriers, state.open, strict=True):
        by, d = moved(barrier, kind, tile), barrier.stages
        used = barrier.used  # of another stage no phase ever ends
        opened.append([stages[(r + by) % d] - by if r in used else r for r in range(d)])
    for (b, x), message in found.messages.items():
        messages[b, x - moved(protocol.barriers[b], kind, tile)] = message
    for (b, x), count in state.counts.items():
        counts[b, x - moved(protocol.barriers[b], kind, tile)] = count
    holds = []
    for ring, slots in zip(protocol.rings, state.holds, strict=True):
        if by := moved(ring, kind, tile):
            turned = [slots[(r + by) % ring.stages] for r in range(ring.stages)]
            slots = [held and replace(held, index=held.index - by) for held in turned]
        holds.append(slots)
    return replace(found, messages=messages, counts=counts, open=opened, holds=holds)


def follows(protocol: Protocol, state: Invariant, claim: Invariant) -> str:
    """Return what of a claimed invariant does not follow from what is true; "" if all does."""
    actors = protocol.actors
    for what, mine, claimed in (
        ("knows", state.known, claim.known), ("did", state.own, claim.own),
    ):  # fmt: skip
        if (mine < claimed).any():
            agent, column = np.argwhere(mine < claimed)[0]
            return (
                f"{actors[agent]} {what} {protocol.names[column]} up to {claimed[agent, column]}, "
                f"and not to {mine[agent, column]} only"
            )
    if claim.open != state.open:
        return f"phases {claim.open} are open, and not {state.open}"
    if claim.counts != state.counts:
        return f"contributions are {claim.counts}, and not {state.counts}"
    for at, message in claim.messages.items():
        if at not in state.messages or (state.messages[at] < message).any():
            return f"the message of {protocol.barriers[at[0]].name}@{at[1]}"
    for key, clocks in claim.groups.items():
        if (state.groups[key] < clocks).any():
            return f"groups of {key[1]} of {actors[key[0]]}"
    for agent, (dirty, clean) in enumerate(zip(state.touched, claim.touched, strict=True)):
        if dirty and not clean:
            return f"{actors[agent]} has touched no registers of products"
    for ring, slots, said in zip(protocol.rings, state.holds, claim.holds, strict=True):
        for one, held in zip(slots, said, strict=True):
            if one == held:
                continue
            if (one.unread if one else 0) & ~(held.unread if held else 0):
                return f"a slot of {ring.name} has no sums that nobody read"
            if held is None or not held.written:
                continue
            if one is None or one.index != held.index or held.written & ~one.written:
                return f"a slot of {ring.name} holds index {held.index}, and not {one}"
    return ""
