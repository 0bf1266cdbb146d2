"""Views: arrays of any GPU library as a kernel sees them.

A *view* is an address, a data type, a shape, and strides counted in elements.  CuPy arrays and
PyTorch tensors are read directly, others by the CUDA Array Interface.

Source: CUDA Array Interface, version 3.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinygpu.errors import LaunchError

__all__ = ["TORCH_TYPES", "WIDTHS", "View", "is_torch", "reader", "view"]

WIDTHS = {
    "f64": 8, "f32": 4, "tf32": 4, "f16": 2, "bf16": 2, "e4m3": 1, "e5m2": 1, "u8": 1,
    "i32": 4,
}  # fmt: skip
"""The bytes of an element, by its data type."""
_TYPESTR = {"f8": "f64", "f4": "f32", "f2": "f16", "V2": "bf16", "u2": "bf16", "u1": "u8",
            "i4": "i32"}  # fmt: skip
TORCH_TYPES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "i32": "int32",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
}
"""PyTorch's names of data types."""
_TORCH = {f"torch.{theirs}": dtype for dtype, theirs in TORCH_TYPES.items()}
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
        return self.pointer, self.pointer + (last + 1) * WIDTHS.get(self.dtype, 16)


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
