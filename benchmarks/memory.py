"""Memory: the most that a process has had resident.

Source: getrusage(2).
"""

from __future__ import annotations

import resource
import sys

__all__ = ["peak_mib"]

_UNIT = 1 if sys.platform == "darwin" else 1024  # spec: bytes there, else KiB


def peak_mib(usage: resource.struct_rusage | None = None) -> float:
    """Return the peak resident memory, in MiB, of this process or of one that ``usage`` is of."""
    return (usage or resource.getrusage(resource.RUSAGE_SELF)).ru_maxrss * _UNIT / 2**20
