"""Loads that leave out lines outside of the array: which map a box takes, how many bytes land.

TMA takes longer for a line that it fills with zeros than for one that it reads.  Where the lines of
a tile are rows (or columns) of the product, those outside are never stored, so they need no zeros.
A box that begins at line s and has b lines is then loaded

    whole       if s + b <= size         by the map of whole boxes
    in part     if s < size < s + b      by a map whose boxes have size % b lines
    not at all  if size <= s

All boxes begin at multiples of b, so one such map is enough.  The barrier expects the bytes of the
lines that are inside: of a tile of R lines from s on, which CTAs of a cluster load in parts, those
of min(max(size - s, 0), R).

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.term.operation import matmul
>>> from tinygpu.codegen.kernel.tensor_map import tensor_maps
>>> term = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["plain"]))
>>> for tensor_map in tensor_maps(term):
...     print(tensor_map)
a: boxes of 64 x 64, 128B swizzle
a: the rest of boxes of 64 x 64, 128B swizzle
b: boxes of 64 x 64, 128B swizzle
b: the rest of boxes of 64 x 64, 128B swizzle

Source: measured on an H200 (``docs/decisions.md``); PTX ISA 9, "Tensor-map".
"""

from __future__ import annotations

from tinygpu.codegen.kernel.kernel import KernelCode
from tinygpu.codegen.kernel.ptx import Scalar as Number
from tinygpu.codegen.kernel.scope import Scope
from tinygpu.codegen.kernel.tensor_map import tensor_map_of
from tinygpu.errors import ProgramError
from tinygpu.term.digits import box_lines
from tinygpu.term.program import Access, Affine, Arrive, Do, Statement, each, walk

__all__ = ["expected_bytes", "trim", "trimmed_map"]


def trim(kernel: KernelCode, body: tuple[Statement, ...], scope: Scope) -> None:
    """Compute for a tile, before its loops, what its loads and barriers need.

    Lines that begin where an inner loop says are left to that loop.
    """
    known = {*scope.static, *scope.running, *kernel.addresses.variables}

    def ready(do: Do) -> bool:
        first, _ = _line(do)
        return {name for name, _ in first.terms} <= known

    for statement in each(body):
        if isinstance(statement, Arrive) and all(map(ready, _loads(kernel, statement))):
            expected_bytes(kernel, statement, scope)
        elif isinstance(statement, Do) and statement.trimmed and ready(statement):
            for box in range(int(statement.values[1] // box_lines(statement))):
                trimmed_map(kernel, statement, scope, box)


def trimmed_map(kernel: KernelCode, do: Do, scope: Scope, box: int = 0) -> tuple[Number, str]:
    """Return the register that points to the map of a trimmed load's box, and whether it loads."""
    text, lines = kernel.text, int(box_lines(do))
    whole = tensor_map_of(do)
    left = text.subtract(_left(kernel, do, scope, whole_tile=False), box * lines)

    def choose() -> Number:
        fits, chosen = text.less(lines - 1, left), text.register("u64")
        maps = f"{kernel.map_at(whole)}, {kernel.map_at(whole._replace(rest=True))}"
        text.emit(f"selp.b64 {chosen}, {maps}, {fits}")
        return chosen

    chosen = text.once(("map", whole, left), choose)
    return chosen, str(text.once(("some", left), lambda: str(text.less(0, left))))


def expected_bytes(kernel: KernelCode, arrive: Arrive, scope: Scope) -> Number:
    """Return the bytes that land at the barrier in a phase: of trimmed loads those inside."""
    fixed, loads = int(arrive.bytes), _loads(kernel, arrive)
    if not fixed or not loads:
        return fixed
    if arrive.barrier.home:
        raise ProgramError(f"{arrive}: a load that leaves out lines signals its own CTA's barrier")
    text, taken = kernel.text, []
    for do in loads:
        lines, line_bytes = _lines(kernel, do)
        fixed -= lines * line_bytes
        taken.append((_left(kernel, do, scope, whole_tile=True), lines, line_bytes))
    if fixed < 0:
        raise ProgramError(f"{arrive}: its loads are of {-fixed} B more; expect those of all")

    def make() -> Number:
        total: Number = fixed
        for left, lines, line_bytes in taken:
            inside, none = text.register("u32"), text.register("u32")
            text.emit(f"min.s32 {inside}, {left}, {lines}")
            text.emit(f"max.s32 {none}, {inside}, 0")
            total = text.multiply_add(none, line_bytes, total)
        return total

    return text.once(("bytes", fixed, tuple(taken)), make)


def _loads(kernel: KernelCode, arrive: Arrive) -> tuple[Do, ...]:
    """Return the trimmed loads whose bytes a barrier expects."""
    if not arrive.bytes:
        return ()
    found = (
        statement
        for statement, _ in walk(kernel.program)
        if isinstance(statement, Do)
        and statement.signal
        and statement.signal[0] == arrive.barrier
        and statement.trimmed
    )
    return tuple(dict.fromkeys(found))


def _line(do: Do) -> tuple[Affine, int | str]:
    """Return the first line of a load's box, and how many the array has."""
    (source,) = do.reads
    assert isinstance(source, Access)
    line = len(source.origin) - 2
    return source.origin[line], source.buffer.shape[line]


def _lines(kernel: KernelCode, do: Do) -> tuple[int, int]:
    """Return how many lines of a tile all CTAs that share it load, and the bytes of one."""
    inner, lines, *slabs = map(int, do.values)
    parts = dict(kernel.program.cluster).get(do.multicast, 1)
    return lines * parts, inner * (slabs or [1])[0] * do.write.buffer.type.bytes


def _left(kernel: KernelCode, do: Do, scope: Scope, *, whole_tile: bool) -> Number:
    """Return how many lines there are from the first of the box, or tile; at most 0: it is outside.

    A CTA's part of a tile begins at its rank's multiple.
    """
    text, (first, size) = kernel.text, _line(do)
    if whole_tile:
        first = Affine(first.constant, tuple(t for t in first.terms if t[0] != do.multicast))
    known, terms = scope.split(first)

    def make() -> Number:
        at = kernel.addresses.sum(terms, scope, known)
        return text.subtract(kernel.addresses.integer(size), at)

    return text.once(("left", size, terms, known), make)
