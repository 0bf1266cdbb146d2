"""Wishes: conditions on a schedule, written as Python writes them.

A wish is integer arithmetic (+ - * // %), comparisons, also chained and by ``in``, and, or, not,
over a machine's decisions, the problem's sizes and the quantities of a term
(``tinygpu.space.quantities``).  A decision that is chosen by name is compared with strings.  Text
is parsed by Python's ``ast`` and never run; what is joined by ``and`` becomes a wish each.

>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import Problem, matmul
>>> problem = Problem.of(matmul(), m=64, n=64, k=64)
>>> deep, wide = wishes('2 <= stages < 5 and tile_m * tile_n > threads', Simt(), problem)
>>> deep.text, wide.quantities
('2 <= stages < 5', ('threads',))
>>> deep.holds({"stages": 4}), deep.holds({"stages": 5})
(True, False)
>>> wishes("tile_m ** 2 > 64", Simt(), problem)
Traceback (most recent call last):
    ...
tinygpu.errors.WishError: wish "tile_m ** 2 > 64", column 1, at "tile_m ** 2": not of the \
language, which has + - * // %, == != < <= > >=, in (..), and, or, not, integers, names, "strings"

Division by zero gives 0, as in the laws.  Source: the Python Language Reference, "Expressions".
"""

from __future__ import annotations

import ast
import difflib
import math
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

import numpy as np

from tinygpu.errors import WishError
from tinygpu.numbers import Number, Truth
from tinygpu.space.quantities import QUANTITIES, Named
from tinygpu.term.machine import Machine, Value
from tinygpu.term.operation import Problem

__all__ = ["TooWideError", "Wish", "denied", "wishes"]

_LANGUAGE = '+ - * // %, == != < <= > >=, in (..), and, or, not, integers, names, "strings"'
_LONGEST = 2000
"""Characters of a wish: far more than anyone writes, and few enough to walk."""

_WIDEST = 1 << 24
"""Combinations of decisions that one comparison may depend on: a tenth of a gigabyte."""

_ARITHMETIC: Mapping[type[ast.AST], Callable[..., Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: lambda x: x,
}
_COMPARISONS: Mapping[type[ast.AST], Callable[[Named, Named], Truth]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_J = TypeVar("_J")
_MEMBERSHIP = (ast.In, ast.NotIn)


class TooWideError(Exception):
    """A comparison that has no table: of too many combinations, or of numbers too large."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A condition: its text, the names in it, and which of these are quantities of a term."""

    text: str
    condition: ast.expr
    names: tuple[str, ...]
    quantities: tuple[str, ...]

    def holds(self, values: Mapping[str, Named]) -> Truth:
        """Say whether it holds where names have these values: ints, strings, a space's arrays.

        Raises TooWideError where arrays would be too large, or numbers in them.
        """
        return self.told(values, lambda x: x)

    def told(self, values: Mapping[str, Named], seen: Callable[[Truth], _J]) -> _J:
        """Return what ``seen`` makes of each comparison, joined by and, or and not."""
        return _truth(self.condition, values, seen)


def denied(parts: Sequence[Wish]) -> Wish:
    """Return the wish that holds where not all of the parts do.  Raises WishError for no part."""
    if not parts:
        raise WishError("claim: it is empty; write a condition, as smem_bytes <= 200000")
    condition = ast.UnaryOp(ast.Not(), ast.BoolOp(ast.And(), [p.condition for p in parts]))
    names = tuple(dict.fromkeys(name for p in parts for name in p.names))
    quantities = tuple(dict.fromkeys(name for p in parts for name in p.quantities))
    return Wish(f"not ({' and '.join(p.text for p in parts)})", condition, names, quantities)


def wishes(text: str, machine: Machine, problem: Problem) -> tuple[Wish, ...]:
    """Read wishes, one for each part that a top-level ``and`` joins; of an empty text, none.

    Raises WishError, which points at the place, for what is not of the language.
    """
    reader = _Reader(" ".join(text.split()), machine, problem)
    found = map(reader.wish, reader.parts() if reader.text else ())
    return tuple({wish.text: wish for wish in found}.values())


class _Reader:
    """Checks a text against the language and what its names may stand for."""

    def __init__(self, text: str, machine: Machine, problem: Problem) -> None:
        self.text, self.machine, self.sizes = text, machine, problem.sizes
        self.decisions = {n: c.values for n, c in machine.decisions().items()}

    def parts(self) -> Iterator[ast.expr]:
        """Parse, check, and yield what ``and`` joins at the top."""
        if len(self.text) > _LONGEST:
            raise self._error(len(self.text), f"longer than {_LONGEST} characters; write less")
        if "#" in self.text:  # Python would leave out the rest, which may be a condition
            raise self._error(self.text.index("#") + 1, "there are no comments; leave it out")
        if "\0" in self.text:  # some versions of Python raise another error for it
            raise self._error(self.text.index("\0") + 1, "there are no null bytes; leave it out")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of odd spellings, which are refused anyway
                tree = ast.parse(self.text, mode="eval").body
            if self._kind(tree) is not bool:
                raise self._refused(tree, "is no condition; compare it, as with == or <")
        except SyntaxError as error:
            column = error.offset or len(self.text) + 1
            told = f"{error.msg.partition(';')[0]}; the language has {_LANGUAGE}"
            raise self._error(column, told) from None
        except UnicodeEncodeError as error:
            raise self._error(error.start + 1, "is not Unicode; write the wish in UTF-8") from None
        except (RecursionError, MemoryError):
            raise self._error(1, "nested too deeply; write less") from None
        yield from _joined(tree)

    def wish(self, condition: ast.expr) -> Wish:
        """Return a part that was checked as a wish."""
        nodes = [node for node in ast.walk(condition) if isinstance(node, ast.Name)]
        found = dict.fromkeys(n.id for n in sorted(nodes, key=lambda n: n.col_offset))
        other = tuple(n for n in found if n not in self.decisions and n not in self.sizes)
        return Wish(self._source(condition), condition, tuple(found), other)

    def _source(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.text, node) or self.text

    def _refused(self, node: ast.expr, why: str) -> WishError:
        column = len(self.text.encode()[: node.col_offset].decode()) + 1
        return self._error(column, why, self._source(node))

    def _error(self, column: int, why: str, at: str = "") -> WishError:
        """Point at a place of the text: by its column, and what is written there."""
        at = at or self.text[column - 1 :] or "the end"
        shown, place = (t if len(t) <= 80 else f"{t[:77]}..." for t in (self.text, at))
        return WishError(f'wish "{shown}", column {column}, at "{place}": {why}')

    def _kind(self, node: ast.expr) -> type | tuple[Value, ...]:
        """Return int, bool, str, or the values of a decision that is chosen by name."""
        match node:
            case ast.Constant(bool() | None):
                pass
            case ast.Constant(int() | str() as value):
                return type(value)
            case ast.Name(name):
                return self._named(node, name)
            case ast.BoolOp(_, values):
                return self._all(bool, *values)
            case ast.UnaryOp(ast.Not(), operand):
                return self._all(bool, operand)
            case ast.UnaryOp(operation, operand) if type(operation) in _ARITHMETIC:
                return self._all(int, operand)
            case ast.BinOp(left, operation, right) if type(operation) in _ARITHMETIC:
                return self._all(int, left, right)
            case ast.Compare(left, operations, rights):
                for one, sign, other in zip((left, *rights), operations, rights, strict=False):
                    self._compare(node, one, sign, other)
                return bool
        raise self._refused(node, f"not of the language, which has {_LANGUAGE}")

    def _all(self, kind: type, *nodes: ast.expr) -> type:
        for node in nodes:
            if self._kind(node) is not kind:
                wanted = "a condition" if kind is bool else "an integer"
                raise self._refused(node, f"is not {wanted}, which is needed here")
        return kind

    def _compare(
        self, node: ast.expr, left: ast.expr, operation: ast.cmpop, right: ast.expr
    ) -> None:
        """Check one comparison; ``in`` compares with each of a row of values."""
        others = [right]
        if isinstance(operation, _MEMBERSHIP):
            if not isinstance(right, ast.Tuple | ast.List | ast.Set):
                raise self._refused(right, "is no row of values; write in (1, 2)")
            others = right.elts
        elif type(operation) not in _COMPARISONS:
            raise self._refused(node, f"not of the language, which has {_LANGUAGE}")
        kind = self._kind(left)
        for other in others:
            pair = (kind, self._kind(other))
            if pair == (int, int):
                continue
            values = next((k for k in pair if isinstance(k, tuple)), None)
            if values is None or isinstance(operation, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                raise self._refused(
                    node, "compare an integer with an integer, a name's value by == or !="
                )
            constant = other if pair[0] is values else left
            if not isinstance(constant, ast.Constant) or constant.value not in values:
                known = ", ".join(repr(v).replace("'", '"') for v in values)
                raise self._refused(constant, f"is not a value of this decision; there are {known}")

    def _named(self, node: ast.expr, name: str) -> type | tuple[Value, ...]:
        """Return what a name stands for."""
        if name in self.decisions:
            values = self.decisions[name]
            return values if any(isinstance(v, str) for v in values) else int
        if name in self.sizes or name in QUANTITIES:
            return int
        names = [*self.decisions, *self.sizes, *QUANTITIES]
        begun = [known for known in names if known.startswith(name)]
        close = begun or difflib.get_close_matches(name, names, 1, 0.5)
        raise self._refused(
            node,
            f"is no name here{f'; did you mean {close[0]}?' if close else ''}; decisions of "
            f"{self.machine.name} are {', '.join(self.decisions)}; sizes {', '.join(self.sizes)}; "
            f"quantities {', '.join(QUANTITIES)}",
        )


def _joined(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.BoolOp(ast.And(), values):
            for value in values:
                yield from _joined(value)
        case _:
            yield node


def _truth(node: ast.expr, values: Mapping[str, Named], seen: Callable[[Truth], _J]) -> _J:
    """Evaluate a condition that was checked."""
    both: Callable[[_J, _J], _J] = operator.and_
    match node:
        case ast.BoolOp(operation, parts):
            join: Callable[[_J, _J], _J]
            join = operator.and_ if isinstance(operation, ast.And) else operator.or_
            return reduce(join, (_truth(part, values, seen) for part in parts))
        case ast.UnaryOp(ast.Not(), operand):
            deny: Callable[[_J, bool], _J] = operator.xor
            return deny(_truth(operand, values, seen), True)
        case ast.Compare(left, operations, rights):
            _refuse_wide(node, values)
            pairs = zip((left, *rights), operations, rights, strict=False)
            return reduce(both, (seen(_compared(*pair, values)) for pair in pairs))
    raise AssertionError(node)


def _compared(
    left: ast.expr, operation: ast.cmpop, right: ast.expr, values: Mapping[str, Named]
) -> Truth:
    one = _value(left, values)
    if isinstance(operation, _MEMBERSHIP):
        assert isinstance(right, ast.Tuple | ast.List | ast.Set)
        equal = [one == _value(value, values) for value in right.elts]
        found: Truth = reduce(operator.or_, equal, False)
        return found if isinstance(operation, ast.In) else found ^ True
    return _COMPARISONS[type(operation)](one, _value(right, values))


def _value(node: ast.expr, values: Mapping[str, Named]) -> Any:
    """Evaluate arithmetic that was checked."""
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return values[name]
        case ast.UnaryOp(operation, operand):
            return _ARITHMETIC[type(operation)](_value(operand, values))
        case ast.BinOp(left, operation, right):
            one, other = _value(left, values), _value(right, values)
            divides = isinstance(operation, ast.FloorDiv | ast.Mod)
            if divides and isinstance(other, int) and other == 0:
                return 0
            if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
                _refuse_large(operation, one, other)
            return _ARITHMETIC[type(operation)](one, other)
    raise AssertionError(node)


def _refuse_wide(node: ast.expr, values: Mapping[str, Named]) -> None:
    named = [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
    shape = np.broadcast_shapes(*(np.shape(values[name]) for name in named))
    if math.prod(shape) > _WIDEST:
        raise TooWideError(
            f"{ast.unparse(node)} depends on {math.prod(shape):.1e} combinations of decisions; "
            f"at most {_WIDEST:.1e} are looked at"
        )


def _refuse_large(operation: ast.operator, one: Number, other: Number) -> None:
    """Refuse what int64 cannot hold, where Python's integers would go on."""
    a, b = (int(np.abs(x).max()) if isinstance(x, np.ndarray) else abs(x) for x in (one, other))
    if (a * b if isinstance(operation, ast.Mult) else a + b) >= 1 << 63:
        raise TooWideError("numbers of 2^63 and more")
