"""Asynchronous operations at work: TMA loads and stores, products of tiles.

What is under way lands when the scheduler lets it.  A TMA load writes its stage then, which is NaN
before; a store reads its stage and later writes global memory; a product is issued by each agent of
a team, starts when both have, in order, reads its stages and adds up.  Its sums are rounded to
their type after each instruction (16 steps of k).

Source: PTX ISA 9, 9.7.9 (data movement), 9.7.15 (wgmma).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.cluster import Agent, Cta, Mbarrier, Registers, Shared, Use
from tinygpu.errors import ProgramError
from tinygpu.plain import execute_plain
from tinygpu.program import Access, Do
from tinygpu.race import UNWRITTEN, Integers
from tinygpu.tensor_transfers import copy, multiply, transfer
from tinygpu.tile_access import (
    along,
    cells_of,
    claim,
    from_gmem,
    gmem_of,
    home_of,
    mbarrier_of,
    narrowed,
    stale,
    to_gmem,
)
from tinygpu.touched import extent

__all__ = ["Delivery", "Load", "Product", "Store", "execute"]

Values = NDArray[np.float64]
Booleans = NDArray[np.bool_]


def execute(agent: Agent, do: Do, env: Mapping[str, int]) -> None:
    """Execute or issue a Do by an agent, at the variables' values ``env``.

    Raises ProgramError for a statement that no asynchronous program can have.
    """
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
            if do.across or do.instruction.unit in ("barrier", "shuffle"):
                raise ProgramError(f"{do}: agents of asynchronous programs cannot; use simt")
            execute_plain(agent, do, env)


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
            text += ", which has exited; keep it there by barrier.cluster"
            cluster.find("exited", self.agent, self.statement, text)
        if not self.barrier.arrive(self.count, self.bytes, self.clock):
            text += f" is more than the {self.barrier.arrivals} that its phase takes; count them"
            cluster.find("unbalanced", self.agent, self.statement, text)


@dataclass(slots=True, eq=False)
class Load:
    """A TMA load on its way to one CTA."""

    agent: Agent
    do: Do
    target: Cta
    shared: Shared
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
        cells = self.use.cells
        self.shared.value[cells], self.shared.index[cells] = self.values, self.index
        self.use.done.append((self.barrier.column, self.barrier.phase + 1))
        self.barrier.land(self.bytes, self.clock)


@dataclass(slots=True, eq=False)
class Store:
    """A TMA store: it reads its stage, then writes global memory."""

    agent: Agent
    do: Do
    shared: Shared
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
            self.values = self.shared.value[self.cells]
            found = self.shared.index[self.cells]
            stale(self.agent, self.do, self.shared.buffer.name, self.cells, found, self.index)
        return self.values

    def land(self) -> None:
        """Write global memory."""
        values, address = self.read()[self.inside], self.addresses[self.inside]
        threads = np.full(address.size, self.agent.first_in_grid)
        to_gmem(self.agent, self.do, address, values, threads)


@dataclass(slots=True, eq=False)
class Product:
    """A product of tiles by a team, issued by ``joined`` of its agents."""

    agent: Agent
    do: Do
    env: Mapping[str, int]
    uses: list[Use] = field(default_factory=list)
    joined: int = 0

    @property
    def issued(self) -> bool:
        """Whether all agents of the team have issued it."""
        return self.joined == len(self.agent.team.agents)

    @property
    def may_land(self) -> bool:
        """Whether it may start: products of a team go in order."""
        return self.issued and self.agent.team.products[0] is self

    def holds(self, name: str, cells: Integers, *, writes: bool) -> bool:
        """Whether it uses these registers: writes them, or is in the way of who does."""
        accesses = self.do.accesses if writes else (self.do.write,)
        return any(
            a.buffer.name == name
            and bool(np.isin(cells, cells_of(self.agent, self.do, a, self.env)[0]).any())
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
        registers = agent.team.registers[write.buffer.name]
        cells = cells_of(agent, narrowed(agent, do, write), write, env)[0][:, 0]
        index = write.index.evaluate(env)
        total = np.broadcast_to(product, shape).reshape(-1)
        if do.fresh is None or do.fresh.evaluate(env) != 0:
            before = _factor(agent, do, do.reads[2], env).reshape(-1)
            total = algebra.operators["add"](total, before)
        registers.value[cells] = algebra.round(write.buffer.type, total)
        registers.index[cells] = index


def _factor(agent: Agent, do: Do, read: Any, env: Mapping[str, int]) -> Values:
    """Return a factor as (m, n_outer, n_inner, k), length 1 where it does not depend on a mode."""
    narrow = narrowed(agent, do, read)
    cells, taken = cells_of(agent, narrow, read, env)
    held: Shared | Registers
    if read.buffer.level == "smem":
        held = agent.cta.memory(agent, read.buffer)
    else:
        held = agent.team.registers[read.buffer.name]
    index = read.index.evaluate(env)
    stale(agent, do, read.buffer.name, cells[taken], held.index[cells[taken]], index)
    values: Values = np.where(taken, held.value[cells], np.nan)
    return values.reshape(tuple(int(v) for v in narrow.values[::-1]))


def _load(agent: Agent, do: Do, env: Mapping[str, int]) -> None:
    """Issue a TMA load, to every CTA that it goes to."""
    cta, write, source = agent.cta, do.write, do.reads[0]
    if do.signal is None or not isinstance(source, Access):
        raise ProgramError(f"{do}: a TMA load reads global memory and signals; name both")
    touched = gmem_of(agent, do, source, env)
    values = from_gmem(agent, do, source, touched.cell, touched.taken)
    values = np.where(touched.left, np.nan, values)
    cells, taken = cells_of(agent, do, write, env)
    index = write.index.evaluate(env)
    size = extent(do.values) * write.buffer.type.bytes * agent.threads.size
    for target in along(cta, do.multicast):
        shared = target.memory(agent, write.buffer)
        use = Use(do, cells[taken], agent.number, True, False, [])
        claim(agent, shared, index % int(write.buffer.stages), use)
        shared.value[use.cells], shared.index[use.cells] = np.nan, UNWRITTEN
        home, clock = home_of(target, do.signal[0]), agent.clock.copy()
        barrier = mbarrier_of(home, *do.signal, env)
        load = Load(agent, do, target, shared, use, values[taken], index, barrier, size, clock)
        cta.cluster.launch(load)


def _store(agent: Agent, do: Do, env: Mapping[str, int]) -> None:
    """Issue a TMA store."""
    source = do.reads[0]
    if not isinstance(source, Access):
        raise ProgramError(f"{do}: a TMA store reads shared memory; name a buffer")
    shared = agent.cta.memory(agent, source.buffer)
    cells, taken = cells_of(agent, do, source, env)
    index = source.index.evaluate(env)
    use = Use(do, cells[taken], agent.number, False, False, [])
    claim(agent, shared, index % int(source.buffer.stages), use)
    touched = gmem_of(agent, do, do.write, env)
    inside = touched.taken[:, 0]
    store = Store(agent, do, shared, cells[:, 0], index, touched.cell[:, 0], inside, (use,))
    agent.open["bulk"].append(store)
    agent.cta.cluster.launch(store)


def _multiply(agent: Agent, do: Do, env: Mapping[str, int]) -> None:
    """Issue a product, or join in the one that the team's other agent has issued."""
    team, cluster, write = agent.team, agent.cta.cluster, do.write
    if write.buffer.name not in agent.fenced:
        text = f"adds to {write.buffer.name}, touched since the last wgmma.fence; put one between"
        cluster.find("unfenced", agent, do, text, write.buffer.name)
    if agent.issued == len(team.issued):
        team.issued.append(Product(agent, do, env))
        team.products.append(team.issued[-1])
        cluster.flying.append(team.issued[-1])
    product: Product = team.issued[agent.issued]
    agent.issued += 1
    product.joined += 1
    first = product.joined == 1
    for read in do.reads[:2]:
        if not isinstance(read, Access):
            raise ProgramError(f"{do}: a product's factors are tiles; name buffers")
        if read.buffer.level == "smem":
            cells, taken = cells_of(agent, narrowed(agent, do, read), read, env)
            use = Use(do, cells[taken], agent.number, False, False, [])
            shared = agent.cta.memory(agent, read.buffer)
            claim(
                agent, shared, read.index.evaluate(env) % int(read.buffer.stages), use, keep=first
            )
            if first:
                product.uses.append(use)
    agent.open["wgmma"].append(product)
    cluster.hurry()
