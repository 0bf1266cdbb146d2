"""Running loops: what is set before the first iteration and stepped at the end of each.

Inside a loop that is not unrolled, an address that depends on the loop variable is not computed
anew: global accesses that differ by a constant share a pointer, which moves by a fixed number of
bytes; a ring's stage is an offset that goes round, so that no remainder is taken.

Source: ``docs/model.md``, section "Code".
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tinygpu.codegen.kernel.addresses import Addresses
from tinygpu.codegen.kernel.ptx import Scalar as Number
from tinygpu.codegen.kernel.rings import split_index
from tinygpu.codegen.kernel.scope import Scope, value_coordinates
from tinygpu.term.program import Access, Body, Do, For

__all__ = ["by_threads", "instances", "rotating_slots", "stepped_pointers"]


def by_threads(do: Do) -> tuple[Access, ...]:
    """Return the accesses whose addresses threads make, each or a warp's lanes for it."""
    return () if do.instruction.of_tile else do.accesses


def instances(body: Body, scope: Scope) -> Iterator[tuple[Do, Scope]]:
    """Yield the statements of a loop's body, unrolled, but not of running loops inside."""
    for statement in body:
        if isinstance(statement, Do):
            yield statement, scope
        for inner in scope.laid_out(statement):
            yield from instances(statement.body, inner)


def stepped_pointers(addresses: Addresses, loop: For, scope: Scope) -> list[tuple[Number, Number]]:
    """Make the pointers of a loop's accesses; return (pointer, bytes that it steps) of each."""
    text = addresses.text
    first: dict[tuple[object, ...], tuple[Do, Access, Scope, list[tuple[int, ...]]]] = {}
    for do, inner in instances(loop.body, scope):
        for access in by_threads(do):
            if access.buffer.level != "gmem":
                continue
            key = addresses.key(access, do.threads, inner)
            places = value_coordinates(access, do.values)
            known = np.array([inner.split(o)[0] for o in access.origin])
            lowest = tuple(int(x) for x in places.min(axis=0) + known)
            first.setdefault(key, (do, access, inner, []))[3].append(lowest)
    stepped: list[tuple[Number, Number]] = []
    for do, access, inner, lows in first.values():
        rows = tuple(min(column) for column in zip(*lows, strict=True))
        static = {**inner.static, loop.var: loop.start}
        running = {n: r for n, r in inner.running.items() if n != loop.var}
        at_start = Scope(static, running)
        with text.scope():
            pointer = addresses.pointer(access, do.threads, rows, at_start)
            for origin, stride in zip(access.origin, access.buffer.stride, strict=True):
                skipped = at_start.split(origin)[0] - inner.split(origin)[0]
                pitch = text.multiply(addresses.integer(stride), access.buffer.type.bytes)
                pointer = text.wide_multiply_add(pitch, skipped, pointer)
            moved = text.register("u64")
            text.emit(f"mov.u64 {moved}, {pointer}")
            distance = addresses.steps(access, loop.var, inner)
        key = addresses.key(access, do.threads, inner)
        text.remember(key, moved)
        text.remember((*key, "rows"), ",".join(map(str, rows)))
        if distance != 0:
            stepped.append((moved, distance))
    return stepped


def rotating_slots(addresses: Addresses, loop: For, scope: Scope) -> list[tuple[str, int, int]]:
    """Make the rotating stage offsets of a loop; return (register, step, end) of each, in bytes."""
    text = addresses.text
    rings: dict[tuple[object, ...], tuple[str, int, int]] = {}
    for do, inner in instances(loop.body, scope):
        for access in by_threads(do):
            buffer = access.buffer
            if buffer.level != "smem" or buffer.stages == 1:
                continue
            _, base, terms = split_index(buffer.stages, access.index, inner)
            rest = tuple(term for term in terms if term != (loop.var, 1))
            if len(rest) + 1 != len(terms) or any(
                name == loop.var or (name in inner.running and name not in scope.running)
                for name, _ in rest
            ):
                continue  # what an inner loop counts, that one turns
            stage_bytes = addresses.plan.stage_bytes[buffer.name]
            key = ("slot", buffer.stages, stage_bytes, base, terms)
            if key in rings:
                continue
            offset = text.register("u32")
            first = text.modulo(addresses.sum(rest, inner, base + loop.start), buffer.stages)
            text.emit(f"mov.u32 {offset}, {text.multiply(first, stage_bytes)}")
            text.remember(key, offset)
            rings[key] = (offset, stage_bytes, stage_bytes * buffer.stages)
    return list(rings.values())
