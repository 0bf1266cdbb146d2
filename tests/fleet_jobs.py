"""What processes of a fleet do in ``test_dispatch_fails.py``; they import it by its name."""

from __future__ import annotations

import os
import time
from typing import Any

from tinygpu.errors import LaunchError


def where(_: Any) -> tuple[str | None, int]:
    """Say on which GPU, and by which process, slowly enough that all take part."""
    time.sleep(0.4)
    return os.environ.get("CUDA_VISIBLE_DEVICES"), os.getpid()


def dies_at_two(number: Any) -> int:
    """Return a number, but for 2: there the process ends, as for want of memory."""
    if number == 2:
        os._exit(9)
    time.sleep(0.1)
    return int(number)


def fails_on_one(number: Any) -> tuple[str, int]:
    """Return the GPU and a number; GPU 1 is out of order."""
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    if gpu == "1":
        raise LaunchError("worker: GPU 1 has fallen off the bus")
    time.sleep(0.3)
    return gpu, int(number)


def errs(number: Any) -> int:
    """Raise what is no failure of a candidate."""
    raise ZeroDivisionError(str(number))
