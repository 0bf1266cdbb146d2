"""Kernels of this project's terms, run by the PTX interpreter on small arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.codegen.emit import emit
from tinygpu.codegen.emulator import Module, Report
from tinygpu.codegen.run.interpretation import execute
from tinygpu.isa.memory import DTYPES
from tinygpu.machines import MACHINES
from tinygpu.meaning.tolerance import ulp
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.program import Program

Array = NDArray[Any]


def unchecked(
    program: Program, arch: str = "sm_90a", sizes: Mapping[str, int] | None = None
) -> str:
    """Return the PTX of a term that need not be legal."""
    return emit(program, arch, sizes, unchecked=True)


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
    text = text or unchecked(program, arch, sizes)
    operation = program.operation
    rng = np.random.default_rng(5)
    arrays = {}
    for operand in operation.operands:
        shape = operation.shapes(sizes)[operand.name]
        values = DTYPES[operand.dtype].round(rng.standard_normal(shape))
        if operand is operation.output:
            values.reshape(-1).view(np.uint8)[:] = 0 if "red." in text else 0xFF
        arrays[operand.name] = values
    report = execute(program, sizes, arrays, parsed(text), clusters=clusters, **how)
    a, b = (arrays[o.name].astype(np.float64) for o in operation.inputs)
    if operation.inputs[0].axes[0] == "k":
        a = a.T
    if operation.inputs[1].axes[0] == "n":
        b = b.T
    exact, size = a @ b, np.abs(a) @ np.abs(b)
    output = arrays[operation.output.name]
    bound = 4 * 2.0**-24 * math.sqrt(sizes["k"]) * size + ulp(exact, operation.output.dtype)
    return Outcome(report, output.astype(np.float64), exact, bound)
