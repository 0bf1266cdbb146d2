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

    from tinygpu.codegen.emit import emit
    from tinygpu.codegen.run.agreement import check, computes
    from tinygpu.devices.device import Device, load_device
    from tinygpu.errors import TinyGpuError
    from tinygpu.legality.concurrency.judge import verdict
    from tinygpu.legality.laws import check_schedule, require_legal
    from tinygpu.machines import MACHINES
    from tinygpu.meaning.interpret import reduced
    from tinygpu.search.exact.best import rank
    from tinygpu.search.explain.explain import explain
    from tinygpu.search.tuning.tune import tune
    from tinygpu.space.questions import ask, prove, why_empty
    from tinygpu.space.space import Space
    from tinygpu.term.builder import Kernel
    from tinygpu.term.machine import Choice, Machine
    from tinygpu.term.operation import Operation, Problem, elementwise, matmul
    from tinygpu.term.schedule import Schedule

__all__ = [
    "MACHINES",
    "Choice",
    "Device",
    "Kernel",
    "Machine",
    "Operation",
    "Problem",
    "Schedule",
    "Space",
    "TinyGpuError",
    "ask",
    "check",
    "check_schedule",
    "computes",
    "elementwise",
    "emit",
    "explain",
    "load_device",
    "matmul",
    "prove",
    "rank",
    "reduced",
    "require_legal",
    "tune",
    "verdict",
    "why_empty",
]

_HOMES = {
    "Choice": "term.machine",
    "Device": "devices.device",
    "Kernel": "term.builder",
    "MACHINES": "machines",
    "Machine": "term.machine",
    "Operation": "term.operation",
    "Problem": "term.operation",
    "Schedule": "term.schedule",
    "Space": "space.space",
    "TinyGpuError": "errors",
    "ask": "space.questions",
    "check": "codegen.run.agreement",
    "check_schedule": "legality.laws",
    "computes": "codegen.run.agreement",
    "elementwise": "term.operation",
    "emit": "codegen.emit",
    "explain": "search.explain.explain",
    "load_device": "devices.device",
    "matmul": "term.operation",
    "prove": "space.questions",
    "rank": "search.exact.best",
    "reduced": "meaning.interpret",
    "require_legal": "legality.laws",
    "tune": "search.tuning.tune",
    "verdict": "legality.concurrency.judge",
    "why_empty": "space.questions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tinygpu' has no attribute {name!r}")
    return getattr(import_module(f"tinygpu.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
