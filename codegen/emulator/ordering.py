"""Release and acquire on shared memory: strong accesses, and what they tell of others.

An access is *strong* if it is volatile, relaxed, acquire, release or atomic; two strong ones never
race.  A release gives the cell what its thread knows, a relaxed store what its thread knew at its
last fence; an acquire takes what the cell has, a relaxed load keeps it for its thread's next fence.
A read-modify-write adds to what the cell has, a store replaces it.

Source: PTX ISA 9.0, sections 8.7 (release and acquire patterns) and 8.8 (causality order).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinygpu.codegen.emulator.group import Group
from tinygpu.codegen.emulator.parser import Instruction
from tinygpu.codegen.emulator.report import Array
from tinygpu.codegen.emulator.run import Run

__all__ = ["WEAK", "Semantics", "semantics", "transfer"]


@dataclass(frozen=True, slots=True)
class Semantics:
    """What an access is beside a read or a write.

    ``updates`` is both at once; ``replaces`` is an update that leaves nothing of what was there.
    """

    strong: bool = False
    acquires: bool = False
    releases: bool = False
    updates: bool = False
    replaces: bool = False


WEAK = Semantics()


def semantics(i: Instruction) -> Semantics:
    """Return what a load, store or atomic operation says of itself."""
    parts, updates = set(i.parts), i.parts[0] in ("atom", "red")
    marks = {"volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"}
    return Semantics(
        updates or bool(parts & marks),
        bool(parts & {"acquire", "acq_rel"}),
        bool(parts & {"release", "acq_rel"}),
        updates,
        "exch" in parts,
    )


def transfer(run: Run, group: Group, flat: Array, step: int, how: Semantics, writes: bool) -> None:
    """Move clocks between agents and the cells at ``flat``, thread after thread."""
    if not run.code.fences and not how.acquires and not how.releases:
        return
    domains, agents = run.agents_of(group.threads)
    cells, clocks, done = run.state.cells, run.clocks, set()
    for domain, agent, cell in zip(domains.tolist(), agents.tolist(), flat.tolist(), strict=True):
        if (agent, cell) in done:
            continue
        done.add((agent, cell))
        held, key = cells.get(cell), (domain, agent)
        if held is not None and (how.updates or not writes):
            if how.acquires:
                clocks.acquire(domain, [agent], held)
            else:
                seen = run.state.seen.get(key, clocks.nothing())
                run.state.seen[key] = clocks.join(seen, held)
        if not writes:
            continue
        gives = (
            clocks.snapshot(domain, [agent], step) if how.releases else run.state.fenced.get(key)
        )
        if how.updates and held is not None:
            gives = held if gives is None else clocks.join(gives.copy(), held)
        if gives is not None:
            cells[cell] = gives
        else:
            cells.pop(cell, None)


def fence(run: Run, group: Group, step: int) -> None:
    """Let what was seen be known, and what is known be given by the stores after this."""
    for domain, agents in run.by_domain(group):
        for agent in agents:
            seen = run.state.seen.pop((domain, agent), None)
            if seen is not None:
                run.clocks.acquire(domain, [agent], seen)
            run.state.fenced[domain, agent] = run.clocks.snapshot(domain, [agent], step)


def equal_values(index: Array, values: Array, held: Array, *, at_once: bool) -> bool:
    """Whether stores that meet have the values that are there, or (at once) the same."""
    if not at_once:
        return bool((held == values).all())
    _, first, back = np.unique(index, return_index=True, return_inverse=True)
    return bool((values == values[first][back]).all())
