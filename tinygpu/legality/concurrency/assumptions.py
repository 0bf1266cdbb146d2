"""Assumptions: what the cutoff theorem needs of a program, a law for each.

Names and declarations are checked when a Program is built.  Most of the rest is read while the
program is laid out (``blocks``): loops of unknown length can be laid beside one another; guards are
distances to a loop's ends; indices of a ring move alike and forwards; tiles are taken in turn.
Four are read here, from the program as it was written, before its maps are erased:

    fields     every field of every part is one that walks know
    storage    a stage of a buffer holds its whole layout, no two elements at one place
    filled     of a tile in registers or tensor memory nothing is read but what something writes
    lanes      whole warps execute what lanes do together: shuffles, a warp's matrices and products

>>> from dataclasses import replace
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> program = Simt().program(matmul("f32"), Chosen(LADDER["shared"]))
>>> assumptions(program)
()
>>> buffers = tuple(replace(b, stage_elements=0) for b in program.buffers)
>>> print(_stored(buffers)[0])
storage: smem_a reaches over 1024 elements, and a stage of it has 0

Source: ``docs/model-concurrency.md``; ``tinygpu.legality.storage_laws``, which is the law.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tinygpu.legality.concurrency.erase import tile_cells
from tinygpu.legality.storage_laws import cells
from tinygpu.term.fields import unknown
from tinygpu.term.program import Buffer, Do, Elect, Program, walked

__all__ = ["assumptions"]

_WARP = 32


def assumptions(program: Program) -> tuple[str, ...]:
    """Return what does not hold, of what is read from the program as it was written."""
    strange = unknown(program)
    named = (f"fields: {strange}",) if strange else ()
    return (*named, *_stored(program.buffers), *_filled(program), *_lanes(program))


def _stored(buffers: Iterable[Buffer]) -> tuple[str, ...]:
    """State that a stage holds its layout, and that the layout gives each element a place."""
    on_chip = (b for b in buffers if b.level != "gmem")
    return tuple(f"storage: {c}" for b in on_chip for c in cells(b) if not c.holds)


def _lanes(program: Program) -> Iterator[str]:
    """State that what a warp's lanes do together is left neither to one nor to some of them."""
    for role in program.roles:
        for s, around in walked(role.body):
            if not isinstance(s, Do) or not s.instruction.of_warps:
                continue
            text = f"lanes: {s}: whole warps execute it, and in {role.name}"
            if any(isinstance(block, Elect) for block in around):
                yield f"{text} one thread does"
            elif int(role.threads) % _WARP or (s.lanes and int(s.lanes[0]) % _WARP):
                yield f"{text} a part of a warp does"


def _filled(program: Program) -> tuple[str, ...]:
    """State that what is read of a tile is written, at some index: footprints count such cells."""
    doubts = []
    for name, (written, read) in tile_cells(program).items():
        missing = int.from_bytes(read, "big") & ~int.from_bytes(written, "big")
        if not (written and read) or missing:
            doubts.append(f"filled: of {name} cells are read that nothing is known to write")
    return tuple(doubts)
