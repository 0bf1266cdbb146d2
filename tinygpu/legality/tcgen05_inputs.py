"""Laws of what tcgen05 multiplies: tiles in shared memory, and first inputs in tensor memory.

A descriptor says how a tile lies in shared memory: K-major (a row of 128 B has k of one row of the
product), or for 16 bits MN-major (it has rows of one k).  tcgen05.cp.128x256b takes such a tile, 32
B of k by 128 rows, K-major, to 8 columns of tensor memory, row r to lane r; that is how tcgen05.mma
takes its first input from there, with 128 rows in one CTA.  (The ISA also has other shapes of cp
and places for 64 rows and for pairs; this model does not.)

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.legality.reach import Case
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.blackwell import STARTS, Blackwell
>>> from tinygpu.term.operation import matmul
>>> values = {**STARTS["a in tmem"], "tile_m": 64}
>>> program = Blackwell().program(matmul("bf16", layout="nt"), Chosen(values))
>>> case = Case.of(program, {"m": 64, "n": 64, "k": 64}, load_device("b200"))
>>> clauses = INPUT_LAWS["tcgen05_first_input"].clauses(case)
>>> print(str(next(c for c in clauses if not c.holds)).split("0 takes ")[1])
64 rows of 1 CTAs from tensor memory; 128 of 1 CTA are allowed

Source: PTX ISA 9, tcgen05.cp, "Shared Memory Descriptor", "Data Movement Shape"; that a tile that
tcgen05.mma reads is what tcgen05.cp.128x256b takes, 32 B to 8 columns: DeepSeek FlashMLA (sm_100).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tinygpu.legality.law import Law
from tinygpu.legality.placement import memory_step
from tinygpu.legality.reach import Clause, Context, Place, moves, origin_of
from tinygpu.legality.tensor_laws import span_bytes, starts
from tinygpu.numbers import Number, Truth
from tinygpu.term.program import Access, Do, select
from tinygpu.term.tensor_memory import LANES

__all__ = ["INPUT_LAWS", "SLICE_BYTES", "multiplying", "placed"]

SLICE_BYTES = 32  # spec: the k of one tcgen05.mma, and what one tcgen05.cp.128x256b takes of it
_ROW_BYTES = 128
_PATTERN_BYTES = 1024
_PIECE_BYTES = 16
_CELL_BYTES = 4


def multiplying(context: Context, place: Place) -> Number:
    """Return how many CTAs a product is of."""
    return dict(context.cluster).get(place.do.multicast, 1)


def placed(do: Do, accesses: tuple[Access, ...], wanted: tuple[tuple[Number, ...], ...]) -> Truth:
    """Say whether accesses take the steps that are wanted, in modes of more than one value."""
    lies: Truth = True
    for access in accesses:
        for extent, got, steps in zip(do.values, access.value, wanted, strict=True):
            for one, other in zip(got, steps, strict=True):
                lies = lies & ((one == other) | (extent == 1))
    return lies


def descriptors(context: Context, place: Place) -> Iterator[Clause]:
    """Check that a descriptor can say how each input in shared memory lies."""
    do = place.do
    x, y, _ = (r for r in do.reads if isinstance(r, Access))
    for access, mode in ((x, 4), (y, 1)):
        if access.buffer.level != "smem":
            continue
        width, wide = access.buffer.type.bytes, span_bytes(access.buffer)
        count, more = do.values[mode : mode + 2]
        along_k, across, further = (
            memory_step(access, access.value[i]) * width for i in (0, mode, mode + 1)
        )
        yield Clause(wide == _ROW_BYTES, "{} of {} is not swizzled by 128 B", (access, do))
        by_k = (along_k == width) & (across == wide)
        by_k = by_k & ((more == 1) | (further == count * wide))
        whole = count * width == wide
        by_row = (across == width) & (along_k == wide)
        slab = select(whole, further % _PIECE_BYTES == 0, further == count * width)
        part = whole | (count * more * width == wide)
        by_row = by_row & select(more == 1, whole, slab & part)
        text = "{}: k steps {} B, rows {} B; rows of the swizzle have {} B, and one of them is k's"
        yield Clause(by_k | by_row, text, (access, along_k, across, wide))
        text = "{}: elements of {} B do not lie along k; those of 2 B alone may"
        yield Clause(by_k | (width == 2), text, (access, width))
        dimension = next((d for d, s in enumerate(access.value[0]) if moves(s)), None)
        yield from starts(context, place, access, inner=dimension)


def first_input(context: Context, place: Place) -> Iterator[Clause]:
    """Check a first input in tensor memory."""
    do = place.do
    x, y, _ = (r for r in do.reads if isinstance(r, Access))
    yield Clause(y.buffer.level == "smem", "{}: its second input is in {}", (do, y.buffer.level))
    if x.buffer.level != "tmem":
        return
    high, blocks = do.values[4:]
    rows, ctas = high * blocks, multiplying(context, place)
    text = "{} takes {} rows of {} CTAs from tensor memory; {} of 1 CTA are allowed"
    yield Clause((rows == LANES) & (ctas == 1), text, (do, rows, ctas, LANES))
    still = (0, 0)
    lies = placed(do, (x,), ((0, 1), still, still, still, (1, 0), (high, 0)))
    yield Clause(lies, "{}: {} does not lie a row a lane, k along the columns", (do, x))
    yield from _whole(context, x)


def copies(context: Context, place: Place) -> Iterator[Clause]:
    """Check what tcgen05.cp takes, and where it puts it."""
    do = place.do
    (source,) = (r for r in do.reads if isinstance(r, Access))
    target, width = do.write, source.buffer.type.bytes
    if len(do.values) < 2:
        yield Clause(False, "{} has {} value modes; two are a tile", (do, len(do.values)))
        return
    taken, rows = do.values[0] * width, do.values[1]
    text = "{} takes {} B of {} rows; tcgen05.cp.128x256b takes {} B of {}"
    holds = (taken == SLICE_BYTES) & (rows == LANES)
    yield Clause(holds, text, (do, taken, rows, SLICE_BYTES, LANES))
    levels = (source.buffer.level, target.buffer.level)
    text = "{} goes from {} to {}, not from shared to tensor memory"
    yield Clause(levels == ("smem", "tmem"), text, (do, *levels))
    text = "{}: products of pairs are in its kernel; it copies for one CTA"
    yield Clause(not (context.paired or do.multicast), text, (do,))
    swizzled = span_bytes(source.buffer) == _ROW_BYTES
    yield Clause(swizzled, "{} of {} is not swizzled by 128 B", (source, do))
    along_k, across = (memory_step(source, source.value[i]) * width for i in (0, 1))
    text = "{} of {}: k steps {} B and rows {} B; tcgen05.cp takes tiles along k, in rows of 128 B"
    holds = (along_k == width) & (across == _ROW_BYTES)
    yield Clause(holds, text, (source, do, along_k, across))
    inner = next((d for d, s in enumerate(source.value[0]) if moves(s)), None)
    for extent, steps in zip(do.values[2:], source.value[2:], strict=True):
        step = memory_step(source, steps) * width
        within = all(not moves(s) for d, s in enumerate(steps) if d != inner)
        holds = (step % _PIECE_BYTES == 0) if within else (step % _PATTERN_BYTES == 0)
        text = "{} of {}: its tiles lie {} B apart, and its swizzle repeats every {} B"
        yield Clause(holds | (extent == 1), text, (source, do, step, _PATTERN_BYTES))
    yield from starts(context, place, source, inner=inner)
    lies = placed(do, (target,), ((0, 1), (1, 0), *target.value[2:]))
    for lane, column in target.value[2:]:
        lies = lies & (lane == 0) & (column * target.buffer.type.bytes % _CELL_BYTES == 0)
    yield Clause(lies, "{}: {} does not lie a row a lane, k along the columns", (do, target))
    yield from _whole(context, target)


def _whole(context: Context, access: Access) -> Iterator[Clause]:
    """Check that an access begins in lane 0, at a whole column."""
    for d in range(len(access.origin)):
        constant, terms = origin_of(context, access, d)
        for number in (constant, *(step for _, step in terms)):
            bits = number * access.buffer.type.bytes
            holds = (number == 0) if d == 0 else (bits % _CELL_BYTES == 0)
            yield Clause(holds, "{} begins at no whole column of lane 0", (access,))


_PTX = "PTX ISA 9, "

INPUT_LAWS: Mapping[str, Law] = {
    law.name: law
    for law in (
        Law(
            "tcgen05_descriptors",
            "States that tcgen05.mma's inputs in shared memory lie K-major, or if they have 16 "
            "bits MN-major, in rows of 128 B, from the start of a pattern on.",
            _PTX + "tcgen05, Shared Memory Descriptor",
            "choose a wider tile (tile_m, tile_n) or another layout of the operation",
            of_place=descriptors,
            of="tcgen05.mma",
        ),
        Law(
            "tcgen05_first_input",
            "States that a first input in tensor memory has 128 rows of one CTA, a row a lane, k "
            "along the columns; the second one is in shared memory.",
            _PTX + "tcgen05.mma, Matrix A in Tensor Memory",
            'take a from shared memory (a_from "smem"), or from 128 rows without a pair',
            of_place=first_input,
            of="tcgen05.mma",
        ),
        Law(
            "tcgen05_cp",
            "States that tcgen05.cp takes tiles of 128 rows by 32 B that lie along k in swizzled "
            "rows of 128 B, to a lane a row, of one CTA.",
            _PTX + "tcgen05.cp, Data Movement Shape",
            'take a from shared memory (a_from "smem"), or choose a layout in which a lies along k',
            of_place=copies,
            of="tcgen05.cp",
        ),
    )
}
"""Laws of inputs; part of ``tinygpu.legality.tmem_laws.TMEM_LAWS``."""
