"""The picture of a buffer in shared memory: its banks, its writers, and what one read touches.

Tiles that TMA and wgmma move in 16 B pieces are shown in these: the banks of each piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tinygpu.cli.palette import COLOURS, pale
from tinygpu.errors import ScheduleError, nearest
from tinygpu.term.access import BANK_BYTES, BANKS, WARP_LANES, bank_wavefronts
from tinygpu.term.program import Access, Buffer, Do, Program, walk

__all__ = ["layout_figure", "layout_panels", "painted", "shared_buffers"]

_ROWS, _COLUMNS = 16, 32
_CELL_INCHES = 0.29
_PIECE_BYTES = 16
_WARPS = to_rgba_array([shade for colour in COLOURS for shade in (pale(colour, 0.2), pale(colour))])
Cells = NDArray[np.int64]
Panels = tuple[Buffer, bool, list[tuple[str, Cells, int, str]], str]
"""A buffer, whether its rows are drawn down, pictures of it, what a column is if not an element.

A picture has a text, a number for each element (none below 0), the most and the colours.
"""


def shared_buffers(program: Program) -> list[Buffer]:
    """Return the buffers in shared memory that have rows and columns, and slabs of them perhaps."""
    return [b for b in program.buffers if b.level == "smem" and len(b.shape) in (2, 3)]


def layout_figure(program: Program, name: str = "") -> Figure:
    """Draw a buffer's panels.  Raises ScheduleError for a buffer that there is not."""
    buffer, turned, panels, piece = layout_panels(program, name)
    return _drawn(buffer, turned, panels, piece=piece)


def layout_panels(program: Program, name: str = "") -> Panels:
    """Return what is seen of stage 0 of a buffer (the first, if no name is given).

    The contiguous dimension lies along the columns.  Raises ScheduleError for a buffer that there
    is not.
    """
    known = {b.name: b for b in shared_buffers(program)}
    if not known:
        raise ScheduleError(
            f"layout: {program.name} keeps no tile in shared memory; give a schedule that does "
            "(of simt, one with a_from or b_from smem), or draw its timeline"
        )
    if name and name not in known:
        raise ScheduleError(f"layout: buffer {name}; {nearest(name, known)}")
    buffer = known[name] if name else next(iter(known.values()))
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
    return buffer, turned, panels, ""


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
    return buffer, False, [panel], f"{each} elements"


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


def _drawn(
    buffer: Buffer, turned: bool, panels: list[tuple[str, Cells, int, str]], *, piece: str = ""
) -> Figure:
    full = panels[0][1].T.shape if turned else panels[0][1].shape
    rows, columns = min(full[0], _ROWS), min(full[1], _COLUMNS)
    beside = rows > columns / 2 and _COLUMNS // 3 < columns <= _COLUMNS // 2  # narrow tiles
    parts = [(cells.T if turned else cells)[:rows, :columns] for _, cells, _, _ in panels]
    if not beside:
        parts = [_touched(part) for part in parts]
    tall = [len(part) for part in parts]
    own = columns * _CELL_INCHES
    wide = max(own, 5.2) + 0.9
    size = (wide * len(panels), rows * _CELL_INCHES + 1.6)
    if not beside:
        size = (wide, sum(tall) * _CELL_INCHES + 0.75 * len(panels) + 0.5)
    figure = Figure(figsize=size, layout="compressed")
    grid: Any = {"ncols": len(panels)} if beside else {"nrows": len(panels), "height_ratios": tall}
    names = ("column", "row") if turned else ("row", f"piece of {piece}" if piece else "column")
    for axes, shown, (text, _, most, colours) in zip(
        figure.subplots(**grid, squeeze=False).ravel(), parts, panels, strict=True
    ):
        _panel(axes, shown, most, colours)
        axes.set_title(fill(text, int(5.2 * (wide + own))), fontsize=9.5, loc="left")
        axes.set_ylabel(f"{names[0]} of the tile", fontsize=8.5)
        axes.set_xlabel(f"{names[1]} of the tile", fontsize=8.5)
    whole = (rows, columns) == full
    part = "" if whole else f"; the first {rows} x {columns} of {full[0]} x {full[1]}"
    title = f"{buffer.name}: {buffer.dtype}, {buffer.layout}{part}"
    figure.suptitle(fill(title, int(9.5 * size[0])), fontsize=11)
    return figure


def _touched(cells: Cells) -> Cells:
    """Return the first rows, up to the last that something touches."""
    rows = np.flatnonzero((cells > 0).any(axis=1))
    return cells[: max(4, rows[-1] + 1)] if len(rows) else cells


def _panel(axes: Axes, cells: Cells, most: int, colours: str) -> None:
    """Draw numbers on colours, dark on light and light on dark."""
    paint = _painted(cells, most, colours)
    axes.imshow(paint, aspect="equal", interpolation="nearest")
    bright = paint[..., :3] @ np.array([0.299, 0.587, 0.114])
    size = 7.5 if most <= 1000 else 6.5
    for (row, column), number in np.ndenumerate(cells):
        if number >= 0 and not (colours == "Blues" and number == 0):
            axes.text(column, row, str(number), ha="center", va="center", fontsize=size,
                      color="black" if bright[row, column] > 0.55 else "white",
                      in_layout=False)  # fmt: skip
    axes.set_xticks(np.arange(-0.5, cells.shape[1]), minor=True)
    axes.set_yticks(np.arange(-0.5, cells.shape[0]), minor=True)
    line = "#c9d1da" if colours == "Blues" else "white"  # most of its cells are empty
    axes.grid(which="minor", color=line, linewidth=0.6)
    axes.tick_params(which="minor", length=0)
    axes.tick_params(labelsize=7.5)
    axes.set_xticks(range(0, cells.shape[1], 4 if cells.shape[1] > 8 else 1))
    axes.set_yticks(range(0, cells.shape[0], 2 if cells.shape[0] > 4 else 1))


def painted(cells: Cells, most: int, colours: str) -> dict[str, str]:
    """Return the colour of each number that is drawn, as the page has it."""
    numbers = np.unique(cells)
    paint = (255 * _painted(numbers, most, colours)).round().astype(int)
    return {
        str(number): "#{:02x}{:02x}{:02x}".format(*rgb[:3])
        for number, rgb in zip(numbers.tolist(), paint.tolist(), strict=True)
        if number >= 0 and not (colours == "Blues" and number == 0)
    }


def _painted(cells: Cells, most: int, colours: str) -> NDArray[np.float64]:
    """Return RGBA: warps take turns, dark and pale, others have a share of their map."""
    if colours == "warps":
        paint: Any = _WARPS[(cells // WARP_LANES) % len(_WARPS)]
    else:
        top = 0.7 if colours == "Blues" else 1.0
        paint = colormaps[colours](top * cells / max(most - (colours != "Blues"), 1))
    painted = np.asarray(paint, np.float64)
    painted[cells < 0] = (1.0, 1.0, 1.0, 1.0)
    return painted
