"""Operations: what a kernel has to compute, apart from how.

An operation has axes; operands, each an index map (the axes that index it, row-major in that
order) and a data type; a ``combine`` expression of one point of the axes; a reduction over some
axes; and an ``epilogue`` expression of the reduced value and the operands.  With ``acc`` for the
reduced value,

    acc[free axes] = reduce over the other axes of combine(inputs)
    output[output axes] = epilogue(acc, inputs, scalars, sizes)

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

from tinygpu.errors import OperationError, nearest
from tinygpu.expression import Expression, apply, value
from tinygpu.memory import DTYPES

__all__ = [
    "ACC",
    "ACTIVATIONS",
    "LARGEST_SIZE",
    "OPERATIONS",
    "Operand",
    "Operation",
    "Problem",
    "elementwise",
    "is_matmul",
    "matmul",
    "reduce",
]


@dataclass(frozen=True, slots=True)
class Operand:
    """An array argument: its name, the axes that index it, its data type."""

    name: str
    axes: tuple[str, ...]
    dtype: str

    def __post_init__(self) -> None:
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

    def __post_init__(self) -> None:
        names = [*(o.name for o in self.operands), *self.scalars, *self.axes, "acc"]
        for name in names:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", name):
                raise self._error(f"name {name!r}; a name has letters, digits and _")
            if names.count(name) > 1:
                raise self._error(f"{name} is named twice; give it another name (acc is the sum's)")
        read = {*self.combine.names(), *self.epilogue.names()}
        for name in sorted(read.difference(names) | {self.output.name} & read):
            raise self._error(
                f"expression names {name!r}, which is no input, scalar or axis; "
                f"known are {', '.join(sorted(set(names) - {self.output.name}))}"
            )
        if "acc" in self.combine.names() or "acc" not in self.epilogue.names():
            raise self._error("combine makes acc, and the epilogue reads it")
        listed = [("reduced axes", self.reduced), *((str(o), o.axes) for o in self.operands)]
        for what, axes in listed:
            if missing := [a for a in axes if a not in self.axes]:
                known = nearest(missing[0], self.axes)
                raise self._error(f"{what}: axis {missing[0]} is not the operation's; {known}")
            if len({*axes}) < len(axes):
                raise self._error(f"{what}: an axis is there twice; give each once")
        kept = tuple(a for a in self.axes if a in self.output.axes or a not in self.reduced)
        if self.output.axes != kept:
            raise self._error(f"{self.output} has to have the axes {', '.join(kept)}, in this order")

    def _error(self, text: str) -> OperationError:
        return OperationError(f"operation {self.name}: {text}")

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
        """Return the arithmetic operations of ``combine`` and reduction, a nominal count."""
        work = float(np.prod([float(sizes[a]) for a in self.axes]))
        nodes = sum(1 for n in self.combine.nodes() if hasattr(n, "operator"))
        return work * (nodes + (1 if self.reduced else 0))

    def bytes(self, sizes: Mapping[str, int]) -> float:
        """Return the fewest bytes to move: every operand once."""
        shapes = self.shapes(sizes)
        return float(
            sum(DTYPES[o.dtype].bytes * float(np.prod(shapes[o.name])) for o in self.operands)
        )

    def reference(
        self, inputs: Mapping[str, NDArray[Any]], scalars: Mapping[str, float] | None = None
    ) -> dict[str, NDArray[np.float64]]:
        """Compute in float64; returns the output and, as ``"scale"``, what errors are relative to.

        That is S, combine of |inputs| reduced (|A||B| for a matmul).  An epilogue E turns an error
        of ``acc`` into one of |E'| times its size, and rounds: the scale is S |E'| + |E| then.
        CuPy arrays are computed where they are, and give CuPy arrays.
        """
        env = {n: x.astype(np.float64) for n, x in inputs.items()}
        sizes = self.sizes({n: x.shape for n, x in env.items()})
        acc = self._reduce(env, scalars or {}, sizes)
        full: dict[str, Any] = {**sizes, **(scalars or {})}
        full |= {o.name: self._spread(o, env[o.name]) for o in self.inputs}
        full["acc"] = acc
        axes = self.output.axes
        shape = tuple(sizes[a] for a in axes)
        keep = tuple(i for i, a in enumerate(self.axes) if a not in axes)
        result = self.epilogue.evaluate(full)
        if keep:
            result = result.squeeze(axis=keep) if result.ndim == len(self.axes) else result
        magnitude = self._reduce({n: np.abs(x) for n, x in env.items()}, scalars or {}, sizes)
        if self.epilogue != ACC:
            step = 2.0**-20 * magnitude  # small, but far above the rounding of float64
            moved = self.epilogue.evaluate({**full, "acc": acc + step})
            here = self.epilogue.evaluate(full)
            magnitude = np.abs(moved - here) * 2.0**20 + np.abs(here)
        if keep and magnitude.ndim == len(self.axes):
            magnitude = magnitude.squeeze(axis=keep)
        return {
            self.output.name: np.broadcast_to(result, shape),
            "scale": np.broadcast_to(magnitude, shape),
        }

    def _spread(self, operand: Operand, array: NDArray[Any]) -> NDArray[Any]:
        """Give the array the axes of the operation, in order, length 1 where it has none."""
        order = [operand.axes.index(a) for a in self.axes if a in operand.axes]
        shape = [array.shape[operand.axes.index(a)] if a in operand.axes else 1 for a in self.axes]
        return array.transpose(order).reshape(shape)

    def _reduce(
        self,
        env: Mapping[str, NDArray[Any]],
        scalars: Mapping[str, float],
        sizes: Mapping[str, int],
    ) -> NDArray[np.float64]:
        """Reduce ``combine``; a plain product of two operands goes through einsum."""
        names = list(self.combine.names())
        if str(self.combine) == f"({' * '.join(names)})" and self.reduced:
            letters = {a: chr(97 + i) for i, a in enumerate(self.axes)}
            operands = [self.operand(n) for n in names]
            terms = ",".join("".join(letters[a] for a in o.axes) for o in operands)
            free = [a for a in self.axes if a not in self.reduced]
            out = np.einsum(
                f"{terms}->{''.join(letters[a] for a in free)}",
                *(env[n] for n in names),
                optimize=True,
            )
            kept = [1 if a in self.reduced else sizes[a] for a in self.axes]
            result: NDArray[np.float64] = out.reshape(kept)
            return result
        spread = {o.name: self._spread(o, env[o.name]) for o in self.inputs}
        point = self.combine.evaluate({**sizes, **scalars, **spread})
        where = tuple(self.axes.index(a) for a in self.reduced)
        summed: NDArray[np.float64] = np.sum(point, axis=where, keepdims=True) if where else point
        return summed

    def __str__(self) -> str:
        names = {o.name: str(o) for o in self.inputs} if self.reduced else {}
        spelled = re.sub(r"\w+", lambda m: names.get(m[0], m[0]), str(self.combine))
        head = f"{self.name}: {self.output} = "
        if not self.reduced:
            return head + spelled
        text = f"{head}sum over {','.join(self.reduced)} of {spelled}"
        return text if self.epilogue == ACC else f"{text}, then {self.epilogue}"


@dataclass(frozen=True, slots=True)
class Problem:
    """An operation at given sizes: what a search is about.

    Raises OperationError for a size that is missing, of no axis, or no whole number from 1 on.
    """

    operation: Operation
    extents: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
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


def elementwise(
    expression: Expression, *, inputs: tuple[str, ...], dtype: str = "f32"
) -> Operation:
    """``y[i] = expression`` of one-dimensional ``inputs``; every other name is a scalar."""
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
) -> Operation:
    """Reduce each row ``i`` over ``j`` and write ``epilogue`` of the sum and the inputs."""
    known = {o.name for o in inputs} | {"i", "j", "acc"}
    names = (*combine.names(), *epilogue.names())
    return Operation(
        name=name,
        axes=("i", "j"),
        inputs=inputs,
        output=output,
        combine=combine,
        reduced=("j",),
        epilogue=epilogue,
        scalars=tuple(dict.fromkeys(n for n in names if n not in known)),
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
OPERATIONS = {"matmul": matmul}
"""Operations that the command line builds from a name and a dtype."""
