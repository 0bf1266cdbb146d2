"""Expressions over named values, evaluated in any arithmetic.

An expression is a tree of ``Value`` (a name), ``Constant`` and ``Apply(operator, arguments)``.
It is used for two things: what one element of an operation is (``a * x + b``), and what a launch
parameter is in terms of the sizes (``ceildiv(k, 16)``).  ``evaluate`` reads NumPy arrays or ints.

>>> x, a, b = value("x"), value("a"), value("b")
>>> y = a * x + b
>>> print(y)
((a * x) + b)
>>> y.evaluate({"a": 2.0, "x": 3.0, "b": 1.0})
7.0
>>> (value("k").ceildiv(16)).evaluate({"k": 100})
7

Source: ``docs/model.md``, section "Operations".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np

from tinygpu.errors import OperationError, nearest

__all__ = ["OPERATORS", "Apply", "Constant", "Expression", "Value", "apply", "value"]


def _ceildiv(a: Any, b: Any) -> Any:
    return -(-a // b)


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b, c: a * b + c,
    "max": np.maximum,
    "min": np.minimum,
    "ceildiv": _ceildiv,
    "neg": lambda a: -a,
    "abs": np.abs,
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": lambda a: 1.0 / a,
    "ex2.ftz": np.exp2,  # subnormal results may be zero; they cost an instruction, not five
    "rcp.ftz": lambda a: 1.0 / a,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1.0 / np.sqrt(a),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
}
"""Operators by name: their meaning on NumPy arrays, PTX's names where PTX has them."""

_TAKES = {n: getattr(f, "nin", 0) or len(signature(f).parameters) for n, f in OPERATORS.items()}
_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


class Expression:
    """A node of an expression; Python's operators build larger ones."""

    __slots__ = ()

    def __add__(self, other: Expression | float) -> Apply:
        return apply("add", self, other)

    def __radd__(self, other: float) -> Apply:
        return apply("add", other, self)

    def __sub__(self, other: Expression | float) -> Apply:
        return apply("sub", self, other)

    def __mul__(self, other: Expression | float) -> Apply:
        return apply("mul", self, other)

    def __rmul__(self, other: float) -> Apply:
        return apply("mul", other, self)

    def __truediv__(self, other: Expression | float) -> Apply:
        return apply("div", self, other)

    def __neg__(self) -> Apply:
        return apply("neg", self)

    def ceildiv(self, other: Expression | int) -> Apply:
        """Return the quotient rounded up (for sizes)."""
        return apply("ceildiv", self, other)

    def names(self) -> Iterator[str]:
        """Yield the names of the values it reads, in order of first use."""
        seen: set[str] = set()
        for node in self.nodes():
            if isinstance(node, Value) and node.name not in seen:
                seen.add(node.name)
                yield node.name

    def nodes(self) -> Iterator[Expression]:
        """Yield every node, arguments before what uses them."""
        if isinstance(self, Apply):
            for argument in self.arguments:
                yield from argument.nodes()
        yield self

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Evaluate with ``values`` (scalars or arrays that broadcast).

        Raises OperationError for a name that is missing.
        """
        match self:
            case Constant(number):
                return number
            case Value(name):
                if name not in values:
                    raise OperationError(
                        f"expression {self}: no value {name}; given {list(values)}"
                    )
                return values[name]
            case Apply(operator, arguments):
                return OPERATORS[operator](*(a.evaluate(values) for a in arguments))
        raise AssertionError(self)


@dataclass(frozen=True, slots=True)
class Constant(Expression):
    """A number."""

    number: float

    def __str__(self) -> str:
        return str(self.number)


@dataclass(frozen=True, slots=True)
class Value(Expression):
    """A named value: an operand's element, a scalar argument, a size."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Apply(Expression):
    """An operator of OPERATORS applied to arguments."""

    operator: str
    arguments: tuple[Expression, ...]

    def __post_init__(self) -> None:
        if self.operator not in OPERATORS:
            raise OperationError(f"operator {self.operator}: {nearest(self.operator, OPERATORS)}")
        given, takes = len(self.arguments), _TAKES[self.operator]
        if given != takes:
            raise OperationError(f"operator {self.operator}: {given} arguments; it takes {takes}")

    def __str__(self) -> str:
        if self.operator in _SYMBOLS:
            left, right = self.arguments
            return f"({left} {_SYMBOLS[self.operator]} {right})"
        return f"{self.operator}({', '.join(map(str, self.arguments))})"


def apply(operator: str, *arguments: Expression | float) -> Apply:
    """Apply an operator to expressions or numbers."""
    lifted = (a if isinstance(a, Expression) else Constant(a) for a in arguments)
    return Apply(operator, tuple(lifted))


def value(name: str) -> Value:
    """Return the expression that reads the value called ``name``."""
    return Value(name)
