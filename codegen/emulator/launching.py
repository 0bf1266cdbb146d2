"""A launch: arguments become parameters, the grid becomes batches of resident clusters.

Clusters of one batch run together, as many as fit ``_RESIDENT_THREADS`` and ``_RESIDENT_BYTES``;
batches follow each other, so a kernel whose CTAs wait for CTAs far away in the grid cannot end
here.

>>> sorted(FAMILIES["Matrices of a warp"])[:2]
['ldmatrix', 'mma.sp.sync']

Source: PTX ISA 9.0, sections 3 and 5.1.6 (kernel parameters).
"""

from __future__ import annotations

import contextlib
import numbers
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import (
    arithmetic,
    barriers,
    cancelling,
    control,
    copies,
    logic,
    map_objects,
    matrices,
    moves,
    parser,
    tcgen05,
    warp,
    wgmma,
)
from .accesses import PARTY, Grid
from .decoder import Builder, Code, decode
from .errors import LaunchError, ProgramError
from .forms import FORMS
from .functions import address_of
from .memory import Memory
from .report import NOT_CHECKED, Array, Finding, Report, gathered
from .run import WARP, Run
from .tensor_map import TensorMap
from .values import TYPES, constant, immediate, typed

__all__ = ["FAMILIES", "TABLE", "Module", "launch"]

TABLE: Mapping[str, Builder] = {
    entry: builder
    for family in (
        moves, arithmetic, logic, control, warp, barriers, copies, cancelling, map_objects,
        matrices, wgmma, tcgen05,
    )
    for entry, builder in family.TABLE.items()
}  # fmt: skip
"""What builds each entry."""

FAMILIES: Mapping[str, Mapping[str, Builder]] = {
    family: {f.entry: TABLE[f.entry] for f in FORMS if f.family == family}
    for family in dict.fromkeys(form.family for form in FORMS)
}
"""Each family's builders by entry, as the table of forms has them."""
_RESIDENT_THREADS = 8192
_RESIDENT_BYTES = 1 << 23
_RESIDENT_LOCAL = 1 << 27
_COMPLETIONS = ("late", "early", "random")
LANES_AT_MOST = 256
_SHARED_MOST = {"sm_120a": 101_376, "sm_120f": 101_376, "sm_121a": 101_376}
_MOST_BYTES = 232_448  # spec: of sm_90 and later, which PTX for older ones runs on too
_CLUSTER_MOST = 16  # spec: 8, or 16 where the kernel allows a size that is not portable


@dataclass(slots=True)
class Module:
    """Parsed PTX; kernels are decoded when they are first launched."""

    parsed: parser.Parsed
    _codes: dict[tuple[str, int], tuple[Memory | None, Code]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Module:
        """Read PTX.  Raises ProgramError with the line of what cannot be read."""
        return cls(parser.parse(text))

    def code(self, name: str, memory: Memory) -> Code:
        """Return a decoded kernel, its global variables allocated in ``memory``.

        Raises LaunchError for an unknown kernel, ProgramError for an instruction that is not run.
        """
        kernel = self.parsed.kernels.get(name)
        if kernel is None:
            raise LaunchError(f"kernel {name}: the module has {', '.join(self.parsed.kernels)}")
        held = [v for v in self.parsed.variables if v.space in ("global", "const")]
        owner = memory if held else None  # else one decoding serves all memories
        key = (name, id(owner))
        if key not in self._codes:
            bytes_of = {v.name: np.zeros(max(1, v.bytes), np.uint8) for v in held}
            places = {name: memory.allocate(raw, name) for name, raw in bytes_of.items()}
            for variable in held:
                _fill(self.parsed, variable, bytes_of[variable.name], places)
            self._codes[key] = (owner, decode(self.parsed, kernel, TABLE, places, wgmma.watch))
        return self._codes[key][1]


def _fill(
    parsed: parser.Parsed, variable: parser.Variable, held: Array, places: dict[str, int]
) -> None:
    """Write what a variable begins with: numbers, and addresses of variables and functions."""
    kind = variable.type if variable.type in TYPES else "b8"
    dtype = TYPES[kind]
    for n, text in enumerate(filter(None, map(str.strip, re.split("[{},]", variable.values)))):
        plain = re.sub(r"generic\((.*)\)", r"\1", text)
        name, _, offset = (part.strip() for part in plain.partition("+"))
        value: Any = None
        if name in places:
            if (more := constant(offset or "0")) is not None:
                value = typed(places[name] + more, dtype)
        elif name in parsed.functions:
            value = np.array(address_of(parsed, name)).astype(dtype)
        else:
            with contextlib.suppress(ValueError):
                value = immediate(text, kind)
        if value is None:
            raise ProgramError(f"PTX variable {variable.name}: cannot read the value {text!r}")
        raw = np.array(value, dtype).reshape(1).view(np.uint8)
        if (n + 1) * len(raw) > len(held):
            raise ProgramError(f"PTX variable {variable.name}: more values than its {len(held)} B")
        held[n * len(raw) : (n + 1) * len(raw)] = raw


Extent = int | tuple[int, ...]


def launch(
    module: Module,
    kernel_name: str,
    grid: Extent,
    block: Extent,
    arguments: Sequence[object],
    memory: Memory,
    *,
    cluster: Extent = 1,
    seed: int = 0,
    completion: str = "late",
    smem_bytes: int = 0,
    limit: int = 5_000_000,
    lanes: bool | None = None,
    races: bool = True,
    dependent: bool = False,
) -> Report:
    """Run a kernel; what it writes is in the arrays of ``memory``.

    ``grid`` counts CTAs, ``block`` threads, ``cluster`` CTAs of a cluster; ``arguments`` are
    numbers and TensorMap objects, one a parameter; ``smem_bytes`` are the dynamic ones; ``limit``
    bounds the instructions of all groups: a run beyond it ends with a finding.  ``completion`` says
    when asynchronous operations are performed.  With ``lanes`` each thread is an agent of its own,
    so that races inside a warp are found; it is the default where a cluster has at most
    ``LANES_AT_MOST`` threads.  With ``races`` those on global memory are found;
    ``dependent`` says that the kernel launched before in ``memory`` may still run, as
    griddepcontrol has it.

    Raises LaunchError for arguments that the kernel cannot take, ProgramError for an instruction
    that is not run.
    """
    now: Run | None = None

    def where() -> str:
        return f"PTX {now.code.instructions[now.pc]}" if now else f"kernel {kernel_name}"

    with parser.guarded(where), np.errstate(all="ignore"):
        code = module.code(kernel_name, memory)
        kernel = module.parsed.kernels[kernel_name]
        grid3, block3 = _three(grid), _three(block)
        shape = _three(kernel.directives.get("reqnctapercluster", cluster))
        shared = code.static_bytes + smem_bytes
        _check(module.parsed, kernel, (grid3, block3, shape), completion, shared)
        parameters, maps = _parameters(kernel, code, arguments)
        findings: dict[tuple[str, int, int], Finding] = {}
        counts, budget = [0] * len(code.steps), [limit]
        total, done, elapsed = int(np.prod(grid3)), 0, 0
        threads = -(-int(np.prod(block3)) // 128) * 128
        size = int(np.prod(shape))
        if lanes is None:
            lanes = size * int(np.prod(block3)) <= LANES_AT_MOST
        local = threads * (code.local_bytes + code.call_bytes)
        room = min(
            _RESIDENT_THREADS // threads,
            _RESIDENT_BYTES // max(1, shared),
            _RESIDENT_LOCAL // max(1, local),
        )
        # CTAs of a cooperative launch wait for all others
        cooperative = any("%envreg" in o for i in code.instructions for o in i.operands)
        batch = total if cooperative else max(1, room // size) * size
        if any(i.parts[0] == "clusterlaunchcontrol" for i in code.instructions):
            batch = min(batch, max(1, total // size // 2) * size)  # so that there is one to take
        workspace = memory.allocate(np.zeros(64, np.uint32), "grid workspace") if cooperative else 0
        each = threads // (1 if lanes else WARP)
        if races and total * each > PARTY // 2:
            raise LaunchError(f"grid: {total} CTAs are too many for races in global memory")
        before = memory.last if dependent else None
        held = Grid(total * each, each, size, code.global_granule, before) if races else None
        memory.last = held
        while done < total:
            begin = [min(done + batch, total)]
            now = run = Run(
                code=code,
                memory=memory,
                grid=grid3,
                block=block3,
                cluster=size,
                cluster_shape=shape,
                first_cta=done,
                ctas=begin[0] - done,
                next_cta=begin,
                parameters=parameters,
                tensor_maps=maps,
                shared_bytes=shared,
                dynamic_bytes=smem_bytes,
                completion=completion,
                random=random.Random(f"{seed}.{done}"),
                findings=findings,
                counts=counts,
                budget=budget,
                workspace=workspace,
                elapsed=elapsed,
                unit=1 if lanes else WARP,
                races=held,
                log=held.log if held else [-1],
            )
            run.run()
            if not run.live.any():
                barriers.unfinished(run)
                copies.unfinished(run)
                tcgen05.unfinished(run)
            done, elapsed = begin[0], run.now()
            if any(f.kind in ("deadlock", "limit") for f in findings.values()):
                break
        issued: dict[str, int] = {}
        for instruction, count in zip(code.instructions, counts, strict=True):
            if count:
                issued[instruction.opcode] = issued.get(instruction.opcode, 0) + count
        return Report(gathered(findings.values()), issued, () if races else NOT_CHECKED)


def _three(extent: Extent) -> tuple[int, int, int]:
    given = (extent,) if isinstance(extent, int) else tuple(extent)
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


def _check(
    parsed: parser.Parsed, kernel: parser.Kernel, extents: Sequence[tuple[int, int, int]],
    completion: str, shared: int,
) -> None:  # fmt: skip
    """Raise LaunchError for a launch that the kernel or its target does not take."""
    grid, block, cluster = extents
    threads, ctas = int(np.prod(block)), int(np.prod(cluster))
    required = _three(kernel.directives.get("reqntid") or block)
    allowed = int(np.prod(kernel.directives.get("maxntid") or threads))
    most = _SHARED_MOST.get(parsed.target, _MOST_BYTES)
    faults = {
        f"completion: {completion!r}; known are {', '.join(_COMPLETIONS)}":
            completion not in _COMPLETIONS,
        f"grid {grid}, block {block}, cluster {cluster}: at least 1 each":
            min(*grid, *block, *cluster) < 1,
        f"grid: {grid} CTAs are no multiple of the cluster's {cluster}":
            any(g % max(1, c) for g, c in zip(grid, cluster, strict=True)),
        f"block: {block}, the kernel requires {required} (.reqntid)": required != block,
        f"block: {threads} threads, the kernel allows {allowed} (.maxntid)": threads > allowed,
        f"block: {block} are {threads} threads; a CTA has 1024 at most": threads > 1024,
        f"shared memory: {shared} B; a CTA of {parsed.target or 'any'} has {most} B": shared > most,
        f"cluster: {ctas} CTAs; {_CLUSTER_MOST} are the most": ctas > _CLUSTER_MOST,
    }  # fmt: skip
    for law, broken in faults.items():
        if broken:
            raise LaunchError(law)


def _parameters(
    kernel: parser.Kernel, code: Code, arguments: Sequence[object]
) -> tuple[Array, dict[int, TensorMap]]:
    """Return the bytes of the parameters, and the tensor maps by their offset."""
    if len(arguments) != len(kernel.parameters):
        names = ", ".join(p.name for p in kernel.parameters)
        raise LaunchError(f"{kernel.name}: {len(arguments)} arguments for its parameters: {names}")
    held, maps = np.zeros(max(1, code.parameter_bytes), np.uint8), {}
    for parameter, argument in zip(kernel.parameters, arguments, strict=True):
        at = code.parameter_at[parameter.name]
        if isinstance(argument, TensorMap):
            if parameter.bytes != 128:
                raise LaunchError(f"{parameter.name}: {parameter.bytes} B, a tensor map has 128")
            maps[at], held[at : at + 128] = argument, map_objects.encoded(argument)
            continue
        if isinstance(argument, np.ndarray | bytes):
            raw = np.frombuffer(bytes(argument), np.uint8)
        else:
            dtype = TYPES.get(parameter.type, np.dtype(np.void))
            number = numbers.Real if dtype.kind == "f" else numbers.Integral
            whole = isinstance(argument, numbers.Real) and argument % 1 == 0
            if parameter.bytes != dtype.itemsize or not (whole or isinstance(argument, number)):
                raise LaunchError(f"{parameter.name}: {argument!r} for its {parameter.bytes} B")
            raw = typed(argument, dtype).reshape(1).view(np.uint8)
        if len(raw) != parameter.bytes:
            raise LaunchError(f"{parameter.name}: {len(raw)} B given, it has {parameter.bytes}")
        held[at : at + len(raw)] = raw
    return held, maps
