"""Instructions: one value each.

An instruction names the levels it reads and writes, how its completion is observed, the unit it
occupies and what it computes on NumPy arrays.  That is the declaration; the one rule in each walk
is in ``codegen/lowering.py`` (code), ``search/work.py`` (time: by ``unit``), ``tinygpu/events.py``
(legality: by ``completion``) and ``tinygpu/interpret.py`` (meaning: by ``completion`` and
``semantics``).

>>> print(INSTRUCTIONS["cp.async"])
cp.async     gmem -> smem            lsu      seen by commit_group
>>> INSTRUCTIONS["fma"].semantics("fma", 2.0, 3.0, 1.0)
7.0

Spelling and rules: PTX ISA 9, sections 9.7.1 to 9.7.13.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tinygpu.expression import OPERATORS

__all__ = ["INSTRUCTIONS", "Completion", "Instruction", "Unit"]

Completion = Literal["at_once", "scoreboard", "commit_group", "barrier"]
Unit = Literal["fma", "alu", "sfu", "cvt", "lsu", "shuffle", "barrier"]


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction family in PTX's spelling.

    ``completion`` says how the issuing thread sees that it is done: ``scoreboard`` (the hardware
    holds back the first use of the register), ``commit_group`` (cp.async), ``barrier``.
    ``variants`` are the operators of ``tinygpu.expression`` that it covers.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    unit: Unit
    completion: Completion = "at_once"
    variants: tuple[str, ...] = ()
    atomic: bool = False

    def semantics(self, variant: str, *arguments: Any) -> Any:
        """Return what it writes, given the arrays that it reads."""
        if self.variants:
            return OPERATORS[variant](*arguments)
        return arguments[0]

    def __str__(self) -> str:
        move = f"{'+'.join(self.reads)} -> {'+'.join(self.writes)}" if self.writes else "threads"
        return f"{self.name:12} {move:23} {self.unit:8} seen by {self.completion}"


_REGS = ("registers",)

INSTRUCTIONS: Mapping[str, Instruction] = {
    i.name: i
    for i in (
        Instruction("ld.global", ("gmem",), _REGS, "lsu", "scoreboard"),
        Instruction("st.global", _REGS, ("gmem",), "lsu"),
        Instruction("red.global", _REGS, ("gmem",), "lsu", atomic=True),
        Instruction("cp.async", ("gmem",), ("smem",), "lsu", "commit_group"),
        Instruction("ld.shared", ("smem",), _REGS, "lsu", "scoreboard"),
        Instruction("st.shared", _REGS, ("smem",), "lsu"),
        Instruction("fma", _REGS, _REGS, "fma", variants=("fma", "mul", "add", "sub")),
        Instruction("alu", _REGS, _REGS, "alu", variants=("max", "min", "neg", "abs")),
        Instruction(
            "mufu",
            _REGS,
            _REGS,
            "sfu",
            variants=("ex2", "lg2", "rcp", "sqrt", "rsqrt", "tanh", "div", "sigmoid"),
        ),
        Instruction("cvt", _REGS, _REGS, "cvt"),
        Instruction("mov", (), _REGS, "alu"),
        Instruction("shfl.sync", _REGS, _REGS, "shuffle"),
        Instruction("bar.sync", (), (), "barrier", "barrier"),
    )
}
