"""Products by the tiles of their factors, as those of warpgroups from shared memory are said.

mma.sync reads registers that ldmatrix has filled from shared memory, and so may wgmma's first
factor.  Here the registers are seen through: a factor becomes the access to shared memory from
which its values came, and the digits of threads count what they count in the sums,

    rows      half and octet, as in the first factor
    columns   pair and quad: column pair + 2 quad has the place of octet pair + 2 quad of the second

What is not recognised stays as it is, so that who reads it finds registers that nobody knows: also
a product of blocks whose lanes hold other elements than those.

Source: PTX ISA 9, "Matrix Fragments for mma.m16n8k16"; ``tinygpu.isa.mma_sync``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tinygpu.legality.reach import exactly_once
from tinygpu.term.access_map import Operand
from tinygpu.term.program import Access, Affine, Block, Do, For, Statement

__all__ = ["Placed", "by_dimension", "counted_loops", "of_tiles"]

Placed = tuple[Statement, tuple[Block, ...]]
"""A statement and the blocks around it."""
Steps = tuple[int, ...]
_LANES = (4, 8)  # quad, octet


def of_tiles(body: Sequence[Placed], rings: Collection[str]) -> list[Placed]:
    """Return a body whose warps' products read tiles of the rings; the loads between are left out.

    A factor whose registers are loaded otherwise stays.
    """
    loads = {
        s.write.buffer.name: (place, s, blocks)
        for place, (s, blocks) in enumerate(body)
        if isinstance(s, Do) and _fetches(s, rings)
    }
    writers = [s.write.buffer.name for s, _ in body if isinstance(s, Do)]
    found: list[Placed] = []
    seen: list[Do] = []
    for place, (s, blocks) in enumerate(body):
        of_warps = isinstance(s, Do) and s.instruction.warp_product
        if not isinstance(s, Do) or s.instruction.unit != "tensor" or len(s.reads) != 3:
            found.append((s, blocks))
            continue
        factors: list[tuple[Operand, Steps]] = []
        for read in s.reads[:2]:
            name = read.buffer.name if isinstance(read, Access) else ""
            if name in loads and writers.count(name) == 1 and loads[name][0] < place:
                _, load, around = loads[name]
                assert isinstance(read, Access)
                moved = load if of_warps else _by_rows(load)
                if (through := _through(read, moved, around, blocks)) is not None:
                    factors.append((through, load.threads))
                    seen.append(load)
                    continue
            factors.append((read, ()))
        tiles = replace(s, reads=(*(x for x, _ in factors), s.reads[2]))
        found.append(((_counted(s, factors) or s) if of_warps else tiles, blocks))
    left = {a.buffer.name for s, _ in found if isinstance(s, Do) for a in s.accesses[:-1]}
    gone = {id(load) for load in seen if load.write.buffer.name not in left}
    return [(s, blocks) for s, blocks in found if id(s) not in gone]


def _fetches(do: Do, rings: Collection[str]) -> bool:
    """Say whether a warp moves matrices of a ring to registers of one value."""
    (read, *others) = do.reads or (None,)
    return (
        do.instruction.issuer == "warp"
        and do.instruction.unit == "lsu"
        and do.write.buffer.level == "registers"
        and isinstance(read, Access)
        and read.buffer.name in rings
        and not others
        and do.lanes is None
        and do.where is None
        and do.write.buffer.stages == 1
        and tuple(do.threads[:2]) == _LANES
    )


def _through(
    held: Access, load: Do, around: Sequence[Block], blocks: Sequence[Block]
) -> Access | None:
    """Return where in its tile a product finds what it reads of registers that a load has filled.

    The load is done before it in all turns of the loops around both.
    """
    both = 0
    while both < min(len(around), len(blocks)) and around[both] is blocks[both]:
        both += 1
    loops = counted_loops(around[both:])
    (source,) = load.reads
    assert isinstance(source, Access)
    if loops is None or held.index != load.write.index or any(map(any, held.thread)):
        return None
    rank = len(source.buffer.shape)
    modes = [*zip(load.values, load.write.value, source.value, strict=True)]
    for name, extent in loops.items():
        to, by = (
            tuple(_factor(o, name) for o in one.origin) or (0,) * len(one.buffer.shape)
            for one in (load.write, source)
        )
        modes.append((extent, to, by))
    steps = by_dimension(load.write.buffer.shape, modes)
    origin = load.write.origin
    if steps is None or any(_without(o, loops) != Affine() for o in origin):
        return None

    def moved(by: Sequence[int]) -> Steps:
        return tuple(
            sum(n * each[d] for n, (_, each) in zip(by, steps, strict=True)) for d in range(rank)
        )

    first = [_without(o, loops) for o in source.origin] or [Affine()] * rank
    for o, (_, each) in zip(held.origin, steps, strict=False):
        first = [f + step * o for f, step in zip(first, each, strict=True)]
    return replace(source, value=tuple(map(moved, held.value)), origin=tuple(first))


def _by_rows(load: Do) -> Do:
    """Return a load that moves along rows alone, which a warp's octets count."""
    (source,) = load.reads
    assert isinstance(source, Access)
    rows = [step != 0 for step in source.thread[1]]

    def one(steps: Steps) -> Steps:
        return tuple(step if row else 0 for row, step in zip(rows, steps, strict=True))

    value, thread = (tuple(map(one, each)) for each in (source.value, source.thread))
    origin = tuple(o if row else Affine() for row, o in zip(rows, source.origin, strict=False))
    return replace(load, reads=(replace(source, value=value, thread=thread, origin=origin),))


def _counted(do: Do, factors: Sequence[tuple[Operand, Steps]]) -> Do | None:
    """Return a product by digits of the sums, or None where lanes hold no such fragments."""
    (left, of_left), (right, threads) = factors
    blocks = do.instruction.blocks_of(do.accesses[0].buffer.dtype)
    fragments = blocks.a, blocks.b, blocks.d
    of_columns = (*blocks.d.thread_modes, *(mode for mode in blocks.d.value_modes if not mode[1]))
    octets = [mode for fragment in fragments for mode in fragment.thread_modes[1:]]
    halves = [[mode for mode in fragment.value_modes if mode[1]] for fragment in fragments]
    if of_columns != ((4, 0, 2), (8, 1, 0), (2, 0, 1)) or octets != [(8, 1, 0)] * 3:
        return None
    if halves != [halves[2], [], halves[2]] or of_left not in ((), threads) or len(do.values) != 5:
        return None
    if not (threads and isinstance(left, Access) and isinstance(right, Access)):
        return None
    still = (0,) * len(right.buffer.shape)
    pair, _, deep, columns, _ = right.value
    quad, octet, *warps = right.thread
    if _meet((pair, deep, quad), (octet, columns, *warps)):
        return None
    twice = tuple(2 * step for step in octet)
    y = replace(right, value=(octet, still, deep, columns, still), thread=(twice, still, *warps))
    x = left
    if of_left:
        still = (0,) * len(left.buffer.shape)
        pair, half, deep, _, rows = left.value
        quad, octet, *warps = left.thread
        if _meet((pair, deep, quad), (octet, half, rows, *warps)):
            return None
        x = replace(left, value=(still, half, deep, still, rows), thread=(still, octet, *warps))
    return replace(do, reads=(x, y, *do.reads[2:]), threads=threads, write=_by(do.write, threads))


def _by(access: Access, threads: Steps) -> Access:
    return replace(access, thread=((0,) * len(access.buffer.shape),) * len(threads))


def _meet(some: Sequence[Steps], others: Sequence[Steps]) -> bool:
    """Say whether two groups of digits move along one dimension."""
    one, other = ({d for s in each for d, step in enumerate(s) if step} for each in (some, others))
    return bool(one & other)


def counted_loops(blocks: Sequence[Block]) -> dict[str, int] | None:
    """Return the extents of loops that count to a number from 0 on; None for other blocks."""
    loops = [b for b in blocks if isinstance(b, For) and isinstance(b.trips, int) and not b.start]
    return {b.var: int(b.trips) for b in loops} if len(loops) == len(blocks) else None


def by_dimension(
    shape: Sequence[int | str], modes: Sequence[tuple[int, Steps, Steps]]
) -> list[tuple[int, Steps]] | None:
    """Return the extent of each dimension of registers, and its steps along other things.

    ``modes``: extents, their steps in the registers and along those.  None unless each register is
    counted once, by dimensions, and its other steps are multiples of its own.
    """
    moving = [mode for mode in modes if mode[0] > 1]
    if any(sum(map(bool, to)) > 1 or (not any(to) and any(by)) for _, to, by in moving):
        return None
    none = (0,) * max((len(by) for _, _, by in modes), default=0)
    found: list[tuple[int, Steps]] = []
    for d, extent in enumerate(map(int, shape)):
        own = [(e, to[d], by) for e, to, by in moving if to[d]]
        once, count = exactly_once([(e, step) for e, step, _ in own])
        steps = {tuple(x / step for x in by) for _, step, by in own} or {none}
        if not once or count != extent or len(steps) > 1:
            return None
        (one,) = steps
        if any(x != int(x) for x in one):
            return None
        found.append((extent, tuple(map(int, one))))
    return found


def _factor(form: Affine, name: str) -> int:
    return sum(int(c) for n, c in form.terms if n == name and not isinstance(c, str))


def _without(form: Affine, names: Collection[str]) -> Affine:
    kept = Affine(form.constant, tuple(t for t in form.terms if t[0] not in names))
    return kept if kept.terms or kept.constant else Affine()
