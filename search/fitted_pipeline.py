"""Fitted numbers of the time model of programs with barriers (``pipeline.py``).

They are chosen so that the model agrees with schedules of the machine ``hopper`` timed on an H200:
865 on 25 shapes, 61 alone on 12 and 64 where few rows are multiplied (``benchmarks/fit_hopper.py``,
which also tells what was held out).  None is a rate of the chip: those are the device's.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["PIPELINE"]

PIPELINE: Mapping[str, float] = {
    # cycles in which one thread issues a TMA instruction, and TMA walks one row of a box
    "tma_issue": 80.0,
    "tma_line": 0.678,
    # cycles more that TMA takes for a row that lies outside, and is filled with zeros
    "tma_outside": 8.9,
    # the share of the port of shared memory that wgmma and TMA reach together
    "smem_share": 1.1,
    # cycles of an mbarrier's arrive, and of a fence between the proxies
    "arrive": 30.8,
    "proxy_fence": 97.1,
    # cycles from a group's last product to the end of its wait
    "product_end": 90.7,
    # how many times its units' cycles conversions and stores to shared memory take
    "epilogue": 4.13,
    # cycles of a 32 B sector that an SM stores straight to global memory
    "direct_store": 0.656,
    # cycles from a bulk store's last read to its end
    "store_end": 307.0,
    # the longest that a load takes in a busy chip, over an idle one
    "loaded_latency": 1.49,
    # cycles before a CTA's first load: barriers, tensor maps, the cluster
    "prologue": 1420.0,
    # the share of it that a launch hides behind the kernel before, if it may
    "early": 0.98,
    # cycles from one CTA's end to the next one's first load, on the same SM
    "next": 401.0,
    # registers of a thread beside its sums
    "registers": 40.0,
    # how sharply one bound takes over from another
    "blend_power": 3.61,
    # the share of DRAM's peak that loads reach
    "dram_share": 1.02,
    # what a byte that TMA writes takes of that port, over one that wgmma reads
    "landing": 0.72,
    # cycles by which each further CTA of a cluster makes it start later (measured: of two)
    "cluster_start": 1650.0,
    # what an early start adds to DRAM's bytes of what CTAs share, as they start apart
    "apart": 0.232,
    # energy of a byte that L2 sends, over that of a cycle of an SM
    "l2_power": 0.00805,
    # cycles that a wgmma takes, over what its rate says (measured: 1.08 to 1.14)
    "wgmma": 1.14,
    # what each further receiver of a multicast adds to what L2 sends
    "multicast": 0.774,
    # what TMA gets from L2, over what ordinary loads do: 61 B a cycle and SM
    "l2_share": 2.0,
}
