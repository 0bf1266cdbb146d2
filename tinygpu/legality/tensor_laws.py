"""Laws of whole tiles: boxes that TMA moves, tiles that wgmma multiplies, fragments that hold them.

TMA moves a *box*: the first two value modes of its statement, (contiguous elements, lines); further
modes are boxes of their own, and more than 256 lines are several of equal height.  wgmma reads its
inputs through descriptors, which can say two things of a tile in shared memory, swizzled in rows of
S = 32, 64 or 128 B:

    K-major     k is contiguous, the rows (columns) of the product lie S apart
    MN-major    rows (columns) are contiguous, steps of k lie S apart; slabs S wide lie anywhere

TMA and wgmma take the XOR of the swizzle from address bits, and stages start at a multiple of its
pattern, 8 S bytes.  So do tiles that wgmma reads; a box may start at any line of 128 B.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.term.operation import matmul
>>> program = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["plain"]))
>>> case = Case.of(program, {"m": 64, "n": 64, "k": 100}, load_device("h200"))
>>> print(next(c for c in TENSOR_LAWS["tma_strides"].clauses(case) if not c.holds))
a: lines are 200 B apart; TMA needs a multiple of 16 B

Source: CUDA Driver API, "Tensor Map Object Management"; PTX ISA 9, "Asynchronous Warpgroup Level
Matrix Instructions", and ``docs/hopper-laws.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tinygpu.isa.tma import BOX_SIDE, boxes
from tinygpu.legality.law import Law
from tinygpu.legality.placement import memory_step
from tinygpu.legality.reach import Case, Clause, Context, Place, last_origin, moves, origin_of
from tinygpu.numbers import Number, Truth
from tinygpu.term.digits import (
    box_lines,
    held_factor,
    layout_faults,
    lines_apart,
    neighbours,
    product_of,
)
from tinygpu.term.program import Access, Buffer, Do, same_place, select

__all__ = ["TENSOR_LAWS", "span_bytes", "starts"]

_PIECE_BYTES = 16  # spec: TMA's, a swizzle's and a descriptor's unit
_BOX_BYTES = 128  # spec: what a box in shared memory starts at, whatever its swizzle
_RANK = 5  # spec: tensorRank
_COORDINATE = 1 << 31  # spec: coordinates are s32
_BLOCK = 64  # spec: wgmma's m
_COLUMNS = 256  # spec: wgmma's largest n
_SLICE_BYTES = 32  # spec: wgmma's k


def tma_strides(context: Context, place: Place) -> Iterator[Clause]:
    """Check the distance between an array's lines; one line may lie so.

    A store writes whole pieces of 16 B, so a line that is stored ends where one does (Triton,
    issue 11583).  That the array starts at a multiple of 16 B is asked at launch, which knows it.
    """
    if place.do.instruction.unit != "tma":
        return
    buffer = _ends(place.do)[0].buffer
    lines: Number = 1
    for extent, stride in zip(buffer.shape, buffer.stride, strict=True):
        lines = context.number(extent) if isinstance(stride, str) else lines
    for dimension, stride in enumerate(buffer.stride):
        if isinstance(stride, str):
            apart = context.number(stride) * buffer.type.bytes
            text = "{}: lines are {} B apart; TMA needs a multiple of {} B"
            holds = (apart % _PIECE_BYTES == 0) | (lines == 1)
            yield Clause(holds, text, (buffer.name, apart, _PIECE_BYTES))
        elif place.do.write.buffer is buffer and np.all(np.equal(stride, 1)):
            size = context.number(buffer.shape[dimension]) * buffer.type.bytes
            text = "{}: a line has {} B; TMA stores whole pieces of {} B, past its end, too"
            yield Clause(size % _PIECE_BYTES == 0, text, (buffer.name, size, _PIECE_BYTES))
    if neighbours(place.do):
        gmem, _ = _ends(place.do)
        step = np.maximum(lines_apart(place.do, gmem), 1)
        for extent, steps in zip(buffer.shape, gmem.value[1], strict=True):
            if moves(steps):
                text = "{}: {} lines, of which a box has every {}th; their number is a multiple"
                many = context.number(extent)
                yield Clause(many % step == 0, text, (buffer.name, many, step))


def tma_coordinates(context: Context, place: Place) -> Iterator[Clause]:
    """Check that coordinates of an array fit."""
    if place.do.instruction.unit == "tma":
        buffer = _ends(place.do)[0].buffer
        for extent in map(context.number, buffer.shape):
            text = "{}: {} elements along a dimension; TMA's coordinates are below {}"
            yield Clause(extent < _COORDINATE, text, (buffer.name, extent, _COORDINATE))


def tma_lines(context: Context, place: Place) -> Iterator[Clause]:
    """Check where boxes begin of which lines outside are left out: one map has the rest of all."""
    do = place.do
    if do.instruction.unit != "tma" or not do.trimmed or len(do.values) < 2:
        return
    gmem, _ = _ends(do)
    constant, terms = origin_of(context, gmem, len(gmem.buffer.shape) - 2)
    lines = np.maximum(box_lines(do), 1)
    for step in (constant, *(c for _, c in terms)):
        text = "{}: boxes of {} lines begin {} lines apart, and lines outside are left out"
        yield Clause(step % lines == 0, text, (do, lines, step))


def tma_box(context: Context, place: Place) -> Iterator[Clause]:
    """Check a box's sides, and that it lies in both memories as TMA puts it.

    Within a piece of 16 B of a line it cannot begin: the instruction is illegal (Triton, 7385).
    """
    do = place.do
    if do.instruction.unit != "tma":
        return
    gmem, smem = _ends(do)
    if len(do.values) < 2:
        yield Clause(False, "{} moves no box: it has {} value modes", (do, len(do.values)))
        return
    inner, lines = do.values[:2]
    many = boxes(lines)
    if gmem.buffer.pages:
        many = lines // np.maximum(box_lines(do), 1)
    for side in (inner, lines // many):
        text = "{}: a side of its box has {} elements; 1 to {} are allowed"
        yield Clause((side >= 1) & (side <= BOX_SIDE), text, (do, side, BOX_SIDE))
    text = "{}: its {} lines are no {} boxes of equal height"
    yield Clause(lines % many == 0, text, (do, lines, many))
    width, wide = smem.buffer.type.bytes, span_bytes(smem.buffer)
    row = inner * width
    text = "{}: rows of its box have {} B, no multiple of {}"
    yield Clause(row % _PIECE_BYTES == 0, text, (do, row, _PIECE_BYTES))
    text = "{}: rows of its box have {} B, and the swizzle of {} has rows of {} B"
    holds = (smem.buffer.swizzle[0] == 0) | (row == wide)
    yield Clause(holds, text, (do, row, smem.buffer.name, wide))
    far, near = memory_step(smem, smem.value[1]), neighbours(do)
    packed = (far == inner) | (lines == 1)
    if neighbours(do):
        packed = (far == inner * near) & (memory_step(smem, smem.value[3]) == inner)
        yield from _box_apart(context, place, gmem)
    holds = (memory_step(smem, smem.value[0]) == 1) & packed
    text = "{}: its box does not lie packed in {}"
    yield Clause(holds, text, (do, smem.buffer.name))
    first, second = gmem.value[0], gmem.value[3 if neighbours(do) else 1]
    along: Truth = True
    others: Number = 0  # how far mode 1 goes along the other dimensions, together
    for stride, step, other in zip(gmem.buffer.stride, first, second, strict=True):
        fast = not isinstance(stride, str)
        along = along & (step == (1 if fast else 0)) & (other >= 0)
        along = along & (other == 0) if fast else along
        others = others if fast else others + other
    along = along & (others == 1)
    text = "{}: rows of its box do not run along the contiguous dimension of {}"
    yield Clause(along, text, (do, gmem.buffer.name))
    text = "{}: its boxes lie {} B apart in {}, no multiple of {}"
    holds = (many == 1) | (side * row % _BOX_BYTES == 0)
    yield Clause(holds, text, (do, side * row, smem.buffer.name, _BOX_BYTES))
    begins = [begin for _, _, begin in _steps(context, place, gmem)]
    begins += [memory_step(gmem, of) * width for of in (*gmem.value[2:], *gmem.thread)]
    for begin in begins:
        text = "{}: along a line it begins at steps of {} B; TMA needs multiples of {}"
        yield Clause(begin % _PIECE_BYTES == 0, text, (gmem, begin, _PIECE_BYTES))
    for _, _, begin in _steps(context, place, smem):
        text = "{}: it starts at steps of {} B; TMA needs multiples of {}"
        yield Clause(begin % _BOX_BYTES == 0, text, (smem, begin, _BOX_BYTES))


def tma_pages(context: Context, place: Place) -> Iterator[Clause]:
    """Check that a box of an array in pages lies in one of them."""
    do = place.do
    if do.instruction.unit != "tma" or not (pages := _ends(do)[0].buffer.pages):
        return
    gmem, _ = _ends(do)
    along, rows = (gmem.buffer.shape.index(axis) for axis in (pages.axis, pages.rows))
    for extent, steps in zip(do.values, gmem.value, strict=True):
        text = "{}: its box goes over {} of {}, and a page is of one"
        yield Clause((steps[rows] == 0) | (extent == 1), text, (do, extent, pages.rows))
    last, _ = last_origin(context, place, gmem, rows)
    text = "{}: it counts {} to {}; the table has rows below {}"
    size = context.size(gmem, rows)
    yield Clause(last < size, text, (gmem, pages.rows, last, size))
    lines = np.maximum(box_lines(do), 1)
    constant, terms = origin_of(context, gmem, along)
    further = (steps[along] for steps in gmem.value[2:])
    for step in (constant, *(c for _, c in terms), *further):
        text = "{}: boxes of {} begin {} apart along {}, in pages of {}"
        yield Clause(step % lines == 0, text, (do, lines, step, pages.axis, pages.size))


def _box_apart(context: Context, place: Place, gmem: Access) -> Iterator[Clause]:
    """Check a box whose lines lie apart: its map has the array's lines in two dimensions."""
    do, rank = place.do, len(gmem.buffer.shape)
    near, step = neighbours(do), np.maximum(lines_apart(do, gmem), 1)
    text = "{}: its lines lie apart, and {} boxes are of {} dimensions; one has up to {}"
    holds = (boxes(do.values[1]) == 1) & (rank + 1 <= _RANK) & (len(do.values) == 4)
    yield Clause(holds, text, (do, boxes(do.values[1]), rank + 1, _RANK))
    same: Truth = not do.trimmed
    for d, (far, one) in enumerate(zip(gmem.value[1], gmem.value[3], strict=True)):
        same = same & (far == step * one) & (one == (1 if d == rank - 2 else 0))
    text = "{}: its lines do not lie {} apart along the last dimension but one"
    yield Clause(same, text, (do, step))
    constant, terms = origin_of(context, gmem, rank - 2)
    within: Number = constant % step + near
    for name, coefficient in terms:
        span = place.ranges.get(name)
        last = select(span.first == 0, span.last, step) if span else step
        whole = coefficient % step == 0
        within = within + select(whole, 0, select(coefficient < 0, step, coefficient * last))
    text = "{}: {} neighbours begin within a step of {} lines, and reach beyond its end"
    yield Clause(within <= step, text, (do, near, step))


def swizzle(case: Case) -> Iterator[Clause]:
    """Check the form of swizzles that TMA and wgmma share, and what a stage starts at."""
    touched: dict[str, Buffer] = {}
    for place in case.places:
        for access in place.do.accesses:
            if place.do.instruction.proxy == "async" and access.buffer.level == "smem":
                touched[access.buffer.name] = access.buffer
    widest: Number = 128 if touched else 1
    for buffer in touched.values():
        bits, base, shift = buffer.swizzle
        pieces = _PIECE_BYTES // buffer.type.bytes
        holds = (bits == 0) | ((bits <= 3) & (2**base == pieces) & (shift == 3))
        text = "{}: Sw<{},{},{}> is none of the swizzles of {} elements that TMA makes"
        yield Clause(holds, text, (buffer.name, bits, base, shift, buffer.dtype))
        pattern = _pattern_bytes(buffer)
        widest = select(pattern > widest, pattern, widest)
    for buffer in case.program.buffers:
        if touched and buffer.level == "smem":
            text = "{}: a stage has {} B, and swizzles repeat every {} B"
            holds = buffer.stage_bytes % widest == 0
            yield Clause(holds, text, (buffer.name, buffer.stage_bytes, widest))


def wgmma_shape(context: Context, place: Place) -> Iterator[Clause]:
    """Check the shape of a product."""
    do = place.do
    a, _, sums = (r for r in do.reads if isinstance(r, Access))
    k, inner, outer, rows = product_of(do).values
    columns, slice_bytes = inner * outer, k * a.buffer.type.bytes
    text = "{} multiplies blocks of {} rows; wgmma has 64"
    yield Clause(rows == _BLOCK, text, (do, rows))
    text = "{} makes {} columns; wgmma makes 8 to {}, in steps of 8"
    holds = (columns % 8 == 0) & (columns >= 8) & (columns <= _COLUMNS)
    yield Clause(holds, text, (do, columns, _COLUMNS))
    text = "{} takes {} B of k; wgmma takes {}"
    yield Clause(slice_bytes == _SLICE_BYTES, text, (do, slice_bytes, _SLICE_BYTES))
    text = "{} adds to {} and writes {}; wgmma has one place for both"
    yield Clause(same_place(sums, do.write), text, (do, sums, do.write))
    for laid, what in layout_faults(do):
        yield Clause(laid, "{}: its digits do not count the {}", (do, what))


def wgmma_descriptors(context: Context, place: Place) -> Iterator[Clause]:
    """Check that a descriptor can say how each input lies."""
    do = place.do
    tile = product_of(do)
    a, b, _ = (r for r in tile.reads if isinstance(r, Access))
    _, inner, outer, rows = tile.values
    factors = (
        ((b, 1, inner, outer),) if held_factor(do) else ((a, 3, rows, 1), (b, 1, inner, outer))
    )
    for access, first, count, slabs in factors:
        buffer = access.buffer
        width, wide = buffer.type.bytes, span_bytes(buffer)
        yield Clause(wide >= 32, "{} of {} has no swizzle", (access, do))
        along_k = memory_step(access, access.value[0]) * width
        across = memory_step(access, access.value[first]) * width
        further = memory_step(access, access.value[2]) * width
        by_k = (along_k == width) & (across == wide)
        by_k = by_k & ((slabs == 1) | (further == count * wide))
        by_row = (width == 2) & (across == width) & (along_k == wide) & (count * width == wide)
        by_row = by_row & ((slabs == 1) | (further % _PIECE_BYTES == 0))
        text = "{}: k steps {} B, rows {} B; rows of the swizzle have {} B, and one of them is k's"
        yield Clause(by_k | by_row, text, (access, along_k, across, wide))
        dimension = next((d for d, s in enumerate(access.value[0]) if moves(s)), None)
        yield from starts(context, place, access, inner=dimension)


def _ends(do: Do) -> tuple[Access, Access]:
    """Return the ends of a copy: in gmem, in shared memory."""
    (source,) = (r for r in do.reads if isinstance(r, Access))
    return (source, do.write) if source.buffer.level == "gmem" else (do.write, source)


def span_bytes(buffer: Buffer) -> Number:
    """Return the bytes of a swizzle's row; 16 without a swizzle."""
    bits = buffer.swizzle[0]
    return select(bits == 1, 32, select(bits == 2, 64, select(bits == 3, 128, _PIECE_BYTES)))


def _pattern_bytes(buffer: Buffer) -> Number:
    """Return after how many bytes a swizzle repeats."""
    return 8 * span_bytes(buffer)


def starts(
    context: Context, place: Place, access: Access, *, inner: int | None
) -> Iterator[Clause]:
    """Check that what a descriptor names starts at a multiple of its pattern.

    Along dimension ``inner`` a descriptor may also start within a row of the swizzle.
    """
    pattern = _pattern_bytes(access.buffer)
    for d, stride, step in _steps(context, place, access):
        holds = step % pattern == 0
        if d == inner:
            holds = holds | ((stride == 1) & (step % _PIECE_BYTES == 0))
        text = "{}: it starts at steps of {} B, and its swizzle repeats every {} B"
        yield Clause(holds, text, (access, step, pattern))


def _steps(context: Context, place: Place, access: Access) -> Iterator[tuple[int, Number, Number]]:
    """Yield the bytes by which an access's origin moves: dimension, its stride, bytes.

    In gmem those along a line: how far lines are apart has a name.
    """
    for d, stride in enumerate(access.buffer.stride if access.origin else ()):
        if isinstance(stride, str):
            continue
        constant, terms = origin_of(context, access, d)
        for number in (constant, *(c for name, c in terms if name in place.ranges)):
            step = number * stride * access.buffer.type.bytes
            if moves(step):
                yield d, stride, step


_MAPS = "CUDA Driver API, cuTensorMapEncodeTiled"
_PTX = "PTX ISA 9, "

TENSOR_LAWS: Mapping[str, Law] = {
    law.name: law
    for law in (
        Law(
            "tma_strides",
            "States that an array that TMA moves has lines a multiple of 16 B apart, and that one "
            "that it stores has lines of a multiple of 16 B.",
            _MAPS + " (globalStrides, globalDim)",
            "pad the rows to multiples of 16 B, or use the machine simt",
            of_place=tma_strides,
            of_sizes=True,
        ),
        Law(
            "tma_coordinates",
            "States that an array that TMA moves has less than 2^31 elements along a dimension.",
            _MAPS + " (globalDim; coordinates are s32)",
            "cut the array along that dimension, and launch once for each part",
            of_place=tma_coordinates,
            of_sizes=True,
        ),
        Law(
            "tma_box",
            "States that TMA moves boxes of 1 to 256 by 1 to 256 elements, packed, their rows a "
            "multiple of 16 B and as long as the swizzle's, from a multiple of 128 B on, and along "
            "a line of the array from a multiple of 16 B on.",
            _MAPS + " (boxDim, swizzle); CUDA Programming Guide, Tensor Memory Access (swizzle)",
            "choose another tile (tile_m, tile_n, tile_k, store_n) or a smaller cluster",
            of_place=tma_box,
        ),
        Law(
            "tma_lines",
            "States that boxes of which lines outside are left out begin at multiples of their "
            "lines.",
            "tinygpu/codegen/kernel/trimming.py; " + _MAPS,
            "load boxes of one size (tile_m, tile_n), or fill lines outside with zeros",
            of_place=tma_lines,
        ),
        Law(
            "tma_pages",
            "States that a box of an array in pages lies in one page, which the table names: it "
            "begins at multiples of its lines, which divide a page, in a row of the table.",
            "docs/attention.md, Pages",
            "choose a tile that pages are made of (tile_n), or let CTAs have whole boxes",
            of_place=tma_pages,
        ),
        Law(
            "swizzle",
            "States that shared memory of TMA and wgmma has one of their swizzles, and that every "
            "stage is a multiple of the pattern, so that each starts at one.",
            _PTX + "Shared Memory Matrix Layout, Swizzling Modes",
            "choose a wider tile (tile_m, tile_n, store_n)",
            of_case=swizzle,
        ),
        Law(
            "wgmma_shape",
            "States that a product is m64 nN k of 32 B, N 8 to 256 by 8.",
            _PTX + "wgmma.mma_async",
            "choose another tile (tile_m, tile_n), 64 rows for each consumer",
            of_place=wgmma_shape,
            of="wgmma",
        ),
        Law(
            "wgmma_descriptors",
            "States that wgmma's inputs lie K-major, or of 16 bits MN-major, in swizzled rows, "
            "from the start of a pattern on.",
            _PTX + "Matrix Descriptor Format, Strides",
            "choose a wider tile (tile_m, tile_n) or another layout of the operation",
            of_place=wgmma_descriptors,
            of="wgmma",
        ),
    )
}
"""Laws of TMA, wgmma and fragments; part of ``tinygpu.legality.laws.LAWS``."""
