"""tcgen05 at work: products into tensor memory, commits, and what takes sums out again.

What one thread issues, products, copies and commits, stands in its *queue*.  A product and a commit
are done after all before them; a copy (tcgen05.cp), which may fill what a product reads, waits for
nothing.  A product
reads its stages and adds up when it lands; in a pair it does so in both CTAs, each with its own
first input and the second inputs of both.  A commit, when all before it is done, arrives at its
mbarriers: whoever passes a wait for that phase knows of those products.  tcgen05.ld and st move
their registers at some time before tcgen05.wait; until then the registers are poisoned.

An agent's tcgen05 instructions see what it knew at its last ``tcgen05.fence::after_thread_sync``,
and others know of its ld and st once it has executed ``tcgen05.fence::before_thread_sync``.

Source: PTX ISA 9, "Memory Consistency Model for 5th generation of TensorCore operations".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tinygpu.cluster import Agent, Cta, Mbarrier, Registers, Shared, Use
from tinygpu.errors import ProgramError
from tinygpu.program import Access, Arrive, Do
from tinygpu.race import UNWRITTEN, Integers
from tinygpu.tile_access import along, cells_of, claim, home_of, mbarrier_of, narrowed, stale

__all__ = [
    "Commitment",
    "Copying",
    "Multiplication",
    "Transfer",
    "commit",
    "copy",
    "multiply",
    "released",
    "transfer",
]

Values = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class Multiplication:
    """A tcgen05.mma under way: in order with what its thread has issued."""

    agent: Agent
    do: Do
    env: Mapping[str, int]

    @property
    def may_land(self) -> bool:
        """Whether all before it is done."""
        return self.agent.queue[0] is self

    def land(self) -> None:
        """Multiply and add in every CTA of the pair."""
        agent, do, algebra = self.agent, self.do, self.agent.cta.cluster.run.algebra
        agent.queue.pop(0)
        ctas = along(agent.cta, do.multicast)
        x, y = do.reads[:2]
        second = np.concatenate([self._factor(cta, y) for cta in ctas])
        write = do.write
        cells = cells_of(agent, narrowed(agent, do, write), write, self.env)[0][:, 0]
        index = write.index.evaluate(self.env)
        anew = do.fresh is not None and do.fresh.evaluate(self.env) == 0
        for cta in ctas:
            total = algebra.contract(np.matmul, self._factor(cta, x), second.T).reshape(-1)
            memory = cta.memory(agent, write.buffer)
            if not anew:
                stale(agent, do, write.buffer.name, cells, memory.index[cells], index)
                total = algebra.operators["add"](total, memory.value[cells])
            memory.value[cells] = algebra.round(write.buffer.type, total)
            memory.index[cells] = index

    def _factor(self, cta: Cta, read: object) -> Values:
        """Return a factor's tile in a CTA, (rows or columns, k)."""
        assert isinstance(read, Access)
        narrow = narrowed(self.agent, self.do, read)
        cells, taken = cells_of(self.agent, narrow, read, self.env)
        held, index = cta.memory(self.agent, read.buffer), read.index.evaluate(self.env)
        stale(self.agent, self.do, read.buffer.name, cells[taken], held.index[cells[taken]], index)
        values = np.where(taken, held.value[cells], np.nan)
        return np.asarray(values.reshape(-1, int(narrow.values[0])))


@dataclass(slots=True, eq=False)
class Copying:
    """A tcgen05.cp under way: at any time, but before the products issued after it."""

    agent: Agent
    do: Do
    env: Mapping[str, int]
    may_land: bool = True

    def land(self) -> None:
        """Move the tile."""
        agent, do, (read,), write = self.agent, self.do, self.do.reads, self.do.write
        assert isinstance(read, Access)
        agent.queue.remove(self)
        source, target = (agent.cta.memory(agent, a.buffer) for a in (read, write))
        cells = cells_of(agent, do, read, self.env)[0]
        places = cells_of(agent, do, write, self.env)[0]
        index = read.index.evaluate(self.env)
        stale(agent, do, read.buffer.name, cells, source.index[cells], index)
        algebra = agent.cta.cluster.run.algebra
        target.value[places] = algebra.round(write.buffer.type, source.value[cells])
        target.index[places] = write.index.evaluate(self.env)


@dataclass(slots=True, eq=False)
class Commitment:
    """A tcgen05.commit under way."""

    agent: Agent
    statement: Arrive
    targets: list[tuple[Cta, Mbarrier]]
    uses: list[Use]
    clock: Integers

    @property
    def may_land(self) -> bool:
        """Whether all before it is done."""
        return self.agent.queue[0] is self

    def land(self) -> None:
        """Arrive at each mbarrier."""
        self.agent.queue.pop(0)
        cluster = self.agent.cta.cluster
        for cta, barrier in self.targets:
            if cta.exited:
                text = f"in CTA {cta.rank}, which has exited; keep it there by barrier.cluster"
                cluster.find("exited", self.agent, self.statement, text)
            for use in self.uses:
                if not any(column == barrier.column for column, _ in use.done):
                    use.done.append((barrier.column, barrier.phase + 1))
            if not barrier.arrive(1, 0, self.clock):
                text = f"in CTA {cta.rank} is more than the {barrier.arrivals} that its phase takes"
                cluster.find("unbalanced", self.agent, self.statement, f"{text}; count them")


@dataclass(slots=True, eq=False)
class Transfer:
    """A tcgen05.ld or st by an agent's threads, between registers and tensor memory."""

    agent: Agent
    do: Do
    shared: Shared
    cells: Integers
    name: str
    registers: Integers
    indices: tuple[int, int]  # of what it reads, of what it writes
    uses: tuple[Use, ...]
    may_land: bool = True

    def holds(self, name: str, cells: Integers, *, writes: bool) -> bool:
        """Whether it uses these registers: writes them, or is in the way of who does."""
        loads = self.do.write.buffer.level == "registers"
        mine = name == self.name and (loads or writes)
        return mine and bool(np.isin(cells, self.registers).any())

    def land(self) -> None:
        """Move the values."""
        held = self.agent.team.registers[self.name]
        ends: list[tuple[Shared | Registers, Integers]]
        ends = [(self.shared, self.cells), (held, self.registers)]
        if self.do.write.buffer.level == "tmem":
            ends.reverse()
        (source, cells), (target, places) = ends
        read, written = self.indices
        stale(self.agent, self.do, source.buffer.name, cells, source.index[cells], read)
        target.value[places], target.index[places] = source.value[cells], written


def multiply(agent: Agent, do: Do, env: Mapping[str, int]) -> None:
    """Issue a tcgen05.mma.  Raises ProgramError where its factors are no tiles."""
    ctas = along(agent.cta, do.multicast)
    if int(do.values[3]) != len(ctas):
        raise ProgramError(f"{do}: columns of {do.values[3]} CTAs, and {len(ctas)} multiply")
    product = Multiplication(agent, do, env)
    agent.queue.append(product)
    for access in (*do.reads[:2], do.write):
        if not isinstance(access, Access):
            raise ProgramError(f"{do}: a product's factors are tiles; name buffers")
        cells, taken = cells_of(agent, narrowed(agent, do, access), access, env)
        index = access.index.evaluate(env)
        stage = index % int(access.buffer.stages)
        place = (index, *(o.evaluate(env) for o in access.origin))
        for cta in ctas:
            memory = cta.memory(agent, access.buffer)
            writes = access is do.write
            use = Use(do, cells[taken], agent.number, writes, False, [], pipe=agent)
            key = (id(memory), id(access), place)
            keep = key not in agent.opened
            claim(agent, memory, stage, use, keep=keep)
            if keep:
                agent.opened[key] = use
    agent.cta.cluster.launch(product)


def copy(agent: Agent, do: Do, env: Mapping[str, int]) -> None:
    """Issue a tcgen05.cp.  Raises ProgramError where it does not copy a tile."""
    for access in (*do.reads, do.write):
        if not isinstance(access, Access):
            raise ProgramError(f"{do}: it copies a tile of shared memory; name a buffer")
        cells, taken = cells_of(agent, do, access, env)
        memory, writes = agent.cta.memory(agent, access.buffer), access is do.write
        stage = access.index.evaluate(env) % int(access.buffer.stages)
        use = Use(do, cells[taken], agent.number, writes, False, [], pipe=agent, copies=True)
        claim(agent, memory, stage, use)
        agent.opened[id(memory), id(access), id(use)] = use
    flight = Copying(agent, do, env)
    agent.queue.append(flight)
    agent.cta.cluster.launch(flight)


def commit(agent: Agent, arrive: Arrive, env: Mapping[str, int]) -> None:
    """Issue a tcgen05.commit."""
    cluster = agent.cta.cluster
    ctas = cluster.ctas if arrive.to == "cluster" else along(agent.cta, arrive.to)
    homes = [home_of(cta, arrive.barrier) for cta in ctas]
    targets = [(cta, mbarrier_of(cta, arrive.barrier, arrive.index, env)) for cta in homes]
    agent.issued_uses += agent.opened.values()
    agent.opened = {}
    known = cluster.known.shape[1]
    agent.issued_uses = agent.issued_uses[-_REMEMBERED * known :]
    flight = Commitment(agent, arrive, targets, list(agent.issued_uses), agent.clock.copy())
    agent.queue.append(flight)
    cluster.launch(flight)


_REMEMBERED = 4  # uses for each column of knowledge: as many as mbarriers can tell of


def transfer(agent: Agent, do: Do, env: Mapping[str, int]) -> None:
    """Issue a tcgen05.ld or st on the lanes of an agent's threads."""
    (source,) = do.reads
    if not isinstance(source, Access):
        raise ProgramError(f"{do}: it moves between registers and tensor memory; name buffers")
    loads = do.write.buffer.level == "registers"
    held, other = (do.write, source) if loads else (source, do.write)
    mine, taken = cells_of(agent, do, held, env)
    registers = agent.team.registers[held.buffer.name]
    cells, there = cells_of(agent, do, other, env)
    if registers.owner is None:
        raise ProgramError(f"{do}: {held.buffer.name} is no fragment; rows lie in one")
    owner = registers.owner[mine % int(held.buffer.stage_elements)]
    own = taken & there & ((owner == 0) == agent.leader)
    mine, cells = mine[own], cells[own]
    index, at = held.index.evaluate(env), other.index.evaluate(env)
    memory, stage = agent.cta.memory(agent, other.buffer), at % int(other.buffer.stages)
    use = Use(do, cells, agent.number, not loads, False, [], tensor=True)
    claim(agent, memory, stage, use)
    for flight in [f for g in ("tcgen05.ld", "tcgen05.st") for f in agent.under_way(g)]:
        if flight.holds(held.buffer.name, mine, writes=loads):
            text = f"touches {held.buffer.name} while {flight.do} may be under way; tcgen05.wait"
            agent.cta.cluster.find("unwaited", agent, do, text, held.buffer.name, str(flight.do))
    into: Shared | Registers = registers if loads else memory
    places = mine if loads else cells
    into.value[places], into.index[places] = np.nan, UNWRITTEN
    indices = (at, index) if loads else (index, at)
    flight = Transfer(agent, do, memory, cells, held.buffer.name, mine, indices, (use,))
    agent.open["tcgen05.ld" if loads else "tcgen05.st"].append(flight)
    agent.cta.cluster.launch(flight)


def released(agent: Agent) -> None:
    """Find what a CTA's first thread, which leaves, does not know to be done in tensor memory."""
    for (name, _), memory in agent.cta.shared.items():
        if memory.buffer.level != "tmem":
            continue
        for use in (u for stage in memory.uses for u in stage):
            if not use.known(agent.clock):
                text = f"may be under way in {name} when that is released; let all come to a"
                text += " barrier of the CTA or the cluster at the end"
                agent.cta.cluster.find("exited", agent, use.do, text, name)
                return
