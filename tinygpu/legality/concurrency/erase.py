"""Erasing: from a program to the program that concurrency depends on.

``erase(program)`` is a rewrite from programs to programs, and the ordinary printer prints what it
returns.  It takes away sizes, thread maps, global memory, names of operands, and whatever no
condition asks about.  What stays of a write is a *footprint*:

    part     how much of a stage the statement fills (1: all of it); 0 if that is not known
    own      no two threads of the statement write one cell
    family   the loops of constant trips, copies and ranks along which ``own`` still holds
    along    those that move the cells; ``part`` is of one iteration
    once     no cell is written twice, in an iteration or in two of them
    apart    no other statement that fills a part of the ring writes a cell of it

A statement with a predicate reads what it writes: where that does not hold it is kept.

Five rewrites make programs smaller, and none hides a fault:

* A read of registers that follows, in the same block, a whole write at the same index sees that
  write.  It is dropped, and so are registers that nothing else reads.
* A statement that is done at once and touches nothing on chip is dropped.
* A loop of constant trips that only touches, at indices without its variable and one a ring,
  touches the same again in each iteration: one is enough.  Its writes then fill what all did.
* The bytes that loads land at a barrier are counted in their common divisor.
* A role whose threads no barrier counts has three: one, and two that do the same.

A parameter becomes ``s + c`` with a size s >= 1: any number from the least that is proved of it.

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> program = Simt().program(matmul("f32"), Chosen(LADDER["shared"]))
>>> for line in str(erase(program)).splitlines()[-9:-1]:
...     print(line[4:])
for kt in 0..trips:
  smem_a@(kt) = st.shared() x 1
  smem_b@(kt) = st.shared() x 1
  bar.sync 0
  nowhere[0] = ld.shared(smem_a@(kt)) x 1
  nowhere[0] = ld.shared(smem_b@(kt)) x 1
  sums = fma(sums) x 1
  bar.sync 0

Source: ``docs/model-concurrency.md``, section "Skeleton".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import lru_cache
from math import gcd, prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tinygpu.isa.instruction import Instruction
from tinygpu.numbers import Integers
from tinygpu.term.expression import Constant, Expression, value
from tinygpu.term.operation import Operand, Operation
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Axis,
    Barrier,
    Block,
    Buffer,
    Do,
    Elect,
    Exit,
    For,
    ForTile,
    Program,
    Role,
    Statement,
    Wait,
    changed,
    each,
    walked,
)

__all__ = ["Footprint", "Kind", "erase", "given", "kind_of", "plain", "settled", "tile_cells"]

Kind = Literal["plain", "copy", "load", "product", "store", "mma", "cp", "take", "put"]
Body = tuple[Statement, ...]


class _Erased(Program):
    """A program whose statements have footprints for operands: nothing is asked of those."""

    __slots__ = ()

    def __post_init__(self) -> None:
        pass


Loop = tuple[str, int, int, bool]  # a variable, from where to where, and if by other threads

_SIZE = "size_of_nothing"
_NOTHING = Operation(
    "nothing", (_SIZE,), (Operand("anything", (_SIZE,), "f32"),),
    Operand("nowhere", (_SIZE,), "f32"), epilogue=value("anything"),
)  # fmt: skip
_NOWHERE = Buffer("nowhere", "gmem", "f32", (_SIZE,), (1,))
_KINDS: Mapping[str, Kind] = {
    "at_once": "plain", "scoreboard": "plain", "barrier": "plain", "commit_group": "copy",
    "mbarrier": "load", "wgmma_group": "product", "bulk_group": "store", "tcgen05_commit": "mma",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Footprint(Access):
    """An access without a map: what is known of a write's cells."""

    part: Fraction = Fraction(1)
    own: bool = True
    family: tuple[str, ...] = ()
    along: tuple[str, ...] = ()
    once: bool = True
    apart: bool = True
    cells: bytes = b""  # a bit for each cell of a stage, while erasing


def kind_of(do: Do) -> Kind:
    """Return when a statement is done: at once ("plain"), or observed by what comes later."""
    completion = do.instruction.completion
    if completion == "tcgen05_wait":
        return "put" if do.write.buffer.level == "tmem" else "take"
    kind = _KINDS[completion]
    return "cp" if kind == "mma" and do.instruction.unit == "tmem" else kind


def erase(program: Program) -> Program:
    """Return what a program's concurrency depends on.  Its numbers have to be ints."""
    ranks = tuple((name, 0, int(extent), True) for name, extent in program.cluster)
    bodies = []
    for role in program.roles:
        copies = ((role.copy, 0, int(role.copies), True),) if role.copy else ()
        body = _lowered(_of_their_lanes(role.body), int(role.threads), (*ranks, *copies))
        flying = {b.name for do in _dos(body) if kind_of(do) != "plain" for b in _private(do)}
        body = _answered(body, flying)
        asked = flying | {b.name for do in _dos(body) for b in _private(do, reads_only=True)}
        bodies.append(_shortened(body, asked))
    bodies = [_least(program, body) for body in _parted(_counted(bodies))]
    touched = (a.buffer for body in bodies for do in _dos(body) for a in do.accesses)
    known = {b.name: _barrier(b) for b in program.barriers}
    return _Erased(
        program.name,
        _NOTHING,
        tuple(dict.fromkeys((*touched, _NOWHERE))),
        _parameters(program, bodies),
        tuple(Axis(a.var, Constant(1)) for a in program.grid if a.var in _mentioned(bodies)),
        tuple(
            Role(r.name, _crowd(int(r.threads), body), body, int(r.copies), r.copy)
            for r, body in zip(program.roles, bodies, strict=True)
        ),
        barriers=tuple(known.values()),
        cluster=tuple((name, int(extent)) for name, extent in program.cluster),
        persistent=bool(program.persistent),
    )


def plain(program: Program) -> Program:
    """Return a program with Python's ints for NumPy's, and its forms normal."""

    def of(s: Statement) -> Statement:
        return _whole(s).with_forms(normal)

    roles = tuple(replace(r, body=changed(r.body, of), copies=int(r.copies)) for r in program.roles)
    return replace(program, roles=roles, persistent=bool(program.persistent))


def _least(program: Program, body: Body) -> Body:
    """Return a body whose tile values are the least that they may be: more is not known of them."""
    ends = program.least_values()

    def of(s: Statement) -> Statement:
        if not isinstance(s, ForTile):
            return s
        return replace(s, values=tuple((name, Constant(int(ends[name]))) for name in s.defines))

    return changed(body, of)


def _mentioned(bodies: Sequence[Body]) -> set[str]:
    """Return the names in indices and guards."""
    forms = (form for body in bodies for s in each(body) for form in s.forms)
    return {name for form in forms for name, _ in form.terms}


def _crowd(threads: int, body: Body) -> int:
    """Return how many threads a role needs to have: 3 do as well as more, if nobody counts them."""
    return threads if any(_counting(body)) else min(threads, 3)


def _counting(body: Body) -> Iterator[bool]:
    """Yield of what all threads do at a barrier that it counts them."""
    for s in body:
        named = isinstance(s, Wait) and s.barrier.named
        yield named or any(use.how == "tell" for use in s.uses)
        if not isinstance(s, Elect):
            yield from _counting(s.body)


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


def _dos(body: Body) -> Iterator[Do]:
    return (s for s in each(body) if isinstance(s, Do))


def _private(do: Do, *, reads_only: bool = False) -> Iterator[Buffer]:
    """Yield the register buffers that a statement touches."""
    for access in do.accesses if not reads_only else do.reads:
        if isinstance(access, Access) and access.buffer.level == "registers":
            yield access.buffer


def _of_their_lanes(body: Body) -> Body:
    """Return statements that write registers without lanes, where nobody else touches those."""
    lanes: dict[str, set[tuple[int, int, int] | None]] = {}
    for do in _dos(body):
        for buffer in _private(do):
            lanes.setdefault(buffer.name, set()).add(do.lanes)

    def whole(s: Statement) -> Statement:
        if isinstance(s, Do) and s.lanes and len(lanes.get(s.write.buffer.name, ())) == 1:
            return replace(s, lanes=None)
        return s

    return changed(body, whole) if any(do.lanes for do in _dos(body)) else body


def _lowered(body: Body, threads: int, loops: tuple[Loop, ...]) -> Body:
    """Return statements without maps and numbers that order nothing."""
    out: list[Statement] = []
    for s in body:
        if s.accesses:
            out.append(_bare(s, threads, loops))
            continue
        s = _whole(s).with_forms(normal)
        if isinstance(s, Block):
            more = loops
            if isinstance(s, For):
                s = replace(s, unrolled=False)
                if not isinstance(s.trips, str):
                    more = (*loops, (s.var, s.start, s.trips, False))
            many = 1 if isinstance(s, Elect) else threads
            s = replace(s, body=_lowered(s.body, many, more))
        out.append(s)
    return tuple(out)


def _whole(s: Statement) -> Statement:
    """Return a statement with Python's ints for NumPy's."""
    changed: dict[str, Any] = {}
    for name in (field.name for field in fields(s)):
        value = getattr(s, name)
        if isinstance(value, np.integer | np.ndarray):
            changed[name] = int(value)
        elif isinstance(value, Barrier):
            changed[name] = _barrier(value)
    return replace(s, **changed)


def _barrier(barrier: Barrier) -> Barrier:
    number = None if barrier.number is None else int(barrier.number)
    return Barrier(barrier.name, int(barrier.stages), int(barrier.arrivals), barrier.home, number)


def _bare(do: Statement, threads: int, loops: tuple[Loop, ...]) -> Statement:
    """Return a statement with footprints in the place of maps."""
    if isinstance(do, Exit):
        moved = zip(do.threads, do.access.thread, strict=True)
        divides = any(int(n) > 1 and any(map(int, steps)) for n, steps in moved)
        return Exit(Access(_NOWHERE, thread=((1,),)), (), (2 if divides else 1,))
    assert isinstance(do, Do)
    reads = tuple(
        dict.fromkeys(
            Access(_buffer(r.buffer), index=normal(r.index))
            for r in (*do.reads, *([do.write] if do.where else ()))
            if isinstance(r, Access) and r.buffer.level != "gmem"
        )
    )
    landed = prod(map(int, do.values)) * do.write.buffer.type.bytes if do.signal else 1
    return Do(
        _untyped(do.instruction),
        _footprint(do, threads, loops),
        reads,
        (landed,),
        signal=(_barrier(do.signal[0]), normal(do.signal[1])) if do.signal else None,
        multicast=do.multicast,
        fresh=None if do.fresh is None else normal(do.fresh),
    )


@lru_cache(4096)
def _untyped(instruction: Instruction) -> Instruction:
    """Return what is left of an instruction: who issues it, and how it is seen to be done."""
    return replace(instruction, types=(), lower=None, meaning=None, laws=())


@lru_cache(4096)
def _buffer(buffer: Buffer) -> Buffer:
    copies = 2 if int(buffer.copies) > 1 else 1
    return Buffer(
        buffer.name, buffer.level, "f32", (), (), int(buffer.stages), copies=copies,
        home=buffer.home,
    )  # fmt: skip


def _footprint(do: Do, threads: int, loops: tuple[Loop, ...]) -> Footprint:
    """Return what a statement's write fills."""
    write = do.write
    if write.buffer.level == "gmem":
        return Footprint(_NOWHERE)
    together = not do.threads and do.instruction.issuer != "thread"
    origin = tuple(normal(o) for o in write.origin)
    named = {name for o in origin for name, _ in o.terms}
    around = tuple(loop for loop in loops if loop[0] in named)
    part, own, over, once, bits = _cells(
        write.buffer.level == "registers",
        tuple(map(int, write.buffer.shape)),
        origin,
        (write.value, tuple(map(int, do.values))),
        ((), ()) if together else (write.thread, tuple(map(int, do.threads))),
        do.lanes,
        1 if together else threads,
        around,
    )
    family = tuple(name for name, _, _, others in loops if (over if name in named else not others))
    if write.buffer.level == "tmem":
        part = Fraction(1)  # which lanes and columns are another law's matter
    return Footprint(
        _buffer(write.buffer), index=normal(write.index), part=part, own=own, family=family,
        along=tuple(loop[0] for loop in around), once=once, cells=bits, peer=int(write.peer),
    )  # fmt: skip


def tile_cells(program: Program) -> dict[str, tuple[bytes, bytes]]:
    """Return of each tile in tensor memory a bit for each cell written, and read.

    That is at any index.  No bits: a place is not known.  What a statement adds to it only writes.
    """
    found: dict[str, list[NDArray[np.uint8] | None]] = {}
    ranks = tuple((name, 0, int(extent), True) for name, extent in program.cluster)
    for role in program.roles:
        copies = ((role.copy, 0, int(role.copies), True),) if role.copy else ()
        for s, around in walked(role.body):
            if not isinstance(s, Do):
                continue
            fors = (f for f in around if isinstance(f, For) and not isinstance(f.trips, str))
            loops = (*ranks, *copies, *((f.var, int(f.start), int(f.trips), False) for f in fors))
            for access in s.accesses:
                buffer = access.buffer
                reads = access is not s.write
                if buffer.level != "tmem" or (reads and access == s.write):
                    continue
                origin = tuple(normal(o) for o in access.origin)
                named = {name for o in origin for name, _ in o.terms}
                values = (access.value, tuple(map(int, s.values)))
                moving = tuple(loop for loop in loops if loop[0] in named)
                shape = tuple(map(int, buffer.shape))
                by = (access.thread, tuple(map(int, s.threads)))
                many = int(role.threads) if s.threads else 1
                *_, bits = _cells(False, shape, origin, values, by, s.lanes, many, moving)
                both = found.setdefault(buffer.name, [np.zeros(-(-prod(shape) // 8), np.uint8)] * 2)
                here, old = np.frombuffer(bits, np.uint8), both[reads]
                both[reads] = None if old is None or not here.size else old | here
    return {name: (_bytes(written), _bytes(read)) for name, (written, read) in found.items()}


def _bytes(bits: NDArray[np.uint8] | None) -> bytes:
    return b"" if bits is None else bits.tobytes()


Modes = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]


@lru_cache(8192)
def _cells(
    private: bool,
    shape: tuple[int, ...],
    origin: tuple[Affine, ...],
    values: Modes,
    threads: Modes,
    lanes: tuple[int, int, int] | None,
    count: int,
    loops: tuple[Loop, ...],
) -> tuple[Fraction, bool, bool, bool, bytes]:
    """Return the part of a stage that an iteration fills, and whether threads' cells are apart.

    That is so in one iteration, and in all of ``loops``, which move the origin.  Then whether no
    cell is written twice; last a bit for each cell that all of them fill, if they are known.
    """
    nothing = Fraction(0)
    moving = any(any(steps) for steps in threads[0])
    if private and (moving or lanes is not None):
        return nothing, True, True, False, b""  # threads differ in what they write
    number = np.arange(1 if private else count)
    if lanes is not None:
        number = number[(number // lanes[0]) % lanes[1] == lanes[2]]
    known = {loop[0] for loop in loops}
    inside = all(n in known and isinstance(c, int) for o in origin for n, c in o.terms)
    box = _box(shape, number, values, threads)
    extents = [max(0, stop - start) for _, start, stop, _ in loops]
    turns = prod(extents)
    moves = np.indices(extents).reshape(len(extents), turns)
    places = []
    for d, o in enumerate(origin or (Affine(),) * len(shape)):
        at = np.full(turns, o.constant, np.int64)
        for i, (name, start, _, _) in enumerate(loops):
            for n, factor in o.terms:
                if n == name and isinstance(factor, int):
                    at = at + factor * (moves[i] + start)
        places.append(box[d][:, :, None] + at)
    if not shape or not places[0].size:
        return Fraction(int(not shape)), True, True, not shape, b""
    cells = np.zeros_like(places[0])
    for at, extent in zip(places, shape, strict=True):
        low, high = int(at.min()), int(at.max())
        inside = inside and low >= 0 and high < extent
        cells = cells * (high - low + 1) + (at - low)
    reach = int(cells.max()) + 1
    thread = np.arange(len(number))[:, None, None]
    other = np.zeros(turns, np.int64)  # copies and CTAs are other threads
    for (_, _, _, others), extent, move in zip(loops, extents, moves, strict=True):
        other = other * extent + move if others else other
    owner, over = _owners(cells, thread * turns + other, reach)
    _, own = _owners(cells[:, :, :1], thread, reach)
    total = int((owner >= 0).sum())
    if not inside:
        return nothing, own, over, False, b""
    filled = np.zeros(shape, bool)
    filled[tuple(places)] = True
    once = total == cells.size
    return Fraction(total, prod(shape) * turns), own, over, once, np.packbits(filled).tobytes()


def _parted(bodies: Sequence[Body]) -> list[Body]:
    """Say of each statement that fills a part whether its cells are no other one's."""
    filling: dict[str, list[tuple[Do, bytes]]] = {}
    for body in bodies:
        for do in _dos(body):
            if isinstance(do.write, Footprint) and do.write.part < 1:
                filling.setdefault(do.write.buffer.name, []).append((do, do.write.cells))
    shared: set[int] = set()
    for several in filling.values():
        cells = [np.frombuffer(bits, np.uint8) for _, bits in several]
        for i, one in enumerate(cells):
            others = (other for j, other in enumerate(cells) if j != i)
            if any(not one.size or not other.size or (one & other).any() for other in others):
                shared.add(id(several[i][0]))

    def said(s: Statement) -> Statement:
        if isinstance(s, Do) and isinstance(s.write, Footprint):
            return replace(s, write=replace(s.write, apart=id(s) not in shared, cells=b""))
        return s

    return [changed(body, said) for body in bodies]


def _owners(cells: Integers, who: Integers, reach: int) -> tuple[Integers, bool]:
    """Return who writes each cell last, and whether nobody else writes it."""
    owner = np.full(reach, -1, np.int64)
    owner[cells] = np.broadcast_to(who, cells.shape)
    return owner, bool((owner[cells] == who).all())


def _box(shape: tuple[int, ...], number: Integers, values: Modes, threads: Modes) -> list[Integers]:
    """Return each dimension's coordinate of each (thread, value), without the origin."""
    digits = []
    rest = number
    for extent in threads[1][:-1]:
        digits.append(rest % extent)
        rest = rest // extent
    digits.append(rest)
    steps = [(s, n) for s, n in zip(values[0], values[1], strict=True) if any(s)]
    spread = np.indices([n for _, n in steps]).reshape(len(steps), prod(n for _, n in steps))
    found = []
    for d in range(len(shape)):
        by_thread = np.zeros(len(number), np.int64)
        for digit, step in zip(digits, threads[0], strict=False):
            by_thread = by_thread + digit * step[d]
        by_value = np.zeros(spread.shape[1], np.int64)
        for i, (step, _) in enumerate(steps):
            by_value = by_value + spread[i] * step[d]
        found.append(by_thread[:, None] + by_value[None, :])
    return found


def _answered(body: Body, flying: set[str]) -> Body:
    """Drop the register reads that a whole write of the same block answers."""
    known: dict[str, Affine] = {}
    out: list[Statement] = []
    for s in body:
        if isinstance(s, Block):
            s = replace(s, body=_answered(s.body, flying))
            known.clear()
        elif isinstance(s, Do):
            reads = tuple(
                r for r in s.reads
                if isinstance(r, Access) and (
                    r.buffer.level != "registers" or r.buffer.name in flying
                    or known.get(r.buffer.name) != r.index)
            )  # fmt: skip
            s = replace(s, reads=reads)
            name = s.write.buffer.name
            known.pop(name, None)
            if isinstance(s.write, Footprint) and s.write.part == 1:
                known[name] = s.write.index
        out.append(s)
    return tuple(out)


def _shortened(body: Body, asked: set[str]) -> Body:
    """Drop what nobody asks about, and iterations that do again what the first did."""
    out: list[Statement] = []
    for s in body:
        inner = _shortened(s.body, asked)
        if isinstance(s, Do):
            write = s.write
            if write.buffer.level == "registers" and write.buffer.name not in asked:
                s = replace(s, write=Footprint(_NOWHERE))
            if s.reads or s.write.buffer.level != "gmem" or kind_of(s) != "plain":
                out.append(s)
        elif not isinstance(s, Block):
            out.append(s)
        elif isinstance(s, For) and not isinstance(s.trips, str):
            often = s.trips - s.start
            if often == 1 or (often > 1 and _repeats(inner, s.var)):
                out += (_placed(t, s.var, s.start, often) for t in inner)
            elif inner and often > 1:
                out.append(replace(s, body=inner))
        elif inner:
            out.append(replace(s, body=inner))
    return tuple(out)


def _repeats(body: Body, var: str) -> bool:
    """Say whether every iteration does again what the first did."""
    indices: dict[str, Affine] = {}
    for s in body:
        if not isinstance(s, Do) or s.signal or kind_of(s) not in ("plain", "product", "mma"):
            return False
        for access in s.accesses:
            if any(var in term for term in access.index.terms):
                return False
            if indices.setdefault(access.buffer.name, access.index) != access.index:
                return False
        write = s.write
        if not isinstance(write, Footprint):
            return False
        if write.buffer.level != "gmem" and var not in write.family:
            return False
    return True


def given(form: Affine, env: Mapping[str, int]) -> Affine:
    """Return a form with the values of some variables in their places.

    A parameter times a variable is the parameter, that many times.
    """
    if not any(name in env for name, _ in form.terms):
        return form  # it is normal, as all forms of a skeleton are
    constant = form.constant
    terms: list[tuple[str, int | str]] = []
    for name, factor in form.terms:
        if name not in env:
            terms.append((name, factor))
        elif isinstance(factor, str):
            terms.append((factor, env[name]))
        else:
            constant += factor * env[name]
    return normal(Affine(constant, tuple(terms)))


def settled(s: Statement, env: Mapping[str, int]) -> Statement:
    """Return a statement, but for its body, with the values of some variables in their places."""
    return s.with_forms(lambda form: given(form, env))


def _placed(statement: Statement, var: str, number: int, times: int) -> Statement:
    """Return a statement with a variable's value in its place; writes fill ``times`` as much."""

    def one(s: Statement) -> Statement:
        s = settled(s, {var: number})
        if not isinstance(s, Do) or not isinstance(write := s.write, Footprint):
            return s
        write = replace(
            write,
            part=write.part * (times if var in write.along else 1),
            family=tuple(n for n in write.family if n != var),
            along=tuple(n for n in write.along if n != var),
        )
        return replace(s, write=write)

    return changed((statement,), one)[0]


def _counted(bodies: Sequence[Body]) -> list[Body]:
    """Count the bytes of each barrier in their greatest common divisor."""
    unit: dict[str, int] = {}

    for s in (s for body in bodies for s in each(body)):
        if isinstance(s, Arrive) and s.bytes:
            unit[s.barrier.name] = gcd(unit.get(s.barrier.name, 0), s.bytes)
        elif isinstance(s, Do) and s.signal:
            unit[s.signal[0].name] = gcd(unit.get(s.signal[0].name, 0), s.values[0])

    def change(s: Statement) -> Statement:
        if isinstance(s, Arrive) and s.bytes:
            return replace(s, bytes=s.bytes // unit[s.barrier.name])
        if isinstance(s, Do) and s.signal and (one := unit[s.signal[0].name]):
            return replace(s, values=(s.values[0] // one,))
        return s

    return [changed(body, change) for body in bodies]


def _parameters(program: Program, bodies: Sequence[Body]) -> tuple[tuple[str, Expression], ...]:
    """Return the parameters and sizes that bodies name, each with its least value."""
    ends = program.least_values()
    names = sorted(set().union(*map(_named, bodies)) & set(ends))
    least = {name: max(int(low), -1) for name, low in ends.items()}
    return tuple((n, value(_SIZE) + Constant(least[n] - 1)) for n in names)


def _named(body: Body, bound: frozenset[str] = frozenset()) -> set[str]:
    """Return the names that statements do not bind: of sizes, parameters, ranks and copies."""
    found: set[str] = set()
    for s in body:
        terms = [term for form in s.forms for term in form.terms]
        names = {name for name, _ in terms} | {f for _, f in terms if isinstance(f, str)}
        found |= {*names, *(n for n in s.numbers if isinstance(n, str))} - bound
        found |= _named(s.body, bound.union(s.binds, s.defines))
    return found
