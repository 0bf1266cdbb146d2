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
so these may be arrays over a space.  What is estimated is the *need*: the fewest registers that do
without a spill.

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> naive, tuned = (Simt().program(matmul(), Chosen(LADDER[n])) for n in ("naive", "tuned"))
>>> float(register_estimate(naive)) < float(register_estimate(tuned))
True

Source: fitted to ptxas 13.0 on sm_90a; ``python -m benchmarks.registers`` and its results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tinygpu.numbers import Change, Number
from tinygpu.search.time.register_quantities import (
    BENDS,
    ENDLESS,
    KINDS,
    Addend,
    amounts,
    arithmetic,
    fragment_registers,
    piece,
    piece_name,
    worth,
)
from tinygpu.term.program import Program

__all__ = ["WEIGHTS", "RegisterModel", "register_estimate"]

# fitted to 90 kernels of the machine ampere: what they need beside fragments, and for each vector
# that a thread copies of a tile
_BESIDE_FRAGMENTS, _MOVED_VECTOR = 26.0, 0.8
_LEAST = 16  # fitted: beside the values kept, no kernel of the sample did with less
# fitted: registers a quantity adds to the need, for each of the kinds of arithmetic
WEIGHTS: Mapping[str, tuple[float, ...]] = {
    "one": (13.4, 14, 12.9),
    "kept": (1.17, 1.17, 1.22),
    "alone": (-3.92, -7.03, -3.01),
    "i32": (-2.46, -2.21, -1.14),
    "i64": (2.42, 2.77, 1.37),
    "specialised": (0.675, 0.709, -1.53),
    "asynchronous": (5.23, 7.44, 6.02),
    "red": (2.29, 2.25, 2.75),
    "narrow": (0.583, 0.576, 0.984),
    "wide": (0.187, 0.184, 0.269),
    "merged": (0.192, 0.156, 0.328),
    "body_32": (0.415, 0.42, 0.384),
    "body_96": (-0.066, -0.069, -0.055),
    "body_256": (0.003, 0.009, -0.005),
    "body_1280": (-0.007, -0.006, -0.005),
    "body_more": (0.069, -0.002, -0.002),
    "products_64": (-0.109, -0.102, -0.13),
    "products_256": (-0.009, -0.01, -0.008),
    "products_1024": (-0.006, -0.004, 0.008),
    "products_more": (-0.003, -0.004, 0),
    "ahead": (-0.909, 0.163, 0.536),
    "waiting": (0.37, 0.196, 0.061),
    "moved_vectors": (0.044, 0.035, 0.044),
    "moved_guards": (0.262, 0.244, 0.254),
    "moved_lines": (0.051, 0.012, 0.045),
    "direct_16": (-0.156, -0.301, -0.374),
    "direct_64": (0.032, 0.05, 0.044),
    "direct_256": (0.01, 0.036, 0.038),
    "direct_more": (-0.001, -0.025, 0.002),
    "direct_vectors": (-0.046, -0.038, -0.04),
    "direct_lines": (-0.095, -0.028, 0.044),
    "direct_guards": (0.09, 0.097, 0.095),
    "pointer_rows": (0.084, 0.159, 0.198),
    "i32_rows": (0.213, 0.159, 0.282),
    "i64_rows": (0.234, 0.225, 0.341),
    "stored": (-0.042, -0.01, 0.075),
    "store_lines": (0.191, 0.184, 0.085),
    "swizzled_reads": (0.026, 0.012, 0.017),
    "swizzled_writes": (-0.14, -0.093, -0.08),
}  # fmt: skip
"""What a piece of a quantity adds; its number is the piece's end."""


def register_estimate(
    program: Program, weights: Mapping[str, tuple[float, ...]] = WEIGHTS
) -> Number:
    """Return the registers a thread needs so as not to spill: a number, or an array of them."""
    return RegisterModel.of(program, weights).registers()


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
    def of(program: Program, weights: Mapping[str, tuple[float, ...]] = WEIGHTS) -> RegisterModel:
        """Return the parts for a term."""
        if fragments := fragment_registers(program):
            moved = amounts(program)["moved_vectors"]
            weighed = ((fragments, 1.0), (moved, _MOVED_VECTOR), ((1.0,), _BESIDE_FRAGMENTS))
            return RegisterModel(
                (0.0,), (ENDLESS,), tuple((tuple((x, x) for x in a), (), (w,)) for a, w in weighed)
            )
        column = KINDS.index(arithmetic(program))
        parts = []
        found = amounts(program)
        for name, addends in found.items():
            bends = BENDS.get(name, ())
            names = [piece_name(name, bend) for bend in bends] or [name]
            slopes = tuple(weights[n][column] for n in names)
            pairs = tuple((addend, addend) for addend in addends)
            parts.append((pairs, bends, slopes))
        kept = found["kept"]
        most: tuple[Addend, ...] = (*((8.0, worth(words)) for words in kept), _LEAST)
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
