"""What one thread does, twice: as the term says, by floor, mod and layouts, and as its PTX did it.

Both are lists of tuples: (kind, where, ...).  A product is all addresses that it reads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.ptx_threads import SMEM, Event, of_rank, run
from tinygpu.codegen.emit import integer_values
from tinygpu.codegen.kernel.scope import value_coordinates
from tinygpu.codegen.kernel.smem import smem_plan
from tinygpu.codegen.kernel.tensor_map import tensor_maps
from tinygpu.codegen.runtime.maps import TensorMap
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Barrier,
    Commit,
    Do,
    Elect,
    Fence,
    For,
    ForTile,
    Program,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    walk,
)

__all__ = ["C", "Thread", "descriptor_addresses", "once", "parameters_of", "seen", "tiles_of"]

C = 1 << 40  # where c is
Step = tuple[Any, ...]
Addresses = NDArray[np.int64]


def parameters_of(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    values = integer_values(program, sizes)
    return {f"n_{name}": v for name, v in values.items()} | {"p_a": 0, "p_b": 0, "p_c": C}


def tiles_of(program: Program, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """The grid's variables in the order of the raster: groups of rows, column by column."""
    *outer, rows, columns = program.grid_extents(sizes)
    return [
        (*before, row, column)
        for before in product(*map(range, outer))
        for first in range(0, rows, program.raster)
        for column, row in product(range(columns), range(first, min(first + program.raster, rows)))
    ]


@dataclass(frozen=True)
class Thread:
    """A thread of a CTA of a cluster; ``told`` is what its program says that it does."""

    program: Program
    sizes: Mapping[str, int]
    number: int
    rank: int = 0
    cluster: int = 0
    clusters: int = 1

    def told(self) -> list[Step]:
        first = 0
        for role in self.program.roles:
            here = self.number - first
            if here < role.threads * role.copies:
                break
            first += role.threads * role.copies
        copy, local = divmod(here, role.threads)
        env = {**self.program.parameter_values(self.sizes), **self.ranks(self.rank)}
        if role.copy:
            env[role.copy] = copy
        return list(self._body(role.body, env, (copy, local, role.threads)))

    def did(self, text: str) -> list[Event]:
        return run(
            text, self.number, parameters_of(self.program, self.sizes), rank=self.rank,
            cluster=self.cluster, clusters=self.clusters,
        )  # fmt: skip

    def ranks(self, rank: int) -> dict[str, int]:
        found = {}
        for name, extent in self.program.cluster:
            rank, found[name] = divmod(rank, extent)
        return found

    def along(self, axes: str) -> set[int]:
        """The CTAs that differ from this one in their ranks along some axes only."""
        rest = dict.fromkeys(axes.split(), 0)
        mine = {**self.ranks(self.rank), **rest}
        return {rank for rank in range(self.ctas) if {**self.ranks(rank), **rest} == mine}

    @property
    def ctas(self) -> int:
        return math.prod(extent for _, extent in self.program.cluster)

    def _body(
        self, body: Sequence[Statement], env: dict[str, int], who: tuple[int, int, int]
    ) -> Iterator[Step]:
        copy, local, threads = who
        for s in body:
            match s:
                case For():
                    trips = env[s.trips] if isinstance(s.trips, str) else s.trips
                    for i in range(s.start, trips):
                        yield from self._body(s.body, {**env, s.var: i}, who)
                case When():
                    bound = env[s.bound] if isinstance(s.bound, str) else s.bound
                    if s.index.evaluate(env) < bound:
                        yield from self._body(s.body, env, who)
                case Elect():
                    if local == 0:
                        yield from self._body(s.body, env, who)
                case ForTile():
                    yield from self._tiles(s, env, who)
                case Wait(barrier, index):
                    phase = index.evaluate(env) // barrier.stages
                    yield "wait", self.barrier(barrier, index, env, self.rank), phase % 2
                case Arrive(barrier, index, size, to):
                    if size:
                        size = size - self.left_out(barrier, env)
                        yield "expect", self.barrier(barrier, index, env, self.rank), size
                        continue
                    for rank in range(self.ctas):
                        if rank in self.along(to) or to == "cluster":
                            yield "arrive", self.barrier(barrier, index, env, rank)
                case Fence(kind):
                    yield "fence", kind
                case Commit(group):
                    yield "commit", group
                case WaitGroup(pending, group, read):
                    yield "wait group", group, pending, read
                case Sync(number, scope) if scope == "role":
                    yield "sync", number + copy, threads
                case Sync(number, scope):
                    whole = ("cluster",) if scope == "cluster" and self.ctas > 1 else (number,)
                    yield ("sync", *whole)
                case Do() if s.instruction.name in ("st.shared", "ld.shared"):
                    yield from self._exchange(s, env, who)
                case Do():
                    yield from self._do(s, env, copy)
                case _:
                    raise AssertionError(s)

    def _tiles(self, s: ForTile, env: dict[str, int], who: tuple[int, int, int]) -> Iterator[Step]:
        tiles = tiles_of(self.program, self.sizes)
        start = s.start.evaluate(env) if isinstance(s.start, Affine) else s.start
        ends = -(-len(tiles) // self.clusters) if self.program.persistent else 1
        grid = [axis.var for axis in self.program.grid]
        for turn, t in enumerate(range(start, ends, s.step)):
            back = self.program.snake and t % 2
            own = self.clusters - 1 - self.cluster if back else self.cluster
            linear = own + t * self.clusters
            if linear < len(tiles):
                place = dict(zip(grid, tiles[linear], strict=True))
                yield from self._body(s.body, {**env, **place, s.tile: t, s.turn: turn}, who)

    def barrier(self, barrier: Barrier, index: Affine, env: dict[str, int], rank: int) -> int:
        stage = int(index.evaluate(env)) % barrier.stages
        return of_rank(rank) + smem_plan(self.program).start[barrier.name] + 8 * stage

    def stage(self, access: Access, env: dict[str, int], copy: int) -> int:
        """Where the stage of an access starts, from a CTA's shared memory on."""
        buffer, plan = access.buffer, smem_plan(self.program)
        own = copy * buffer.stages * buffer.stage_bytes if buffer.copies > 1 else 0
        far = int(access.index.evaluate(env)) % buffer.stages * plan.stage_bytes[buffer.name]
        return plan.start[buffer.name] + own + far

    def addresses(
        self, access: Access, values: Sequence[int], env: dict[str, int], copy: int = 0
    ) -> Addresses:
        """The address of each of these values of an access to shared memory."""
        places = value_coordinates(access, tuple(values)).T
        origin = access.origin or (Affine(),) * len(places)
        coordinates = [p + o.evaluate(env) for p, o in zip(places, origin, strict=True)]
        offsets = np.asarray(access.buffer.layout(tuple(coordinates)), np.int64)
        return SMEM + self.stage(access, env, copy) + offsets * access.buffer.type.bytes

    def factor(self, do: Do, read: Access, env: dict[str, int]) -> Addresses:
        """Where a factor's rows (or columns) lie: its digits in the order of PTX's fragments."""
        k, pair, half, *groups = do.values
        quad, octet, warp = do.threads
        several = replace(read, value=(*read.value, *read.thread), thread=())
        extents = (k, pair, half, *groups, quad, octet, warp)
        narrow = [n if any(s) else 1 for n, s in zip(extents, several.value, strict=True)]
        found = self.addresses(several, narrow, env).reshape(narrow[::-1])
        if read is do.reads[0]:  # rows: warp, half, octet
            rows = found.reshape(warp, octet, half, k)
            return rows.transpose(0, 2, 1, 3).reshape(-1, k)
        columns = found.reshape(quad, math.prod(groups), pair, k)
        return columns.transpose(1, 0, 2, 3).reshape(-1, k)

    def _do(self, do: Do, env: dict[str, int], copy: int) -> Iterator[Step]:
        name = do.instruction.name
        if name == "wgmma":
            x, y = (r for r in do.reads[:2] if isinstance(r, Access))
            left, right = self.factor(do, x, env), self.factor(do, y, env)
            adds = do.fresh is None or do.fresh.evaluate(env) != 0
            yield "wgmma", left.tobytes(), right.tobytes(), adds
        elif do.instruction.unit == "tma":
            yield from self._tma(do, env, copy)
        elif name != "st.global":
            yield (do.variant if name == "fma" else "mov.f32" if name == "mov" else name,)

    def _exchange(self, do: Do, env: dict[str, int], who: tuple[int, int, int]) -> Iterator[Step]:
        """Where a thread's sums lie in shared memory, 16 B at once; the lanes of rows in a tile."""
        copy, local, _ = who
        stores = do.write.buffer.level == "smem"
        memory = do.write if stores else do.reads[0]
        assert isinstance(memory, Access)
        if len(memory.buffer.shape) == 2:
            yield (do.instruction.name,)
            return
        origin = list(memory.origin or (Affine(),) * len(memory.buffer.shape))
        for extent, steps in zip(do.threads, memory.thread, strict=True):
            local, digit = divmod(local, extent)
            origin = [o + digit * step for o, step in zip(origin, steps, strict=True)]
        places = self.addresses(replace(memory, origin=tuple(origin)), do.values, env, copy)
        assert (np.diff(places.reshape(-1, 4)) == 4).all()
        home = sorted(self.along(memory.buffer.home))[memory.peer] if stores else self.rank
        for at in places[::4].tolist():
            yield do.instruction.name, at | of_rank(home) & ~SMEM

    def inside(self, do: Do, env: dict[str, int]) -> int:
        """How many lines of a load's box lie inside the array; below 0 it begins outside."""
        (read,) = (r for r in do.reads if isinstance(r, Access))
        line = len(read.origin) - 2
        size = self.sizes[str(read.buffer.shape[line])]
        return min(do.values[1], size - int(read.origin[line].evaluate(env)))

    def left_out(self, barrier: Barrier, env: dict[str, int]) -> int:
        """The bytes of lines that trimmed loads of a whole cluster do not send to this CTA."""
        found = 0
        for do in {s for s, _ in walk(self.program) if isinstance(s, Do) and s.signal}:
            (read,) = (r for r in do.reads if isinstance(r, Access))
            if not read.trimmed or not do.signal or do.signal[0] != barrier:
                continue
            a_line = do.values[0] * math.prod(do.values[2:]) * read.buffer.type.bytes
            for rank in self.along(do.multicast):
                lines = max(0, self.inside(do, {**env, **self.ranks(rank)}))
                found += (do.values[1] - lines) * a_line
        return found

    def _tma(self, do: Do, env: dict[str, int], copy: int) -> Iterator[Step]:
        (read,) = (r for r in do.reads if isinstance(r, Access))
        loads = read.buffer.level == "gmem"
        gmem, smem = (read, do.write) if loads else (do.write, read)
        box = (*do.values[:2], *(1,) * (len(gmem.origin) - 2))  # one of a batch
        source = TensorMap(gmem.buffer.name, gmem.buffer.dtype, box, smem.buffer.swizzle[0])
        # an address is told before it is swizzled: TMA does that, and a box may begin at any line
        smem = replace(smem, buffer=replace(smem.buffer, swizzle=(0, 0, 0)))
        if loads and read.trimmed:
            lines = self.inside(do, env)
            if lines <= 0:
                return
            source = source._replace(rest=lines < do.values[1])
        for slab in range(do.values[2] if len(do.values) > 2 else 1):
            moved = gmem.value[2] if slab else (0,) * len(gmem.origin)
            place = [o.evaluate(env) + slab * m for o, m in zip(gmem.origin, moved, strict=True)]
            values = (1, 1, slab + 1) if len(do.values) > 2 else (1, 1)
            at = int(self.addresses(smem, values, env, copy)[-1]) | of_rank(self.rank) & ~SMEM
            if not loads:
                yield "store", source, tuple(place[::-1]), at
                continue
            assert do.signal
            signal = self.barrier(*do.signal, env, self.rank)
            mask = sum(1 << rank for rank in self.along(do.multicast))
            alone = mask == 1 << self.rank
            yield "load", source, tuple(place[::-1]), at, signal, None if alone else mask


def descriptor_addresses(descriptor: int, rows: int, *, by_k: bool, width: int = 2) -> Addresses:
    """The addresses that wgmma reads for each (row, k) through a descriptor: (rows, 32 B of k)."""
    start, leading, stride = ((descriptor >> bit & 0x3FFF) << 4 for bit in (0, 16, 32))
    assert descriptor >> 62 == 1  # the 128 B swizzle
    assert not descriptor & ~(0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 3 << 62)
    row, k = np.arange(rows)[:, None], np.arange(32 // width)[None, :]
    if by_k:
        linear = start + row // 8 * stride + row % 8 * 128 + k * width
    else:
        wide = 128 // width
        linear = start + row // wide * leading + row % wide * width + k // 8 * stride + k % 8 * 128
    moved: Addresses = linear ^ (linear >> 3 & 0x70)
    return moved


_OURS = ("prefetch", "mbarrier.init", "fence.mbarrier_init", "bar.warp", "setmaxnreg", "griddep")


def seen(events: Sequence[Event], program: Program) -> list[Step]:
    """What a thread did, in the words of ``Thread.told``; without the prologue and st.global."""
    maps = {f"map_{i}": m for i, m in enumerate(tensor_maps(program))}
    found = [step for e in events if (step := _step(e, maps))]
    begin = next(i for i, step in enumerate(found) if step[0] == "sync")
    assert all(step == ("fence", "proxy.async") for step in found[:begin])
    return found[begin + 1 :]


def once(steps: Sequence[Step]) -> list[Step]:
    """Runs of the instructions that a statement repeats, as one."""
    return [
        step for step, run in groupby(steps) for step in ([step] if len(step) == 1 else list(run))
    ]


def _step(event: Event, maps: Mapping[str, TensorMap]) -> Step | None:
    op, x = event.opcode, event.operands
    parts = op.split(".")
    group = {"cp": "bulk", "wgmma": "wgmma"}.get(parts[0], "")
    if op.startswith((*_OURS, "st.global", "barrier.cluster.wait")):
        return None
    if op.startswith("mbarrier.try_wait"):
        return "wait", *x
    if op.startswith("mbarrier.arrive"):
        return ("expect" if "expect_tx" in op else "arrive"), *x[1:]
    if op.startswith("fence.proxy"):
        return "fence", "proxy.async"
    if op == "wgmma.fence.sync.aligned":
        return "fence", "wgmma"
    if "commit_group" in op:
        return "commit", group
    if "wait_group" in op:
        return "wait group", group, x[0], "read" in op
    if op.startswith("barrier.cluster.arrive"):
        return "sync", "cluster"
    if op == "bar.sync":
        return "sync", *x
    if op.startswith("wgmma.mma"):
        held, a, b, adds, *_ = x
        columns = int(parts[4].partition("n")[2].partition("k")[0])
        assert held == columns // 2
        wide = 1 if parts[-1] == "e4m3" else 2
        a_turned, b_turned = x[-2:] if wide == 2 else (0, 0)
        left = descriptor_addresses(a, 64, by_k=not a_turned, width=wide)
        right = descriptor_addresses(b, columns, by_k=not b_turned, width=wide)
        return "wgmma", left.tobytes(), right.tobytes(), adds
    if re.match(r"cp\.async\.bulk\.tensor\.\dd\.shared", op):
        at, (name, place), signal, *mask = x
        assert bool(mask) == ("multicast" in op)
        return "load", maps[name], place, at, signal, mask[0] if mask else None
    if re.match(r"cp\.async\.bulk\.tensor\.\dd\.global", op):
        (name, place), at = x
        return "store", maps[name], place, at
    if op.startswith(("st.shared::cluster.v4", "ld.shared.v4")):
        return op[:9], x[0] if op.startswith("st") else x[1]
    return (op.partition(".sync")[0].partition(".v2")[0].partition(".rn")[0],)
