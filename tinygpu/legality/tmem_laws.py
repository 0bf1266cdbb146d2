"""Laws of tensor memory and tcgen05: what is allocated, who touches which lanes, who multiplies.

``docs/tcgen05.md`` says each in a sentence, with a drawing.  What is a matter of order (commit
before a stage is filled again, tcgen05.wait before registers are used, fences on both sides of what
tells threads of one another, nothing under way at the end) is the judge's, the law
``concurrency``; the frame of a kernel (one allocation before all else, released by the warp that
made it, after the last barrier) follows from the buffers and is the same for all.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.blackwell import STARTS, Blackwell
>>> from tinygpu.term.operation import matmul
>>> values = {**STARTS["pair"], "tile_n": 256, "accumulators": 4}
>>> program = Blackwell().program(matmul("bf16", layout="nt"), Chosen(values))
>>> case = Case.of(program, {"m": 64, "n": 64, "k": 64}, load_device("b200"))
>>> print(next(c for c in TMEM_LAWS["tmem_columns"].clauses(case) if not c.holds))
buffers in tensor memory have 1024 columns; an SM has 512

Source: PTX ISA 9, "TensorCore 5th Generation Family Instructions".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tinygpu.isa.ordering import Group
from tinygpu.isa.tcgen05 import TENSOR_MEMORY
from tinygpu.legality.law import Law
from tinygpu.legality.placement import memory_step
from tinygpu.legality.reach import Case, Clause, Context, Place, origin_of
from tinygpu.legality.tcgen05_inputs import INPUT_LAWS, SLICE_BYTES, multiplying, placed
from tinygpu.numbers import Number, Truth
from tinygpu.term.program import (
    Access,
    Block,
    Do,
    Elect,
    Role,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    same_place,
    select,
)
from tinygpu.term.tensor_memory import COLUMNS, LANES, allocated_columns, used_columns

__all__ = ["TMEM_LAWS"]

_CELL_BYTES = 4
_LOADED = (1, 2, 4, 8, 16, 32, 64, 128)  # spec: columns of one tcgen05.ld.32x32b
_MOST_COLUMNS = 256  # spec: tcgen05.mma's largest n


def columns(case: Case) -> Iterator[Clause]:
    """Check the buffers' form, and the columns that the CTAs of an SM allocate."""
    tmem = [b for b in case.program.buffers if b.level == "tmem"]
    for buffer in tmem:
        lanes, wide = buffer.shape
        holds = (lanes == LANES) & (wide * buffer.type.bytes % _CELL_BYTES == 0)
        holds = holds & (buffer.stride[0] == wide) & (buffer.stride[1] == 1)
        text = "{}: tensor memory is {} lanes of whole 32-bit columns"
        yield Clause(holds, text, (buffer, LANES))
    if tmem:
        used, ctas = used_columns(case.program), case.program.ctas_per_sm
        text = "buffers in tensor memory have {} columns; an SM has {}"
        yield Clause(used <= COLUMNS, text, (used, COLUMNS))
        all_columns = allocated_columns(case.program) * ctas
        text = "{} CTAs on an SM allocate {} columns (powers of two, from 32 on); it has {}"
        yield Clause(all_columns <= COLUMNS, text, (ctas, all_columns, COLUMNS))


def shape(context: Context, place: Place) -> Iterator[Clause]:
    """Check a product's shape, and that its sums lie where the hardware puts them."""
    do = place.do
    x, _, sums = (r for r in do.reads if isinstance(r, Access))
    k, inner, outer, halves, high, blocks = do.values
    rows, wide, ctas = high * blocks, inner * outer * halves, multiplying(context, place)
    text = "{} multiplies {} rows of a CTA; tcgen05.mma has 64 or 128"
    yield Clause((rows == LANES // 2) | (rows == LANES), text, (do, rows))
    unit = select((rows == LANES // 2) & (ctas == 1), 8, 16)
    holds = (wide % unit == 0) & (wide >= unit) & (wide <= _MOST_COLUMNS)
    text = "{} makes {} columns; multiples of {} up to {} are allowed"
    yield Clause(holds, text, (do, wide, unit, _MOST_COLUMNS))
    text = "{} has columns of {} CTAs, and {} multiply"
    yield Clause(halves == ctas, text, (do, halves, ctas))
    taken = k * x.buffer.type.bytes
    text = "{} takes {} B of k; tcgen05.mma takes {}"
    yield Clause(taken == SLICE_BYTES, text, (do, taken, SLICE_BYTES))
    own = sums.buffer.level == "tmem" and sums.buffer.name == do.write.buffer.name
    yield Clause(own, "{} adds to no sums of its own in tensor memory", (do,))
    text = "{} adds to {} and writes {}; tcgen05.mma has one place for both"
    yield Clause(same_place(sums, do.write), text, (do, sums, do.write))
    small = rows == LANES // 2
    spread = small & (ctas == 1)
    folded = small & (ctas == 2)
    wanted = (
        (0, 0),
        (0, 1),
        (0, inner),
        (select(folded, 64, 0), select(folded, 0, inner * outer)),
        (1, 0),
        (select(spread, 32, high), 0),
    )
    lies = ((high == 16) | (spread ^ True)) & placed(do, (sums, do.write), wanted)
    text = "{}: its sums do not lie in the lanes and columns that {} rows in {} CTAs have"
    yield Clause(lies, text, (do, rows, ctas))


def lanes(context: Context, place: Place) -> Iterator[Clause]:
    """Check that each thread moves columns of its own lane, so that a warp keeps to its 32."""
    do = place.do
    if do.instruction.completion != "tcgen05_wait":
        return
    (source,) = (r for r in do.reads if isinstance(r, Access))
    tmem, held = (source, do.write) if source.buffer.level == "tmem" else (do.write, source)
    constant, terms = origin_of(context, tmem, 0)
    same: Truth = (tmem.value[0][1] == 1) & (len(do.values) == 1)
    for step in (constant, tmem.value[0][0], *(step for _, step in terms)):
        same = same & (step == 0)
    same = same & (memory_step(held, held.value[0]) == 1)
    below: Number = 1
    for count, (lane, column) in zip(do.threads, tmem.thread, strict=True):
        same = same & (((lane == below) & (column == 0)) | (count == 1))
        below = below * count
    same = same & (below == LANES)
    text = "{}: thread t has lane t (a warp w those from 32 (w mod 4) on), and is given others"
    yield Clause(same, text, (do,))
    count = do.values[0]
    holds: Truth = False
    for allowed in _LOADED:
        holds = holds | (count == allowed)
    text = "{} moves {} columns; powers of two up to 128 are allowed"
    yield Clause(holds, text, (do, count))


def pairs(case: Case) -> Iterator[Clause]:
    """Check who multiplies for a pair, and who waits where; that both CTAs are there to the end."""
    program, extents = case.program, dict(case.program.cluster)
    products = [p for p in case.places if p.do.instruction.unit == "tensor"]
    groups = {p.do.multicast for p in products}
    text = "products of {} CTAs and of others; a kernel's tcgen05 are all of one cta_group"
    yield Clause(len(groups) <= 1, text, (" and ".join(sorted(groups)),))
    for axis in groups - {""}:
        first = bool(program.cluster) and program.cluster[0][0] == axis
        extent = extents.get(axis, 1)
        text = "a pair is two CTAs along the cluster's first axis; {} has {}"
        yield Clause(first & ((extent == 1) | (extent == 2)), text, (axis, extent))
    for _, statement, around in case.statements:
        axis = _of_one(statement)
        if axis:
            alone = any(_first_only(block, axis) for block in around)
            text = "{}: the CTA at {} 0 alone executes it"
            yield Clause(alone or extents.get(axis, 1) == 1, text, (statement, axis))


def collective(case: Case) -> Iterator[Clause]:
    """Check that commits are of the thread that multiplies, and waits of whole warps."""
    issuing = {(p.role.name, p.do.instruction.completion) for p in case.places}
    for role, statement, around in case.statements:
        elected = any(isinstance(s, Elect) for s in around)
        if not statement.needs.startswith(TENSOR_MEMORY):
            continue
        if isinstance(how := statement.how, Group) and how.by == "one":
            text = "{}: the thread that multiplies (or copies) commits, {} does not"
            holds = elected and (role.name, how.completion) in issuing
            yield Clause(holds, text, (statement, role.name))
        elif isinstance(statement, WaitGroup):
            yield Clause(not elected, "{}: one thread alone executes it", (statement,))
            yield Clause(statement.pending == 0, "{} waits for all", (statement,))
        elif statement.by == "warps" and role.threads % 32:
            yield Clause(False, "{}: {} is no whole warps", (statement, role.name))


def lifetime(case: Case) -> Iterator[Clause]:
    """Check that all come to a barrier after the last use of tensor memory."""
    tmem = [b for b in case.program.buffers if b.level == "tmem"]
    paired = any(p.do.multicast for p in case.places if p.do.instruction.unit == "tensor")
    for role in case.program.roles if tmem else ():
        last = _last(role)
        scopes = ("cluster",) if paired else ("cta", "cluster")
        holds = isinstance(last, Sync) and last.scope in scopes
        text = "{} ends without a barrier of the {}; tensor memory is released then"
        yield Clause(holds, text, (role.name, scopes[0]))


def _of_one(statement: Statement) -> str:
    """Return the axis of a pair if only its first CTA may execute a statement."""
    if isinstance(statement, Wait):
        return statement.barrier.home
    if isinstance(statement, Do) and statement.instruction.unit == "tensor":
        return statement.multicast
    return ""


def _first_only(block: Block, axis: str) -> bool:
    if not isinstance(block, When) or isinstance(block.bound, str):
        return False
    alone = block.index.terms == ((axis, 1),) and isinstance(block.index.constant, int)
    return bool(alone and block.index.constant == 0 and block.bound == 1)


def _last(role: Role) -> Statement | None:
    return role.body[-1] if role.body else None


_PTX = "PTX ISA 9, "

TMEM_LAWS: Mapping[str, Law] = {
    law.name: law
    for law in (
        Law(
            "tmem_columns",
            "States that the CTAs of an SM allocate at most 512 columns, each a power of two of "
            "them, at least 32.",
            _PTX + "tcgen05.alloc",
            "keep fewer sums in tensor memory (accumulators, tile_n, ctas_per_sm)",
            of_case=columns,
        ),
        Law(
            "tcgen05_shape",
            "States that a product has 64 or 128 rows of a CTA, 8 to 256 columns (by 8, or by 16 "
            "with 128 rows or a pair), k of 32 B, and its sums where the hardware has them.",
            _PTX + "tcgen05.mma, Matrix shape, Data Path Layout Organization",
            "choose another tile (tile_m, tile_n)",
            of_place=shape,
            of="tcgen05.mma",
        ),
        Law(
            "tmem_lanes",
            "States that tcgen05.ld and st move, in a warpgroup, columns of each thread's own "
            "lane.",
            _PTX + "tcgen05.ld, Access restrictions",
            "store another number of columns at once (store_n)",
            of_place=lanes,
        ),
        Law(
            "cta_pairs",
            "States that a pair is two CTAs that differ in the last bit of their rank, that its "
            "first one multiplies, and waits for what the two tell.",
            _PTX + "tcgen05, CTA Pair, Peer CTAs",
            "put it into a When of the pair's first CTA",
            of_case=pairs,
        ),
        Law(
            "tcgen05_collective",
            "States that the thread that multiplies or copies commits, and that whole warps wait "
            "for their loads.",
            _PTX + "tcgen05.commit, tcgen05.wait",
            "put it into, or take it out of, an Elect",
            of_case=collective,
        ),
        Law(
            "tmem_lifetime",
            "States that every role ends with a barrier of all who touch tensor memory.",
            _PTX + "tcgen05.dealloc",
            "end each role with barrier.cluster",
            of_case=lifetime,
        ),
        *INPUT_LAWS.values(),
    )
}
"""Laws of tensor memory; part of ``tinygpu.legality.laws.LAWS``."""
