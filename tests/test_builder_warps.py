"""The builder of warps' products: fragments as patterns, slices of tiles, pieces of lines."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sample import all_by_turns, draws
from tests.test_builder import told
from tinygpu.isa.fragment import FRAGMENTS
from tinygpu.isa.memory import DTYPES
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.meaning.identity import computes
from tinygpu.meaning.interpret import check
from tinygpu.meaning.touched import coordinates
from tinygpu.term.builder import Array, Held, Kernel, trace
from tinygpu.term.layout import Swizzle
from tinygpu.term.operation import elementwise, matmul
from tinygpu.term.program import Access, Do, For, Program, walk

ROWS, COLUMNS = "tm = (far half group)", "tn = (near group)"
SLICES = "tk = (slice half_k quad word)"
OUT = f"m = (bm tm), {ROWS}, n = (bn tn), tn = (near quad pair)"


def declared(k: Kernel, dtype: str = "bf16") -> None:
    k.grid("bm", "bn")
    k.threads(group=8, quad=4)
    k.tile(tm=32, tn=16, tk=32)
    k.values(far=2, near=2, half_k=2, half=2, pair=2, word=4 // DTYPES[dtype].bytes)


def one_warp(layout: str, dtype: str) -> Program:
    """Return a product by one warp, of tiles that it waits for, a slice after another."""

    def forward(k: Kernel) -> None:
        declared(k, dtype)
        width = DTYPES[dtype].bytes
        k.digit("slice", width)  # 32 steps of k: two slices of 16 bits, four of tf32
        sums = k.zeros("sums", "f32", "far", "near", "half", "pair")
        ways = []
        digits = {"a": ("tm", "far", "half"), "b": ("tn", "near")}
        for x in k.inputs:
            line, *blocks = digits[x.name]
            extents = {line: 32 if x.name == "a" else 16, "tk": 32}
            if x.axes[-1] != "k":
                extents = dict(reversed(extents.items()))
            tile = k.smem(f"smem_{x.name}", dtype, swizzle="line", **extents)
            dealt = "m = (bm tm), n = (bn tn), k = (kt tk)," + k.deal(
                x.name, vector=16 // width, **extents
            )
            held = k.registers(f"{x.name}_held", dtype, *blocks, "half_k", "word")
            ways.append((x, tile, dealt, held))
        for _ in k.loop("kt"):
            for x, tile, dealt, _ in ways:
                k.cp_async(tile[dealt], x[dealt])
            k.commit()
            k.wait_group("cp.async", 0)
            k.sync()
            for _ in k.unrolled("slice", width):
                for x, tile, _, held in ways:
                    part = tile[f"{ROWS}, {COLUMNS}, {SLICES}"]
                    if width == 2 or x.axes[-1] == "k":
                        k.ldmatrix(held, part)
                    else:
                        k.load(part, into=held)
                k.mma(sums, *(held for *_, held in ways))
            k.sync()
        k.store(k.output[OUT], sums)

    return trace("one_warp", forward, matmul(dtype, "f32", layout))


@all_by_turns(
    ("layout", ["nn", "nt", "tn", "tt"]),
    ("dtype", ["bf16", "f16", "tf32"]),
)
def test_a_warps_product_is_legal_and_right(layout: str, dtype: str) -> None:
    program = one_warp(layout, dtype)
    assert verdict(program).legal
    assert check(program, {"m": 40, "n": 24, "k": 72}) == ()
    assert computes(program).proved


@pytest.mark.parametrize(
    ("name", "fragment", "dtype"),
    [("a", "mma_a", "bf16"), ("b", "mma_b", "bf16"), ("a", "mma_a_tf32", "tf32"),
     ("b", "mma_b_tf32", "tf32")],
)  # fmt: skip
def test_patterns_say_the_fragments_of_the_manual(name: str, fragment: str, dtype: str) -> None:
    """Lane by lane and value by value, in a block of rows or columns and a slice."""
    program = one_warp("nt", dtype)
    (do,) = (
        s for s, _ in walk(program)
        if isinstance(s, Do) and s.instruction.name == "ldmatrix" and s.write.buffer.name[0] == name
    )  # fmt: skip
    (read,) = do.reads
    assert isinstance(read, Access)
    found = coordinates(read, do.values, do.threads, np.arange(32))  # dimension, value, lane
    table = FRAGMENTS[fragment]
    rows, columns = table.places(table.base)  # lane, value
    count = rows.shape[1]
    np.testing.assert_array_equal(found[0, :count], rows.T)
    np.testing.assert_array_equal(found[1, :count], columns.T)


def test_numbers_of_a_ring_count_on() -> None:
    """``held[step + 1, zero + 2]`` is value 4 (kt + 1) + 2; the tile is read at slice 2."""

    def forward(k: Kernel) -> None:
        k.threads(group=8, quad=4)
        k.tile(tm=32)
        k.values(far=2, half_k=2, half=2, word=2)
        zero = k.digit("slice", 4)
        k.tile(deep=64)
        tile = k.smem("tile", "bf16", tm=32, deep=64, stages=2)
        held = k.registers("held", "bf16", "far", "half", "half_k", "word", stages=2)
        at = f"{ROWS}, deep = (slice half_k quad word)"
        for step in k.loop("kt", over="k", by=64):
            k.ldmatrix(held[step + 1, zero + 2], tile[step + 1][zero + 2][at])
            for number in k.unrolled("slice", 4, start=1, stop=3):
                k.ldmatrix(held[step, number + 1], tile[step][number + 1][at])

    program = trace("ahead", forward, matmul("bf16", layout="nt"))
    one, other = (s for s, _ in walk(program) if isinstance(s, Do))
    assert str(one.write) == "held@(4*kt + 6)"
    assert str(other.write) == "held@(4*kt + slice + 1)"
    origins = [
        [str(o) for o in read.origin] for do in (one, other) for read in do.reads
        if isinstance(read, Access)
    ]  # fmt: skip
    assert origins == [["0", "32"], ["0", "16*slice + 16"]]


@pytest.mark.parametrize("added", [False, True])
def test_each_goes_through_a_digit_of_values(added: bool) -> None:
    """One value of far after another: the statements are of the others, and the sum is the same."""

    seen = []

    def forward(k: Kernel) -> None:
        k.grid("block")
        k.threads(thread=32)
        k.values(far=3, near=2)
        at = "i = (block far thread near)"
        held = whole = k.load(k.inputs[0][at])
        seen.append(whole.digits)
        for _ in k.each("far"):
            more = k.load(k.inputs[1][at])
            seen.extend([whole.digits, more.digits])
            if added:
                k.add(held, more)
            else:
                held = k.compute(k.op.epilogue, {"x": held, "z": more})
            k.store(k.output[at], held)
        seen.append(whole.digits)

    program = trace("each", forward, elementwise("x + z"))
    assert seen == [("far", "near"), ("near",), ("near",), ("far", "near")]
    (loop,) = (s for s in program.roles[0].body if isinstance(s, For))
    assert (loop.var, loop.trips, loop.unrolled) == ("far", 3, True)
    assert [s.values for s in loop.body if isinstance(s, Do)] == [(2,), (2,), (2,)]
    assert verdict(program).legal
    assert check(program, {"i": 500}) == ()


@settings(max_examples=draws(16, 40), deadline=None)
@given(st.data())
def test_a_tile_is_dealt_out_once(data: st.DataObject) -> None:
    """Each element has one thread and value, and a warp's threads lie side by side."""
    vector = data.draw(st.sampled_from((1, 2, 4, 8)))
    lines, wide = (data.draw(st.sampled_from((32, 64, 128))) for _ in "ab")
    warps = data.draw(st.sampled_from((1, 2, 4)))
    if lines * wide < 32 * warps * vector:
        return

    def forward(k: Kernel) -> None:
        k.threads(warp=warps, lane=32)
        tile = k.smem("tile", "f32", high=lines, wide=wide)
        at = k.deal("t", vector=vector, high=lines, wide=wide)
        k.load(tile[at], vector=vector)

    program = trace("dealt", forward, elementwise("x"))
    (do,) = program.roles[0].body
    assert isinstance(do, Do)
    (read,) = do.reads
    assert isinstance(read, Access)
    assert np.prod(do.threads) == 32 * warps
    places = coordinates(read, do.values, do.threads, np.arange(32 * warps))
    cells = places[0] * wide + places[1]
    assert sorted(cells.ravel().tolist()) == list(range(lines * wide))
    beside = min(32, wide // vector)
    np.testing.assert_array_equal(cells[0, :beside], vector * np.arange(beside))


@pytest.mark.parametrize("piece", [16, 32])
@pytest.mark.parametrize("dtype", ["e4m3", "bf16", "f32"])
@pytest.mark.parametrize("span", [16, 32, 64, 128, 256, 512, 1024])
def test_pieces_of_neighbouring_lines_meet_no_bank_twice(span: int, dtype: str, piece: int) -> None:
    """As many lines as 128 B have pieces: one piece of each of them, in as many places."""
    if span < piece:
        return
    each, pieces = DTYPES[dtype].bytes, 128 // piece
    k = Kernel("line", elementwise("x"))
    tile = k.smem("tile", dtype, high=32, wide=span // each, swizzle="line", piece=piece)
    pattern = tile.buffer.swizzle
    offset = np.arange(32 * span // each)
    moved = np.asarray(Swizzle(*pattern)(offset)) if pattern[0] else offset
    assert sorted(moved.tolist()) == offset.tolist()
    lines = moved.reshape(32, -1)[:, :: piece // each] * each
    for first in range(0, 32, pieces):
        for column in lines[first : first + pieces].T:
            assert len({int(byte) // piece % pieces for byte in column}) == pieces


# messages


def a_tile(k: Kernel) -> tuple[Array, Held]:
    declared(k)
    k.digit("slice", 2)
    tile = k.smem("tile", "bf16", tm=32, tk=32, stages=2)
    return tile, k.registers("held", "bf16", "far", "half", "half_k", "word", stages=2)


def other_digits(k: Kernel) -> None:
    tile, _ = a_tile(k)
    few = k.registers("few", "bf16", "far", "half", "word")
    for step in k.loop("kt", over="k", by=32):
        for _ in k.unrolled("slice", 2):
            k.ldmatrix(few, tile[step][f"{ROWS}, {SLICES}"])


def other_type(k: Kernel) -> None:
    tile, _ = a_tile(k)
    wide = k.registers("wide", "f32", "far", "half", "half_k", "word")
    for step in k.loop("kt", over="k", by=32):
        for _ in k.unrolled("slice", 2):
            k.load(tile[step][f"{ROWS}, {SLICES}"], into=wide)


def from_afar(k: Kernel) -> None:
    a_tile(k)
    held = k.registers("mine", "bf16", "far", "half", "half_k", "word")
    for _ in k.loop("kt"):
        for _ in k.unrolled("slice", 2):
            k.ldmatrix(held, k.inputs[0][f"m = (bm tm), k = (kt tk), {ROWS}, {SLICES}"])


def which_value(k: Kernel) -> None:
    tile, held = a_tile(k)
    for step in k.loop("kt", over="k", by=32):
        for _ in k.unrolled("slice", 2):
            k.ldmatrix(held, tile[step][f"{ROWS}, {SLICES}"])


def no_ring(k: Kernel) -> None:
    a_tile(k)
    mine = k.registers("mine", "bf16", "far")
    for step in k.loop("kt", over="k", by=32):
        mine[step]


def open_inside(k: Kernel) -> None:
    _, held = a_tile(k)
    for step in k.loop("kt", over="k", by=32):
        for number in k.unrolled("slice", 2):
            held[number, step]


def ended_number(k: Kernel) -> None:
    tile, _ = a_tile(k)
    for step in k.loop("kt", over="k", by=32):
        (number,) = k.unrolled("slice", 2)
        tile[step][number]


def no_such_digit(k: Kernel) -> None:
    tile, _ = a_tile(k)
    for step in k.loop("kt", over="k", by=32):
        for number in k.unrolled("slice", 2):
            k.load(tile[step][number][f"{ROWS}, tk = (half_k half_k half_k quad word)"])


def wrong_factors(k: Kernel) -> None:
    declared(k)
    sums = k.zeros("sums", "f32", "far", "near", "half", "pair")
    x = k.zeros("x", "bf16", "far", "half", "half_k", "word")
    k.mma(sums, x, x)


def each_lane(k: Kernel) -> None:
    declared(k)
    for _ in k.each("quad"):
        pass


def each_twice(k: Kernel) -> None:
    declared(k)
    for _ in k.each("far"):
        for _ in k.each("far"):
            pass


def left_early(k: Kernel) -> None:
    declared(k)
    for _ in k.each("far"):
        break


def declared_twice(k: Kernel) -> None:
    k.threads(slice=2)
    k.digit("slice", 2)


MISTAKES: list[tuple[Callable[[Kernel], None], str, str]] = [
    (other_digits, "few has bf16 by far half word, tile is read as bf16 by word half half_k far",
     'k.ldmatrix(few, tile[step][f"{ROWS}, {SLICES}"])'),
    (other_type, ("wide has f32 by far half_k half word, tile is read as bf16 by word half half_k "
     "far"), 'k.load(tile[step][f"{ROWS}, {SLICES}"], into=wide)'),
    (from_afar, "ldmatrix: a is not in shared memory",
     'k.ldmatrix(held, k.inputs[0][f"m = (bm tm), k = (kt tk), {ROWS}, {SLICES}"])'),
    (which_value, "held is a ring; say which value, as held[step]",
     'k.ldmatrix(held, tile[step][f"{ROWS}, {SLICES}"])'),
    (no_ring, "mine has no stages; give k.registers its stages", "mine[step]"),
    (open_inside, "held: kt is open; only the first number may be so", "held[number, step]"),
    (ended_number, "slice: its loop has ended; use it inside", "tile[step][number]"),
    (no_such_digit, "tile: at slice of slice, which no axis has",
     'k.load(tile[step][number][f"{ROWS}, tk = (half_k half_k half_k quad word)"])'),
    (wrong_factors, ("mma: far near half pair += far half_k half word * far half_k half word; it "
     "computes far near half pair += far half deep word * near deep word; digits of a alone are "
     "none, and have to be 2; digits of b alone are none, and have to be 1; digits of the sums "
     "alone are far near half pair, and have to be 1; digits of both are far half_k half word, "
     "and have to be 2"), "k.mma(sums, x, x)"),
    (each_lane, "each: quad is no digit of values that are still to be gone through",
     'for _ in k.each("quad"):'),
    (each_twice, "each: far is no digit of values that are still to be gone through",
     'for _ in k.each("far"):'),
    (left_early, "loop far: its body left by break or return; it is traced once, use k.when",
     'for _ in k.each("far"):'),
    (declared_twice, "digit slice: threads counts it already", 'k.digit("slice", 2)'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("forward", "said", "line"), MISTAKES, ids=lambda x: getattr(x, "__name__", "")
)
def test_a_mistake_is_one_message_with_its_line(
    forward: Callable[[Kernel], None], said: str, line: str
) -> None:
    first, second, *_ = told(forward)
    assert re.fullmatch(rf"test_builder_warps\.py:\d+: {re.escape(said)}", first)
    assert second == f"    {line}"
