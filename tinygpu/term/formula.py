"""The formula of an instruction that brings its own meaning.

A ``meaning`` is called once, with operators that build expressions and a symbol for each value that
an instruction reads.  The walks evaluate the expression that comes of it, in floats or in a prime
field; so a meaning is the same function of each element wherever it is asked, whatever the shape of
the arrays.

>>> from tinygpu.isa.instruction import Instruction
>>> how = Instruction("mad.rn", ("registers",), ("registers",), "fma",
...                   meaning=lambda operators, a, b, c: operators["mul"](a, b) + c)
>>> print(formula(how, 3))
((x0 * x1) + x2)

Source: ``docs/model.md``, section "Meaning".
"""

from __future__ import annotations

from functools import lru_cache, partial

from tinygpu.errors import MachineError, raised
from tinygpu.isa.instruction import Instruction
from tinygpu.term.expression import OPERATORS, Expression, apply, value

__all__ = ["formula", "symbols"]

_APPLY = {name: partial(apply, name) for name in OPERATORS}


def symbols(count: int) -> tuple[str, ...]:
    """Return the names of the values that an instruction reads."""
    return tuple(f"x{i}" for i in range(count))


@lru_cache(1024)
def formula(instruction: Instruction, count: int) -> Expression:
    """Return what an instruction with a meaning writes, of the ``count`` values that it reads.

    Raises MachineError for a meaning that raises, and for one that gives no expression of them.
    """
    assert instruction.meaning is not None
    by = "compute it by the operators from the values, which are no arrays"
    try:
        found = instruction.meaning(_APPLY, *map(value, symbols(count)))
    except Exception as error:  # whatever a user's function may raise
        raise MachineError(
            f"instruction {instruction.name}: its meaning of {count} values raises "
            f"{raised(error)}; {by}"
        ) from error
    if not isinstance(found, Expression):
        raise MachineError(
            f"instruction {instruction.name}: its meaning gives {found!r:.60}, no formula; {by}"
        )
    return found
