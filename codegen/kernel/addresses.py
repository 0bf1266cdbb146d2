"""Addresses and guards: from (thread, value) coordinates to registers and immediates.

For one access, what depends on the thread, the CTA and the loop becomes a base register; what
depends on the value alone becomes an immediate offset, wherever the distance from the base is the
same for all threads.  In gmem a coordinate times a leading dimension known only at launch is a
*row*: rows beyond the first cost one multiply-add each.  In a swizzled smem buffer values fall into
classes of one base each.

"pointer" addressing keeps a base in a register and steps it at the end of every iteration; "i32"
and "i64" compute the offset anew at each access, as plain index arithmetic in source code does.

Source: ``docs/model.md``, section "Code".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tinygpu.codegen.kernel.ptx import Scalar, Text
from tinygpu.codegen.kernel.rings import split_index
from tinygpu.codegen.kernel.scope import Scope, Terms
from tinygpu.codegen.kernel.smem import smem_plan
from tinygpu.term.layout import Swizzle
from tinygpu.term.program import Access, Affine, Buffer, Do, Program, counted

__all__ = ["Addresses"]


_FAR = 1 << 31  # an operand's immediate has 32 bits


class Addresses:
    """Address arithmetic of one kernel."""

    def __init__(
        self, program: Program, text: Text, integers: dict[str, Scalar], pointers: dict[str, str]
    ) -> None:
        self.program, self.text = program, text
        self.integers, self.pointers = integers, pointers
        self.plan = smem_plan(program)
        self.variables: dict[str, Scalar] = {}
        self.local = "%tid_x"  # this thread's number in its role's copy
        self.copy: Scalar = 0

    def integer(self, number: int | str) -> Scalar:
        """Return a parameter's value, or the number itself."""
        return number if not isinstance(number, str) else self.integers[number]

    def variable(self, name: str, scope: Scope) -> Scalar:
        """Return a grid or loop variable, or a parameter."""
        if name in scope.running:
            return scope.running[name]
        if name in scope.static:
            return scope.static[name]
        if name in self.variables:
            return self.variables[name]
        return self.integers[name]

    def sum(self, terms: Terms, scope: Scope, start: Scalar = 0) -> Scalar:
        """Return the value of affine terms."""
        total = start
        for name, coefficient in terms:
            running = counted(name, coefficient) if isinstance(coefficient, str) else ""
            if running in scope.running:
                total = self.text.add(scope.running[running], total)
                continue
            total = self.text.multiply_add(
                self.variable(name, scope), self.integer(coefficient), total
            )
        return total

    def thread_coordinate(self, threads: tuple[int, ...], i: int) -> Scalar:
        """Return the i-th coordinate of this thread among the thread modes."""
        text = self.text
        below = int(np.prod(threads[:i]))
        above = int(np.prod(threads[i + 1 :]))

        def make() -> Scalar:
            shifted = text.divide(self.local, below)
            return shifted if above == 1 else text.modulo(shifted, threads[i])

        return text.once(("thread", self.local, below, threads[i], above == 1), make)

    def thread_sum(self, threads: tuple[int, ...], weights: tuple[int, ...]) -> Scalar:
        """Return the thread's part: coordinates times weights."""

        def make() -> Scalar:
            total: Scalar = 0
            for i, weight in enumerate(weights):
                if weight and threads[i] > 1:
                    total = self.text.multiply_add(
                        self.thread_coordinate(threads, i), weight, total
                    )
            return total

        return self.text.once(("thread sum", self.local, threads, weights), make)

    def coordinate(
        self,
        access: Access,
        threads: tuple[int, ...],
        d: int,
        scope: Scope,
        *,
        fixed_only: bool = False,
    ) -> Scalar:
        """Return the coordinate of value 0 in dimension d, without the known part of the origin."""
        _, terms = scope.split(access.origin[d])
        weights = tuple(steps[d] for steps in access.thread)
        here = self.thread_sum(threads, weights)
        looped = tuple(t for t in terms if t[0] in scope.running)
        fixed = tuple(t for t in terms if t[0] not in scope.running)
        key = ("coordinate", self.local, threads, weights, fixed)
        start = self.text.once(key, lambda: self.sum(fixed, scope, here))
        if not looped or fixed_only:
            return start
        return self.text.once((*key, looped), lambda: self.sum(looped, scope, start))

    def compared(
        self, do: Do, scope: Scope, *, fixed_only: bool = False
    ) -> tuple[Scalar, list[int]]:
        """Return what a predicate compares less its bound: of this thread, and of each value more.

        The predicate holds where the sum of both is below 0.
        """
        where = do.where
        assert where is not None
        known, terms = scope.split(where.origin + -1 * where.bound)
        looped = tuple(t for t in terms if t[0] in scope.running)
        fixed = tuple(t for t in terms if t[0] not in scope.running)
        weights = where.thread or (0,) * len(do.threads)
        here = self.thread_sum(do.threads, weights)
        key = ("compared", do.threads, weights, fixed)
        total = self.text.once(key, lambda: self.sum(fixed, scope, here))
        if looped and not fixed_only:
            start = total
            total = self.text.once((*key, looped), lambda: self.sum(looped, scope, start))
        offsets = np.full(1, known, np.int64)
        for extent, step in zip(do.values, where.value or (0,) * len(do.values), strict=True):
            offsets = (np.arange(extent)[:, None] * step + offsets[None]).reshape(-1)
        return total, offsets.tolist()

    def prepare(self, access: Access, threads: tuple[int, ...], scope: Scope) -> None:
        """Compute here, before a loop, what of an access does not depend on the loop."""
        if access.buffer.level == "smem":
            self.smem_line(access, threads, scope)
        if access.buffer.level != "gmem":
            return
        for d, guarded in enumerate(access.guard):
            if guarded:
                looped = any(t[0] in scope.running for t in scope.split(access.origin[d])[1])
                if looped:
                    self.coordinate(access, threads, d, scope, fixed_only=True)
                else:
                    self.left(access, threads, d, scope)

    def left(self, access: Access, threads: tuple[int, ...], d: int, scope: Scope) -> Scalar:
        """Return how far value 0 is from the end of dimension d, known part of the origin apart."""
        _, terms = scope.split(access.origin[d])
        weights = tuple(steps[d] for steps in access.thread)
        size = self.integer(access.limit(d))
        return self.text.once(
            ("left", access.limit(d), threads, weights, terms),
            lambda: self.text.subtract(size, self.coordinate(access, threads, d, scope)),
        )

    def rest(self, access: Access, d: int, scope: Scope) -> Scalar:
        """Return how far a CTA's tile is from the end of dimension d, known part apart."""
        _, terms = scope.split(access.origin[d])
        size = self.integer(access.limit(d))
        return self.text.once(
            ("rest", size, terms), lambda: self.text.subtract(size, self.sum(terms, scope))
        )

    def whole(self, run: Sequence[Do], scope: Scope, *, fixed_only: bool = False) -> str | bool:
        """Return the predicate that no value of statements is outside: the same for a whole CTA.

        What does not change in a loop is asked first, so that it may be asked before the loop.
        """
        asked: list[dict[tuple[Scalar, int], None]] = [{}, {}]
        for do in run:
            for access in do.accesses:
                if (len(access.value), len(access.thread)) != (len(do.values), len(do.threads)):
                    return False
                modes = (
                    *zip(do.values, access.value, strict=True),
                    *zip(do.threads, access.thread, strict=True),
                )
                for d, guarded in enumerate(access.guard):
                    known, terms = scope.split(access.origin[d])
                    last = known + sum((extent - 1) * max(steps[d], 0) for extent, steps in modes)
                    if not guarded or self.always_inside(access, d, last, scope):
                        continue
                    moves = any(name in scope.running for name, _ in terms)
                    if not (moves and fixed_only):
                        asked[moves][self.rest(access, d, scope), last] = None
        inside: int | str = True
        for rest, last in (*asked[False], *asked[True]):
            also = inside if isinstance(inside, str) else None
            key = ("whole", rest, last, also)
            inside = self.text.once(key, partial(self.text.less, last, rest, also))
            if inside is False:
                return False
        return inside if isinstance(inside, str) else True

    def always_inside(self, access: Access, d: int, last: int, scope: Scope) -> bool:
        """Say whether the coordinate ``last`` beyond the origin is always inside."""
        size, most = self.integer(access.limit(d)), last
        for name, coefficient in scope.split(access.origin[d])[1]:
            factor, reached = self.integer(coefficient), self._reached(name, scope)
            if isinstance(factor, str) or reached is None:
                return False
            most += max(factor, 0) * reached
        return isinstance(size, int) and most < size

    def _reached(self, name: str, scope: Scope) -> int | None:
        """Return the largest value of a variable, if that is known."""
        if name in scope.running:
            turn = scope.turns.get(name)
            trips = self.integer(turn.trips) if turn else ""
            return trips - turn.near if turn and isinstance(trips, int) else None
        extent = None if self.program.barriers else self.integers.get(f"grid_{name}")
        return extent - 1 if isinstance(extent, int) else None

    def guard(
        self, access: Access, threads: tuple[int, ...], at: NDArray[np.int64], scope: Scope
    ) -> str | bool:
        """Return the predicate that the value at ``at`` is inside (True: nothing to ask)."""
        inside: str | bool = True
        for d, guarded in enumerate(access.guard):
            if not guarded:
                continue
            known, _ = scope.split(access.origin[d])
            moves = zip(threads, access.thread, strict=True)
            farthest = sum((extent - 1) * max(steps[d], 0) for extent, steps in moves)
            if self.always_inside(access, d, int(at[d]) + known + farthest, scope):
                continue
            rest = self.left(access, threads, d, scope)
            also = inside if isinstance(inside, str) else None
            key = ("inside", rest, int(at[d]) + known, also)
            found = self.text.known(key)
            if found is None:
                predicate = self.text.less(int(at[d]) + known, rest, also)
                if isinstance(predicate, bool):
                    if not predicate:
                        return False
                    continue
                self.text.remember(key, predicate)
                found = predicate
            inside = str(found)
        return inside

    def gmem(
        self, access: Access, threads: tuple[int, ...], at: NDArray[np.int64], scope: Scope
    ) -> str:
        """Return the operand ``[register+immediate]`` of a value of a gmem access."""
        buffer = access.buffer
        width = buffer.type.bytes
        strides = [self.integer(s) for s in buffer.stride]
        known = [int(at[d]) + scope.split(access.origin[d])[0] for d in range(len(strides))]
        if self.program.addressing != "pointer":
            return self._recomputed(access, threads, known, strides, scope)
        base, rows = self.base(access, threads, scope)
        immediate = 0
        for k, stride, row in zip(known, strides, rows, strict=True):
            if isinstance(stride, int):
                immediate += k * stride * width
            elif k != row:
                pitch = self._pitch(stride, width)
                base = self._row(base, pitch, k - row)
        return self._operand(base, immediate)

    def _operand(self, base: Scalar, immediate: int) -> str:
        if not -_FAR <= immediate < _FAR:
            key = ("far", base, immediate)
            base, immediate = self.text.once(key, lambda: self.text.wide_add(base, immediate)), 0
        return f"[{base}+{immediate}]" if immediate else f"[{base}]"

    def _row(self, base: Scalar, pitch: Scalar, rows: int) -> Scalar:
        """Return a pointer that is some rows beyond a base."""
        key = ("row", base, pitch, rows)
        return self.text.once(key, lambda: self.text.wide_multiply_add(pitch, rows, base))

    def _pitch(self, stride: Scalar, width: int) -> Scalar:
        return self.text.once(("pitch", stride, width), lambda: self.text.multiply(stride, width))

    def key(self, access: Access, threads: tuple[int, ...], scope: Scope) -> tuple[object, ...]:
        """Return what two accesses have in common that can share a pointer."""
        terms = tuple(scope.split(o)[1] for o in access.origin)
        return ("base", access.buffer.name, threads, access.thread, terms)

    def base(
        self, access: Access, threads: tuple[int, ...], scope: Scope
    ) -> tuple[Scalar, tuple[int, ...]]:
        """Return the pointer of an access and, for each dimension, the row that it stands at."""
        key = self.key(access, threads, scope)
        found = self.text.known((*key, "rows"))
        if found is None:
            first = tuple(scope.split(o)[0] for o in access.origin)
            self.text.remember((*key, "rows"), ",".join(map(str, first)))
            self.text.remember(key, self.pointer(access, threads, first, scope))
            found = self.text.known((*key, "rows"))
        pointer = self.text.known(key)
        assert pointer is not None
        return pointer, tuple(int(r) for r in str(found).split(","))

    def pointer(
        self, access: Access, threads: tuple[int, ...], rows: tuple[int, ...], scope: Scope
    ) -> Scalar:
        """Return a new pointer, to value 0 of an access at the given rows."""
        text, buffer = self.text, access.buffer
        pointer: Scalar = self.pointers[buffer.name]
        for d, name in enumerate(buffer.stride):
            stride = self.integer(name)
            here = self.coordinate(access, threads, d, scope)
            if isinstance(stride, int):
                pointer = text.wide_multiply_add(here, stride * buffer.type.bytes, pointer)
            else:
                here = text.add(here, rows[d])
                pitch = self._pitch(stride, buffer.type.bytes)
                pointer = text.wide_multiply_add(here, pitch, pointer)
        return pointer

    def _recomputed(
        self,
        access: Access,
        threads: tuple[int, ...],
        known: list[int],
        strides: list[Scalar],
        scope: Scope,
    ) -> str:
        text, buffer = self.text, access.buffer
        offset: Scalar = 0
        immediate = 0
        wide = self.program.addressing == "i64"
        for d, stride in enumerate(strides):
            here = self.coordinate(access, threads, d, scope)
            if isinstance(stride, int):
                immediate += known[d] * stride * buffer.type.bytes
            else:
                here = text.add(here, known[d])
            if not wide:
                offset = text.multiply_add(here, stride, offset)
            elif isinstance(here, int):
                offset = text.wide_add(here * int(stride), offset)
            else:
                long = text.register("u64")
                text.emit(f"cvt.s64.s32 {long}, {here}")
                if stride != 1:
                    pitch = self._long(stride)
                    product = text.register("u64")
                    text.emit(f"mul.lo.s64 {product}, {long}, {pitch}")
                    long = product
                offset = text.wide_add(long, offset)
        base = self.pointers[buffer.name]
        if wide and not isinstance(offset, int):
            scaled = text.register("u64")
            text.emit(f"mul.lo.s64 {scaled}, {offset}, {buffer.type.bytes}")
            address = text.wide_add(scaled, base)
        else:
            address = text.wide_multiply_add(offset, buffer.type.bytes, base)
        return self._operand(address, immediate)

    def _long(self, stride: Scalar) -> Scalar:
        """Return a stride in 64 bits."""
        if isinstance(stride, int):
            return stride

        def make() -> Scalar:
            long = self.text.register("u64")
            self.text.emit(f"cvt.s64.s32 {long}, {stride}")
            return long

        return self.text.once(("long", stride), make)

    def steps(self, access: Access, name: str, scope: Scope) -> Scalar:
        """Return by how many bytes the pointer of an access moves in a step of a loop variable."""
        text, total = self.text, 0
        result: Scalar = 0
        for d, stride_name in enumerate(access.buffer.stride):
            stride = self.integer(stride_name)
            for variable, coefficient in scope.split(access.origin[d])[1]:
                if variable != name:
                    continue
                factor = self.integer(coefficient)
                if isinstance(stride, int) and isinstance(factor, int):
                    total += factor * stride * access.buffer.type.bytes
                else:
                    pitch = self._pitch(stride, access.buffer.type.bytes)
                    result = text.wide_multiply_add(factor, pitch, result)
        return text.wide_add(result, total)

    def smem(
        self, access: Access, threads: tuple[int, ...], at: NDArray[np.int64], scope: Scope
    ) -> str:
        """Return the operand ``[register+immediate]`` of a value of an smem access."""
        buffer, text = access.buffer, self.text
        width, strides = buffer.type.bytes, [int(s) for s in buffer.stride]
        known = sum(
            (int(at[d]) + scope.split(access.origin[d])[0] if access.origin else int(at[d])) * s
            for d, s in enumerate(strides)
        )
        line = self.smem_line(access, threads, scope)
        start = self.plan.start[buffer.name]
        if not buffer.swizzle[0]:
            base, immediate = line, known * width + start
        else:
            base = text.once(
                ("swizzled", line, known),
                lambda: text.multiply_add(
                    self.swizzled(buffer, text.add(line, known)), width, "%smem"
                ),
            )
            immediate = start
        slot = self.slot(buffer, access.index, scope)
        if isinstance(slot, int):
            immediate += slot
        else:
            base = text.once(("at", base, slot), lambda: text.add(base, slot))
        return f"[{base}+{immediate}]" if immediate else f"[{base}]"

    def smem_line(self, access: Access, threads: tuple[int, ...], scope: Scope) -> Scalar:
        """Return the thread's place in a stage: an address, or elements before a swizzle."""
        buffer, text = access.buffer, self.text
        strides = [int(s) for s in buffer.stride]
        terms = tuple(scope.split(o)[1] for o in access.origin)
        weights = tuple(
            sum(step * s for step, s in zip(steps, strides, strict=True)) for steps in access.thread
        )

        def line() -> Scalar:
            here = self.thread_sum(threads, weights)
            for d, rest in enumerate(terms):
                here = text.multiply_add(self.sum(rest, scope), strides[d], here)
            if buffer.swizzle[0]:
                return here
            return text.multiply_add(here, buffer.type.bytes, "%smem")

        key = ("smem", buffer.name, threads, weights, terms)
        return text.once(key, line)

    def swizzled(self, buffer: Buffer, linear: Scalar) -> Scalar:
        """Return where a swizzled buffer has a linear offset, in elements."""
        bits, base, shift = buffer.swizzle
        if isinstance(linear, int):
            return Swizzle(bits, base, shift)(linear)
        text = self.text
        masked = text.register("u32")
        text.emit(f"and.b32 {masked}, {linear}, {((1 << bits) - 1) << (base + shift)}")
        return text.exclusive_or(linear, text.divide(masked, 1 << shift))

    def slot(self, buffer: Buffer, index: Affine, scope: Scope) -> Scalar:
        """Return the offset in bytes of the stage of a ring index, in this copy's part.

        Raises ProgramError for an index that counts down.
        """
        if buffer.stages == 1:
            return self.copied(buffer, 0)
        _, base, terms = split_index(buffer.stages, index, scope)
        stage_bytes = self.plan.stage_bytes[buffer.name]
        if all(isinstance(c, int) and c % buffer.stages == 0 for _, c in terms):
            return self.copied(buffer, base % buffer.stages * stage_bytes)

        def make() -> Scalar:
            here = self.sum(terms, scope, base)
            return self.text.multiply(self.text.modulo(here, buffer.stages), stage_bytes)

        stage = self.text.once(("slot", buffer.stages, stage_bytes, base, terms), make)
        return self.copied(buffer, stage)

    def copied(self, buffer: Buffer, offset: Scalar) -> Scalar:
        """Return an offset in bytes in the part of a buffer that the role's copy has."""
        if buffer.copies == 1:
            return offset
        return self.text.multiply_add(self.copy, buffer.stages * buffer.stage_bytes, offset)
