"""Lowering: one rule per instruction, from a ``Do`` to PTX lines.

A rule is given the kernel in the making, the statement and the loop variables, and emits the
instruction for each value (or vector of values) of one thread.  ``THREAD_RULES`` is the table.

Source: PTX ISA 9.0, section 9.7 (each rule names its instruction).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tinygpu.codegen.kernel.kernel import KINDS, KernelCode, Rule, constant
from tinygpu.codegen.kernel.scope import Scope, value_coordinates
from tinygpu.devices.device import adds_vectors
from tinygpu.errors import ProgramError
from tinygpu.term.program import Access, Do

__all__ = ["THREAD_RULES", "move", "outside"]


_FLOAT = {"f32": "f32", "f64": "f64"}


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
    kind = _word(width, do.vector)
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
        listed = f"{{{', '.join(parts)}}}" if len(parts) > 1 else parts[0]
        suffix = f".v{len(parts)}" if len(parts) > 1 else ""
        at = kernel.address(memory, do.threads, places[first], scope)
        prefix = f"@{guard} " if isinstance(guard, str) else ""
        if loads:
            if prefix:
                for part in parts:
                    kernel.text.emit(f"mov.{kind} {part}, {outside(memory, kind)}")
            kernel.text.emit(f"{prefix}ld.{space}{hint}{suffix}.{kind} {listed}, {at}")
            if parts is not mine:
                for i, part in enumerate(parts):
                    pair = ", ".join(mine[2 * i : 2 * i + 2])
                    kernel.text.emit(f"mov.b32 {{{pair}}}, {part}")
        else:
            if parts is not mine:
                for i, part in enumerate(parts):
                    pair = ", ".join(mine[2 * i : 2 * i + 2])
                    kernel.text.emit(f"mov.b32 {part}, {{{pair}}}")
            kernel.text.emit(f"{prefix}st.{space}{hint}{suffix}.{kind} {at}, {listed}")


def outside(access: Access, kind: str) -> str:
    """Return what a guarded load leaves in a register, or in a pair of halves, as PTX spells it."""
    if kind in _FLOAT:
        return constant(access.outside, kind)
    half = int(access.buffer.type.round(np.array(access.outside)).view(np.uint16))
    return f"{half * (0x10001 if kind == 'b32' else 1):#x}" if half else "0"


def _word(width: int, vector: int) -> str:
    if width == 8:
        return "f64"
    if width == 4:
        return "f32"
    return "b16" if vector == 1 else "b32"


def _red(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """red.global.add: vectors of ``do.vector`` fp32 values from sm_90 on, else one at a time."""
    source = do.reads[0]
    assert isinstance(source, Access)
    kind = do.write.buffer.dtype
    vector = do.vector if adds_vectors(kernel.arch, kind) else 1
    places = value_coordinates(do.write, do.values)
    registers = kernel.cells(source, do.values, scope)
    for first in range(0, len(places), vector):
        guard = kernel.guard(do, do.write, places[first], scope)
        if guard is False:
            continue
        mine = registers[first : first + vector]
        listed = f".v{vector}.{kind}", f"{{{', '.join(mine)}}}"
        how, what = listed if vector > 1 else (f".{kind}", mine[0])
        at = kernel.address(do.write, do.threads, places[first], scope)
        prefix = f"@{guard} " if isinstance(guard, str) else ""
        kernel.text.emit(f"{prefix}red.global.add{how} {at}, {what}")


def _cp_async(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """cp.async: 16 B past L1, 4 and 8 B through it; a guard shrinks the source to nothing."""
    source = do.reads[0]
    assert isinstance(source, Access)
    size = do.vector * source.buffer.type.bytes
    cache = "cg" if size == 16 else "ca"
    targets = value_coordinates(do.write, do.values)
    sources = value_coordinates(source, do.values)
    for first in range(0, len(targets), do.vector):
        guard = kernel.guard(do, source, sources[first], scope)
        to = kernel.address(do.write, do.threads, targets[first], scope)
        at = kernel.address(source, do.threads, sources[first], scope)
        ignored = ""
        if guard is not True:
            bytes_read = kernel.text.register("u32")
            taken = f"selp.b32 {bytes_read}, {size}, 0, {guard}" if guard else ""
            kernel.text.emit(taken or f"mov.b32 {bytes_read}, 0")
            ignored = f", {bytes_read}"
        kernel.text.emit(f"cp.async.{cache}.shared.global {to}, {at}, {size}{ignored}")


def _mov(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """mov: a constant, a scalar argument or another register."""
    kind = KINDS[do.write.buffer.dtype]
    for target, *sources in kernel.operands(do, scope):
        kernel.text.emit(f"mov.{kind} {target}, {sources[0]}")


def _fma(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """fma, mul, add, sub: rounded to nearest, never contracted.

    Every second run of the first value mode is walked backwards, so that each instruction shares a
    source register with the one before it: the operand cache then saves a register-file read.
    """
    kind = _arithmetic(do)
    lines = list(kernel.operands(do, scope))
    run = do.values[0] if do.values else 1
    for first in range(0, len(lines), run):
        here = lines[first : first + run]
        for target, *sources in here[::-1] if first // run % 2 else here:
            kernel.text.emit(f"{do.variant or 'fma'}.rn.{kind} {target}, {', '.join(sources)}")


def _alu(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """max, min, neg, abs."""
    kind = _arithmetic(do)
    for target, *sources in kernel.operands(do, scope):
        kernel.text.emit(f"{do.variant}.{kind} {target}, {', '.join(sources)}")


_UNARY = {
    "ex2": "ex2.approx.f32",
    "lg2": "lg2.approx.f32",
    "rcp": "rcp.rn.f32",
    "ex2.ftz": "ex2.approx.ftz.f32",
    "rcp.ftz": "rcp.approx.ftz.f32",
    "sqrt": "sqrt.rn.f32",
    "rsqrt": "rsqrt.approx.f32",
    "div": "div.rn.f32",
}
_LOG2_E, _LARGEST_POWER = "0f3FB8AA3B", "0f42F80000"  # 124: its reciprocal is no subnormal
_TWO_LOG2_E = "0f4038AA3B"
_ONE, _MINUS_TWO = "0f3F800000", "0fC0000000"


def _mufu(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """ex2, lg2, rcp, sqrt, rsqrt, div by their instructions; sigmoid and tanh by ex2 and rcp.

    sigmoid x is e / (1 + e), e = 2^(x log2 e), held below infinity: for a large negative x it is e,
    down to the subnormal numbers.
    """
    text = kernel.text
    _arithmetic(do)
    for target, *sources in kernel.operands(do, scope):
        if do.variant in _UNARY:
            text.emit(f"{_UNARY[do.variant]} {target}, {', '.join(sources)}")
            continue
        power, below, part = (text.register("f32") for _ in range(3))
        scale = _LOG2_E if do.variant == "sigmoid" else _TWO_LOG2_E
        text.emit(f"mul.rn.f32 {power}, {sources[0]}, {scale}")
        if do.variant == "sigmoid":
            text.emit(f"min.f32 {power}, {power}, {_LARGEST_POWER}")
        text.emit(f"ex2.approx.f32 {power}, {power}")
        text.emit(f"add.rn.f32 {below}, {power}, {_ONE}")
        if do.variant == "sigmoid":
            text.emit(f"rcp.approx.f32 {part}, {below}")
            text.emit(f"mul.rn.f32 {target}, {power}, {part}")
        else:
            text.emit(f"rcp.rn.f32 {part}, {below}")
            text.emit(f"fma.rn.f32 {target}, {part}, {_MINUS_TWO}, {_ONE}")


def _arithmetic(do: Do) -> str:
    dtype = do.write.buffer.dtype
    if dtype not in _FLOAT:
        raise ProgramError(f"{do}: arithmetic is in f32 or f64, not {dtype}; convert first (cvt)")
    return dtype


def _cvt(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """Convert between the floating-point types, through f32 where PTX has no direct form."""
    source = do.reads[0]
    assert isinstance(source, Access)
    text = kernel.text
    narrow, wide = source.buffer.dtype, do.write.buffer.dtype
    for target, here in kernel.operands(do, scope):
        at, now = here, narrow
        if now == "bf16":
            step = text.register("f32")
            text.emit(f"mov.b32 {step}, {{{kernel.zero16()}, {at}}}")
            at, now = step, "f32"
        if wide in ("f64", "f16") and now in ("f64", "f16") and wide != now:
            pass
        elif wide == "bf16" and now != "f32":
            step = text.register("f32")
            text.emit(f"cvt{'.rn' if now == 'f64' else ''}.f32.{now} {step}, {at}")
            at, now = step, "f32"
        if now == wide:
            text.emit(f"mov.{KINDS[wide]} {target}, {at}")
            continue
        down = ".rn" if _WIDTH[wide] < _WIDTH[now] else ""
        text.emit(f"cvt{down}.{wide}.{now} {target}, {at}")


_WIDTH = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}


def _shfl(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """shfl.sync.bfly: the value of the lane whose number differs by ``across``."""
    for target, source in kernel.operands(do, scope):
        a, b = kernel.text.register("b32"), kernel.text.register("b32")
        kernel.text.emit(f"mov.b32 {a}, {source}")
        kernel.text.emit(f"shfl.sync.bfly.b32 {b}, {a}, {do.across}, 31, -1")
        kernel.text.emit(f"mov.b32 {target}, {b}")


THREAD_RULES: Mapping[str, Rule] = {
    "ld.global": move,
    "ld.shared": move,
    "st.global": move,
    "st.shared": move,
    "red.global": _red,
    "cp.async": _cp_async,
    "mov": _mov,
    "fma": _fma,
    "alu": _alu,
    "mufu": _mufu,
    "cvt": _cvt,
    "shfl.sync": _shfl,
}
