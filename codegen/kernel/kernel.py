"""A kernel in the making: its text, its parameters, the registers and addresses of its values.

The rules (``codegen/rules``) ask it where a value stands; ``emit.py`` walks the term.  A value of
a thread stands

- in a register of its own, a ring of registers at an index that is known;
- in *paired* kernels, whose warps work together or whose roles have digits of threads: one of 16
  bits in half of a 32-bit register, its neighbour in the other half, as ldmatrix and products take
  them; four of 8 bits in one; one of tf32 in an untyped one;
- of a row that tcgen05.ld loads in the registers that ``rules/rows.py`` says, two 16-bit elements
  to one.

An address in a swizzled buffer is ``swizzle(x + y)``, x of the thread and y of the value.  The
swizzle is linear over GF(2); where x and y have no bit in common it is ``swizzle(x) ^ swizzle(y)``,
and what of y the XOR doesn't look at may be added later.  So there is one register for each
different ``swizzle(y)``, made before the loop, and the rest is an immediate.

Source: ``docs/model.md``, section "Code"; PTX ISA 9.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from math import prod

import numpy as np
from numpy.typing import NDArray

from tinygpu.codegen.kernel.addresses import Addresses
from tinygpu.codegen.kernel.ptx import Scalar as Number
from tinygpu.codegen.kernel.ptx import Text
from tinygpu.codegen.kernel.raster import tile_of
from tinygpu.codegen.kernel.rings import Rings
from tinygpu.codegen.kernel.scope import Scope, value_coordinates
from tinygpu.codegen.kernel.tensor_map import TensorMap, tensor_maps
from tinygpu.errors import ProgramError
from tinygpu.term.layout import Swizzle
from tinygpu.term.program import Access, Affine, Barrier, Do, Immediate, Program, Scalar, walk

__all__ = [
    "KINDS", "PTX_VERSION", "KernelCode", "Rule", "constant", "integer_values", "signature",
]  # fmt: skip

PTX_VERSION = "9.0"  # spec: the newest that ptxas 13.0 takes
KINDS = {"f32": "f32", "f64": "f64", "f16": "b16", "bf16": "b16", "tf32": "b32"}
"""The register of a thread's value."""


def signature(program: Program) -> tuple[str, ...]:
    """Return the kernel's integer parameters: the sizes, the term's parameters, the grid."""
    return (
        *program.operation.axes,
        *(name for name, _ in program.parameters),
        *(f"grid_{axis.var}" for axis in program.grid),
    )


def integer_values(
    program: Program, sizes: Mapping[str, int], given: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the value of each integer of ``signature``; those in ``given`` are known."""
    values = program.parameter_values(sizes, given)
    extents = program.grid_extents(sizes)
    values |= {f"grid_{a.var}": n for a, n in zip(program.grid, extents, strict=True)}
    return {name: int(values[name]) for name in signature(program)}


def constant(number: float, dtype: str) -> str:
    """Return a number as PTX spells it exactly."""
    if dtype == "f64":
        return f"0d{np.float64(number).view(np.uint64):016X}"
    return f"0f{np.float32(number).view(np.uint32):08X}"


class KernelCode:
    """One kernel in the making; see the module's text."""

    def __init__(self, program: Program, sizes: Mapping[str, int] | None) -> None:
        """Name the parameters.  ``sizes`` are needed by a specialised program."""
        if program.specialised and sizes is None:
            raise ProgramError(f"program {program.name} is specialised: give the sizes to emit it")
        if not program.name.isidentifier() or not program.name.isascii():
            raise ProgramError(
                f"program {program.name}: its kernel needs a name of letters, digits, _"
            )
        self.program = program
        self.arch = ""  # until the text is made for one
        self.text = Text()
        self.constants = integer_values(program, sizes or {}) if program.specialised else {}
        names = () if program.specialised else signature(program)
        self.parameters = [f"p_{o.name}" for o in program.operation.operands]
        self.parameters += [f"n_{name}" for name in names]
        self.parameters += [f"s_{name}" for name in program.operation.scalars]
        integers: dict[str, Number] = dict(self.constants)
        integers |= {name: f"%n_{name}" for name in names}
        pointers = {o.name: f"%p_{o.name}" for o in program.operation.operands}
        self.addresses = Addresses(program, self.text, integers, pointers)
        self.rings = Rings(self.text, self.addresses.sum)
        self.paired = any(
            isinstance(s, Do)
            and (s.instruction.issuer == "warp" or (program.barriers and s.threads))
            for s, _ in walk(program)
        )
        self.maps = {m: f"map_{i}" for i, m in enumerate(tensor_maps(program))}
        self.ctas = prod(extent for _, extent in program.cluster)
        self.role = program.roles[0]
        self.local = "%tid_x"  # this thread's number in its role's copy
        self.copy: Number = 0
        self.tmem: Number = 0  # the address of the columns that are allocated
        self._registers: dict[tuple[str, int, int], str] = {}

    def module(self, arch: str, directives: list[str], maps: tuple[str, ...] = ()) -> str:
        """Return the module around the body: parameters, directives, registers."""
        program = self.program
        pointers = len(program.operation.operands)
        scalars = len(program.operation.scalars)
        integers = self.parameters[pointers : len(self.parameters) - scalars]
        kinds = ["u64"] * pointers + ["u32"] * len(integers) + ["f32"] * scalars
        listed = [f"\t.param .align 64 .b8 {name}[128]" for name in maps]
        listed += [f"\t.param .{k} {p}" for k, p in zip(kinds, self.parameters, strict=True)]
        lines = [f".version {PTX_VERSION}", f".target {arch}", ".address_size 64"]
        if self.addresses.plan.total_bytes:
            align = 1024 if maps else 16
            lines.append(f".extern .shared .align {align} .b8 smem[];")
        lines += [f".visible .entry {program.name}(", ",\n".join(listed), ")", *directives]
        lines += ["{", *self.text.declarations(), "\t.reg .u32 %tid_x, %smem;"]
        lines += [f"\t.reg .u64 %{p};" for p in (*maps, *self.parameters[:pointers])]
        lines += [f"\t.reg .u32 %{p};" for p in integers]
        lines += [f"\t.reg .f32 %{p};" for p in self.parameters[len(self.parameters) - scalars :]]
        for name in maps:
            lines += [f"\tmov.b64 %{name}, {name};", f"\tcvta.param.u64 %{name}, %{name};"]
        for p, kind in zip(self.parameters, kinds, strict=True):
            lines.append(f"\tld.param.{kind} %{p}, [{p}];")
            if kind == "u64":
                lines.append(f"\tcvta.to.global.u64 %{p}, %{p};")
        lines.append("\tmov.u32 %tid_x, %tid.x;")
        if self.addresses.plan.total_bytes:
            lines.append("\tmov.u32 %smem, smem;")
        return "\n".join([*lines, *self.text.lines, "}", ""])

    def grid(self, linear: Number) -> None:
        """Set the grid's variables from a linear number."""
        extents = {a.var: self.addresses.integer(f"grid_{a.var}") for a in self.program.grid}
        self.addresses.variables |= tile_of(self.program, self.text, extents, linear)

    def places(
        self, access: Access, values: tuple[int, ...], scope: Scope
    ) -> tuple[int, NDArray[np.int64]]:
        """Return the stage of a register access, and the cell there of each value."""
        buffer = access.buffer
        known, terms = scope.split(access.index)
        if any(not isinstance(c, int) or c % buffer.stages for _, c in terms):
            raise ProgramError(
                f"{access}: a ring of registers needs an index that is known; unroll the loop"
            )
        slot = known % buffer.stages
        origins = [scope.split(o) for o in access.origin] or [(0, ())] * len(buffer.shape)
        if any(left for _, left in origins):
            raise ProgramError(f"{access}: registers need an origin that is known; unroll the loop")
        origin = np.array([here for here, _ in origins])
        places = value_coordinates(access, values) + origin
        offsets = places @ np.array([int(s) for s in buffer.stride], np.int64)
        if len(offsets) and not 0 <= int(offsets.max()) < int(buffer.stage_elements):
            raise ProgramError(f"{access}: value {int(offsets.max())} is outside {buffer}")
        return slot, offsets

    def holding(self, do: Do) -> str:
        """Return how registers hold a statement's values: "pair", "four", else ""."""
        held = [a.buffer.type.bytes for a in do.accesses if a.buffer.level == "registers"]
        if not self.paired:
            return ""
        return "four" if 1 in held else "pair" if 2 in held else ""

    def each_its_own(self, do: Do) -> None:
        """Raise ProgramError unless each value is in a register of a thread's own."""
        if held := self.holding(do):
            raise ProgramError(f"{do}: no lowering rule for values held as {held}")

    def cells(self, access: Access, values: tuple[int, ...], scope: Scope) -> list[str]:
        """Return the register of each value that a thread has of a register access."""
        buffer = access.buffer
        if self.paired and buffer.type.bytes <= 2:
            raise ProgramError(f"{access}: its values stand in pairs; no rule takes one by one")
        slot, offsets = self.places(access, values, scope)
        kind = KINDS[buffer.dtype]
        return [self.cell(buffer.name, int(offset), kind, slot) for offset in offsets]

    def words(self, access: Access, values: tuple[int, ...], scope: Scope) -> list[str]:
        """Return the 32-bit registers of a warp's matrix: four values, a pair or one in each.

        Raises ProgramError where four values of 8 bits that follow one another are no neighbours.
        """
        if access.buffer.type.bytes == 2:
            return self.pairs(access, values, scope)
        if access.buffer.type.bytes != 1:
            return self.cells(access, values, scope)
        slot, offsets = self.places(access, values, scope)
        fours = offsets.reshape(-1, 4) if len(offsets) % 4 == 0 else offsets[:, None]
        first = fours[:, 0]
        if (first % 4).any() or (fours != first[:, None] + np.arange(4)).any():
            raise ProgramError(f"{access}: its values are no fours; count neighbours first")
        return [self.cell(access.buffer.name, int(at) // 4, "b32", slot) for at in first]

    def pairs(self, access: Access, values: tuple[int, ...], scope: Scope) -> list[str]:
        """Return the register of each two neighbouring values of a register access.

        Raises ProgramError where two values that follow one another are no pair.
        """
        slot, offsets = self.places(access, values, scope)
        low, high = offsets[::2], offsets[1::2]
        if len(offsets) % 2 or (low % 2).any() or (high != low + 1).any():
            raise ProgramError(f"{access}: its values are no pairs; count neighbours first")
        return [self.cell(access.buffer.name, int(at) // 2, "b32", slot) for at in low]

    def halves(self, access: Access, values: tuple[int, ...], scope: Scope) -> Iterator[str]:
        """Yield a 16-bit register with each value of a register access."""
        slot, offsets = self.places(access, values, scope)
        for offset in offsets.tolist():
            parts = [self.text.register("b16") for _ in range(2)]
            pair = self.cell(access.buffer.name, offset // 2, "b32", slot)
            self.text.emit(f"mov.b32 {{{', '.join(parts)}}}, {pair}")
            yield parts[offset % 2]

    def operands(self, do: Do, scope: Scope) -> Iterator[tuple[str, ...]]:
        """Yield, for each value of a register statement, its target and sources."""
        columns = [self.cells(do.write, do.values, scope)]
        for read in do.reads:
            if isinstance(read, Access):
                columns.append(self.cells(read, do.values, scope))
            else:
                columns.append([self.operand(read, do.write.buffer.dtype)] * len(columns[0]))
        return zip(*columns, strict=True)

    def lines(self, do: Do, scope: Scope) -> Iterator[tuple[str, ...]]:
        """Yield, for each value that may be written, "" or "@p ", its target and sources."""
        for holds, line in zip(self._holds(do, scope), self.operands(do, scope), strict=False):
            if holds is not False:
                yield ("" if holds is True else f"@{holds} ", *line)

    def _holds(self, do: Do, scope: Scope) -> Iterator[str | bool]:
        """Yield the predicate of each value."""
        if do.where is None:
            yield from repeat(True)
        else:
            number, offsets = self.addresses.compared(do, scope)
            for more in offsets:
                key = ("holds", number, more)
                found = self.text.known(key)
                if found is None:
                    predicate = self.text.less(number, -more)
                    if isinstance(predicate, bool):
                        yield predicate
                        continue
                    self.text.remember(key, predicate)
                    found = predicate
                yield str(found)

    def operand(self, read: Immediate | Scalar, dtype: str) -> str:
        """Return a constant or a scalar argument as an operand."""
        if isinstance(read, Immediate):
            return constant(read.number, dtype)
        return self.scalar(read, dtype)

    def zero16(self) -> str:
        """Return a 16-bit register that holds 0."""

        def make() -> Number:
            zero = self.text.register("b16")
            self.text.emit(f"mov.b16 {zero}, 0")
            return zero

        return str(self.text.once("zero16", make))

    def scalar(self, read: Scalar, dtype: str) -> str:
        """Return a floating-point argument (f32), or a size, in a type."""
        if not read.size and dtype == "f32":
            return f"%s_{read.name}"
        sizes = self.program.operation.axes  # a parameter may be negative

        def make() -> Number:
            kind = "u32" if read.name in sizes else "s32"
            result = self.text.register(KINDS[dtype])
            given = self.addresses.integer(read.name) if read.size else f"%s_{read.name}"
            how = f"{'.rn' * (read.size or dtype != 'f64')}.{dtype}.{kind if read.size else 'f32'}"
            self.text.emit(f"cvt{how} {result}, {given}")
            return result

        return str(self.text.once(("scalar", read.name, dtype), make))

    def guard(self, do: Do, access: Access, at: NDArray[np.int64], scope: Scope) -> str | bool:
        """Return the predicate of a value: inside the array, and done by this thread."""
        inside = (
            self.addresses.guard(access, do.threads, at, scope)
            if access.buffer.level == "gmem"
            else True
        )
        if do.lanes is None or inside is False:
            return inside
        mine = self.takes_part(do)
        if inside is True:
            return mine
        both = self.text.register("pred")
        self.text.emit(f"and.pred {both}, {mine}, {inside}")
        return both

    def takes_part(self, do: Do) -> str:
        """Return the predicate that this thread is one of a statement's ``lanes``."""
        assert do.lanes is not None
        below, extent, residue = do.lanes

        def make() -> Number:
            here = self.text.modulo(self.text.divide(self.local, below), extent)
            mine = self.text.register("pred")
            self.text.emit(f"setp.eq.s32 {mine}, {here}, {residue}")
            return mine

        return str(self.text.once(("lanes", do.lanes), make))

    def address(
        self, access: Access, threads: tuple[int, ...], at: NDArray[np.int64], scope: Scope
    ) -> str:
        """Return the address operand of a value of a gmem or smem access."""
        buffer = access.buffer
        if self.paired and buffer.level == "smem" and buffer.swizzle[0]:
            found = self.folded(access, threads, at, scope)
            if found is not None:
                base, immediate = found
                slot = self.addresses.slot(buffer, access.index, scope)
                immediate += self.addresses.plan.start[buffer.name]
                if isinstance(slot, int):
                    immediate += slot
                else:
                    there = base
                    base = self.text.once(("at", base, slot), lambda: self.text.add(there, slot))
                return f"[{base}+{immediate}]"
        if buffer.level == "gmem":
            return self.addresses.gmem(access, threads, at, scope)
        return self.addresses.smem(access, threads, at, scope)

    def folded(
        self, access: Access, threads: tuple[int, ...], at: NDArray[np.int64], scope: Scope
    ) -> tuple[Number, int] | None:
        """Return a register and the bytes beyond it, or None where bits meet; see the module."""
        buffer, text = access.buffer, self.text
        bits, low, shift = (int(x) for x in buffer.swizzle)
        strides = [int(s) for s in buffer.stride]
        origins = [scope.split(o) for o in access.origin] or [(0, ())] * len(strides)
        known = sum((int(x) + o[0]) * s for x, o, s in zip(at, origins, strides, strict=True))
        weights = [
            sum(step * s for step, s in zip(steps, strides, strict=True)) for steps in access.thread
        ]
        mask = _mask(threads, weights)
        pattern = 1 << (low + shift + bits)
        moved = (c * s for (_, t), s in zip(origins, strides, strict=True) for _, c in t
                 if not isinstance(c, str))  # fmt: skip
        named = any(isinstance(c, str) for _, t in origins for _, c in t)
        within = known % pattern
        if mask is None or mask & within or named or any(m % pattern for m in moved):
            return None
        seen = ((1 << bits) - 1) << low | ((1 << bits) - 1) << (low + shift)
        turn = int(Swizzle(bits, low, shift)(within & seen))
        width = buffer.type.bytes
        line = self.addresses.smem_line(access, threads, scope)
        plain = text.once(
            ("swizzled", buffer.swizzle, line), lambda: self.addresses.swizzled(buffer, line)
        )
        base = text.once(
            ("folded", plain, turn, width),
            lambda: text.multiply_add(text.exclusive_or(plain, turn), width, "%smem"),
        )
        return base, (known - (within & seen)) * width

    def barrier_at(
        self, barrier: Barrier, index: Affine, scope: Scope
    ) -> tuple[Number, int, Number]:
        """Return a register and the bytes beyond it of a barrier's stage, and the parity."""
        slot, parity = self.rings.position(barrier.stages, index, scope)
        start = self.addresses.plan.start[barrier.name]
        if isinstance(slot, int):
            return "%smem", start + 8 * slot, parity
        return self.text.multiply_add(slot, 8, "%smem"), start, parity

    def cell(self, name: str, number: int, kind: str, stage: int = 0) -> str:
        """Return a thread's register of a buffer by its number in a stage."""
        key = (name, stage, number)
        if key not in self._registers:
            self._registers[key] = self.text.register(kind)
        return self._registers[key]

    def map_at(self, tensor_map: TensorMap) -> str:
        """Return the register that points to a tensor map."""
        return f"%{self.maps[tensor_map]}"

    def smem_at(self, name: str, stages: int, index: Affine, scope: Scope) -> Number:
        """Return how many bytes above ``%smem`` the stage of a buffer's index begins."""
        plan = self.addresses.plan
        known, terms = scope.split(index)
        if all(isinstance(c, int) and c % stages == 0 for _, c in terms):
            return known % stages * plan.stage_bytes[name] + plan.start[name]
        slot, _ = self.rings.position(stages, index, scope)
        return self.text.multiply_add(slot, plan.stage_bytes[name], plan.start[name])


Rule = Callable[[KernelCode, Do, Scope], None]
"""Emits a statement."""


def _mask(threads: tuple[int, ...], weights: list[int]) -> int | None:
    """Return the bits that threads' offsets may have, None unless each mode has bits of its own."""
    mask = 0
    for extent, weight in zip(threads, weights, strict=True):
        if extent == 1 or weight == 0:
            continue
        mine = weight * (extent - 1)
        if weight & (weight - 1) or extent & (extent - 1) or mine & mask:
            return None
        mask |= mine
    return mask
