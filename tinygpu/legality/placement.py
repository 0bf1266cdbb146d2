"""Where a term's accesses fall: inside their arrays, whole vectors, each element exactly once.

Each function yields the clauses of one law on one statement (``tinygpu.legality.laws.LAWS`` holds
the law's sentence and source).  They ask ``tinygpu.legality.reach`` about one dimension at a time,
so that over a space each clause depends on few decisions.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> program = Simt().program(matmul(), Chosen(LADDER["tuned"]))
>>> case = Case.of(program, {"m": 64, "n": 64, "k": 37}, load_device("h200"))
>>> clauses = (c for place in case.places for c in aligned_vectors(case.context, place))
>>> print(next(clause for clause in clauses if not clause.holds))
a[128*bm, chunk*bz + 16*kt] by vectors of 4: rows of a have 37 elements

Source: PTX ISA, "Addresses as Operands" (alignment); CUTLASS, "Predicated tile iterators".
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tinygpu.legality.reach import (
    Case,
    Clause,
    Context,
    Place,
    exactly_once,
    first_origin,
    last_origin,
    moves,
    origin_of,
    product,
)
from tinygpu.numbers import Number, Truth
from tinygpu.term.expression import Apply, Constant, Value
from tinygpu.term.groups import END, FIRST, GROUP, cuts_groups, slots
from tinygpu.term.operation import LARGEST_SIZE
from tinygpu.term.program import Access, Do, Exit, select

__all__ = [
    "aligned_vectors",
    "contiguous_vectors",
    "exit_last",
    "fill_tiles",
    "inside",
    "legal_widths",
    "memory_step",
    "store_once",
    "stored",
    "whole_extents",
]

_WIDTHS_BYTES = (1, 2, 4, 8, 16)
_ASYNC_WIDTHS_BYTES = (4, 8, 16)


def _vectors(place: Place) -> Iterator[tuple[Access, Number]]:
    """Yield the accesses to memory that vectors move, and the vector."""
    for access in place.do.accesses:
        if access.buffer.level != "registers":
            yield access, place.do.vector


def whole_extents(context: Context, place: Place) -> Iterator[Clause]:
    """Check that every extent is at least one: the decisions divide one another."""
    for extent in (*place.do.values, *place.do.threads):
        text = "{} has an extent {}; a tile is cut into whole parts"
        yield Clause(extent >= 1, text, (place.do, extent))


def legal_widths(context: Context, place: Place) -> Iterator[Clause]:
    """Check the bytes that one instruction moves."""
    for access, vector in _vectors(place):
        asynchronous = place.do.instruction.completion == "commit_group"
        widths = _ASYNC_WIDTHS_BYTES if asynchronous else _WIDTHS_BYTES
        got = vector * access.buffer.type.bytes
        holds: Truth = False
        for width in widths:
            holds = holds | (got == width)
        allowed = ", ".join(map(str, widths))
        name = place.do.instruction.name
        yield Clause(holds, "{} of {} moves {} B; allowed are {}", (name, access, got, allowed))


def memory_step(access: Access, steps: tuple[Number, ...]) -> Number:
    """Return how far steps move in memory, in elements; in gmem along its contiguous dimension."""
    total: Number = 0
    for step, stride in zip(steps, access.buffer.stride, strict=True):
        if moves(step) and not isinstance(stride, str):
            total = total + step * stride
    return total


def _in_two(do: Do, access: Access, vector: Number) -> Truth:
    """Return whether a vector goes over whole first values of the second mode, that follow on."""
    if len(do.values) < 2:
        return False
    first, second = do.values[:2]
    least: Number = np.maximum(first, 1)
    whole = (vector % least == 0) & (vector > first)
    times: Number = np.maximum(vector // least, 1)
    return whole & (second % times == 0) & (memory_step(access, access.value[1]) == first)


def contiguous_vectors(context: Context, place: Place) -> Iterator[Clause]:
    """Check that a vector's elements follow one another in memory, and vectors fill the mode.

    Or the first two modes, if what the second counts follows on what the first does.
    """
    for access, vector in _vectors(place):
        if not place.do.values:
            continue
        single = vector == 1
        steps = access.value[0]
        strides = zip(steps, access.buffer.stride, strict=True)
        pitched = [step for step, stride in strides if isinstance(stride, str) and moves(step)]
        holds = memory_step(access, steps) == 1
        for step in pitched:
            holds = holds & (step == 0)
        text = "{} by vectors of {}: its first values are not neighbours in memory"
        yield Clause(single | holds, text, (access, vector))
        text = "{} by vectors of {}: {} values are no whole vectors"
        values = (access, vector, place.do.values[0])
        filled = (place.do.values[0] % vector == 0) | _in_two(place.do, access, vector)
        yield Clause(single | filled, text, values)


def aligned_vectors(context: Context, place: Place) -> Iterator[Clause]:
    """Check that every vector starts at a multiple of its width and lies on one side of an edge."""
    for access, vector in _vectors(place):
        do, buffer = place.do, access.buffer
        single = vector == 1
        modes = [
            *zip(do.values[1:], access.value[1:], strict=True),
            *zip(do.threads, access.thread, strict=bool(access.thread)),
        ]
        text = "{} by vectors of {}: a step of {} elements lies between two of them"
        for number, (extent, steps) in enumerate(modes):
            step = memory_step(access, steps)
            if moves(step):
                inside = number == 0 and _in_two(do, access, vector)
                holds = single | (step % vector == 0) | (extent == 1) | inside
                yield Clause(holds, text, (access, vector, step))
        for dimension, stride in enumerate(buffer.stride):
            if isinstance(stride, str) or not access.origin:
                continue
            constant, terms = origin_of(context, access, dimension)
            for factor in (constant, *(c for name, c in terms if name in place.ranges)):
                step = factor * stride
                if moves(step):
                    yield Clause(single | (step % vector == 0), text, (access, vector, step))
            if buffer.level == "gmem":
                size = context.size(access, dimension)
                row = "{} by vectors of {}: rows of {} have {} elements"
                values = (access, vector, buffer.name, size)
                yield Clause(single | (size % vector == 0), row, values)
        bits, base, _ = buffer.swizzle
        if moves(bits):
            text = "{} by vectors of {}: its swizzle moves {} elements as one"
            holds = (bits == 0) | (vector <= 2**base)
            yield Clause(holds, text, (access, vector, 2**base))


def inside(context: Context, place: Place) -> Iterator[Clause]:
    """Check where each dimension starts, and where it ends if nobody guards it.

    Where a loop or the grid moves the access along, its smallest step is taken as the tile: threads
    and values have to stay within it, and the last one within the size.
    """
    for access in place.do.accesses:
        for dimension in range(len(access.buffer.shape)):
            lowest = first_origin(context, place, access, dimension)
            for extent, steps in zip(
                (*place.do.values, *place.do.threads), (*access.value, *access.thread), strict=False
            ):
                if _below_zero(steps[dimension]):
                    lowest = lowest + (extent - 1) * steps[dimension]
            if _below_zero(lowest):
                text = "{}: dimension {} starts at {}; coordinates count from 0"
                yield Clause(lowest >= 0, text, (access, dimension, lowest))
            guard = access.guard[dimension] if access.guard else False
            guarded, size = isinstance(guard, bool) and guard, context.size(access, dimension)
            if isinstance(guard, str):
                text = "{}: dimension {} is asked up to {}, which is at most {}; its size is {}"
                most = place.ranges[guard].last
                yield Clause(most <= size, text, (access, dimension, guard, most, size))
                guarded = True
            if guarded and np.all(size <= LARGEST_SIZE // 2):
                continue
            reach = _reach(access, (*place.do.values, *place.do.threads), dimension)
            far, step = last_origin(context, place, access, dimension)
            if guarded:
                text = "{}: dimension {} is asked up to {}; 32 bits reach {}"
                last = far + reach - 1
                yield Clause(last <= LARGEST_SIZE, text, (access, dimension, last, LARGEST_SIZE))
                continue
            left: Truth = not isinstance(guard, str) and guard  # of a space an array
            for leave in place.exits:
                left = left | _left(context, place, access, dimension, leave)
            if step is None or access.buffer.level == "smem":  # a load may bring a part of a tile
                holds = far + reach <= size
            else:
                text = "{}: threads and values reach over {} along dimension {} in steps of {}"
                yield Clause(left | (reach <= step), text, (access, reach, dimension, step))
                holds, reach = far + step <= size, step
            text = "{}: dimension {} reaches {}, and its size is {}"
            yield Clause(left | holds, text, (access, dimension, far + reach - 1, size))


def _below_zero(number: Number) -> bool:
    """Say whether a number is negative; of a space: in any schedule."""
    return number < 0 if isinstance(number, int) else bool(np.any(np.asarray(number) < 0))


def _left(context: Context, place: Place, access: Access, dimension: int, leave: Exit) -> Truth:
    """Say whether the threads whose coordinates would lie outside have left at an Exit.

    They have if the Exit sees the same origin and thread steps, and a thread's own values never lie
    on both sides of the edge: they fit between two multiples of a divisor of the size.
    """
    shape = leave.access.buffer.shape
    if access.buffer.level != "gmem" or access.buffer.shape[dimension] not in shape:
        return False
    other = shape.index(access.buffer.shape[dimension])
    if len(place.do.threads) != len(leave.threads):
        return False
    first, terms = origin_of(context, access, dimension)
    its_first, its_terms = origin_of(context, leave.access, other)
    if [n for n, _ in terms] != [n for n, _ in its_terms]:
        return False
    room = _reach(access, place.do.values, dimension)
    holds = (first == its_first) & (first % room == 0)
    holds = holds & (_reach(leave.access, leave.values, other) == room)
    for (_, step), (_, its_step) in zip(terms, its_terms, strict=True):
        holds = holds & (step == its_step) & (step % room == 0)
    threads = zip(place.do.threads, access.thread, leave.threads, leave.access.thread, strict=True)
    for extent, steps, its_extent, its_steps in threads:
        step, its_step = steps[dimension], its_steps[other]
        holds = holds & (extent == its_extent) & (step == its_step) & (step % room == 0)
    return holds & (context.size(access, dimension) % room == 0)


def _reach(access: Access, extents: tuple[Number, ...], dimension: int) -> Number:
    """Return how far coordinates reach over the first modes, values and then threads."""
    reach: Number = 1
    for extent, steps in zip(extents, (*access.value, *access.thread), strict=False):
        if moves(steps[dimension]):
            reach = reach + (extent - 1) * steps[dimension]
    return reach


def fill_tiles(context: Context, place: Place) -> Iterator[Clause]:
    """Check that a write to shared memory meets each element of a stage exactly once.

    It does so by itself, or with the statements beside it: their boxes are disjoint and as many
    elements as the stage.
    """
    access = place.do.write
    if access.buffer.level != "smem":
        return
    yield from _once(context, place, place.do)
    boxes = [_box(context, place, do) for do in (place.do, *place.beside)]
    sizes = [context.size(access, d) for d in range(len(access.buffer.shape))]
    together: Truth = len(boxes) > 1
    for i, one in enumerate(boxes):
        for other in boxes[:i]:
            apart: Truth = False
            for (low, count), (low2, count2) in zip(one, other, strict=True):
                apart = apart | (low + count <= low2) | (low2 + count2 <= low)
            together = together & apart
    filled = sum((product(count for _, count in box) for box in boxes), 0)
    together = together & (filled == product(sizes))
    for dimension, ((_, count), size) in enumerate(zip(boxes[0], sizes, strict=True)):
        text = "{}: {} elements along dimension {} of {}"
        if place.beside:
            text += ", and no parts of one stage with the statements beside it"
        yield Clause(together | (count == size), text, (access, count, dimension, size))


def store_once(context: Context, place: Place) -> Iterator[Clause]:
    """Check that each output's elements are each stored exactly once, or added to a cleared one."""
    access, adds = place.do.write, place.do.instruction.atomic
    output = access.buffer.name
    if output not in context.outputs:
        return
    yield from _once(context, place, place.do)
    for dimension, (_, count) in enumerate(_box(context, place, place.do)):
        size = context.size(access, dimension)
        text = "{}: {} elements along dimension {} of {}"
        yield Clause(count >= size, text, (access, count, dimension, size))
    if adds:
        yield Clause(context.zeroed, "{} is added to, but not cleared first", (output,))
    rank = len(access.buffer.shape)
    used = {name for d in range(rank) for name, _ in origin_of(context, access, d)[1]}
    for dimension in range(rank):
        if context.groups and (found := _slot_of(context, place, access, dimension)):
            (slot, block), text = found, "{}: {} slots of {} rows; groups may need {}"
            many, there = slots(context.groups, block).evaluate(context.sizes), context.grid[slot]
            yield Clause(there >= many, text, (output, there, block, many))
            used |= {slot}
    for tiles in place.tiles:
        copies: Number = 1
        for name, step in tiles.start.terms:
            mine = name == place.role.copy
            copies = copies * select(mine & (step == 1), place.role.copies, 0)
        text = "{} is stored for tiles from {} by {}; {} copies of {} take each tile once"
        values = (output, tiles.start, tiles.step, place.role.copies, place.role.name)
        yield Clause((tiles.start.constant == 0) & (tiles.step == copies), text, values)
    for loop in place.to_values:
        text = "{} moves with {}, whose trips are each tile's own: some may leave elements out"
        yield Clause(loop not in used, text, (output, loop), unproved=True)
    for name in (*context.grid, *place.loops):
        if name not in used and not adds:
            times = place.ranges[name].last - place.ranges[name].first + 1
            text = "{} is stored {} times, once for each {}"
            yield Clause(times <= 1, text, (output, times, name))


def exit_last(case: Case) -> Iterator[Clause]:
    """Check that no barrier waits for threads that an Exit has removed."""
    late = case.waits_after_exit
    text = "role {}: its threads meet after some of them have left"
    yield Clause(not late, text, (" and ".join(late),))


def stored(case: Case) -> Iterator[Clause]:
    """Check that some statement writes each output."""
    written = {p.do.write.buffer.name for p in case.places}
    for output in case.program.operation.outputs:
        yield Clause(output.name in written, "{} is never stored", (output.name,))


def _once(context: Context, place: Place, do: Do) -> Iterator[Clause]:
    """Yield the clauses that the modes of a write meet no element twice, and leave no gaps."""
    access = do.write
    threads = _chosen_threads(place, do)
    pairs = [
        *zip(do.values, access.value, strict=True),
        *zip(threads, access.thread, strict=bool(access.thread)),
    ]
    for extent, steps in pairs:
        directions: Number = 0
        for step in steps:
            directions = directions + (step > 0) * 1
        text = "{}: {} values or threads write the same elements; one alone may (k.only)"
        yield Clause((extent == 1) | (directions > 0), text, (access, extent))
        text = "{}: {} values or threads move along {} dimensions, not along one"
        holds = (extent == 1) | (directions < 2)
        yield Clause(holds, text, (access, extent, directions))
    for dimension in range(len(access.buffer.shape)):
        holds, _ = exactly_once(_modes(context, place, do, dimension))
        text = "{}: threads and values meet dimension {} with gaps or overlaps"
        yield Clause(holds, text, (access, dimension))


def _modes(context: Context, place: Place, do: Do, dimension: int) -> list[tuple[Number, Number]]:
    """Return the extents and steps along a dimension: of values, threads, loops and the grid."""
    access = do.write
    extents = (*do.values, *(_chosen_threads(place, do) if access.thread else ()))
    every = zip(extents, (s[dimension] for s in (*access.value, *access.thread)), strict=True)
    modes: list[tuple[Number, Number]] = [(e, s) for e, s in every if moves(s)]
    slot = _slot_of(context, place, access, dimension)
    for name, coefficient in origin_of(context, access, dimension)[1]:
        if slot and name == FIRST:
            modes.append((context.grid[slot[0]], slot[1]))
        elif name in place.ranges:
            span = place.ranges[name]
            modes.append((span.last - span.first + 1, coefficient))
    return modes


def _slot_of(
    context: Context, place: Place, access: Access, dimension: int
) -> tuple[str, float] | None:
    """Return which variable of the grid counts slots in a dimension, and the rows of a slot.

    A write begins at a slot's first row, and is asked whether it is below the group's end: by the
    lemma of ``tinygpu.term.groups`` slots of full blocks are then in the place of rows.
    """
    steps = dict(origin_of(context, access, dimension)[1])
    limited = bool(access.guard) and access.guard[dimension] == END
    if context.groups is None or steps.get(FIRST) != 1 or not limited:
        return None
    values = {name: one for loop in place.tiles for name, one in loop.values}
    match values.get(GROUP):
        case Apply("slot_group", (_, _, Constant(block), Value(slot))) if slot in context.grid:
            if cuts_groups(context.groups, slot, block, values):
                return slot, block
    return None


def _box(context: Context, place: Place, do: Do) -> list[tuple[Number, Number]]:
    """Return of each dimension where a write begins and how many coordinates it meets."""
    return [
        (origin_of(context, do.write, d)[0], exactly_once(_modes(context, place, do, d))[1])
        for d in range(len(do.write.buffer.shape))
    ]


def _chosen_threads(place: Place, do: Do) -> tuple[int, ...]:
    """Return the extents of the threads that act: 1 for the mode that ``lanes`` pins to a value."""
    if place.elected:
        return (1,) * len(do.threads)
    if do.lanes is None:
        return tuple(do.threads)
    divisor, extent, _ = do.lanes
    found, below = list(do.threads), 1
    for i, mode in enumerate(do.threads):
        found[i] = select((below == divisor) & (mode == extent), 1, mode)
        below = below * mode
    return tuple(found)
