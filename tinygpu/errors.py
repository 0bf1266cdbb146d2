"""Errors that are for users: each says subject, law, what it got, what is allowed, the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "AssemblyError",
    "DeviceError",
    "DocumentError",
    "EmulatorError",
    "IllegalScheduleError",
    "LaunchError",
    "MachineError",
    "OperationError",
    "ProgramError",
    "ScheduleError",
    "StoreError",
    "TinyGpuError",
    "WishError",
    "nearest",
    "out_of_memory",
]


class TinyGpuError(Exception):
    """The root of all errors that a user can mend."""


class DeviceError(TinyGpuError):
    """A device file that is unknown, truncated or lacks a number."""


class DocumentError(TinyGpuError):
    """A JSON file that is malformed: truncated, of another format, a wrong field."""


class OperationError(TinyGpuError):
    """An operation, operand or size that makes no sense."""


class MachineError(TinyGpuError):
    """A machine that is unknown or contradicts itself."""


class ScheduleError(TinyGpuError):
    """A schedule or schedule file that is malformed: unknown decision, value, version."""


class IllegalScheduleError(TinyGpuError):
    """A well-formed schedule that breaks a law."""


class ProgramError(TinyGpuError):
    """A term that is malformed, or that an interpretation found to be wrong."""


class EmulatorError(TinyGpuError):
    """A fault of the PTX interpreter itself: what it says is for a report of it."""


class AssemblyError(TinyGpuError):
    """No ptxas, or ptxas refuses the code."""


class LaunchError(TinyGpuError):
    """No GPU, a failed launch, or an argument that the kernel cannot take."""


class StoreError(TinyGpuError):
    """A result store that cannot be opened or written."""


class WishError(TinyGpuError):
    """A wish or a claim that is not of the language, or names what there is not."""


def nearest(name: str, known: Iterable[object]) -> str:
    """Return ``"known are a, b, c; did you mean b?"`` for an unknown ``name``."""
    names = [str(k) for k in known]
    lower = {k.lower(): k for k in reversed(names)}
    close = difflib.get_close_matches(name.lower(), lower, 1, 0.5)
    hint = f"; did you mean {lower[close[0]]}?" if close else ""
    return f"known are {', '.join(names)}{hint}"


def out_of_memory(error: Exception) -> str | None:
    """Return one line if a GPU library (CuPy, PyTorch) found no memory, else None.

    >>> out_of_memory(ValueError("no")) is None
    True
    """
    if type(error).__name__ != "OutOfMemoryError":
        return None
    said = (str(error).strip().splitlines() or [""])[0]
    return f"GPU out of memory ({said}); free some of it, or lower the sizes"
