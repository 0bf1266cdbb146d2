"""Validation: whether a kernel computes on a GPU what its operation says.

A *trial* is a problem's inputs, of one of the kinds of ``tinygpu/meaning/inputs.py``, and the
operation's reference in float64, all on the GPU.  A kernel writes into a *poisoned* output: every
element is NaN before, and so are margins on both sides, which have to stay untouched.
The kernel is right if its worst
error ratio (``tinygpu/meaning/tolerance.py``) is at most 1.  The unit roundoff there is that of the
narrowest type in which the term does arithmetic: fp32 products in fp64 sums count as fp32, and so
are sums that meet by ``red`` in fp32.

bf16 and 8-bit arrays are kept as their bits (uint16, uint8), which any CuPy can hold; inputs in
tf32 are rounded to it, so that leaving out the low bits of fp32 changes none.

Source: ``docs/measuring.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from tinygpu.codegen.run.launch import Kernel, gpu
from tinygpu.isa.memory import DTYPES
from tinygpu.meaning.inputs import drawn, kinds
from tinygpu.meaning.tolerance import between, error_ratio, loose, narrowing, roundoff
from tinygpu.term.operation import Operation, Problem

__all__ = ["Output", "Trial", "roundoff", "scalars_of", "trial", "validate"]

_MARGIN_ELEMENTS = 1024
_NONE: Mapping[str, float] = MappingProxyType({})
_SCALAR = 0.5
_MOST_ELEMENTS = 1 << 29
"""Of a part of a trial: 4 GiB in float64, and some times that on the way."""
_EIGHT_BITS = {"e4m3": (3, -6), "e5m2": (2, -14)}  # spec: bits of mantissa, least exponent


@dataclass(frozen=True, slots=True)
class Trial:
    """A problem's inputs, scalars and reference, with the tolerance's S and T, on the GPU."""

    problem: Problem
    inputs: tuple[Any, ...]
    scalars: Mapping[str, float]
    reference: Mapping[str, Any]
    between: Mapping[str, Any] = field(default_factory=dict)

    def worst(
        self, output: Output, unit_roundoff: float, narrowing: Mapping[str, float] = _NONE
    ) -> float:
        """Return the worst error ratio of the outputs; infinite if a margin was touched.

        ``narrowing``: the unit roundoff of what is rounded between two stages, by output.
        """
        operation, sizes = self.problem.operation, self.problem.sizes
        worst = []
        for operand, array in zip(operation.outputs, output.arrays, strict=True):
            name, dtype = operand.name, operand.dtype
            ratio = error_ratio(
                _widen(array, dtype),
                self.reference[name],
                self.reference[f"scale of {name}"],
                depth=operation.depth(sizes),
                roundoff=unit_roundoff,
                dtype=dtype,
                between=narrowing.get(name, 0.0) * self.between.get(name, 0.0),
            )
            worst.append(float(ratio.max(axis=-1).max() if ratio.ndim else ratio))  # by rows first
        return max(worst) if all(w >= 0 for w in worst) and output.untouched() else math.inf


class Output:
    """The outputs of a problem, each an array between two margins."""

    def __init__(self, problem: Problem) -> None:
        """Allocate and poison them."""
        self.arrays: list[Any] = []
        self._all: list[Any] = []
        for operand in problem.operation.outputs:
            shape = tuple(problem.sizes[axis] for axis in operand.axes)
            elements = math.prod(shape)
            bits = np.dtype(f"u{DTYPES[operand.dtype].bytes}")
            whole = gpu().empty(elements + 2 * _MARGIN_ELEMENTS, bits)
            inside = whole[_MARGIN_ELEMENTS : _MARGIN_ELEMENTS + elements]
            self.arrays.append(inside.view(_held(operand.dtype)).reshape(shape))
            self._all.append(whole)
        self.poison()

    @property
    def array(self) -> Any:
        """What a kernel takes as ``out``: the array, or a tuple of several."""
        return tuple(self.arrays) if self.arrays[1:] else self.arrays[0]

    def poison(self) -> None:
        """Set every element, and the margins, to NaN: all bits, which is one of every type."""
        for whole in self._all:
            whole.fill(np.iinfo(whole.dtype).max)

    def untouched(self) -> bool:
        """Whether the margins are as they were."""
        margins = (x for a in self._all for x in (a[:_MARGIN_ELEMENTS], a[-_MARGIN_ELEMENTS:]))
        return all(bool((margin == np.iinfo(margin.dtype).max).all()) for margin in margins)


def validate(kernel: Kernel, problem: Problem, seed: int) -> float:
    """Run a kernel once on fresh data of each kind; return its worst error ratio.

    It is right where that is at most 1.  Raises LaunchError if the kernel cannot take the problem's
    arrays or the launch fails.
    """
    errors, groups = [], problem.operation.groups
    ways: list[tuple[str, Mapping[str, Any] | None]] = [(k, None) for k in kinds(problem.operation)]
    ways += [("normal", dict(problem.extents))] if groups else []  # other ends, which are drawn
    for kind, sizes in ways:
        data = trial(problem, seed, kind=kind, sizes=sizes)
        output = Output(problem)
        kernel(*data.inputs, out=output.array, **data.scalars)
        program = kernel.program
        errors.append(data.worst(output, roundoff(program), narrowing(program)))
    return max(errors)


def trial(
    problem: Problem,
    seed: int,
    *,
    scalars: Mapping[str, float] | None = None,
    kind: str = "normal",
    sizes: Mapping[str, Any] | None = None,
) -> Trial:
    """Draw a trial of a kind of inputs; the scalars that are not given are 0.5.

    ``sizes``: the problem's, with or without groups' ends, which are drawn where they are missing.
    What has many elements is drawn, and referred to, in parts: float64 takes four times as much.
    """
    cupy, operation = gpu(), problem.operation
    random = cupy.random.default_rng(seed)
    given = scalars_of(problem, scalars)

    def normal(shape: tuple[int, ...]) -> Any:
        return random.standard_normal(math.prod(shape), dtype=np.float32).reshape(shape)

    if sizes is None:
        sizes = problem.sizes
        if groups := operation.groups:
            sizes = {**sizes, groups.ends: groups.ends_of(sizes)}
    held: dict[str, list[Any]] = {o.name: [] for o in (*operation.inputs, *operation.indices)}
    found: tuple[dict[str, list[Any]], ...] = {}, {}
    for part in _parts(operation, sizes):
        made, exact = drawn(operation, part, kind, normal), {}
        for operand in operation.inputs:
            values = made.pop(operand.name)
            flat = values.astype(np.float32, copy=False).ravel()
            held[operand.name].append(_narrow(flat, operand.dtype).reshape(values.shape))
            exact[operand.name] = _widen(held[operand.name][-1], operand.dtype)
        for operand in operation.indices:
            held[operand.name].append(cupy.asarray(made[operand.name]))
            exact[operand.name] = made[operand.name]
        reference = operation.reference(exact, given, loose=loose(operation))
        moved = between(operation, exact, given, reference)
        for whole, of_part in zip(found, (reference, moved), strict=True):
            for name, array in of_part.items():
                whole.setdefault(name, []).append(array)
    inputs = tuple(_joined(held[o.name]) for o in (*operation.inputs, *operation.indices))
    reference, moved = ({n: _joined(arrays) for n, arrays in whole.items()} for whole in found)
    return Trial(problem, inputs, given, reference, moved)


def _parts(operation: Operation, sizes: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the sizes, cut along an axis that all begin with where there are many elements.

    No number of the operation may be told by that axis, and nothing be found by an index.
    """
    operands = (*operation.inputs, *operation.outputs)
    axis = next(iter(operation.output.axes), "")
    told = {n for r in operation.reductions for n in r.expression.names()}
    told |= {n for _, expression in operation.results for n in expression.names()}
    alone = not (operation.groups or operation.indices or {axis, f"index({axis})"} & told)
    shapes = operation.shapes(sizes)
    elements = sum(math.prod(shapes[operand.name]) for operand in operands)
    if elements <= _MOST_ELEMENTS or not alone or {o.axes[:1] for o in operands} != {(axis,)}:
        yield sizes
        return
    each = max(1, _MOST_ELEMENTS * sizes[axis] // elements)
    for begin in range(0, sizes[axis], each):
        yield {**sizes, axis: min(each, sizes[axis] - begin)}


def _joined(arrays: Sequence[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else gpu().concatenate(arrays)


def scalars_of(problem: Problem, given: Mapping[str, float] | None) -> dict[str, float]:
    """Return the scalars to run with, those given, else 0.5, as the fp32 that they become."""
    names = problem.operation.scalars
    return {name: float(np.float32((given or {}).get(name, _SCALAR))) for name in names}


def _held(dtype: str) -> np.dtype[Any]:
    if dtype in ("bf16", *_EIGHT_BITS):
        return np.dtype(f"u{DTYPES[dtype].bytes}")
    return DTYPES[dtype].numpy


def _narrow(values: Any, dtype: str) -> Any:
    """Round fp32 values to a type (to nearest, ties to even)."""
    if dtype in _EIGHT_BITS:
        return _narrow_to_8(values, *_EIGHT_BITS[dtype])
    if dtype not in ("bf16", "tf32"):
        return values.astype(_held(dtype))
    bits = values.view(np.uint32)
    if dtype == "tf32":
        rounded = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
        return (rounded & np.uint32(0xFFFFE000)).view(np.float32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def _narrow_to_8(values: Any, mantissa: int, least: int) -> Any:
    """Return the bits of fp32 values that do not overflow: sign, exponent, ``mantissa`` bits.

    A number is a whole multiple of its binade's step, that of the ``least`` exponent at the least;
    counted from 0, the positive numbers are in order, so many steps to a binade.
    """
    library = np if isinstance(values, np.ndarray) else gpu()
    size = library.abs(values)
    exponent = library.where(size < 2.0**least, least, library.frexp(size)[1] - 1)
    steps = library.rint(library.ldexp(size, mantissa - exponent)).astype(np.int32)
    bits = steps + (exponent - least) * 2**mantissa  # a carry is the next binade
    return (bits + 128 * library.signbit(values)).astype(np.uint8)


def _widen(values: Any, dtype: str) -> Any:
    """Return the float64 values of an array."""
    if dtype == "bf16":
        return _widen_f32(values.astype(np.uint32) << np.uint32(16))
    if dtype in ("f32", "tf32"):
        return _widen_f32(values.view(np.uint32))
    if dtype in _EIGHT_BITS:
        table = np.arange(256, dtype=np.uint8).view(DTYPES[dtype].numpy).astype(np.float64)
        return (table if isinstance(values, np.ndarray) else gpu().asarray(table))[values]
    return values.astype(np.float64)


def _widen_f32(bits: Any) -> Any:
    """Return the float64 values of fp32 bits; CuPy's own conversion would clear the subnormal."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        wide = bits.view(np.float32).astype(np.float64)
    mantissa = bits & np.uint32(0x7FFFFF)
    sign = 1.0 - 2.0 * (bits >> np.uint32(31)).astype(np.float64)
    subnormal = (bits & np.uint32(0x7F800000)) == 0
    library = np if isinstance(bits, np.ndarray) else gpu()
    return library.where(subnormal, sign * mantissa.astype(np.float64) * 2.0**-149, wide)
