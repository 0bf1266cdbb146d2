"""Registers: how many a thread will need, before there is any code to assemble.

The assembler decides, by heuristics of its own that no formula follows; this is a fitted model.  A
program's term gives *quantities*, each in 32-bit registers or in counts:

    kept     values alive across a loop: sums, and tiles loaded before it and stored after it
    narrow   the smallest operand of the multiply-add in a step (all of it is held)
    wide     the other operands (they pass by)
    merged   what neighbouring reads of smem along the loop bring early: ptxas joins them to 16 B
    body     all operands that the unrolled steps between two barriers read, and their products
    direct   of these, what comes from global memory: words, vectors, rows (addresses), guards
    moved    vectors of a copy into shared memory, its guards, and what waits between load and store
    swizzled addresses in a swizzled buffer, each of which is worked out

and each estimate is affine in them, body and the like bent where the fit wanted it; the
coefficients depend on the arithmetic (fp32, fp64, or fp32 products in fp64 sums), which changes how
far ahead the assembler loads.  Everything is computed from the term's numbers by arithmetic alone,
so these may be arrays over a space.  There are three estimates:

    need     the fewest registers that do without a spill
    want     what the assembler takes if it may (more loads ahead), for ``ctas_per_sm`` above 1
    free     what it takes for ``ctas_per_sm`` 1: it then weighs occupancy by itself

A thread may have ``register_limit`` registers: what a quarter of an SM has, shared among the warps
of ``ctas_per_sm`` CTAs that stand on it, in units of 8.  Spills are predicted where the need is
more; ``used_estimate`` is what the assembler will report.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> naive, tuned = (Simt().program(matmul(), Chosen(LADDER[n])) for n in ("naive", "tuned"))
>>> float(register_estimate(naive)) < float(register_estimate(tuned))
True
>>> bool(predicted_spill(tuned, load_device("h200")))
False

Source: fitted to ptxas 13.0 on sm_90a; ``python -m benchmarks.registers`` and its results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinygpu.devices.device import Device
from tinygpu.search.time.register_quantities import (
    BENDS,
    ENDLESS,
    KINDS,
    amounts,
    arithmetic,
    fragment_registers,
    is_true,
    piece,
    piece_name,
    worth,
)
from tinygpu.term.program import Program, select

__all__ = [
    "WEIGHTS",
    "RegisterModel",
    "predicted_spill",
    "register_estimate",
    "register_limit",
    "spill_estimate",
    "used_estimate",
]

_GOALS = ("need", "want", "free")
# fitted to 90 kernels of the machine ampere: what they need beside fragments, and for each vector
# that a thread copies of a tile
_BESIDE_FRAGMENTS, _MOVED_VECTOR = 26.0, 0.8
_LEAST = 16  # fitted: beside the values kept, no kernel of the sample did with less
# fitted: registers a quantity adds to need, want and free, for each of the kinds of arithmetic
WEIGHTS: Mapping[str, tuple[float, ...]] = {
    "one": (13.4, 13.1, 13.1, 16.6, 24.3, 25, 13.5, 14, 17.6),
    "kept": (1.19, 1.19, 1.17, 1.44, 1.04, 1.51, 1.35, 1.46, 1.39),
    "alone": (-3.75, -8.6, -3.96, 0, 0, 0, 13.5, 14, 17.6),
    "i32": (-1.45, -4.42, -2.02, -2.48, -4.38, -0.232, -3.18, -2.84, -0.885),
    "i64": (1.22, -0.137, 0.952, 5.79, 2.7, -2.4, 0.191, -2.22, -4.73),
    "specialised": (-0.403, -2.6, -0.294, -0.656, 7.4, -4.82, -3.44, -0.018, -14),
    "asynchronous": (2.62, 7.44, 4.66, -3.36, 11.6, 2.7, 6.01, 0.516, 7.34),
    "red": (2.14, 4.11, 1.99, 2.76, 0.078, 0.896, -1.19, 6.66, 1.19),
    "narrow": (0.608, 0.597, 0.995, 0.814, -0.003, 3.48, 0.368, -0.131, 1.23),
    "wide": (0.04, 0.065, 0.021, -0.024, 0.167, -0.408, 0.117, 0.065, 0.116),
    "merged": (0.115, 0.189, 0.223, 0.496, -0.09, 0.216, 0.203, 0.157, -0.319),
    "body_32": (0.213, 0.206, 0.198, 0.488, 0.743, 0.826, 0.124, 0.071, 0.235),
    "body_96": (0.018, 0.026, 0.024, 0.427, 0.779, 1.04, 0.085, 0.186, 0.034),
    "body_256": (-0.009, 0.003, 0.001, 0.197, 0.556, 0.347, 0.028, 0.041, 0.012),
    "body_1280": (-0.005, 0, -0.003, 0.066, 0.082, 0.049, 0, -0.01, -0.026),
    "body_more": (0.032, 0.017, 0.017, -0.057, -0.042, -0.057, -0.104, 0.071, 0.039),
    "products_64": (-0.063, -0.053, -0.059, -0.031, 0.231, 0.424, -0.218, -0.281, -0.214),
    "products_256": (-0.004, 0.005, 0.004, -0.191, -0.114, -0.062, -0.028, -0.017, -0.017),
    "products_1024": (-0.002, 0.002, 0.007, -0.043, -0.092, -0.105, -0.005, 0, 0.023),
    "products_more": (0.003, 0, 0.012, -0.008, -0.01, -0.055, -0.001, -0.018, 0.042),
    "ahead": (0.119, 0.821, 1.1, -4.51, 0.399, -2.48, 3.26, -1.72, 2.18),
    "waiting": (0.183, 0.119, 0.121, 0.028, 0.409, 0.391, 0.154, 0.03, 0.302),
    "moved_vectors": (-0.026, -0.042, 0.051, 0.38, 0.337, 0.406, -0.168, 0.15, 0.387),
    "moved_guards": (0.057, 0.045, 0.114, 0.093, -0.014, -0.128, -0.05, 0.144, 0.298),
    "moved_lines": (0.212, 0.189, 0.268, -0.231, -0.268, -0.199, 0.5, 0.082, 0.416),
    "direct_16": (0.127, 0.236, 0.028, 0.105, -0.423, -0.3, 0.363, 0.035, 0.048),
    "direct_64": (0.061, 0.109, 0.064, 1.35, 0.64, 0.837, -0.013, -0.079, -0.056),
    "direct_256": (0.016, 0.029, -0.026, 0.286, 0.074, -0.019, 0.005, -0.149, -0.035),
    "direct_more": (-0.053, -0.027, -0.021, -0.052, -0.026, -0.052, -0.023, 0.013, 0.009),
    "direct_vectors": (0.028, 0.039, 0.049, 0.067, 0.012, -0.008, -0.008, -0.014, -0.003),
    "direct_lines": (-0.094, -0.143, -0.165, 0.093, -0.041, -0.04, -0.255, -0.132, -0.18),
    "direct_guards": (0.008, 0.014, 0.023, 0.052, -0.008, 0.043, 0.103, 0.118, 0.115),
    "pointer_rows": (0.043, -0.018, -0.004, 0.214, 0.117, -0.28, -0.044, 0.227, -0.765),
    "i32_rows": (0.095, -0.02, 0.06, 0.208, 0.679, -0.076, 0.113, 0.197, -0.358),
    "i64_rows": (0.256, 0.158, 0.269, -0.078, 0.232, 0.422, 0.173, 0.21, -0.513),
    "stored": (-0.066, -0.077, -0.107, -0.062, -0.619, 1, 0.445, 0.543, -0.108),
    "store_lines": (0.225, 0.196, 0.075, 0.302, 0.011, 0.349, -0.714, -0.985, -0.593),
    "swizzled_reads": (0.002, -0.019, -0.003, 0.339, -0.088, 0.023, 0.038, -0.018, -0.021),
    "swizzled_writes": (-0.025, 0.002, -0.061, 0.71, -0.176, 0.237, -0.655, 0.447, -0.022),
}  # fmt: skip
"""What a piece of a quantity adds; its number is the piece's end."""


def register_estimate(
    program: Program, *, weights: Mapping[str, tuple[float, ...]] | None = None
) -> Any:
    """Return the registers a thread needs so as not to spill: a number, or an array of them."""
    return RegisterModel.of(program, weights=weights).registers()


def used_estimate(
    program: Program, device: Device, *, weights: Mapping[str, tuple[float, ...]] | None = None
) -> Any:
    """Return the registers that the assembler will use: a number, or an array of them."""
    need, want, free = (
        RegisterModel.of(program, goal, weights=weights).registers() for goal in _GOALS
    )
    alone = is_true(program.ctas_per_sm == 1)
    wanted = select(alone, free, np.maximum(need, want))
    return np.minimum(wanted, register_limit(program, device))


@dataclass(frozen=True, slots=True)
class RegisterModel:
    """An estimate in parts: addends of its ``least`` and ``most``, and of each quantity.

    The fit was made on kernels that keep many values; one that keeps few needs at most ``most``.

    A quantity is the sum of its addends, cut into pieces at its bends (none: one piece), each with
    a weight; an addend is its least and its greatest value.  A value may be given as factors.  Over
    a space an addend depends on few decisions, while the estimate depends on nearly all.
    """

    least: tuple[Any, ...]
    most: tuple[Any, ...]
    parts: tuple[tuple[tuple[tuple[Any, Any], ...], tuple[int, ...], tuple[float, ...]], ...]

    @staticmethod
    def of(
        program: Program,
        goal: str = "need",
        *,
        weights: Mapping[str, tuple[float, ...]] | None = None,
    ) -> RegisterModel:
        """Return the parts for a term and a goal ("need", "want" or "free")."""
        if fragments := fragment_registers(program):
            moved = amounts(program)["moved_vectors"]
            weighed = ((fragments, 1.0), (moved, _MOVED_VECTOR), ((1.0,), _BESIDE_FRAGMENTS))
            return RegisterModel(
                (0.0,), (ENDLESS,), tuple((tuple((x, x) for x in a), (), (w,)) for a, w in weighed)
            )
        table = WEIGHTS if weights is None else weights
        column = len(KINDS) * _GOALS.index(goal) + KINDS.index(arithmetic(program))
        parts = []
        found = amounts(program)
        for name, addends in found.items():
            bends = BENDS.get(name, ())
            names = [piece_name(name, bend) for bend in bends] or [name]
            slopes = tuple(table[n][column] for n in names)
            pairs = tuple((addend, addend) for addend in addends)
            parts.append((pairs, bends, slopes))
        kept = found["kept"]
        most = (*((8.0, words) for words in kept), _LEAST) if goal == "need" else (ENDLESS,)
        return RegisterModel((*kept, _LEAST), most, tuple(parts))

    def mapped(self, low: Callable[[Any], Any], high: Callable[[Any], Any]) -> RegisterModel:
        """Apply ``low`` to each number's least value and ``high`` to its greatest."""

        def each(function: Callable[[Any], Any], addend: Any) -> Any:
            return tuple(map(function, addend)) if isinstance(addend, tuple) else function(addend)

        parts = tuple(
            (tuple((each(low, least), each(high, most)) for least, most in addends), bends, weights)
            for addends, bends, weights in self.parts
        )
        least, most = (tuple(each(low, addend) for addend in x) for x in (self.least, self.most))
        return RegisterModel(least, most, parts)

    def registers(self) -> Any:
        """Return the estimate, or a lower bound of it where addends are only bounded."""
        total: Any = 0.0
        for addends, bends, weights in self.parts:
            least: Any = 0.0
            most: Any = 0.0
            for low, high in addends:
                least, most = least + worth(low), most + worth(high)
            start = 0
            for bend, weight in zip(bends or (ENDLESS,), weights, strict=True):
                amount = least if weight > 0 else most
                total = total + weight * piece(amount, start, bend)
                start = bend
        least, most = (sum(map(worth, addends)) for addends in (self.least, self.most))
        return np.maximum(np.minimum(total, most), least)


def register_limit(program: Program, device: Device) -> Any:
    """Return the registers a thread may have, given ``ctas_per_sm`` of the program.

    A scheduler has its own part of the registers, and the warps are dealt out to the schedulers.
    """
    threads_per_warp = device.threads_per_sm // device.warps_per_sm
    schedulers = device.warp_schedulers_per_sm
    warps = program.threads * program.ctas_per_sm // threads_per_warp
    warps = np.maximum(-(-warps // schedulers), 1)  # of the scheduler that has most
    shared = device.registers_per_sm // schedulers // (warps * threads_per_warp)
    unit = device.register_allocation_unit
    return np.minimum(shared // unit * unit, device.registers_per_thread_max)


def spill_estimate(program: Program, device: Device) -> Any:
    """Return the registers by which the estimate exceeds the limit; 0 if it does not."""
    return np.maximum(register_estimate(program) - register_limit(program, device), 0)


def predicted_spill(program: Program, device: Device) -> Any:
    """Say whether the assembler will put registers into local memory: a bool, or an array."""
    return spill_estimate(program, device) > 0
