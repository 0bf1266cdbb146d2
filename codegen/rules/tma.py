"""The rule of TMA, which moves a tile in boxes: each slab, by as many lines as a box may have.

Source: PTX ISA 9, "cp.async.bulk.tensor".
"""

from __future__ import annotations

from itertools import product

from tinygpu.codegen.kernel.clusters import receivers, signal_at
from tinygpu.codegen.kernel.kernel import KernelCode
from tinygpu.codegen.kernel.ptx import Scalar
from tinygpu.codegen.kernel.scope import Scope
from tinygpu.codegen.kernel.tensor_map import ragged_line, tensor_map_of
from tinygpu.codegen.kernel.trimming import trimmed_map
from tinygpu.codegen.rules.descriptors import offset, smem_stage
from tinygpu.errors import ProgramError
from tinygpu.term.digits import box_lines, lines_apart, neighbours
from tinygpu.term.pages import Pages
from tinygpu.term.program import Access, Affine, Do, Statement, each

__all__ = ["bulk_tensor", "look_up", "prepare"]

_NO_PAGE = -1


def bulk_tensor(
    kernel: KernelCode, do: Do, scope: Scope, *, store: str = "cp", how: str = ""
) -> None:
    """cp.async.bulk.tensor, either way: one instruction a box.

    A ``store`` by "cp.reduce" combines the tile with the array, ``how``: ".add", ".min", ...
    """
    (read,) = do.reads
    assert isinstance(read, Access)
    loads = read.buffer.level == "gmem"
    gmem, smem = (read, do.write) if loads else (do.write, read)
    if loads != (do.signal is not None) or len(do.values) > 3 + loads:
        raise ProgramError(f"{do}: a load of up to four value modes signals a barrier, no store")
    text, lines = kernel.text, int(box_lines(do))
    high = int(do.values[1]) // lines
    if do.trimmed:
        trimmed = (trimmed_map(kernel, do, scope, box) for box in range(high))
        maps = [(str(name), f"@{some} ") for name, some in trimmed]
    else:
        maps = [(kernel.map_at(tensor_map_of(do)), "")] * high
    base = text.add(smem_stage(kernel, smem, scope), offset(kernel, smem, scope))
    slabs = int(do.values[2]) if len(do.values) > 2 else 1
    mask = receivers(kernel, do.multicast)
    signal = signal_at(kernel, *do.signal, scope) if do.signal else ""
    for slab, box in product(range(slabs), range(high)):
        name, only = maps[box]
        moved = _moved(smem, slab, lines * box)
        strides = map(int, smem.buffer.stride)
        far = sum(m * s for m, s in zip(moved, strides, strict=True)) * smem.buffer.type.bytes
        at = text.add(text.add("%smem", base), far)
        beyond = _moved(gmem, slab, lines * box)
        if neighbours(do):
            place = _apart(kernel, do, gmem, beyond, scope)
        else:
            place = _coordinates(kernel, gmem, beyond, lines, scope)
        where = f"{name}, {{{', '.join(map(str, place))}}}"
        copy = f"{'cp' if loads else store}.async.bulk.tensor.{len(place)}d"
        if not loads:
            text.emit(f"{copy}.global.shared::cta{how}.tile.bulk_group [{where}], [{at}]")
            continue
        kind, to = (".multicast::cluster", f", {mask}") if mask else ("", "")
        kind += ".cta_group::2" if do.signal and do.signal[0].home else ""
        text.emit(
            f"{only}{copy}.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
            f"{kind} [{at}], [{where}], {signal}{to}"
        )


def _moved(access: Access, slab: int, line: int) -> list[int]:
    """Return how far from its tile's begin a box begins, along each dimension."""
    slabs = access.value[2] if slab else (0,) * len(access.value[1])
    return [int(d) * line + int(s) * slab for d, s in zip(access.value[1], slabs, strict=True)]


def _coordinates(
    kernel: KernelCode, gmem: Access, beyond: list[int], lines: int, scope: Scope
) -> list[Scalar]:
    """Return a box's coordinates, innermost first, ``beyond`` elements from a tile's origin.

    Of a ragged map (``runtime/maps.py``) the lines have two: how many of the box's are not there,
    and the line behind the last one that is.
    """
    if gmem.buffer.pages:
        return _in_page(kernel, gmem, gmem.buffer.pages, beyond, scope)[::-1]
    order = reversed([*zip(gmem.origin, beyond, strict=True)])
    column, line, *others = [_coordinate(kernel, o, b, scope) for o, b in order]
    end = ragged_line(gmem)
    if not end:
        return [column, line, *others]
    text, limit = kernel.text, kernel.addresses.integer(end)

    def left() -> Scalar:
        below = text.signed("min", text.subtract(limit, line), lines)
        return text.signed("max", below, 0)

    here = text.once(("ragged", line, end, lines), left)
    return [column, text.subtract(lines, here), text.add(line, here), *others]


def _in_page(
    kernel: KernelCode, gmem: Access, pages: Pages, beyond: list[int], scope: Scope
) -> list[Scalar]:
    """Return a box's coordinates in a pool of pages, outermost first.

    A block beyond the array's end has no entry: no page is its, and TMA gives zeros.
    """
    text, shape = kernel.text, gmem.buffer.shape
    found = [_coordinate(kernel, o, b, scope) for o, b in zip(gmem.origin, beyond, strict=True)]
    rows, along = shape.index(pages.rows), shape.index(pages.axis)
    row, place = found[rows], found[along]

    def look_up() -> Scalar:
        size, pitch = map(kernel.addresses.integer, (pages.axis, pages.pitch))
        entry = text.multiply_add(row, pitch, text.divide(place, pages.size))
        at = text.wide_multiply_add(entry, 4, f"%p_{pages.table}")
        page = text.register("u32")
        text.emit(f"mov.u32 {page}, {_NO_PAGE}")
        inside = text.less(place, size)
        only = "" if inside is True else f"@{inside} "
        if inside is not False:
            text.emit(f"{only}ld.global.u32 {page}, [{at}]")
        return page

    found[rows] = text.once(("page", pages, row, place), look_up)
    found[along] = text.once(("within", pages, place), lambda: text.modulo(place, pages.size))
    return found


def look_up(kernel: KernelCode, body: tuple[Statement, ...], scope: Scope) -> None:
    """Read the entries of tables that a turn's loads need, before what the turn waits for."""
    for statement in body:
        if isinstance(statement, Do) and statement.instruction.name == "cp.async.bulk.tensor":
            (read,) = statement.reads
            assert isinstance(read, Access)
            if read.buffer.pages:
                lines = int(box_lines(statement))
                for box in range(int(statement.values[1]) // lines):
                    _coordinates(kernel, read, _moved(read, 0, lines * box), lines, scope)


def _apart(
    kernel: KernelCode, do: Do, gmem: Access, beyond: list[int], scope: Scope
) -> list[Scalar]:
    """Return the coordinates of a box whose lines lie apart: of lines two, neighbours and steps.

    A line is known but for whole steps.  Raises ProgramError where it is not.
    """
    step = int(lines_apart(do, gmem))
    order = [*reversed([*zip(gmem.origin, beyond, strict=True)])]
    column, *others = (_coordinate(kernel, o, b, scope) for o, b in (order[0], *order[2:]))
    origin, more = order[1]
    known, terms = scope.split(origin)
    far, near = divmod(known + more, step)
    steps = [(name, c // step) for name, c in terms if isinstance(c, int) and c % step == 0]
    if len(steps) < len(terms) or near + int(neighbours(do)) > step:
        raise ProgramError(f"{do}: its lines begin at {origin}, and lie {step} apart; let boxes "
                           "begin at whole steps")  # fmt: skip
    key = ("tma", tuple(steps), far)
    line = kernel.text.once(key, lambda: kernel.addresses.sum(tuple(steps), scope, far))
    return [column, near, line, *others]


def _coordinate(kernel: KernelCode, origin: Affine, beyond: int, scope: Scope) -> Scalar:
    """Return a coordinate of gmem, ``beyond`` elements from an origin."""
    known, terms = scope.split(origin)
    known += beyond
    key = ("tma", terms, known)
    return kernel.text.once(key, lambda: kernel.addresses.sum(terms, scope, known))


def prepare(kernel: KernelCode, body: tuple[Statement, ...], scope: Scope) -> None:
    """Compute before a loop the masks of the CTAs that its loads are sent to."""
    for statement in each(body):
        if isinstance(statement, Do) and statement.instruction.name == "cp.async.bulk.tensor":
            receivers(kernel, statement.multicast)
