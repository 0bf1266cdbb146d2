"""Moves between a fragment and shared memory that lies as its threads hold it.

Where thread t keeps its value v of a fragment ``t * step + place(v)`` elements from a start, one
address a thread serves all of its values, and values that lie together move together, up to 16 B.
What goes to a buffer's ``home`` in another CTA goes to the address that ``mapa`` gives.

>>> runs(np.array([0, 1, 2, 3, 512, 513, 516]), step=4)
[[0, 1, 2, 3], [4, 5], [6]]

Source: PTX ISA 9: "ld", "st", "mapa", and the register fragments of "wgmma.mma_async".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tinygpu.codegen.kernel.clusters import home_rank
from tinygpu.codegen.kernel.kernel import KernelCode
from tinygpu.codegen.kernel.scope import Scope, value_coordinates
from tinygpu.codegen.rules.descriptors import offset
from tinygpu.codegen.rules.fragments import smem_stage
from tinygpu.errors import ProgramError
from tinygpu.isa.fragment import FRAGMENTS
from tinygpu.term.program import Access, Do

__all__ = ["exchange", "runs"]

_AT_ONCE = (4, 2, 1)  # words of 4 B


def exchange(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """ld.shared, st.shared, st.shared::cluster: a thread's values of a fragment, in its own order.

    Raises ProgramError for what is not fp32, and where threads' values lie otherwise.
    """
    (source,) = do.reads
    assert isinstance(source, Access)
    loads = do.write.buffer.level == "registers"
    memory, held = (source, do.write) if loads else (do.write, source)
    shape, step, places = _places(do, memory, held)
    registers = kernel.cells(held, (shape[1], shape[0]), scope)
    text = kernel.text
    start = text.add(smem_stage(kernel, memory, scope), offset(kernel, memory, scope))
    known, base = (start, "%smem") if isinstance(start, int) else (0, text.add("%smem", start))
    base = text.multiply_add(kernel.local, step * memory.buffer.type.bytes, base)
    space = "shared"
    if memory.buffer.home and not loads:
        space = "shared::cluster"
        base = text.once(("home", base), lambda: _mapped(kernel, str(base), memory.buffer.home))
    for run in runs(places, step=step):
        listed = ", ".join(registers[v] for v in run)
        listed, many = (f"{{{listed}}}", f".v{len(run)}") if len(run) > 1 else (listed, "")
        at = f"[{base}+{known + int(places[run[0]]) * memory.buffer.type.bytes}]"
        ends = f"{listed}, {at}" if loads else f"{at}, {listed}"
        text.emit(f"{'ld' if loads else 'st'}.{space}{many}.f32 {ends}")


def _mapped(kernel: KernelCode, address: str, home: str) -> str:
    """Return the register with an address in shared memory of the CTA at 0 along an axis."""
    there = kernel.text.register("u32")
    rank = home_rank(kernel, home)
    kernel.text.emit(f"mapa.shared::cluster.u32 {there}, {address}, {rank}")
    return there


def _places(do: Do, memory: Access, held: Access) -> tuple[tuple[int, int], int, NDArray[np.int64]]:
    """Return (rows, columns) that move, how far threads lie apart, and a thread's values."""
    types = (memory.buffer.dtype, held.buffer.dtype)
    if not held.buffer.fragment or types != ("f32", "f32") or memory.buffer.swizzle[0]:
        raise ProgramError(f"{do}: f32 of a fragment moves, to or from a buffer without a swizzle")
    tile = value_coordinates(held, do.values)
    strides = np.array([int(s) for s in memory.buffer.stride], np.int64)
    rows, columns = (int(n) + 1 for n in tile.max(axis=0))
    table = np.full((rows, columns), -1, np.int64)
    table[tile[:, 0], tile[:, 1]] = value_coordinates(memory, do.values) @ strides
    at = table[FRAGMENTS[held.buffer.fragment].places((rows, columns))]
    step = int(at[1, 0] - at[0, 0])
    if (table < 0).any() or (at != at[:1] + step * np.arange(len(at))[:, None]).any():
        raise ProgramError(f"{do}: the values of a thread do not lie as those of the one before it")
    return (rows, columns), step, at[0]


def runs(places: NDArray[np.int64], *, step: int) -> list[list[int]]:
    """Return which values move together: neighbours, from a multiple of their number on."""
    order = np.argsort(places, kind="stable").tolist()
    found: list[list[int]] = []
    while order:
        for count in _AT_ONCE:
            run, first = order[:count], int(places[order[0]])
            if (
                len(run) == count
                and first % count == step % count == 0
                and all(int(places[v]) == first + i for i, v in enumerate(run))
            ):
                break
        found.append(run)
        order = order[len(run) :]
    return found
