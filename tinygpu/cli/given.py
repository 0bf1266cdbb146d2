"""What the command line is given: names, sizes and files become the model's objects.

Everything raises a TinyGpuError in one line, with the nearest name, for what there is not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tinygpu.devices.device import DEVICES, Device, device_of, load_device
from tinygpu.document import parsed
from tinygpu.errors import ScheduleError, nearest
from tinygpu.machines import MACHINES
from tinygpu.machines.file import machine_named
from tinygpu.term.machine import Machine, Value
from tinygpu.term.operation import Operation, Problem
from tinygpu.term.plan import Term, kernels_of, steps_of
from tinygpu.term.program import Program
from tinygpu.term.schedule import VERSION, Schedule, device_in, from_json

if TYPE_CHECKING:
    from tinygpu.checker.outcome import Ruling
    from tinygpu.meaning.identity import Meaning
    from tinygpu.space.measurement import Measurement

__all__ = [
    "DEVICE",
    "DTYPE",
    "FIX",
    "JSON",
    "LAYOUT",
    "MACHINE",
    "ON",
    "OWN",
    "REPRODUCIBLE",
    "SCHEDULE",
    "SPREAD",
    "Fixed",
    "Given",
    "certificate_of",
    "device_given",
    "file_of_each",
    "fixed_for",
    "fixed_values",
    "in_order",
    "machine_named",
    "machines_for",
    "machines_with",
    "read_schedule",
    "spread_of",
    "stored_schedule",
]

SCHEDULE = Annotated[Path, typer.Argument(help="A schedule file that search wrote.")]
DEVICE = Annotated[
    str, typer.Option(help="A device's name or .json file; else this GPU's, h200 without a GPU.")
]
ON = Annotated[
    str, typer.Option("--device", help="A device's name or .json file; else the schedule's.")
]
MACHINE = Annotated[
    str, typer.Option(help="Whose schedules: a machine's name, or FILE.py:Class for your own.")
]
OWN = Annotated[
    str, typer.Option("--machine", help="FILE.py:Class, for a schedule of a machine of your own.")
]
FIX = Annotated[list[str] | None, typer.Option(help="decision=value[,value]; may be repeated.")]
SPREAD = Annotated[
    str, typer.Option(help="Decisions, as tile_m,tile_n, in which no two of the best are alike.")
]
DTYPE = Annotated[
    str,
    typer.Option(help="Type of the inputs; else f32, or bf16 if tensor cores are chosen."),
]
LAYOUT = Annotated[
    str, typer.Option(help=r"nn, nt, tn or tt; t: a as a\[k,m], b as b\[n,k]. nt: a linear layer.")
]
JSON = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
REPRODUCIBLE = Annotated[
    bool,
    typer.Option("--reproducible", help="Add along k in one order, the same for every m."),
]
Fixed = dict[Machine, dict[str, tuple[Value, ...]]]


_ELSE = "h200"
"""The device of whom has no GPU, and of a schedule file that names none."""


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

    def program(self) -> Term:
        """Return the term.  Raises IllegalScheduleError if it is illegal on the device."""
        from tinygpu.legality.laws import require_legal

        return require_legal(self.schedule, self.machine, self.problem, self.device)

    def kernel(self) -> tuple[Program, dict[str, int]]:
        """Return the kernel that is drawn and its sizes: of a plan the one that takes longest."""
        from tinygpu.search.time.cost import slowest

        term, sizes = self.program(), self.problem.sizes
        return steps_of(term, sizes)[slowest(term, sizes, self.device)[0]]

    def computing(self) -> Meaning:
        """Return what was found of the term, which has it.

        Raises IllegalScheduleError if it is illegal on the device or computes something else.
        """
        from tinygpu.codegen.run.agreement import require_computes

        return require_computes(self.program())


def file_of_each(term: Term, path: Path) -> list[tuple[Program, Path]]:
    """Return each kernel of a term and its file: the path, and of a plan path.2 and so on."""
    return [
        (kernel, path.with_stem(f"{path.stem}.{number}") if number > 1 else path)
        for number, kernel in enumerate(kernels_of(term), 1)
    ]


def certificate_of(program: Program) -> tuple[str, Ruling]:
    """Return the text of a kernel's certificate, "" if none is found, and the ruling."""
    from tinygpu.checker.make import certified
    from tinygpu.checker.written import written

    found, ruling = certified(program)
    return "" if found is None else written(program, found), ruling


def device_given(named: str = "") -> Device:
    """Return the device that is named, else that of the GPU here, else ``h200``.

    A GPU without a device file is told in one line.  Raises DeviceError as ``load_device`` does.
    """
    from tinygpu.codegen.run.provenance import device_and_driver

    if named:
        return load_device(named)
    gpu, _ = device_and_driver()
    found = device_of(gpu)
    if not found and gpu != "none":
        way = "tinygpu calibrate -o FILE.json measures it, --device FILE.json takes that"
        typer.echo(f"device: no file is of {gpu}, {_ELSE} stands for it; {way}", err=True)
    return load_device(found or _ELSE)


def machines_with(name: str) -> dict[str, Machine]:
    """Return the machines by name, with the one that is named, if any, among them."""
    own = [machine_named(name)] if name else []
    return {**MACHINES, **{machine.name: machine for machine in own}}


def machines_for(
    operation: Operation, device: Device, name: str = "", sizes: Mapping[str, int] | None = None
) -> list[Machine]:
    """Return the machine that is named, or all that can do the operation and run on the device.

    With ``sizes`` it can do those.  Raises MachineError for an unknown name, OperationError if no
    machine can.
    """
    from tinygpu.search.tuning.tune import fitting

    every = [machine_named(name)] if name else [*MACHINES.values()]
    return fitting(operation, device, every, sizes)


def read_schedule(path: Path, device: str = "", *, machine: str = "") -> Given:
    """Read a schedule file; the device is the one that it was searched for, or another.

    ``machine`` is needed for a machine of the user's own.  Raises ScheduleError, MachineError,
    DeviceError, OSError.
    """
    known = machines_with(machine)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ScheduleError(
            f"schedule file {path}: not UTF-8 text; give a file that tinygpu search wrote"
        ) from None
    try:
        found, problem, schedule = from_json(text, known)
    except ScheduleError as error:
        told = str(error).removeprefix("schedule file: ")
        raise ScheduleError(f"schedule file {path}: {told}") from None
    if machine and found is not machine_named(machine):
        raise ScheduleError(
            f"schedule file {path}: it is of machine {found.name}, and --machine {machine} is "
            f"{machine_named(machine).name}; leave --machine out, or give that of the file"
        )
    recorded = device_in(text) or _ELSE
    if not device and recorded not in DEVICES:
        raise ScheduleError(
            f"schedule file {path}: it is for device {recorded}; give that file, or another "
            f"device, by --device; {nearest(recorded, DEVICES)}"
        )
    return Given(path, found, problem, schedule, load_device(device or recorded))


def stored_schedule(
    one: Measurement, machines: Mapping[str, Machine]
) -> tuple[Machine, Problem, Schedule]:
    """Return what a measurement is of.  Raises ScheduleError if it is no schedule any more."""
    chosen = parsed(one.schedule)
    if not isinstance(chosen, dict):
        raise ScheduleError("neither a schedule nor a peer")
    tree = {"format": "tinygpu schedule", "version": VERSION, "operation": parsed(one.operation),
            "sizes": parsed(one.sizes), **chosen}  # fmt: skip
    return from_json(json.dumps(tree), machines)


def spread_of(machines: Sequence[Machine], given: str) -> dict[str, tuple[str, ...]]:
    """Read ``decision,decision``, for each machine by name those that it has.

    Raises ScheduleError for a decision that none of them has.
    """
    names = tuple(dict.fromkeys(name.strip() for name in given.split(","))) if given else ()
    every = {name for machine in machines for name in machine.decisions()}
    for name in names:
        if name not in every:
            who = " or ".join(machine.name for machine in machines)
            known = nearest(name, sorted(every))
            raise ScheduleError(f"--spread {given}: {name!r} is no decision of {who}; {known}")
    return {m.name: tuple(n for n in names if n in m.decisions()) for m in machines}


def fixed_for(machines: Sequence[Machine], given: Sequence[str]) -> Fixed:
    """Read ``decision=value`` for several machines: those that lack it are left out.

    Raises ScheduleError, of the last, if none is left.
    """
    found: Fixed = {}
    for machine in machines:
        try:
            found[machine] = fixed_values(machine, given)
        except ScheduleError:
            if machine is machines[-1] and not found:
                raise
    return found


def in_order(fixed: Fixed) -> Fixed:
    """Return what is fixed with what makes each sum one chain in the order of k besides.

    Then the bits of a result are the same for every m, whichever schedule is chosen.  Raises
    ScheduleError for several machines, which add in orders of their own, for one that does not say
    what the order depends on, and where what is fixed is at odds with it.
    """
    names = ", ".join(machine.name for machine in fixed)
    if len(fixed) > 1:
        raise ScheduleError(
            f"--reproducible: {names} add in orders of their own; name one by --machine"
        )
    ((machine, values),) = fixed.items()
    if machine.in_order is None:
        raise ScheduleError(
            f"--reproducible: machine {names} does not say what the order of its sums depends on; "
            "set in_order in its class, or leave the option out"
        )
    for name, value in machine.in_order.items():
        if value not in values.get(name, (value,)):
            told = ",".join(map(str, values[name]))
            raise ScheduleError(
                f"--reproducible: sums in the order of k need {name}={value}; leave out --fix "
                f"{name}={told}"
            )
    return {machine: {**values, **{n: (v,) for n, v in machine.in_order.items()}}}


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
