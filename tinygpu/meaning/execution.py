"""One statement at work: a ``Do`` by the threads of an agent, on NumPy arrays.

NumPy works on all threads and values of a ``Do`` at once, shape (values, threads).  Of a tile,
whose registers a fragment shares out, an agent has the values that its threads hold, shape
(values, 1).  Where a value reads a register that an earlier one writes, the statement is cut there,
since values are taken in order.

Every cell on chip holds, beside its value, the ring index at which it was written.  What a read
finds there is compared with the index that it asks for: another one is *stale*, none is unwritten.
Numbers are held in float64 and rounded to the type of the buffer after every instruction.

A ``cp.async`` reads at its issue and lands at once, at the wait that covers it, or in between.

Source: ``docs/model.md``, section "Terms"; PTX ISA 9, 9.7.9.25 (cp.async).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tinygpu.errors import ProgramError
from tinygpu.isa.algebra import Algebra
from tinygpu.isa.instructions import GROUPS
from tinygpu.isa.mma_sync import products
from tinygpu.meaning.cluster import Agent, InFlight, Registers, Run
from tinygpu.meaning.race import UNWRITTEN, Cells, Kind, Shared, Use
from tinygpu.meaning.touched import CellFault, Touched, compared, extent
from tinygpu.numbers import Booleans, Floats, Integers, Number
from tinygpu.term.program import Access, Do

__all__ = [
    "TOGETHER", "claim", "execute", "folded", "from_gmem", "in_warps", "is_warps",
    "place_of", "stage_of", "stale", "tile_of", "to_gmem", "who_of",
]  # fmt: skip

_ONE = np.zeros(1, np.int64)
_WARP = 32
_LATE = tuple(name for name, group in GROUPS.items() if group.holds)


@dataclass(frozen=True, slots=True, eq=False)
class Who:
    """Which threads of an agent execute a Do, and on which values of a tile.

    ``numbers`` are the threads whose coordinates are asked for, ``key`` stands for them.
    ``threads``: whose each value is.
    ``mine``: positions of the threads among the agent's, if they are not all.
    """

    numbers: Integers
    key: object
    threads: Integers
    mine: Integers | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """What an access touches of a stage, or of an operand: (values, threads).

    ``cells``, ``threads``: what is ``taken``, in one row.  ``left``: lines that are not loaded.
    """

    cell: Integers
    taken: Booleans
    every: bool
    cells: Integers
    threads: Integers
    faults: tuple[CellFault, ...]
    left: Booleans | bool = False


# Where an access is


TOGETHER = Who(_ONE, "tile", _ONE[:, None])


def who_of(agent: Agent, do: Do, env: Mapping[str, int]) -> Who:
    """Return which threads execute a Do, and on which values."""
    known = agent.cta.cluster.run.known
    if not do.of_tile:
        key: object = (agent.key, do.lanes)
        if key not in known:
            mine, numbers = None, agent.threads
            if do.lanes is not None:
                below, period, residue = do.lanes
                mine = np.flatnonzero(numbers // below % period == residue)
                numbers = numbers[mine]
            known[key] = Who(numbers, key, numbers[None, :], mine=mine)
        who: Who = known[key]
        return who
    return TOGETHER


def place_of(agent: Agent, do: Do, access: Access, env: Mapping[str, int], who: Who) -> Selection:
    """Return what an access touches of a stage on chip, or of an operand."""
    place: Selection
    run, asked = agent.cta.cluster.run, "tile" if who.numbers is _ONE else who.key
    if access.buffer.level == "gmem":
        place = _placed(run.touch.gmem(do, access, who.numbers, asked, env), who)
    else:
        key = (id(do), id(access), who.key, *(o.evaluate(env) for o in access.origin))
        if key not in run.known:
            buffer = access.buffer
            tile = asked == "tile" and not do.threads
            if tile and buffer.level == "registers":
                raise ProgramError(f"{do}: {buffer.name} is each thread's own; tiles lie in memory")
            touched = run.touch.on_chip(do, access, who.numbers, asked, env)
            run.known[key] = _placed(touched, who)
        place = run.known[key]
    for fault in place.faults:
        thread = None if asked == "tile" else fault.thread
        agent.cta.cluster.find(fault.kind, agent, do, fault.text, fault.cell, thread=thread)
    return place


def _placed(touched: Touched, who: Who) -> Selection:
    cell, taken, left = touched.cell, touched.taken, touched.left
    if cell.shape[1] < who.threads.shape[1]:  # registers: each thread's are like the first's
        return Selection(cell, taken, True, _ONE[:0], _ONE[:0], touched.faults)
    threads = np.broadcast_to(who.threads, taken.shape)
    return Selection(
        cell, taken, bool(taken.all()), cell[taken], threads[taken], touched.faults, left
    )


def tile_of(agent: Agent, do: Do, access: Access, env: Mapping[str, int]) -> tuple[Selection, Do]:
    """Return the tile of an access, by threads together, and the Do on the modes it moves along."""
    key, known = (id(do), id(access), "narrow"), agent.cta.cluster.run.known
    if key not in known:
        modes = zip(do.values, access.value, strict=True)
        known[key] = replace(do, values=tuple(v if any(steps) else 1 for v, steps in modes))
    return place_of(agent, known[key], access, env, TOGETHER), known[key]


def stage_of(access: Access, env: Mapping[str, int]) -> int:
    """Return the stage of a ring that an access means."""
    stage: int = access.index.evaluate(env) % int(access.buffer.stages)
    return stage


# What is found there


def claim(memory: Shared, stage: int, use: Use, *, keep: bool = True) -> None:
    """Find who else may be using these cells now; remember the use (``keep``)."""
    agent = use.agent
    assert isinstance(agent, Agent)
    if not use.cells.size:
        return
    cluster, clock, name = agent.cta.cluster, agent.clock.tolist(), memory.buffer.name
    for other, found, missing in memory.conflicts(stage, use, clock):
        cell = f"{name}[{found}]"
        kind: Kind = "race"
        thread, whose = use.thread_at(found), other.thread_at(found)
        text = f"touches {cell}, and nothing says that this is done there: {other.do}; put a"
        text += " barrier between, or wait"
        if missing:
            kind, text = "unfenced", f"touches {cell}, used by {other.do}; put {missing}"
        elif other.agent is agent and other.plain and not other.done and whose == thread:
            kind = "unwaited"
            text = f"touches {cell}, where its own copy may be in flight: {other.do}; wait for it"
        cluster.find(kind, agent, use.do, text, cell, str(other.do), thread=thread)
    if use.writes and (twice := memory.twice(use)) is not None:
        cell = f"{name}[{twice}]"
        text = f"writes {cell} twice; give each value a cell of its own"
        cluster.find("race", agent, use.do, text, cell, str(use.do))
    if keep:
        memory.remember(stage, use, clock, cluster.live)


def stale(
    agent: Agent,
    do: Do,
    memory: Shared | Registers,
    stage: int,
    at: Cells,
    want: int,
    *,
    cells: Integers | None = None,
    threads: Integers | None = None,
    taken: Booleans | None = None,
) -> None:
    """Find what was not written at the index that is asked for, ``at`` these places of a stage.

    ``cells``, ``threads``: what the places are called and whose they are; ``taken``: which count.
    """
    found = memory.index[stage][at]
    bad = found != want
    if taken is not None:
        bad = bad & taken
    if not bad.any():
        return
    where = int(bad.argmax())
    number = np.broadcast_to(at if cells is None else cells, bad.shape).flat[where]
    thread = None if threads is None else int(np.broadcast_to(threads, bad.shape).flat[where])
    cell, index = f"{memory.buffer.name}[{number}]", int(found.flat[where])
    kind: Kind = "stale"
    text = f"reads {cell} at index {want}, but there is {index}; add a stage or wait"
    if index == UNWRITTEN:
        kind = "unwritten_read"
        text = f"reads {cell} at index {want}, which nobody has written; write it before"
    agent.cta.cluster.find(kind, agent, do, text, cell, thread=thread)


def from_gmem(
    agent: Agent,
    do: Do,
    access: Access,
    cell: Integers,
    taken: Booleans,
    threads: Integers | int = 0,
) -> Floats:
    """Return elements of an operand, ``outside`` for those that a guard takes away."""
    run, name = agent.cta.cluster.run, access.buffer.name
    array = run.arrays[name]
    if array.output and taken.any():
        address = cell[taken]
        mine = np.broadcast_to(threads, cell.shape)[taken]
        if seen := array.unseen(address, mine + agent.first_in_grid):
            kind, at = seen
            text = "reads of the output what another thread writes, or none; keep it in registers"
            where = f"{name}[{address[at]}]"
            agent.cta.cluster.find(kind, agent, do, text, where, thread=int(mine[at]))
    outside = run.algebra.number(access.outside)
    return np.where(taken, array.flat[np.where(taken, cell, 0)], outside)


def to_gmem(agent: Agent, do: Do, address: Integers, values: Floats, threads: Integers) -> None:
    """Store or add elements of the output, by these threads of the copy."""
    cluster, name = agent.cta.cluster, do.write.buffer.name
    array = cluster.run.arrays[name]
    if not address.size:
        return
    thread = int(threads[0])
    if not array.output:
        text = f"writes the input {name}; write the output"
        cluster.find("written_input", agent, do, text, thread=thread)
        return
    numbers = threads + agent.first_in_grid
    if do.instruction.atomic:
        if not array.zeroed:
            text = "adds to an output that nobody cleared; set zeroed"
            cluster.find("red_not_zeroed", agent, do, text, thread=thread)
        again = array.add(address, values, numbers)
    else:
        again = array.store(address, values, numbers)
    if again is not None:
        cell = f"{name}[{address[again]}]"
        text = f"writes {cell}, which is written already; let one thread store it, or all add"
        cluster.find("written_twice", agent, do, text, cell, thread=int(threads[again]))


# The statement


@dataclass(frozen=True, slots=True, eq=False)
class _Spot:
    """An access at work: where it is, what holds it; ``wanted``: the index that it asks for."""

    access: Access
    place: Selection
    memory: Shared | Registers | None
    stage: int
    wanted: int
    who: Who

    def at(self, low: int, high: int) -> Cells:
        """Return where values are in a stage."""
        cell = self.place.cell[low:high]
        if isinstance(self.memory, Registers):
            return cell[:, 0] if self.who.mine is None else np.ix_(cell[:, 0], self.who.mine)
        return cell


def execute(agent: Agent, do: Do, env: Mapping[str, int]) -> None:
    """Execute a Do by an agent's threads: read, compute, round, write."""
    run = agent.cta.cluster.run
    who = who_of(agent, do, env)
    if not who.threads.size or not extent(do.values):
        return
    spots = [_spot(agent, do, access, env, who) for access in do.accesses]
    use = None
    for spot in spots:
        use = _touch(agent, do, spot, writes=spot is spots[-1])
    cuts = _cuts(run, do, spots, extent(do.values))
    for low, high in pairwise(cuts):
        reads = iter(spots)
        arguments = [
            _read(agent, do, next(reads), low, high)
            if isinstance(source, Access)
            else run.given(source, do.write.buffer.type)
            for source in do.reads
        ]
        rounded = _result(agent, do, arguments, who.numbers)
        shape = high - low, who.threads.shape[1]
        if rounded.shape != shape:
            rounded = np.broadcast_to(rounded, shape)
        if do.where is None:
            _write(agent, do, spots[-1], rounded, low, high, use)
        else:
            _write_where(do, spots[-1], rounded, (low, high), env)


def _spot(agent: Agent, do: Do, access: Access, env: Mapping[str, int], who: Who) -> _Spot:
    buffer, place = access.buffer, place_of(agent, do, access, env, who)
    if buffer.level == "gmem":
        return _Spot(access, place, None, 0, 0, who)
    index: int = access.index.evaluate(env)
    memory: Shared | Registers
    if buffer.level == "registers":
        memory = agent.registers[buffer.name]
    else:
        cta = agent.cta.home(buffer, access.peer) if access is do.write else agent.cta
        memory = cta.memory(agent, buffer)
    return _Spot(access, place, memory, index % int(buffer.stages), index, who)


def _touch(agent: Agent, do: Do, spot: _Spot, *, writes: bool) -> Use | None:
    """Note that the agent uses these cells, and find who else does; return the use of smem."""
    buffer, cluster = spot.access.buffer, agent.cta.cluster
    if isinstance(spot.memory, Registers):
        agent.ready.discard(buffer.name)
        for flight in (f for g in _LATE if agent.team.late for f in agent.under_way(g)):
            if flight.holds(buffer.name, spot.stage, spot.place.cell, writes=writes):
                text = f"touches {buffer.name} while {flight.do} may be under way; wait for it"
                cluster.find("unwaited", agent, do, text, buffer.name, str(flight.do))
                spot.memory.value[spot.stage][spot.at(0, len(spot.place.cell))] = np.nan
                break
    if not isinstance(spot.memory, Shared):
        return None
    home = agent.cta.home(buffer, spot.access.peer)
    if writes and home is not agent.cta and home.exited:
        text = f"writes into CTA {home.rank}, which has exited; keep it there by barrier.cluster"
        cluster.find("exited", agent, do, text, buffer.name)
    use = Use(do, agent, spot.place.cells, spot.place.threads, writes)
    if not writes or do.joins is None:
        agent.complete(use)
    claim(spot.memory, spot.stage, use)
    return use


def _cuts(run: Run, do: Do, spots: list[_Spot], size: int) -> list[int]:
    """Return where the values have to be cut: before a read of what the same part writes."""
    *sources, target = spots
    same = [s for s in sources if s.memory is target.memory and s.stage == target.stage]
    if not isinstance(target.memory, Registers) or not same or do.instruction.warp_product:
        return [0, size]
    cells = [s.place.cell for s in (target, *same)]
    key = ("cuts", *map(id, cells))  # which places keep
    if key not in run.known:
        edges, written = [0], set[int]()
        for v, (into, *others) in enumerate(zip(*(c[:, 0].tolist() for c in cells), strict=True)):
            if not written.isdisjoint(others):
                edges.append(v)
                written = set()
            written.add(into)
        run.known[key] = [*edges, size]
    found: list[int] = run.known[key]
    return found


def _read(agent: Agent, do: Do, spot: _Spot, low: int, high: int) -> Floats:
    """Return the values of a part, NaN or what stands outside where there are none."""
    place = spot.place
    taken = place.taken[low:high]
    if spot.memory is None:
        threads = spot.who.threads
        return from_gmem(agent, do, spot.access, place.cell[low:high], taken, threads)
    at, some = spot.at(low, high), None if place.every else taken
    stale(agent, do, spot.memory, spot.stage, at, spot.wanted, cells=place.cell[low:high],
          threads=spot.who.threads, taken=some)  # fmt: skip
    values: Floats = spot.memory.value[spot.stage][at]
    return values if some is None else np.where(some, values, np.nan)


def _write(
    agent: Agent, do: Do, spot: _Spot, values: Floats, low: int, high: int, use: Use | None
) -> None:
    place, memory, stage, index = spot.place, spot.memory, spot.stage, spot.wanted
    if memory is None:
        to_gmem(agent, do, place.cells, values[place.taken], place.threads)
    elif use is not None and not use.done:
        kept = values[place.taken]
        memory.value[stage][place.cells] = np.nan
        copy = InFlight(
            do,
            lambda: memory.put(stage, place.cells, kept, index),
            [use],
            threads=place.threads,
        )
        agent.launch(do, copy)
    elif place.every:
        memory.put(stage, spot.at(low, high), values, index)
    else:
        taken = place.taken[low:high]
        memory.put(stage, place.cell[low:high][taken], values[taken], index)


def _write_where(
    do: Do, spot: _Spot, values: Floats, part: tuple[int, int], env: Mapping[str, int]
) -> None:
    """Write those values of a part of which the predicate holds, to registers."""
    where, who = do.where, spot.who
    assert where is not None
    assert spot.memory is not None
    number = compared(do, who.numbers)[slice(*part)] + where.origin.evaluate(env)
    value, thread = np.nonzero(number < where.bound.evaluate(env))
    cell = spot.place.cell[slice(*part), 0][value]
    own = thread if who.mine is None else who.mine[thread]
    spot.memory.put(spot.stage, (cell, own), values[value, thread], spot.wanted)


def in_warps(agents: Sequence[Agent], do: Do, env: Mapping[str, int]) -> None:
    """Execute what lanes do together, by the agents that share warps, all of which are there."""
    sides = [[_spot(a, do, x, env, who_of(a, do, env)) for x in do.accesses] for a in agents]
    for agent, spots in zip(agents, sides, strict=True):
        for spot in spots:
            _touch(agent, do, spot, writes=spot is spots[-1])
    size, numbers = extent(do.values), np.concatenate([a.threads for a in agents])
    order, found = np.argsort(numbers), np.empty((size, numbers.size))
    reads = zip(*(spots[:-1] for spots in sides), strict=True)
    arguments = []
    for source in do.reads:
        if not isinstance(source, Access):
            arguments.append(agents[0].cta.cluster.run.given(source, do.write.buffer.type))
            continue
        parts = [_read(a, do, s, 0, size) for a, s in zip(agents, next(reads), strict=True)]
        arguments.append(np.concatenate(parts, axis=1)[:, order])
    found[:, order] = _result(agents[0], do, arguments, numbers[order])
    first = 0
    for agent, spots in zip(agents, sides, strict=True):
        mine = found[:, first : first + agent.threads.size]
        _write(agent, do, spots[-1], mine, 0, size, None)
        first += agent.threads.size


def _result(agent: Agent, do: Do, arguments: Sequence[Floats], numbers: Integers) -> Floats:
    """Return what threads of these numbers make of what they read, rounded."""
    run, how = agent.cta.cluster.run, do.instruction
    if how.warp_product:
        blocks = how.blocks_of(do.accesses[0].buffer.dtype)
        result: Number = products(blocks, do.values, *arguments, algebra=run.algebra)
    else:
        result = do.result(*arguments, algebra=run.algebra)
    rounded = np.asarray(run.algebra.round(do.write.buffer.type, np.asarray(result)), float)
    return _shuffled(agent, do, numbers, rounded) if how.crosses else rounded


def is_warps(numbers: Integers) -> bool:
    """Whether threads are whole warps, in order."""
    whole = numbers.size % _WARP == 0 and bool((np.diff(numbers) == 1).all())
    return whole and int(numbers[0]) % _WARP == 0


def folded(do: Do, values: Floats, algebra: Algebra) -> Floats:
    """Return what the lanes of whole warps, the last axis, make together of their values."""
    lanes = values.reshape(*values.shape[:-1], -1, _WARP)
    operator, whole = algebra.operators[do.instruction.folds], lanes[..., 0]
    for lane in range(1, _WARP):
        whole = operator(whole, lanes[..., lane])
    result: Floats = np.repeat(whole, _WARP, axis=-1)
    return result


def _shuffled(agent: Agent, do: Do, numbers: Integers, values: Floats) -> Floats:
    """Return what lanes get of one another: the values of those ``across``, or a fold."""
    if do.instruction.folds and is_warps(numbers):
        held = np.broadcast_to(values, (len(values), numbers.size))
        return folded(do, held, agent.cta.cluster.run.algebra)
    if do.instruction.folds:
        text = "folds a warp of which some lanes are not there; let all take part"
        agent.cta.cluster.find("shuffle", agent, do, text, thread=int(numbers[0]))
        return np.full((len(values), numbers.size), np.nan)
    partner = numbers ^ int(do.across)
    at = np.searchsorted(numbers, partner).clip(0, numbers.size - 1)
    lost = (numbers[at] != partner) | (partner // _WARP != numbers // _WARP)
    if lost.any():
        thread, other = (int(x[lost.argmax()]) for x in (numbers, partner))
        text = f"reads thread {other}, which is not there; let all lanes of a warp take part"
        agent.cta.cluster.find("shuffle", agent, do, text, thread=thread)
    return np.where(lost, np.nan, np.broadcast_to(values, (len(values), at.size))[:, at])
