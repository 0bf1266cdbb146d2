"""A term run by all threads of a CTA in step, on NumPy arrays: the plainest reading of a term.

It knows nothing of hazards (a statement is over before the next begins), only of what the
statements compute.  Registers start as NaN, so that what is read has been written.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.codegen.addresses import value_coordinates
from tinygpu.memory import DTYPES
from tinygpu.program import Access, Do, For, Immediate, Program, Statement, Sync

__all__ = ["run"]


def run(
    program: Program, arrays: Mapping[str, NDArray[Any]], scalars: Mapping[str, float]
) -> NDArray[Any]:
    """Return the output; elements that are never stored are NaN."""
    operation = program.operation
    sizes = operation.sizes({n: a.shape for n, a in arrays.items()})
    out = operation.output
    shape = operation.shapes(sizes)[out.name]
    memory = {**arrays, out.name: np.full(shape, np.nan, DTYPES[out.dtype].numpy)}
    extents = program.grid_extents(sizes)
    known = program.parameter_values(sizes)
    for place in product(*map(range, extents)):
        grid = dict(zip((a.var for a in program.grid), place, strict=True))
        cta = _Cta(program, memory, {**known, **grid}, {**known, **scalars})
        for role in program.roles:
            cta.body(role.body)
    return memory[out.name]


class _Cta:
    def __init__(
        self,
        program: Program,
        memory: dict[str, NDArray[Any]],
        integers: dict[str, int],
        scalars: dict[str, float],
    ) -> None:
        self.memory, self.integers, self.scalars = memory, integers, scalars
        self.lanes = np.arange(program.threads)
        self.cells: dict[tuple[str, int, tuple[int, ...]], NDArray[Any]] = {}

    def body(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            match statement:
                case For(var, trips, inner, _, start):
                    end = self.integers[trips] if isinstance(trips, str) else trips
                    for self.integers[var] in range(start, end):
                        self.body(inner)
                case Do():
                    self.do(statement)
                case Sync():
                    pass
                case _:
                    raise NotImplementedError(statement)

    def do(self, do: Do) -> None:
        active = np.ones(len(self.lanes), bool)
        if do.lanes:
            divisor, extent, residue = do.lanes
            active = self.lanes // divisor % extent == residue
        dtype = DTYPES[do.write.buffer.dtype]
        for v in range(int(np.prod(do.values))):
            sources = []
            for read in do.reads:
                if isinstance(read, Access):
                    found = self.load(read, self.places(read, do, v))
                    sources.append(found.astype(np.float64))
                elif isinstance(read, Immediate):
                    sources.append(np.full(len(self.lanes), float(read.number)))
                else:
                    sources.append(np.full(len(self.lanes), float(self.scalars[read.name])))
            if do.instruction.name == "shfl.sync":
                result = sources[0][self.lanes ^ do.across]
            else:
                result = do.instruction.semantics(do.variant or "fma", *sources)
            self.store(do.write, self.places(do.write, do, v), dtype.round(result), active)

    def places(self, access: Access, do: Do, v: int) -> NDArray[np.int64]:
        """Coordinates of value v in each thread: (threads, dimensions)."""
        here = value_coordinates(access, do.values)[v] + np.array(
            [o.evaluate(self.integers) for o in access.origin] or [0] * len(access.buffer.shape)
        )
        result = np.tile(here, (len(self.lanes), 1))
        rest = self.lanes
        for extent, steps in zip(do.threads, access.thread, strict=False):
            result = result + (rest % extent)[:, None] * np.array(steps)
            rest = rest // extent
        return result

    def inside(self, access: Access, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        found = np.ones(len(places), bool)
        for d, guarded in enumerate(access.guard):
            if guarded:
                found &= places[:, d] < self.integers[str(access.buffer.shape[d])]
        return found

    def load(self, access: Access, places: NDArray[np.int64]) -> NDArray[Any]:
        if access.buffer.level == "gmem":
            inside = self.inside(access, places)
            where = tuple(np.where(inside[:, None], places, 0).T)
            return np.where(inside, self.memory[access.buffer.name][where].astype(float), 0.0)
        return np.array([self.cell(access, p)[t] for t, p in self.owners(access, places)])

    def store(
        self, access: Access, places: NDArray[np.int64], values: NDArray[Any], active: NDArray[Any]
    ) -> None:
        if access.buffer.level == "gmem":
            mine = active & self.inside(access, places)
            self.memory[access.buffer.name][tuple(places[mine].T)] = values[mine]
            return
        for (t, p), value, on in zip(self.owners(access, places), values, active, strict=True):
            if on:
                self.cell(access, p)[t] = value

    def owners(
        self, access: Access, places: NDArray[np.int64]
    ) -> list[tuple[int, tuple[int, ...]]]:
        """Whose cell each thread touches: its own register, or the CTA's shared element."""
        shared = access.buffer.level == "smem"
        return [(0 if shared else t, tuple(map(int, p))) for t, p in enumerate(places)]

    def cell(self, access: Access, place: tuple[int, ...]) -> NDArray[Any]:
        stage = access.index.evaluate(self.integers) % access.buffer.stages
        assert all(0 <= c < int(n) for c, n in zip(place, access.buffer.shape, strict=True))
        key = (access.buffer.name, stage, place)
        return self.cells.setdefault(key, np.full(len(self.lanes), np.nan))
