"""Rules of what is computed on registers: for each value of a thread one instruction.

Source: PTX ISA 9, "Floating Point Instructions", "cvt", "mov", "shfl.sync".
"""

from __future__ import annotations

from collections.abc import Sequence

from tinygpu.codegen.kernel.kernel import KINDS, KernelCode
from tinygpu.codegen.kernel.scope import Scope
from tinygpu.errors import ProgramError
from tinygpu.term.program import Access, Do

__all__ = ["alu", "cvt", "fma", "in_any_order", "mov", "mufu", "shfl"]


def mov(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """mov: a constant, a scalar argument or another register."""
    kind = KINDS[do.write.buffer.dtype]
    for when, target, source in kernel.lines(do, scope):
        kernel.text.emit(f"{when}mov.{kind} {target}, {source}")


def fma(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """fma, mul, add, sub: rounded to nearest, never contracted.

    Every second run of the first value mode is walked backwards, so that each instruction shares a
    source register with the one before it: the operand cache then saves a register-file read.
    Values that read what others of them write are taken in order.
    """
    kind, how = _arithmetic(do), do.variant or "fma"
    if do.where is not None:
        for when, target, *sources in kernel.lines(do, scope):
            kernel.text.emit(f"{when}{how}.rn.{kind} {target}, {', '.join(sources)}")
        return
    lines = list(kernel.operands(do, scope))
    turns = bool(do.values) and in_any_order(lines, _ADDED[how])
    run = do.values[0] if turns else max(1, len(lines))
    for first in range(0, len(lines), run):
        here = lines[first : first + run]
        for target, *sources in here[::-1] if first // run % 2 else here:
            kernel.text.emit(f"{how}.rn.{kind} {target}, {', '.join(sources)}")


_ADDED = {"fma": (2,), "add": (0, 1), "sub": (0,), "mul": (0, 1)}
"""Where a statement reads what it adds to, or multiplies: it may then do so in any order."""


def in_any_order(lines: Sequence[Sequence[str]], added: tuple[int, ...] = ()) -> bool:
    """Say whether (target, source, ..) give the same in any order.

    None reads the target of another one, and two of one target read it at the places ``added``.

    >>> in_any_order([("a", "a", "x"), ("b", "b", "a")])
    False
    >>> in_any_order([("a", "a", "x"), ("a", "a", "y")], added=(0,))
    True
    """
    targets = {target for target, *_ in lines}
    again = len(targets) < len(lines)
    for target, *sources in lines:
        own = [i for i, source in enumerate(sources) if source == target]
        if again and own not in [[i] for i in added]:
            return False
        if any(source in targets for source in sources if source != target):
            return False
    return True


def alu(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """max, min, neg, abs."""
    kind = _arithmetic(do)
    for when, target, *sources in kernel.lines(do, scope):
        kernel.text.emit(f"{when}{do.variant}.{kind} {target}, {', '.join(sources)}")


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
_ZERO, _ONE, _MINUS_TWO = "0f00000000", "0f3F800000", "0fC0000000"


def mufu(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """ex2, lg2, rcp, sqrt, rsqrt, div by their instructions; sigmoid and tanh by ex2 and rcp.

    rcp0 is a reciprocal, and 0 at 0.

    sigmoid x is e / (1 + e), e = 2^(x log2 e), held below infinity: for a large negative x it is e,
    down to the subnormal numbers.
    """
    text = kernel.text
    _arithmetic(do)
    for when, target, *sources in kernel.lines(do, scope):
        if do.variant in _UNARY:
            text.emit(f"{when}{_UNARY[do.variant]} {target}, {', '.join(sources)}")
            continue
        if do.variant == "rcp0":
            part, empty = text.register("f32"), text.register("pred")
            text.emit(f"rcp.rn.f32 {part}, {sources[0]}")
            text.emit(f"setp.eq.f32 {empty}, {sources[0]}, {_ZERO}")
            text.emit(f"{when}selp.f32 {target}, {_ZERO}, {part}, {empty}")
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
            text.emit(f"{when}mul.rn.f32 {target}, {power}, {part}")
        else:
            text.emit(f"rcp.rn.f32 {part}, {below}")
            text.emit(f"{when}fma.rn.f32 {target}, {part}, {_MINUS_TWO}, {_ONE}")


def _arithmetic(do: Do) -> str:
    dtype = do.write.buffer.dtype
    if dtype not in ("f32", "f64"):
        raise ProgramError(f"{do}: arithmetic is in f32 or f64, not {dtype}; convert first (cvt)")
    return dtype


def cvt(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """cvt: a thread's own values, or two, or four, that stand in a register."""
    (_packed if kernel.holding(do) else _each)(kernel, do, scope)


def _each(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """Convert between the floating-point types, through f32 where PTX has no direct form."""
    source = do.reads[0]
    assert isinstance(source, Access)
    text = kernel.text
    narrow, wide = source.buffer.dtype, do.write.buffer.dtype
    if wide not in _WIDTH:
        raise ProgramError(f"{do}: values of 8 bits stand in fours, where warps work together")
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


def _packed(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """cvt.rn.bf16x2.f32, cvt.rn.f16x2.f32: two values to one register; or halves to f32.

    cvt.rn.satfinite.e4m3x2.f32 makes half of a register, with two values.
    """
    (source,) = do.reads
    assert isinstance(source, Access)
    before, after = source.buffer.dtype, do.write.buffer.dtype
    held, result = (kernel.words(a, do.values, scope) for a in (source, do.write))
    match before, after:
        case "f32", "f16" | "bf16":
            for i, target in enumerate(result):
                kernel.text.emit(f"cvt.rn.{after}x2.f32 {target}, {held[2 * i + 1]}, {held[2 * i]}")
        case "f32", "e4m3":
            for i, target in enumerate(result):
                low, high = (kernel.text.register("b16") for _ in range(2))
                for half, at in ((low, 4 * i), (high, 4 * i + 2)):
                    two = f"{held[at + 1]}, {held[at]}"
                    kernel.text.emit(f"cvt.rn.satfinite.e4m3x2.f32 {half}, {two}")
                kernel.text.emit(f"mov.b32 {target}, {{{low}, {high}}}")
        case "f16" | "bf16", "f32":
            for target, half in zip(result, kernel.halves(source, do.values, scope), strict=True):
                if before == "f16":
                    kernel.text.emit(f"cvt.f32.f16 {target}, {half}")
                else:
                    kernel.text.emit(f"mov.b32 {target}, {{{kernel.zero16()}, {half}}}")
        case _:
            raise ProgramError(f"{do}: values in pairs are converted between f32 and f16 or bf16, "
                               "values in fours from f32 to e4m3")  # fmt: skip


def shfl(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """shfl.sync.bfly: the value of the lane whose number differs by ``across``."""
    kernel.each_its_own(do)
    for target, source in kernel.operands(do, scope):
        a, b = kernel.text.register("b32"), kernel.text.register("b32")
        kernel.text.emit(f"mov.b32 {a}, {source}")
        kernel.text.emit(f"shfl.sync.bfly.b32 {b}, {a}, {do.across}, 31, -1")
        kernel.text.emit(f"mov.b32 {target}, {b}")
