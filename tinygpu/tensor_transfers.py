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

from tinygpu.cluster import Agent, Cta, Mbarrier, Registers
from tinygpu.errors import ProgramError
from tinygpu.execution import TOGETHER, claim, place_of, stage_of, stale, tile_of, who_of
from tinygpu.program import Access, Arrive, Do
from tinygpu.race import UNWRITTEN, Integers, Shared, Use

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
End = tuple[Shared | Registers, int, Integers, int]


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
        ctas = agent.cta.along(do.multicast)
        x, y = do.reads[:2]
        second = np.concatenate([self._factor(cta, y) for cta in ctas])
        write = do.write
        cells = tile_of(agent, do, write, self.env)[0].cell[:, 0]
        stage, index = stage_of(write, self.env), write.index.evaluate(self.env)
        anew = do.fresh is not None and do.fresh.evaluate(self.env) == 0
        for cta in ctas:
            total = algebra.contract(np.matmul, self._factor(cta, x), second.T).reshape(-1)
            memory = cta.memory(agent, write.buffer)
            values, indices = memory.value[stage], memory.index[stage]
            if not anew:
                stale(agent, do, write.buffer.name, cells, indices[cells], index)
                total = algebra.operators["add"](total, values[cells])
            values[cells], indices[cells] = algebra.round(write.buffer.type, total), index

    def _factor(self, cta: Cta, read: object) -> Values:
        """Return a factor's tile in a CTA, (rows or columns, k)."""
        assert isinstance(read, Access)
        place, narrow = tile_of(self.agent, self.do, read, self.env)
        cells, taken, stage = place.cell, place.taken, stage_of(read, self.env)
        memory, index = cta.memory(self.agent, read.buffer), read.index.evaluate(self.env)
        found = memory.index[stage][cells[taken]]
        stale(self.agent, self.do, read.buffer.name, cells[taken], found, index)
        values = np.where(taken, memory.value[stage][cells], np.nan)
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
        cells, places = (place_of(agent, do, a, self.env, TOGETHER).cell for a in (read, write))
        at, to = stage_of(read, self.env), stage_of(write, self.env)
        index = read.index.evaluate(self.env)
        stale(agent, do, read.buffer.name, cells, source.index[at][cells], index)
        algebra = agent.cta.cluster.run.algebra
        target.value[to][places] = algebra.round(write.buffer.type, source.value[at][cells])
        target.index[to][places] = write.index.evaluate(self.env)


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
    """A tcgen05.ld or st by an agent's threads, between registers and tensor memory.

    An end is a memory, its stage, its cells and the index that it is asked for, or written at.
    """

    agent: Agent
    do: Do
    name: str
    registers: End
    memory: End
    uses: tuple[Use, ...]
    may_land: bool = True

    def holds(self, name: str, stage: int, cells: Integers, *, writes: bool) -> bool:
        """Whether it uses these registers: writes them, or is in the way of who does."""
        loads = self.do.write.buffer.level == "registers"
        _, mine, held, _ = self.registers
        same = name == self.name and stage == mine and (loads or writes)
        return same and bool(np.isin(cells, held).any())

    def land(self) -> None:
        """Move the values."""
        source, target = self.memory, self.registers
        if self.do.write.buffer.level == "tmem":
            source, target = target, source
        memory, at, cells, index = source
        stale(self.agent, self.do, memory.buffer.name, cells, memory.index[at][cells], index)
        values = memory.value[at][cells]
        memory, to, places, index = target
        memory.value[to][places], memory.index[to][places] = values, index


def multiply(agent: Agent, do: Do, env: Mapping[str, int]) -> None:
    """Issue a tcgen05.mma.  Raises ProgramError where its factors are no tiles."""
    ctas = agent.cta.along(do.multicast)
    if int(do.values[3]) != len(ctas):
        raise ProgramError(f"{do}: columns of {do.values[3]} CTAs, and {len(ctas)} multiply")
    product = Multiplication(agent, do, env)
    agent.queue.append(product)
    for access in (*do.reads[:2], do.write):
        if not isinstance(access, Access):
            raise ProgramError(f"{do}: a product's factors are tiles; name buffers")
        cells, stage = tile_of(agent, do, access, env)[0].cells, stage_of(access, env)
        at = (access.index.evaluate(env), *(o.evaluate(env) for o in access.origin))
        for cta in ctas:
            memory, writes = cta.memory(agent, access.buffer), access is do.write
            use = Use(do, agent, cells, None, writes, plain=False, pipe=agent)
            key = (id(memory), id(access), at)
            keep = key not in agent.opened
            claim(memory, stage, use, keep=keep)
            if keep:
                agent.opened[key] = use
    agent.cta.cluster.launch(product)


def copy(agent: Agent, do: Do, env: Mapping[str, int]) -> None:
    """Issue a tcgen05.cp.  Raises ProgramError where it does not copy a tile."""
    for access in (*do.reads, do.write):
        if not isinstance(access, Access):
            raise ProgramError(f"{do}: it copies a tile of shared memory; name a buffer")
        memory, writes = agent.cta.memory(agent, access.buffer), access is do.write
        cells = place_of(agent, do, access, env, TOGETHER).cells
        use = Use(do, agent, cells, None, writes, plain=False, pipe=agent, copies=True)
        claim(memory, stage_of(access, env), use)
        agent.opened[id(memory), id(access), id(use)] = use
    flight = Copying(agent, do, env)
    agent.queue.append(flight)
    agent.cta.cluster.launch(flight)


def commit(agent: Agent, arrive: Arrive, env: Mapping[str, int]) -> None:
    """Issue a tcgen05.commit."""
    cluster = agent.cta.cluster
    homes = agent.cta.reached(arrive)
    targets = [(cta, cta.mbarrier(arrive.barrier, arrive.index, env)) for cta in homes]
    agent.issued_uses += agent.opened.values()
    agent.opened = {}
    known = cluster.known.shape[1]
    agent.issued_uses = agent.issued_uses[-_REMEMBERED * known :]
    flight = Commitment(agent, arrive, targets, list(agent.issued_uses), agent.says)
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
    who, registers = who_of(agent, do, env), agent.registers[held.buffer.name]
    if registers.owner is None:
        raise ProgramError(f"{do}: {held.buffer.name} is no fragment; rows lie in one")
    mine, there = (place_of(agent, do, a, env, who) for a in (held, other))
    own = (mine.taken & there.taken)[:, 0]
    whose, cells = mine.cell[own, 0], there.cell[own, 0]
    at, to = stage_of(held, env), stage_of(other, env)
    memory = agent.cta.memory(agent, other.buffer)
    use = Use(do, agent, there.cells, there.threads, not loads, plain=False, tensor=True)
    claim(memory, to, use)
    for flight in [f for g in ("tcgen05.ld", "tcgen05.st") for f in agent.under_way(g)]:
        if flight.holds(held.buffer.name, at, whose, writes=loads):
            text = f"touches {held.buffer.name} while {flight.do} may be under way; tcgen05.wait"
            agent.cta.cluster.find("unwaited", agent, do, text, held.buffer.name, str(flight.do))
    ends: tuple[End, End] = (
        (registers, at, whose, held.index.evaluate(env)),
        (memory, to, cells, other.index.evaluate(env)),
    )
    into, stage, places, _ = ends[0] if loads else ends[1]
    into.value[stage][places], into.index[stage][places] = np.nan, UNWRITTEN
    flight = Transfer(agent, do, held.buffer.name, *ends, (use,))
    agent.open["tcgen05.ld" if loads else "tcgen05.st"].append(flight)
    agent.cta.cluster.launch(flight)


def released(agent: Agent) -> None:
    """Find what a CTA's first thread, which leaves, does not know to be done in tensor memory."""
    for (name, _), memory in agent.cta.shared.items():
        if memory.buffer.level != "tmem":
            continue
        for use in memory.uses():
            if not (use.known(agent.clock.tolist()) or (agent.alone and use.done_for(agent))):
                text = f"may be under way in {name} when that is released; let all come to a"
                text += " barrier of the CTA or the cluster at the end"
                agent.cta.cluster.find("exited", agent, use.do, text, name)
                return
