"""What is computed on registers: operators, conversions, the values of other lanes."""

from __future__ import annotations

from tinygpu.isa.instruction import Instruction, same

__all__ = ["FAMILY"]

_REGISTERS = ("registers",)
_FLOATS = ("f64", "f32", "f16", "bf16")
_SPECIAL = (
    "ex2", "lg2", "rcp", "sqrt", "rsqrt", "tanh", "div", "sigmoid", "ex2.ftz", "rcp.ftz",
    "rcp0",
)  # fmt: skip

FAMILY: tuple[Instruction, ...] = (
    Instruction("fma", _REGISTERS, _REGISTERS, "fma", variants=("fma", "mul", "add", "sub"),
                types=same("f32", "f64")),
    Instruction("alu", _REGISTERS, _REGISTERS, "alu", variants=("max", "min", "neg", "abs"),
                types=same("f32", "f64")),
    Instruction("mufu", _REGISTERS, _REGISTERS, "sfu", variants=_SPECIAL, types=same("f32")),
    Instruction("cvt", _REGISTERS, _REGISTERS, "cvt",
                types=(*((a, b) for a in _FLOATS for b in _FLOATS), ("f32", "e4m3"))),
    Instruction("mov", (), _REGISTERS, "alu"),
    Instruction("shfl.sync", _REGISTERS, _REGISTERS, "shuffle", types=same("f32", "tf32")),
)  # fmt: skip
