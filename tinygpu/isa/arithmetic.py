"""What is computed on registers: operators, conversions, the values of other lanes."""

from __future__ import annotations

from tinygpu.isa.instruction import Instruction

__all__ = ["FAMILY"]

_REGISTERS = ("registers",)
_SPECIAL = (
    "ex2", "lg2", "rcp", "sqrt", "rsqrt", "tanh", "div", "sigmoid", "ex2.ftz", "rcp.ftz",
)  # fmt: skip

FAMILY: tuple[Instruction, ...] = (
    Instruction("fma", _REGISTERS, _REGISTERS, "fma", variants=("fma", "mul", "add", "sub")),
    Instruction("alu", _REGISTERS, _REGISTERS, "alu", variants=("max", "min", "neg", "abs")),
    Instruction("mufu", _REGISTERS, _REGISTERS, "sfu", variants=_SPECIAL),
    Instruction("cvt", _REGISTERS, _REGISTERS, "cvt"),
    Instruction("mov", (), _REGISTERS, "alu"),
    Instruction("shfl.sync", _REGISTERS, _REGISTERS, "shuffle"),
)
