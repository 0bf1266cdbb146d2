"""Asynchronous programs by hand: protocols that no machine builds.  All are right.

y = 2 x, in tiles of 64 that one CTA takes one after another (parameter ``trips``).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.term.expression import Constant, value
from tinygpu.term.operation import elementwise
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Axis,
    Barrier,
    Buffer,
    Commit,
    Do,
    Elect,
    Fence,
    For,
    Program,
    Role,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    registers,
    var,
)

__all__ = ["TILE", "by_hand"]

TILE = 64
K = var("k")
DOUBLE = elementwise(value("x") * Constant(2.0), inputs=("x",))
X, Y = (Buffer(n, "gmem", "f32", ("i",), (1,)) for n in "xy")
HELD = registers("held", "f32", 2)
MINE = Access(HELD, ((1,),), index=K)
TWICE = Do(INSTRUCTIONS["fma"], MINE, (MINE, MINE), (2,), (32,), variant="add")
BY_THREAD = ((1,),), ((2,),)


def _ring(name: str, stages: int) -> Buffer:
    return Buffer(name, "smem", "f32", (TILE,), (1,), stages, TILE)


def _load(ring: Buffer, full: Barrier, part: int = 0, parts: int = 1, at: Affine = K) -> Do:
    """Load a part of tile ``at``."""
    size = TILE // parts
    source = Access(X, ((1,),), origin=(at * TILE + part * size,), guard=(True,))
    target = Access(ring, ((1,),), origin=(Affine(part * size),), index=at)
    copy = INSTRUCTIONS["cp.async.bulk.tensor"]
    return Do(copy, target, (source,), (size,), signal=(full, at))


def _read(ring: Buffer) -> Do:
    return Do(INSTRUCTIONS["ld.shared"], MINE, (Access(ring, *BY_THREAD, index=K),), (2,), (32,))


READ = Fence("proxy.async")
"""Behind a read, before others are told: what overwrites it is TMA."""


def _write(ring: Buffer) -> Do:
    return Do(INSTRUCTIONS["st.shared"], Access(ring, *BY_THREAD, index=K), (MINE,), (2,), (32,))


def _store_direct() -> Do:
    out = Access(Y, *BY_THREAD, origin=(K * TILE,), guard=(True,))
    return Do(INSTRUCTIONS["st.global"], out, (MINE,), (2,), (32,))


def _store(ring: Buffer) -> tuple[Statement, ...]:
    """Write a tile to a ring and let TMA store it, as many at a time as there are stages."""
    out = Access(Y, ((1,),), origin=(K * TILE,), guard=(True,))
    source = Access(ring, ((1,),), index=K)
    send = Do(INSTRUCTIONS["cp.async.bulk.tensor.global"], out, (source,), (TILE,))
    return (
        Elect((WaitGroup(ring.stages - 1, "bulk", read=True),)),
        Sync(1, "role"),
        _write(ring),
        Fence("proxy.async"),
        Sync(1, "role"),
        Elect((send, Commit("bulk"))),
    )


STORED = Elect((WaitGroup(0, "bulk", read=True),))


def _program(
    name: str, rings: tuple[Buffer, ...], barriers: tuple[Barrier, ...], *roles: Role
) -> Program:
    trips = (("trips", value("i").ceildiv(Constant(TILE))),)
    grid = (Axis("b", Constant(1)),)
    buffers = (X, Y, *rings, HELD)
    return Program(name, DOUBLE, buffers, trips, grid, roles, barriers=barriers)


def _loop(*body: Statement) -> For:
    return For("k", "trips", body)


def store_ring(depth: int, stored: int) -> Program:
    """A producer, a ring, a consumer with a ring of stores (0: it stores by itself)."""
    full, empty = Barrier("full", depth, 1), Barrier("empty", depth, 32)
    into, out = _ring("in", depth), _ring("out", stored)
    fill = (Wait(empty, K + -depth), Arrive(full, K, bytes=4 * TILE), _load(into, full))
    take = (Wait(full, K), _read(into), READ, Arrive(empty, K), TWICE)
    send = _store(out) if stored else (_store_direct(),)
    return _program(
        f"store ring {depth} {stored}", (into, out) if stored else (into,), (full, empty),
        Role("loader", 32, (Elect((_loop(*fill),)),)),
        Role("worker", 32, (_loop(*take, *send), *((STORED,) if stored else ()))),
    )  # fmt: skip


def two_producers(depth: int, apart: bool) -> Program:
    """Each loads a half of every tile; ``apart``: each has a ring's barrier of its own."""
    into = _ring("in", depth)
    fulls = [Barrier(f"full{i}", depth, 1) for i in (0, 1)] if apart else [
        Barrier("full", depth, 2)]  # fmt: skip
    empty = Barrier("empty", depth, 1)
    roles = []
    for half in (0, 1):
        full = fulls[half if apart else 0]
        load = _load(into, full, half, 2)
        fill = (Wait(empty, K + -depth), Arrive(full, K, bytes=2 * TILE), load)
        roles.append(Role(f"loader{half}", 32, (Elect((_loop(*fill),)),)))
    waits = [Wait(full, K) for full in fulls]
    take: tuple[Statement, ...] = (
        *waits,
        _read(into),
        READ,
        Sync(1, "role"),
        Elect((Arrive(empty, K),)),
        TWICE,
    )
    worker = Role("worker", 32, (_loop(*take, _store_direct()),))
    return _program(f"two producers {depth} {apart}", (into,), (*fulls, empty), *roles, worker)


def two_rings(one: int, two: int) -> Program:
    """Even tiles through one ring, odd ones through another: two steps in an iteration."""
    rings = (_ring("even", one), _ring("odd", two))
    fill: list[Statement] = []
    take: list[Statement] = []
    barriers: list[Barrier] = []
    for ring, depth in zip(rings, (one, two), strict=True):
        full = Barrier(f"full_{ring.name}", depth, 1)
        empty = Barrier(f"empty_{ring.name}", depth, 32)
        barriers += [full, empty]
        load = _load(ring, full)
        fill += [Wait(empty, K + -depth), Arrive(full, K, bytes=4 * TILE), load]
        take += [Wait(full, K), _read(ring), READ, Arrive(empty, K)]
    return _program(
        f"two rings {one} {two}", rings, tuple(barriers),
        Role("loader", 32, (Elect((_loop(*fill),)),)),
        Role("worker", 32, (_loop(*take, TWICE, _store_direct()),)),
    )  # fmt: skip


def chain(one: int, two: int, fenced: bool) -> Program:
    """A consumer that produces for another, by plain writes; the last stores by TMA or itself."""
    into, mid = _ring("in", one), _ring("mid", two)
    full, empty = Barrier("full", one, 1), Barrier("empty", one, 32)
    made, used = Barrier("made", two, 32), Barrier("used", two, 1 if fenced else 32)
    fill = (Wait(empty, K + -one), Arrive(full, K, bytes=4 * TILE), _load(into, full))
    change = (
        Wait(full, K), _read(into), READ, Arrive(empty, K), TWICE,
        Wait(used, K + -two), _write(mid), *((Fence("proxy.async"),) if fenced else ()),
        Arrive(made, K),
    )  # fmt: skip
    last: tuple[Statement, ...] = (Wait(made, K), _read(mid), Arrive(used, K), _store_direct())
    body: tuple[Statement, ...] = (_loop(*last),)
    if fenced:
        out = Access(Y, ((1,),), origin=(K * TILE,), guard=(True,))
        source = Access(mid, ((1,),), index=K)
        send = Do(INSTRUCTIONS["cp.async.bulk.tensor.global"], out, (source,), (TILE,))
        done = (Wait(made, K), send, Commit("bulk"), WaitGroup(0, "bulk", read=True))
        body = (Elect((_loop(*done, Arrive(used, K)),)),)
    return _program(
        f"chain {one} {two} {fenced}", (into, mid), (full, empty, made, used),
        Role("loader", 32, (Elect((_loop(*fill),)),)),
        Role("changer", 32, (_loop(*change),)),
        Role("sender", 32, body),
    )  # fmt: skip


def by_hand() -> Iterator[Program]:
    """Fifty programs."""
    yield from (store_ring(d, s) for d, s in product((1, 2, 3, 4), (0, 1, 2, 3, 4)))
    yield from (two_producers(d, a) for d, a in product((1, 2, 3, 4), (False, True)))
    yield from (two_rings(a, b) for a, b in ((1, 1), (1, 2), (2, 1), (2, 3), (3, 2), (4, 1)))
    yield from (chain(a, b, f) for a, b, f in product((1, 2), (1, 2, 3, 4), (False, True)))
