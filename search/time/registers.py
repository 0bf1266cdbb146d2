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

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tinygpu.devices.device import Device
from tinygpu.numbers import Change, Number, Truth
from tinygpu.search.time.register_quantities import (
    BENDS,
    ENDLESS,
    KINDS,
    Addend,
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
    "one": (13.4, 14, 12.9, 18.4, 36.7, 42.2, 7.42, 10.8, 13.4),
    "kept": (1.17, 1.17, 1.22, 1.48, 1.17, 1.53, 1.6, 1.37, 1.38),
    "alone": (-3.92, -7.03, -3.01, 0, 0, 0, 7.42, 10.8, 13.4),
    "i32": (-2.46, -2.21, -1.14, -1.17, 10.8, 19.6, -0.1, -8.26, -3),
    "i64": (2.42, 2.77, 1.37, -0.028, 8.69, 19, 1.07, -3.88, 9.64),
    "specialised": (0.675, 0.709, -1.53, 0.016, 16, 4.36, -0.755, 3.62, 0.215),
    "asynchronous": (5.23, 7.44, 6.02, 21.6, 50.3, 60.8, 5.86, -2.11, 2.12),
    "red": (2.29, 2.25, 2.75, 2.53, 1.16, 3.57, 0.272, 3.54, 1.25),
    "narrow": (0.583, 0.576, 0.984, 0.431, 0.113, 3.18, 0.507, 0.617, 0.498),
    "wide": (0.187, 0.184, 0.269, 0.226, 0.31, 0.079, 0.131, 0.104, 0.826),
    "merged": (0.192, 0.156, 0.328, 0.452, 0.238, 0.038, 0.382, 0.045, 0.03),
    "body_32": (0.415, 0.42, 0.384, 0.356, 0.575, 0.623, 0.303, 0.41, 0.161),
    "body_96": (-0.066, -0.069, -0.055, 0.316, 0.373, 0.462, -0.103, -0.096, -0.075),
    "body_256": (0.003, 0.009, -0.005, 0.187, 0.409, 0.297, -0.002, -0.039, 0.028),
    "body_1280": (-0.007, -0.006, -0.005, 0.029, 0.083, 0.043, -0.004, -0.013, -0.003),
    "body_more": (0.069, -0.002, -0.002, -0.05, -0.038, -0.05, 0.002, 0.002, 0.002),
    "products_64": (-0.109, -0.102, -0.13, -0.23, -0.126, -0.143, 0.131, 0.091, -0.084),
    "products_256": (-0.009, -0.01, -0.008, -0.198, -0.211, -0.106, -0.059, -0.028, -0.046),
    "products_1024": (-0.006, -0.004, 0.008, -0.061, -0.121, -0.145, -0.011, 0.009, 0),
    "products_more": (-0.003, -0.004, 0, -0.015, -0.044, -0.027, 0.004, 0, 0.006),
    "ahead": (-0.909, 0.163, 0.536, 3.16, 5.85, 7.59, -3.01, -8.16, -0.814),
    "waiting": (0.37, 0.196, 0.061, 0.812, 1.35, 2.25, 0.337, -0.411, -0.51),
    "moved_vectors": (0.044, 0.035, 0.044, 0.388, 0.489, 0.45, 0.215, 0.205, -0.045),
    "moved_guards": (0.262, 0.244, 0.254, -0.226, -0.287, -0.258, -0.118, 0.005, -0.08),
    "moved_lines": (0.051, 0.012, 0.045, 0.558, 0.995, 1.02, 0.586, 0.323, 0.455),
    "direct_16": (-0.156, -0.301, -0.374, 0.312, -0.386, -0.682, -0.368, -1.12, -0.81),
    "direct_64": (0.032, 0.05, 0.044, 0.86, 0.473, 0.47, 0.204, 0.315, -0.04),
    "direct_256": (0.01, 0.036, 0.038, 0.218, -0.029, 0.111, -0.171, -0.227, -0.102),
    "direct_more": (-0.001, -0.025, 0.002, 0, 0, 0, 0.114, 0.17, 0.31),
    "direct_vectors": (-0.046, -0.038, -0.04, 0.146, 0.069, 0.082, 0.075, 0.046, 0.032),
    "direct_lines": (-0.095, -0.028, 0.044, 0.359, 0.611, 0.357, -0.161, 0.063, 0.136),
    "direct_guards": (0.09, 0.097, 0.095, 0.123, 0.032, 0.046, 0.042, 0.03, -0.018),
    "pointer_rows": (0.084, 0.159, 0.198, 0.287, 0.331, 0.196, 0.259, 0.038, 0.34),
    "i32_rows": (0.213, 0.159, 0.282, 0.037, 0.483, -0.296, -0.015, 0.234, 0.201),
    "i64_rows": (0.234, 0.225, 0.341, 1, 0.787, 0.673, 0.467, 0.097, 0.168),
    "stored": (-0.042, -0.01, 0.075, 0.084, -0.562, 0.298, -0.347, -0.045, -0.212),
    "store_lines": (0.191, 0.184, 0.085, -0.3, -0.875, 0.027, 0.302, 1.3, -0.208),
    "swizzled_reads": (0.026, 0.012, 0.017, 0.207, -0.024, 0.061, 0.111, -0.019, 0.152),
    "swizzled_writes": (-0.14, -0.093, -0.08, 1.72, 0.674, -0.053, -0.64, -0.463, 0.244),
}  # fmt: skip
"""What a piece of a quantity adds; its number is the piece's end."""


def register_estimate(
    program: Program, *, weights: Mapping[str, tuple[float, ...]] | None = None
) -> Number:
    """Return the registers a thread needs so as not to spill: a number, or an array of them."""
    return RegisterModel.of(program, weights=weights).registers()


def used_estimate(
    program: Program, device: Device, *, weights: Mapping[str, tuple[float, ...]] | None = None
) -> Number:
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

    least: tuple[Addend, ...]
    most: tuple[Addend, ...]
    parts: tuple[tuple[tuple[tuple[Addend, Addend], ...], tuple[int, ...], tuple[float, ...]], ...]

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
        kept, most = found["kept"], tuple[Addend, ...]((ENDLESS,))
        if goal == "need":
            most = (*((8.0, worth(words)) for words in kept), _LEAST)
        return RegisterModel((*kept, _LEAST), most, tuple(parts))

    def mapped(self, low: Change, high: Change) -> RegisterModel:
        """Apply ``low`` to each number's least value and ``high`` to its greatest."""

        def each(function: Change, addend: Addend) -> Addend:
            return tuple(map(function, addend)) if isinstance(addend, tuple) else function(addend)

        parts = tuple(
            (tuple((each(low, least), each(high, most)) for least, most in addends), bends, weights)
            for addends, bends, weights in self.parts
        )
        least, most = (tuple(each(low, addend) for addend in x) for x in (self.least, self.most))
        return RegisterModel(least, most, parts)

    def registers(self) -> Number:
        """Return the estimate, or a lower bound of it where addends are only bounded."""
        total: Number = 0.0
        for addends, bends, weights in self.parts:
            least: Number = 0.0
            most: Number = 0.0
            for low, high in addends:
                least, most = least + worth(low), most + worth(high)
            start = 0
            for bend, weight in zip(bends or (ENDLESS,), weights, strict=True):
                amount = least if weight > 0 else most
                total = total + weight * piece(amount, start, bend)
                start = bend
        least, most = (sum(map(worth, addends)) for addends in (self.least, self.most))
        return np.maximum(np.minimum(total, most), least)


def register_limit(program: Program, device: Device) -> Number:
    """Return the registers a thread may have, given ``ctas_per_sm`` of the program.

    A scheduler has its own part of the registers, and the warps are dealt out to the schedulers.
    """
    threads_per_warp = device.threads_per_sm // device.warps_per_sm
    schedulers = device.warp_schedulers_per_sm
    warps = program.threads * program.ctas_per_sm // threads_per_warp
    warps = np.maximum(-(-warps // schedulers), 1)  # of the scheduler that has most
    shared = device.registers_per_sm // schedulers // (warps * threads_per_warp)
    unit = device.register_allocation_unit
    most: Number = np.minimum(shared // unit * unit, device.registers_per_thread_max)
    return most


def spill_estimate(program: Program, device: Device) -> Number:
    """Return the registers by which the estimate exceeds the limit; 0 if it does not."""
    return np.maximum(register_estimate(program) - register_limit(program, device), 0)


def predicted_spill(program: Program, device: Device) -> Truth:
    """Say whether the assembler will put registers into local memory: a bool, or an array."""
    return spill_estimate(program, device) > 0
