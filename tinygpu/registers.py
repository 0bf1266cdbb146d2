"""Registers: how many a thread will need, before there is any code to assemble.

The assembler decides, by scheduling heuristics of its own; this is a model of it, fitted.  A
program's term gives *quantities*, each in 32-bit registers or in counts:

    kept     values alive across a loop: sums, and tiles loaded before it and stored after it
    narrow   the smallest operand of the multiply-add in a step (all of it is held)
    wide     the other operands (they pass by)
    body     all operands that the unrolled steps between two barriers read: some load early
    direct   of these, what comes from global memory, and its rows and columns (addresses)
    staged   rows and vectors of a copy into shared memory, and what waits between load and store
    guards   rows and columns compared with a size

and the estimate is affine in them, body, rows and the like bent where the fit wanted it; the
coefficients depend on the arithmetic (fp32, fp64, or fp32 products in fp64 sums), which changes how
far ahead the assembler loads.  Everything is computed from the term's numbers by arithmetic alone,
so these may be arrays over a space.

A thread may have ``register_limit`` registers: what an SM has, shared among the threads of
``ctas_per_sm`` CTAs, in units of 8.  Spills are predicted where the estimate is more.

>>> from tinygpu.device import load_device
>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.operation import matmul
>>> naive, tuned = (Simt().program(matmul(), Chosen(LADDER[n])) for n in ("naive", "tuned"))
>>> float(register_estimate(naive)) < float(register_estimate(tuned))
True
>>> bool(predicted_spill(tuned, load_device("h200")))
False

Source: fitted to ptxas 13.5 on sm_90a; ``benchmarks/registers.py`` and its results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinygpu.device import Device
from tinygpu.program import Access, Block, Do, Exit, For, Program, select, walk

__all__ = [
    "RegisterModel",
    "predicted_spill",
    "quantities",
    "register_estimate",
    "register_limit",
    "spill_estimate",
]

_KINDS = ("f32", "f64", "f32+f64")
_ENDLESS = 1 << 30
_LEAST = 16  # fitted: beside the values kept, no kernel of the sample did with less
# fitted: registers a quantity adds, for each kind of arithmetic; a name's number is its piece's end
_WEIGHTS: Mapping[str, tuple[float, float, float]] = {
    "one": (-11.45, 15.43, 22.69),
    "kept": (0.98, 0.96, 1.01),
    "narrow": (0.43, 0.09, 0.18),
    "wide": (0.01, 0.08, -0.12),
    "body_32": (-0.64, -0.49, -1.56),
    "body_96": (0.14, 0.04, 0.00),
    "body_256": (0.01, 0.03, 0.04),
    "body_1280": (0.01, 0.01, 0.02),
    "waiting": (0.29, 0.21, 0.36),
    "direct_16": (0.81, 0.59, 0.30),
    "direct_64": (0.38, 0.29, 0.25),
    "direct_256": (0.04, 0.14, 0.09),
    "direct_rows_16": (0.05, 0.48, 0.10),
    "direct_rows_64": (-0.48, -0.69, -0.56),
    "direct_rows_256": (179.77, 24.88, 97.45),
    "direct_columns_16": (1.65, 2.78, 1.83),
    "direct_columns_64": (-0.29, -1.07, -0.59),
    "direct_columns_256": (40.10, -0.67, 18.77),
    "direct_guards_16": (0.94, 0.62, 0.64),
    "direct_guards_64": (-0.51, -0.67, -0.29),
    "direct_guards_256": (7.96, 1.16, 3.94),
    "staged_rows_16": (1.00, 0.56, 1.29),
    "staged_rows_64": (0.20, 0.25, 0.35),
    "staged_rows_256": (0.45, 0.34, 0.53),
    "staged_columns_16": (0.64, 4.03, 6.58),
    "staged_guards_16": (0.78, 0.97, 0.77),
    "staged_guards_64": (0.08, -0.34, 0.04),
    "staged_guards_256": (0.59, 0.45, 0.64),
    "store_rows": (2.71, 2.65, 3.20),
    "store_guards": (5.17, 1.60, 1.22),
    "i32": (-3.77, -5.51, -3.17),
    "i64": (7.27, -3.93, 5.19),
    "swizzle": (0.15, -0.37, 0.80),
    "asynchronous": (14.24, 15.54, 20.88),
    "ahead": (21.90, 22.32, 15.95),
    "exit": (4.48, 1.84, 8.11),
}  # fmt: skip


def register_estimate(program: Program) -> Any:
    """Return the registers a thread needs so as not to spill: a number, or an array of them."""
    return RegisterModel.of(program).registers()


@dataclass(frozen=True, slots=True)
class RegisterModel:
    """The estimate in parts: ``least``, ``most``, and (addends, bends, weights) of each quantity.

    The fit was made on kernels that keep many values; one that keeps few needs at most ``most``.

    A quantity is the sum of its addends, cut into pieces at its bends (none: one piece), each with
    a weight; an addend is its least and its greatest value.  Over a space an addend depends on few
    decisions, while the estimate depends on nearly all.
    """

    least: Any
    most: Any
    parts: tuple[tuple[tuple[tuple[Any, Any], ...], tuple[int, ...], tuple[float, ...]], ...]

    @staticmethod
    def of(program: Program) -> RegisterModel:
        """Return the parts for a term."""
        column = _KINDS.index(_arithmetic(program))
        parts = []
        found = _amounts(program)
        for name, addends in found.items():
            bends = _BENDS.get(name, ())
            names = [f"{name}_{bend}" for bend in bends] or [name]
            weights = tuple(_WEIGHTS[n][column] for n in names if n in _WEIGHTS)
            pairs = tuple((addend, addend) for addend in addends)
            parts.append((pairs, bends[: len(weights)], weights))
        kept = sum(found["kept"])
        return RegisterModel(kept + _LEAST, 8 * kept + _LEAST, tuple(parts))

    def mapped(self, low: Callable[[Any], Any], high: Callable[[Any], Any]) -> RegisterModel:
        """Apply ``low`` to each number's least value and ``high`` to its greatest."""
        parts = tuple(
            (tuple((low(least), high(most)) for least, most in addends), bends, weights)
            for addends, bends, weights in self.parts
        )
        return RegisterModel(low(self.least), low(self.most), parts)

    def registers(self) -> Any:
        """Return the estimate, or a lower bound of it where addends are only bounded."""
        total: Any = 0.0
        for addends, bends, weights in self.parts:
            least: Any = 0.0
            most: Any = 0.0
            for low, high in addends:
                least, most = least + low, most + high
            start = 0
            for bend, weight in zip(bends or (_ENDLESS,), weights, strict=False):
                amount = least if weight > 0 else most
                total = total + weight * _piece(amount, start, bend)
                start = bend
        return np.maximum(np.minimum(total, self.most), self.least)


def register_limit(program: Program, device: Device) -> Any:
    """Return the registers a thread may have, given ``ctas_per_sm`` of the program."""
    shared = device.registers_per_sm // (program.threads * program.ctas_per_sm)
    unit = device.register_allocation_unit
    return np.minimum(shared // unit * unit, device.registers_per_thread_max)


def spill_estimate(program: Program, device: Device) -> Any:
    """Return the registers by which the estimate exceeds the limit; 0 if it does not."""
    return np.maximum(register_estimate(program) - register_limit(program, device), 0)


def predicted_spill(program: Program, device: Device) -> Any:
    """Say whether the assembler will put registers into local memory: a bool, or an array."""
    return spill_estimate(program, device) > 0


def quantities(program: Program) -> dict[str, Any]:
    """Return what the estimate is affine in; see the module's text."""
    found: dict[str, Any] = {}
    for name, addends in _amounts(program).items():
        amount = sum(addends, 0.0)
        found |= _bent(name, amount, _BENDS[name]) if name in _BENDS else {name: amount}
    return found


_BENDS: Mapping[str, tuple[int, ...]] = {
    "body": (32, 96, 256, 1280),
    "direct": (16, 64, 256),
    "direct_rows": (16, 64, 256),
    "direct_columns": (16, 64, 256),
    "direct_guards": (16, 64, 256),
    "staged_rows": (16, 64, 256),
    "staged_columns": (16, 64, 256),
    "staged_guards": (16, 64, 256),
}


def _amounts(program: Program) -> dict[str, tuple[Any, ...]]:
    """Return the addends of each quantity, before it is cut at its bends."""
    kept = _kept(program)
    narrow, wide, body = _operands(program, kept)
    names = {s.instruction.name for s, _ in walk(program) if isinstance(s, Do)}
    return {
        "one": (1.0,),
        "kept": tuple(_words(program, name) for name in kept) or (0.0,),
        "narrow": (narrow,),
        "wide": (wide,),
        "body": body,
        **_loads(program, kept),
        **_stores(program),
        "i32": (select(_equal(program.addressing, "i32"), 1.0, 0.0),),
        "i64": (select(_equal(program.addressing, "i64"), 1.0, 0.0),),
        "swizzle": tuple(2.0 ** b.swizzle[0] - 1 for b in program.buffers if b.level == "smem"),
        "asynchronous": (float("cp.async" in names),),
        "exit": (float(any(isinstance(s, Exit) for s, _ in walk(program))),),
    }


def _equal(text: Any, word: str) -> Any:
    same = np.asanyarray(text) == word
    return bool(same) if same.ndim == 0 else same


def _piece(amount: Any, low: Any, high: Any) -> Any:
    """Return the part of an amount between two bends."""
    return np.minimum(np.maximum(amount - low, 0), high - low)


def _bent(name: str, amount: Any, bends: tuple[int, ...]) -> dict[str, Any]:
    """Cut an amount into the pieces between bends, so that each has a slope of its own."""
    low, pieces = 0, {}
    for high in bends:
        pieces[f"{name}_{high}"] = _piece(amount, low, high)
        low = high
    return pieces


def _words(program: Program, name: str) -> Any:
    """Return a buffer's size in 32-bit registers; two 16-bit values share one."""
    return next(b.bytes for b in program.buffers if b.name == name) / 4


def _kept(program: Program) -> tuple[str, ...]:
    """Return the register buffers whose value crosses the start or the end of a loop."""
    epoch, written, found = 0, dict[str, int](), dict[str, None]()
    path: tuple[int, ...] = ()
    for statement, around in walk(program):
        here = tuple(id(a) for a in around if isinstance(a, For))
        epoch += here != path
        path = here
        if not isinstance(statement, Do):
            continue
        for read in statement.reads:
            if isinstance(read, Access) and read.buffer.level == "registers":
                name = read.buffer.name
                if written.get(name, epoch) != epoch:
                    found[name] = None
        if statement.write.buffer.level == "registers":
            written[statement.write.buffer.name] = epoch
    return tuple(found)


def _operands(program: Program, kept: tuple[str, ...]) -> tuple[Any, Any, tuple[Any, ...]]:
    """Return the words of the narrowest operand, of the others, and of all in unrolled steps."""
    steps: dict[str, Any] = {}
    body: dict[str, Any] = {}
    for statement, around in walk(program):
        if not isinstance(statement, Do) or statement.variant not in ("fma", "mul") or not around:
            continue
        reads = [r.buffer for r in statement.reads if isinstance(r, Access)]
        fresh = [b for b in reads if b.name not in kept]
        for buffer in fresh if len(fresh) > 1 else ():
            steps[buffer.name] = buffer.bytes / 4
            body[buffer.name] = buffer.bytes / 4 * _unrolled(around)
    total: Any = sum(steps.values(), 0.0)
    narrow: Any = total
    for words in steps.values():
        narrow = np.minimum(narrow, words)
    return narrow, total - narrow, tuple(body.values())


def _unrolled(around: tuple[Block, ...]) -> Any:
    """Return how many times the unrolled loops around a statement repeat it."""
    times: Any = 1
    for outer in around:
        if isinstance(outer, For) and outer.unrolled and not isinstance(outer.trips, str):
            times = times * np.maximum(outer.trips, 1)
    return times


def _loads(program: Program, kept: tuple[str, ...]) -> dict[str, tuple[Any, ...]]:
    """Return the quantities of loads from gmem: each operand's first load stands for all."""
    stored = {
        r.buffer.name
        for s, _ in walk(program)
        if isinstance(s, Do) and s.write.buffer.level == "smem"
        for r in s.reads
        if isinstance(r, Access) and r.buffer.level == "registers"
    }
    total: dict[str, tuple[Any, ...]] = dict.fromkeys(_LOADS, ())
    seen: set[str] = set()
    for statement, around in walk(program):
        if not isinstance(statement, Do):
            continue
        source = statement.reads[0] if statement.reads else None
        if not isinstance(source, Access) or source.buffer.level != "gmem":
            continue
        if source.buffer.name in seen:
            continue
        seen.add(source.buffer.name)
        target = statement.write.buffer
        staged = target.level == "smem" or target.name in stored
        where = "staged" if staged else "direct"
        rows, columns = _rows_and_columns(statement, source, () if staged else around)
        total[f"{where}_rows"] += (rows,)
        total[f"{where}_columns"] += (columns,)
        for d, guarded in enumerate(source.guard):
            along = rows if source.buffer.stride[d] != 1 else columns
            name = f"{where}_guards"
            total[name] += (select(_true(guarded), along, 0.0),)
        if staged and target.level == "registers" and target.name not in kept:
            total["waiting"] += (target.bytes / 4,)
        if not staged:
            total["direct"] += (target.bytes / 4 * _unrolled(around),)
        if staged and target.name in kept:
            total["ahead"] = (1.0,)
    return total


_LOADS = (
    "waiting", "ahead", "direct", "direct_rows", "direct_columns", "direct_guards",
    "staged_rows", "staged_columns", "staged_guards",
)  # fmt: skip


def _true(flag: Any) -> Any:
    return bool(flag) if np.ndim(flag) == 0 else np.asanyarray(flag, bool)


def _rows_and_columns(do: Do, access: Access, around: tuple[Block, ...]) -> tuple[Any, Any]:
    """Return how many rows of a gmem operand a thread touches, and how many vectors in each.

    A row is a value of the coordinates whose stride is known only at launch; a loop that is
    unrolled multiplies what its variable moves along.
    """
    rows: Any = 1
    columns: Any = 1
    pitched = [d for d, stride in enumerate(access.buffer.stride) if stride != 1]
    for extent, steps in zip(do.values, access.value, strict=True):
        moves = sum((abs(steps[d]) for d in pitched), 0)
        rows = rows * select(_true(moves != 0), extent, 1)
        columns = columns * select(_true(moves != 0), 1, extent)
    columns = np.maximum(columns / do.vector, 1)
    for outer in around:
        if not isinstance(outer, For) or not outer.unrolled or isinstance(outer.trips, str):
            continue
        names = [{v for v, _ in origin.terms} for origin in access.origin]
        if any(outer.var in names[d] for d in pitched):
            rows = rows * np.maximum(outer.trips, 1)
        elif any(outer.var in found for found in names):
            columns = columns * np.maximum(outer.trips, 1)
    return rows, columns


def _stores(program: Program) -> dict[str, tuple[Any, ...]]:
    """Return the rows of c that a thread stores to, and how many stores are guarded."""
    rows: Any = 0.0
    guards: Any = 0.0
    for statement, _ in walk(program):
        if isinstance(statement, Do) and statement.write.buffer.level == "gmem":
            access = statement.write
            here, _ = _rows_and_columns(statement, access, ())
            rows = rows + here
            for guarded in access.guard:
                guards = guards + select(_true(guarded), 1.0, 0.0)
    return {"store_rows": (rows,), "store_guards": (guards,)}


def _arithmetic(program: Program) -> str:
    """Return the kind of arithmetic: "f32", "f64", or "f32+f64" for both."""
    types = {
        s.write.buffer.dtype
        for s, _ in walk(program)
        if isinstance(s, Do) and s.instruction.unit == "fma"
    }
    return "+".join(sorted(types & {"f32", "f64"})) or "f32"
