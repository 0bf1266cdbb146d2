"""A plain ``Do`` of an asynchronous program: by each thread of an agent, on values of its own.

A thread's values are those that its access maps say, or, of a tile in a fragment, those that the
fragment gives it.  They are taken value by value where one reads what an earlier one wrote.  A
cp.async reads at once and lands until its ``wait_group``.

Source: ``docs/model.md``, section "Terms".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from tinygpu.access_map import Operand
from tinygpu.cluster import Agent, Registers, Shared, Use
from tinygpu.program import Access, Do, Immediate, Scalar
from tinygpu.race import Integers
from tinygpu.synchronization import Group
from tinygpu.tile_access import (
    cells_of,
    claim,
    from_gmem,
    gmem_of,
    home_of,
    is_tile,
    stale,
    to_gmem,
)

__all__ = ["Copy", "execute_plain"]

Values = NDArray[np.float64]
Booleans = NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class Copy:
    """A cp.async under way."""

    do: Do
    shared: Shared
    cells: Integers
    values: Values
    index: int
    uses: tuple[Use, ...]
    may_land: bool = True

    def land(self) -> None:
        """Write what was read."""
        self.shared.value[self.cells], self.shared.index[self.cells] = self.values, self.index


@dataclass(frozen=True, slots=True, eq=False)
class _Where:
    """Cells of the values that an agent's threads touch, which exist, what holds them."""

    access: Access
    cells: Integers
    taken: Booleans
    held: Shared | Registers | None
    index: int


def execute_plain(agent: Agent, do: Do, env: Mapping[str, int]) -> None:
    """Execute a Do by an agent's threads: read, compute, round, write."""
    places = [_place(agent, do, a, env) for a in do.accesses]
    values = max(len(p.cells) for p in places)
    threads = 1 if is_tile(do) else agent.threads.size
    mine = np.broadcast_to(_mine(agent, do, places), (values, threads))
    row, lane = np.nonzero(mine)
    if not row.size:
        return
    where = [_select(p, mine) for p in places]
    *_, target = where
    uses = [_touch(agent, do, w, writes=w is target) for w in where]
    held = agent.threads[lane] if threads > 1 else agent.threads[:1].repeat(row.size)
    algebra = agent.cta.cluster.run.algebra
    for part in _parts(where, row):
        reads = iter(where)
        arguments = [_read(agent, do, r, reads, part) for r in do.reads]
        name = do.variant or do.instruction.name
        result = do.instruction.semantics(name, *arguments, algebra=algebra)
        rounded = algebra.round(do.write.buffer.type, np.asarray(result)).astype(np.float64)
        result = np.broadcast_to(rounded, row[part].shape)
        _write(agent, do, target, result, part, threads=held, use=uses[-1])


def _place(agent: Agent, do: Do, access: Access, env: Mapping[str, int]) -> _Where:
    index, level = access.index.evaluate(env), access.buffer.level
    if level == "gmem":
        touched = gmem_of(agent, do, access, env)
        return _Where(access, touched.cell, touched.taken, None, index)
    cells, taken = cells_of(agent, do, access, env)
    if level == "smem":
        cta = home_of(agent.cta, access.buffer) if access is do.write else agent.cta
        return _Where(access, cells, taken, cta.memory(agent, access.buffer), index)
    return _Where(access, cells, taken, agent.team.registers[access.buffer.name], index)


def _select(place: _Where, mine: Booleans) -> _Where:
    cells = np.broadcast_to(place.cells, mine.shape)[mine]
    taken = np.broadcast_to(place.taken, mine.shape)[mine]
    return _Where(place.access, cells, taken, place.held, place.index)


def _mine(agent: Agent, do: Do, places: list[_Where]) -> Booleans:
    """Return which (values, threads) the agent's threads execute."""
    if not is_tile(do):
        if do.lanes is None:
            return np.ones((1, 1), np.bool_)
        below, period, residue = do.lanes
        return np.asarray(agent.threads // below % period == residue)[None, :]
    owners = [
        p.held.owner[p.cells % int(p.access.buffer.stage_elements)]
        for p in places
        if isinstance(p.held, Registers) and p.held.owner is not None
    ]
    if not owners:
        return np.full((1, 1), agent.leader)
    if any(np.any(owner != owners[0]) for owner in owners[1:]):
        text = "moves values between threads: their fragments differ there; align the tiles"
        agent.cta.cluster.find("shuffle", agent, do, text)
    return np.asarray((owners[0] == 0) == agent.leader)


def _touch(agent: Agent, do: Do, w: _Where, *, writes: bool) -> Use | None:
    """Note that the agent uses these cells, and find who else does; return the use of smem."""
    buffer = w.access.buffer
    if isinstance(w.held, Registers):
        agent.fenced.discard(buffer.name)
        later: tuple[Group, ...] = ("wgmma", "tcgen05.ld", "tcgen05.st")
        for product in (p for group in later for p in agent.under_way(group)):
            if product.holds(buffer.name, w.cells, writes=writes):
                text = f"touches {buffer.name} while {product.do} may be under way; wait for it"
                agent.cta.cluster.find("unwaited", agent, do, text, buffer.name, str(product.do))
                w.held.value[w.cells] = np.nan
                break
    if not isinstance(w.held, Shared):
        return None
    home = home_of(agent.cta, buffer)
    if writes and home is not agent.cta and home.exited:
        text = f"writes into CTA {home.rank}, which has exited; keep it there by barrier.cluster"
        agent.cta.cluster.find("exited", agent, do, text, buffer.name)
    use = Use(do, w.cells[w.taken], agent.number, writes, True, [])
    if not writes or do.instruction.completion != "commit_group":
        agent.complete(use)
    claim(agent, w.held, w.index % int(buffer.stages), use)
    return use


def _parts(where: list[_Where], row: Integers) -> list[Any]:
    """Divide the values where one reads a register that an earlier one writes."""
    *sources, target = where
    if isinstance(target.held, Registers) and any(
        s.held is target.held and not np.array_equal(s.cells, target.cells) for s in sources
    ):
        return [np.flatnonzero(row == v) for v in np.unique(row)]
    return [slice(None)]


def _read(agent: Agent, do: Do, read: Operand, reads: Any, part: Any) -> Any:
    match read:
        case Immediate() | Scalar():
            return agent.cta.cluster.run.given(read, do.write.buffer.type)
        case Access():
            w: _Where = next(reads)
            cells, taken = w.cells[part], w.taken[part]
            if w.held is None:
                return from_gmem(agent, do, read, cells, taken)
            found = w.held.index[cells[taken]]
            stale(agent, do, read.buffer.name, cells[taken], found, w.index)
            return np.where(taken, w.held.value[np.where(taken, cells, 0)], np.nan)
        case _:
            assert_never(read)


def _write(
    agent: Agent,
    do: Do,
    w: _Where,
    values: Values,
    part: Any,
    *,
    threads: Integers,
    use: Use | None,
) -> None:
    taken = w.taken[part]
    cells, kept = w.cells[part][taken], values[taken]
    if w.held is None:
        to_gmem(agent, do, cells, kept, agent.first_in_grid + threads[part][taken])
    elif isinstance(w.held, Shared) and use is not None and not use.done:
        w.held.value[cells] = np.nan
        copy = Copy(do, w.held, cells, kept, w.index, (use,))
        agent.open["cp.async"].append(copy)
        agent.cta.cluster.launch(copy)
    else:
        w.held.value[cells], w.held.index[cells] = kept, w.index
