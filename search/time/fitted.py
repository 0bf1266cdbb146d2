"""Fitted numbers of the time model: what is no rate of a chip, and how bounds blend.

Each is chosen so that the model agrees with what an H200 took.  The first ones are about statements
of threads (``benchmarks/fit.py``): schedules of ``simt`` and ``ampere`` of the oracle, and with
less weight 308 older ones (random ones, fast ones, the named ladder) and the variants of
``benchmarks/slow_kernel.py``; ``red``, ``fma_apart`` and ``last_copy`` were chosen by themselves,
``ahead`` by the registers that ptxas used.
``special`` and ``special_issue`` are chosen on an H100's cycles of attention and times of e4m3,
``kept_out`` on cycles, and judged on attention's landscapes (``benchmarks/attention_cycles.py``).
Those from ``tma_issue`` on are about statements of whole tiles (``benchmarks/fit_hopper.py``):
schedules of ``hopper`` on the shapes of the oracle that are not held out, on an H200; those of an
H100, whose runs chose none of them, are as near (``docs/measuring.md``).
The rates of a chip are the device's.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["FITTED", "INTERVALS"]

FITTED: Mapping[str, float] = {
    # integer instructions the assembler needs
    "index_pointer": 5.16,
    "index_i32": 3.5,
    "index_i64": 4.26,
    "index_known": 0.75,  # the share of them where sizes are in the code
    "guard": 2.51,
    "guard_fixed": 0.41,
    "loop": 3.0,
    "swizzle": 1.94,
    # how much slower an FMA is where vectors of an operand were loaded across its run: banks
    "fma_apart": 0.2,
    # how sharply one bound takes over from another
    "unit_power": 2.42,
    "blend_power": 6.75,
    # what the first fragments behind a barrier add of the time in which shared memory sends them
    "burst": 0.3,
    # integer instructions of a statement that asks whether its tile is whole: a branch cuts the
    # block that the assembler orders
    "whole_branch": 5.0,
    # cycles of an SM for each element that a red adds
    "red": 0.7,
    # cycles from a launch to its first instructions' results: code, parameters and pages are cold
    "start": 2200.0,
    # what CTAs that share an SM get from L2, over the rate that one kind of load reaches alone
    "l2_rate": 1.95,
    # how much later the last copy of a group lands than one alone does: a wait is for all of them
    "last_copy": 2.0,
    # the share of a peak that long runs reach
    "dram_share": 0.9,
    # the part of L2 in which data survives until it is used again
    "l2_share": 0.7,
    # the part in which what tiles read in their steps survives, where each has its own number: what
    # else they read and write goes through (by what an H100 read from DRAM, attention_cycles.json)
    "l2_held": 0.75,
    # a loop that outgrows the instruction caches: bytes, and how much slower it issues
    "code_bytes": 112640.0,
    "fetch": 2.5,
    # how much slower each spilled register makes a kernel (52 to 4.6 TFLOP/s at about 100)
    "spill": 0.08,
    # cycles from a loop's last issue to its first again: the branch and the refill
    "turn": 2.69,
    # loads of an unrolled loop that are in flight together where it keeps to few registers
    "loads_in_flight": 5.61,
    # multiply-adds past which the assembler moves loads up where ctas_per_sm bounds its registers
    "ahead": 320.0,
    # registers of a thread that hold neither sums nor loads in flight
    "beside": 17.8,
    # cycles between two instructions of one warp; in a step of tiles between two special functions
    # (ptxas keeps two in flight), and from the issue of one to that of the next instruction
    "warp_interval": 2.01,
    "special": 13.0,
    "special_issue": 4.0,
    # the share of its busiest unit's cycles in which arithmetic of a step keeps other out
    "kept_out": 0.85,
    # cycles in which one thread issues a TMA instruction, and TMA walks one row of a box
    "tma_issue": 55.4,
    "tma_line": 0.0951,
    # cycles more that TMA takes for a row that lies outside, and is filled with zeros
    "tma_outside": 7.0,
    # the share of the tensor cores' rate that wgmma reaches in a loop
    "tensor_share": 0.902,
    # the share of the port of shared memory that wgmma and TMA reach together
    "smem_share": 0.843,
    # cycles of an mbarrier's arrive, and of a fence between the proxies
    "arrive": 15.5,
    "proxy_fence": 27.0,
    # cycles from a group's last product to the end of its wait
    "product_end": 83.4,
    # how many times its units' cycles conversions and stores to shared memory take
    "epilogue": 1.86,
    # the same of sums in tensor memory: a guess until a Blackwell is measured
    "tmem_epilogue": 5.07,
    # cycles of a 32 B sector that an SM stores straight to global memory
    "direct_store": 1.65,
    # cycles from a bulk store's last read to its end
    "store_end": 482.0,
    # the longest that a load takes in a busy chip, over an idle one
    "loaded_latency": 1.2,
    # cycles before a CTA's first load: barriers, tensor maps, the cluster
    "prologue": 1280.0,
    # the share of it that a launch hides behind the kernel before, if it may
    "early": 0.974,
    # cycles from one CTA's end to the next one's first load, on the same SM
    "next": 107.0,
    # registers of a thread beside its sums
    "registers": 40.0,
    # how sharply one bound takes over from another
    "tile_power": 10.4,
    # the share of DRAM's peak that loads reach
    "tma_dram_share": 1.0,
    # what a byte that TMA writes takes of that port, over one that wgmma reads
    "landing": 0.508,
    # cycles by which each further CTA of a cluster makes it start later (measured: of two)
    "cluster_start": 192.0,
    # cycles of a cluster's start that no early start hides
    "cluster_stays": 1900.0,
    # seconds' worth of DRAM's bytes that have to be in flight for its rate
    "dram_seconds": 8.74e-07,
    # the rate of what L2 has to fetch from DRAM, over that of what it has
    "l2_misses": 0.584,
    # cycles in which L2 takes a write of up to 64 B, of all SMs together
    "l2_write": 0.04,
    # what an early start adds to DRAM's bytes of what CTAs share, as they start apart
    "apart": 0.26,
    # how much longer a launch takes that starts early where half of it finds no room
    "late": 0.364,
    # by how much the clock falls for an excess of power: power goes with the clock to 1 / this
    "power_share": 0.5,
    # the share of what products alone take that the chip takes anyway, a cycle
    "idle_power": 0.3,
    # energy of a special function and what goes with it, over a cycle of the tensor cores of an SM
    "special_power": 0.03,
    # energy of a byte that L2 sends, over a cycle of the tensor cores of an SM
    "l2_power": 0.00678,
    # the share of the power cap that DRAM takes at its whole rate
    "dram_power": 0.3,
    # what each further receiver of a multicast adds to what L2 sends
    "multicast": 0.575,
    # what stands around an instruction in a role's loop, over what a micro-kernel sees of it alone
    "tma_latency": 5.54,
    "mbarrier_latency": 2.92,
    "cluster_latency": 1.84,
    "fill_share": 0.511,
    # what TMA gets from L2, over what ordinary loads do: 61 B a cycle and SM
    "tma_l2_rate": 2.36,
}

INTERVALS: Mapping[str, tuple[float, float]] = {
    "threads": (0.516, 2.7),
    "threads, latency": (0.587, 1.82),
    "threads, fp64": (0.547, 1.57),
    "threads, issue": (0.887, 1.4),
    "warps": (0.762, 1.34),
    "warps, latency": (0.785, 1.28),
    "warps, power": (0.751, 1.47),
    "tiles": (0.802, 1.16),
    "tiles, dram": (0.795, 1.1),
    "tiles, latency": (0.597, 1.1),
    "tiles, power": (0.857, 1.17),
    "tiles, smem": (0.851, 1.23),
}
"""Between which shares of the predicted time nine in ten measured times lie, by regime.

``Breakdown.regime`` names regimes; what is first in a name stands for those with few schedules.
They are quantiles over the fitting half of the oracle (``benchmarks/time_model.py --intervals``),
so far apart that of a shape which is left out nine in ten lie between them.
"""

RANKING: Mapping[str, float] = {"threads": 0.1, "warps": 0.0653, "tiles": 0.0424}
"""The error of a ratio of two predicted times, as a logarithm, that half of all pairs exceed.

Two schedules of a problem, both predicted within 1.5 of the fastest: the mean over the shapes of
the fitting half of the oracle of each shape's median (``benchmarks/time_model.py --intervals``).
The model does not tell apart what is closer.
"""
