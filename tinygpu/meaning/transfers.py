"""Asynchronous operations at work: TMA, wgmma, tcgen05, and arrivals at mbarriers.

What is under way lands when the scheduler lets it.  A TMA load writes its stage then, which is NaN
before; a store reads its stage and later writes global memory.  A wgmma is issued when all agents
of a team have come to it; products of a team start in order.  Sums are rounded to their type after
each instruction (16 steps of k).

What one thread issues of tcgen05 stands in its *queue*.  A product and a commit are done after all
before them; a copy (tcgen05.cp), which may fill what a product reads, waits for nothing.  A product
of a pair of CTAs adds up in both, each with its own first input and the second inputs of both.  A
commit, when all before it is done, arrives at its mbarriers: whoever passes a wait for that phase
knows of those products.  tcgen05.ld and st move their registers at some time before tcgen05.wait;
until then what they write is poisoned.

Source: PTX ISA 9, 9.7.9 (data movement), 9.7.15 (wgmma), "Memory Consistency Model for 5th
generation of TensorCore operations".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

import numpy as np

from tinygpu.errors import ProgramError
from tinygpu.isa.instructions import GROUPS
from tinygpu.isa.wgmma import joined, rows_of
from tinygpu.meaning.cluster import Agent, Cta, InFlight, Mbarrier, Registers
from tinygpu.meaning.execution import (
    TOGETHER,
    claim,
    execute,
    from_gmem,
    place_of,
    stage_of,
    stale,
    tile_of,
    to_gmem,
    who_of,
)
from tinygpu.meaning.race import UNWRITTEN, Cells, Shared, Use
from tinygpu.meaning.touched import extent
from tinygpu.numbers import Floats
from tinygpu.term.digits import depth_modes, held_factor, spans, together
from tinygpu.term.program import Access, Arrive, Do

__all__ = ["arrive", "released", "start"]

Env = Mapping[str, int]
_REMEMBERED = 4  # uses for each column of knowledge: as many as mbarriers can tell of


def start(agent: Agent, do: Do, env: Env) -> None:
    """Execute a Do by an agent, or issue it, at the variables' values ``env``.

    Raises ProgramError where what it moves or multiplies is no tile.
    """
    if any(not isinstance(r, Access) for r in do.reads) and do.instruction.issuer != "thread":
        raise ProgramError(f"{do}: it works on tiles; name buffers")
    match do.instruction.completion:
        case "mbarrier":
            _load(agent, do, env)
        case "bulk_group":
            _store(agent, do, env)
        case "wgmma_group":
            _multiply(agent, do, env)
        case "tcgen05_commit" if do.instruction.unit == "tensor":
            _multiply_in_tensor_memory(agent, do, env)
        case "tcgen05_commit":
            _copy(agent, do, env)
        case "tcgen05_wait":
            _transfer(agent, do, env)
        case _:
            execute(agent, do, env)


# TMA and arrivals


def _load(agent: Agent, do: Do, env: Env) -> None:
    """Issue a TMA load, to every CTA that it goes to."""
    source, write = do.accesses
    cluster, stage = agent.cta.cluster, stage_of(write, env)
    if do.signal is None:
        raise ProgramError(f"{do}: a TMA load signals; name a barrier")
    signal, place, stage = (
        do.signal,
        place_of(agent, do, write, env, TOGETHER),
        stage_of(write, env),
    )
    given = place_of(agent, do, source, env, TOGETHER)
    values = from_gmem(agent, do, source, given.cell, given.taken)
    values = np.where(given.left, np.nan, values)[place.taken]
    size = extent(do.values) * write.buffer.type.bytes * agent.threads.size
    clock, index = agent.says, write.index.evaluate(env)

    def send(target: Cta) -> InFlight:
        memory = target.memory(agent, write.buffer)
        use = Use(do, agent, place.cells, None, writes=True, plain=False)
        claim(memory, stage, use)
        memory.put(stage, use.cells, np.nan, UNWRITTEN)
        barrier = target.home(signal[0]).mbarrier(*signal, env)

        def land() -> None:
            if target.exited:
                text = f"lands in CTA {target.rank}, which has exited; wait for it there"
                cluster.find("exited", agent, do, text)
            memory.put(stage, use.cells, values, index)
            use.done.append((barrier.column, barrier.phase + 1))
            barrier.land(size, clock)

        return InFlight(do, land, [use], alone=True)

    for target in agent.cta.along(do.multicast):
        cluster.launch(send(target))


def _store(agent: Agent, do: Do, env: Env) -> None:
    """Issue a TMA store: it reads its stage, then writes global memory."""
    source, target = do.accesses
    memory, stage = agent.cta.memory(agent, source.buffer), stage_of(source, env)
    place = place_of(agent, do, source, env, TOGETHER)
    use = Use(do, agent, place.cells, None, writes=False, plain=False)
    claim(memory, stage, use)
    into, index = place_of(agent, do, target, env, TOGETHER), source.index.evaluate(env)
    found: list[Floats] = []

    def read() -> None:
        if not found:
            stale(agent, do, memory, stage, place.cell, index)
            found.append(memory.value[stage][place.cell])

    def land() -> None:
        read()
        to_gmem(agent, do, into.cells, found[0][into.taken], into.threads)

    store = InFlight(do, land, [use], read=read)
    agent.launch(do, store)


def arrive(agent: Agent, statement: Arrive, env: Env) -> None:
    """Arrive at mbarriers: now at the own CTA's, later at another's or after a tcgen05.commit."""
    cluster, clock, after = agent.cta.cluster, agent.says, bool(statement.after)
    count = 1 if after else agent.threads.size
    expected = 0 if after else int(statement.bytes) * count
    uses = _committed(agent) if after else []

    def land_at(cta: Cta, barrier: Mbarrier) -> None:
        text = f"in CTA {cta.rank}"
        if cta.exited:
            left = f"{text}, which has exited; keep it there by barrier.cluster"
            cluster.find("exited", agent, statement, left)
        for use in uses:
            if not any(column == barrier.column for column, _ in use.done):
                use.done.append((barrier.column, barrier.phase + 1))
        if not barrier.arrive(count, expected, clock):
            text += f" is more than the {barrier.arrivals} that its phase takes; count them"
            cluster.find("unbalanced", agent, statement, text)

    homes = agent.cta.reached(statement)
    targets = [(cta, cta.mbarrier(statement.barrier, statement.index, env)) for cta in homes]
    if after:

        def land() -> None:
            for target in targets:
                land_at(*target)

        cluster.launch(InFlight(statement, land, queue=agent.queue, alone=True))
        return
    for cta, barrier in targets:
        if cta is agent.cta:
            land_at(cta, barrier)
        else:
            flight = InFlight(statement, partial(land_at, cta, barrier), alone=True)
            agent.sent.append(flight)
            cluster.launch(flight)


def _committed(agent: Agent) -> list[Use]:
    """Return the uses of what an agent has issued of tcgen05: the newest, if they are many."""
    agent.issued_uses += agent.opened.values()
    agent.opened = {}
    agent.issued_uses = agent.issued_uses[-_REMEMBERED * agent.cta.cluster.known.shape[1] :]
    return list(agent.issued_uses)


# Products of tiles


def _factor(agent: Agent, cta: Cta, do: Do, read: Access, env: Env) -> Floats:
    """Return a tile, an axis for each value mode, of length 1 where it does not depend on one."""
    place, narrow = tile_of(agent, do, read, env)
    name, stage = read.buffer.name, stage_of(read, env)
    own = read.buffer.level == "registers"
    memory: Shared | Registers = agent.registers[name] if own else cta.memory(agent, read.buffer)
    stale(agent, do, memory, stage, place.cell, read.index.evaluate(env), taken=place.taken)
    values: Floats = np.where(place.taken, memory.value[stage][place.cell], np.nan)
    return values.reshape(tuple(int(v) for v in narrow.values[::-1]))


def _add(
    agent: Agent, cta: Cta, memory: Shared | Registers, do: Do, product: Floats, env: Env
) -> None:
    """Add a product to sums, or start them anew; round."""
    algebra, write = agent.cta.cluster.run.algebra, do.write
    for access in (do.accesses[2], write):
        held = tile_of(agent, do, access, env)[0].cell.shape[0]
        if held != product.size:
            raise ProgramError(f"{do}: {product.size} sums in {held} cells; give each its own")
    if do.fresh is None or do.fresh.evaluate(env) != 0:
        before = _factor(agent, cta, do, do.accesses[2], env)
        product = algebra.operators["add"](product, before.reshape(-1))
    cells, stage = tile_of(agent, do, write, env)[0].cell[:, 0], stage_of(write, env)
    total = algebra.round(write.buffer.type, product)
    memory.put(stage, cells, total, write.index.evaluate(env))


def _held_rows(agent: Agent, do: Do, held: Access, env: Env) -> Floats:
    """Return a first factor, (rows, k), of what the threads of a team hold."""
    name, stage, index = held.buffer.name, stage_of(held, env), held.index.evaluate(env)
    cells = tile_of(agent, do, held, env)[0].cell[:, 0]
    found = np.empty((cells.size, sum(one.threads.size for one in agent.team.agents)))
    for one in agent.team.agents:
        own = one.registers[name]
        stale(one, do, own, stage, cells, index, cells=cells[:, None])
        found[:, one.threads] = own.value[stage][cells]
    rows: Floats = rows_of(found[..., None])[0]
    return rows


def _multiply(agent: Agent, do: Do, env: Env) -> None:
    """Issue a wgmma, or join in the one that others of the team have issued.

    What it reads and writes in registers nobody touches between its fence and a wait for it.
    """
    team, cta, name, held = agent.team, agent.cta, do.write.buffer.name, held_factor(do)
    for own in {name, *([held.buffer.name] if held else [])} - agent.ready:
        text = f"works on {own}, touched since the last wgmma.fence; put one between"
        cta.cluster.find("unfenced", agent, do, text, own)
    known, key = cta.cluster.run.known, ("together", id(do))
    if key not in known:
        known[key] = together(do), spans(do)
    whole: Do = known[key][0]
    factors = [
        (cta.memory(agent, r.buffer), stage_of(r, env), tile_of(agent, whole, r, env)[0].cells)
        for r in whole.accesses[:2]
        if r.buffer.level == "smem"
    ]
    uses = [Use(do, agent, cells, None, writes=False, plain=False) for _, _, cells in factors]
    first = agent.issued == len(team.issued)
    for (memory, stage, _), use in zip(factors, uses, strict=True):
        claim(memory, stage, use, keep=first)
    if first:
        algebra, write = cta.cluster.run.algebra, do.write
        cells, stage = tile_of(agent, do, write, env)[0].cell[:, 0], stage_of(write, env)
        shapes, index, depth = (
            known[key][1],
            write.index.evaluate(env),
            prod(map(int, do.values[: depth_modes(do)])),
        )

        def land() -> None:
            x, y = whole.accesses[:2]
            a = _held_rows(agent, do, held, env) if held else _factor(agent, cta, whole, x, env)
            b = _factor(agent, cta, whole, y, env)
            flat = algebra.contract(np.matmul, a.reshape(-1, depth), b.reshape(-1, depth).T)
            product = joined(flat, *shapes).reshape(-1, cells.size).T
            for one in team.agents:
                sums, mine = one.registers[name], product[:, one.threads]
                if do.fresh is None or do.fresh.evaluate(env) != 0:
                    stale(one, do, sums, stage, cells, index, cells=cells[:, None])
                    mine = algebra.operators["add"](mine, sums.value[stage][cells])
                sums.put(stage, cells, algebra.round(write.buffer.type, mine), index)

        touched = [(name, stage, cells[:, None], True)]
        if held:
            at = tile_of(agent, do, held, env)[0].cell
            touched.append((held.buffer.name, stage_of(held, env), at, True))
        flight = InFlight(
            do, land, uses, held=touched, queue=team.products, missing=len(team.agents)
        )
        team.issued.append(flight)
    flight = team.issued[agent.issued]
    agent.issued += 1
    flight.missing -= 1
    agent.launch(do, flight)


def _multiply_in_tensor_memory(agent: Agent, do: Do, env: Env) -> None:
    """Issue a tcgen05.mma."""
    ctas, algebra = agent.cta.along(do.multicast), agent.cta.cluster.run.algebra
    if int(do.values[3]) != len(ctas):
        raise ProgramError(f"{do}: columns of {do.values[3]} CTAs, and {len(ctas)} multiply")
    for access in (*do.accesses[:2], do.write):
        cells, stage = tile_of(agent, do, access, env)[0].cells, stage_of(access, env)
        at = (access.index.evaluate(env), *(o.evaluate(env) for o in access.origin))
        for cta in ctas:
            memory, writes = cta.memory(agent, access.buffer), access is do.write
            use = Use(do, agent, cells, None, writes, plain=False, pipe=agent)
            key = (id(memory), id(access), at)
            claim(memory, stage, use, keep=key not in agent.opened)
            agent.opened.setdefault(key, use)

    def land() -> None:
        depth = int(do.values[0])
        x, y = do.accesses[:2]
        second = [_factor(agent, cta, do, y, env).reshape(-1, depth) for cta in ctas]
        columns = np.concatenate(second).T
        for cta in ctas:
            rows = _factor(agent, cta, do, x, env).reshape(-1, depth)
            product = algebra.contract(np.matmul, rows, columns).reshape(-1)
            _add(agent, cta, cta.memory(agent, do.write.buffer), do, product, env)

    agent.cta.cluster.launch(InFlight(do, land, queue=agent.queue, alone=True))


# Tensor memory


def _copy(agent: Agent, do: Do, env: Env) -> None:
    """Issue a tcgen05.cp: done at any time, but before the products issued after it."""
    read, write = do.accesses
    ends = []
    for access in (read, write):
        memory, stage = agent.cta.memory(agent, access.buffer), stage_of(access, env)
        place, writes = place_of(agent, do, access, env, TOGETHER), access is write
        use = Use(do, agent, place.cells, None, writes, plain=False, pipe=agent, copies=True)
        claim(memory, stage, use)
        agent.opened[id(use)] = use
        ends.append((memory, stage, place.cell, access.index.evaluate(env)))
    cluster = agent.cta.cluster

    def land() -> None:
        (source, at, cells, index), (target, to, places, written) = ends
        stale(agent, do, source, at, cells, index)
        rounded = cluster.run.algebra.round(write.buffer.type, source.value[at][cells])
        target.put(to, places, rounded, written)

    cluster.launch(InFlight(do, land, queue=agent.queue, ordered=False, alone=True))


def _transfer(agent: Agent, do: Do, env: Env) -> None:
    """Issue a tcgen05.ld or st on the lanes of an agent's threads."""
    source, write = do.accesses
    loads = write.buffer.level == "registers"
    held, other = (write, source) if loads else (source, write)
    name, who = held.buffer.name, who_of(agent, do, env)
    if not who.threads.size:
        return
    mine, there = (place_of(agent, do, a, env, who) for a in (held, other))
    registers, stage = agent.registers[name], stage_of(held, env)
    memory, at = agent.cta.memory(agent, other.buffer), stage_of(other, env)
    use = Use(do, agent, there.cells, there.threads, not loads, plain=False, tensor=True)
    claim(memory, at, use)
    alike = [g for g in GROUPS.values() if g.completion == do.instruction.completion]
    for other_flight in [f for g in alike for f in agent.under_way(g.name)]:
        if other_flight.holds(name, stage, mine.cell, writes=loads):
            text = f"touches {name} while {other_flight.do} may be under way; tcgen05.wait"
            agent.cta.cluster.find("unwaited", agent, do, text, name, str(other_flight.do))
    own = np.arange(agent.threads.size) if who.mine is None else who.mine
    ends: list[tuple[Shared | Registers, int, Cells, int]] = [
        (memory, at, there.cell, other.index.evaluate(env)),
        (registers, stage, np.ix_(mine.cell[:, 0], own), held.index.evaluate(env)),
    ]
    (giver, given, cells, index), (taker, taken, places, written) = ends if loads else ends[::-1]
    taker.put(taken, places, np.nan, UNWRITTEN)

    def land() -> None:
        stale(agent, do, giver, given, cells, index, cells=there.cell)
        taker.put(taken, places, giver.value[given][cells], written)

    flight = InFlight(do, land, [use], held=[(name, stage, mine.cell, loads)])
    agent.launch(do, flight)


def released(agent: Agent) -> None:
    """Find what a CTA's first thread, which leaves, does not know to be done in tensor memory."""
    clock = agent.clock.tolist()
    for (name, _), memory in agent.cta.shared.items():
        for use in memory.uses() if memory.buffer.level == "tmem" else ():
            if not (use.known(clock) or (agent.alone and use.done_for(agent))):
                text = f"may be under way in {name} when that is released; let all come to a"
                text += " barrier of the CTA or the cluster at the end"
                agent.cta.cluster.find("exited", agent, use.do, text, name)
                return
