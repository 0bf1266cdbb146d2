"""A kernel's arguments: which arrays a term can take, and the integers that they imply.

An array argument is a *view*: an address, a data type, a shape, and strides counted in elements.  A
term takes views whose types are its operands', whose shapes agree on the sizes, whose contiguous
dimension has stride 1, and which satisfy three laws:

- *vector*: where v elements move at once, address, leading dimension and guarded extent are
  multiples of v elements;
- *inside*: an unguarded access stays within the sizes, for every value of its variables;
- *index*: coordinates, and a row's bytes, are less than 2^31; with 32-bit addressing, so is every
  offset in elements.

A leading dimension named in the term (``ld_a``) is read off the view's strides, so a row-major part
of a larger array needs no copy.

Source: PTX ISA, "Addresses as Operands" (alignment); CUDA Array Interface, version 3.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinygpu.errors import LaunchError, OperationError, ProgramError
from tinygpu.memory import DTYPES
from tinygpu.operation import Problem
from tinygpu.program import Access, Block, Do, Elect, Exit, For, ForTile, Program, span, walk

__all__ = [
    "View",
    "check",
    "check_apart",
    "dense",
    "is_torch",
    "reader",
    "vector_of",
    "view",
]

_TYPESTR = {"f8": "f64", "f4": "f32", "f2": "f16", "V2": "bf16", "u2": "bf16", "u1": "u8"}
_BITS = {"e4m3": "u8", "e5m2": "u8", "tf32": "f32"}  # what else an array of it may say it has
_LARGEST = 2**31 - 1
_TORCH = {
    "torch.float64": "f64",
    "torch.float32": "f32",
    "torch.float16": "f16",
    "torch.bfloat16": "bf16",
    "torch.float8_e4m3fn": "e4m3",
    "torch.float8_e5m2": "e5m2",
}
_Reader = Callable[[Any], tuple[Any, ...] | None]


@dataclass(frozen=True, slots=True)
class View:
    """An array on a GPU as a kernel sees it; ``strides`` count elements, ``device`` may be -1."""

    pointer: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: int = -1

    @property
    def form(self) -> tuple[Any, ...]:
        """All that checks depend on: everything but the address, of which its alignment."""
        return (self.pointer % 16, self.dtype, self.shape, self.strides, self.device)

    @property
    def span(self) -> tuple[int, int]:
        """Its first address and the one past its last byte."""
        last = sum((e - 1) * s for e, s in zip(self.shape, self.strides, strict=True))
        width = 1 if self.dtype == "u8" else DTYPES[self.dtype].bytes
        return self.pointer, self.pointer + (last + 1) * width


def is_torch(array: object) -> bool:
    """Whether it is a PyTorch tensor (without importing torch)."""
    return reader(type(array)) is _of_torch


def _reader_of(kind: type) -> _Reader:
    match kind.__module__.partition(".")[0], kind.__name__:
        case "torch", _:
            return _of_torch
        case "cupy", "ndarray":
            return _of_cupy
    return _of_another


reader: Callable[[Any], _Reader] = functools.lru_cache(64)(_reader_of)
"""Returns, for a type of arrays, what reads the *identity* of one: all that a launch depends on.

It is address, type, shape, strides and device as the library gives them, or None for libraries
other than CuPy and PyTorch.  It takes a tenth of the time of a view, and two arrays of one identity
have one view.
"""


def _of_torch(tensor: Any) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device


def _of_cupy(array: Any) -> tuple[Any, ...]:
    memory = array.data
    return memory.ptr, array.dtype, array.shape, array.strides, memory.device_id


def _of_another(array: Any) -> None:
    """Return nothing: it takes as long as a view, and not every such array names its device."""


def view(name: str, array: Any) -> View:
    """Read a CuPy array, a PyTorch tensor or whatever has ``__cuda_array_interface__``.

    Raises LaunchError for an array on the host, and for what is no array.
    """
    pointer, dtype, shape, steps, device = reader(type(array))(array) or _interface(name, array)
    if is_torch(array):
        if device.type != "cuda":
            raise LaunchError(f"{name}: tensor on {device}; move it with {name}.cuda()")
        return View(pointer, _TORCH.get(str(dtype), str(dtype)), tuple(shape), steps, device.index)
    typestr, size = dtype.str, dtype.itemsize
    held = _TYPESTR.get(typestr[1:], typestr) if typestr[0] in "<|=" else typestr
    if any(step % size for step in steps):
        raise LaunchError(f"{name}: strides {tuple(steps)} B split elements of {size} B; copy it")
    return View(pointer, held, shape, tuple(step // size for step in steps), device)


def _interface(name: str, array: Any) -> tuple[Any, ...]:
    """Return what the CUDA Array Interface says: address, type, shape, strides in bytes, device."""
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        kind = f"{type(array).__module__}.{type(array).__qualname__}"
        raise LaunchError(
            f"{name}: {kind} is not on a GPU; give a CuPy array (cupy.asarray) or a CUDA tensor"
        )
    dtype, shape = np.dtype(interface["typestr"]), tuple(map(int, interface["shape"]))
    steps = interface.get("strides")
    if steps is None:
        steps = [dtype.itemsize] * len(shape)
        for i in reversed(range(len(shape) - 1)):
            steps[i] = steps[i + 1] * shape[i + 1]
    device = getattr(getattr(array, "device", None), "id", -1)
    return int(interface["data"][0] or 0), dtype, shape, tuple(steps), device


def dense(problem: Problem) -> list[View]:
    """Return views of arrays as an allocator gives them: aligned and without gaps."""
    views = []
    for operand in problem.operation.operands:
        shape = problem.operation.shapes(problem.sizes)[operand.name]
        strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        views.append(View(0, operand.dtype, shape, strides))
    return views


def check(program: Program, views: Sequence[View]) -> dict[str, int]:
    """Return sizes and parameters for these views, one an operand, the output last.

    Raises LaunchError with the first violation and the way out.
    """
    operands = program.operation.operands
    named = dict(zip((o.name for o in operands), views, strict=True))
    for operand in operands:
        got = named[operand.name].dtype
        if got not in (operand.dtype, _BITS.get(operand.dtype)):
            raise LaunchError(
                f"{operand.name}: dtype {got}, the kernel takes {operand.dtype}; convert the array"
                f" or build the kernel for {got}"
            )
    try:
        sizes = program.operation.sizes({n: v.shape for n, v in named.items()})
    except OperationError as error:
        raise LaunchError(str(error)) from None
    for axis, size in sizes.items():
        if size < 1:
            raise LaunchError(f"size {axis}: {size}; every size has to be at least 1")
    devices = {v.device for v in views if v.device >= 0}
    if len(devices) > 1:
        raise LaunchError(f"arrays on devices {sorted(devices)}; move them to one device")
    strides = _strides(program, named, sizes)
    values = program.parameter_values(sizes, strides)
    _check_vectors(program, named, values)
    _check_inside(program, values)
    _check_index(program, named)
    return values


def check_apart(program: Program, views: Sequence[View]) -> None:
    """Refuse an output that shares memory with an input, but for an elementwise one in place.

    Raises LaunchError.
    """
    output = views[-1]
    start, end = output.span
    for operand, given in zip(program.operation.inputs, views[:-1], strict=True):
        first, last = given.span
        if first >= end or last <= start:
            continue
        same = given.pointer == output.pointer and given.strides == output.strides
        if not (same and given.dtype == output.dtype and not program.operation.reduced):
            raise LaunchError(
                f"out: shares memory with {operand.name}; give another array, or none"
            )


def vector_of(program: Program) -> dict[str, int]:
    """Return for each gmem buffer the widest vector (in elements) that a statement moves.

    TMA wants addresses and leading dimensions that are multiples of 16 B.
    """
    widest: dict[str, int] = {}
    for statement, _ in walk(program):
        if isinstance(statement, Do):
            for access in _global(statement):
                name, tma = access.buffer.name, statement.instruction.unit == "tma"
                vector = 16 // access.buffer.type.bytes if tma else int(statement.vector)
                widest[name] = max(widest.get(name, 1), vector)
    return widest


def _global(statement: Do | Exit) -> Iterator[Access]:
    return (a for a in statement.accesses if a.buffer.level == "gmem")


def _strides(
    program: Program, named: Mapping[str, View], sizes: Mapping[str, int]
) -> dict[str, int]:
    """Return the parameters that the views' strides give; check the strides that are fixed."""
    try:
        usual = program.parameter_values(sizes)
    except ProgramError as error:
        raise LaunchError(str(error)) from None
    free = set() if program.specialised else {name for name, _ in program.parameters}
    found: dict[str, int] = {}
    for buffer in (b for b in program.buffers if b.name in named):
        got = named[buffer.name]
        for d in reversed(range(len(got.shape))):  # what is contiguous first: it explains more
            stride, extent = buffer.stride[d], got.shape[d]
            want = usual[stride] if isinstance(stride, str) else stride
            step = got.strides[d]
            apart = abs(step) * buffer.type.bytes
            if extent > 1 and apart > _LARGEST and isinstance(stride, str):
                raise LaunchError(
                    f"{buffer.name}: rows lie {apart} B apart; at most {_LARGEST} B fit the "
                    "kernel's 32-bit row lengths: split the problem"
                )
            if extent == 1 or step == want:
                continue
            if not (isinstance(stride, str) and stride in free):
                why = " (it was specialised)" if isinstance(stride, str) else ""
                raise LaunchError(
                    f"{buffer.name}: stride {step} in dimension {d}, the kernel needs {want}{why}; "
                    "copy it with ascontiguousarray (CuPy) or .contiguous() (PyTorch)"
                )
            inner = 1 + sum((e - 1) * s for e, s in zip(got.shape, got.strides, strict=True))
            reach = inner - (extent - 1) * step
            if step < reach:
                raise LaunchError(
                    f"{buffer.name}: stride {step} in dimension {d} makes its rows of {reach} "
                    "elements overlap; copy it with ascontiguousarray or .contiguous()"
                )
            if found.setdefault(stride, step) != step:
                raise LaunchError(f"{stride}: {found[stride]} and {step}; give equal strides")
    return found


def _check_vectors(program: Program, named: Mapping[str, View], values: Mapping[str, int]) -> None:
    guarded = {
        a.buffer.name
        for s, _ in walk(program)
        if isinstance(s, Do) and s.instruction.unit != "tma"
        for a in _global(s)
        if a.guard and bool(a.guard[-1])
    }
    for name, vector in vector_of(program).items():
        buffer = next(b for b in program.buffers if b.name == name)
        view, width = named[name], vector * buffer.type.bytes
        if view.pointer % width:
            raise LaunchError(
                f"{name}: address {view.pointer:#x} is not a multiple of {width} B, the width of "
                "its accesses; copy the array, or choose a narrower vector"
            )
        if vector == 1:
            continue
        limits = {f"{s}": values[s] for s in buffer.stride if isinstance(s, str)}
        if len(buffer.shape) > 1 and all(n == 1 for n in view.shape[:-1]):
            limits = {}  # a single row is never stepped over
        axis = buffer.shape[-1]
        if name in guarded and isinstance(axis, str):
            limits[axis] = values[axis]
        for what, number in limits.items():
            if number % vector:
                raise LaunchError(
                    f"vector: {name} moves {vector} elements at once, but {what} is {number}; "
                    f"choose a vector that divides it, or pad {what} to a multiple of {vector}"
                )


def _check_inside(program: Program, values: Mapping[str, int]) -> None:
    """Hold accesses against the sizes and 32 bits, at the largest value of each variable."""
    grid = {a.var: a.extent.evaluate(values) - 1 for a in program.grid}
    grid |= {name: extent - 1 for name, extent in program.cluster}
    grid |= {role.copy: role.copies - 1 for role in program.roles if role.copy}
    left: set[str] = set()
    for statement, around in walk(program):
        if isinstance(statement, Exit):
            left |= {v for o in statement.access.origin for v, _ in o.terms}
        if not isinstance(statement, Do):
            continue
        largest = _largest(around, {**values, **grid})
        if largest is None:
            continue
        for access in _global(statement):
            for d, axis in enumerate(access.buffer.shape):
                origin = access.origin[d] if access.origin else None
                names = {v for v, _ in origin.terms} if origin else set()
                first = origin.evaluate({**values, **largest, "zero": 0}) if origin else 0
                end = first + span(access, statement.values, statement.threads, d)
                if end > _LARGEST:
                    raise LaunchError(
                        f"index: {access} counts to {end} along {axis}; coordinates of 32 bits end "
                        f"at {_LARGEST}: split the problem"
                    )
                if (access.guard and bool(access.guard[d])) or names & left:
                    continue
                size = values[axis] if isinstance(axis, str) else axis
                if end > size:
                    raise LaunchError(
                        f"inside: {access} reaches {end} along {axis}, which is {size}, with no "
                        f"guard; make {axis} a multiple of the tile, or choose guarded edges"
                    )


def _largest(around: tuple[Block, ...], values: dict[str, int]) -> dict[str, int] | None:
    """Return the variables' largest values under these loops and guards; None if it never runs."""
    largest = dict(values)
    for outer in around:
        if isinstance(outer, ForTile | Elect):
            continue
        bound: int | str = outer.trips if isinstance(outer, For) else outer.bound
        limit = values[bound] if isinstance(bound, str) else bound
        if isinstance(outer, For):
            if limit <= outer.start:
                return None
            largest[outer.var] = limit - 1
        elif len(outer.index.terms) == 1 and outer.index.terms[0][1] == 1:
            name = outer.index.terms[0][0]
            largest[name] = min(largest[name], limit - 1 - outer.index.constant)
            if largest[name] < 0:
                return None
    return largest


def _check_index(program: Program, named: Mapping[str, View]) -> None:
    if program.addressing != "i32":
        return
    for name, v in named.items():
        last = sum((e - 1) * s for e, s in zip(v.shape, v.strides, strict=True))
        if last >= 2**31:
            raise LaunchError(
                f"{name}: offsets up to {last} do not fit 32-bit indices; choose addressing "
                '"pointer" or "i64"'
            )
