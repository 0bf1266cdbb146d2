"""Code: a program as PTX text.

``emit(program)`` walks the term once.  Unrolled loops are unrolled here, others become a label and
a branch; register cells become virtual registers (a ring of registers needs a known index); every
``Do`` goes through its rule in ``lowering.py``.  The kernel takes the operands' pointers, then
``signature(program)``: 32-bit integers, absent if the program is specialised, then its scalars.

>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines import MACHINES
>>> from tinygpu.machines.simt import LADDER
>>> from tinygpu.operation import matmul
>>> program = MACHINES["simt"].program(matmul(), Chosen(LADDER["naive"]))
>>> "fma.rn.f32" in emit(program)
True

Source: ``docs/model.md``, section "Code"; PTX ISA 9.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from tinygpu.access_map import Operand
from tinygpu.codegen.addresses import Addresses
from tinygpu.codegen.loops import instances, rotating_slots, stepped_pointers
from tinygpu.codegen.lowering import RULES, operand
from tinygpu.codegen.ptx import Scalar as Number
from tinygpu.codegen.ptx import Text
from tinygpu.codegen.raster import tile_of
from tinygpu.codegen.scope import Scope, value_coordinates
from tinygpu.errors import ProgramError
from tinygpu.program import (
    Access,
    Arrive,
    Commit,
    Do,
    Elect,
    Exit,
    Fence,
    For,
    ForTile,
    Program,
    Scalar,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    walk,
)

__all__ = ["EMITTER_VERSION", "PTX_VERSION", "Kernel", "emit", "signature"]

EMITTER_VERSION = 3
PTX_VERSION = "9.0"  # spec: the newest that ptxas 13.0 takes
_GROUPS = {"cp.async": "cp.async.{}", "bulk": "cp.async.bulk.{}", "wgmma": "wgmma.{}.sync.aligned"}
_AS_A_BRANCH = "bar.warp.sync -1"
"""Else ptxas makes a branch around loads a predicate and sinks them to the loop's end."""
_KIND = {"f32": "f32", "f64": "f64", "f16": "b16", "bf16": "b16"}


def signature(program: Program) -> tuple[str, ...]:
    """Return the kernel's integer parameters: the sizes, the term's parameters, the grid."""
    return (
        *program.operation.axes,
        *(name for name, _ in program.parameters),
        *(f"grid_{axis.var}" for axis in program.grid),
    )


def integer_values(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the value of each integer of ``signature`` at these sizes."""
    values = program.parameter_values(sizes)
    extents = program.grid_extents(sizes)
    values |= {f"grid_{a.var}": n for a, n in zip(program.grid, extents, strict=True)}
    return {name: int(values[name]) for name in signature(program)}


def emit(program: Program, arch: str = "sm_90a", sizes: Mapping[str, int] | None = None) -> str:
    """Return the kernel's PTX.  ``sizes`` are needed by a specialised program only.

    Raises ProgramError for a term that has no code: an unknown instruction, a register ring at an
    index that is not known, a specialised program without sizes.
    """
    if program.barriers:
        from tinygpu.codegen.roles import RoleKernel  # which builds on this module

        return RoleKernel(program, sizes).text_of(arch)
    if any(isinstance(s, Do) and s.instruction.issuer == "warp" for s, _ in walk(program)):
        from tinygpu.codegen.warps import WarpKernel  # which builds on this module

        return WarpKernel(program, sizes).text_of(arch)
    return Kernel(program, sizes).text_of(arch)


class Kernel:
    """One kernel in the making."""

    def __init__(self, program: Program, sizes: Mapping[str, int] | None) -> None:
        if program.specialised and sizes is None:
            raise ProgramError(f"program {program.name} is specialised: give the sizes to emit it")
        self.program = program
        self.arch = ""  # until the text is made for one
        self.text = Text()
        self.constants = integer_values(program, sizes or {}) if program.specialised else {}
        self._cells: dict[tuple[str, int, int], str] = {}
        names = () if program.specialised else signature(program)
        self.parameters = [f"p_{o.name}" for o in program.operation.operands]
        self.parameters += [f"n_{name}" for name in names]
        self.parameters += [f"s_{name}" for name in program.operation.scalars]
        integers: dict[str, Number] = dict(self.constants)
        integers |= {name: f"%n_{name}" for name in names}
        pointers = {o.name: f"%p_{o.name}" for o in program.operation.operands}
        self.addresses = Addresses(program, self.text, integers, pointers)

    def text_of(self, arch: str) -> str:
        """Return the whole module."""
        program, self.arch = self.program, arch
        linear = self.text.register("u32")
        self.text.emit(f"mov.u32 {linear}, %ctaid.x")
        self.grid(linear)
        for number, role in enumerate(program.roles):
            if len(program.roles) > 1:
                raise ProgramError(f"program {program.name}: role {number}: one role is emitted")
            self.body(role.body, Scope())
        self.text.emit("ret")
        directives = [f".maxntid {program.threads}, 1, 1"]
        if program.ctas_per_sm > 1:
            directives.append(f".minnctapersm {program.ctas_per_sm}")
        return self.module(arch, directives)

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

    def body(self, body: tuple[Statement, ...], scope: Scope) -> None:
        """Emit statements in order."""
        for statement in body:
            match statement:
                case Do():
                    self.do(statement, scope)
                case For(unrolled=True):
                    for i in range(statement.start, int(statement.trips)):
                        static = {**scope.static, statement.var: i}
                        self.body(statement.body, replace(scope, static=static))
                case For():
                    self.loop(statement, scope)
                case When():
                    self.when(statement, scope)
                case Exit():
                    self.exit(statement, scope)
                case Sync():
                    self.sync(statement, scope)
                case Commit():
                    self.text.emit(_GROUPS[statement.group].format("commit_group"))
                case WaitGroup(group="tcgen05.ld" | "tcgen05.st"):
                    self.text.emit(f"{statement}.sync.aligned")
                case WaitGroup(pending, group, read):
                    how = f"wait_group{'.read' * read}"
                    self.text.emit(f"{_GROUPS[group].format(how)} {pending}")
                case Elect() | ForTile() | Wait() | Arrive() | Fence():
                    self.order(statement, scope)
                case _:
                    assert_never(statement)

    def sync(self, statement: Sync, scope: Scope) -> None:
        """Emit a barrier of the CTA."""
        self.text.emit(f"bar.sync {statement.barrier}")

    def order(self, statement: Statement, scope: Scope) -> None:
        """Emit a statement that only a program of several roles has."""
        raise ProgramError(f"program {self.program.name}: {statement} needs barriers and roles")

    def do(self, do: Do, scope: Scope) -> None:
        """Emit one statement through its rule."""
        self.text.note(str(do))
        if self.program.guards == "tile" and any(g for a in do.accesses for g in a.guard):
            self.whole_or_not(do, scope)
        else:
            self.lower(do, scope)

    def lower(self, do: Do, scope: Scope) -> None:
        """Emit a statement by the rule of its instruction."""
        rule = RULES.get(do.instruction.name)
        if rule is None:
            raise ProgramError(f"{do}: no lowering rule for {do.instruction.name}")
        rule(self, do, scope)

    def whole_or_not(self, do: Do, scope: Scope) -> None:
        """Emit a statement without guards for tiles that are whole, and with them for others."""
        text = self.text
        plain = replace(do, write=_unguarded(do.write), reads=tuple(map(_unguarded, do.reads)))
        whole = self.addresses.whole(do, scope)
        if not isinstance(whole, str):
            self.lower(plain if whole else do, scope)
            return
        partly, end = text.label("partly"), text.label("whole_end")
        text.emit(f"@!{whole} bra {partly}")
        with text.scope():
            self.lower(plain, scope)
            if _plain_load(plain):
                text.emit(_AS_A_BRANCH)
        text.emit(f"bra {end}")
        text.mark(partly)
        with text.scope():
            self.lower(do, scope)
        text.mark(end)

    def loop(self, loop: For, scope: Scope) -> None:
        """Emit a running loop: bases before it, one step of each at its end."""
        text, addresses = self.text, self.addresses
        trips = addresses.integer(loop.trips)
        counter = text.register("u32")
        start, end = text.label(f"{loop.var}"), text.label(f"{loop.var}_end")
        text.emit(f"mov.u32 {counter}, {loop.start}")
        inner = replace(scope, running={**scope.running, loop.var: counter})
        with text.scope():
            by_pointer = self.program.addressing == "pointer"
            stepped = stepped_pointers(addresses, loop, inner) if by_pointer else []
            rings = rotating_slots(addresses, loop, inner)
            for do, here in instances(loop.body, inner):
                for access in do.accesses:
                    addresses.prepare(access, do.threads, here)
            skip = text.less(loop.start, trips)
            if skip is not True:
                text.emit(f"@!{skip} bra {end}")
            text.mark(start)
            text.lines.append('\t.pragma "nounroll";')
            with text.scope():
                self.body(loop.body, inner)
                for pointer, distance in stepped:
                    text.emit(f"add.s64 {pointer}, {pointer}, {distance}")
                for offset, stage_bytes, limit in rings:
                    again = text.register("pred")
                    text.emit(f"add.s32 {offset}, {offset}, {stage_bytes}")
                    text.emit(f"setp.eq.s32 {again}, {offset}, {limit}")
                    text.emit(f"selp.b32 {offset}, 0, {offset}, {again}")
                more = text.register("pred")
                text.emit(f"add.s32 {counter}, {counter}, 1")
                text.emit(f"setp.lt.s32 {more}, {counter}, {trips}")
                text.emit(f"@{more} bra {start}")
            text.mark(end)

    def when(self, when: When, scope: Scope) -> None:
        """Emit a guarded body: nothing, the body, or a branch around it."""
        known, terms = scope.split(when.index)
        index = self.addresses.sum(terms, scope, known)
        inside = self.text.less(index, self.addresses.integer(when.bound))
        if inside is False:
            return
        with self.text.scope():
            if inside is True:
                self.body(when.body, scope)
                return
            skip = self.text.label("skip")
            self.text.emit(f"@!{inside} bra {skip}")
            self.body(when.body, scope)
            if any(_plain_load(s) for s in when.body):
                self.text.emit(_AS_A_BRANCH)
            self.text.mark(skip)

    def exit(self, statement: Exit, scope: Scope) -> None:
        """Emit the early return of threads whose first element is outside already."""
        at = np.zeros(len(statement.access.buffer.shape), np.int64)
        inside = self.addresses.guard(statement.access, statement.threads, at, scope)
        if inside is False:
            self.text.emit("ret")
        elif inside is not True:
            self.text.emit(f"@!{inside} ret")

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
        if any(any(steps) for steps in access.thread):
            raise ProgramError(f"{access}: registers are each thread's own; its steps must be 0")
        slot = known % buffer.stages
        origin = np.array([scope.split(o)[0] for o in access.origin] or [0] * len(buffer.shape))
        places = value_coordinates(access, values) + origin
        offsets = places @ np.array([int(s) for s in buffer.stride], np.int64)
        if len(offsets) and not 0 <= int(offsets.max()) < int(buffer.stage_elements):
            raise ProgramError(f"{access}: value {int(offsets.max())} is outside {buffer}")
        return slot, offsets

    def cells(self, access: Access, values: tuple[int, ...], scope: Scope) -> list[str]:
        """Return the virtual register of each value of a register access."""
        slot, offsets = self.places(access, values, scope)
        buffer = access.buffer
        kind = self.kind(buffer.dtype)
        result = []
        for offset in offsets:
            key = (buffer.name, slot, int(offset))
            if key not in self._cells:
                self._cells[key] = self.text.register(kind)
            result.append(self._cells[key])
        return result

    def operands(self, do: Do, scope: Scope) -> Iterator[tuple[str, ...]]:
        """Yield, for each value of a register statement, its target and sources."""
        columns = [self.cells(do.write, do.values, scope)]
        for read in do.reads:
            if isinstance(read, Access):
                columns.append(self.cells(read, do.values, scope))
            else:
                columns.append([operand(self, read, do.write.buffer.dtype)] * len(columns[0]))
        return zip(*columns, strict=True)

    def kind(self, dtype: str) -> str:
        """Return the register type of a data type."""
        return _KIND[dtype]

    def zero16(self) -> str:
        """Return a 16-bit register that holds 0."""

        def make() -> Number:
            zero = self.text.register("b16")
            self.text.emit(f"mov.b16 {zero}, 0")
            return zero

        return str(self.text.once("zero16", make))

    def scalar(self, read: Scalar, dtype: str) -> str:
        """Return a floating-point argument, or a size converted to floating point."""
        if not read.size:
            return f"%s_{read.name}"

        def make() -> Number:
            result = self.text.register(dtype)
            self.text.emit(f"cvt.rn.{dtype}.u32 {result}, {self.addresses.integer(read.name)}")
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
        below, extent, residue = do.lanes

        def make() -> Number:
            here = self.text.modulo(self.text.divide("%tid_x", below), extent)
            mine = self.text.register("pred")
            self.text.emit(f"setp.eq.s32 {mine}, {here}, {residue}")
            return mine

        mine = str(self.text.once(("lanes", do.lanes), make))
        if inside is True:
            return mine
        both = self.text.register("pred")
        self.text.emit(f"and.pred {both}, {mine}, {inside}")
        return both

    def address(
        self, access: Access, threads: tuple[int, ...], at: NDArray[np.int64], scope: Scope
    ) -> str:
        """Return the address operand of a value of a gmem or smem access."""
        if access.buffer.level == "gmem":
            return self.addresses.gmem(access, threads, at, scope)
        return self.addresses.smem(access, threads, at, scope)


def _unguarded(operand: Operand) -> Any:
    """Return an operand without its guards."""
    return replace(operand, guard=()) if isinstance(operand, Access) else operand


def _plain_load(statement: Statement) -> bool:
    """Whether it loads from global memory with no guard."""
    return (
        isinstance(statement, Do)
        and statement.instruction.name == "ld.global"
        and not any(g for a in statement.accesses for g in a.guard)
    )
