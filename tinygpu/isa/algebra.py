"""Algebras: the arithmetic in which a term is executed and its operation is evaluated.

An algebra has a meaning for each operator, for a constant, for the rounding to a type, for sums of
products and for the reductions.  In ``FLOATS`` these are the hardware's; in a prime field
(``tinygpu.meaning.prime_field``) sums and products are exact, so that two formulas agree only where
they are the same function.

>>> float(FLOATS.operators["fma"](2.0, 3.0, 1.0))
7.0
>>> FLOATS.contract(np.matmul, np.ones((1, 3)), np.ones((3, 1))).tolist()
[[3.0]]

Source: ``docs/model.md``, section "Meaning".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tinygpu.isa.memory import DType
from tinygpu.numbers import Array, Number

__all__ = ["FLOATS", "OPERATORS", "Algebra", "Operator"]

Operator: TypeAlias = Callable[..., Any]
"""A function of numbers: ints, floats or arrays, or what else an algebra computes with."""


@dataclass(frozen=True, slots=True, eq=False)
class Algebra:
    """Operators by name, and what is made of numbers, of types and of many values.

    ``number``: the element that a constant or a size means.  ``round(dtype, array)``.
    ``contract(form, a, b)``: ``form(a, b)``, where ``form`` gives sums of products of an element of
    a and one of b.  ``total(operator, array, axes)``: the reduction by "add" or "max" over axes,
    whose length becomes 1.  ``exact``: results are equal or wrong, and no errors are worked out.
    ``modulus``: elements are whole numbers modulo it; 0: floats.
    """

    operators: Mapping[str, Operator]
    number: Callable[[float], Any]
    round: Callable[[DType, Array], Array]
    contract: Callable[[Callable[[Array, Array], Array], Array, Array], Array]
    total: Callable[[str, Array, tuple[int, ...]], Array]
    exact: bool
    modulus: int = 0


def _ceildiv(a: Number, b: Number) -> Number:
    return -(-a // b)


def _sigmoid(x: Number) -> Number:
    return 1.0 / (1.0 + np.exp(-x))


def _rcp0(x: Number) -> Array:
    return np.where(x == 0, 0.0, 1.0 / np.where(x == 0, 1.0, x))


OPERATORS: Mapping[str, Operator] = {
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
    "rcp0": _rcp0,  # 1 / x, and 0 at 0: an empty sum's weight
    "le": np.less_equal,
    "lt": np.less,
    "and": np.logical_and,
    "where": lambda condition, a, b: np.where(condition, a, b),
}
"""Operators by name: their meaning on NumPy arrays, PTX's names where PTX has them."""


def _total(operator: str, array: Array, axes: tuple[int, ...]) -> Array:
    over: Callable[..., Array] = np.sum if operator == "add" else np.max
    return over(array, axis=axes, keepdims=True)


FLOATS = Algebra(
    OPERATORS,
    number=lambda x: x,
    round=lambda dtype, array: dtype.round(array),
    contract=lambda form, a, b: form(a, b),
    total=_total,
    exact=False,
)
"""float64, rounded to each type; CuPy's arrays as well as NumPy's."""
