"""What a term takes of its device: shared memory, registers, threads, barriers, addresses.

Each function yields the clauses of one law (``tinygpu.legality.laws.LAWS`` holds its sentence and
source).

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> program = Simt().program(matmul(), Chosen(LADDER["tuned"]))
>>> case = Case.of(program, {"m": 64, "n": 64, "k": 64}, load_device("h200"))
>>> [(clause.holds, str(clause)) for clause in smem_per_cta(case)]
[(True, 'smem_a, smem_b, 1 stages, need 16640 B; h200 allows 232448 B per CTA')]

Source: CUDA C++ Programming Guide, "Compute Capabilities".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from tinygpu.devices.device import arch_number
from tinygpu.isa.memory import ARRAY_DTYPES
from tinygpu.legality.reach import Case, Clause, Context, Place, product
from tinygpu.numbers import Number
from tinygpu.term.operation import LARGEST_SIZE
from tinygpu.term.program import Buffer, select

__all__ = [
    "barrier_ids",
    "covered_sizes",
    "device_memory",
    "early",
    "even_cuts",
    "held_registers",
    "index_width",
    "integers",
    "predicates",
    "registers",
    "registers_at_once",
    "residency",
    "smem_per_cta",
    "smem_per_sm",
    "threads",
]

_BARRIERS, _WARP = 16, 32
_EARLY = 90  # spec: PTX ISA, griddepcontrol
_INT32_LIMIT = 1 << 31


def smem_per_cta(case: Case) -> Iterator[Clause]:
    """Compare a CTA's shared memory with the most that it may have."""
    buffers = [b for b in case.program.buffers if b.level == "smem"]
    names = ", ".join(b.name for b in buffers)
    need, most = case.program.smem_bytes, case.context.chip.smem_bytes_per_cta_max
    stages = buffers[0].stages if buffers else 1
    text = "{}, {} stages, need {} B; {} allows {} B per CTA"
    yield Clause(need <= most, text, (names, stages, need, case.context.chip.name, most))


def smem_per_sm(case: Case) -> Iterator[Clause]:
    """Compare the shared memory of ``ctas_per_sm`` CTAs with an SM's."""
    ctas, most = case.program.ctas_per_sm, case.context.chip.smem_bytes_per_sm
    need = (case.program.smem_bytes + case.context.chip.smem_reserved_bytes_per_cta) * ctas
    text = "{} CTAs per SM need {} B of shared memory; {} has {} B per SM"
    yield Clause(need <= most, text, (ctas, need, case.context.chip.name, most))


def registers(case: Case) -> Iterator[Clause]:
    """Compare what each statement's registers and the sums need with what a thread may have.

    This is a lower bound: sums live from the first statement to the last, and a statement needs its
    own operands at once.  Whether ptxas spills all the same is ``tinygpu.search.time.registers``'
    estimate, a matter of time and not of legality.  What is made of a tile's sums takes their
    place.
    """
    program, device = case.program, case.context.chip
    sums = _sums(case)
    for names, need in _held_at_once(case, sums):
        most = device.registers_per_thread_max
        text = "{} need {} registers of a thread at once; {} allows {}"
        yield Clause(need <= most, text, (names, need, device.name, most))
    if sums:
        unit = device.register_allocation_unit
        total: Number = 0
        for role in program.roles:
            held = (held_registers(sums.get(role.name, {}).values()) + unit - 1) // unit * unit
            total = total + held * (role.threads * role.copies * program.ctas_per_sm)
        names = ", ".join(dict.fromkeys(n for kept in sums.values() for n in kept))
        resident = program.threads * program.ctas_per_sm
        text = "{} of {} resident threads need {} registers; {} has {} per SM"
        values = (names, resident, total, device.name, device.registers_per_sm)
        yield Clause(total <= device.registers_per_sm, text, values)


def registers_at_once(case: Case) -> Number:
    """Return the most registers that a statement and the sums need of a thread."""
    most: Number = 0
    for _, need in _held_at_once(case, _sums(case)):
        most = select(need > most, need, most)
    return most


def _sums(case: Case) -> dict[str, dict[str, Buffer]]:
    """Return the registers of each role that are added to."""
    sums: dict[str, dict[str, Buffer]] = {}
    for place in case.places:
        write = place.do.write.buffer
        added = any(a.buffer.name == write.name for a in place.do.accesses[:-1])
        if added and write.level == "registers":
            sums.setdefault(place.role.name, {})[write.name] = write
    return sums


def _held_at_once(case: Case, sums: dict[str, dict[str, Buffer]]) -> Iterator[tuple[str, Number]]:
    """Yield the names of a statement's registers, with the sums, and how many they are."""
    seen: set[tuple[str, ...]] = set()
    for place in case.places:
        kept = sums.get(place.role.name, {})
        live = {a.buffer.name: a.buffer for a in place.do.accesses}
        live = {n: b for n, b in sorted((kept | live).items()) if b.level == "registers"}
        if live and tuple(live) not in seen:
            seen.add(tuple(live))
            yield ", ".join(live), held_registers(live.values())


def held_registers(buffers: Iterable[Buffer]) -> Number:
    """Return how many 32-bit registers of a thread hold its share of the buffers."""
    return sum((buffer.bytes + 3) // 4 for buffer in buffers)


def threads(case: Case) -> Iterator[Clause]:
    """Check the CTA's size and that each statement's thread extents count it exactly."""
    count, most = case.program.threads, case.context.chip.threads_per_cta_max
    text = "a CTA has {} threads; {} allows 1 to {}"
    yield Clause((count >= 1) & (count <= most), text, (count, case.context.chip.name, most))
    for role in case.program.roles:
        text = "role {} has {} threads, which are no whole warps of 32"
        yield Clause(role.threads % 32 == 0, text, (role.name, role.threads))
    for place in case.places:
        if place.do.threads:
            got = product(place.do.threads)
            text = "{} is spread over {} threads; its role has {}"
            yield Clause(got == place.role.threads, text, (place.do, got, place.role.threads))


def residency(case: Case) -> Iterator[Clause]:
    """Compare ``ctas_per_sm`` CTAs with an SM's thread and CTA slots."""
    ctas, device = case.program.ctas_per_sm, case.context.chip
    text = "{} CTAs per SM; {} holds {}"
    yield Clause(ctas <= device.ctas_per_sm, text, (ctas, device.name, device.ctas_per_sm))
    need = ctas * case.program.threads
    text = "{} CTAs per SM have {} threads; {} holds {}"
    values = (ctas, need, device.name, device.threads_per_sm)
    yield Clause(need <= device.threads_per_sm, text, values)


def barrier_ids(case: Case) -> Iterator[Clause]:
    """Check that barriers are among the sixteen of a CTA, and that two of them do not meet.

    Copy c of a role uses barrier ``barrier + c``; the CTA uses 0 to make its mbarriers known.  A
    stage of named barriers has a number of its own, and counts whole warps of the CTA.
    """
    used: list[tuple[str, Number, Number]] = [("", 0, 0)] if case.program.barriers else []
    for sync, role in case.syncs:
        name = role.name if sync.scope == "role" else ""
        first, last = sync.barrier, sync.barrier + (role.copies - 1 if name else 0)
        text = "bar.sync {}; a CTA has barriers 0 to 15"
        yield Clause((first >= 0) & (last < _BARRIERS), text, (last,))
        for other, lowest, highest in used:
            if (name, first) != (other, lowest):
                text = "bar.sync {} of {} is also one of {}"
                values = (first, name or "the CTA", other or "the CTA")
                yield Clause((last < lowest) | (first > highest), text, values)
        used.append((name, first, last))
    for barrier in case.program.barriers:
        if barrier.number is None:
            continue
        first, last = barrier.number, barrier.number + barrier.stages - 1
        text = "{} has numbers {} to {}; a CTA has barriers 0 to 15"
        yield Clause((first >= 0) & (last < _BARRIERS), text, (barrier.name, first, last))
        for other, lowest, highest in used:
            text = "{}, numbers {} to {}, has one of those of {}"
            given = (barrier.name, first, last, other or "the CTA")
            yield Clause((last < lowest) | (first > highest), text, given)
        used.append((barrier.name, first, last))
        text = "{} counts {} threads; whole warps arrive: a multiple of {} up to {}"
        whole = (barrier.arrivals > 0) & (barrier.arrivals % _WARP == 0)
        holds = whole & (barrier.arrivals <= case.program.threads)
        yield Clause(holds, text, (barrier.name, barrier.arrivals, _WARP, case.program.threads))


def index_width(case: Case) -> Iterator[Clause]:
    """Check that offsets made in 32 bits fit."""
    narrow = case.program.addressing == "i32"
    for operand in case.program.operation.operands:
        count = product(case.context.sizes[a] for a in operand.axes)
        text = "{} has {} elements, and i32 addressing reaches {}"
        values = (operand.name, count, _INT32_LIMIT)
        if count >= _INT32_LIMIT:
            yield Clause(narrow ^ True, text, values)


def predicates(context: Context, place: Place) -> Iterator[Clause]:
    """Check that what a predicate compares, and its distance to the bound, fit 32 bits."""
    do, where = place.do, place.do.where
    if where is None:
        return
    low: Number = where.origin.constant
    high = low
    bound = where.bound.evaluate(context.parameters)
    steps = [
        *zip(do.values, where.value, strict=False),
        *zip(do.threads, where.thread, strict=False),
    ]
    parts: list[tuple[Number, Number, Number]] = [(0, n - 1, step) for n, step in steps]
    for name, coefficient in where.origin.terms:
        span = place.ranges.get(name)
        ends = (span.first, span.last) if span else (context.parameters[name],) * 2
        parts.append((*ends, context.number(coefficient)))
    for first, last, step in parts:
        low = low + select(step < 0, step * last, step * first)
        high = high + select(step < 0, step * first, step * last)
    for start, end in ((low, high), (low - bound, high - bound)):
        text = "{}: its predicate compares {} to {}; 32 bits hold numbers below {}"
        holds = (start > -_INT32_LIMIT) & (end < _INT32_LIMIT)
        yield Clause(holds, text, (do, start, end, _INT32_LIMIT))


def even_cuts(case: Case) -> Iterator[Clause]:
    """Yield for each axis that a plan cuts whether the parts are equal."""
    for array, axis, size, parts in case.cuts:
        yield Clause(size % parts == 0, "{} is cut along {} = {} into {} parts",
                     (array, axis, size, parts))  # fmt: skip


def integers(case: Case) -> Iterator[Clause]:
    """Check that what a kernel takes as an integer, and steps by, is one of its 32 bits."""
    names = dict.fromkeys((*case.program.operation.axes, *dict(case.program.parameters)))
    for name in names:
        number = case.context.parameters[name]
        text = "{} is {}; a kernel takes integers up to {}"
        yield Clause(number <= LARGEST_SIZE, text, (name, number, LARGEST_SIZE))
    for buffer in case.program.buffers:
        for stride in buffer.stride if buffer.level == "gmem" else ():
            apart = case.context.number(stride) * buffer.type.bytes
            if np.any(apart > LARGEST_SIZE):
                text = "{}: neighbours along a dimension lie {} B apart; code steps up to {} B"
                yield Clause(apart <= LARGEST_SIZE, text, (buffer.name, apart, LARGEST_SIZE))


def device_memory(case: Case) -> Iterator[Clause]:
    """Compare the bytes of all arrays with the device's memory."""
    if case.context.device is None:
        return
    operation = case.program.operation
    need = sum(
        ARRAY_DTYPES[o.dtype].bytes * product(case.context.sizes[axis] for axis in o.axes)
        for o in operation.operands
    )
    names = ", ".join(o.name for o in operation.operands)
    text = "{} need {} B together; {} has {} B"
    values = (names, need, case.context.device.name, case.context.device.dram_bytes)
    yield Clause(need <= case.context.device.dram_bytes, text, values)


def early(case: Case) -> Iterator[Clause]:
    """Check that the chip lets a term start early, and wait for the kernel before it."""
    arch = case.context.chip.arch
    there = arch_number(arch) >= _EARLY
    text = "{} starts early, and {} has no griddepcontrol.wait"
    yield Clause((case.program.early == 0) | there, text, (case.program.name, arch))


def covered_sizes(case: Case) -> Iterator[Clause]:
    """Check the sizes that a term covers by statements, not by a loop or the grid."""
    for axis, most in case.program.at_most:
        text = "{} is {}; the term covers at most {}"
        yield Clause(case.context.sizes[axis] <= most, text, (axis, case.context.sizes[axis], most))
