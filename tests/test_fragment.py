"""Fragments: who holds which element of a tile, and that stores put each where it belongs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.hopper_terms import term
from tests.ptx_threads import Event
from tests.sample import some
from tests.term_threads import C, Thread, tiles_of
from tinygpu.codegen.emit import emit
from tinygpu.codegen.kernel.scope import value_coordinates
from tinygpu.errors import ProgramError
from tinygpu.isa.fragment import FRAGMENTS
from tinygpu.isa.wgmma import COLUMN_STEPS, ROW_STEPS, THREADS, rows_of
from tinygpu.term.machine import Value
from tinygpu.term.program import Block, Do, For, Program, walk

Element = tuple[int, int]
_SYNC = "bar.sync"


# Base, values of a thread in it, and their rows and columns beyond the thread's first.
MANUAL: dict[str, tuple[tuple[int, int], int, Callable[[Any], tuple[Any, Any]]]] = {
    "mma": ((16, 8), 4, lambda i: (8 * (i // 2), i % 2)),
    "mma_a": ((16, 16), 8, lambda i: (8 * (i // 2 % 2), i % 2 + 8 * (i // 4))),
    "mma_b": ((8, 16), 4, lambda i: (0 * i, i % 2 + 8 * (i // 2))),
}


WGMMA = ((64, 8), *MANUAL["mma"][1:])


def by_formula(name: str, shape: tuple[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """PTX ISA: registers of mma.m16n8k16, and of wgmma.m64nN, repeated along columns, then rows."""
    (high, wide), each, beyond = MANUAL.get(name, WGMMA)
    threads = 128 if name == "wgmma" else 32
    t = np.arange(threads)[:, None]
    number, i = np.divmod(np.arange(shape[0] * shape[1] // threads)[None, :], each)
    row, column = beyond(i)
    across = shape[1] // wide
    row = number // across * high + t // 32 * 16 + t % 32 // 4 + row
    return row, number % across * wide + 2 * (t % 4) + column


shapes = given(rows=st.integers(1, 4), columns=st.integers(1, 32))


@pytest.mark.parametrize("name", FRAGMENTS)
@shapes
def test_places_are_the_tile_each_once(name: str, rows: int, columns: int) -> None:
    """A bijection from (thread, value) onto the tile."""
    fragment = FRAGMENTS[name]
    shape = (rows * fragment.base[0], columns * fragment.base[1])
    row, column = fragment.places(shape)
    assert row.shape == column.shape == (fragment.threads, prod(shape) // fragment.threads)
    flat = np.sort((row * shape[1] + column).ravel())
    assert np.array_equal(flat, np.arange(shape[0] * shape[1]))


@pytest.mark.parametrize("name", MANUAL)
@shapes
def test_places_are_those_of_the_manual(name: str, rows: int, columns: int) -> None:
    fragment = FRAGMENTS[name]
    shape = (rows * fragment.base[0], columns * fragment.base[1])
    for got, wanted in zip(fragment.places(shape), by_formula(name, shape), strict=True):
        assert np.array_equal(got, wanted)


@pytest.mark.parametrize("shape", [(15, 8), (16, 12), (8, 8)])
def test_parts_of_a_fragment_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ProgramError, match="no whole number of 16 x 8") as caught:
        FRAGMENTS["mma"].places(shape)
    assert "\n" not in str(caught.value)


def test_digits_of_a_product_are_those_of_the_manual() -> None:
    """Threads count quad, octet, warp; values pair, half, groups of columns."""
    extents = (2, 2, *THREADS)
    place = np.indices(extents[::-1])[::-1]  # of pair, half, quad, octet, warp
    row, column = (sum(s * at for s, at in zip(steps, place, strict=True))
                   for steps in (ROW_STEPS, COLUMN_STEPS))  # fmt: skip
    wanted = by_formula("wgmma", (64, 8))
    assert np.array_equal(np.asarray(row).reshape(128, 4), wanted[0])
    assert np.array_equal(np.asarray(column).reshape(128, 4), wanted[1])


def test_a_factor_in_registers_is_that_of_the_manual() -> None:
    """PTX ISA, A of m64k16: a0, a1 k beside one another; a2, a3 eight rows on; a4.. eight of k."""
    matrix = np.arange(64.0 * 16).reshape(64, 16)
    held = np.empty((8, 128, 1))
    for t in range(128):
        for i in range(8):
            row = t // 32 * 16 + t % 32 // 4 + 8 * (i // 2 % 2)
            word, half, deep = i % 2, i // 2 % 2, i // 4
            held[word + 2 * deep + 4 * half, t] = matrix[row, t % 4 * 2 + i % 2 + 8 * (i // 4)]
    in_order = matrix.reshape(4, 2, 8, 16).transpose(0, 2, 1, 3).reshape(64, 16)  # half fastest
    assert np.array_equal(rows_of(held)[0], in_order)
    with pytest.raises(ProgramError, match="count word, deep, half"):
        rows_of(held[:4])


ROW, COLUMN = (places.tolist() for places in by_formula("wgmma", (64, 256)))


def element(thread: int, symbol: tuple[int, int]) -> Element:
    """Row and column of a sum: the register ``i`` that the block's products wrote."""
    block, i = symbol
    return 64 * block + ROW[thread][i], COLUMN[thread][i]


def stored(event: Event) -> list[tuple[int, tuple[int, int]]]:
    """The addresses of one thread's store, and what goes there (st.shared, st.global)."""
    where, what = event.operands
    kind = event.opcode.rpartition(".")[2]
    values = what if isinstance(what[0], tuple) else (what,)
    width = 4 if kind == "f32" else 2
    return [(where + width * i, value) for i, value in enumerate(values)]


def matrices(events: list[Event]) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """What a warp's stmatrix stores: (address, lane, value)."""
    turned = ".trans" in events[0].opcode
    where = [event.operands[0] for event in events]
    for lane, event in enumerate(events):
        for i, pair in enumerate(event.operands[1]):
            for e, value in enumerate(pair):
                row, column = lane // 4, 2 * (lane % 4) + e
                if turned:
                    row, column = column, row
                yield where[8 * i + row] + 2 * column, lane, value


def parts(events: list[Event]) -> list[list[Event]]:
    """A thread's stores to shared memory, between one barrier and the next."""
    found: list[list[Event]] = [[]]
    for event in events:
        if event.opcode == _SYNC:
            found.append([])
        elif event.opcode.startswith(("st.shared", "stmatrix")):
            found[-1].append(event)
    return [part for part in found if part]


def put(memory: dict[int, Element], address: int, what: Element) -> None:
    assert address not in memory, f"{what} and {memory[address]} at {address:#x}"
    memory[address] = what


STAGED: list[tuple[str | None, dict[str, Value]]] = [
    (None, {}),
    (None, {"store_n": 32, "consumers": 1, "tile_n": 96, "store_stages": 1}),
    (None, {"store_n": 8, "tile_n": 24}),
    (None, {"swap": 1, "tile_n": 128}),
    (None, {"swap": 1, "tile_n": 24, "store_n": 8, "tile_m": 256, "store_stages": 4}),
    ("f32", {"store_n": 32, "tile_n": 64, "tile_m": 256}),
    ("f32", {"store_n": 16, "tile_n": 48, "store_stages": 1}),
    ("f32", {"store_n": 8, "tile_n": 24}),
]


@pytest.mark.parametrize(("output", "changes"), STAGED, ids=str)
def test_chunks_of_c_in_shared_memory(output: str | None, changes: dict[str, Value]) -> None:
    """Every element of a chunk is stored once, where the layout of its buffer has it."""
    program = term("tma store", "nt", output, **changes)
    text, sizes = emit(program), {"m": 4096, "n": 4096, "k": 64}
    role = program.roles[0]
    for copy in range(role.copies):
        first = copy * role.threads
        threads = [Thread(program, sizes, first + t) for t in range(128)]
        did = [parts(thread.did(text)) for thread in threads]
        chunks = list(chunks_of(program, threads[0], copy))
        assert {len(part) for part in did} == {len(chunks)}
        for number, wanted in enumerate(chunks):
            memory: dict[int, Element] = {}
            for warp in range(4):
                mine = [part[number] for part in did[32 * warp : 32 * warp + 32]]
                for together in zip(*mine, strict=True):
                    if together[0].opcode.startswith("stmatrix"):
                        for address, lane, value in matrices(list(together)):
                            put(memory, address, element(32 * warp + lane, value))
                        continue
                    for lane, event in enumerate(together):
                        for address, value in stored(event):
                            put(memory, address, element(32 * warp + lane, value))
            assert memory == wanted


def chunks_of(program: Program, thread: Thread, copy: int) -> Iterator[dict[int, Element]]:
    """For each chunk of the tile: address to (row, column) of the consumer's sums."""
    do, around = statement(program, "stmatrix", "st.shared")
    loops = [loop for loop in around if isinstance(loop, For) and loop.unrolled]
    every = replace(do.write, value=(*do.write.value, *do.write.thread), thread=())
    extents = (*do.values, *do.threads)
    rows, columns = by_columns(do)
    chunk = do.write.buffer.shape[columns]
    places = value_coordinates(every, extents)
    last = [loop.var for loop in loops].index("chunk") + 1  # a barrier stands around the others
    outer, inner = loops[:last], loops[last:]
    for numbers in product(*(range(int(loop.trips)) for loop in outer)):
        found: dict[int, Element] = {}
        for more in product(*(range(int(loop.trips)) for loop in inner)):
            env = {"turn": 0, "far": 0}
            env |= dict(zip((loop.var for loop in loops), (*numbers, *more), strict=True))
            addresses = thread.addresses(every, extents, env, copy)
            assert len({*addresses.tolist()}) == addresses.size
            found |= {
                at: (place[rows] + 64 * env["far"], place[columns] + chunk * env["chunk"])
                for at, place in zip(addresses.tolist(), places.tolist(), strict=True)
            }
        yield found


def by_columns(do: Do) -> tuple[int, int]:
    """The dimensions of a store along which the rows and the columns of sums lie."""
    columns = do.write.value[0].index(1)  # a pair's
    return 1 - columns, columns


DIRECT: list[tuple[str, str | None, dict[str, Value]]] = [
    ("plain", None, {}),
    ("plain", "f32", {"tile_n": 24, "store_n": 24}),
    ("ring", None, {"tile_n": 32, "store_n": 32}),
    ("swapped", None, {}),
    ("swapped", "f32", {"tile_m": 128, "tile_n": 24, "store_n": 24}),
    ("cluster", None, {"epilogue": "direct", "store_n": 64, "store_stages": 1, "tile_n": 64}),
]


@pytest.mark.parametrize(("start", "output", "changes"), some(DIRECT, 2), ids=str)
def test_sums_that_go_straight_to_c(
    start: str, output: str | None, changes: dict[str, Value]
) -> None:
    """Every element of c is stored once, at its place, by one CTA; nothing is stored outside."""
    program = term(start, "nt", output, **changes)
    text, sizes = emit(program), {"m": 151, "n": 70, "k": 64}
    role, c = program.roles[0], program.operation.output
    width = 4 if c.dtype == "f32" else 2
    rows, columns = program.grid_extents(sizes)
    extents = [extent for _, extent in program.cluster]
    memory: dict[int, Element] = {}
    for cluster in range(rows * columns):
        for rank in range(extents[0] * extents[1]):
            for number in range(role.threads * role.copies):
                thread = Thread(program, sizes, number, rank, cluster, rows * columns)
                for event in thread.did(text):
                    if event.opcode.startswith("st.global"):
                        for address, value in stored(event):
                            place = placed(program, thread, element(number % 128, value), sizes)
                            put(memory, address, place)
    assert memory == {C + (m * sizes["n"] + n) * width: (m, n)
                      for m in range(sizes["m"]) for n in range(sizes["n"])}  # fmt: skip


def statement(program: Program, *names: str) -> tuple[Do, tuple[Block, ...]]:
    """The one statement of these instructions, and the loops around it."""
    (found,) = (
        (s, around)
        for s, around in walk(program)
        if isinstance(s, Do) and s.instruction.name in names
    )
    return found


def placed(program: Program, thread: Thread, at: Element, sizes: dict[str, int]) -> Element:
    """Where in c the element of a consumer's sums belongs."""
    do, _ = statement(program, "st.global")
    rows, columns = by_columns(do)
    wide = 8 * do.values[-1]  # groups of columns
    env: dict[str, int] = {**thread.ranks(thread.rank), "w": thread.number // 128}
    env |= dict(zip(("br", "bc"), tiles_of(program, sizes)[thread.cluster], strict=True))
    env |= {"far": at[0] // 64, "chunk": at[1] // wide, "half": 0}  # which 64 rows have
    place = [o.evaluate(env) for o in do.write.origin]
    place[rows] += at[0] % 64
    place[columns] += at[1] % wide
    return place[0], place[1]
