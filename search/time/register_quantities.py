"""Quantities: what of a term decides how many registers its threads need.

Each is a number (or an array, over a space) that ``tinygpu.search.time.registers`` weighs; they are
listed and explained there.  An amount is the sum of its addends, each of few decisions, or a tuple
of factors of even fewer.  Some are cut into pieces at *bends*, so that each piece has a slope of
its own.

Source: ``docs/model.md``, section "Time".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np

from tinygpu.numbers import Booleans, Number, Truth
from tinygpu.search.time.fitted import FITTED
from tinygpu.space.sharing import narrowed, remembered
from tinygpu.term.program import Access, Block, Buffer, Do, For, Program, select, walk

__all__ = [
    "BENDS",
    "ENDLESS",
    "KINDS",
    "amounts",
    "arithmetic",
    "flying",
    "fragment_registers",
    "is_true",
    "piece",
    "piece_name",
    "worth",
]

KINDS = ("f32", "f64", "f32+f64")
ENDLESS = 1 << 30
_JOINED_BYTES = 16
Addend = Number | tuple[Number, ...]
"""A number, or its factors."""
_LARGE_BODY = 4096  # multiply-adds; of 60 kernels by ptxas 13.5: 2,048 are not large yet


BENDS: Mapping[str, tuple[int, ...]] = {
    "body": (32, 96, 256, 1280, ENDLESS),
    "products": (64, 256, 1024, ENDLESS),
    "direct": (16, 64, 256, ENDLESS),
}


def amounts(program: Program) -> dict[str, tuple[Addend, ...]]:
    """Return the addends of each quantity, before it is cut at its bends."""
    kept = _kept(program)
    used = {s.instruction.name: s.instruction for s, _ in walk(program) if isinstance(s, Do)}
    found: dict[str, tuple[Addend, ...]] = {
        "one": (1.0,),
        "kept": tuple(_words(program, name) for name in kept) or (0.0,),
        "alone": (select(is_true(program.ctas_per_sm == 1), 1.0, 0.0),),
        "i32": (select(_equal(program.addressing, "i32"), 1.0, 0.0),),
        "i64": (select(_equal(program.addressing, "i64"), 1.0, 0.0),),
        "specialised": (select(is_true(program.specialised), 1.0, 0.0),),
        "asynchronous": (float(any(i.completion == "commit_group" for i in used.values())),),
        "red": (float("red.global" in used),),
        **_operands(program, kept),
        **dict.fromkeys(_MOVES, ()),
    }
    for name, amount in (*_loads_and_stores(program, kept), *_swizzled(program)):
        found[name] += (amount,)
    return found


_MOVES = (
    "ahead", "waiting", "moved_vectors", "moved_guards", "moved_lines", "direct", "direct_vectors",
    "direct_lines", "direct_guards", "pointer_rows", "i32_rows", "i64_rows", "stored",
    "store_lines", "swizzled_reads", "swizzled_writes",
)  # fmt: skip


def _equal(text: str, word: str) -> Truth:
    same: Booleans = np.asanyarray(text) == word
    return bool(same) if same.ndim == 0 else same


def piece(amount: Number, low: Number, high: Number) -> Number:
    """Return the part of an amount between two bends."""
    if isinstance(amount, int | float):  # of one schedule: much faster than NumPy's
        return min(max(amount - low, 0), high - low)
    return np.minimum(np.maximum(amount - low, 0), high - low)


def piece_name(name: str, bend: int) -> str:
    """Return the name of the piece that ends at a bend."""
    return f"{name}_{bend}" if bend < ENDLESS else f"{name}_more"


def worth(addend: Addend) -> Number:
    """Return an addend: itself, or the product of its factors."""
    return prod(addend) if isinstance(addend, tuple) else addend


def _few(number: Number) -> Number:
    """Return a number along no more decisions than it changes with: what is made of it is small."""
    return remembered(narrowed, number) if isinstance(number, np.ndarray) else number


def _words(program: Program, name: str) -> Number:
    """Return a buffer's size in 32-bit registers; two 16-bit values share one."""
    return next(b.bytes for b in program.buffers if b.name == name) / 4


def _kept(program: Program) -> tuple[str, ...]:
    """Return the register buffers whose value crosses the start or the end of a loop."""
    epoch, written, found = 0, dict[str, int](), dict[str, None]()
    path: tuple[int, ...] = ()
    for statement, around in walk(program):
        here = tuple(id(a) for a in around if isinstance(a, For))
        epoch += here != path
        path = here
        if not isinstance(statement, Do):
            continue
        for read in statement.reads:
            if isinstance(read, Access) and read.buffer.level == "registers":
                name = read.buffer.name
                if written.get(name, epoch) != epoch:
                    found[name] = None
        if statement.write.buffer.level == "registers":
            written[statement.write.buffer.name] = epoch
    return tuple(found)


def _operands(program: Program, kept: tuple[str, ...]) -> dict[str, tuple[Addend, ...]]:
    """Return the quantities of the multiply-add's operands that are not kept."""
    steps: dict[str, Number] = {}
    body: dict[str, Number] = {}
    merged: dict[str, Number] = {}
    products: Number = 0.0
    joined = _joined(program)
    for statement, around in walk(program):
        if not isinstance(statement, Do) or statement.variant not in ("fma", "mul") or not around:
            continue
        reads = [r.buffer for r in statement.reads if isinstance(r, Access)]
        fresh = [b for b in reads if b.name not in kept]
        products = prod(statement.values) * _unrolled(around)
        for buffer in fresh if len(fresh) > 1 else ():
            steps[buffer.name] = buffer.bytes / 4
            body[buffer.name] = buffer.bytes / 4 * _unrolled(around)
            merged[buffer.name] = buffer.bytes / 4 * (joined.get(buffer.name, 1.0) - 1)
    total: Number = sum(steps.values(), 0.0)
    narrow: Number = total
    for words in steps.values():
        narrow = np.minimum(narrow, words)
    return {
        "narrow": (narrow,),
        "wide": (total - narrow,),
        "merged": tuple(merged.values()),
        "body": tuple(body.values()),
        "products": (products,),
    }


def _joined(program: Program) -> dict[str, Number]:
    """Return how many times its size each fragment is, if reads along unrolled loops are joined."""
    found: dict[str, Number] = {}
    for statement, around in walk(program):
        source = statement.reads[0] if isinstance(statement, Do) and statement.reads else None
        if not isinstance(statement, Do) or not isinstance(source, Access):
            continue
        target, buffer = statement.write.buffer, source.buffer
        if source.buffer.name in found and statement.instruction.unit == "cvt":
            found[target.name] = found[buffer.name]
        if buffer.level != "smem" or target.level != "registers" or not source.origin:
            continue
        along = next((d for d, s in enumerate(buffer.stride) if _is_one(s)), None)
        if along is None:
            continue
        steps = {v: c for v, c in source.origin[along].terms if not isinstance(c, str)}
        for outer in around:
            if not isinstance(outer, For) or not outer.unrolled or isinstance(outer.trips, str):
                continue
            if (step := steps.get(outer.var)) is not None:
                most: Number = _JOINED_BYTES // buffer.type.bytes
                for stride in (s for d, s in enumerate(buffer.pitch) if d != along):
                    most = np.minimum(most, stride & -stride)
                most = np.minimum(most, outer.trips * step)
                times: Number = np.maximum(most / step, 1.0)
                found[target.name] = select(is_true(buffer.swizzle[0] > 0), 1.0, times)
    return found


def _is_one(stride: object) -> bool:
    return isinstance(stride, int) and stride == 1


def _unrolled(around: tuple[Block, ...]) -> Number:
    """Return to how many steps the unrolled loops around a statement go.

    A loop whose first steps stand in a loop of their own (before loads that are issued between)
    counts them: its end is that of both.
    """
    times: Number = 1
    for outer in around:
        if isinstance(outer, For) and outer.unrolled and not isinstance(outer.trips, str):
            times = times * np.maximum(outer.trips, 1)
    return times


def _loads_and_stores(program: Program, kept: tuple[str, ...]) -> Iterator[tuple[str, Addend]]:
    """Yield the quantities of each operand in gmem: its last access stands for all."""
    last: dict[str, tuple[Do, Access, tuple[Block, ...]]] = {}
    stored: set[str] = set()
    for statement, around in walk(program):
        if isinstance(statement, Do):
            for access in statement.accesses:
                if access.buffer.level == "gmem":
                    last[access.buffer.name] = (statement, access, around)
                elif statement.write.buffer.level == "smem":
                    stored.add(access.buffer.name)
    for do, access, around in last.values():
        target = do.write.buffer
        staged = target.level == "smem" or target.name in stored
        where = "stored" if target.level == "gmem" else "moved" if staged else "direct"
        rows, columns = _rows_and_columns(do, access, around if where == "direct" else ())
        vectors = rows * columns
        lines: Number = 0.0
        both: Truth = bool(access.guard)
        for d, guarded in enumerate(access.guard):
            along = rows if not _is_one(access.buffer.stride[d]) else columns
            asked = isinstance(guarded, str) or is_true(guarded)
            lines = lines + select(asked, along, 0.0)
            both = both & asked
        if where == "stored":
            yield "stored", vectors
            yield "store_lines", lines
            continue
        yield f"{where}_vectors", vectors
        yield f"{where}_lines", lines
        yield f"{where}_guards", select(both, vectors, 0.0)
        for name in ("pointer", "i32", "i64"):
            here = _equal(program.addressing, name) & (is_true(program.specialised) ^ True)
            yield f"{name}_rows", (rows, select(here, 1.0, 0.0))
        if where == "direct":
            yield "direct", target.bytes / 4 * _unrolled(around)
        elif target.name in kept:
            yield "ahead", 1.0
        elif target.level == "registers":
            yield "waiting", target.bytes / 4


def _swizzled(program: Program) -> Iterator[tuple[str, Addend]]:
    """Yield how many vectors move to and from each swizzled buffer, as factors."""
    found: dict[tuple[str, bool], tuple[Do, Buffer, tuple[Block, ...]]] = {}
    for statement, around in walk(program):
        if isinstance(statement, Do):
            for access in statement.accesses:
                if access.buffer.level == "smem":
                    written = access is statement.write
                    found[access.buffer.name, written] = (statement, access.buffer, around)
    for (_, written), (do, buffer, around) in found.items():
        here = is_true(buffer.swizzle[0] > 0)
        if np.any(here):
            vectors = prod(do.values) / do.vector
            factors = (vectors, _unrolled(around), select(here, 1.0, 0.0))
            yield "swizzled_writes" if written else "swizzled_reads", factors


def flying(program: Program, registers: int | None = None) -> tuple[Number, Number]:
    """Return how many loads to registers a thread has in flight together, and what they hold.

    The assembler loads into registers that it has just read, so that few are; or it moves loads
    up, past D multiply-adds, those with a guard past all of a body that is not large.  With
    ``registers`` known, so many are in flight as those that are left can hold.
    """
    found = amounts(program)
    names = ("kept", "direct_vectors", "direct", "direct_lines", "products")
    kept, loads, words, guards, products = (
        sum((_few(worth(addend)) for addend in found[name]), 0.0) for name in names
    )
    if not np.any(words):
        return FITTED["loads_in_flight"], 0.0
    if registers is None:
        many = remembered(_ahead, loads, guards, products, program.ctas_per_sm)
    else:
        many = loads * (registers - kept - FITTED["beside"]) / words
    many = np.maximum(many, FITTED["loads_in_flight"])
    return many, remembered(_held, many, loads, words)


def _ahead(loads: Number, guards: Number, products: Number, ctas_per_sm: Number) -> Number:
    """Return how many loads are moved up together.

    What is made between is not kept: over a space it depends on decisions that change nothing.
    """
    whole = is_true((guards > 0) & (products < _LARGE_BODY))
    ahead = select(whole, products, FITTED["ahead"])
    ahead = select(is_true(ctas_per_sm == 1), 0.0, ahead)
    many = loads * np.minimum(ahead / np.maximum(products, 1.0), 1.0)
    return _few(many)


def _held(many: Number, loads: Number, words: Number) -> Number:
    """Return the registers that loads in flight hold."""
    return np.minimum(many / loads, 1.0) * words


def fragment_registers(program: Program) -> tuple[Number, ...]:
    """Return the registers of each of mma.sync's operands and sums; none if there is no mma.sync.

    What is made of the sums takes their place.
    """
    operands: dict[str, Number] = {}
    made = set[str]()
    for statement, _ in walk(program):
        if isinstance(statement, Do) and statement.instruction.warp_product:
            operands |= {a.buffer.name: a.buffer.bytes / 4 for a in statement.accesses}
        elif isinstance(statement, Do) and statement.instruction.unit == "cvt":
            made.add(statement.write.buffer.name)
    return tuple(many for name, many in operands.items() if name not in made)


def is_true(flag: Number) -> Truth:
    """Return a flag, 0 or 1, as a bool, or an array of bools, one for equal flags of a space."""
    return bool(flag) if np.ndim(flag) == 0 else np.not_equal(flag, 0)


def _rows_and_columns(do: Do, access: Access, around: tuple[Block, ...]) -> tuple[Number, Number]:
    """Return how many rows of a gmem operand a thread touches, and how many vectors in each.

    A row is a value of the coordinates whose stride is known only at launch; a loop that is
    unrolled multiplies what its variable moves along.
    """
    rows: Number = 1
    columns: Number = 1
    pitched = [d for d, stride in enumerate(access.buffer.stride) if stride != 1]
    for extent, steps in zip(do.values, access.value, strict=True):
        moves = sum((abs(steps[d]) for d in pitched), 0)
        rows = rows * select(is_true(moves != 0), extent, 1)
        columns = columns * select(is_true(moves != 0), 1, extent)
    columns = np.maximum(columns / do.vector, 1)
    for outer in around:
        if not isinstance(outer, For) or not outer.unrolled or isinstance(outer.trips, str):
            continue
        names = [{v for v, _ in origin.terms} for origin in access.origin]
        if any(outer.var in names[d] for d in pitched):
            rows = rows * np.maximum(outer.trips, 1)
        elif any(outer.var in found for found in names):
            columns = columns * np.maximum(outer.trips, 1)
    return rows, columns


def arithmetic(program: Program) -> str:
    """Return the kind of arithmetic: "f32", "f64", or "f32+f64" for both."""
    types = {
        s.write.buffer.dtype
        for s, _ in walk(program)
        if isinstance(s, Do) and s.instruction.unit == "fma"
    }
    return "+".join(sorted(types & {"f32", "f64"})) or "f32"
