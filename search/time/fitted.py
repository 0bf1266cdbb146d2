"""Fitted numbers of the time model: what the assembler adds, and how bounds blend.

Each is chosen so that the model agrees with what an H200 took (``benchmarks/fit.py``): schedules of
``simt`` and ``ampere`` of the oracle, and with less weight 308 older ones (random ones, fast ones,
the named ladder) and the variants of ``benchmarks/slow_kernel.py``.  None is a rate of the chip:
those are the device's.  ``red``, ``fma_apart`` and ``last_copy`` were chosen by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["FITTED"]

FITTED: Mapping[str, float] = {
    # integer instructions the assembler needs
    "index_pointer": 2.75,
    "index_i32": 3.5,
    "index_i64": 8.0,
    "index_known": 0.75,  # the share of them where sizes are in the code
    "guard": 3.0,
    "guard_fixed": 0.77,
    "loop": 3.0,
    "swizzle": 2.0,
    # extra register-file reads of an FMA whose operands change, per run of one operand
    "fma_operands": 0.06,
    # how much slower it is where vectors of an operand were loaded across its run: register banks
    "fma_apart": 0.2,
    # how sharply one bound takes over from another
    "unit_power": 2.42,
    "blend_power": 5.0,
    # cycles of an SM for each element that a red adds
    "red": 0.7,
    # cycles from a launch to its first instructions' results: code, parameters and pages are cold
    "start": 2640.0,
    # what CTAs that share an SM get from L2, over the rate that one kind of load reaches alone
    "l2_rate": 1.95,
    # how much later the last copy of a group lands than one alone does: a wait is for all of them
    "last_copy": 2.0,
    # the share of a peak that long runs reach
    "dram_share": 0.9,
    # the part of L2 in which data survives until it is used again
    "l2_share": 0.7,
    # a loop that outgrows the instruction caches: bytes, and how much slower it issues
    "code_bytes": 112640.0,
    "fetch": 2.5,
    # how much slower each spilled register makes a kernel (52 to 4.6 TFLOP/s at about 100)
    "spill": 0.08,
    # cycles from a loop's last issue to its first again: the branch and the refill
    "turn": 5.06,
    # loads of an unrolled loop that are in flight together
    "loads_in_flight": 5.61,
    # cycles between two instructions of one warp
    "warp_interval": 2.01,
}
