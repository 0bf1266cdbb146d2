"""Fitted numbers of the time model of programs with barriers (``pipeline.py``).

All are guesses until schedules of the machine ``hopper`` have been timed.  None is a rate of the
chip: those are the device's.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["PIPELINE"]

PIPELINE: Mapping[str, float] = {
    # cycles in which one thread issues a TMA instruction, and TMA walks one row of a box
    "tma_issue": 30.0,
    "tma_line": 1.0,
    # cycles of an mbarrier's arrive, and of a fence between the proxies
    "arrive": 10.0,
    "proxy_fence": 30.0,
    # cycles from a group's last product to the end of its wait
    "product_end": 60.0,
    # how many times its units' cycles conversions and stores to shared memory take
    "epilogue": 2.0,
    # cycles of a 32 B sector that an SM stores straight to global memory
    "direct_store": 1.1,
    # cycles from a bulk store's last read to its end
    "store_end": 600.0,
    # the longest that a load takes in a busy chip, over an idle one
    "loaded_latency": 1.3,
    # cycles before a CTA's first load: barriers, tensor maps, the cluster
    "prologue": 1500.0,
    # the share of it that a launch hides behind the kernel before, if it may
    "early": 0.7,
    # cycles from one CTA's end to the next one's first load, on the same SM
    "next": 1500.0,
    # registers of a thread beside its sums
    "registers": 40.0,
    # how sharply one bound takes over from another
    "blend_power": 4.0,
    # what each further receiver of a multicast adds to what L2 sends
    "multicast": 0.25,
    # what TMA gets from L2, over what ordinary loads do (fast.cu, without clusters: 8.25 TB/s)
    "l2_share": 1.2,
}
