"""Shared memory in the time model of programs with barriers: who touches it, and from how far.

What a CTA writes to a buffer's home in another CTA goes through the network between SMs.  The home
is the narrow place: of n CTAs along the axis n - 1 write to it at once,

    cycles = (n - 1) * bytes / rate

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.term.operation import matmul
>>> from tinygpu.term.program import Do, walk
>>> term = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["shared k"]))
>>> send = next(s for s, _ in walk(term) if isinstance(s, Do) and s.write.buffer.home)
>>> round(home_cycles(send, 64 * 64, {"rank_k": 2}))
1170

Source: Luo et al., arXiv 2402.13499 (3.3 TB/s in all on an H100: 14 B a cycle and SM); not
fitted, but schedules that share k are met with it (``docs/model.md``, section "Time").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinygpu.term.access_map import Access
from tinygpu.term.program import Do

__all__ = ["home_cycles", "smem_width", "touches_smem"]

_HOME_BYTES_PER_CYCLE = 14.0  # published: see above


def home_cycles(do: Do, count: Any, extents: Mapping[str, Any]) -> Any:
    """Return the cycles that ``count`` elements a copy take to the home of what a Do writes."""
    buffer = do.write.buffer
    others = extents[buffer.home] - 1
    return others * count * buffer.type.bytes / _HOME_BYTES_PER_CYCLE


def touches_smem(do: Do) -> bool:
    """Say whether a Do reads or writes shared memory."""
    return any(access.buffer.level == "smem" for access in do.accesses)


def smem_width(do: Do) -> int:
    """Return the bytes of the widest element that a Do reads from shared memory."""
    reads = (r for r in do.reads if isinstance(r, Access))
    return max(r.buffer.type.bytes for r in reads if r.buffer.level == "smem")
