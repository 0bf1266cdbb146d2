"""Cores: how many processes or threads are worth starting.

Source: sched_getaffinity(2), which says what taskset and containers leave.
"""

from __future__ import annotations

import os

__all__ = ["cores"]


def cores() -> int:
    """Return how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # it is Linux's
        return os.cpu_count() or 1
