"""A small formal model of a GPU, a schedule search over it, and the PTX it predicts.

The names below load their modules on first use; everything else is imported from where it is.

>>> import tinygpu
>>> print(tinygpu.matmul("f32"))
matmul: c[m,n] f32 = sum over k of (a[m,k] f32 * b[k,n] f32)
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # type checkers know the name; to import typing would take a while
if TYPE_CHECKING:
    from typing import Any

    from tinygpu.device import Device, load_device
    from tinygpu.errors import TinyGpuError
    from tinygpu.laws import check_schedule, require_legal
    from tinygpu.machine import Choice, Machine
    from tinygpu.machines import MACHINES
    from tinygpu.operation import Operation, Problem, elementwise, matmul
    from tinygpu.questions import ask, prove, why_empty
    from tinygpu.schedule import Schedule
    from tinygpu.space import Space

__all__ = [
    "MACHINES",
    "Choice",
    "Device",
    "Machine",
    "Operation",
    "Problem",
    "Schedule",
    "Space",
    "TinyGpuError",
    "ask",
    "check_schedule",
    "elementwise",
    "load_device",
    "matmul",
    "prove",
    "require_legal",
    "why_empty",
]

_HOMES = {
    "Choice": "machine",
    "Device": "device",
    "MACHINES": "machines",
    "Machine": "machine",
    "Operation": "operation",
    "Problem": "operation",
    "Schedule": "schedule",
    "Space": "space",
    "TinyGpuError": "errors",
    "ask": "questions",
    "check_schedule": "laws",
    "elementwise": "operation",
    "load_device": "device",
    "matmul": "operation",
    "prove": "questions",
    "require_legal": "laws",
    "why_empty": "questions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tinygpu' has no attribute {name!r}")
    return getattr(import_module(f"tinygpu.{_HOMES[name]}"), name)
