"""Laws of what a warp does together: ldmatrix and mma.sync.

Lane q + 4 g of a warp (thread modes 4 and 8) holds in each matrix of 8 x 8 the *pair* 2 q, 2 q + 1
of row g; matrices lie 8 apart, along further values.  ldmatrix fetches a matrix by its rows of
16 B: the pair runs along them, or with ``.trans`` the lane's g does.  A row has four tf32 numbers,
a lane one of them, a pair of one; of 8 bits a row has 16, a lane four; ``.trans`` moves 16 bits and
is not for them.  What a product
takes of a thread is said by its ``Blocks``; the term has to count its values so.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.legality.reach import Case
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.ampere import STARTS, Ampere
>>> from tinygpu.term.operation import matmul
>>> program = Ampere().program(matmul("bf16"), Chosen(STARTS["plain"]))
>>> case = Case.of(program, {"m": 64, "n": 64, "k": 64}, load_device("h200"))
>>> all(c.holds for law in WARP_LAWS.values() for c in law.clauses(case))
True

Source: PTX ISA 9, "ldmatrix" and "Matrix Fragments for mma.m16n8k16 with floating point type".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import compress

from tinygpu.isa.fragment import Operand
from tinygpu.legality.law import Law
from tinygpu.legality.placement import memory_step
from tinygpu.legality.reach import Clause, Context, Place, moves, origin_of
from tinygpu.numbers import Number, Truth
from tinygpu.term.program import Access

__all__ = ["WARP_LAWS"]

_LANES = (4, 8)
_ROW_BYTES = 16  # spec: a row of ldmatrix


def matrices(context: Context, place: Place) -> Iterator[Clause]:
    """Check that lanes hold the pairs of rows of 16 B, which ldmatrix reads or stmatrix writes."""
    do = place.do
    read, own = sorted(do.accesses, key=lambda access: access.buffer.level != "smem")
    text = "{}: its first threads are {}; a warp's lanes are 4 pairs by 8 rows"
    lanes = tuple(do.threads[:2])
    yield Clause(len(lanes) == len(_LANES) and _same(lanes, _LANES), text, (do, lanes))
    width, turned = read.buffer.type.bytes, do.variant == "trans"
    text = "{}: its elements have {} B; 2 B, or without .trans 1 or 4 B, are moved"
    yield Clause(width == 2 or (width in (1, 4) and not turned), text, (do, width))
    pairs, row = max(1, 4 // width), _ROW_BYTES // width
    pair, (quad, group) = read.value[0], read.thread[:2]
    along, across = (group, pair) if turned else (pair, group)
    text = "{}: a lane's first value mode has {} values; it holds {}"
    yield Clause(do.values[0] == pairs, text, (do, do.values[0], pairs))
    text = "{}: the next lane is {} from this one, and an element {} wide"
    holds = _same(quad, tuple(pairs * step for step in pair))
    yield Clause(holds, text, (do, quad, pair))
    held = memory_step(own, own.value[0])
    yield Clause(held == 1, "{}: pairs lie {} registers apart in {}", (do, held, own))
    text = "{}: neighbours of its rows lie {} elements apart"
    step = memory_step(read, along)
    yield Clause(step == 1, text, (do, step))
    text = "{}: its rows start {} elements apart, no multiple of 16 B"
    rest = [
        *zip(do.values[1:], read.value[1:], strict=True),
        *zip(do.threads[2:], read.thread[2:], strict=True),
    ]
    for extent, steps in (*rest, (row, across)):
        step = memory_step(read, steps)
        if moves(step):
            yield Clause((step % row == 0) | (extent == 1), text, (do, step))
    for dimension, stride in enumerate(read.buffer.stride if read.origin else ()):
        assert not isinstance(stride, str)
        constant, terms = origin_of(context, read, dimension)
        for number in (constant, *(c for name, c in terms if name in place.ranges)):
            step = number * stride
            if moves(step):
                yield Clause(step % row == 0, text, (do, step))
    bits, base, _ = read.buffer.swizzle
    text = "{}: the swizzle of {} moves {} elements as one, and a row has {}"
    holds = (bits == 0) | (2**base >= row)
    yield Clause(holds, text, (do, read.buffer.name, 2**base, row))


def mma(context: Context, place: Place) -> Iterator[Clause]:
    """Check the shape and the order of a thread's values, as the instruction's blocks say them."""
    do = place.do
    if not do.instruction.blocks:
        return
    a, b, sums = (r for r in do.reads if isinstance(r, Access))
    blocks = do.instruction.blocks_of(a.buffer.dtype)
    m, n, k = blocks.shape
    same = sums.buffer.name == do.write.buffer.name
    yield Clause(same, "{} adds to other sums than it reads", (do,))
    text = "{} counts {} values of a thread; m{}n{}k{} has {} in each block"
    first = tuple(do.values[:3])
    holds = len(do.values) == len(blocks.values) + 2 and _same(first, blocks.values)
    yield Clause(holds, text, (do, first, m, n, k, " * ".join(map(str, blocks.values))))
    operands: list[tuple[Operand, Access]]
    operands = [("a", a), ("b", b), ("d", sums), ("d", do.write)]
    for name, access in operands:
        steps = tuple(memory_step(access, s) for s in access.value[:3])
        text = "{}: its first values lie {} elements apart; those of {} lie {}"
        far, counted = blocks.steps(name), [extent > 1 for extent in blocks.values]
        holds = _same(tuple(compress(steps, counted)), tuple(compress(far, counted)))
        yield Clause(holds, text, (access, steps, name, far))
    for shared, mode in ((a, 3), (b, 4)):  # a is the same for all columns, b for all rows
        moved: Truth = do.values[mode] == 1
        for step in shared.value[mode]:
            holds = (step == 0) | (do.values[mode] == 1)
            yield Clause(holds, "{}: it differs between blocks that share it", (shared,))
        for step in do.write.value[mode]:
            moved = moved | (step != 0)
        yield Clause(moved, "{}: two of its blocks have the same sums", (do,))


def _same(got: tuple[Number, ...], wanted: tuple[Number, ...]) -> Truth:
    """Say whether numbers (or arrays) agree one by one."""
    holds: Truth = True
    for one, other in zip(got, wanted, strict=True):
        holds = holds & (one == other)
    return holds


WARP_LAWS: Mapping[str, Law] = {
    law.name: law
    for law in (
        Law(
            "ldmatrix_rows",
            "States that ldmatrix reads rows of 16 B of neighbours, 16 B aligned, and that lane "
            "q + 4 g gets the 4 B q of row g.",
            "PTX ISA 9, ldmatrix",
            "choose rows of multiples of 16 B (tile_m, tile_n, tile_k)",
            of_place=matrices,
            of="ldmatrix",
        ),
        Law(
            "stmatrix_rows",
            "States that stmatrix writes rows of 16 B of neighbours, 16 B aligned, and that lane "
            "q + 4 g has the 4 B q of row g.",
            "PTX ISA 9, stmatrix",
            "store rows of multiples of 16 B (store_n)",
            of_place=matrices,
            of="stmatrix",
        ),
        Law(
            "mma_shape",
            "States that a warp multiplies blocks of its instruction's shape, values in the order "
            "of the fragments, each block with sums of its own.",
            "PTX ISA 9, mma.m16n8k16, mma.m16n8k8",
            "choose dtype bf16, f16 or tf32, and warps that divide the tile (tile_m, tile_n)",
            of_place=mma,
        ),
    )
}
"""Laws of a warp's instructions; part of ``tinygpu.legality.laws.LAWS``."""
