"""Small programs around one shared ring, and a strategy that draws pipelines of them."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.term.expression import Constant, value
from tinygpu.term.operation import matmul
from tinygpu.term.program import (
    Access,
    Affine,
    Axis,
    Buffer,
    Commit,
    Do,
    Exit,
    For,
    Immediate,
    Program,
    Role,
    Statement,
    Sync,
    WaitGroup,
    When,
    registers,
    var,
)

MANY = Buffer("a", "gmem", "f32", ("m", "k"), ("k", 1))
HELD = registers("held", "f32", 1)
KEPT = registers("kept", "f32", 1, stages=2)
PAIR = registers("pair", "f32", 2, stages=2)


def small(stages: int, body: tuple[Statement, ...], *, threads: int = 32) -> Program:
    """A program around one shared ring ``x``."""
    buffers = (MANY, ring(stages), HELD, KEPT, PAIR)
    return Program(
        "small",
        matmul("f32"),
        buffers,
        (("trips", value("k")), ("rows", value("m"))),
        (Axis("b", Constant(1)),),
        (Role("all", threads, body),),
    )


def ring(stages: int) -> Buffer:
    return Buffer("x", "smem", "f32", (32,), (1,), stages, 32)


def at(stages: int, index: Affine | int) -> Access:
    where = index if isinstance(index, Affine) else Affine(index)
    return Access(ring(stages), ((1,),), ((1,),), index=where)


def mine(index: Affine | int = 0, buffer: Buffer = HELD) -> Access:
    where = index if isinstance(index, Affine) else Affine(index)
    return Access(buffer, ((0,),), ((0,),), index=where)


def put(stages: int, index: Affine | int) -> Do:
    return Do(INSTRUCTIONS["st.shared"], at(stages, index), (mine(),), (1,), (32,))


def get(stages: int, index: Affine | int, to: Access | None = None) -> Do:
    return Do(INSTRUCTIONS["ld.shared"], to or mine(), (at(stages, index),), (1,), (32,))


def copy(stages: int, index: Affine | int) -> Do:
    source = Access(MANY, ((0, 1),), ((1, 0),), (Affine(), Affine()), guard=(True, True))
    return Do(INSTRUCTIONS["cp.async"], at(stages, index), (source,), (1,), (32,))


def use(index: Affine | int) -> Do:
    return Do(INSTRUCTIONS["cvt"], mine(), (mine(index, KEPT),), (1,), (32,))


ZERO = Do(INSTRUCTIONS["mov"], mine(), (Immediate(0.0),), (1,), (32,))
LEAVE = Exit(Access(MANY, ((0, 1),), ((1, 0),), (Affine(), Affine())), (1,), (32,))


KINDS = ("put", "get", "copy", "sync", "commit", "wait", "guard", "keep", "use", "loop")


@st.composite
def atoms(draw: DrawFn, stages: int, k: Affine, reach: int) -> Statement:
    """One statement, about as often of each kind as a pipeline has it."""
    d = draw(st.integers(0, reach))
    kind = draw(st.sampled_from(KINDS))
    match kind:
        case "put":
            return put(stages, k + d)
        case "get":
            return get(stages, k + d)
        case "copy":
            return copy(stages, k + d)
        case "sync":
            return Sync()
        case "commit":
            return Commit()
        case "wait":
            return WaitGroup(draw(st.integers(0, 2)))
        case "guard":
            return When(k + d, "trips", (draw(st.sampled_from([put, get, copy]))(stages, k + d),))
        case "keep":
            return get(stages, k, mine(k + d, KEPT))
        case "use":
            return use(k + d)
        case _:
            return For("kk", 3, (get(stages, k), use(k)), unrolled=True)


@st.composite
def pipelined(draw: DrawFn) -> Program:
    """A pipeline of drawn depth, distances and places, with a few statements dropped or added."""
    stages = draw(st.integers(1, 3))
    ahead = draw(st.integers(0, stages))
    copies = draw(st.booleans())
    k, move = var("kt"), copy if copies else put
    guarded = draw(st.booleans())

    def load(d: int) -> tuple[Statement, ...]:
        inner = (move(stages, k + d),)
        return (When(k + d, "trips", inner),) if guarded else inner

    groups: tuple[Statement, ...] = (Commit(),) if copies else ()
    fill: list[Statement] = [*load(0), *groups]
    parts: list[tuple[Statement, ...]] = [
        (WaitGroup(draw(st.integers(0, stages))),) if copies else (),
        (Sync(),),
        (get(stages, k), *((get(stages, k, mine(k, KEPT)), use(k)) if draw(st.booleans()) else ())),
        (*load(ahead), *groups),
    ]
    if draw(st.booleans()):
        parts[2], parts[3] = parts[3], parts[2]
    if draw(st.booleans()):
        parts.append((Sync(),))
    loop = [s for part in parts for s in part]
    for _ in range(draw(st.integers(0, 2))):
        if loop and draw(st.sampled_from([True, False])):
            loop.pop(draw(st.integers(0, len(loop) - 1)))
        else:
            loop.insert(draw(st.integers(0, len(loop))), draw(atoms(stages, k, stages)))
    tail: tuple[Statement, ...] = (WaitGroup(0), Sync()) if draw(st.booleans()) else ()
    if draw(st.integers(0, 9)) == 0:
        fill.append(Sync())
    enter = (LEAVE,) if draw(st.integers(0, 9)) == 0 else ()
    return small(
        stages,
        (
            *enter,
            ZERO,
            For("kt", ahead, tuple(fill), unrolled=True),
            For("kt", "trips", tuple(loop)),
            *tail,
        ),
    )
