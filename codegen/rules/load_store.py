"""Rules of loads and stores, by how registers hold the values that move.

A thread's own values move one by one or as vectors, pairs of 16-bit values as whole registers.

Source: PTX ISA 9, "ld", "st", "red".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tinygpu.codegen.kernel.clusters import rank_along
from tinygpu.codegen.kernel.kernel import KernelCode, Rule, constant
from tinygpu.codegen.kernel.ptx import Scalar as Number
from tinygpu.codegen.kernel.scope import Scope, value_coordinates
from tinygpu.devices.device import adds_vectors
from tinygpu.errors import ProgramError
from tinygpu.term.program import Access, Do

__all__ = ["ld_global", "ld_shared", "move", "red_global", "st_global", "st_shared"]


def ld_global(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """ld.global: a thread's own values, or pairs."""
    _held(kernel, do, scope, {"": move, "pair": _move_pairs})


def ld_shared(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """ld.shared: a thread's own values, or pairs."""
    _held(kernel, do, scope, {"": move, "pair": _move_pairs})


def st_global(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """st.global: a thread's own values, or pairs."""
    _held(kernel, do, scope, {"": move, "pair": _move_pairs})


def st_shared(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """st.shared: a thread's own values, or pairs."""
    _held(kernel, do, scope, {"": move, "pair": _move_pairs})


def _held(kernel: KernelCode, do: Do, scope: Scope, rules: Mapping[str, Rule]) -> None:
    """Move as registers hold the values.  Raises ProgramError where no rule does."""
    if (held := kernel.holding(do)) not in rules:
        raise ProgramError(f"{do}: no lowering rule for values held as {held}")
    rules[held](kernel, do, scope)


def move(kernel: KernelCode, do: Do, scope: Scope, hint: str = "") -> None:
    """ld.global, ld.shared, st.global, st.shared: vectors of ``do.vector`` values.

    ``hint`` stands after the space, as ".L1::no_allocate" or ".cs".
    """
    source = do.reads[0]
    assert isinstance(source, Access)
    loads = do.write.buffer.level == "registers"
    memory, held = (source, do.write) if loads else (do.write, source)
    space = "global" if memory.buffer.level == "gmem" else "shared"
    width = memory.buffer.type.bytes
    registers = kernel.cells(held, do.values, scope)
    places = value_coordinates(memory, do.values)
    words = max(1, do.vector * width // 4)
    kind = {8: "f64", 4: "f32"}.get(width, "b32" if do.vector > 1 else "b16")
    for first in range(0, len(places), do.vector):
        mine = registers[first : first + do.vector]
        guard = kernel.guard(do, memory, places[first], scope)
        if guard is False:
            if loads:  # outside for every thread: a constant, not what the register held
                each = {"h": "b16", "f": "f32", "d": "f64"}[mine[0][1]]
                for part in mine:
                    kernel.text.emit(f"mov.{each} {part}, {outside(memory, each)}")
            continue
        parts = mine if width >= 4 else [kernel.text.register(kind) for _ in range(words)]
        if width < 4 and do.vector == 1:
            parts = mine
        halves = [
            (f"{{{mine[2 * i]}, {mine[2 * i + 1]}}}", part)
            for i, part in enumerate(parts)
            if parts is not mine
        ]
        listed = f"{{{', '.join(parts)}}}" if len(parts) > 1 else parts[0]
        suffix = f".v{len(parts)}" if len(parts) > 1 else ""
        at = kernel.address(memory, do.threads, places[first], scope)
        if memory.buffer.home and not loads:
            space, at = "shared::cluster", _at_peer(kernel, at, memory)
        prefix = f"@{guard} " if isinstance(guard, str) else ""
        if loads:
            if prefix:
                for part in parts:
                    kernel.text.emit(f"mov.{kind} {part}, {outside(memory, kind)}")
            kernel.text.emit(f"{prefix}ld.{space}{hint}{suffix}.{kind} {listed}, {at}")
            for pair, part in halves:
                kernel.text.emit(f"mov.b32 {pair}, {part}")
        else:
            for pair, part in halves:
                kernel.text.emit(f"mov.b32 {part}, {pair}")
            kernel.text.emit(f"{prefix}st.{space}{hint}{suffix}.{kind} {at}, {listed}")


def _at_peer(kernel: KernelCode, address: str, memory: Access) -> str:
    """Return the address operand in shared memory of the CTA into which it writes."""
    base, _, known = address[1:-1].partition("+")
    axis, peer = memory.buffer.home, int(memory.peer)

    def make() -> Number:
        there = kernel.text.register("u32")
        rank = rank_along(kernel, axis, peer)
        kernel.text.emit(f"mapa.shared::cluster.u32 {there}, {base}, {rank}")
        return there

    return f"[{kernel.text.once(('peer', base, peer), make)}+{known or 0}]"


def outside(access: Access, kind: str) -> str:
    """Return what a guarded load leaves in a register, or in a pair of halves, as PTX spells it."""
    if kind in ("f32", "f64"):
        return constant(access.outside, kind)
    half = int(access.buffer.type.round(np.array(access.outside)).view(np.uint16))
    return f"{half * (0x10001 if kind == 'b32' else 1):#x}" if half else "0"


def _move_pairs(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """Move whole pairs, or single values where ``vector`` is 1."""
    (source,) = do.reads
    assert isinstance(source, Access)
    loads = do.write.buffer.level == "registers"
    memory, held = (source, do.write) if loads else (do.write, source)
    space = "global" if memory.buffer.level == "gmem" else "shared"
    places = value_coordinates(memory, do.values)
    words = do.vector // 2
    kind = "b32" if words else "b16"
    whole = kernel.pairs(held, do.values, scope) if words or loads else []
    if words:
        parts = whole
    elif loads:
        parts = [kernel.text.register("b16") for _ in places]
    else:
        parts = list(kernel.halves(held, do.values, scope))
    for i, at in enumerate(places[:: do.vector]):
        guard = kernel.guard(do, memory, at, scope)
        mine = parts[i * words : (i + 1) * words] if words else parts[i : i + 1]
        if loads and guard is not True:
            for part in mine:
                kernel.text.emit(f"mov.{kind} {part}, {outside(memory, kind)}")
        if guard is False:
            continue
        listed = f"{{{', '.join(mine)}}}" if len(mine) > 1 else mine[0]
        how = f".v{len(mine)}" * (len(mine) > 1) + (".b32" if words else ".b16")
        where = kernel.address(memory, do.threads, at, scope)
        prefix = f"@{guard} " if isinstance(guard, str) else ""
        ends = f"{listed}, {where}" if loads else f"{where}, {listed}"
        kernel.text.emit(f"{prefix}{'ld' if loads else 'st'}.{space}{how} {ends}")
    if loads and not words:
        for i, pair in enumerate(whole):
            kernel.text.emit(f"mov.b32 {pair}, {{{parts[2 * i]}, {parts[2 * i + 1]}}}")


def red_global(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """red.global.add: vectors of ``do.vector`` fp32 values from sm_90 on, else one at a time.

    Of 16 bits it adds with .noftz, the one form that there is.
    """
    source = do.reads[0]
    assert isinstance(source, Access)
    kernel.each_its_own(do)
    kind = do.write.buffer.dtype
    vector = do.vector if adds_vectors(kernel.arch, kind) else 1
    plain = ".noftz" * (do.write.buffer.type.bytes == 2)
    places = value_coordinates(do.write, do.values)
    registers = kernel.cells(source, do.values, scope)
    for first in range(0, len(places), vector):
        guard = kernel.guard(do, do.write, places[first], scope)
        if guard is False:
            continue
        mine = registers[first : first + vector]
        listed = f".v{vector}.{kind}", f"{{{', '.join(mine)}}}"
        how, what = listed if vector > 1 else (f"{plain}.{kind}", mine[0])
        at = kernel.address(do.write, do.threads, places[first], scope)
        prefix = f"@{guard} " if isinstance(guard, str) else ""
        kernel.text.emit(f"{prefix}red.global.add{how} {at}, {what}")
