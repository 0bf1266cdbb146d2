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

``Index(axis)`` is the coordinate of a point along an axis.  A *condition* compares integer
expressions, affine in coordinates, of sizes and whole numbers, and ``where`` chooses by it; so a
mask is an expression.  Its integers have 64 bits, whatever the algebra of the values.

``parse`` reads an expression as Python writes it, or as it is printed; functions are OPERATORS.

>>> print(parse("max(a*x + b, 0)"))
max(((a * x) + b), 0.0)
>>> causal = parse("where(index(n) <= index(m), s, -inf)")
>>> print(causal)
where((index(n) <= index(m)), s, -inf)
>>> float(causal.evaluate({"index(n)": 3, "index(m)": 2, "s": 1.0}))
-inf

A *lookup* reads an array of integers that a launch is given, whole: a tile value may be one
(``ForTile``).  The array's name stands first, and its elements are in ``values``:

- ``element(array, i)`` is its i-th element, 0 for a negative i;
- ``slot_group(array, count, block, slot)`` is the group of a slot, where the array has the groups'
  ends: each has as many slots as blocks of so many rows, see ``tinygpu.term.groups``;
- ``slots_before(array, block, group)`` is the first slot of a group; ``group`` is clipped, too.

>>> apply("element", value("ends"), value("g") - 1).evaluate({"ends": (3, 8), "g": 2})
8

Source: ``docs/model.md``, section "Operations".
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from inspect import signature
from typing import Any, NoReturn, overload

import numpy as np

from tinygpu.errors import OperationError, nearest
from tinygpu.isa.algebra import FLOATS, OPERATORS, Algebra, Operator
from tinygpu.numbers import Array, Integers, Number

__all__ = [
    "DEEPEST",
    "INTEGERS",
    "LOOKUPS",
    "OPERATORS",
    "TAKES",
    "Apply",
    "Bounds",
    "Constant",
    "Expression",
    "Index",
    "Value",
    "Values",
    "alike",
    "apply",
    "bounds",
    "comparisons",
    "lookups",
    "parse",
    "value",
]

Ends = Sequence[int] | Array
Values = Mapping[str, Number | Sequence[int]]
"""Numbers by name, and the arrays that lookups read."""


def _element_at(array: Ends, index: Number) -> Number:
    """Return elements of an array of integers, 0 before its first; ``index`` is clipped."""
    data = np.asarray(array, np.int64)
    found = np.where(np.asarray(index) < 0, 0, data[np.clip(index, 0, len(data) - 1)])
    return found if found.ndim else int(found)


def _blocks_until(array: Ends, block: Number) -> Integers:
    """Return how many blocks of so many rows there are up to each group's end, it included."""
    ends = np.asarray(array, np.int64)
    rows = np.diff(ends, prepend=0)
    until: Integers = np.cumsum(-(-rows // np.expand_dims(block, -1)), axis=-1)
    return until


def _slot_group(array: Ends, count: Number, block: Number, slot: Number) -> Number:
    """Return how many groups end before a slot, at most all but one."""
    found = (_blocks_until(array, block) <= np.expand_dims(slot, -1)).sum(-1)
    found = np.minimum(found, count - 1)
    return found if found.ndim else int(found)


def _slots_before(array: Ends, block: Number, group: Number) -> Number:
    """Return how many slots the groups before one have."""
    until = _blocks_until(array, block)
    before = np.concatenate([np.zeros_like(until[..., :1]), until], axis=-1)
    at = np.expand_dims(np.clip(group, 0, before.shape[-1] - 1), -1)
    shape = np.broadcast_shapes(before.shape[:-1], at.shape[:-1])
    before = np.broadcast_to(before, (*shape, before.shape[-1]))
    found = np.take_along_axis(before, np.broadcast_to(at, (*shape, 1)), -1)[..., 0]
    return found if found.ndim else int(found)


LOOKUPS: Mapping[str, Operator] = {
    "element": _element_at, "slot_group": _slot_group, "slots_before": _slots_before
}  # fmt: skip
"""What reads an array of integers, by name; the array is the first argument."""
TAKES = {
    n: getattr(f, "nin", 0) or len(signature(f).parameters)
    for n, f in {**OPERATORS, **LOOKUPS}.items()
}
"""How many arguments an operator takes."""
_COMPARED = {"le": "<=", "lt": "<"}
_CONDITIONS = (*_COMPARED, "and")
_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/", **_COMPARED, "and": "and"}
INTEGERS = replace(FLOATS, number=int)
"""The algebra of conditions: coordinates, sizes and whole numbers."""


class Expression:
    """A node of an expression; Python's operators build larger ones."""

    __slots__ = ()
    __array_ufunc__ = None  # NumPy's functions refuse an expression instead of holding it

    def __array__(self, *_: object) -> NoReturn:
        raise TypeError("an expression is no array and has no size")

    def __add__(self, other: Expression | float) -> Apply:
        return apply("add", self, other)

    def __radd__(self, other: float) -> Apply:
        return apply("add", other, self)

    def __sub__(self, other: Expression | float) -> Apply:
        return apply("sub", self, other)

    def __rsub__(self, other: float) -> Apply:
        return apply("sub", other, self)

    def __mul__(self, other: Expression | float) -> Apply:
        return apply("mul", self, other)

    def __rmul__(self, other: float) -> Apply:
        return apply("mul", other, self)

    def __truediv__(self, other: Expression | float) -> Apply:
        return apply("div", self, other)

    def __rtruediv__(self, other: float) -> Apply:
        return apply("div", other, self)

    def __neg__(self) -> Apply:
        return apply("neg", self)

    def ceildiv(self, other: Expression | float) -> Apply:
        """Return the quotient rounded up (for sizes)."""
        return apply("ceildiv", self, other)

    def names(self) -> Iterator[str]:
        """Yield the names of the values it reads, in order of first use; "index(m)" is one."""
        seen: set[str] = set()
        for node in self.nodes():
            if isinstance(node, (Value, Index)) and (name := str(node)) not in seen:
                seen.add(name)
                yield name

    def nodes(self) -> Iterator[Expression]:
        """Yield every node, arguments before what uses them."""
        for argument in self.arguments if isinstance(self, Apply) else ():
            if isinstance(argument, Apply):
                yield from argument.nodes()
            else:
                yield argument  # most are: without a generator for each
        yield self

    @overload
    def evaluate(self, values: Mapping[str, int], algebra: Algebra = FLOATS) -> int: ...
    @overload
    def evaluate(self, values: Mapping[str, Array], algebra: Algebra = FLOATS) -> Array: ...
    @overload
    def evaluate(self, values: Values, algebra: Algebra = FLOATS) -> Number: ...
    def evaluate(self, values: Values, algebra: Algebra = FLOATS) -> Number:
        """Evaluate with ``values`` (scalars or arrays that broadcast), in an algebra.

        An int and an array of coordinates are integers, which the algebra gives a meaning.  Raises
        OperationError for a name that is missing.
        """
        match self:
            case Constant(number):
                found: Number = algebra.number(number)
            case Value() | Index():
                name = str(self)
                if name not in values:
                    raise OperationError(
                        f"expression {self}: no value {name}; given {list(values)}"
                    )
                found = _element(values[name], algebra)
            case Apply(operator, (array, *places)) if operator in LOOKUPS:
                if str(array) not in values:
                    raise OperationError(f"expression {self}: no array {array} is given")
                numbers = (a.evaluate(values) for a in places)
                found = LOOKUPS[operator](values[str(array)], *numbers)
            case Apply(operator, arguments) if operator in _CONDITIONS:
                found = OPERATORS[operator](*(a.evaluate(values, INTEGERS) for a in arguments))
            case Apply(operator, arguments):
                found = algebra.operators[operator](
                    *(a.evaluate(values, algebra) for a in arguments)
                )
            case _:
                raise AssertionError(self)
        return found

    def rounded(
        self, values: Mapping[str, Number], errors: Mapping[str, Number]
    ) -> tuple[Number, Number]:
        """Return its value and S: to first order, rounding by u moves it by at most u S.

        Each operator rounds its result, and passes on what its arguments are off by; ``errors``
        says that of the values (0 for those that it does not name).  The slope says how much of
        it, but for a maximum or minimum: another argument may win where they are off.

        >>> x = value("x")
        >>> value, error = (x * x - 3.0).rounded({"x": 2.0}, {})
        >>> float(value), round(float(error), 3)
        (1.0, 5.0)
        """
        match self:
            case Constant(number):
                return number, 0.0
            case Value() | Index():
                return values[str(self)], errors.get(str(self), 0.0)
            case Apply("where", (condition, *arguments)):
                chosen = condition.evaluate(values)
                one, other = (a.rounded(values, errors) for a in arguments)
                return np.where(chosen, one[0], other[0]), np.where(chosen, one[1], other[1])
            case Apply(operator, arguments):
                function = OPERATORS[operator]
                pairs = [a.rounded(values, errors) for a in arguments]
                given = [here for here, _ in pairs]
                with np.errstate(all="ignore"):  # as the hardware: infinities are numbers
                    result = function(*given)
                    error = np.abs(result)
                    if operator in ("max", "min"):
                        error = error + np.maximum(pairs[0][1], pairs[1][1])
                        pairs = []
                    for i, (here, off) in enumerate(pairs):
                        if np.ndim(off) or off:
                            moved = function(*given[:i], here + _STEP * off, *given[i + 1 :])
                            error = error + np.abs(moved - result) / _STEP
                return result, np.where(np.isfinite(error), error, 0.0)
        raise AssertionError(self)


def _element(number: Any, algebra: Algebra) -> Any:
    """Return what an algebra means by an integer or an array of them; others are elements."""
    if algebra.exact and isinstance(number, np.ndarray) and number.dtype.kind == "i":
        return np.vectorize(algebra.number, otypes=[np.float64])(number)
    return algebra.number(number) if isinstance(number, int) else number


_STEP = 2.0**-20  # small, but far above the rounding of float64


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
class Index(Expression):
    """The coordinate of a point along an axis, from 0 on."""

    axis: str

    def __str__(self) -> str:
        return f"index({self.axis})"


_SAID = {
    "exp": f"exp(x) is ex2({math.log2(math.e)} * x)",
    "log": f"log(x) is {math.log(2)} * lg2(x)",
    "exp2": "exp2(x) is ex2(x)",
    "log2": "log2(x) is lg2(x)",
}
"""How what PTX has not is said."""


@dataclass(frozen=True, slots=True)
class Apply(Expression):
    """An operator of OPERATORS applied to arguments."""

    operator: str
    arguments: tuple[Expression, ...]

    def __post_init__(self) -> None:
        if self.operator not in OPERATORS and self.operator not in LOOKUPS:
            known = _SAID.get(self.operator) or nearest(self.operator, OPERATORS)
            raise OperationError(f"operator {self.operator}: {known}")
        given, takes = len(self.arguments), TAKES[self.operator]
        if given != takes:
            raise OperationError(f"operator {self.operator}: {given} arguments; it takes {takes}")
        if self.operator in LOOKUPS and not isinstance(self.arguments[0], Value):
            raise OperationError(f"{self}: {self.arguments[0]} is no array's name")
        if self.operator in _COMPARED:
            if any(_degree(a) > 1 for a in self.arguments):
                raise OperationError(f"{self}: a product of coordinates; compare sums of them")
            return
        wanted = {"where": 1, "and": 2}.get(self.operator, 0)
        for place, argument in enumerate(self.arguments):
            if _is_condition(argument) != (place < wanted):
                what = "no condition" if place < wanted else "a condition, and no number"
                raise OperationError(
                    f"{self}: {argument} is {what}; write where(index(n) <= index(m), a, b)"
                )

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


def _is_condition(node: Expression) -> bool:
    return isinstance(node, Apply) and node.operator in _CONDITIONS


def _degree(node: Expression) -> int:
    """Return the degree in the coordinates of an integer expression; raise for another one."""
    match node:
        case Constant(number) if float(number).is_integer():
            return 0
        case Value():
            return 0
        case Index():
            return 1
        case Apply("add" | "sub" | "neg", arguments):
            return max(map(_degree, arguments))
        case Apply("mul", arguments):
            return sum(map(_degree, arguments))
        case Apply("max" | "min" | "ceildiv", arguments) if not any(map(_degree, arguments)):
            return 0
    raise OperationError(
        f"comparison of {node}: it is no sum of coordinates, sizes and whole numbers; "
        "compare as index(n) <= index(m) + 1"
    )


def lookups(expression: Expression) -> Iterator[Apply]:
    """Yield the lookups in an expression."""
    for node in expression.nodes():
        if isinstance(node, Apply) and node.operator in LOOKUPS:
            yield node


def comparisons(condition: Expression) -> Iterator[Apply]:
    """Yield the comparisons that a condition joins."""
    for node in condition.nodes():
        if isinstance(node, Apply) and node.operator in _COMPARED:
            yield node


def alike(one: Expression, other: Expression) -> bool:
    """Say whether two expressions are the same, number by number, also of arrays over a space.

    >>> alike(value("k") + np.array([1, 2]), value("k") + np.array([1, 2]))
    True
    """
    if one is other:
        return True
    match one, other:
        case Constant(a), Constant(b):
            return a is b or bool(np.array_equal(a, b))
        case Apply(operator, arguments), Apply(same, others):
            return operator == same and all(map(alike, arguments, others))
    return isinstance(one, Value | Index) and one == other


Bounds = tuple[Number, Number]


def bounds(expression: Expression, values: Mapping[str, Bounds]) -> Bounds:
    """Return numbers between which an expression lies, given such bounds of what it names.

    Of operators that are not monotonic in each argument, or not made for sizes, nothing is known.

    >>> bounds(value("k").ceildiv(16), {"k": (1, 100)})
    (1, 7)
    >>> bounds(Constant(2) - value("k"), {"k": (1, 100)})
    (-98, 1)
    """
    match expression:
        case Constant(number):
            return number, number
        case Value() | Index():
            return values[str(expression)]
        case Apply("where", (_, *arguments)):
            (a, b), (c, d) = (bounds(argument, values) for argument in arguments)
            return _lower(a, c), _higher(b, d)
        case Apply("element", (array, _)):  # what the array's elements lie between, and 0
            least, most = bounds(array, values)
            return _lower(least, 0), most
        case Apply("slot_group", (_, count, _, _)):
            return 0, bounds(count, values)[1] - 1
        case Apply("slots_before", (array, _, _)):  # a block has a row or more
            return 0, bounds(array, values)[1]
        case Apply(operator, arguments):
            ends = [bounds(argument, values) for argument in arguments]
            return _bounded(operator, ends)
    raise AssertionError(expression)


def _bounded(operator: str, ends: list[Bounds]) -> Bounds:
    """Return the bounds of an operator's result."""
    match operator, ends:
        case "add", [(a, b), (c, d)]:
            return a + c, b + d
        case "sub", [(a, b), (c, d)]:
            return a - d, b - c
        case "neg", [(a, b)]:
            return -b, -a
        case (("max" | "min"), [(a, b), (c, d)]):
            function = _higher if operator == "max" else _lower
            return function(a, c), function(b, d)
        case (("mul" | "ceildiv"), [(a, b), (c, d)]):
            if operator == "ceildiv" and not np.all(np.asarray(c) > 0):
                return -math.inf, math.inf
            function = OPERATORS[operator]  # monotonic in each argument
            corners = [function(x, y) for x in (a, b) for y in (c, d)]
            return reduce(_lower, corners), reduce(_higher, corners)
        case _:
            return -math.inf, math.inf


def _lower(a: Number, b: Number) -> Number:
    """Return the smaller one, of ints or of arrays."""
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def _higher(a: Number, b: Number) -> Number:
    """Return the larger one, of ints or of arrays."""
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


_BINARY: Mapping[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"
}  # fmt: skip

_ORDERS: Mapping[type[ast.cmpop], tuple[str, bool]] = {
    ast.LtE: ("le", False), ast.Lt: ("lt", False), ast.GtE: ("le", True), ast.Gt: ("lt", True)
}  # fmt: skip

_LONGEST = 500
DEEPEST = 100
"""Levels of an expression that is read: the walks over one are recursive."""


def parse(text: str) -> Expression:
    """Read an expression: numbers, names, + - * /, comparisons and the functions of OPERATORS.

    Raises OperationError, in one line, for anything else.
    """
    if len(text) > _LONGEST:
        raise OperationError(f"expression: {len(text)} characters; at most {_LONGEST}")
    try:
        found = _read(ast.parse(text.strip(), mode="eval").body)
        if _levels(found) > DEEPEST:
            raise OperationError(f"it is nested too deeply: at most {DEEPEST} levels")
        return found
    except OperationError as error:
        raise OperationError(f"expression {text!r}: {error}") from None
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        raise OperationError(f"expression {text!r}: {said}; write it as a*x + b") from None


def _levels(node: Expression) -> int:
    return 1 + max(map(_levels, node.arguments)) if isinstance(node, Apply) else 0


def _read(node: ast.expr) -> Expression:
    match node:
        case ast.Constant(int() | float() as number) if not isinstance(number, bool):
            return _constant(float(number), node)
        case ast.UnaryOp(ast.USub(), ast.Name("inf")):
            return Constant(-math.inf)
        case ast.Name(name) if name != "inf":
            return Value(name)
        case ast.Call(ast.Name("index"), [ast.Name(axis)], []):
            return Index(axis)
        case ast.UnaryOp(ast.USub(), operand):
            return _applied("neg", [_read(operand)], node)
        case ast.BinOp(left, operation, right) if type(operation) in _BINARY:
            return _applied(_BINARY[type(operation)], [_read(left), _read(right)], node)
        case ast.BoolOp(ast.And(), parts):
            return reduce(partial(apply, "and"), map(_read, parts))
        case ast.Compare(left, [compared], [right]) if type(compared) in _ORDERS:
            operator, turned = _ORDERS[type(compared)]
            sides = [_read(left), _read(right)]
            return Apply(operator, tuple(sides[::-1] if turned else sides))
        case ast.Call(function, arguments, []):
            return _applied(ast.unparse(function), [_read(a) for a in arguments], node)
    raise OperationError(
        f"{ast.unparse(node)} is no number, name, sum, product, quotient or function"
    )


def _applied(operator: str, arguments: list[Expression], node: ast.expr) -> Expression:
    """Apply an operator; what is known of constants alone is computed now."""
    whole = Apply(operator, tuple(arguments))
    numbers = [np.float64(a.number) for a in arguments if isinstance(a, Constant)]
    if len(numbers) < len(arguments):
        return whole
    with np.errstate(all="ignore"):
        return _constant(float(OPERATORS[operator](*numbers)), node)


def _constant(number: float, node: ast.expr) -> Constant:
    if not math.isfinite(number):
        raise OperationError(f"{ast.unparse(node)} is {number}, no finite number")
    return Constant(number)
