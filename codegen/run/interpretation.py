"""A term's code, interpreted: its PTX is run on NumPy arrays and held against float64.

The text that would go to the driver is executed by ``tinygpu.codegen.emulator``, in one order of
its asynchronous operations or several; the output is right by the rule of
``tinygpu/meaning/tolerance.py``. Nothing here tells how long a kernel takes.

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> term = Simt().program(matmul("f32"), Chosen(LADDER["naive"]))
>>> found = interpret(term, {"m": 20, "n": 12, "k": 8}, arch="sm_90a", completions=("late",))
>>> found.right, found.findings, found.error < 1
(True, (), True)

Source: ``docs/ptx-interpreter.md``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.codegen.emit import emit, integer_values
from tinygpu.codegen.emulator import Finding, Memory, Module, Report, TensorMap, launch
from tinygpu.codegen.emulator.report import Array
from tinygpu.codegen.kernel.smem import smem_plan
from tinygpu.codegen.kernel.tensor_map import tensor_maps
from tinygpu.codegen.runtime.maps import mapped_array
from tinygpu.isa.memory import DTYPES
from tinygpu.meaning.composition import part_of
from tinygpu.meaning.inputs import drawn_indices, with_pool
from tinygpu.meaning.tolerance import ratio_of
from tinygpu.term.plan import Plan, Term, kernels_of
from tinygpu.term.program import Program

__all__ = ["COMPLETIONS", "Interpretation", "execute", "interpret", "unwritten_outputs"]

COMPLETIONS = ("late", "early", "random")
_SCALAR = 0.5


@dataclass(frozen=True, slots=True)
class Interpretation:
    """What came of it: the worst error over what is allowed, warps' instructions in one order."""

    sizes: Mapping[str, int]
    seed: int
    completions: tuple[str, ...]
    error: float
    instructions: int
    findings: tuple[Finding, ...]

    @property
    def right(self) -> bool:
        """Whether every order gave the right output without a finding."""
        return self.error <= 1 and not self.findings


def interpret(
    term: Term,
    sizes: Mapping[str, int],
    *,
    arch: str,
    seed: int = 0,
    completions: Sequence[str] = COMPLETIONS,
    text: str = "",
    scalars: Mapping[str, float] = MappingProxyType({}),
    clusters: int = 0,
) -> Interpretation:
    """Emit a term for ``arch``, run the PTX (or another ``text``) on random inputs, and check it.

    Inputs are normal, scalars 0.5 unless they are given, outputs are NaN before (0 if the term
    adds to it); ``clusters`` as for ``execute``.  Raises ProgramError for a term without code and
    for PTX that is not run.
    """
    operation, rng = term.operation, np.random.default_rng(seed)
    module = Module.parse(text or emit(term, arch, sizes, unchecked=True))
    pool = with_pool(operation, sizes)
    shapes = operation.shapes(pool)
    inputs = {
        o.name: DTYPES[o.dtype].round(rng.standard_normal(shapes[o.name])) for o in operation.inputs
    }
    inputs |= drawn_indices(operation, pool, rng.standard_normal)
    scalars = {**dict.fromkeys(operation.scalars, _SCALAR), **scalars}
    exact = {name: values.astype(np.float64) for name, values in inputs.items()}
    with np.errstate(over="ignore", under="ignore"):  # far tails of activations
        wanted = operation.reference(exact, scalars)
    errors, findings, issued = [0.0], dict[Finding, None](), 0
    for completion in completions:
        outputs = unwritten_outputs(term, shapes)
        report = execute(
            term, sizes, inputs | outputs, module, scalars=scalars, clusters=clusters, seed=seed,
            completion=completion,
        )  # fmt: skip
        ratios = ratio_of(term, exact, scalars, outputs=outputs, reference=wanted)
        errors += [float(ratio.max()) for ratio in ratios.values()]
        findings |= dict.fromkeys(report.findings)
        issued = sum(report.instruction_counts.values())
    return Interpretation(
        dict(sizes), seed, tuple(completions), max(errors), issued, tuple(findings)
    )


def unwritten_outputs(term: Term, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[Any]]:
    """Return outputs that are NaN, or 0 if the term adds to them."""
    found, zeroed = {}, any(program.zeroed for program in kernels_of(term))
    for o in term.operation.outputs:
        found[o.name] = _nothing(shapes[o.name], o.dtype)
        if zeroed:
            found[o.name].reshape(-1).view(np.uint8)[:] = 0
    return found


def execute(
    term: Term,
    sizes: Mapping[str, int],
    arrays: Mapping[str, Array],
    module: Module,
    *,
    scalars: Mapping[str, float] | None = None,
    clusters: int = 0,
    seed: int = 0,
    completion: str = "late",
    lanes: bool = False,
) -> Report:
    """Run a term's code on arrays by operand, each of its operand's shape; the output is written.

    A persistent term gets ``clusters`` clusters, else half as many as it has tiles for them, so
    that some do several; ``lanes`` as for ``launch``.  A kernel that may start early runs twice,
    the second time while the first may still write, which is reported.  The kernels of a plan run
    one after another, with workspaces that are NaN before.  Raises LaunchError, ProgramError.
    """
    how = {"seed": seed, "completion": completion, "lanes": lanes}
    memory, given = Memory(), scalars or {}
    places = {o.name: memory.allocate(arrays[o.name], o.name) for o in term.operation.operands}
    if not isinstance(term, Plan):
        for dependent in (False, True)[: 1 + (term.early and not term.zeroed)]:
            may = {**how, "dependent": dependent}
            report = _launched(term, sizes, places, arrays, module, memory, given, clusters, may)
            if report.findings:
                break  # a second run might not show them
        return report
    found, counts = list[Finding](), Counter[str]()
    held, between = dict(arrays), {o.name: number for number, o in term.workspaces}
    for number, step in enumerate(term.steps):
        own, operands = step.sizes_at(sizes), {o.name: o for o in step.program.operation.operands}
        for use in step.uses:
            if between.get(use.array) == number and use.array not in held:
                shape = tuple(own[axis] for cut in use.axes for axis in cut)
                held[use.array] = _nothing(shape, operands[use.operand].dtype)
                places[use.array] = memory.allocate(held[use.array], use.array)
        mine = {u.operand: part_of(held[u.array], u, operands[u.operand].axes, own)
                for u in step.uses}  # fmt: skip
        at = {o: places[next(u.array for u in step.uses if u.operand == o)] for o in operands}
        may = {**how, "dependent": bool(number and step.program.early)}
        report = _launched(step.program, own, at, mine, module, memory, given, clusters, may)
        found += report.findings
        counts.update(report.instruction_counts)
    return Report(tuple(found), dict(counts))


def _launched(
    program: Program,
    sizes: Mapping[str, int],
    places: Mapping[str, int],
    arrays: Mapping[str, Array],
    module: Module,
    memory: Memory,
    scalars: Mapping[str, float],
    clusters: int,
    how: Mapping[str, Any],
) -> Report:
    """Launch one kernel on arrays that lie at some places, which may be strided."""
    maps = [
        TensorMap(there.address, m.dtype, there.lengths, there.pitches, there.box, m.swizzle)
        for m in tensor_maps(program)
        for held in [arrays[m.buffer]]
        for there in [mapped_array(m, places[m.buffer], held.itemsize, held.shape, held.strides)]
    ]
    strides = {
        name: step // array.itemsize
        for buffer in program.buffers
        if (array := arrays.get(buffer.name)) is not None and buffer.level == "gmem"
        for name, step, size in zip(buffer.stride, array.strides, array.shape, strict=True)
        if isinstance(name, str) and size > 1
    }
    integers = () if program.specialised else integer_values(program, sizes, strides).values()
    cluster = math.prod(extent for _, extent in program.cluster)
    count = math.prod(program.grid_extents(sizes))
    if program.persistent:
        count = min(count, clusters or max(1, count // 2))
    return launch(
        module,
        program.name,
        count * cluster,
        program.threads,
        [*maps, *places.values(), *integers, *(scalars[s] for s in program.operation.scalars)],
        memory,
        smem_bytes=smem_plan(program).total_bytes,
        **how,
    )


def _nothing(shape: tuple[int, ...], dtype: str) -> Array:
    """Return an array that is NaN: nobody has written it."""
    array = np.empty(shape, DTYPES[dtype].numpy)
    array.reshape(-1).view(np.uint8)[:] = 0xFF
    return array
