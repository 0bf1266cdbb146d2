"""Tiles in shared memory for the report: their banks, their writers, and what one read touches.

Tiles that TMA and wgmma move in 16 B pieces are shown in these: the banks of each piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex, to_rgba_array
from numpy.typing import NDArray

from tinygpu.cli.palette import COLOURS, pale
from tinygpu.term.access import BANK_BYTES, BANKS, WARP_LANES, bank_wavefronts
from tinygpu.term.program import Access, Buffer, Do, Program, walk

__all__ = ["layouts"]

ROWS, COLUMNS = 16, 32
"""How much of a tile is shown: swizzles repeat within it."""
_PIECE_BYTES = 16
_WARPS = to_rgba_array([shade for colour in COLOURS for shade in (pale(colour, 0.2), pale(colour))])
Cells = NDArray[np.int64]
Panels = tuple[bool, list[tuple[str, Cells, int, str]], str]
"""Whether a buffer's rows lie across, pictures of it, what a column is if not an element.

A picture has a text, a number for each element (none below 0), the most and the colours.
"""


def layouts(program: Program) -> list[dict[str, Any]]:
    """Return what is seen of stage 0 of the program's tiles in shared memory, for the page.

    A tree has a title, what lies down and across, and panels.  The contiguous dimension lies
    across.
    """
    found = []
    for buffer in (b for b in program.buffers if b.level == "smem" and len(b.shape) in (2, 3)):
        turned, panels, piece = _panels(program, buffer)
        names = ["row", f"piece of {piece}" if piece else "column"]
        shown = [
            (text, cells.T if turned else cells, most, colours)
            for text, cells, most, colours in panels
        ]
        tree = {
            "title": f"{buffer.name}: {buffer.dtype}, {buffer.layout}, stages: {buffer.stages}",
            "axes": names[::-1] if turned else names,
            "panels": [
                {
                    "text": text,
                    "cells": cells[:ROWS, :COLUMNS].tolist(),
                    "size": cells.shape,
                    "paint": _painted(cells[:ROWS, :COLUMNS], most, colours),
                }
                for text, cells, most, colours in shown
            ],
        }
        found.append(tree)
    return found


def _panels(program: Program, buffer: Buffer) -> Panels:
    if program.barriers:
        return _of_pieces(buffer)
    turned = buffer.stride[0] == 1 and buffer.shape[0] != 1
    shape = (int(buffer.shape[0]), int(buffer.shape[1]))
    rows, columns = np.indices(shape)
    offsets = np.asarray(buffer.layout((rows, columns)), np.int64)
    banks = offsets * buffer.type.bytes // BANK_BYTES % BANKS
    writes = [s for s in _uses(program) if s.write.buffer == buffer]
    reads = [(s, a) for s in _uses(program) for a in s.accesses[:-1] if a.buffer == buffer]
    panels: list[tuple[str, Cells, int, str]] = [
        (f"bank of each element ({BANKS} banks of {BANK_BYTES} B)", banks, BANKS, "viridis")
    ]
    if writes:
        threads = program.threads
        owner = _first_touch(writes[0], writes[0].write, shape, threads)
        text = f"thread that writes it first, by {writes[0].instruction.name}"
        panels.append((f"{text} ({threads} threads; colours: its warp)", owner, threads, "warps"))
    if reads:
        statement, access = reads[0]
        lanes, waves, least = _one_read(statement, access, offsets)
        size = int(statement.vector) * buffer.type.bytes
        text = (
            f"how many lanes of warp 0 touch it in one {statement.instruction.name} of {size} B "
            f"a lane: {_many(waves, 'wavefront')}, at least {least}"
        )
        panels.append((text, lanes, max(int(lanes.max()), 1), "Blues"))
    return turned, panels, ""


def _of_pieces(buffer: Buffer) -> Panels:
    """Return the rows of a slab in pieces of 16 B, and the four banks in which each lies."""
    each = _PIECE_BYTES // buffer.type.bytes
    slab = (int(buffer.shape[0]), int(buffer.shape[1]))
    rows, columns = np.indices((slab[0], slab[1] // each))
    at = (rows, columns * each, *(np.zeros_like(rows) for _ in buffer.shape[2:]))
    offsets = np.asarray(buffer.layout(at), np.int64) * buffer.type.bytes
    groups = BANKS * BANK_BYTES // _PIECE_BYTES
    panel = (
        "g: its 16 B lie in banks 4g to 4g+3",
        offsets // _PIECE_BYTES % groups,
        groups,
        "viridis",
    )
    return False, [panel], f"{each} elements"


def _uses(program: Program) -> list[Do]:
    return [s for s, _ in walk(program) if isinstance(s, Do)]


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _places(extents: Sequence[int], steps: Sequence[tuple[int, ...]]) -> Cells:
    """Return the coordinates of every number of mixed radix ``extents``: shape (numbers, 2)."""
    total = int(np.prod([int(e) for e in extents], dtype=np.int64)) if extents else 1
    number, found = np.arange(total), np.zeros((total, 2), np.int64)
    for extent, step in zip(extents, steps, strict=True):
        found += (number % int(extent))[:, None] * np.array([int(s) for s in step])
        number = number // int(extent)
    return found


def _origin(access: Access) -> Cells:
    """Return where an access starts when every variable is 0."""
    return np.array([int(o.constant) for o in access.origin] or [0, 0])


def _first_touch(do: Do, access: Access, shape: tuple[int, int], threads: int) -> Cells:
    """Return which thread touches each element first; -1 where none does."""
    found = np.full(shape, -1, np.int64)
    by_thread, by_value = _places(do.threads, access.thread), _places(do.values, access.value)
    for thread in reversed(range(min(threads, len(by_thread)))):
        where = _origin(access) + by_thread[thread] + by_value
        inside = ((where >= 0) & (where < shape)).all(axis=1)
        found[where[inside, 0], where[inside, 1]] = thread
    return found


def _one_read(do: Do, access: Access, offsets: Cells) -> tuple[Cells, int, int]:
    """Return how many lanes touch each element, the wavefronts, and the fewest there could be."""
    vector, bytes_ = int(do.vector), access.buffer.type.bytes
    lanes = _places(do.threads, access.thread)[:WARP_LANES]
    values = _places(do.values, access.value)[:vector]
    where = (_origin(access) + lanes[:, None] + values[None]) % offsets.shape
    touched = np.zeros(offsets.shape, np.int64)
    np.add.at(touched, (where[..., 0], where[..., 1]), 1)
    starts = np.full(WARP_LANES, -1, np.int64)
    starts[: len(where)] = offsets[where[:, 0, 0], where[:, 0, 1]] * bytes_
    size = min(vector * bytes_, 16)
    words = np.unique(offsets[touched > 0] * bytes_ // BANK_BYTES)
    return touched, int(bank_wavefronts(starts, size)), -(-len(words) // BANKS)


def _painted(cells: Cells, most: int, colours: str) -> dict[str, str]:
    """Return the colour of each number that is drawn: warps take turns, dark and pale."""
    numbers = np.unique(cells)
    numbers = numbers[numbers >= (colours == "Blues")]
    if colours == "warps":
        paint: Any = _WARPS[(numbers // WARP_LANES) % len(_WARPS)]
    else:
        top = 0.7 if colours == "Blues" else 1.0
        paint = colormaps[colours](top * numbers / max(most - (colours != "Blues"), 1))
    return {str(n): to_hex(rgb) for n, rgb in zip(numbers.tolist(), paint, strict=True)}
