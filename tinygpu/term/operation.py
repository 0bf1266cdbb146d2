"""Operations: what a kernel has to compute, apart from how.

An operation has axes; operands, each an index map (the axes that index it, row-major in that
order) and a data type; a ``combine`` expression of one point of the axes; a sum of it over some
axes; and an ``epilogue`` expression of the sum and the operands.  With ``acc`` for the sum,

    acc[free axes] = sum over the other axes of combine(inputs)
    output[output axes] = epilogue(acc, inputs, scalars, sizes)

Other reductions over the same axes, sums or maxima, may come ``before``; what follows names them:

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.errors import OperationError, nearest, require_kind, require_names
from tinygpu.isa.algebra import FLOATS, Algebra
from tinygpu.isa.memory import DTYPES
from tinygpu.term.expression import Expression, apply, parse, value

__all__ = [
    "ACC",
    "ACTIVATIONS",
    "LARGEST_SIZE",
    "OPERATIONS",
    "Operand",
    "Operation",
    "Problem",
    "Reduction",
    "elementwise",
    "is_matmul",
    "matmul",
    "reduce",
    "rmsnorm",
    "softmax",
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
        if self.dtype not in DTYPES:
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
    """A named value: an expression of a point, reduced by "add" or "max" over the reduced axes."""

    name: str
    operator: str
    expression: Expression

    def __post_init__(self) -> None:
        require_kind("reduction: name", self.name, str, OperationError)
        require_kind(f"reduction {self.name}: operator", self.operator, str, OperationError)
        require_kind(f"reduction {self.name}", self.expression, Expression, OperationError)
        if self.operator not in REDUCERS:
            raise OperationError(
                f"reduction {self.name}: {self.operator}; {nearest(self.operator, REDUCERS)}"
            )


REDUCERS: Mapping[str, float] = {"add": 0.0, "max": -math.inf}
"""Operators that reduce, each with its identity."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation; see the module's definition."""

    name: str
    axes: tuple[str, ...]
    inputs: tuple[Operand, ...]
    output: Operand
    combine: Expression
    reduced: tuple[str, ...] = ()
    epilogue: Expression = ACC
    scalars: tuple[str, ...] = ()
    before: tuple[Reduction, ...] = ()

    def __post_init__(self) -> None:
        self._require_kinds()
        before = [r.name for r in self.before]
        names = [*(o.name for o in self.operands), *self.scalars, *self.axes, *before, "acc"]
        for name in names:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", name):
                raise self._error(f"name {name!r}; a name has letters, digits and _")
            if names.count(name) > 1:
                raise self._error(
                    f"{name} is named twice: arrays, scalars, axes and acc, the sum, differ"
                )
        later = [self.output.name, *before, "acc"]  # what an expression may not read, or not yet
        every = [*(r.expression for r in self.before), self.combine, self.epilogue]
        for expression, made in zip(every, [*before, "acc", ""], strict=True):
            known = [name for name in names if name not in later]
            for name in expression.names():
                if name not in known:
                    raise self._error(
                        f"expression names {name!r}, which is no input, scalar or axis; "
                        f"known are {', '.join(sorted(known))}"
                    )
            later = [name for name in later if name != made]
        if "acc" not in self.epilogue.names() or (self.before and not self.reduced):
            raise self._error("the epilogue reads acc, and what comes before it is reduced too")
        listed = [("reduced axes", self.reduced), *((str(o), o.axes) for o in self.operands)]
        for what, axes in listed:
            if missing := [a for a in axes if a not in self.axes]:
                there_are = nearest(missing[0], self.axes)
                raise self._error(f"{what}: axis {missing[0]} is not the operation's; {there_are}")
            if len({*axes}) < len(axes):
                raise self._error(f"{what}: an axis is there twice; give each once")
        kept = tuple(a for a in self.axes if a in self.output.axes or a not in self.reduced)
        if lost := [a for a in kept if a not in self.output.axes]:
            summed = tuple(a for a in self.axes if a not in self.output.axes)
            raise self._error(
                f"{self.output} lacks {', '.join(lost)}, and nothing says that it is reduced; give "
                f"reduced={summed}, or an output with the axes {', '.join(kept)}"
            )
        if self.output.axes != kept:
            raise self._error(
                f"{self.output} has to have the axes {', '.join(kept)}, in this order"
            )

    def _require_kinds(self) -> None:
        """Raise OperationError for a field of another type."""
        require_kind("operation: name", self.name, str, OperationError)
        what = f"operation {self.name}"
        for field in ("axes", "reduced", "scalars"):
            require_names(f"{what}: {field}", getattr(self, field), OperationError)
        for field, kind in (("inputs", Operand), ("before", Reduction)):
            require_kind(f"{what}: {field}", getattr(self, field), tuple, OperationError)
            for one in getattr(self, field):
                require_kind(f"{what}: {field}", one, kind, OperationError)
        require_kind(f"{what}: output", self.output, Operand, OperationError)
        for field in ("combine", "epilogue"):
            require_kind(f"{what}: {field}", getattr(self, field), Expression, OperationError)
        if not self.name.strip() or not self.name.isprintable():
            raise OperationError(f"operation {self.name!r}: give it a name that can be printed")
        if not self.inputs:
            raise OperationError(f"{what}: it has no inputs; give one or more operands")

    def _error(self, text: str) -> OperationError:
        return OperationError(f"operation {self.name}: {text}")

    @property
    def reductions(self) -> tuple[Reduction, ...]:
        """Every reduction in order; the last is the sum that ``acc`` names."""
        return (*self.before, Reduction("acc", "add", self.combine)) if self.reduced else ()

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The inputs and then the output: the order of a kernel's pointers."""
        return (*self.inputs, self.output)

    def operand(self, name: str) -> Operand:
        """Return the operand called ``name``."""
        return next(o for o in self.operands if o.name == name)

    def shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return each operand's shape, given the axes' sizes."""
        return {o.name: tuple(sizes[a] for a in o.axes) for o in self.operands}

    def sizes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Return the axes' sizes from the operands' shapes.

        Raises OperationError where two operands disagree or a rank is wrong.
        """
        sizes: dict[str, int] = {}
        for operand in self.operands:
            if operand.name not in shapes:
                continue
            shape = shapes[operand.name]
            if len(shape) != len(operand.axes):
                raise OperationError(
                    f"{self.name}: {operand.name} needs {len(operand.axes)} dimensions "
                    f"({','.join(operand.axes)}), got shape {tuple(shape)}"
                )
            for axis, size in zip(operand.axes, shape, strict=True):
                if sizes.setdefault(axis, int(size)) != size:
                    raise OperationError(
                        f"{self.name}: axis {axis} is {sizes[axis]}, but {operand.name} "
                        f"has shape {tuple(shape)}; give operands whose {axis} agree"
                    )
        return sizes

    def flops(self, sizes: Mapping[str, int]) -> float:
        """Return the arithmetic operations of ``combine`` and reductions, a nominal count."""
        work = float(np.prod([float(sizes[a]) for a in self.axes]))
        points = (*(r.expression for r in self.before), self.combine)
        nodes = sum(1 for e in points for n in e.nodes() if hasattr(n, "operator"))
        return work * (nodes + len(self.reductions))

    def bytes(self, sizes: Mapping[str, int]) -> float:
        """Return the fewest bytes to move: every operand once."""
        shapes = self.shapes(sizes)
        return float(
            sum(DTYPES[o.dtype].bytes * float(np.prod(shapes[o.name])) for o in self.operands)
        )

    def reference(
        self,
        inputs: Mapping[str, NDArray[Any]],
        scalars: Mapping[str, float] | None = None,
        algebra: Algebra = FLOATS,
    ) -> dict[str, NDArray[np.float64]]:
        """Compute in float64; returns the output and, as ``"scale"``, what errors are relative to.

        That is S: to first order, rounding every number on the way by u moves an element by at most
        u S (``Expression.rounded``).  For a matmul it is |A||B|.  CuPy arrays are computed where
        they are, and give CuPy arrays.  In an exact algebra there are no errors, and S is 0.
        """
        exact = {n: x.astype(np.float64) for n, x in inputs.items()}
        sizes = self.sizes({n: x.shape for n, x in exact.items()})
        values: dict[str, Any] = {a: algebra.number(n) for a, n in sizes.items()}
        values |= scalars or {}
        values |= {o.name: self._spread(o, exact[o.name]) for o in self.inputs}
        errors: dict[str, Any] = {}

        def at(expression: Expression) -> tuple[Any, Any]:
            if algebra.exact:
                return expression.evaluate(values, algebra), 0.0
            return expression.rounded(values, errors)

        if self._is_product:
            both = (exact, {n: np.abs(x) for n, x in exact.items()})
            values["acc"], errors["acc"] = (self._product(env, sizes, algebra) for env in both)
        else:
            for r in self.reductions:
                point, error = at(r.expression)
                if r.operator == "add" and not algebra.exact:  # which rounds, too
                    error = np.maximum(np.abs(point), error)
                values[r.name] = self._over(r, point, sizes, algebra)
                errors[r.name] = self._over(r, error, sizes, algebra) if np.ndim(error) else error
        if not self.reduced:
            values["acc"], errors["acc"] = at(self.combine)
        shape = tuple(sizes[a] for a in self.output.axes)
        keep = tuple(i for i, a in enumerate(self.axes) if a not in self.output.axes)
        result, scale = (
            np.broadcast_to(x.squeeze(axis=keep) if np.ndim(x) == len(self.axes) else x, shape)
            for x in at(self.epilogue)
        )
        return {self.output.name: result, "scale": scale}

    def _spread(self, operand: Operand, array: NDArray[Any]) -> NDArray[Any]:
        """Give the array the axes of the operation, in order, length 1 where it has none."""
        order = [operand.axes.index(a) for a in self.axes if a in operand.axes]
        shape = [array.shape[operand.axes.index(a)] if a in operand.axes else 1 for a in self.axes]
        return array.transpose(order).reshape(shape)

    def _over(
        self, reduction: Reduction, point: NDArray[Any], sizes: Mapping[str, int], algebra: Algebra
    ) -> NDArray[np.float64]:
        """Reduce over the reduced axes, whose length becomes 1."""
        where = tuple(self.axes.index(a) for a in self.reduced)
        full = np.broadcast_to(point, tuple(sizes[a] for a in self.axes))
        result: NDArray[np.float64] = algebra.total(reduction.operator, full, where)
        return result

    @property
    def _is_product(self) -> bool:
        """Whether a plain product of operands is summed, as einsum does."""
        names = " * ".join(self.combine.names())
        return bool(self.reduced) and not self.before and str(self.combine) == f"({names})"

    def _product(
        self, env: Mapping[str, NDArray[Any]], sizes: Mapping[str, int], algebra: Algebra
    ) -> NDArray[np.float64]:
        """Sum a plain product of operands over the reduced axes, whose length becomes 1."""
        letters = {a: chr(97 + i) for i, a in enumerate(self.axes)}
        operands = [self.operand(n) for n in self.combine.names()]
        terms = ",".join("".join(letters[a] for a in o.axes) for o in operands)
        free = "".join(letters[a] for a in self.axes if a not in self.reduced)

        def form(a: Any, b: Any) -> Any:
            return np.einsum(f"{terms}->{free}", a, b, optimize=True)

        out = algebra.contract(form, *(env[o.name] for o in operands))
        result: NDArray[np.float64] = out.reshape(
            [1 if a in self.reduced else sizes[a] for a in self.axes]
        )
        return result

    def __str__(self) -> str:
        names = {o.name: str(o) for o in self.inputs} if self.reduced else {}

        def spelled(expression: Expression) -> str:
            return re.sub(r"\w+", lambda m: names.get(m[0], m[0]), str(expression))

        head, over = f"{self.name}: {self.output} = ", ",".join(self.reduced)
        if not self.reduced:
            return head + spelled(self.combine)
        words = {"add": "sum", "max": "max"}
        for r in self.before:
            head += f"{r.name}: {words[r.operator]} over {over} of {spelled(r.expression)}; "
        text = f"{head}sum over {over} of {spelled(self.combine)}"
        return text if self.epilogue == ACC else f"{text}, then {self.epilogue}"


@dataclass(frozen=True, slots=True)
class Problem:
    """An operation at given sizes: what a search is about.

    Raises OperationError for a size that is missing, of no axis, or no whole number from 1 on.
    """

    operation: Operation
    extents: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        require_kind("problem: operation", self.operation, Operation, OperationError)
        require_kind("problem: sizes", self.extents, tuple, OperationError)
        name, axes, sizes = self.operation.name, self.operation.axes, self.sizes
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

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis."""
        return dict(self.extents)

    @staticmethod
    def of(operation: Operation, /, **sizes: int) -> Problem:
        """Make a problem: ``Problem.of(matmul("f32"), m=4096, n=4096, k=4096)``."""
        require_kind("problem: operation", operation, Operation, OperationError)
        order = {a: i for i, a in enumerate(operation.axes)}
        return Problem(
            operation, tuple(sorted(sizes.items(), key=lambda item: order.get(item[0], len(order))))
        )


def matmul(
    dtype: str = "f32",
    output: str | None = None,
    layout: str = "nn",
    *,
    scaled: bool = False,
    bias: bool = False,
    activation: str = "",
    batched: bool = False,
) -> Operation:
    """``c[m,n] = sum over k of a[m,k] * b[k,n]``, all row-major, and what is fused with it.

    ``layout`` is BLAS's pair of letters for a row-major caller: "t" for an input that is given
    transposed, a as a[k,m], b as b[n,k]: "nt" is a linear layer.  Without an ``output`` c has the
    inputs' type; for those of 8 bits bf16, for tf32 f32.  ``scaled``: alpha times the sum
    plus beta times an input d[m,n]; ``bias``: plus an input bias[n]; then the ``activation``.
    ``batched``: all but the bias have a first axis l.  Raises OperationError for others.

    >>> print(matmul("bf16", layout="nt", bias=True, activation="relu").epilogue)
    max((acc + bias), 0.0)
    """
    for what, text in (("layout", layout), ("activation", activation), ("dtype", dtype)):
        require_kind(f"matmul: {what}", text, str, OperationError)
    if layout not in LAYOUTS:
        raise OperationError(f"matmul: layout {layout!r}; there are {', '.join(LAYOUTS)}")
    if activation and activation not in ACTIVATIONS:
        raise OperationError(f"matmul: activation {activation}; {nearest(activation, ACTIVATIONS)}")
    narrow = output or {"e4m3": "bf16", "e5m2": "bf16", "tf32": "f32"}.get(dtype, dtype)
    every = ("l",) if batched else ()
    a, b = (("m", "k"), ("k", "n"))
    inputs = [
        Operand("a", every + (a[::-1] if layout[0] == "t" else a), dtype),
        Operand("b", every + (b[::-1] if layout[1] == "t" else b), dtype),
    ]
    result: Expression = ACC
    if scaled:
        inputs.append(Operand("d", (*every, "m", "n"), narrow))
        result = value("alpha") * result + value("beta") * value("d")
    if bias:
        inputs.append(Operand("bias", ("n",), narrow))
        result = result + value("bias")
    return Operation(
        name="matmul",
        axes=(*every, "m", "n", "k"),
        inputs=tuple(inputs),
        output=Operand("c", (*every, "m", "n"), narrow),
        combine=value("a") * value("b"),
        reduced=("k",),
        epilogue=ACTIVATIONS[activation](result) if activation else result,
        scalars=("alpha", "beta") if scaled else (),
    )


def is_matmul(operation: Operation) -> bool:
    """Whether an operation is a matmul, of any layout and batched or not; what ends it is free."""

    def form(of: Operation) -> tuple[object, ...]:
        arrays = [(o.name, o.axes) for o in (*of.inputs[:2], of.output)]
        return of.axes, of.reduced, of.combine, arrays

    batched = "l" in operation.axes
    return any(form(operation) == form(matmul(layout=t, batched=batched)) for t in LAYOUTS)


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
    scalars = tuple(n for n in expression.names() if n not in inputs)
    return Operation(
        name="elementwise",
        axes=("i",),
        inputs=tuple(Operand(n, ("i",), dtype) for n in inputs),
        output=Operand("y", ("i",), dtype),
        combine=expression,
        scalars=scalars,
    )


def reduce(
    combine: Expression,
    epilogue: Expression,
    *,
    inputs: tuple[Operand, ...],
    output: Operand,
    name: str = "reduce",
    before: tuple[Reduction, ...] = (),
) -> Operation:
    """Reduce each row ``i`` over ``j`` and write ``epilogue`` of the sum and the inputs."""
    known = {o.name for o in inputs} | {"i", "j", "acc"} | {r.name for r in before}
    every = (*(r.expression for r in before), combine, epilogue)
    names = (n for expression in every for n in expression.names())
    return Operation(
        name=name,
        axes=("i", "j"),
        inputs=inputs,
        output=output,
        combine=combine,
        reduced=("j",),
        epilogue=epilogue,
        scalars=tuple(dict.fromkeys(n for n in names if n not in known)),
        before=before,
    )


def rmsnorm(dtype: str = "f32") -> Operation:
    """``y[i,j] = x[i,j] w[j] / sqrt(mean of x[i,:]^2 + eps)``, eps a scalar."""
    x, w, mean = value("x"), value("w"), ACC / value("j")
    y = x * apply("rsqrt", mean + value("eps")) * w
    inputs = Operand("x", ("i", "j"), dtype), Operand("w", ("j",), dtype)
    return reduce(x * x, y, inputs=inputs, output=Operand("y", ("i", "j"), dtype), name="rmsnorm")


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
        before=(Reduction("top", "max", x),),
    )


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
    "elementwise": elementwise,
    "rmsnorm": rmsnorm,
    "softmax": softmax,
}
"""Operations by name."""
