"""Predicates of a Do: masks of attention, on each value, in every walk.

The kernel sums the visible part of each row: j <= i + size j - size i (causal, aligned at the
bottom right).  A row's end is loaded as 7, which a second mask takes away.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import test_named_barriers as turns_of
from tests.ptx_runs import parsed, unchecked
from tests.sample import draws
from tinygpu.codegen.run.interpretation import execute
from tinygpu.devices.device import load_device
from tinygpu.errors import ProgramError
from tinygpu.isa.algebra import FLOATS
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import LAWS, require_sound
from tinygpu.legality.reach import Case, structural_key
from tinygpu.meaning.canonical import canonical_run
from tinygpu.meaning.identity import computes
from tinygpu.meaning.interpret import interpret
from tinygpu.search.time.cost import cost
from tinygpu.search.time.work import agents, total_work
from tinygpu.space.signature import _asked, numbers_of
from tinygpu.term.access_map import Access, Affine, Buffer, Immediate, Predicate
from tinygpu.term.builder import Kernel, trace
from tinygpu.term.expression import Constant, value
from tinygpu.term.operation import Operand, Operation, Reduction
from tinygpu.term.program import (
    Axis,
    Do,
    For,
    Program,
    Role,
    Statement,
    registers,
    var,
    walk,
)

ROWS = Operation(
    "rows",
    ("i", "j"),
    (Operand("x", ("i", "j"), "f32"),),
    Operand("y", ("i",), "f32"),
    (Reduction("acc", "add", value("x"), ("j",)),),
    value("acc"),
)
OUTSIDE = 7.0


def masked(causal: bool = True, ragged: bool = True, shift: int = 0, first: float = 0.0) -> Program:
    def forward(k: Kernel) -> None:
        (x, y) = k.arrays
        k.threads(row=8, lane=4)
        k.values(r=2, v=3)
        k.grid("block")
        sums = k.zeros("sums", "f32", "r")
        for _ in k.loop("jt"):
            rows, columns = "i = (block row r)", "j = (jt lane v)"
            part = k.load(x[f"{rows}, {columns}"], outside=OUTSIDE, vector=1)
            j = k.at(columns)
            if causal:
                k.fill(part, first, where=j > k.at(rows) + k.size("j") - k.size("i") + shift)
            if ragged:
                k.fill(part, 0.0, where=j >= k.size("j"))
            k.add(sums, part)
        k.butterfly("add", sums, over="lane")
        with k.only(lane=0):
            k.store(y["i = (block row r)"], sums, vector=1)

    return trace("rows", forward, ROWS)


SIZES = [{"i": 20, "j": 31}, {"i": 37, "j": 20}, {"i": 16, "j": 24}, {"i": 1, "j": 1}]


def visible(sizes: dict[str, int]) -> Any:
    i, j = np.ogrid[: sizes["i"], : sizes["j"]]
    return j <= i + sizes["j"] - sizes["i"]


def given_x(sizes: dict[str, int], seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-9, 9, (sizes["i"], sizes["j"])).astype(np.float32)


def emulated(program: Program, sizes: dict[str, int], x: Any, seed: int = 0) -> Any:
    y = np.full(sizes["i"], np.nan, np.float32)
    report = execute(program, sizes, {"x": x, "y": y}, parsed(unchecked(program)), seed=seed)
    assert not report.findings
    return y


def interpreted(program: Program, sizes: dict[str, int], x: Any, seed: int = 0) -> Any:
    result = interpret(program, sizes, {"x": x}, seed=seed)
    assert {f.kind for f in result.findings} <= {"wrong_result"}  # the operation has no mask
    return result.outputs["y"]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_causal_mask_and_a_ragged_edge_are_numpys(sizes: dict[str, int]) -> None:
    program, x = masked(), given_x(sizes)
    assert verdict(program).legal
    require_sound(program, "sm_80", sizes)
    want = np.where(visible(sizes), x, 0).sum(1)
    for seed in range(3):
        np.testing.assert_array_equal(interpreted(program, sizes, x, seed), want)
        np.testing.assert_array_equal(emulated(program, sizes, x, seed), want)


@pytest.mark.parametrize("sizes", SIZES[:2], ids=str)
def test_the_canonical_run_masks_as_numpy_does(sizes: dict[str, int]) -> None:
    x = given_x(sizes)
    found, findings, _ = canonical_run(masked(), sizes, {"x": x}, {}, FLOATS)
    assert not findings
    np.testing.assert_array_equal(found["y"], np.where(visible(sizes), x, 0).sum(1))


WRONG = {
    "no causal mask": masked(causal=False),
    "no mask of the ragged edge": masked(causal=False, ragged=False),
    "a column too many": masked(shift=1),
    "a column too few": masked(shift=-1),
    "another number": masked(first=1.0),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_mask_is_seen_by_comparing(name: str) -> None:
    sizes = SIZES[0]
    x = given_x(sizes)
    want = x.sum(1) if "ragged" in name else np.where(visible(sizes), x, 0).sum(1)
    got = interpreted(WRONG[name], sizes, x)
    assert (got != want).any()
    np.testing.assert_array_equal(got, emulated(WRONG[name], sizes, x))
    found, _, _ = canonical_run(WRONG[name], sizes, {"x": x}, {}, FLOATS)
    np.testing.assert_array_equal(got, found["y"])


def with_statements(program: Program, change: Any) -> Program:
    """Return a program with ``change`` of each Do, None to drop it."""

    def of(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        out: list[Statement] = []
        for s in body:
            if isinstance(s, For):
                out.append(replace(s, body=of(s.body)))
            elif not isinstance(s, Do) or (s := change(s)) is not None:
                out.append(s)
        return tuple(out)

    return replace(program, roles=tuple(replace(r, body=of(r.body)) for r in program.roles))


def first_mask(program: Program) -> Do:
    return next(s for s, _ in walk(program) if isinstance(s, Do) and s.where is not None)


def test_a_predicate_covers_nothing() -> None:
    """What is written where a predicate holds has to have been written before."""
    without = with_statements(masked(), lambda s: None if s.instruction.loads else s)
    judged = verdict(without)
    assert judged.outcome == "illegal"
    assert "unwritten" in str(judged)
    sizes = SIZES[0]
    found = interpret(without, sizes, {"x": given_x(sizes)}).findings
    assert "unwritten_read" in {f.kind for f in found}
    where = Predicate(Affine())
    cleared = with_statements(masked(), lambda s: replace(
        s, where=where
    ) if "sums = mov" in str(s) else s)  # fmt: skip
    assert "unwritten" in str(verdict(cleared))


def test_a_predicate_is_of_arithmetic_on_own_registers() -> None:
    where = Predicate(Affine())

    def predicated(name: str) -> None:
        with_statements(masked(), lambda s: replace(s, where=where)
                        if s.instruction.name == name else s)  # fmt: skip

    for name in ("ld.global", "shfl.sync", "st.global"):
        with pytest.raises(ProgramError, match="has no predicate"):
            predicated(name)
    for wrong in (replace(where, value=(1,)), replace(where, thread=(1, 2, 3))):
        with pytest.raises(ProgramError, match=r"its predicate has \d steps"):
            with_statements(masked(), lambda s: replace(s, where=wrong) if s.where else s)  # noqa: B023
    held = registers("held", "bf16", 4)
    narrow = Do(INSTRUCTIONS["mov"], Access(held, ((1,),)), (Immediate(0.0),), (4,), where=where)
    program = masked()
    role = replace(program.roles[0], body=(*program.roles[0].body, narrow))
    with pytest.raises(ProgramError, match="a predicate is of f32 or f64"):
        replace(program, roles=(role,), buffers=(*program.buffers, held))


def test_a_mask_is_a_comparison_and_a_move_for_each_value() -> None:
    """No branch; what the values share is added once, and what the loop leaves alone before it."""
    text = unchecked(masked())
    note = next(line for line in text.splitlines() if "mov(0.0)" in line and "where" in line)
    mask = text.partition(note)[2].partition("//")[0].split("\n")[1:-1]
    names = [re.sub(r"@%p\d+ ", "@p ", line.strip()).split()[0:2] for line in mask]
    kinds = [" ".join(words[: 1 + (words[0] == "@p")]) for words in names]
    assert kinds.count("@p mov.f32") == 6
    assert kinds.count("setp.lt.s32") == 4  # two rows by three columns have four differences
    assert len(kinds) == 11  # and one mad


def test_what_a_predicate_compares_fits_32_bits() -> None:
    def far(by: int) -> Program:
        def change(s: Do) -> Do:
            return replace(s, where=replace(s.where, origin=s.where.origin + by)) if s.where else s

        return with_statements(masked(), change)

    def refused(program: Program, sizes: dict[str, int]) -> bool:
        case = Case.of(program, sizes, None)
        return any(not c.holds for c in LAWS["predicates"].clauses(case))

    sizes = {"i": 1000, "j": 1000}
    assert not refused(masked(), sizes)
    assert not refused(far((1 << 31) - 3000), sizes)
    for by in ((1 << 31) - 1, -(1 << 31) - 1):
        assert refused(far(by), sizes)


def test_a_predicate_is_part_of_what_tells_terms_apart() -> None:
    mask = first_mask(masked())
    assert mask.where is not None
    other = replace(mask, where=replace(mask.where, origin=mask.where.origin + 1))
    keys = {structural_key(s) for s in (mask, other, replace(mask, where=None))}
    assert len(keys) == 3
    plain = with_statements(masked(), lambda s: replace(s, where=None))
    assert numbers_of(masked())[0] != numbers_of(plain)[0]
    assert _asked((mask,)) == {"x_held"}  # which it reads, as it keeps some of it
    assert not _asked((replace(mask, where=None),))


def test_a_predicate_costs_a_comparison() -> None:
    sizes, device = {"i": 4096, "j": 4096}, load_device("h200")
    plain = with_statements(masked(), lambda s: replace(s, where=None))
    one, other = (total_work(agents(p, device, sizes, 1)[0].after) for p in (plain, masked()))
    assert other["int"] > one.get("int", 0.0)
    assert other["issue"] > one["issue"]
    assert cost(masked(), sizes, device).seconds >= cost(plain, sizes, device).seconds


def test_the_builder_says_what_is_no_condition() -> None:
    k = Kernel("rows", ROWS)
    k.threads(row=8)
    k.values(r=2, v=3, w=2)
    k.grid("block")
    held = k.zeros("held", "f32", "v")
    rows = k.at("i = (block row r)")
    with pytest.raises(ProgramError, match="moves with r"):
        k.fill(held, 0.0, where=rows < k.size("i"))
    with pytest.raises(ProgramError, match="give the condition"):
        bool(rows < 3)
    with pytest.raises(ProgramError, match="has 2 axes"):
        k.at("i = (block row r), j = v")
    with pytest.raises(ProgramError, match="axis z"):
        k.size("z")


def test_a_mask_is_never_proved_for_all_sizes() -> None:
    """The theorem about all sizes does not cover a comparison of coordinates."""
    found = computes(masked())
    assert not found.proved
    assert "compares coordinates" in found.unproved


def test_a_predicate_in_a_role_counts_the_threads_of_the_copy() -> None:
    """Worker w of two doubles tiles 2 k + w: here only elements from 100 on, less 5 for a lane."""
    where = Predicate(
        100 + -1 * (turns_of.TILE * turns_of.STEP), (-1,), (-5,), bound=Affine(1)
    )  # 64 (2 k + w) + v + 5 t > 99
    twice = replace(turns_of.TWICE, where=where)
    program = turns_of.turns(turns_of.put(turns_of.LOOP, turns_of.TWICE, twice))
    assert verdict(program).legal
    x = np.random.default_rng(2).standard_normal(turns_of.SIZES["i"]).astype(np.float32)
    at = np.arange(len(x))  # value v of lane t is element t + 32 v of its tile
    number = at // 64 * 64 + at % 64 // 32 + 5 * (at % 32)
    want = np.where(number > 99, 2 * x, x)
    result = interpret(program, turns_of.SIZES, {"x": x})
    np.testing.assert_array_equal(result.outputs["y"], want)
    y = np.full_like(x, np.nan)
    text = parsed(unchecked(program))
    assert not execute(program, turns_of.SIZES, {"x": x, "y": y}, text).findings
    np.testing.assert_array_equal(y, want)


# Random predicates, of any arithmetic

GRID, JT = var("block"), var("jt")
HELD, OUT = registers("held", "f32", 4), registers("out", "f32", 4)


def selecting(where: Predicate | None, how: str, variant: str, source: str) -> Program:
    """y = sum over tiles of held, of which a statement with a predicate changes some values."""
    x = Buffer("x", "gmem", "f32", ("i", "j"), ("ld_x", 1))
    y = Buffer("y", "gmem", "f32", ("i",), (1,))
    steps = ((0, 1), (0, 2))
    mine, out = Access(HELD, ((1,), (2,))), Access(OUT, ((1,), (2,)))
    total = Access(registers("total", "f32", 1), ((0,), (0,)))
    one = Access(registers("total", "f32", 1), ())
    load = Do(
        INSTRUCTIONS["ld.global"], mine,
        (Access(x, steps, ((1, 0),), origin=(8 * GRID, 4 * JT), guard=(True, True)),),
        (2, 2), (8,),
    )  # fmt: skip
    arithmetic = INSTRUCTIONS["fma"]
    copy = Do(arithmetic, out, (mine, Immediate(1.0)), (2, 2), variant="add")
    reads: tuple[Any, ...] = {"const": (Immediate(3.0),), "regs": (mine, out)}[source]
    change = Do(INSTRUCTIONS[how], out, reads, (2, 2), (8,), variant=variant, where=where)
    add = Do(arithmetic, total, (total, out), (2, 2), variant="add")
    clear = Do(INSTRUCTIONS["mov"], one, (Immediate(0.0),), ())
    store = Do(
        INSTRUCTIONS["st.global"], Access(y, (), ((1,),), origin=(8 * GRID,), guard=(True,)),
        (one,), (), (8,),
    )  # fmt: skip
    trips = ("trips", value("j").ceildiv(Constant(4)))
    body: tuple[Statement, ...] = (clear, For("jt", "trips", (load, copy, change, add)), store)
    return Program(
        "selecting", ROWS, (x, y, HELD, OUT, total.buffer), (("ld_x", value("j")), trips),
        (Axis("block", value("i").ceildiv(Constant(8))),), (Role("all", 8, body),),
    )  # fmt: skip


STEP = st.integers(-5, 5)
WHERE = st.builds(
    lambda constant, block, jt, size, steps, threads, bound: Predicate(
        Affine(constant, (("block", block), ("jt", jt), ("j", size))), steps, threads, bound
    ),
    STEP, STEP, STEP, STEP, st.tuples(STEP, STEP), st.tuples(STEP),
    st.builds(lambda c, i, j: Affine(c, (("i", i), ("trips", j))), STEP, STEP, STEP),
)  # fmt: skip
HOW = st.sampled_from(
    [("mov", "", "const"), ("fma", "mul", "regs"), ("fma", "sub", "regs"), ("alu", "max", "regs")]
)


@settings(max_examples=draws(16, 40), deadline=None)
@given(WHERE, HOW, st.integers(1, 17), st.integers(1, 13), st.integers(0, 5))
def test_the_code_of_a_random_predicate_is_what_the_term_means(
    where: Predicate, how: tuple[str, str, str], i: int, j: int, seed: int
) -> None:
    sizes, program = {"i": i, "j": j}, selecting(where, *how)
    x = given_x(sizes, seed)
    kept = interpreted(program, sizes, x, seed)
    np.testing.assert_array_equal(emulated(program, sizes, x, seed), kept)
    found, _, _ = canonical_run(program, sizes, {"x": x}, {}, FLOATS)
    np.testing.assert_array_equal(found["y"], kept)
    np.testing.assert_array_equal(kept, by_numpy(where, how, x))


def by_numpy(where: Predicate, how: tuple[str, str, str], x: Any) -> Any:
    """Return what the term computes, value by value."""
    (i, j), y = x.shape, np.zeros(x.shape[0], np.float32)
    tiles = -(-j // 4)
    bound = where.bound.evaluate({"i": i, "trips": tiles})
    for row in range(i):
        for tile in range(tiles):
            origin = where.origin.evaluate({"block": row // 8, "jt": tile, "j": j})
            for v in range(4):
                held = x[row, 4 * tile + v] if 4 * tile + v < j else np.float32(0)
                out = held + 1
                number = origin + row % 8 * where.thread[0]
                if number + v % 2 * where.value[0] + v // 2 * where.value[1] < bound:
                    changes = {"": 3, "mul": held * out, "sub": held - out, "max": max(held, out)}
                    out = changes[how[1]]
                y[row] += out
    return y
