"""Arithmetic: an expression as statements on registers.

``compute(e, reads, write, values=V)`` gives the statements after which, for every value v of the
extents V, ``write[v] = e`` where each name of e is what ``reads`` says: an access (taken at v), a
scalar argument or a constant.  Three rules keep them few:

- a subexpression that occurs twice is computed once;
- what does not move with a mode of V is computed once along it: in ``x * rsqrt(acc)`` with one
  ``acc`` for many x there is one rsqrt;
- ``a * b + c`` is one fma, which rounds once.

Narrow operands are converted to ``dtype`` first, the result to the type of ``write`` last.  As
statements take their values in order, ``write`` may be the left operand of a sum that it collects.

>>> from tinygpu.term.expression import value
>>> from tinygpu.term.program import registers
>>> x, y = (Access(registers(n, "f32", 4), ((1,),)) for n in "xy")
>>> for do in compute(value("a") * value("x") + 1.0, {"x": x, "a": Scalar("a")}, y, values=(4,)):
...     print(do)
y = fma(a, x, 1.0) x 4

Source: ``docs/model.md``, section "Terms"; PTX ISA 9.7.3 (floating-point instructions).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tinygpu.errors import ProgramError, nearest
from tinygpu.isa.instruction import Instruction
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.term.expression import Apply, Constant, Expression, Index, Value
from tinygpu.term.program import Access, Do, Immediate, Scalar, registers

__all__ = ["compute"]

Source = Access | Immediate | Scalar

_EACH = [i for i in INSTRUCTIONS.values() if i.issuer == "thread"]
_OF = {operator: i for i in _EACH for operator in i.variants}


def compute(
    expression: Expression,
    reads: Mapping[str, Source],
    write: Access,
    *,
    values: tuple[int, ...],
    dtype: str = "f32",
    name: str = "t",
) -> tuple[Do, ...]:
    """Return statements that set ``write`` to the expression; their registers are called name0, ..

    Every access of ``reads`` and ``write``
    has one step a mode of ``values``.  Raises ProgramError
    for a name that ``reads`` lacks and for an operator that no instruction computes.
    """
    done: list[Do] = []
    known: dict[Expression, Source] = {}

    def do(instruction: Instruction, variant: str, *sources: Source) -> Access:
        moves = [_moves(s, len(values)) for s in sources]
        kept = [any(column) for column in zip(*moves, strict=True)]
        here = tuple(v if k else 1 for v, k in zip(values, kept, strict=True))
        buffer = registers(f"{name}{len(done)}", dtype, *reversed(here))
        ends = range(len(here))[::-1]  # mode i steps along dimension ends[i]
        steps = (
            tuple(int(k and d == e) for d in ends[::-1]) for k, e in zip(kept, ends, strict=True)
        )
        target = Access(buffer, tuple(steps), index=write.index)
        done.append(Do(instruction, target, sources, here, variant=variant))
        return target

    def source(node: Expression) -> Source:
        if node not in known:
            known[node] = make(node)
        return known[node]

    def make(node: Expression) -> Source:
        match node:
            case Constant(number):
                return Immediate(number)
            case Value() | Index():
                wanted = str(node)
                if wanted not in reads:
                    raise ProgramError(f"{expression} reads {wanted}; {nearest(wanted, reads)}")
                found = reads[wanted]
                if not isinstance(found, Access):
                    return found
                found = replace(found, thread=())
                return found if found.buffer.dtype == dtype else do(INSTRUCTIONS["cvt"], "", found)
            case Apply():
                operator, arguments = _fused(node)
                if operator not in _OF:
                    raise ProgramError(f"{node}: no instruction for it; {nearest(operator, _OF)}")
                return do(_OF[operator], operator, *map(source, arguments))
        raise AssertionError(node)

    last, write = source(expression), replace(write, thread=())
    narrow = write.buffer.dtype != dtype
    if narrow and not isinstance(last, Access):
        last = do(INSTRUCTIONS["mov"], "", last)
    if not narrow and isinstance(expression, Apply):
        done[-1] = replace(done[-1], write=write, values=values)
    else:
        done.append(Do(INSTRUCTIONS["cvt" if narrow else "mov"], write, (last,), values))
    return tuple(done)


def _moves(source: Source, modes: int) -> list[bool]:
    """Say for each mode of the values whether the operand moves with it."""
    if not isinstance(source, Access):
        return [False] * modes
    return [any(steps) for steps in source.value]


def _fused(node: Apply) -> tuple[str, tuple[Expression, ...]]:
    """Read ``a * b + c``, either way round, as an fma."""
    if node.operator == "add":
        for product, other in (node.arguments, node.arguments[::-1]):
            if isinstance(product, Apply) and product.operator == "mul":
                return "fma", (*product.arguments, other)
    return node.operator, node.arguments
