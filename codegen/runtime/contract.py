"""A kernel's contract: which arrays it takes, and the integers that they imply, as plain data.

A kernel takes views whose types are its operands', whose shapes agree on the sizes, whose
contiguous dimension has stride 1, and which satisfy three laws:

- *vector*: where v elements move at once, address, leading dimension and guarded extent are
  multiples of v elements;
- *inside*: an unguarded access stays within the sizes, for every value of its variables;
- *index*: coordinates, and a row's bytes, are less than 2^31; with 32-bit addressing, so is every
  offset in elements.

A leading dimension named in the term (``ld_a``) is read off the view's strides, so a row-major part
of a larger array needs no copy.

A contract is made of tuples, numbers and strings, so it is JSON as it stands (``tree``, ``of``).

Source: PTX ISA, "Addresses as Operands" (alignment).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeAlias

from tinygpu.codegen.runtime.maps import TensorMap
from tinygpu.codegen.runtime.views import View
from tinygpu.errors import LaunchError

__all__ = [
    "FORMULAS",
    "Argument",
    "Contract",
    "ContractStep",
    "Extent",
    "Formula",
    "Reach",
    "check",
    "check_apart",
    "formula_value",
    "named_extents",
    "sizes_of",
]

_BITS = {"e4m3": "u8", "e5m2": "u8", "tf32": "f32"}  # what else an array of it may say it has
_LARGEST = 2**31 - 1
_MAX_CTAS = 2**31 - 1  # spec: gridDim.x, CUDA C++ Programming Guide, "Compute Capabilities"

Formula: TypeAlias = "int | str | tuple[Any, ...]"
"""A number, a name, or an operator of ``FORMULAS`` and its arguments."""
FORMULAS: Mapping[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "ceildiv": lambda a, b: -(-a // b),
    "max": max,
    "min": min,
}


def formula_value(formula: Formula, values: Mapping[str, int]) -> int:
    """Return the value of a formula.

    >>> formula_value(("ceildiv", "k", 16), {"k": 100})
    7
    """
    if isinstance(formula, tuple):
        operator, *arguments = formula
        return FORMULAS[operator](*(formula_value(a, values) for a in arguments))
    return values[formula] if isinstance(formula, str) else int(formula)


Extent: TypeAlias = "str | int | tuple[Any, ...]"
"""How long a dimension is: a size, a number, or (size, number): so many times that is the size."""


class Argument(NamedTuple):
    """An array argument.

    ``stride`` has numbers and names of parameters, ``width`` is an element's bytes, ``vector`` how
    many elements move at once; ``guarded`` that those at the edge are asked for as a whole.
    """

    name: str
    dtype: str
    width: int
    axes: tuple[Extent, ...]
    shape: tuple[int | str, ...]
    stride: tuple[int | str, ...]
    vector: int
    guarded: bool


class Reach(NamedTuple):
    """How far an access counts along an axis: ``origin`` at its largest, plus ``span``.

    ``origin`` is a constant and (variable, coefficient) pairs.  ``around``, outermost first, has
    ("for", variable, start, trips) and ("when", variable, constant, bound): variable + constant
    is less than bound.  ``guarded``: what lies outside the axis is left out.
    """

    access: str
    axis: int | str
    origin: tuple[Any, ...]
    span: int
    guarded: bool
    around: tuple[tuple[Any, ...], ...]


class ContractStep(NamedTuple):
    """A kernel of a plan: its contract, its sizes as formulas of the plan's, its arguments.

    ``uses``: of each argument its name, the plan's array that it is, and into which of the kernel's
    axes each axis of that is cut.
    """

    contract: Contract
    sizes: tuple[tuple[str, Formula], ...]
    uses: tuple[tuple[str, str, tuple[tuple[str, ...], ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a kernel takes and how it is started; see the module's text.

    ``arguments``: the operands, the ``outputs`` last.  ``integers``: names of the u32 arguments.
    ``tile_values``: numbers that each tile computes for itself, and what they are made of, each
    with formulas of the least and the most that it is in any tile; later ones name them ``name
    least`` and ``name``.
    ``sizes``: those that a specialised kernel was made for.  ``in_place``: the output may be an
    input.  ``cluster``: CTAs of one; ``grid`` counts clusters.  ``steps``: of a plan its kernels,
    which have all that is said of a kernel.  The other fields are a program's.
    """

    name: str
    operation: str
    arguments: tuple[Argument, ...]
    scalars: tuple[str, ...]
    parameters: tuple[tuple[str, Formula], ...]
    grid: tuple[tuple[str, Formula], ...]
    integers: tuple[str, ...]
    specialised: bool
    sizes: tuple[tuple[str, int], ...]
    at_most: tuple[tuple[str, int], ...]
    variables: tuple[tuple[str, int], ...]
    reaches: tuple[Reach, ...]
    maps: tuple[TensorMap, ...]
    threads: int
    smem_bytes: int
    cluster: int
    ctas_per_sm: int
    persistent: bool
    early: bool
    zeroed: bool
    in_place: bool
    addressing: str
    tile_values: tuple[tuple[str, Formula, Formula], ...] = ()
    outputs: int = 1
    steps: tuple[ContractStep, ...] = ()

    def tree(self) -> dict[str, Any]:
        """Return it as a tree for JSON."""
        tree = {field.name: getattr(self, field.name) for field in fields(self)}
        tree["steps"] = [(step.contract.tree(), step.sizes, step.uses) for step in self.steps]
        return tree

    @staticmethod
    def of(tree: Mapping[str, Any]) -> Contract:
        """Return the contract of a tree.  Raises LaunchError for one that is none."""
        try:
            steps = tuple(
                ContractStep(Contract.of(own), _tuples(sizes), _tuples(uses))
                for own, sizes, uses in tree.get("steps", ())
            )
            given = {n: _tuples(value) for n, value in tree.items() if n != "steps"}
            given["steps"] = steps
            given["arguments"] = tuple(Argument(*a) for a in given["arguments"])
            given["reaches"] = tuple(Reach(*r) for r in given["reaches"])
            given["maps"] = tuple(TensorMap(*m) for m in given["maps"])
            return Contract(**given)
        except (KeyError, TypeError, AttributeError) as error:
            raise LaunchError(f"contract: {error!r}; write it again") from None

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """The arguments that are read."""
        return self.arguments[: len(self.arguments) - self.outputs]

    def written(self, out: Any) -> tuple[Any, ...]:
        """Return the arrays of ``out``: it, or a tuple of several.  Raises LaunchError."""
        if self.outputs == 1:
            return (out,)
        if not isinstance(out, tuple | list) or len(out) != self.outputs:
            names = ", ".join(a.name for a in self.arguments[-self.outputs :])
            raise LaunchError(f"out: give a tuple of {self.outputs} arrays: {names}")
        return tuple(out)

    def values(self, sizes: Mapping[str, int], given: Mapping[str, int] = {}) -> dict[str, int]:
        """Return sizes and parameters; of those in ``given`` the value given there.

        Raises LaunchError for a size that the kernel does not cover.
        """
        for axis, most in self.at_most:
            if sizes[axis] > most:
                raise LaunchError(
                    f"program {self.name}: {axis} is {sizes[axis]}; this term covers at most "
                    f"{most}: choose a schedule that covers more"
                )
        values = dict(sizes)
        for name, formula in self.parameters:
            values[name] = given[name] if name in given else formula_value(formula, values)
        return values


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def check(contract: Contract, views: Sequence[View]) -> dict[str, int]:
    """Return sizes, parameters and the grid's extents for these views, the outputs last.

    Raises LaunchError with the first violation and the way out.
    """
    for argument, view in zip(contract.arguments, views, strict=True):
        if view.dtype not in (argument.dtype, _BITS.get(argument.dtype)):
            raise LaunchError(
                f"{argument.name}: dtype {view.dtype}, the kernel takes {argument.dtype}; convert "
                f"the array or build the kernel for {view.dtype}"
            )
    sizes = sizes_of(contract, [v.shape for v in views])
    for axis, size in sizes.items():
        if size < 1:
            raise LaunchError(f"size {axis}: {size}; every size has to be at least 1")
    devices = {v.device for v in views if v.device >= 0}
    if len(devices) > 1:
        raise LaunchError(f"arrays on devices {sorted(devices)}; move them to one device")
    values = contract.values(sizes, _strides(contract, views, contract.values(sizes)))
    for axis, size in contract.sizes:
        if values[axis] != size:
            raise LaunchError(
                f"size {axis}: {values[axis]}, but the kernel was specialised for {size}; "
                "build a kernel for these sizes"
            )
    values |= {f"grid_{name}": formula_value(f, values) for name, f in contract.grid}
    for name in (*sizes, *(name for name, _ in contract.parameters)):
        if values[name] > _LARGEST:
            raise LaunchError(
                f"integers: {name} is {values[name]}; a kernel takes integers up to {_LARGEST}: "
                "split the problem"
            )
    ctas = contract.cluster * math.prod(values[f"grid_{name}"] for name, _ in contract.grid)
    if ctas > _MAX_CTAS:
        raise LaunchError(f"grid: {ctas} CTAs; at most {_MAX_CTAS}; choose a larger tile")
    _check_vectors(contract, views, values)
    _check_inside(contract, values)
    _check_index(contract, views)
    return values


def sizes_of(contract: Contract, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """Return the sizes of shapes, in the operands' order; fewer shapes may be given.

    Raises LaunchError where two operands disagree or a rank is wrong.
    """
    sizes: dict[str, int] = {}
    for argument, shape in zip(contract.arguments, shapes, strict=False):
        if len(shape) != len(argument.axes):
            raise LaunchError(
                f"{contract.operation}: {argument.name} needs {len(argument.axes)} dimensions "
                f"({named_extents(argument)}), got shape {tuple(shape)}"
            )
        for extent, length in zip(argument.axes, shape, strict=True):
            if isinstance(extent, int):
                if length != extent:
                    raise LaunchError(
                        f"{contract.operation}: {argument.name}[{named_extents(argument)}] has "
                        f"shape {tuple(shape)}; give one with {extent} there"
                    )
                continue
            axis, times = (extent, 1) if isinstance(extent, str) else extent
            size = int(length) * times
            if sizes.setdefault(axis, size) != size:
                raise LaunchError(
                    f"{contract.operation}: axis {axis} is {sizes[axis]}, but {argument.name} "
                    f"has shape {tuple(shape)}; give operands whose {axis} agree"
                )
    return sizes


def named_extents(argument: Argument) -> str:
    """Return the dimensions of an argument as a message has them: l,n/64."""
    return ",".join(f"{a[0]}/{a[1]}" if isinstance(a, tuple) else f"{a}" for a in argument.axes)


def check_apart(contract: Contract, views: Sequence[View]) -> None:
    """Refuse an output that shares memory with another array, but for an elementwise one in place.

    Raises LaunchError.
    """
    for number in range(len(views) - contract.outputs, len(views)):
        output = views[number]
        start, end = output.span
        for argument, given in zip(contract.arguments[:number], views[:number], strict=True):
            first, last = given.span
            if first >= end or last <= start:
                continue
            same = given.pointer == output.pointer and given.strides == output.strides
            if not (same and given.dtype == output.dtype and contract.in_place):
                raise LaunchError(
                    f"out: shares memory with {argument.name}; give another array, or none"
                )


def _strides(contract: Contract, views: Sequence[View], usual: Mapping[str, int]) -> dict[str, int]:
    """Return the parameters that the views' strides give; check the strides that are fixed."""
    free = set() if contract.specialised else {name for name, _ in contract.parameters}
    found: dict[str, int] = {}
    for argument, got in zip(contract.arguments, views, strict=True):
        for d in reversed(range(len(got.shape))):  # what is contiguous first: it explains more
            stride, extent = argument.stride[d], got.shape[d]
            want = usual[stride] if isinstance(stride, str) else stride
            step = got.strides[d]
            apart = abs(step) * argument.width
            if extent > 1 and apart > _LARGEST and isinstance(stride, str):
                raise LaunchError(
                    f"{argument.name}: rows lie {apart} B apart; at most {_LARGEST} B fit the "
                    "kernel's 32-bit row lengths: split the problem"
                )
            if extent == 1:
                continue
            if not (isinstance(stride, str) and stride in free):
                if step == want:
                    continue
                why = " (it was specialised)" if isinstance(stride, str) else ""
                raise LaunchError(
                    f"{argument.name}: stride {step} in dimension {d}, the kernel needs {want}"
                    f"{why}; copy it with ascontiguousarray (CuPy) or .contiguous() (PyTorch)"
                )
            others = [(e, s) for i, (e, s) in enumerate(zip(got.shape, got.strides, strict=True))
                      if i != d and e > 1 and s <= max(step, 1)]  # fmt: skip
            reach = 1 + sum((e - 1) * s for e, s in others)
            if step < reach:
                raise LaunchError(
                    f"{argument.name}: stride {step} in dimension {d} makes its rows of {reach} "
                    "elements overlap; copy it with ascontiguousarray or .contiguous()"
                )
            if found.setdefault(stride, step) != step:
                raise LaunchError(f"{stride}: {found[stride]} and {step}; give equal strides")
    return found


def _check_vectors(contract: Contract, views: Sequence[View], values: Mapping[str, int]) -> None:
    for argument, view in zip(contract.arguments, views, strict=True):
        name, vector = argument.name, argument.vector
        if view.pointer % (vector * argument.width):
            raise LaunchError(
                f"{name}: address {view.pointer:#x} is not a multiple of "
                f"{vector * argument.width} B, the width of its accesses; copy the array, or "
                "choose a narrower vector"
            )
        if vector == 1:
            continue
        limits = {f"{s}": values[s] for s in argument.stride if isinstance(s, str)}
        if len(argument.shape) > 1 and all(n == 1 for n in view.shape[:-1]):
            limits = {}  # a single row is never stepped over
        axis = argument.shape[-1]
        if argument.guarded and isinstance(axis, str):
            limits[axis] = values[axis]
        for what, number in limits.items():
            if number % vector:
                raise LaunchError(
                    f"vector: {name} moves {vector} elements at once, but {what} is {number}; "
                    f"choose a vector that divides it, or pad {what} to a multiple of {vector}"
                )


def _check_inside(contract: Contract, values: Mapping[str, int]) -> None:
    """Hold accesses against the sizes and 32 bits, at the largest value of each variable."""
    every = {**values, **dict(contract.variables), "zero": 0}
    every |= {name: values[f"grid_{name}"] - 1 for name, _ in contract.grid}
    for name, least, most in contract.tile_values:
        low, every[name] = formula_value(least, every), formula_value(most, every)
        every[f"{name} least"] = low
        if low < -_LARGEST or every[name] > _LARGEST:
            raise LaunchError(
                f"index: {name} counts from {low} to {every[name]} over the tiles; a kernel "
                f"computes with numbers of 32 bits, up to {_LARGEST}: split the problem"
            )
    largest_under: dict[Any, dict[str, int] | None] = {}
    for access, axis, (constant, *terms), span, guarded, around in contract.reaches:
        if around not in largest_under:
            largest_under[around] = _largest(around, every)
        if (largest := largest_under[around]) is None:
            continue
        end = constant + span
        for name, coefficient in terms:
            factor = largest[coefficient] if isinstance(coefficient, str) else coefficient
            end += factor * largest[name]
        if end > _LARGEST:
            raise LaunchError(
                f"index: {access} counts to {end} along {axis}; coordinates of 32 bits end "
                f"at {_LARGEST}: split the problem"
            )
        size = values[axis] if isinstance(axis, str) else axis
        if not guarded and end > size:
            raise LaunchError(
                f"inside: {access} reaches {end} along {axis}, which is {size}, with no "
                f"guard; make {axis} a multiple of the tile, or choose guarded edges"
            )


def _largest(around: tuple[tuple[Any, ...], ...], values: dict[str, int]) -> dict[str, int] | None:
    """Return the variables' largest values under these loops and guards; None if it never runs."""
    largest = dict(values)
    for kind, name, constant, bound in around:
        limit = values[bound] if isinstance(bound, str) else bound
        if kind == "for":
            if limit <= constant:
                return None
            largest[name] = limit - 1
        else:
            largest[name] = min(largest[name], limit - 1 - constant)
            if largest[name] < 0:
                return None
    return largest


def _check_index(contract: Contract, views: Sequence[View]) -> None:
    if contract.addressing != "i32":
        return
    for argument, v in zip(contract.arguments, views, strict=True):
        last = sum((e - 1) * s for e, s in zip(v.shape, v.strides, strict=True))
        if last >= 2**31:
            raise LaunchError(
                f"{argument.name}: offsets up to {last} do not fit 32-bit indices; choose "
                'addressing "pointer" or "i64"'
            )
