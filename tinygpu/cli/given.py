"""What the command line is given: names, sizes and files become the model's objects.

Everything raises a TinyGpuError in one line, with the nearest name, for what there is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from tinygpu.device import Device, load_device
from tinygpu.errors import MachineError, OperationError, ScheduleError, nearest
from tinygpu.machine import Machine, Value
from tinygpu.machines import MACHINES
from tinygpu.memory import DTYPES
from tinygpu.operation import OPERATIONS, Problem
from tinygpu.program import Program
from tinygpu.schedule import Schedule, from_json

__all__ = [
    "DEVICE",
    "DTYPE",
    "JSON",
    "LAYOUT",
    "SCHEDULE",
    "Given",
    "fixed_values",
    "machine_named",
    "problem_of",
    "read_schedule",
]

SCHEDULE = Annotated[Path, typer.Argument(help="A schedule file that search wrote.")]
DEVICE = Annotated[str, typer.Option(help="A device's name, or the path of its .json file.")]
DTYPE = Annotated[
    str, typer.Option(help="Type of the inputs; if not given, f32, or bf16 for tensor cores.")
]
LAYOUT = Annotated[
    str, typer.Option(help="nn, nt, tn or tt; t: a as a[k,m], b as b[n,k]. nt: a linear layer.")
]
JSON = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


@dataclass(frozen=True, slots=True)
class Given:
    """A schedule file that was read, with the device it is looked at on."""

    path: Path
    machine: Machine
    problem: Problem
    schedule: Schedule
    device: Device

    def for_arch(self, arch: str) -> Given:
        """Return it on the device with another architecture, if one is named.

        Raises DeviceError for one that there is not.
        """
        chip = self.device
        return replace(self, device=Device.of(chip.name, arch or chip.arch, chip.provenance))

    def program(self) -> Program:
        """Return the term.  Raises IllegalScheduleError if it is illegal on the device."""
        from tinygpu.laws import require_legal

        return require_legal(self.schedule, self.machine, self.problem, self.device)


def machine_named(name: str) -> Machine:
    """Return a machine.  Raises MachineError for a name that is unknown."""
    if name not in MACHINES:
        raise MachineError(f"machine {name}: {nearest(name, MACHINES)}")
    return MACHINES[name]


def problem_of(
    operation: str, machine: Machine, dtype: str, layout: str, sizes: Mapping[str, int]
) -> Problem:
    """Return the problem; the machine has a say in the type of the inputs, if none is given.

    Raises OperationError for a name, a type, a layout or a size that cannot be.
    """
    if operation not in OPERATIONS:
        raise OperationError(f"operation {operation}: {nearest(operation, OPERATIONS)}")
    by_tensor_cores = any(i.unit == "tensor" for i in machine.instructions)
    dtype = dtype or ("bf16" if by_tensor_cores else "f32")
    if dtype not in DTYPES:
        raise OperationError(f"dtype {dtype}: {nearest(dtype, DTYPES)}")
    return Problem.of(OPERATIONS[operation](dtype, layout=layout), **sizes)


def read_schedule(path: Path, device: str) -> Given:
    """Read a schedule file.  Raises ScheduleError, DeviceError, OSError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ScheduleError(
            f"schedule file {path}: not UTF-8 text; give a file that tinygpu search wrote"
        ) from None
    try:
        machine, problem, schedule = from_json(text, MACHINES)
    except ScheduleError as error:
        told = str(error).removeprefix("schedule file: ")
        raise ScheduleError(f"schedule file {path}: {told}") from None
    return Given(path, machine, problem, schedule, load_device(device))


def fixed_values(machine: Machine, given: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Read ``decision=value`` or ``decision=value,value``.

    Raises ScheduleError for a decision or value that there is not.
    """
    decisions = machine.decisions()
    fixed: dict[str, tuple[Value, ...]] = {}
    for text in given:
        name, equals, values = text.partition("=")
        if not name or not equals or not values:
            raise ScheduleError(f"--fix {text}: give decision=value, as --fix tile_m=128")
        if name not in decisions:
            raise ScheduleError(
                f"--fix {text}: decision {name} is not one of {machine.name}'s; "
                f"{nearest(name, decisions)}"
            )
        if name in fixed:
            raise ScheduleError(
                f"--fix {text}: {name} is given twice; give all its values once, as "
                f"--fix {name}={','.join(map(str, fixed[name]))},{values}"
            )
        known = {str(v): v for v in decisions[name].values}
        for value in values.split(","):
            if value not in known:
                raise ScheduleError(f"--fix {text}: no value {value}; {nearest(value, known)}")
        fixed[name] = tuple(known[value] for value in dict.fromkeys(values.split(",")))
    return fixed
