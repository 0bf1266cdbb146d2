"""What an agent of an asynchronous program touches: cells, ring indices, who else uses them.

Cells are (values, threads); of a tile there is one "thread".  A cell of which another value was
written than the read asks for is *stale*; a use of shared memory by an agent that does not know
that a conflicting one is done is a *race*; one by the asynchronous proxy of what a thread wrote
without a fence of its own since is *unfenced*.

Source: ``tinygpu.cluster``; PTX ISA 9, 8.6 (proxies).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tinygpu.cluster import Agent, Cta, Mbarrier, Shared, Use
from tinygpu.errors import ProgramError
from tinygpu.program import Access, Affine, Barrier, Buffer, Do
from tinygpu.race import UNWRITTEN, Integers
from tinygpu.touched import Touched

__all__ = [
    "along",
    "cells_of",
    "claim",
    "from_gmem",
    "gmem_of",
    "home_of",
    "is_tile",
    "mbarrier_of",
    "narrowed",
    "stale",
    "to_gmem",
]

Values = NDArray[np.float64]
Booleans = NDArray[np.bool_]
_ONE = np.zeros(1, np.int64)


def mbarrier_of(cta: Cta, barrier: Barrier, index: Affine, env: Mapping[str, int]) -> Mbarrier:
    """Return the mbarrier of a ring that an index means."""
    ring = cta.barriers[barrier.name]
    stage: int = index.evaluate(env) % len(ring)
    return ring[stage]


def along(cta: Cta, axis: str) -> list[Cta]:
    """Return the CTAs of a cluster along an axis, or several; itself alone, if it is no axis."""
    free = axis.split()
    return [
        other
        for other in cta.cluster.ctas
        if all(other.ranks[v] == r for v, r in cta.ranks.items() if v not in free)
    ]


def home_of(cta: Cta, place: Barrier | Buffer) -> Cta:
    """Return the CTA whose mbarrier counts what a CTA tells, whose memory has what it writes."""
    return along(cta, place.home)[0]


def is_tile(do: Do) -> bool:
    """Whether the values are those of a tile, and not of each thread."""
    return do.instruction.issuer != "thread" or any(a.buffer.fragment for a in do.accesses)


def narrowed(agent: Agent, do: Do, access: Access) -> Do:
    """Return the Do on the values of the modes along which an access moves."""
    known, key = agent.cta.cluster.narrowed, (id(do), id(access))
    if key not in known:
        modes = zip(do.values, access.value, strict=True)
        known[key] = replace(do, values=tuple(v if any(steps) else 1 for v, steps in modes))
    return known[key]


def cells_of(
    agent: Agent, do: Do, access: Access, env: Mapping[str, int]
) -> tuple[Integers, Booleans]:
    """Return the cells of an access on chip, all stages counted, and which of them exist."""
    buffer, tile = access.buffer, is_tile(do)
    numbers, key = _numbers(agent, tile)
    touched = agent.cta.cluster.run.touch.on_chip(do, access, numbers, key, env)
    _faults(agent, do, touched)
    stage = access.index.evaluate(env) % int(buffer.stages)
    cells = touched.cell + stage * int(buffer.stage_elements)
    if buffer.level != "registers" or buffer.fragment:
        return cells, touched.taken
    if tile:
        raise ProgramError(f"{do}: {buffer.name} is no fragment; tiles lie in fragments")
    if any(any(steps) for steps in access.thread):
        raise ProgramError(f"{do}: {buffer.name} is each thread's own; its thread steps are 0")
    own = cells + agent.threads * int(buffer.elements)
    return own, np.broadcast_to(touched.taken, own.shape)


def gmem_of(agent: Agent, do: Do, access: Access, env: Mapping[str, int]) -> Touched:
    """Return the elements of an operand that an access touches."""
    numbers, key = _numbers(agent, is_tile(do))
    touched = agent.cta.cluster.run.touch.gmem(do, access, numbers, key, env)
    _faults(agent, do, touched)
    return touched


def _numbers(agent: Agent, tile: bool) -> tuple[Integers, object]:
    return (_ONE, "tile") if tile else (agent.threads, (agent.team.role.name, agent.leader))


def _faults(agent: Agent, do: Do, touched: Touched) -> None:
    for fault in touched.faults:
        agent.cta.cluster.find(fault.kind, agent, do, fault.text, fault.cell)


def stale(agent: Agent, do: Do, name: str, cells: Integers, found: Integers, want: int) -> None:
    """Find a cell whose ring index ``found`` is not the one that is asked for."""
    bad = found != want
    if not bad.any():
        return
    at = int(bad.argmax())
    cell = f"{name}[{int(cells.flat[at])}]"
    if found.flat[at] == UNWRITTEN:
        text = f"reads {cell} at index {want}, which nobody has written; write it before"
        agent.cta.cluster.find("unwritten_read", agent, do, text, cell)
    else:
        text = f"reads {cell} at index {want}, but there is {found.flat[at]}; add a stage or wait"
        agent.cta.cluster.find("stale", agent, do, text, cell)


def claim(agent: Agent, shared: Shared, stage: int, use: Use, *, keep: bool = True) -> None:
    """Find who else may be using these cells now; remember the use (``keep``)."""
    cluster, clock, asynchronous = agent.cta.cluster, agent.clock, not use.plain
    for other in shared.uses[stage]:
        if not (other.writes or use.writes):
            continue
        if use.pipe and use.pipe is other.pipe and _in_order(other, use):
            continue
        known = other.known(clock)
        fence = _missing_fence(agent, other, use) if known else ""
        if known and not fence and (not asynchronous or other.visible(clock)):
            continue
        common = shared.common(other.cells, use.cells)
        if common is None:
            continue
        cell = f"{shared.buffer.name}[{common}]"
        if fence:
            text = f"touches {cell}, used by {other.do}; put {fence}"
            cluster.find("unfenced", agent, use.do, text, cell, str(other.do))
        elif known:
            text = f"touches {cell}, written by {other.do} and not fenced since; put"
            text += " fence.proxy.async after the write, before the barrier"
            cluster.find("unfenced", agent, use.do, text, cell, str(other.do))
        else:
            text = f"touches {cell}, and nothing says that this is done there: {other.do}; wait"
            cluster.find("race", agent, use.do, text, cell, str(other.do))
    if use.writes and shared.twice(use.cells):
        text = f"writes a cell of {shared.buffer.name} twice; give each value a cell of its own"
        cluster.find("race", agent, use.do, text, shared.buffer.name, str(use.do))
    if keep:
        shared.remember(stage, use, clock, cluster.live)


def _in_order(other: Use, use: Use) -> bool:
    """Whether a thread's product is done after what it issued before: copies, the same sums."""
    return not use.copies and (other.copies or (other.writes and use.writes))


def _missing_fence(agent: Agent, other: Use, use: Use) -> str:
    """Return which tcgen05.fence is missing between two uses of which the first is done, if any."""
    if other.agent == use.agent and (other.plain or other.tensor):
        return ""  # its own, and done in program order
    if other.tensor and (other.fenced is None or agent.clock[other.agent] < other.fenced):
        return "tcgen05.fence::before_thread_sync behind that, before telling others"
    if (use.tensor or use.pipe) and (agent.seen is None or not other.known(agent.seen)):
        return "tcgen05.fence::after_thread_sync before this, after waiting"
    return ""


def from_gmem(agent: Agent, do: Do, access: Access, address: Integers, taken: Booleans) -> Values:
    """Return elements of an operand, ``outside`` for those that a guard takes away."""
    array = agent.cta.cluster.run.arrays[access.buffer.name]
    if array.output:
        text = f"reads the output {access.buffer.name}, which others write; keep it on chip"
        agent.cta.cluster.find("race", agent, do, text, access.buffer.name)
    outside = agent.cta.cluster.run.algebra.number(access.outside)
    return np.where(taken, array.flat[np.where(taken, address, 0)], outside)


def to_gmem(agent: Agent, do: Do, address: Integers, values: Values, threads: Integers) -> None:
    """Store or add elements of the output."""
    cluster, name = agent.cta.cluster, do.write.buffer.name
    array = cluster.run.arrays[name]
    if not address.size:
        return
    if not array.output:
        cluster.find("written_input", agent, do, f"writes the input {name}; write the output")
        return
    if do.instruction.atomic:
        if not array.zeroed:
            text = "adds to an output that nobody cleared; set zeroed"
            cluster.find("red_not_zeroed", agent, do, text)
        again = array.add(address, values, threads)
    else:
        again = array.store(address, values, threads)
    if again is not None:
        cell = f"{name}[{address[again]}]"
        text = f"writes {cell}, which is written already; let one thread store it, or all add"
        cluster.find("written_twice", agent, do, text, cell)
