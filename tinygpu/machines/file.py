"""Machines and operations of the user's own: FILE.py:NAME, and what is wrong with them in one line.

A machine is a class, an operation a value or a function without arguments.  The file is run once,
as a module of a private name, so that it hides none of an installed package's modules; what lies
beside it can be imported.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from tinygpu.errors import MachineError, OperationError, TinyGpuError, nearest
from tinygpu.isa.instruction import Instruction
from tinygpu.isa.memory import Level
from tinygpu.machines import MACHINES
from tinygpu.term.machine import Machine
from tinygpu.term.operation import Operation

__all__ = ["fault_in_machine", "is_file", "machine_in", "machine_named", "operation_in"]

_PREFIX = "tinygpu_machine_file_"


def is_file(name: str) -> bool:
    """Return whether the name of a machine or an operation says that it is in a file."""
    return ":" in name or name.endswith(".py")


def machine_named(name: str) -> Machine:
    """Return a machine by its name, or FILE.py:Class.  Raises MachineError if there is none."""
    if is_file(name):
        return machine_in(name)
    if name not in MACHINES:
        raise MachineError(f"machine {name}: {nearest(name, MACHINES)}; or give FILE.py:Class")
    return MACHINES[name]


@cache
def machine_in(name: str) -> Machine:
    """Return the machine FILE.py:Class.  Raises MachineError for every mistake."""
    module, wanted = _opened(f"machine {name}", name, MachineError, "Class")
    own = {
        n: c for n, c in vars(module).items()
        if inspect.isclass(c) and issubclass(c, Machine) and c.__module__ == module.__name__
    }  # fmt: skip
    found = vars(module).get(wanted)
    if not (inspect.isclass(found) and issubclass(found, Machine)):
        if found is not None:
            raise MachineError(f"machine {name}: {wanted} is no class derived from tinygpu.Machine")
        if not own:
            file = name.removesuffix(f":{wanted}")
            raise MachineError(f"machine {name}: {file} has no class derived from tinygpu.Machine")
        raise MachineError(f"machine {name}: give FILE.py:Class; {nearest(wanted, own)}")
    try:
        machine: Machine = found()
    except Exception as error:
        raise MachineError(f"machine {name}: {type(error).__name__}: {error}") from None
    _require(name, machine)
    return machine


def operation_in(name: str) -> Operation:
    """Return the operation FILE.py:NAME.  Raises OperationError for every mistake."""
    module, wanted = _opened(f"operation {name}", name, OperationError, "NAME")
    found = vars(module).get(wanted)
    if inspect.isfunction(found):
        if any(p.default is p.empty for p in inspect.signature(found).parameters.values()):
            raise OperationError(
                f"operation {name}: the function {wanted} needs arguments; give one that needs "
                "none, or a value"
            )
        try:
            found = found()
        except TinyGpuError as error:
            raise OperationError(f"operation {name}: {error}") from None
        except Exception as error:
            raise OperationError(f"operation {name}: {fault_in_machine(error)}") from None
    if isinstance(found, Operation):
        return found
    if wanted in vars(module):
        raise OperationError(
            f"operation {name}: {wanted} is of type {type(found).__name__}; give a "
            "tinygpu.Operation, or a function without arguments that returns one"
        )
    own = [n for n, value in vars(module).items() if isinstance(value, Operation)]
    own += [n for n, f in vars(module).items() if _defined_in(module, f)]
    raise OperationError(
        f"operation {name}: give FILE.py:NAME; "
        + (nearest(wanted, own) if own else "write one, as double = elementwise('x + x')")
    )


def _defined_in(module: ModuleType, found: object) -> bool:
    return inspect.isfunction(found) and found.__module__ == module.__name__


def _opened(subject: str, name: str, kind: type[TinyGpuError], part: str) -> tuple[ModuleType, str]:
    """Return the module of FILE.py:NAME and the name.  Raises ``kind`` for a file that fails."""
    file, _, wanted = name.rpartition(":") if ":" in name else (name, "", "")
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        raise kind(f"{subject}: no Python file {file!r}; give FILE.py:{part}")
    try:
        return _module(path.resolve(), path), wanted
    except MachineError as error:
        raise kind(f"{subject}: {error}") from None


def fault_in_machine(error: BaseException) -> str:
    """Return where in a machine's file an exception came up, in one line, or "" if in none."""
    frames = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__", "")).startswith(_PREFIX)
    ]
    if not frames:
        return ""
    frame, line = frames[-1]
    return f"{frame.f_code.co_filename}, line {line}: {_last_line(error)}"


_MODULES: dict[Path, ModuleType] = {}


def _module(known: Path, path: Path) -> ModuleType:
    """Run the file, once.  Raises MachineError for what it raises."""
    if known in _MODULES:
        return _MODULES[known]
    unique = f"{_PREFIX}{path.stem}_{len(sys.modules)}"
    spec = spec_from_file_location(unique, path)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None
    module = sys.modules[unique] = module_from_spec(spec)
    sys.path.append(str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a script may exit when it is run
        raise MachineError(fault_in_machine(error) or f"{path}: {_last_line(error)}") from None
    _MODULES[known] = module
    return module


def _last_line(error: BaseException) -> str:
    """Return an exception as a traceback ends with it; of a syntax error also the line."""
    line = f"line {error.lineno}: " if isinstance(error, SyntaxError) else ""
    said = error.msg if isinstance(error, SyntaxError) else error
    return f"{line}{type(error).__name__}: {said}"


def _require(name: str, machine: Machine) -> None:
    """Raise MachineError unless the machine says what a machine has to."""
    called = getattr(machine, "name", None)
    if not isinstance(called, str) or not (called.isascii() and called.isidentifier()):
        raise MachineError(
            f"machine {name}: its name is {called!r}; give it one of letters, digits and _, for it "
            "is the kernel's too"
        )
    if called in MACHINES:
        raise MachineError(f"machine {name}: {called} is the name of a shipped machine; change it")
    for attribute, kind in (("levels", Level), ("instructions", Instruction)):
        given = getattr(machine, attribute, None)
        if not isinstance(given, tuple) or not all(isinstance(one, kind) for one in given):
            raise MachineError(
                f"machine {name}: {attribute} is {given!r}; give a tuple of {kind.__name__}s"
            )
    if not machine.decisions():
        raise MachineError(
            f"machine {name}: it has no decision; give it one, as vector = Choice(1)"
        )
    machine.graph()
