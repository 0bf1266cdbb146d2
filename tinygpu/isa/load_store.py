"""What a thread loads and stores: global and shared memory."""

from __future__ import annotations

from tinygpu.isa.instruction import Instruction, same

__all__ = ["FAMILY"]

_REGISTERS = ("registers",)

FAMILY: tuple[Instruction, ...] = (
    Instruction("ld.global", ("gmem",), _REGISTERS, "lsu", "scoreboard"),
    Instruction("st.global", _REGISTERS, ("gmem",), "lsu"),
    Instruction("red.global", _REGISTERS, ("gmem",), "lsu", atomic=True,
                types=same("f64", "f32", "f16", "bf16")),
    Instruction("ld.shared", ("smem",), _REGISTERS, "lsu", "scoreboard"),
    Instruction("st.shared", _REGISTERS, ("smem",), "lsu"),
)  # fmt: skip
