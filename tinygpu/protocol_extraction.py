r"""Extraction of protocols: from an asynchronous program to what its legality depends on.

What is left out:

* A register ring whose every read follows, in the same block, a write of the same index.
* Iterations but the first of a loop of acts that does not occur in their indices, if each ring has
  one index in it, and no two threads of a write share a cell in two iterations: the others touch
  the same cells, between the same waits, at the same index.
* Bytes, where one arrival expects just what the loads beside it land: each load then counts 1.

>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.operation import matmul
>>> program = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["plain"]))
>>> lines = str(protocol_of(program)).splitlines()
>>> at = lines.index("producer x 1:")
>>> print("\n".join(lines[at : at + 8]))
producer x 1:
  one thread:
    for each tile t:
      for k in 0..trips:
        wait empty@(k + trips*t + -2)
        arrive full@(k + trips*t) expecting 2 B
        cp.async.bulk.tensor: write smem_a@(k + trips*t) at full@(k + trips*t)
        cp.async.bulk.tensor: write smem_b@(k + trips*t) at full@(k + trips*t)

Source: ``docs/model-concurrency.md``, section "Asynchronous programs".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import gcd, prod
from typing import Any, Literal, assert_never

from tinygpu.access_map import Access, Affine
from tinygpu.errors import ProgramError
from tinygpu.extraction import coverage, meeting
from tinygpu.program import (
    Block,
    Do,
    Elect,
    Exit,
    For,
    ForTile,
    Program,
    Statement,
    When,
    walk,
)
from tinygpu.protocol import (
    Act,
    Body,
    Crew,
    Guard,
    Kind,
    Loop,
    Node,
    One,
    Protocol,
    Ring,
    Tiles,
    Touch,
    every,
    names_in,
)
from tinygpu.synchronization import Arrive, Barrier, Commit, Fence, Sync, Wait, WaitGroup

__all__ = ["counted", "has_order", "is_asynchronous", "normal", "protocol_of", "shortened"]


@dataclass(frozen=True, slots=True)
class Around:
    """What is known where a statement stands: the role's threads, the loops of constant trips.

    ``loops``: each loop's variable, start and stop, innermost last.  ``partly``: registers of which
    some read asks for more than what the same block has just written.
    """

    threads: int
    partly: frozenset[str]
    loops: tuple[tuple[str, int, int], ...] = ()

    def within(self, var: str, start: int, stop: int) -> Around:
        """Return the same inside a loop."""
        return replace(self, loops=(*self.loops, (var, start, stop)))


_KINDS: dict[str, Kind] = {
    "commit_group": "copy", "mbarrier": "load", "wgmma_group": "product", "bulk_group": "store",
    "tcgen05_commit": "mma",
}  # fmt: skip


_SYNCHRONOUS = ("at_once", "scoreboard", "barrier", "commit_group")


def is_asynchronous(program: Program) -> bool:
    """Say whether a program needs this kind of description: more than bar.sync and cp.async."""
    copied = any(r.copies > 1 for r in program.roles)
    return bool(program.barriers or program.cluster or copied) or has_order(program)


def has_order(program: Program) -> bool:
    """Say whether a statement is one that bar.sync and cp.async do not describe."""
    for statement, _ in walk(program):
        match statement:
            case Elect() | ForTile() | Wait() | Arrive() | Fence():
                return True
            case Sync(_, scope) if scope != "cta":
                return True
            case Commit(group) | WaitGroup(_, group) if group != "cp.async":
                return True
            case Do(instruction) if instruction.completion not in _SYNCHRONOUS:
                return True
            case _:
                pass
    return False


def protocol_of(program: Program) -> Protocol:
    """Return the protocol of a program whose numbers are ints.

    Raises ProgramError for an ``Exit``, which threads of a CTA with mbarriers may not take.
    """
    lowest = program.least_values()
    bodies = [
        _lowered(r.body, Around(r.threads, _partly(r.body, r.threads))) for r in program.roles
    ]
    crews = []
    cluster = tuple((v, int(n)) for v, n in program.cluster)
    for role, body in zip(program.roles, bodies, strict=True):
        asked = _asked(body)
        short = shortened(body, asked)
        crews.append(Crew(role.name, int(role.threads), int(role.copies), role.copy, short))
    crews_in_loads = counted(tuple(crews), dict(cluster))
    names = sorted(set().union(*(names_in(c.body) for c in crews_in_loads)) & set(lowest))
    parameters = tuple((n, int(max(lowest[n], 0))) for n in names)
    return Protocol(crews_in_loads, cluster, bool(program.persistent), parameters)


@lru_cache(4096)
def normal(index: Affine) -> Affine:
    """Return the form with each variable once, sorted, none of them zero."""
    whole: dict[str, int] = {}
    scaled: list[tuple[str, int | str]] = []
    for name, coefficient in index.terms:
        if isinstance(coefficient, str):
            scaled.append((name, coefficient))
        else:
            whole[name] = whole.get(name, 0) + int(coefficient)
    terms: list[tuple[str, int | str]] = [(n, c) for n, c in sorted(whole.items()) if c]
    return Affine(int(index.constant), (*terms, *sorted(scaled)))


def _barrier(barrier: Barrier) -> Barrier:
    return Barrier(barrier.name, int(barrier.stages), int(barrier.arrivals), barrier.home)


def _lowered(body: tuple[Statement, ...], around: Around) -> Body:
    """Return the nodes of statements."""
    out: list[Node] = []
    for s in body:
        match s:
            case For(var, trips, inner, _, start):
                stop = trips if isinstance(trips, str) else int(trips)
                here = around if isinstance(stop, str) else around.within(var, int(start), stop)
                out.append(Loop(var, int(start), stop, _lowered(inner, here)))
            case When(index, bound, inner):
                limit = bound if isinstance(bound, str) else int(bound)
                out.append(Guard(normal(index), limit, _lowered(inner, around)))
            case Elect(inner):
                out.append(One(_lowered(inner, around)))
            case ForTile(tile, turn, inner, start, step):
                first = start if isinstance(start, Affine) else Affine(int(start))
                inside = _lowered(inner, around)
                out.append(Tiles(tile, turn, normal(first), int(step), inside))
            case Do():
                out.append(_act(s, around))
            case Exit():
                raise ProgramError(
                    f"{s}: threads of a CTA with mbarriers or a cluster may not leave early; "
                    "guard their accesses instead"
                )
            case Sync(number, scope):
                out.append(Sync(0 if scope == "cluster" else int(number), scope))
            case WaitGroup(pending, group, read):
                out.append(WaitGroup(int(pending), group, read))
            case Wait(barrier, index):
                out.append(Wait(_barrier(barrier), normal(index)))
            case Arrive(barrier, index, count, to, after):
                out.append(Arrive(_barrier(barrier), normal(index), int(count), to, after))
            case Commit() | Fence():
                out.append(s)
            case _:
                assert_never(s)
    return tuple(out)


def _act(do: Do, around: Around) -> Act:
    kind: Kind = _KINDS.get(do.instruction.completion, "generic")
    if kind == "mma" and do.instruction.unit == "tmem":
        kind = "cp"
    if do.instruction.completion == "tcgen05_wait":
        kind = "put" if do.write.buffer.level == "tmem" else "take"
    moved = prod(map(int, do.values))
    part = Fraction(moved, int(do.write.buffer.stage_elements)) if kind == "load" else Fraction(1)
    touches = [
        Touch(_ring(read), normal(read.index), write=False)
        for read in do.reads
        if isinstance(read, Access) and read.buffer.level != "gmem"
    ]
    if do.write.buffer.level != "gmem":
        by_threads = kind in ("generic", "copy")
        overlap, meets = meeting(do, around.threads, around.loops) if by_threads else (False, ())
        if do.write.buffer.name in around.partly and kind == "generic":
            in_place = do.write in do.reads  # it makes nothing whole, and needs no more than it has
            part = Fraction(in_place or coverage(do, around.threads)[0])
        write = Touch(_ring(do.write), normal(do.write.index), True, overlap, part, meets)
        touches.append(write)
    landed = moved * do.write.buffer.type.bytes if do.signal else 0
    signal = (_barrier(do.signal[0]), normal(do.signal[1])) if do.signal else None
    fresh = None if do.fresh is None else normal(do.fresh)
    unique = tuple(dict.fromkeys(touches))
    return Act(do.instruction.name, kind, unique, signal, do.multicast, landed, fresh)


Written = dict[str, tuple[Affine, "Footprint | None"]]


def _partly(
    body: tuple[Statement, ...], threads: int, before: Written | None = None
) -> frozenset[str]:
    """Return registers of which some read is not answered by what was just written around it.

    It is by a write of the same index, if that fills the registers or writes all that is read.
    """
    found: set[str] = set()
    written = dict(before or {})
    for statement in body:
        if isinstance(statement, Block):
            for buffer in _written_in(statement.body):
                written.pop(buffer, None)
            found |= _partly(statement.body, threads, written)
        elif isinstance(statement, Do):
            for access in statement.reads:
                if not isinstance(access, Access) or access.buffer.level != "registers":
                    continue
                name, index = access.buffer.name, normal(access.index)
                if name not in written or not (
                    written[name][0] == index
                    and _answers(written[name][1], _footprint(statement, access))
                ):
                    found.add(name)
            write = statement.write
            if write.buffer.level == "registers":
                whole = coverage(statement, threads)[0]
                what = None if whole else _footprint(statement, write)
                written[write.buffer.name] = normal(write.index), what
    return frozenset(found)


def _written_in(body: tuple[Statement, ...]) -> set[str]:
    """Return the names of the buffers that statements write, at any depth."""
    found: set[str] = set()
    for statement in body:
        if isinstance(statement, Do):
            found.add(statement.write.buffer.name)
        elif isinstance(statement, Block):
            found |= _written_in(statement.body)
    return found


Footprint = tuple[
    tuple[tuple[int, ...], ...], tuple[int, ...], tuple[Affine, ...], tuple[Any, ...], int
]


def _footprint(do: Do, access: Access) -> Footprint:
    """Return what says which cells of registers an access of a statement touches, in each thread.

    That is values' steps and extents, the origin, what the threads differ in, dimensions.
    """
    origin = tuple(map(normal, access.origin))
    apart = (access.thread, do.threads) if any(map(any, access.thread)) else ()
    return access.value, do.values, origin, (*apart, do.lanes), len(access.buffer.shape)


@lru_cache(4096)
def _answers(written: Footprint | None, read: Footprint) -> bool:
    """Say whether a write (None: a whole one) makes all the cells that a read asks for."""
    if written is None or written == read:
        return True
    return written[2:] == read[2:] and _cells(read) <= _cells(written)


def _cells(footprint: Footprint) -> set[tuple[int, ...]]:
    """Return the cells, less the origin."""
    steps, extents, _, _, rank = footprint
    found = {(0,) * rank}
    for step, extent in zip(steps, extents, strict=True):
        found = {
            tuple(c + i * s for c, s in zip(cell, step, strict=True))
            for cell in found
            for i in range(extent if any(step) else 1)
        }
    return found


def _ring(access: Access) -> Ring:
    buffer = access.buffer
    shared: Literal["cta", "copy"] = "copy" if int(buffer.copies) > 1 else "cta"
    place = "thread" if buffer.level == "registers" else shared
    return Ring(buffer.name, int(buffer.stages), place, buffer.home)


def _asked(body: Body) -> set[str]:
    """Return the register rings of which a read is not answered by a write of the same block."""
    found: set[str] = set()
    written: dict[str, Affine] = {}
    for node in body:
        if isinstance(node, Loop | Guard | One | Tiles):
            found |= _asked(node.body)
            written.clear()
        elif isinstance(node, Act):
            for touch in node.touches:
                if not touch.write and written.get(touch.ring.name) != touch.index:
                    found.add(touch.ring.name)
            if node.kind == "generic":
                for t in node.touches:
                    if t.write:
                        written.pop(t.ring.name, None)
                        written |= {t.ring.name: t.index} if t.part == 1 else {}
            else:
                found |= {t.ring.name for t in node.touches}
    return found


def shortened(body: Body, asked: set[str]) -> Body:
    """Drop what nobody asks for, and iterations that repeat the first."""
    out: list[Node] = []
    for node in body:
        match node:
            case Act(_, kind, touches):
                kept = tuple(t for t in touches if t.ring.share != "thread" or t.ring.name in asked)
                if kept or kind != "generic":
                    out.append(replace(node, touches=kept))
            case Loop(var, start, stop):
                inner = shortened(node.body, asked)
                if isinstance(stop, int) and stop <= start:
                    continue
                if isinstance(stop, int) and (stop == start + 1 or _repeats(inner, var)):
                    out += _placed(inner, var, start)
                elif inner:
                    out.append(replace(node, body=inner))
            case Guard() | One() | Tiles():
                if inner := shortened(node.body, asked):
                    out.append(replace(node, body=inner))
            case _:
                out.append(node)
    return tuple(out)


def _repeats(body: Body, var: str) -> bool:
    """Say whether every iteration does again what the first did."""
    indices: dict[str, Affine] = {}
    for node in body:
        if not isinstance(node, Act) or node.signal:
            return False
        for touch in node.touches:
            if var in touch.meets or any(var in term for term in touch.index.terms):
                return False
            if indices.setdefault(touch.ring.name, touch.index) != touch.index:
                return False
    return True


def _placed(body: Body, var: str, number: int) -> Body:
    """Return the body with a variable's value in its place."""

    def put(form: Affine) -> Affine:
        factors = [c for n, c in form.terms if n == var]
        rest = Affine(form.constant, tuple(t for t in form.terms if t[0] != var))
        for factor in factors:  # a parameter times the variable is the parameter, number times
            rest = rest + (Affine(0, ((factor, number),)) if isinstance(factor, str)
                           else factor * number)  # fmt: skip
        return normal(rest)

    return tuple(_mapped(node, put) for node in body)


def _mapped(node: Node, put: Callable[[Affine], Affine]) -> Node:
    match node:
        case Act():
            touches = tuple(replace(t, index=put(t.index)) for t in node.touches)
            signal = (node.signal[0], put(node.signal[1])) if node.signal else None
            fresh = None if node.fresh is None else put(node.fresh)
            return replace(node, touches=touches, signal=signal, fresh=fresh)
        case Wait() | Arrive():
            return replace(node, index=put(node.index))
        case Guard():
            inner = tuple(_mapped(n, put) for n in node.body)
            return replace(node, index=put(node.index), body=inner)
        case Tiles():
            inner = tuple(_mapped(n, put) for n in node.body)
            return replace(node, start=put(node.start), body=inner)
        case Loop() | One():
            return replace(node, body=tuple(_mapped(n, put) for n in node.body))
        case _:
            return node


def counted(crews: tuple[Crew, ...], cluster: dict[str, int]) -> tuple[Crew, ...]:
    """Count bytes in loads, or else in their greatest common divisor."""
    users: dict[str, list[tuple[Arrive | Act, Body]]] = {}
    for crew in crews:
        for node, block in every(crew.body):
            if isinstance(node, Arrive) and node.bytes:
                users.setdefault(node.barrier.name, []).append((node, block))
            elif isinstance(node, Act) and node.signal:
                users.setdefault(node.signal[0].name, []).append((node, block))
    units: dict[str, tuple[int, int]] = {}  # bytes of an arrival, and of a load (0: divide)
    for name, found in users.items():
        expects = [n for n, _ in found if isinstance(n, Arrive)]
        loads = [n for n, _ in found if isinstance(n, Act)]
        indices = {n.index for n in expects} | {n.signal[1] for n in loads if n.signal}
        landed = sum(n.bytes * cluster.get(n.multicast, 1) for n in loads)
        alike = len(indices) == 1 and len({id(block) for _, block in found}) == 1
        still = not any(v in term for x in indices for term in x.terms for v in cluster)
        if len(expects) == 1 and alike and still and landed == expects[0].bytes:
            count = sum(cluster.get(n.multicast, 1) for n in loads)
            units[name] = (count, 1)
        else:
            units[name] = (gcd(*(n.bytes for n, _ in found)) or 1, 0)

    def replaced(body: Body) -> Body:
        out: list[Node] = []
        for node in body:
            if isinstance(node, Loop | Guard | One | Tiles):
                out.append(replace(node, body=replaced(node.body)))
            elif isinstance(node, Arrive) and node.bytes:
                whole, one = units[node.barrier.name]
                out.append(replace(node, bytes=whole if one else node.bytes // whole))
            elif isinstance(node, Act) and node.signal:
                whole, one = units[node.signal[0].name]
                out.append(replace(node, bytes=one or node.bytes // whole))
            else:
                out.append(node)
        return tuple(out)

    return tuple(replace(c, body=replaced(c.body)) for c in crews)
