"""Fitted numbers of the time model of programs with barriers (``pipeline.py``).

They are chosen so that the model agrees with schedules of ``hopper`` that were timed on an H200
(``benchmarks/fit_hopper.py``): 1,152 on 16 shapes of the oracle and, with less weight, 865 on 25
others.  None is a rate of the chip: those are the device's.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["PIPELINE"]

PIPELINE: Mapping[str, float] = {
    # cycles in which one thread issues a TMA instruction, and TMA walks one row of a box
    "tma_issue": 55.4,
    "tma_line": 0.0951,
    # cycles more that TMA takes for a row that lies outside, and is filled with zeros
    "tma_outside": 7.0,
    # the share of the port of shared memory that wgmma and TMA reach together
    "smem_share": 0.999,
    # cycles of an mbarrier's arrive, and of a fence between the proxies
    "arrive": 15.5,
    "proxy_fence": 27.0,
    # cycles from a group's last product to the end of its wait
    "product_end": 95.9,
    # how many times its units' cycles conversions and stores to shared memory take
    "epilogue": 1.35,
    # the same of sums in tensor memory: a guess until a Blackwell is measured
    "tmem_epilogue": 5.07,
    # cycles of a 32 B sector that an SM stores straight to global memory
    "direct_store": 1.2,
    # cycles from a bulk store's last read to its end
    "store_end": 518.0,
    # the longest that a load takes in a busy chip, over an idle one
    "loaded_latency": 1.04,
    # cycles before a CTA's first load: barriers, tensor maps, the cluster
    "prologue": 933.0,
    # the share of it that a launch hides behind the kernel before, if it may
    "early": 0.974,
    # cycles from one CTA's end to the next one's first load, on the same SM
    "next": 107.0,
    # registers of a thread beside its sums
    "registers": 40.0,
    # how sharply one bound takes over from another
    "blend_power": 5.5,
    # the share of DRAM's peak that loads reach
    "dram_share": 0.936,
    # what a byte that TMA writes takes of that port, over one that wgmma reads
    "landing": 0.508,
    # cycles by which each further CTA of a cluster makes it start later (measured: of two)
    "cluster_start": 192.0,
    # cycles of a cluster's start that no early start hides
    "cluster_stays": 2610.0,
    # bytes that have to be in flight for DRAM's rate
    "dram_in_flight": 3580000.0,
    # what an early start adds to DRAM's bytes of what CTAs share, as they start apart
    "apart": 0.27,
    # how much longer a launch takes that starts early where half of it finds no room
    "late": 0.5,
    # by how much the clock falls for an excess of power: power goes with the clock to 1 / this
    "power_share": 0.396,
    # energy of a byte that L2 sends, and of one to or from DRAM, over a cycle of the tensor cores
    "l2_power": 0.00193,
    "dram_power": 0.00128,
    # energy of a cycle of the port of shared memory, over one of the tensor cores
    "smem_power": 0.0173,
    # what each further receiver of a multicast adds to what L2 sends
    "multicast": 0.557,
    # what TMA gets from L2, over what ordinary loads do: 61 B a cycle and SM
    "l2_share": 2.36,
}
