"""Asynchronous operations at work: TMA loads and stores, products of tiles.

What is under way lands when the scheduler lets it.  A TMA load writes its stage then, which is NaN
before; a store reads its stage and later writes global memory; a product is issued when all agents
of a team have come to it, starts in order, reads its stages and adds up.  Its sums are rounded to
their type after each instruction (16 steps of k).

Source: PTX ISA 9, 9.7.9 (data movement), 9.7.15 (wgmma).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.cluster import Agent, Cta, Mbarrier, Registers
from tinygpu.errors import ProgramError
from tinygpu.execution import (
    TOGETHER,
    claim,
    execute,
    from_gmem,
    place_of,
    stage_of,
    stale,
    tile_of,
    to_gmem,
    touched_of,
)
from tinygpu.program import Access, Do
from tinygpu.race import UNWRITTEN, Integers, Shared, Use
from tinygpu.tensor_transfers import copy, multiply, transfer
from tinygpu.touched import extent

__all__ = ["Delivery", "Load", "Product", "Store", "start"]

Values = NDArray[np.float64]
Booleans = NDArray[np.bool_]


def start(agent: Agent, do: Do, env: Mapping[str, int]) -> None:
    """Execute a Do by an agent, or issue it, at the variables' values ``env``."""
    match do.instruction.completion:
        case "mbarrier":
            _load(agent, do, env)
        case "bulk_group":
            _store(agent, do, env)
        case "tcgen05_commit" if do.instruction.unit == "tensor":
            multiply(agent, do, env)
        case "tcgen05_commit":
            copy(agent, do, env)
        case "tcgen05_wait":
            transfer(agent, do, env)
        case "wgmma_group":
            _multiply(agent, do, env)
        case _:
            execute(agent, do, env)


@dataclass(slots=True, eq=False)
class Delivery:
    """Arrivals on their way to an mbarrier of another CTA."""

    agent: Agent
    statement: Any
    target: Cta
    barrier: Mbarrier
    count: int
    bytes: int
    clock: Integers
    may_land: bool = True

    def land(self) -> None:
        """Arrive."""
        cluster, text = self.agent.cta.cluster, f"in CTA {self.target.rank}"
        if self.target.exited:
            left = f"{text}, which has exited; keep it there by barrier.cluster"
            cluster.find("exited", self.agent, self.statement, left)
        if not self.barrier.arrive(self.count, self.bytes, self.clock):
            text += f" is more than the {self.barrier.arrivals} that its phase takes; count them"
            cluster.find("unbalanced", self.agent, self.statement, text)


@dataclass(slots=True, eq=False)
class Load:
    """A TMA load on its way to one CTA."""

    agent: Agent
    do: Do
    target: Cta
    memory: Shared
    stage: int
    use: Use
    values: Values
    index: int
    barrier: Mbarrier
    bytes: int
    clock: Integers
    may_land: bool = True

    def land(self) -> None:
        """Write the stage, and count the bytes at the mbarrier."""
        if self.target.exited:
            text = f"lands in CTA {self.target.rank}, which has exited; wait for it there"
            self.target.cluster.find("exited", self.agent, self.do, text)
        self.memory.value[self.stage][self.use.cells] = self.values
        self.memory.index[self.stage][self.use.cells] = self.index
        self.use.done.append((self.barrier.column, self.barrier.phase + 1))
        self.barrier.land(self.bytes, self.clock)


@dataclass(slots=True, eq=False)
class Store:
    """A TMA store: it reads its stage, then writes global memory."""

    agent: Agent
    do: Do
    memory: Shared
    stage: int
    cells: Integers
    index: int
    addresses: Integers
    inside: Booleans
    uses: tuple[Use, ...]
    values: Values | None = None
    may_land: bool = True

    def read(self) -> Values:
        """Read the stage, if that is still to do."""
        if self.values is None:
            self.values = self.memory.value[self.stage][self.cells]
            found = self.memory.index[self.stage][self.cells]
            stale(self.agent, self.do, self.memory.buffer.name, self.cells, found, self.index)
        return self.values

    def land(self) -> None:
        """Write global memory."""
        values, address = self.read()[self.inside], self.addresses[self.inside]
        to_gmem(self.agent, self.do, address, values, np.zeros(address.size, np.int64))


@dataclass(slots=True, eq=False)
class Product:
    """A product of tiles by a team, issued by ``joined`` of its agents."""

    agent: Agent
    do: Do
    env: Mapping[str, int]
    reads: list[tuple[Shared, int, Use]] = field(default_factory=list)
    joined: int = 0

    @property
    def uses(self) -> list[Use]:
        """Its uses of shared memory."""
        return [use for _, _, use in self.reads]

    @property
    def issued(self) -> bool:
        """Whether all agents of the team have issued it."""
        return self.joined == len(self.agent.team.agents)

    @property
    def may_land(self) -> bool:
        """Whether it may start: products of a team go in order."""
        return self.issued and self.agent.team.products[0] is self

    def holds(self, name: str, stage: int, cells: Integers, *, writes: bool) -> bool:
        """Whether it uses these registers: writes them, or is in the way of who does."""
        accesses = self.do.accesses if writes else (self.do.write,)
        return any(
            a.buffer.name == name
            and stage_of(a, self.env) == stage
            and bool(np.isin(cells, tile_of(self.agent, self.do, a, self.env)[0].cell).any())
            for a in accesses
            if a.buffer.level == "registers"
        )

    def land(self) -> None:
        """Read both tiles, add the products, round the sums."""
        agent, do, env, write = self.agent, self.do, self.env, self.do.write
        algebra = agent.cta.cluster.run.algebra
        agent.team.products.pop(0)
        a, b = (_factor(agent, do, r, env) for r in do.reads[:2])
        shape = tuple(int(v) for v in do.values[:0:-1])  # m, n_outer, n_inner
        if a.shape[1:3] == (1, 1) and b.shape[0] == 1:
            flat = algebra.contract(np.matmul, a[:, 0, 0], b.reshape(-1, b.shape[3]).T)
            product = flat.reshape(-1, *b.shape[1:3])
        else:
            product = algebra.contract(lambda x, y: (x * y).sum(axis=3), a, b)
        registers = agent.registers[write.buffer.name]
        cells = tile_of(agent, do, write, env)[0].cell[:, 0]
        total = np.broadcast_to(product, shape).reshape(-1)
        if do.fresh is None or do.fresh.evaluate(env) != 0:
            before = _factor(agent, do, do.reads[2], env).reshape(-1)
            total = algebra.operators["add"](total, before)
        stage = stage_of(write, env)
        registers.value[stage][cells] = algebra.round(write.buffer.type, total)
        registers.index[stage][cells] = write.index.evaluate(env)


def _factor(agent: Agent, do: Do, read: Any, env: Mapping[str, int]) -> Values:
    """Return a factor as (m, n_outer, n_inner, k), length 1 where it does not depend on a mode."""
    place, narrow = tile_of(agent, do, read, env)
    name, held = read.buffer.name, agent.registers
    memory: Shared | Registers = (
        held[name] if name in held else agent.cta.memory(agent, read.buffer)
    )
    stage, cells, taken = stage_of(read, env), place.cell, place.taken
    found = memory.index[stage][cells[taken]]
    stale(agent, do, name, cells[taken], found, read.index.evaluate(env))
    values: Values = np.where(taken, memory.value[stage][cells], np.nan)
    return values.reshape(tuple(int(v) for v in narrow.values[::-1]))


def _load(agent: Agent, do: Do, env: Mapping[str, int]) -> None:
    """Issue a TMA load, to every CTA that it goes to."""
    cta, write, source = agent.cta, do.write, do.reads[0]
    if do.signal is None or not isinstance(source, Access):
        raise ProgramError(f"{do}: a TMA load reads global memory and signals; name both")
    touched = touched_of(agent, do, source, env, TOGETHER)
    values = from_gmem(agent, do, source, touched.cell, touched.taken)
    values = np.where(touched.left, np.nan, values)
    place = place_of(agent, do, write, env, TOGETHER)
    index, stage = write.index.evaluate(env), stage_of(write, env)
    size = extent(do.values) * write.buffer.type.bytes * agent.threads.size
    for target in cta.along(do.multicast):
        memory = target.memory(agent, write.buffer)
        use = Use(do, agent, place.cells, None, writes=True, plain=False)
        claim(memory, stage, use)
        memory.value[stage][use.cells], memory.index[stage][use.cells] = np.nan, UNWRITTEN
        barrier = target.home(do.signal[0]).mbarrier(*do.signal, env)
        load = Load(agent, do, target, memory, stage, use, values[place.taken], index, barrier,
                    size, agent.says)  # fmt: skip
        cta.cluster.launch(load)


def _store(agent: Agent, do: Do, env: Mapping[str, int]) -> None:
    """Issue a TMA store."""
    source = do.reads[0]
    if not isinstance(source, Access):
        raise ProgramError(f"{do}: a TMA store reads shared memory; name a buffer")
    memory, stage = agent.cta.memory(agent, source.buffer), stage_of(source, env)
    place = place_of(agent, do, source, env, TOGETHER)
    use = Use(do, agent, place.cells, None, writes=False, plain=False)
    claim(memory, stage, use)
    touched = touched_of(agent, do, do.write, env, TOGETHER)
    store = Store(agent, do, memory, stage, place.cell[:, 0], source.index.evaluate(env),
                  touched.cell[:, 0], touched.taken[:, 0], (use,))  # fmt: skip
    agent.open["bulk"].append(store)
    agent.cta.cluster.launch(store)


def _multiply(agent: Agent, do: Do, env: Mapping[str, int]) -> None:
    """Issue a product, or join in the one that others of the team have issued."""
    team, cluster, write = agent.team, agent.cta.cluster, do.write
    if write.buffer.name not in agent.ready:
        text = f"adds to {write.buffer.name}, touched since the last wgmma.fence; put one between"
        cluster.find("unfenced", agent, do, text, write.buffer.name)
    if agent.issued == len(team.issued):
        product = Product(agent, do, env)
        team.issued.append(product)
        team.products.append(product)
        cluster.flying[id(product)] = product
        for read in do.reads[:2]:
            if not isinstance(read, Access):
                raise ProgramError(f"{do}: a product's factors are tiles; name buffers")
            if read.buffer.level == "smem":
                cells = tile_of(agent, do, read, env)[0].cells
                use = Use(do, agent, cells, None, writes=False, plain=False)
                memory = agent.cta.memory(agent, read.buffer)
                product.reads.append((memory, stage_of(read, env), use))
    product = team.issued[agent.issued]
    agent.issued += 1
    product.joined += 1
    for memory, stage, use in product.reads:
        if product.joined == 1:
            claim(memory, stage, use)
        else:
            mine = Use(do, agent, use.cells, None, writes=False, plain=False)
            claim(memory, stage, mine, keep=False)
    agent.open["wgmma"].append(product)
    cluster.hurry()
