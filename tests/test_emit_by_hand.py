"""Code of programs that no machine makes: order of sums, fences, rings, loops, refusals."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.ptx_runs import unchecked as emit
from tests.sample import by_turns
from tinygpu.codegen.run.assemble import assemble
from tinygpu.errors import ProgramError
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.term.expression import Constant, value
from tinygpu.term.operation import elementwise
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
    Scalar,
    Statement,
    Sync,
    WaitGroup,
    When,
    buffers_of,
    registers,
    var,
)

COPY = elementwise(value("x") * 1.0, inputs=("x",))
ZERO = Affine()
THREADS = (3, 32)  # no power of two
X, Y = Buffer("x", "gmem", "f32", ("i",), (1,)), Buffer("y", "gmem", "f32", ("i",), (1,))
HELD = registers("held", "f32", 4)
RING = registers("ring", "f32", 4, stages=3)
TILE = Buffer("tile", "smem", "f32", (384,), (1,), 3, 384)
NONE = ((0,), (0,))


def outside(buffer: Buffer, origin: Affine = ZERO, *, guard: bool = True) -> Access:
    """Each thread's four neighbours in global memory."""
    return Access(buffer, ((1,),), ((4,), (12,)), (origin,), guard=(guard,))


def inside(index: Affine = ZERO) -> Access:
    return Access(TILE, ((1,),), ((4,), (12,)), index=index)


def held(buffer: Buffer = HELD, index: Affine = ZERO) -> Access:
    return Access(buffer, ((1,),), NONE, index=index)


def do(name: str, write: Access, *reads: Any, **how: Any) -> Do:
    return Do(INSTRUCTIONS[name], write, reads, (4,), THREADS, **how)


LOAD, STORE = do("ld.global", held(), outside(X)), do("st.global", outside(Y), held())
PUT, GET = do("st.shared", inside(), held()), do("ld.shared", held(), inside())


def hand(*body: Statement, **how: Any) -> Program:
    roles = how.pop("roles", (Role("all", 96, body),))
    used = buffers_of(tuple(s for role in roles for s in role.body))
    buffers = (X, Y, *(b for b in used if b.name not in ("x", "y")))
    parameters = (("trips", value("i").ceildiv(Constant(384))),)
    return Program("hand", COPY, buffers, parameters, (Axis("b", Constant(1)),), roles, **how)


def body_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.startswith("\t")]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


K = var("k", 384)
PIPELINE = (
    For("k", 2, (do("cp.async", inside(var("k")), outside(X, K)), Commit()), unrolled=True),
    For(
        "k",
        "trips",
        (
            WaitGroup(1),
            Sync(1),
            do("ld.shared", held(), inside(var("k"))),
            do("st.global", outside(Y, K), held()),
            When(
                var("k") + 2, "trips", (do("cp.async", inside(var("k") + 2), outside(X, K + 768)),)
            ),
            Commit(),
        ),
    ),
)
LEGAL: dict[str, tuple[Statement, ...]] = {
    "nothing": (),
    "copy": (LOAD, STORE),
    "through shared memory": (LOAD, PUT, Sync(), GET, STORE),
    "a ring of three": PIPELINE,
    "a ring of registers": (
        For("k", 5, (do("ld.global", held(RING, var("k")), outside(X, K)),
                     do("st.global", outside(Y, K), held(RING, var("k")))), unrolled=True),
    ),
    "loops in loops": (
        For("k", "trips", (For("j", 3, (LOAD,)), For("h", "trips", (STORE,), start=1))),
    ),
    "an exit, a guard": (Exit(outside(X), (4,), THREADS), When(Affine(0), "i", (LOAD,)), STORE),
    "some lanes": (LOAD, replace(STORE, lanes=(3, 32, 5)), replace(STORE, lanes=(1, 3, 0))),
    "constants": (do("mov", held(), Immediate(0.1)), STORE),
}  # fmt: skip


@pytest.mark.parametrize(("name", "arch"), by_turns(LEGAL, ["sm_80", "sm_90a", "sm_120"]))
def test_programs_by_hand_assemble(name: str, arch: str) -> None:
    """The walk knows terms, not machines; every way to make addresses."""
    for addressing in ("pointer", "i32", "i64"):
        text = emit(hand(*LEGAL[name], addressing=addressing), arch)
        assert assemble(text, arch).registers > 0
    assert assemble(emit(hand(*LEGAL[name], specialised=True), arch, {"i": 999}), arch)


OTHER = replace(INSTRUCTIONS["mov"], name="no.such")
PAIRS = held(registers("r", "f16", 4))
HALF = replace(inside(), buffer=replace(TILE, dtype="f16"))
MATRIX = do("ldmatrix", held(), inside())
REFUSED: dict[str, tuple[str, tuple[Statement, ...]]] = {
    "an instruction without a rule": (
        "no lowering rule", (replace(do("mov", held(), Immediate(0.0)), instruction=OTHER),),
    ),
    "a ring of registers in a loop": (
        "unroll the loop",
        (For("k", "trips", (do("ld.global", held(RING, var("k")), outside(X)),)),),
    ),
    "registers that there are not": (
        "is outside",
        (do("st.global", outside(Y), Access(HELD, ((2,),), NONE)),),
    ),
    "sums in f16": (
        "convert first",
        (do("fma", *[held(registers("half", "f16", 4))] * 4),),
    ),
    "a tile's instruction without roles": (
        "with mbarriers and roles alone",
        (do("wgmma", held(), HALF, HALF, held(), variant="fma"),),
    ),
    "a constant in a pair": ("stand in pairs", (do("mov", PAIRS, Immediate(0.0)), MATRIX)),
    "a shuffle of pairs": ("shfl.sync takes f32", (do("shfl.sync", PAIRS, PAIRS), MATRIX)),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_code_is_refused(name: str) -> None:
    message, body = REFUSED[name]
    with pytest.raises(ProgramError, match=message) as caught:
        emit(hand(*body))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ((do("st.global", outside(Y, K), held()),), "names 'k'; known are b, i, trips"),
        ((For("k", "turns", (LOAD,)),), "names 'turns'; known are i, trips"),
        ((do("mov", held(), Scalar("alpha")),), "names 'alpha'; known are "),
        (
            (do("st.global", outside(Y), Access(HELD, ((1,),), ((1,), (0,)))),),
            "thread steps have to be 0",
        ),
    ],
)
def test_names_are_resolved_when_a_program_is_built(body: tuple[Statement, ...], said: str) -> None:
    """A variable of no loop, no such parameter, no such scalar: not a KeyError of the emitter."""
    with pytest.raises(ProgramError, match=said):
        hand(*body)


def test_several_roles_are_refused() -> None:
    with pytest.raises(ProgramError, match="several roles, and no tiles that they take"):
        emit(hand(roles=(Role("a", 96, (LOAD,)), Role("b", 96, (STORE,)))))


@pytest.mark.parametrize(("wide", "high"), [(4, 3), (2, 4), (8, 8), (1, 3)])
def test_sums_go_in_serpentines(wide: int, high: int) -> None:
    """Each sum is there once, and shares a factor with the sum before it."""
    a, b = registers("a", "f32", high), registers("b", "f32", wide)
    sums = Access(registers("sums", "f32", high, wide), ((0, 1), (1, 0)))
    reads = (Access(a, ((0,), (1,))), Access(b, ((1,), (0,))), sums)
    fma = Do(INSTRUCTIONS["fma"], sums, reads, (wide, high), variant="fma")
    found = re.findall(r"fma\.rn\.f32 (%f\d+), (%f\d+), (%f\d+), (%f\d+);", emit(hand(fma)))
    assert len({target for target, *_ in found}) == len(found) == wide * high
    assert len({(x, y) for _, x, y, _ in found}) == wide * high
    assert all(target == sum_ for target, *_, sum_ in found)
    for (_, x, y, _), (_, p, q, _) in pairwise(found):
        assert x == p or y == q


def fenced(*body: Statement) -> bool:
    """Whether a guarded body ends in a fence of its warp."""
    loop = For("k", "trips", (When(var("k") + 1, "trips", body), Sync()))
    lines = body_of(emit(hand(loop)))
    return "bar.warp.sync -1;" in lines


def test_plain_loads_under_a_guard_are_fenced() -> None:
    """So that ptxas keeps them where they are; what is predicated anyway needs no fence."""
    free = do("ld.global", held(), outside(X, K, guard=False))
    assert fenced(free)
    assert fenced(do("mov", held(), Immediate(0.0)), free)
    assert not fenced(do("ld.global", held(), outside(X, K)))
    assert not fenced(GET)
    assert not fenced(do("cp.async", inside(), outside(X, K, guard=False)))
    assert "bar.warp.sync -1;" not in body_of(emit(hand(For("k", "trips", (free, Sync())))))


def test_the_fence_stands_between_load_and_label() -> None:
    free = do("ld.global", held(), outside(X, K, guard=False))
    lines = emit(
        hand(For("k", "trips", (When(var("k") + 1, "trips", (free,)), Sync())))
    ).splitlines()
    fence = lines.index("\tbar.warp.sync -1;")
    label = lines[fence + 1].removesuffix(":")
    branch = next(i for i, line in enumerate(lines) if line.endswith(f"bra {label};"))
    loads = [i for i, line in enumerate(lines) if "ld.global" in line and "//" not in line]
    assert loads
    assert all(branch < i < fence for i in loads)


@pytest.mark.parametrize(("bound", "there"), [(1, True), (0, False)])
def test_a_guard_that_is_known_leaves_no_branch(bound: int, *, there: bool) -> None:
    lines = body_of(emit(hand(LOAD, When(Affine(0), bound, (STORE,)))))
    assert any("st.global" in line for line in lines) is there
    assert not any("bra " in line for line in lines)


def test_an_unrolled_loop_is_its_iterations() -> None:
    """For i in start..n, unrolled, is the bodies one after the other."""

    def store(k: Affine) -> Statement:
        return do("st.global", outside(Y, k), held())

    loop = For("k", 4, (store(K),), unrolled=True, start=1)
    plain = tuple(store(Affine(384 * k)) for k in (1, 2, 3))

    def code(*body: Statement) -> list[str]:
        return [line for line in body_of(emit(hand(*body))) if not line.startswith("//")]

    assert code(LOAD, loop) == code(LOAD, *plain)
    assert code(LOAD, loop) != code(LOAD, *plain[:2])
