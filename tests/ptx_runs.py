"""Kernels of this project's terms, run by the PTX interpreter on small arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.codegen.emit import emit, signature
from tinygpu.codegen.interpreter import Memory, Module, Report, TensorMap, launch
from tinygpu.codegen.smem import smem_plan
from tinygpu.codegen.tensor_map import tensor_maps
from tinygpu.machine import Chosen
from tinygpu.machines import MACHINES
from tinygpu.memory import DTYPES
from tinygpu.operation import matmul
from tinygpu.program import Program

Array = NDArray[Any]


@dataclass(frozen=True)
class Outcome:
    """What a run reported, its output as float64, and the exact product with its error bound."""

    report: Report
    output: Array
    exact: Array
    bound: Array

    @property
    def right(self) -> bool:
        return bool((np.abs(self.output - self.exact) <= self.bound).all())


@functools.cache
def term(machine: str, dtype: str, layout: str, point: tuple[tuple[str, Any], ...]) -> Program:
    return MACHINES[machine].program(matmul(dtype, layout=layout), Chosen(dict(point)))


def term_of(
    machine: str, point: Mapping[str, Any], dtype: str = "f32", layout: str = "nn"
) -> Program:
    return term(machine, dtype, layout, tuple(point.items()))


@functools.cache
def parsed(text: str) -> Module:
    return Module.parse(text)


def run_matmul(
    program: Program,
    sizes: Mapping[str, int],
    *,
    text: str = "",
    arch: str = "sm_90a",
    clusters: int = 3,
    **how: Any,
) -> Outcome:
    """Run a matmul's kernel (or another ``text`` of it); a persistent one has few ``clusters``."""
    text = text or emit(program, arch, sizes)
    operation = program.operation
    rng = np.random.default_rng(5)
    memory, arrays, places = Memory(), {}, {}
    for operand in operation.operands:
        shape = operation.shapes(sizes)[operand.name]
        values = DTYPES[operand.dtype].round(rng.standard_normal(shape))
        if operand is operation.output:
            values.reshape(-1).view(np.uint8)[:] = 0 if "red." in text else 0xFF
        arrays[operand.name] = values
        places[operand.name] = memory.allocate(values, operand.name)
    maps = []
    for tensor_map in tensor_maps(program):
        held = arrays[tensor_map.buffer]
        shape = tuple(reversed(held.shape))
        pitch = shape[0] * held.itemsize
        maps.append(
            TensorMap(
                places[tensor_map.buffer], tensor_map.dtype, shape, (pitch,), tensor_map.box,
                tensor_map.swizzle,
            )
        )  # fmt: skip
    numbers = dict(program.parameter_values(sizes))
    extents = program.grid_extents(sizes)
    numbers |= {f"grid_{a.var}": n for a, n in zip(program.grid, extents, strict=True)}
    integers = [] if program.specialised else [int(numbers[n]) for n in signature(program)]
    cluster = math.prod(extent for _, extent in program.cluster)
    ctas = math.prod(extents) * cluster
    if program.persistent:
        ctas = min(ctas, clusters * cluster)
    report = launch(
        parsed(text), program.name, ctas, program.threads, [*maps, *places.values(), *integers],
        memory, smem_bytes=smem_plan(program).total_bytes, **how,
    )  # fmt: skip
    a, b = (arrays[o.name].astype(np.float64) for o in operation.inputs)
    if operation.inputs[0].axes[0] == "k":
        a = a.T
    if operation.inputs[1].axes[0] == "n":
        b = b.T
    exact, size = a @ b, np.abs(a) @ np.abs(b)
    output = arrays[operation.output.name]
    unit = 2.0 ** -(8 if output.dtype.itemsize == 2 else 24)
    bound = 4 * 2.0**-24 * math.sqrt(sizes["k"]) * size + 2 * unit * np.abs(exact) + 1e-30
    return Outcome(report, output.astype(np.float64), exact, bound)
