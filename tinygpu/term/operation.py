"""Operations: what a kernel has to compute, apart from how.

An operation has axes; operands, each an index map (the axes that index it, row-major in that
order) and a data type; reductions, in order; and an ``epilogue``.  A reduction is a named sum or
maximum, over some axes, of an expression of a point.  It may read the reductions before it, inputs,
scalars, sizes and coordinates, and has the axes of what it reads that it does not reduce:

    r1 = reduce over axes of expression(inputs, scalars, sizes, coordinates)
    r2 = reduce over axes of expression(r1, inputs, ..)
    output[output axes] = epilogue(r1, r2, .., inputs, ..)

An operation may have ``further`` outputs, each an operand with an epilogue of its own.  With
``groups`` an axis is no axis of the points: its coordinate is the group in which a point's row is,
by an array of the groups' ends.  With ``pages`` some inputs lie in pages that a table names.  With
``lengths`` conditions may compare coordinates with how far an axis goes in a row.

A matmul has one reduction, its sum ``acc``; a softmax two; attention four; an elementwise operation
none.

>>> print(softmax("f32"))
softmax: y[i,j] f32 = top: max over j of x[i,j] f32; sum over j of \
ex2.ftz(((x[i,j] f32 - top) * 1.4426950408889634)), \
then (ex2(((x - top) * 1.4426950408889634)) * rcp(acc))

>>> op = matmul("f32")
>>> print(op)
matmul: c[m,n] f32 = sum over k of (a[m,k] f32 * b[k,n] f32)
>>> import numpy as np
>>> a, b = np.ones((2, 3)), np.ones((3, 4))
>>> op.reference({"a": a, "b": b})["c"].shape
(2, 4)

Source: the tensor-contraction view of loops, as in Exo, Halide and einsum.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import combinations, product
from typing import Any

import numpy as np

from tinygpu.errors import OperationError, nearest, require_kind, require_names
from tinygpu.isa.algebra import FLOATS, Algebra
from tinygpu.isa.memory import ARRAY_DTYPES, DTYPES
from tinygpu.numbers import Array, Floats, Integers, Number
from tinygpu.term.expression import (
    INTEGERS,
    Apply,
    Constant,
    Expression,
    Index,
    apply,
    comparisons,
    lookups,
    parse,
    value,
)
from tinygpu.term.pages import POOL, Lengths, Pages

__all__ = [
    "ACC",
    "ACTIVATIONS",
    "LARGEST_SIZE",
    "OPERATIONS",
    "Groups",
    "Operand",
    "Operation",
    "Problem",
    "Reduction",
    "attention",
    "elementwise",
    "grouped_matmul",
    "is_matmul",
    "matmul",
    "reduce",
    "rmsnorm",
    "rmsnorm_matmul",
    "softmax",
    "window_of",
]


@dataclass(frozen=True, slots=True)
class Operand:
    """An array argument: its name, the axes that index it, its data type."""

    name: str
    axes: tuple[str, ...]
    dtype: str

    def __post_init__(self) -> None:
        require_kind("operand: name", self.name, str, OperationError)
        require_names(f"operand {self.name}: axes", self.axes, OperationError)
        require_kind(f"operand {self.name}: dtype", self.dtype, str, OperationError)
        if self.dtype not in ARRAY_DTYPES:
            raise OperationError(
                f"operand {self.name}: unknown dtype {self.dtype!r}; known are {', '.join(DTYPES)}"
            )

    def __str__(self) -> str:
        return f"{self.name}[{','.join(self.axes)}] {self.dtype}"


ACC = value("acc")
LARGEST_SIZE = 2**31 - 1
"""The largest size: TMA's coordinates are signed, and so are indices that steps are taken off."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """A named value: an expression of a point, reduced by "add" or "max" over some axes."""

    name: str
    operator: str
    expression: Expression
    over: tuple[str, ...]

    def __post_init__(self) -> None:
        require_kind("reduction: name", self.name, str, OperationError)
        what = f"reduction {self.name}"
        require_kind(f"{what}: operator", self.operator, str, OperationError)
        require_kind(what, self.expression, Expression, OperationError)
        require_names(f"{what}: axes", self.over, OperationError)
        if self.operator not in REDUCERS:
            raise OperationError(f"{what}: {self.operator}; {nearest(self.operator, REDUCERS)}")
        if not self.over:
            raise OperationError(f"{what}: it is over no axis; give one or more")

    @property
    def factors(self) -> tuple[Expression, ...]:
        """The factors of a point that is a product; else the point alone."""
        found, left = [], [self.expression]
        while left:
            match left.pop():
                case Apply("mul", arguments):
                    left += arguments[::-1]
                case node:
                    found.append(node)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows in groups: ``axis`` counts them, and group i ends before row ``ends[i]``.

    Group 0 begins at row 0, each other one where the one before it ends, so a group may be empty;
    the last ends with the last row.  ``ends`` is the name of an array of i32.
    """

    axis: str
    rows: str
    ends: str

    @property
    def operand(self) -> Operand:
        """The array of the groups' ends."""
        return Operand(self.ends, (self.axis,), "i32")

    def even(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the ends of groups of equal rows, as far as that goes.

        >>> Groups("g", "m", "ends").even({"g": 3, "m": 10})
        (3, 6, 10)
        """
        count, rows = sizes[self.axis], sizes[self.rows]
        return tuple(rows * (i + 1) // count for i in range(count))

    def ends_of(self, sizes: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the ends that ``sizes`` has under their name, or else even ones."""
        return tuple(sizes[self.ends]) if self.ends in sizes else self.even(sizes)

    def require(self, ends: Sequence[int], sizes: Mapping[str, int]) -> None:
        """Raise OperationError unless the ends are those of ``sizes[axis]`` groups of all rows."""
        count, rows = sizes[self.axis], sizes[self.rows]
        if len(ends) != count:
            raise OperationError(f"{self.ends}: {len(ends)} ends; there are {count} groups")
        for i, (before, end) in enumerate(zip((0, *ends), ends, strict=False)):
            if end < before:
                raise OperationError(
                    f"{self.ends}: group {i} ends at {end}, before it begins, at {before}; give "
                    "sums of the groups' rows"
                )
        if ends[-1] != rows:
            raise OperationError(
                f"{self.ends}: the last group ends at {ends[-1]}, and {self.rows} is {rows}; let "
                "it end with the last row"
            )


REDUCERS: Mapping[str, float] = {"add": 0.0, "max": -math.inf}
"""Operators that reduce, each with its identity."""
_BLOCK = 2**20
"""Elements of an array that ``reference`` makes on the way, if axes can be cut; 8 MiB."""
_LAUNCHED_BLOCK = 2**24
"""The same on a GPU, where each step of a block is a launch; 128 MiB."""
_STEP = 2.0**-20
"""What a loose sum is taken off by: small, but far above the rounding of float64."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation; see the module's definition."""

    name: str
    axes: tuple[str, ...]
    inputs: tuple[Operand, ...]
    output: Operand
    reductions: tuple[Reduction, ...] = ()
    epilogue: Expression = ACC
    scalars: tuple[str, ...] = ()
    further: tuple[tuple[Operand, Expression], ...] = ()
    groups: Groups | None = None
    pages: Pages | None = None
    lengths: Lengths | None = None

    def __post_init__(self) -> None:
        self._require_kinds()
        made = [r.name for r in self.reductions]
        names = [*(o.name for o in self.operands), *self.scalars, *self.axes, *made]
        names += [POOL] if self.pages else []
        for name in names:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", name):
                raise self._error(f"name {name!r}; a name has letters, digits and _")
            if names.count(name) > 1:
                raise self._error(
                    f"{name} is named twice: arrays, scalars, axes and reductions differ"
                )
        self._require_read(made)
        listed = [
            *((f"{r.name}: reduced axes", r.over) for r in self.reductions),
            *((str(o), o.axes) for o in self.operands),
        ]
        for what, axes in listed:
            if missing := [a for a in axes if a not in self.axes]:
                there_are = nearest(missing[0], self.axes)
                raise self._error(f"{what}: axis {missing[0]} is not the operation's; {there_are}")
            if len({*axes}) < len(axes):
                raise self._error(f"{what}: an axis is there twice; give each once")
        reduced = {a for r in self.reductions for a in r.over}
        have = {a for o in self.outputs for a in o.axes}
        if self.groups:
            self._require_groups(self.groups, have, reduced)
            have = have | {self.groups.axis}
        if self.pages:
            self._require_pages(self.pages)
        if self.lengths and self.lengths.axis not in self.axes:
            axis = self.lengths.axis
            raise self._error(f"lengths: {axis} is no axis; {nearest(axis, self.axes)}")
        kept = tuple(a for a in self.axes if a in have or a not in reduced)
        if lost := [a for a in kept if a not in have]:
            raise self._error(
                f"{self.output} lacks {', '.join(lost)}, and no reduction is over it; give "
                f"one, or an output with the axes {', '.join(kept)}"
            )
        for output, epilogue in self.results:
            own = tuple(a for a in self.axes if a in output.axes)
            if output.axes != own:
                raise self._error(f"{output} has to have the axes {', '.join(own)}, in this order")
            known = {*output.axes, *((self.groups.axis,) if self.groups else ())}
            if more := [a for a in self.axes_of(epilogue) if a not in known]:
                raise self._error(
                    f"the epilogue {epilogue} has the axis {more[0]}, which {output} lacks; "
                    "read a reduction over it"
                )

    def _require_groups(self, groups: Groups, have: set[str], reduced: set[str]) -> None:
        """Raise OperationError unless the groups are of an output's rows, and no axis of it."""
        for axis, among in ((groups.axis, self.axes), (groups.rows, have)):
            if axis not in among:
                raise self._error(f"groups: {axis} is no axis; {nearest(axis, [*among])}")
        if groups.axis in have | reduced:
            raise self._error(f"groups: {groups.axis} is an output's axis, or reduced; a row's "
                              "group is found by its ends")  # fmt: skip
        if any({groups.axis, groups.rows} <= {*o.axes} for o in self.inputs):
            raise self._error(f"groups: an input has rows and {groups.axis}; give it one of them")

    def _require_pages(self, pages: Pages) -> None:
        """Raise OperationError unless the table's inputs have its axes, and others say how long."""
        known = {o.name: o for o in self.inputs}
        for name in pages.inputs:
            if name not in known:
                raise self._error(f"pages: no input {name}; {nearest(name, known)}")
            if not {pages.rows, pages.axis} <= {*(axes := known[name].axes)[:-1]}:
                raise self._error(
                    f"pages: {known[name]} needs {pages.rows} and {pages.axis} before its last "
                    f"axis, {axes[-1]}, which lies in one piece"
                )
        if self.groups:
            raise self._error("pages: rows are in groups, too; give one of them")

    def _require_read(self, made: list[str]) -> None:
        """Raise OperationError for names that are unknown or later, and reductions nobody reads."""
        arrays = [o.name for o in self.inputs]
        known, unread = [*arrays, *self.scalars, *self.axes], list(made)
        long = [self.lengths.name] if self.lengths else []
        known += long
        ends = [epilogue for _, epilogue in self.results]
        every = [*(r.expression for r in self.reductions), *ends]
        for expression, name in zip(every, [*made, *("" for _ in ends)], strict=True):
            reads = [*expression.names()]
            for read in reads:
                if read not in (*known, *map(str, map(Index, self.axes))):
                    raise self._error(
                        f"expression names {read!r}, which is no input, scalar, axis or reduction "
                        f"before it; known are {', '.join(sorted(known))}"
                    )
            for looked in lookups(expression):
                raise self._error(f"{looked}: a lookup; only tile values of a term are some")
            for compared in comparisons(expression):
                fine = (*self.axes, *long)
                if strange := [n for n in compared.names() if n in known and n not in fine]:
                    raise self._error(
                        f"{compared}: {strange[0]} is no size; compare index(axis), sizes and "
                        "whole numbers"
                    )
            inside = sum(n == value(m) for c in comparisons(expression) for n in c.nodes()
                         for m in long)  # fmt: skip
            if inside != sum(n == value(m) for n in expression.nodes() for m in long):
                raise self._error(f"{expression}: {long[0]} is compared with coordinates alone")
            unread = [u for u in unread if u not in reads]
            known.append(name)
        if unread:
            raise self._error(
                f"the reduction {unread[0]} is read by nothing; leave it out, or read it in the "
                "epilogue"
            )

    def _require_kinds(self) -> None:
        """Raise OperationError for a field of another type."""
        require_kind("operation: name", self.name, str, OperationError)
        what = f"operation {self.name}"
        for field in ("axes", "scalars"):
            require_names(f"{what}: {field}", getattr(self, field), OperationError)
        for field, kind in (("inputs", Operand), ("reductions", Reduction)):
            require_kind(f"{what}: {field}", getattr(self, field), tuple, OperationError)
            for one in getattr(self, field):
                require_kind(f"{what}: {field}", one, kind, OperationError)
        require_kind(f"{what}: further", self.further, tuple, OperationError)
        if self.groups is not None:
            require_kind(f"{what}: groups", self.groups, Groups, OperationError)
        if self.pages is not None:
            require_kind(f"{what}: pages", self.pages, Pages, OperationError)
        if self.lengths is not None:
            require_kind(f"{what}: lengths", self.lengths, Lengths, OperationError)
        for pair in self.further:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise OperationError(f"{what}: further has {pair!r}; give (operand, epilogue)")
        for output, epilogue in self.results:
            require_kind(f"{what}: output", output, Operand, OperationError)
            require_kind(f"{what}: epilogue", epilogue, Expression, OperationError)
        for operand in (*self.inputs, *self.outputs):
            if operand.dtype not in DTYPES:
                raise OperationError(f"{what}: {operand}: only groups' ends are integers; "
                                     f"{nearest(operand.dtype, DTYPES)}")  # fmt: skip
        if not self.name.strip() or not self.name.isprintable():
            raise OperationError(f"operation {self.name!r}: give it a name that can be printed")
        if not self.inputs:
            raise OperationError(f"{what}: it has no inputs; give one or more operands")

    def _error(self, text: str) -> OperationError:
        return OperationError(f"operation {self.name}: {text}")

    @property
    def results(self) -> tuple[tuple[Operand, Expression], ...]:
        """Each output and its epilogue."""
        return ((self.output, self.epilogue), *self.further)

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """The outputs."""
        return tuple(output for output, _ in self.results)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The inputs, arrays of integers and the outputs: the order of a kernel's pointers."""
        return (*self.inputs, *self.indices, *self.outputs)

    @property
    def indices(self) -> tuple[Operand, ...]:
        """The arrays of integers that say where something is."""
        pages = self.pages
        found = [self.groups.operand] if self.groups else []
        if pages:
            found.append(Operand(pages.table, (pages.rows, pages.axis), "i32"))
        if self.lengths:
            found.append(Operand(self.lengths.name, (self.lengths.rows,), "i32"))
        return tuple(found)

    def operand(self, name: str) -> Operand:
        """Return the operand called ``name``."""
        return next(o for o in self.operands if o.name == name)

    def stored(self, operand: Operand) -> tuple[str | int, ...]:
        """Return the dimensions in which an operand lies: its axes, or those of a pool of pages."""
        pages = self.pages_of(operand.name)
        return pages.stored(operand.axes) if pages else operand.axes

    def pages_of(self, name: str) -> Pages | None:
        """Return the pages in which the operand of a name lies; None if it is in one piece."""
        return self.pages if self.pages and name in self.pages.inputs else None

    def in_pages(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return sizes, that of an axis which lies in pages raised to whole ones."""
        if self.pages is None:
            return {**sizes}
        axis, each = self.pages.axis, self.pages.size
        return {**sizes, axis: -(-sizes[axis] // each) * each}

    def shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return each operand's shape, given the axes' sizes.

        A pool has as many pages as ``sizes`` says under "pages", or else one for each block.
        """
        if self.pages is None:
            return {o.name: tuple(sizes[a] for a in o.axes) for o in self.operands}
        rows, blocks = sizes[self.pages.rows], self.pages.blocks(sizes[self.pages.axis])
        known = {POOL: rows * blocks, **sizes}
        found = {
            o.name: tuple(known[a] if isinstance(a, str) else a for a in self.stored(o))
            for o in self.operands
        }
        return {**found, self.pages.table: (rows, blocks)}

    def sizes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Return the axes' sizes from the operands' shapes.

        Raises OperationError where two operands disagree or a rank is wrong.
        """
        sizes: dict[str, int] = {}
        for operand in self.operands:
            if operand.name not in shapes:
                continue
            shape, axes = shapes[operand.name], self.stored(operand)
            if len(shape) != len(axes):
                raise OperationError(
                    f"{self.name}: {operand.name} needs {len(axes)} dimensions "
                    f"({','.join(map(str, axes))}), got shape {tuple(shape)}"
                )
            spans = (*shape,)
            if self.pages and operand.name == self.pages.table:
                spans = (shape[0], shape[1] * self.pages.size)
            for axis, size in zip(axes, spans, strict=True):
                if isinstance(axis, int):
                    if size != axis:
                        raise OperationError(
                            f"{self.name}: {operand.name} has shape {tuple(shape)}; a page has "
                            f"{axis} of {self.pages.axis if self.pages else ''}"
                        )
                elif sizes.setdefault(axis, int(size)) != size:
                    raise OperationError(
                        f"{self.name}: axis {axis} is {sizes[axis]}, but {operand.name} "
                        f"has shape {tuple(shape)}; give operands whose {axis} agree"
                    )
        return sizes

    def axes_of(self, expression: Expression) -> tuple[str, ...]:
        """Return the axes that a value moves along, in the operation's order."""
        spans: dict[str, set[str]] = {o.name: {*o.axes} for o in self.inputs}
        spans |= {str(Index(a)): {a} for a in self.axes}
        spans |= {self.lengths.name: {self.lengths.rows}} if self.lengths else {}

        def of(node: Expression) -> set[str]:
            return set[str]().union(*(spans.get(name, ()) for name in node.names()))

        for r in self.reductions:
            spans[r.name] = of(r.expression) - {*r.over}
        found = of(expression)
        return tuple(a for a in self.axes if a in found)

    def points_of(self, reduction: Reduction) -> tuple[str, ...]:
        """Return the axes of the points that a reduction reduces, in the operation's order."""
        found = {*self.axes_of(reduction.expression), *reduction.over}
        return tuple(a for a in self.axes if a in found)

    def is_contracted(self, reduction: Reduction) -> bool:
        """Whether it sums products none of whose factors has all axes: never made point by point.

        So of matrix products; a sum over j of x[i,j] * w[j] has no more points than x.
        """
        spans = [{*self.axes_of(factor)} for factor in reduction.factors]
        every = set[str]().union(*spans)
        return reduction.operator == "add" and {*reduction.over} <= every and every not in spans

    def depth(self, sizes: Mapping[str, int]) -> int:
        """Return how many terms the longest reduction has."""
        return max((math.prod(sizes[a] for a in r.over) for r in self.reductions), default=1)

    def flops(self, sizes: Mapping[str, int]) -> float:
        """Return the arithmetic operations, a nominal count.

        It is what contractions multiply and add, if there are any, at points that the mask shows;
        else the operators of all reductions, or of the epilogue alone.
        """
        contracted = [r for r in self.reductions if self.is_contracted(r)]
        if contracted:
            return sum(len(r.factors) * self._shown(self.points_of(r), sizes) for r in contracted)
        points = [r.expression for r in self.reductions] or [e for _, e in self.results]
        nodes = sum(1 for e in points for n in e.nodes() if isinstance(n, Apply))
        return self._count(self.axes, sizes) * (nodes + len(self.reductions))

    @property
    def mask(self) -> Expression | None:
        """The condition where the reductions' points count, if there is one: elsewhere 0 or -inf.

        Points of several masks all count.
        """
        nodes = (n for r in self.reductions for n in r.expression.nodes())
        found = {
            n.arguments[0]
            for n in nodes
            if isinstance(n, Apply) and n.operator == "where"
            if n.arguments[2] in (Constant(0.0), Constant(-math.inf))
        }
        return found.pop() if len(found) == 1 else None

    def _shown(self, axes: tuple[str, ...], sizes: Mapping[str, int]) -> float:
        """Return how many points of some axes the mask shows; all, if it is of other axes."""
        moving = self.axes_of(self.mask) if self.mask else ()
        if self.mask is None or not moving or not {*moving} <= {*axes}:
            return self._count(axes, sizes)
        rest = tuple(a for a in axes if a not in moving)
        known: dict[str, Any] = dict(sizes)
        if (long := self.lengths) and long.name in self.mask.names():
            apart = (1,) * (len(moving) - moving.index(long.rows) - 2)
            known[long.name] = np.array(long.of(sizes)).reshape(-1, *apart)
        return self._count(rest, sizes) * _true_points(self.mask, moving, known)

    def _count(self, axes: tuple[str, ...], sizes: Mapping[str, int]) -> float:
        """Return how many points there are; a row's group is one of many."""
        found = self.groups
        if found and found.rows in axes:
            axes = tuple(a for a in axes if a != found.axis)
        return math.prod(float(sizes[a]) for a in axes)

    def bytes(self, sizes: Mapping[str, int]) -> float:
        """Return the fewest bytes to move: every operand once, of pages those of each block."""
        shapes = self.shapes({n: x for n, x in sizes.items() if n != POOL})
        return float(
            sum(ARRAY_DTYPES[o.dtype].bytes * float(np.prod(shapes[o.name])) for o in self.operands)
        )

    def reference(
        self,
        inputs: Mapping[str, Array],
        scalars: Mapping[str, float] | None = None,
        algebra: Algebra = FLOATS,
        *,
        loose: Sequence[str] = (),
        independent: tuple[float, float] | None = None,
    ) -> dict[str, Floats]:
        """Compute in float64; returns the outputs and, of each, what errors are relative to.

        That is S, under "scale of c" for an output c: to first order, rounding every number on the
        way by u moves an element by at most u S (``Expression.rounded``).  For a matmul it is
        |A||B|.  CuPy arrays are computed where they are, and give CuPy arrays.  In an exact algebra
        there are no errors, and S is 0.
        ``loose``, sums that no reduction reads: under "T of c" is how far output c moves, by the
        unit, if each of them is off by a unit of its root sum of squares.
        ``independent``, a unit u and a floor: S of roundings that have signs of their own: a sum is
        off by the root of the sum of squares of what its terms are off by; a contraction of K
        products by that, and by sqrt(K) of the root sum of squares of the products.  A factor that
        is made of earlier reductions is off by the floor, too, or by all of it: u S has that once.
        """
        if self.groups:
            if independent:
                raise self._error("errors by groups are not independent; leave it out")
            return self._of_groups(self.groups, inputs, scalars, algebra, loose)
        if self.pages:
            whole, inputs = self._gathered(self.pages, inputs)
            return whole.reference(inputs, scalars, algebra, loose=loose, independent=independent)
        if self.lengths and self.lengths.name not in inputs:
            raise self._error(f"no input {self.lengths.name}; give the rows' lengths")
        exact = {n: x.astype(np.float64) for n, x in inputs.items()}
        sizes = self.sizes({n: x.shape for n, x in exact.items()})
        if missing := [a for a in self.axes if a not in sizes]:
            raise self._error(f"no input has the axis {missing[0]}; its size is not known")
        found: dict[str, Floats] = {}
        points, _ = _spans(self)
        host = all(isinstance(x, np.ndarray) for x in exact.values())
        for block in self._blocks(sizes, _BLOCK if host else _LAUNCHED_BLOCK):
            here = {
                o.name: exact[o.name][tuple(slice(*block[a]) for a in o.axes)]
                for o in (*self.inputs, *self.indices)
            }
            with np.errstate(all="ignore"):  # as the hardware: infinities are numbers
                numbers = {**sizes, **(scalars or {})}
                parts = self._of_block(here, block, points, numbers, algebra, loose, independent)
            for output, of in zip(self.outputs, parts, strict=True):
                at = tuple(slice(*block[a]) for a in output.axes)
                c = output.name
                for name, part in zip((c, f"scale of {c}", f"T of {c}"), of, strict=False):
                    if name not in found:
                        shape = self.shapes(sizes)[output.name]
                        found[name] = np.empty_like(here[self.inputs[0].name], shape=shape)
                    found[name][at] = part
        return found

    def _gathered(
        self, pages: Pages, inputs: Mapping[str, Array]
    ) -> tuple[Operation, dict[str, Array]]:
        """Return the operation of inputs that lie in one piece, and these, read by the table."""
        if pages.table not in inputs:
            raise self._error(f"no input {pages.table}; give the table of pages")
        self.sizes({n: x.shape for n, x in inputs.items()})
        found = {name: array for name, array in inputs.items() if name != pages.table}
        for name in pages.inputs:
            axes = self.operand(name).axes
            found[name] = pages.gathered(axes, inputs[name], inputs[pages.table])
        return replace(self, pages=None), found

    def _of_groups(
        self,
        groups: Groups,
        inputs: Mapping[str, Array],
        scalars: Mapping[str, float] | None,
        algebra: Algebra,
        loose: Sequence[str],
    ) -> dict[str, Floats]:
        """Compute group by group: of each its rows, and what has the axis of groups at it."""
        if groups.ends not in inputs:
            raise self._error(f"no input {groups.ends}; give the groups' ends")
        sizes = self.sizes({n: x.shape for n, x in inputs.items()})
        ends = [int(x) for x in inputs[groups.ends]]
        groups.require(ends, sizes)
        plain = replace(self, groups=None, axes=tuple(a for a in self.axes if a != groups.axis),
                        inputs=tuple(replace(o, axes=tuple(a for a in o.axes if a != groups.axis))
                                     for o in self.inputs))  # fmt: skip
        found: dict[str, Floats] = {}
        for group, (start, end) in enumerate(zip((0, *ends), ends, strict=False)):
            if start == end:
                continue
            here = {
                o.name: inputs[o.name][tuple(
                    group if a == groups.axis else slice(start, end) if a == groups.rows
                    else slice(None) for a in o.axes)]
                for o in self.inputs
            }  # fmt: skip
            for name, part in plain.reference(here, scalars, algebra, loose=loose).items():
                output = self.operand(name.rpartition(" ")[2])
                if name not in found:
                    found[name] = np.empty_like(part, shape=self.shapes(sizes)[output.name])
                at = (slice(start, end) if a == groups.rows else slice(None) for a in output.axes)
                found[name][tuple(at)] = part
        return found

    def _blocks(
        self, sizes: Mapping[str, int], largest: int
    ) -> Iterator[dict[str, tuple[int, int]]]:
        """Yield the blocks in which the output is made: a range along each axis.

        Axes that no reduction is over are cut until no array on the way is larger than ``largest``
        elements and than every input.
        """
        _, made = _spans(self)
        reduced = {a for r in self.reductions for a in r.over}
        steps = dict(sizes)
        have = {a for o in self.outputs for a in o.axes}
        for axis in (a for a in self.axes if a in have and a not in reduced):
            while steps[axis] > 1:
                inputs = (self._count(o.axes, steps) for o in self.inputs)
                if max(self._count(m, steps) for m in made) <= max(largest, *inputs):
                    break
                steps[axis] = -(-steps[axis] // 2)
        cuts = [
            [(i, min(i + s, sizes[a])) for i in range(0, sizes[a], s)] for a, s in steps.items()
        ]
        for block in product(*cuts):
            yield dict(zip(steps, block, strict=True))

    def _of_block(
        self,
        inputs: Mapping[str, Array],
        block: Mapping[str, tuple[int, int]],
        points: Sequence[frozenset[str] | None],
        numbers: Mapping[str, float],
        algebra: Algebra,
        loose: Sequence[str],
        independent: tuple[float, float] | None,
    ) -> list[tuple[Number, ...]]:
        """Return a block of each output, its S, and T if sums are loose.

        ``points``: the axes of each reduction's points, None if it is contracted; ``numbers``:
        sizes and scalars.
        """
        extents = {a: stop - start for a, (start, stop) in block.items()}
        values: dict[str, Number] = {**numbers}
        values |= {o.name: self._spread(o.axes, inputs[o.name]) for o in self.inputs}
        for o in self.indices:  # of i32, which conditions compare as such
            whole = np.asarray(inputs[o.name], like=inputs[self.inputs[0].name]).astype(np.int64)
            values[o.name] = self._spread(o.axes, whole)
        like, errors = inputs[self.inputs[0].name], dict[str, Number]()
        squares = dict[str, Number]()
        for axis in self.axes:
            values[str(Index(axis))] = self._spread((axis,), np.arange(*block[axis], like=like))

        @cache  # attention's weights are in two sums
        def at(expression: Expression) -> tuple[Number, Number]:
            if algebra.exact:
                return expression.evaluate(values, algebra), 0.0
            return expression.rounded(values, errors)

        for r, spans in zip(self.reductions, points, strict=True):
            over = tuple(self.axes.index(a) for a in r.over)
            if spans is None:
                pairs = [at(factor) for factor in r.factors]
                values[r.name] = _contracted([x for x, _ in pairs], over, algebra)
                if r.name in loose:
                    squares[r.name] = _contracted([x * x for x, _ in pairs], over, algebra)
                if not algebra.exact and independent:
                    unit, floor = independent
                    pairs = [
                        (x, e + np.minimum(floor, np.abs(x)) / unit)
                        if errors.keys() & {*factor.names()} else (x, e)
                        for factor, (x, e) in zip(r.factors, pairs, strict=True)
                    ]  # fmt: skip
                    errors[r.name] = _contracted_noise(pairs, over)
                elif not algebra.exact:
                    errors[r.name] = _contracted_error(pairs, over)
                continue
            point, error = at(r.expression)
            rounds = r.operator == "add" and not algebra.exact  # the sum, too
            if rounds:
                error = np.maximum(np.abs(point), error)
            if rounds and independent:
                error = error * error
            shape = tuple(extents[a] if a in spans else 1 for a in self.axes)
            values[r.name], errors[r.name] = (
                algebra.total(r.operator, np.broadcast_to(x, shape), over) if np.ndim(x) else x
                for x in (np.broadcast_to(point, shape), error)
            )
            if rounds and independent:
                errors[r.name] = np.sqrt(errors[r.name])
            if r.name in loose:
                whole = np.broadcast_to(point * point, shape)
                squares[r.name] = algebra.total("add", whole, over)
        found = []
        for output, epilogue in self.results:
            gone = tuple(i for i, a in enumerate(self.axes) if a not in output.axes)
            ends: tuple[Any, ...] = at(epilogue)  # of CuPy, too
            if loose:
                moved: Number = 0.0 * ends[0]
                for name in squares:
                    off = values[name] + _STEP * np.sqrt(squares[name])
                    moved = moved + np.abs(
                        epilogue.evaluate({**values, name: off}, algebra) - ends[0]
                    )
                ends = *ends, moved / _STEP
            found.append(
                tuple(x.squeeze(axis=gone) if np.ndim(x) == len(self.axes) else x for x in ends)
            )
        return found

    def _spread(self, axes: tuple[str, ...], array: Array) -> Array:
        """Give an array the axes of the operation, in order, length 1 where it has none."""
        order = [axes.index(a) for a in self.axes if a in axes]
        shape = [array.shape[axes.index(a)] if a in axes else 1 for a in self.axes]
        return array.transpose(order).reshape(shape)

    def __str__(self) -> str:
        names = {o.name: str(o) for o in self.inputs} if self.reductions else {}

        def spelled(expression: Expression) -> str:
            return re.sub(r"\w+", lambda m: names.get(m[0], m[0]), str(expression))

        head, words = f"{self.name}: {self.output} = ", {"add": "sum", "max": "max"}
        parts = [
            ("" if value(r.name) == ACC else f"{r.name}: ")
            + f"{words[r.operator]} over {','.join(r.over)} of {spelled(r.expression)}"
            for r in self.reductions
        ]
        text = head + "; ".join(parts)
        if not parts:
            text += str(self.epilogue)
        elif self.epilogue != ACC:
            text += f", then {self.epilogue}"
        if self.groups:
            text += f", {self.groups.axis} by {self.groups.ends} of {self.groups.rows}"
        if self.pages:
            pages = self.pages
            text += f", {' and '.join(pages.inputs)} in pages of {pages.size} by {pages.table}"
        if self.lengths:
            text += f", {self.lengths.name} of {self.lengths.rows} along {self.lengths.axis}"
        return "; ".join([text, *(f"{output} = {epilogue}" for output, epilogue in self.further)])


@lru_cache(64)
def _spans(operation: Operation) -> tuple[tuple[frozenset[str] | None, ...], set[tuple[str, ...]]]:
    """Return the axes of each reduction's points, None if it is contracted; and of every array."""
    points = tuple(
        None if operation.is_contracted(r) else operation.points_of(r) for r in operation.reductions
    )
    expressions = [f for r in operation.reductions for f in (*r.factors, value(r.name))]
    made = {*(o.axes for o in operation.outputs), *map(operation.axes_of, expressions)}
    made |= {axes for axes in points if axes is not None}
    return tuple(None if axes is None else frozenset(axes) for axes in points), made


def _true_points(condition: Expression, axes: Sequence[str], sizes: Mapping[str, int]) -> int:
    """Count the points of axes where a condition holds: along the last, comparisons cut a range.

    >>> causal = parse("index(n) <= index(m)")
    >>> _true_points(causal, ("m", "n"), {"m": 3, "n": 4})
    6
    """
    *outer, inner = axes
    values: dict[str, Number] = dict(sizes)
    places = np.ix_(*(np.arange(sizes[a]) for a in outer))
    values |= {str(Index(a)): place for a, place in zip(outer, places, strict=True)}
    low: Integers = np.zeros([sizes[a] for a in outer], np.int64)
    high: Integers = low + sizes[inner] - 1
    for compared in comparisons(condition):
        strict = int(compared.operator == "lt")
        left = apply("sub", *compared.arguments[::-1]) - strict  # true where it is 0 or more
        first, second = (
            left.evaluate({**values, str(Index(inner)): at}, INTEGERS) for at in (0, 1)
        )
        slope = int(np.max(second - first))  # the same everywhere, as the comparison is affine
        if slope > 0:
            low = np.maximum(low, -(first // slope))
        elif slope < 0:
            high = np.minimum(high, first // -slope)
        else:
            high = np.where(np.asarray(first) >= 0, high, -1)
    return int(np.maximum(high - low + 1, 0).sum())


def _contracted(factors: Sequence[Number], over: tuple[int, ...], algebra: Algebra) -> Number:
    """Sum products of factors over dimensions; the pair with the smallest product goes first.

    Factors have all dimensions, each of its length or 1; the result has length 1 where it is
    summed.
    """
    left = list(factors)
    while len(left) > 1:
        options = []
        for pair in combinations(range(len(left)), 2):
            rest = [np.shape(x) for i, x in enumerate(left) if i not in pair]
            now = [d for d in over if all(shape[d : d + 1] in ((), (1,)) for shape in rest)]
            shape = np.broadcast_shapes(*(np.shape(left[i]) for i in pair))
            size = math.prod(n for d, n in enumerate(shape) if d not in now)
            options.append((size, pair, now))
        _, (i, j), now = min(options)
        both = _multiplied(left[i], left[j], now, algebra)
        left = [*(x for at, x in enumerate(left) if at not in (i, j)), both]
    return left[0]


def _multiplied(a: Any, b: Any, over: Sequence[int], algebra: Algebra) -> Any:
    """Return the products of two factors, summed over dimensions: as matrices, in batches."""
    alone = [[d for d in over if np.ndim(x) and x.shape[d] > 1] for x in (a, b)]
    inner = [d for d in alone[0] if d in alone[1]]
    a, b = (
        algebra.total("add", x, tuple(mine)) if (mine := [d for d in ds if d not in inner]) else x
        for x, ds in zip((a, b), alone, strict=True)
    )
    if not inner:
        return algebra.operators["mul"](a, b)
    outer = [d for d in range(a.ndim) if d not in inner]
    batch = [d for d in outer if a.shape[d] == b.shape[d]]
    rows, columns = ([d for d in outer if d not in batch and x.shape[d] == 1] for x in (b, a))

    def matrices(x: Array, one: list[int], other: list[int], absent: list[int]) -> Array:
        lengths = [math.prod(x.shape[d] for d in group) for group in (batch, one, other)]
        return x.transpose(*batch, *one, *other, *absent).reshape(lengths)

    left = matrices(a, rows, inner, columns)
    product = algebra.contract(np.matmul, left, matrices(b, inner, columns, rows))
    order = [*batch, *rows, *columns, *inner]
    shape = [1 if d in inner else max(a.shape[d], b.shape[d]) for d in order]
    return product.reshape(shape).transpose([order.index(d) for d in range(a.ndim)])


def _contracted_error(pairs: Sequence[tuple[Number, Number]], over: tuple[int, ...]) -> Number:
    """Return S of a contraction: each product rounds, each factor passes on what it is off by."""
    sizes = [np.abs(x) for x, _ in pairs]
    total = (len(pairs) - 1) * _contracted(sizes, over, FLOATS)
    for i, (_, off) in enumerate(pairs):
        if np.ndim(off) or off:
            total = total + _contracted([*sizes[:i], off, *sizes[i + 1 :]], over, FLOATS)
    return total


def _contracted_noise(pairs: Sequence[tuple[Number, Number]], over: tuple[int, ...]) -> Number:
    """Return S of a contraction whose roundings have signs of their own; see ``reference``."""
    squares = [x * x for x, _ in pairs]
    shape = np.broadcast_shapes(*(np.shape(x) for x in squares))
    total = math.prod(shape[d] for d in over) * _contracted(squares, over, FLOATS)
    for i, (_, off) in enumerate(pairs):
        if np.ndim(off) or off:
            noise = [*squares[:i], off * off, *squares[i + 1 :]]
            total = total + _contracted(noise, over, FLOATS)
    found: Number = np.sqrt(total)
    return found


@dataclass(frozen=True, slots=True)
class Problem:
    """An operation at given sizes: what a search is about.

    ``ends``: where its groups end, if it has some; else they have equal rows.  Raises
    OperationError for a size that is missing, of no axis, or no whole number from 1 on, and for
    ends that are not those of groups of all rows.
    """

    operation: Operation
    extents: tuple[tuple[str, int], ...]
    ends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_kind("problem: operation", self.operation, Operation, OperationError)
        require_kind("problem: sizes", self.extents, tuple, OperationError)
        name, axes, sizes = self.operation.name, self.operation.axes, dict(self.extents)
        for axis in (*(a for a in sizes if a not in axes), *axes):
            if axis not in axes or axis not in sizes:
                what = "no such axis" if axis in sizes else "not given"
                raise OperationError(f"{name}: size {axis}: {what}; give {', '.join(axes)}")
            if type(sizes[axis]) is not int:
                raise OperationError(
                    f"{name}: size {axis} is {sizes[axis]!r}; every size is an int, at least 1"
                )
            if not 1 <= sizes[axis] <= LARGEST_SIZE:
                got = sizes[axis] if abs(sizes[axis]) < 2**64 else "beyond 64 bits"
                raise OperationError(
                    f"{name}: size {axis} is {got}; every size has to be at least 1, and at most "
                    f"{LARGEST_SIZE}: coordinates and parameters of a kernel have 32 bits"
                )
        if self.operation.pages:
            self.operation.pages.blocks(sizes[self.operation.pages.axis])
        require_kind("problem: ends", self.ends, tuple, OperationError)
        if self.ends and self.operation.groups is None:
            raise OperationError(f"{name}: it has no groups; give no ends")
        if self.ends and self.operation.groups:
            for end in self.ends:
                require_kind("problem: an end", end, int, OperationError)
            self.operation.groups.require(self.ends, sizes)

    @property
    def sizes(self) -> dict[str, Any]:
        """The size of each axis; and the groups' ends by their name, if they are given."""
        groups = self.operation.groups
        return {**dict(self.extents), **({groups.ends: self.ends} if groups and self.ends else {})}

    @staticmethod
    def of(operation: Operation, /, **sizes: Any) -> Problem:
        """Make a problem: ``Problem.of(matmul("f32"), m=4096, n=4096, k=4096)``.

        Groups' ends stand among the sizes, as ``ends=(512, 512, 2048)``.
        """
        require_kind("problem: operation", operation, Operation, OperationError)
        order = {a: i for i, a in enumerate(operation.axes)}
        ends = sizes.pop(operation.groups.ends, ()) if operation.groups else ()
        return Problem(
            operation,
            tuple(sorted(sizes.items(), key=lambda item: order.get(item[0], len(order)))),
            tuple(ends) if isinstance(ends, Iterable) else ends,
        )


def matmul(
    dtype: str = "f32",
    output: str | None = None,
    layout: str = "nn",
    *,
    scaled: bool = False,
    scales: bool = False,
    bias: bool = False,
    activation: str = "",
    gate: str = "",
    batched: bool = False,
) -> Operation:
    """``c[m,n] = sum over k of a[m,k] * b[k,n]``, all row-major, and what is fused with it.

    ``layout`` is BLAS's pair of letters for a row-major caller: "t" for an input that is given
    transposed, a as a[k,m], b as b[n,k]: "nt" is a linear layer.  Without an ``output`` c has the
    inputs' type; for those of 8 bits bf16, for tf32 f32.  ``scales``: the sum times scale_a[m] and
    scale_b[n], both f32, as of e4m3 by rows; ``scaled``: alpha times that plus beta times an input
    d[m,n]; ``bias``: plus an input bias[n]; then the ``activation``.
    ``gate`` names the activation of a second product, which it is times: silu(a gate) (a b), with
    an input gate of b's shape (and scale_gate[n]): SwiGLU.  ``batched``: a, b, gate, d and c have a
    first axis l.  Raises OperationError for others.

    >>> print(matmul("bf16", layout="nt", bias=True, activation="relu").epilogue)
    max((acc + bias), 0.0)
    >>> print(matmul("bf16", gate="relu"))
    matmul: c[m,n] bf16 = sum over k of (a[m,k] bf16 * b[k,n] bf16); \
gate_acc: sum over k of (a[m,k] bf16 * gate[k,n] bf16), then (max(gate_acc, 0.0) * acc)
    """
    texts = {"layout": layout, "activation": activation, "gate": gate, "dtype": dtype}
    for what, text in texts.items():
        require_kind(f"matmul: {what}", text, str, OperationError)
    if layout not in LAYOUTS:
        raise OperationError(f"matmul: layout {layout!r}; there are {', '.join(LAYOUTS)}")
    for what in ("activation", "gate"):
        if texts[what] and texts[what] not in ACTIVATIONS:
            raise OperationError(f"matmul: {what} {texts[what]}; "
                                 f"{nearest(texts[what], ACTIVATIONS)}")  # fmt: skip
    if gate and (scaled or bias or activation):
        raise OperationError(f"matmul: gate {gate} with an activation, a bias or alpha and beta; "
                             "it is the second product's activation: give it alone")  # fmt: skip
    narrow = output or {"e4m3": "bf16", "e5m2": "bf16", "tf32": "f32"}.get(dtype, dtype)
    every = ("l",) if batched else ()
    a, b = (("m", "k"), ("k", "n"))
    weights = ("b", "gate") if gate else ("b",)
    inputs = [Operand("a", every + (a[::-1] if layout[0] == "t" else a), dtype)]
    inputs += [Operand(w, every + (b[::-1] if layout[1] == "t" else b), dtype)
               for w in weights]  # fmt: skip
    sums: dict[str, Expression] = {w: value("gate_acc") if w == "gate" else ACC for w in weights}
    if scales:
        inputs.append(Operand("scale_a", ("m",), "f32"))
        for w in weights:
            inputs.append(Operand(f"scale_{w}", ("n",), "f32"))
            sums[w] = sums[w] * value("scale_a") * value(f"scale_{w}")
    result = sums["b"]
    if scaled:
        inputs.append(Operand("d", (*every, "m", "n"), narrow))
        result = value("alpha") * result + value("beta") * value("d")
    if bias:
        inputs.append(Operand("bias", ("n",), narrow))
        result = result + value("bias")
    if gate:
        result = ACTIVATIONS[gate](sums["gate"]) * result
    return Operation(
        name="matmul",
        axes=(*every, "m", "n", "k"),
        inputs=tuple(inputs),
        output=Operand("c", (*every, "m", "n"), narrow),
        reductions=tuple(
            Reduction("gate_acc" if w == "gate" else "acc", "add", value("a") * value(w), ("k",))
            for w in weights
        ),
        epilogue=ACTIVATIONS[activation](result) if activation else result,
        scalars=("alpha", "beta") if scaled else (),
    )


def grouped_matmul(
    dtype: str = "bf16",
    output: str | None = None,
    layout: str = "nt",
    *,
    scales: bool = False,
    bias: bool = False,
    activation: str = "",
    gate: str = "",
) -> Operation:
    """``c[m,n] = sum over k of a[m,k] * b[g,k,n]``, g the group of row m: a mixture's experts.

    ``ends[g]`` in i32 says before which row each group ends, as ``offs`` of PyTorch's
    ``_grouped_mm``; the last ends with the last row, and groups may be empty.  b is given
    ``b[g,n,k]`` with the layout "nt", ``b[g,k,n]`` with "nn".  The others are as of ``matmul``;
    each group has its own gate[g,..], bias[g,n], scale_b[g,n] and scale_gate[g,n].  Raises
    OperationError as ``matmul`` does.

    >>> print(grouped_matmul())
    grouped: c[m,n] bf16 = sum over k of (a[m,k] bf16 * b[g,n,k] bf16), g by ends of m
    """
    plain = matmul(dtype, output, layout, scales=scales, bias=bias, activation=activation,
                   gate=gate)  # fmt: skip
    if layout[0] != "n":
        raise OperationError(f"grouped_matmul: layout {layout}; rows of a lie along k, give nt, nn")
    return replace(
        plain,
        name="grouped",
        axes=("g", *plain.axes),
        inputs=tuple(o if "m" in o.axes else replace(o, axes=("g", *o.axes)) for o in plain.inputs),
        groups=Groups("g", "m", "ends"),
    )


def is_matmul(operation: Operation) -> bool:
    """Whether an operation is a matmul: of any layout, batched, grouped; what ends it is free."""
    return _form(operation) in _forms("l" in operation.axes)


def _form(of: Operation) -> tuple[object, ...]:
    """Return what makes an operation a matmul."""
    arrays = [(o.name, o.axes) for o in (*of.inputs[: len(of.reductions) + 1], *of.outputs)]
    return of.axes, of.reductions, arrays, of.groups, of.pages, of.lengths


@cache
def _forms(batched: bool) -> tuple[tuple[object, ...], ...]:
    """Return the forms of all matmuls, which each term of a space is compared with."""
    return tuple(
        _form(of)
        for gate in ("", "silu")
        for of in (*(matmul(layout=t, gate=gate, batched=batched) for t in LAYOUTS),
                   *(grouped_matmul(layout=t, gate=gate) for t in ("nn", "nt")))
    )  # fmt: skip


ARRAYS = ("u", "v", "w", "x", "z")
"""Names that are arrays in an elementwise expression, if it is not said which; y is the result."""


def elementwise(
    expression: Expression | str, *, inputs: tuple[str, ...] = (), dtype: str = "f32"
) -> Operation:
    """``y[i] = expression`` of one-dimensional ``inputs``; every other name is a scalar.

    A string is parsed.  Without ``inputs`` they are what it reads of u, v, w, x and z.  Raises
    OperationError for an expression that makes no sense, and if it reads no input.

    >>> print(elementwise("a*x + b").scalars)
    ('a', 'b')
    """
    if isinstance(expression, str):
        expression = parse(expression)
    require_kind("elementwise: expression", expression, Expression, OperationError)
    require_names("elementwise: inputs", inputs, OperationError)
    names = tuple(expression.names())
    inputs = inputs or tuple(n for n in names if n in ARRAYS)
    if unread := [n for n in inputs if n not in names] or ([] if inputs else list(ARRAYS)):
        raise OperationError(
            f"elementwise {expression}: it does not read {' or '.join(unread)}; "
            "give an expression of arrays, as a*x + b, or name its inputs"
        )
    scalars = tuple(n for n in names if n not in inputs and n != str(Index("i")))
    return Operation(
        name="elementwise",
        axes=("i",),
        inputs=tuple(Operand(n, ("i",), dtype) for n in inputs),
        output=Operand("y", ("i",), dtype),
        epilogue=expression,
        scalars=scalars,
    )


def reduce(
    summand: Expression,
    epilogue: Expression,
    *,
    inputs: tuple[Operand, ...],
    output: Operand,
    name: str = "reduce",
    earlier: tuple[Reduction, ...] = (),
) -> Operation:
    """Sum each row ``i`` over ``j``, as acc, and write ``epilogue`` of the sum and the inputs.

    ``earlier`` reductions come before the sum, which may read them.
    """
    require_kind("reduce: earlier", earlier, tuple, OperationError)
    reductions = (*earlier, Reduction("acc", "add", summand, ("j",)))
    known = {o.name for o in inputs} | {"i", "j"} | {r.name for r in reductions}
    every = (*(r.expression for r in reductions), epilogue)
    names = (n for expression in every for n in expression.names() if "(" not in n)
    return Operation(
        name=name,
        axes=("i", "j"),
        inputs=inputs,
        output=output,
        reductions=reductions,
        epilogue=epilogue,
        scalars=tuple(dict.fromkeys(n for n in names if n not in known)),
    )


def rmsnorm(dtype: str = "f32") -> Operation:
    """``y[i,j] = x[i,j] w[j] / sqrt(mean of x[i,:]^2 + eps)``, eps a scalar."""
    x, w, mean = value("x"), value("w"), ACC / value("j")
    y = x * apply("rsqrt", mean + value("eps")) * w
    inputs = Operand("x", ("i", "j"), dtype), Operand("w", ("j",), dtype)
    return reduce(x * x, y, inputs=inputs, output=Operand("y", ("i", "j"), dtype), name="rmsnorm")


def rmsnorm_matmul(dtype: str = "bf16", output: str | None = None, layout: str = "nt") -> Operation:
    """``c[m,n] = sum over k of a[m,k] b[k,n] / sqrt(mean of a[m,:]^2 + eps)``: RMSNorm, a matmul.

    The norm's weight w[k] is a factor of b's rows, so it is given with b, once for all calls.
    Types and layouts are those of ``matmul``; eps is a scalar.

    >>> print(rmsnorm_matmul())
    rmsnorm_matmul: c[m,n] bf16 = squares: sum over k of (a[m,k] bf16 * a[m,k] bf16); \
sum over k of (a[m,k] bf16 * b[n,k] bf16), then (acc * rsqrt(((squares / k) + eps)))
    """
    plain = matmul(dtype, output, layout)
    squares = Reduction("squares", "add", value("a") * value("a"), ("k",))
    norm = apply("rsqrt", value("squares") / value("k") + value("eps"))
    return replace(plain, name="rmsnorm_matmul", reductions=(squares, *plain.reductions),
                   epilogue=ACC * norm, scalars=("eps",))  # fmt: skip


def softmax(dtype: str = "f32") -> Operation:
    """``y[i,j] = exp(x[i,j] - top) / sum over j of exp(x[i,j] - top)``, top the row's maximum."""
    x, top = value("x"), value("top")
    below = (x - top) * _LOG2_E
    return reduce(
        apply("ex2.ftz", below),  # the sum is 1 or more: subnormal terms are nothing in it
        apply("ex2", below) * apply("rcp", ACC),
        inputs=(Operand("x", ("i", "j"), dtype),),
        output=Operand("y", ("i", "j"), dtype),
        name="softmax",
        earlier=(Reduction("top", "max", x, ("j",)),),
    )


def attention(
    dtype: str = "bf16", *, mask: str = "none", scale: bool = True, lse: bool = False,
    pages: int = 0, lengths: bool = False, scales: bool = False,
) -> Operation:  # fmt: skip
    """``o = softmax(scale q k^T + mask) v``, for each of l batches, h kv heads and g query heads.

    ``q[l,h,g,m,d]``, ``k[l,h,n,d]``, ``v[l,h,n,e]``, ``o[l,h,g,m,e]``: m queries, n keys; the g
    query heads of a kv head share its keys.  Reductions: s, the scores; top, the maximum of what
    the mask shows; total and acc, the sums of 2^((s - top) scale log2 e) and of it times v.
    ``scale``: a positive scalar of that name, usually 1 / sqrt(d); else 1.  Masks:

    - "none";
    - "causal": query i sees key j if j <= i + (n - m), so that the last ones meet;
    - "window:LEFT:RIGHT": if i + (n - m) - LEFT <= j <= i + (n - m) + RIGHT.

    A query that sees no key gives 0, without a NaN on the way: top is never below the least number
    of fp32, and rcp0 is 0 at 0.  ``lse``: a second output ``lse[l,h,g,m]`` in f32, the natural
    logarithm of the sum of exp(scale s) over the keys that a query sees; -inf if there is none.
    ``pages``: keys and values lie in pages of so many, k[page,h,key,d] and v[page,h,key,e], and
    ``table[l,block]`` in i32 says in which (``tinygpu.term.pages``); n is a multiple of it.
    ``lengths``: sequence l has ``lengths[l]`` keys, in i32, and masks have that in the place of n.

    With e4m3 o is bf16, and v is given with its keys contiguous, ``v[l,h,e,n]``: products of 8 bits
    take what they sum over so.  ``scales``: q, k and v are times scale_q[l,h], scale_k[l,h] and
    scale_v[l,h] in f32, by which they were divided before they were rounded; of those of q and k
    the sizes, so that a maximum of s is one of the powers.
    Raises OperationError for another mask, for other types of 8 bits and pages or lengths of e4m3,
    and for pages of no multiple of 16.

    >>> print(attention(mask="causal").mask)
    (index(n) <= (index(m) + (n - m)))

    Source: T. Dao, "FlashAttention-2", arXiv:2307.08691, section 3; FlashAttention's
    ``flash_attn_func`` for where masks are aligned and what an empty row gives.
    """
    require_kind("attention: dtype", dtype, str, OperationError)
    require_kind("attention: mask", mask, str, OperationError)
    if dtype not in ("f16", "bf16", "f32", "e4m3"):
        raise OperationError(
            f"attention: dtype {dtype}; there are f16, bf16, f32, e4m3; convert the inputs"
        )
    require_kind("attention: pages", pages, int, OperationError)
    if pages < 0 or pages % _PAGE_UNIT:
        raise OperationError(
            f"attention: pages of {pages} keys; give a multiple of {_PAGE_UNIT}, as 64: a page is "
            "moved in boxes of so many lines"
        )
    if dtype == "e4m3" and (pages or lengths):
        raise OperationError(
            f"attention: dtype e4m3 with {'pages' if pages else 'lengths'}; give bf16 or f16"
        )
    long = Lengths("n", "l", "lengths") if lengths else None
    shown, s = _shows(mask, long), value("s")
    seen = s if shown is None else apply("where", shown, s, -math.inf)
    top = apply("max", value("top"), _LEAST)
    factor = value("scale") * _LOG2_E if scale else Constant(_LOG2_E)
    if scales:
        factor = factor * apply("abs", value("scale_q")) * apply("abs", value("scale_k"))
    weight = apply("ex2.ftz", (seen - top) * factor)
    logarithm = (top * factor + apply("lg2", value("total"))) * _LN2
    narrow = dtype == "e4m3"
    shapes = {"q": "lhgmd", "k": "lhnd", "v": "lhen" if narrow else "lhne"}
    inputs = [Operand(name, tuple(axes), dtype) for name, axes in shapes.items()]
    inputs += [Operand(f"scale_{name}", tuple("lh"), "f32") for name in shapes if scales]
    result = ACC * apply("rcp0", value("total"))
    return Operation(
        name="attention",
        axes=tuple("lhgmnde"),
        inputs=tuple(inputs),
        output=Operand("o", tuple("lhgme"), "bf16" if narrow else dtype),
        reductions=(
            Reduction("s", "add", value("q") * value("k"), ("d",)),
            Reduction("top", "max", seen, ("n",)),
            Reduction("total", "add", weight, ("n",)),
            Reduction("acc", "add", weight * value("v"), ("n",)),
        ),
        epilogue=result * value("scale_v") if scales else result,
        scalars=("scale",) if scale else (),
        further=((Operand("lse", tuple("lhgm"), "f32"), logarithm),) if lse else (),
        pages=Pages("n", "l", pages, "table", ("k", "v")) if pages else None,
        lengths=long,
    )


def _shows(mask: str, lengths: Lengths | None) -> Expression | None:
    """Return the condition under which query m sees key n; None for all keys."""
    keys, key = value(lengths.name if lengths else "n"), Index("n")
    last = Index("m") + (keys - value("m"))
    there = apply("lt", key, keys) if lengths else None
    if mask == "none":
        return there
    if mask == "causal":
        return apply("le", key, last)
    if found := re.fullmatch(r"window:(\d{1,9}):(\d{1,9})", mask):
        left, right = map(float, found.groups())
        seen = apply("and", apply("le", last - left, key), apply("le", key, last + right))
        return seen if there is None else apply("and", seen, there)
    raise OperationError(
        f"attention: mask {mask!r}; there are none, causal and window:LEFT:RIGHT, as window:127:0"
    )


def window_of(operation: Operation) -> tuple[int | None, int | None]:
    """Return how many keys before and after its last one a query of ``attention`` sees.

    None where no edge is.  Of a mask that is none of ``attention`` it says nothing.

    >>> window_of(attention(mask="causal")), window_of(attention(mask="window:127:0"))
    ((None, 0), (127, 0))
    """
    mask = operation.mask
    if operation.lengths and isinstance(mask, Apply):  # what says that a key is there is no edge
        mask = {"and": mask.arguments[0], "lt": None}.get(mask.operator, mask)
    match mask:
        case None:
            return None, None
        case Apply(
            "and",
            (
                Apply("le", (Apply("sub", (_, Constant(left))), _)),
                Apply("le", (_, Apply("add", (_, Constant(right))))),
            ),
        ):
            return int(left), int(right)
    return None, 0


_PAGE_UNIT = 16
_LEAST = -(2 - 2.0**-23) * 2.0**127
"""The least finite number of fp32."""


def _gated(x: Expression, exponent: Expression) -> Expression:
    """Return x / (1 + 2^exponent), both sides of the quotient scaled.

    So a tail is rounded once, and no subnormal number comes up but as a result.  In fp32 an x from
    2^96 on gives infinity.
    """
    least = math.ldexp(1.0, -_SCALE)
    power = apply("ex2.ftz", exponent + -_SCALE)
    return x * apply("rcp.ftz", power + least) * least


def _gelu(x: Expression) -> Expression:
    """Return the tanh form, x/2 (1 + tanh u), as x sigmoid(2u): no difference of near numbers."""
    return _gated(x, (x * x * 0.044715 + 1.0) * x * (-1.5957691216057306 * _LOG2_E))


_LOG2_E = 1.4426950408889634
_LN2 = 0.6931471805599453
_SCALE = 32  # 2^125 for the least x that silu does not take to 0: its reciprocal is no subnormal
ACTIVATIONS: Mapping[str, Callable[[Expression], Expression]] = {
    "relu": lambda x: apply("max", x, 0.0),
    "gelu": _gelu,
    "silu": lambda x: _gated(x, x * -_LOG2_E),
}
"""What a matmul may end with, by name."""

LAYOUTS = ("nn", "nt", "tn", "tt")
OPERATIONS: Mapping[str, Callable[..., Operation]] = {
    "matmul": matmul,
    "grouped": grouped_matmul,
    "elementwise": elementwise,
    "rmsnorm": rmsnorm,
    "rmsnorm_matmul": rmsnorm_matmul,
    "softmax": softmax,
    "attention": attention,
}
"""Operations by name."""
