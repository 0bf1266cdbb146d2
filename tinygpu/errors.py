"""Errors that are for users: each says subject, law, what it got, what is allowed, the way out."""

from __future__ import annotations

import difflib
import linecache
import re
import reprlib
from collections.abc import Iterable
from typing import ClassVar

__all__ = [
    "AssemblyError",
    "DeviceError",
    "DocumentError",
    "EmulatorError",
    "FolderError",
    "IllegalScheduleError",
    "KernelError",
    "LaunchError",
    "MachineError",
    "OperationError",
    "ProgramError",
    "ScheduleError",
    "StoreError",
    "TinyGpuError",
    "WishError",
    "at_line",
    "nearest",
    "out_of_memory",
    "raised",
    "require_kind",
    "require_names",
]


class TinyGpuError(Exception):
    """The root of all errors that a user can mend; ``status`` is the command's exit status."""

    status: ClassVar[int] = 2


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


class FolderError(TinyGpuError):
    """A folder of results that another process writes into, or that has another result."""

    status: ClassVar[int] = 1


class LaunchError(TinyGpuError):
    """No GPU, a failed launch, or an argument that the kernel cannot take."""


class KernelError(LaunchError):
    """One kernel does not load or start on this GPU; another one may."""


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


_EXAMPLES = {
    "Affine": 'as var("k") or Affine(1)',
    "Device": 'as load_device("h200") returns',
    "Expression": 'as value("x") + 1',
    "Machine": 'as MACHINES["hopper"]',
    "Mapping": 'as {"m": 64}',
    "Operand": 'as Operand("x", ("i",), "f32")',
    "Operation": "as matmul() returns",
    "Problem": "as Problem.of(matmul(), m=64, n=64, k=64)",
    "Program": "as schedule.program(machine, operation) returns",
    "Schedule": "as Schedule.of(machine, decisions)",
    "Space": "as Space(machine, problem, device)",
    "int": "as 64",
    "str": 'as "f32"',
    "tuple": 'as ("i", "j")',
}


def require_kind(what: str, value: object, kind: type, error: type[TinyGpuError]) -> None:
    """Raise ``error`` unless a value is of a kind; a bool is no int.

    >>> require_kind("size m", "64", int, OperationError)
    Traceback (most recent call last):
        ...
    tinygpu.errors.OperationError: size m: '64' is of type str; give one of type int, as 64
    """
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        example = f", {_EXAMPLES[kind.__name__]}" if kind.__name__ in _EXAMPLES else ""
        raise error(
            f"{what}: {reprlib.repr(value)} is of type {type(value).__name__}; give one of type "
            f"{kind.__name__}{example}"
        )


def require_names(what: str, names: object, error: type[TinyGpuError]) -> None:
    """Raise ``error`` unless it is a tuple of strings."""
    require_kind(what, names, tuple, error)
    assert isinstance(names, tuple)
    for name in names:
        require_kind(f"{what}: {reprlib.repr(names)}", name, str, error)


def at_line(where: tuple[str, int], text: str, word: str) -> ProgramError:
    """Return an error that shows a line of the user's, and the last place of a word in it."""
    file, number = where
    message = f"{file.rpartition('/')[2]}:{number}: {text}"
    if source := linecache.getline(file, number).strip():
        message += f"\n    {source}"
        places = [m.start() for m in re.finditer(rf"\b{re.escape(word)}\b", source)]
        if word and places:
            message += f"\n    {' ' * places[-1]}{'^' * len(word)}"
    return ProgramError(message)


def raised(error: Exception) -> str:
    """Return in one line what a user's function raised.

    >>> raised(ValueError("two   words"))
    'ValueError: two words'
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def out_of_memory(error: Exception) -> str | None:
    """Return one line if a GPU library (CuPy, PyTorch) found no memory, else None.

    >>> out_of_memory(ValueError("no")) is None
    True
    """
    if type(error).__name__ != "OutOfMemoryError":
        return None
    said = (str(error).strip().splitlines() or [""])[0]
    return f"GPU out of memory ({said}); free some of it, or lower the sizes"
