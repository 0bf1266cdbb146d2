"""Every public call with a wrong argument raises a TinyGpuError, in one line, with the way out."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import tinygpu
from tinygpu.errors import LaunchError, MachineError, OperationError, ProgramError, TinyGpuError
from tinygpu.isa.memory import REGISTERS
from tinygpu.machines import MACHINES
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.tuning.climb import Effort
from tinygpu.term.access_map import Access, Affine, number_text, registers
from tinygpu.term.builder import Kernel
from tinygpu.term.expression import value
from tinygpu.term.machine import Choice, Machine, Requirement, instructions
from tinygpu.term.operation import Operand, Operation, Problem, Reduction, elementwise, matmul
from tinygpu.term.schedule import Schedule
from tinygpu.term.statement import Arrive, Barrier, ForTile, Wait, When

DEVICE = tinygpu.load_device("h200")
PROBLEM = Problem.of(matmul(), m=64, n=64, k=64)
SCHEDULE = Schedule.of(Simt(), LADDER["naive"])
PROGRAM = SCHEDULE.program(Simt(), matmul())
SPACE = tinygpu.Space(Simt(), PROBLEM, DEVICE, fixed=dict(LADDER["naive"]))
X, Y = Operand("x", ("i",), "f32"), Operand("y", ("i",), "f32")
FULL = Barrier("full", 4, arrivals=1)
WRONG: tuple[Any, ...] = (None, -1, 1.5, True, "nothing", "", (), [], {}, object())


def tuned(*words: Any, **named: Any) -> None:
    """Tune where there is a GPU; without one, that is what a right call says."""
    with suppress(LaunchError):
        tinygpu.tune(*words, **named)


# A right call of each; then each of its arguments is replaced by what is wrong.
RIGHT: dict[str, tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = {
    "Choice": (Choice, (1, 2), {"before": 1}),
    "Device": (tinygpu.Device.of, ("h200", "sm_90a", DEVICE.provenance), {}),
    "Kernel": (Kernel, ("mine", matmul()), {}),
    "Operation": (Operation, ("copy", ("i",), (X,), Y, (), value("x")), {"scalars": ()}),
    "Problem": (Problem, (matmul(), PROBLEM.extents), {}),
    "Problem.of": (Problem.of, (matmul(),), {"m": 64, "n": 64, "k": 64}),
    "Schedule": (Schedule, (SCHEDULE.machine, SCHEDULE.decisions), {}),
    "Schedule.of": (Schedule.of, (Simt(), LADDER["naive"]), {}),
    "Space": (tinygpu.Space, (Simt(), PROBLEM, DEVICE), {"fixed": dict(LADDER["naive"])}),
    "ask": (tinygpu.ask, (SPACE, "m > 0"), {}),
    "check": (tinygpu.check, (PROGRAM, {"m": 8, "n": 8, "k": 8}), {}),
    "check_schedule": (tinygpu.check_schedule, (SCHEDULE, Simt(), PROBLEM, DEVICE), {}),
    "computes": (tinygpu.computes, (PROGRAM,), {}),
    "elementwise": (elementwise, ("x + z",), {"inputs": ("x", "z"), "dtype": "f32"}),
    "emit": (tinygpu.emit, (PROGRAM, "sm_90a", PROBLEM.sizes), {}),
    "explain": (tinygpu.explain, (SCHEDULE, Simt(), PROBLEM, DEVICE), {}),
    "load_device": (tinygpu.load_device, ("h200",), {}),
    "matmul": (matmul, ("f32", "f32", "nt"), {"activation": "relu"}),
    "prove": (tinygpu.prove, (SPACE, "m > 0"), {}),
    "rank": (tinygpu.rank, (SPACE, 1), {}),
    "reduced": (tinygpu.reduced, (PROBLEM, PROGRAM), {}),
    "require_legal": (tinygpu.require_legal, (SCHEDULE, Simt(), PROBLEM, DEVICE), {}),
    "tune": (tuned, (PROBLEM,), {"device": DEVICE, "effort": Effort(seconds=1.0)}),
    "verdict": (tinygpu.verdict, (PROGRAM,), {}),
    "why_empty": (tinygpu.why_empty, (SPACE,), {}),
    "Operand": (Operand, ("x", ("i",), "f32"), {}),
    "Reduction": (Reduction, ("top", "max", value("x"), ("i",)), {}),
}
ACCEPTED = {
    ("Choice", 0), ("Choice", 1), ("Choice", "before"),  # any number or text is a value
    ("Device", 0), ("Kernel", 0), ("Schedule", 0), ("Operand", 0), ("Reduction", 0),  # any name
    ("Operation", 0), ("Operation", 4), ("Operation", "scalars"),  # there may be none
    ("Schedule", 1), ("Space", "fixed"), ("Operand", 1), ("elementwise", "inputs"),
    ("ask", 1),  # an empty wish
    ("matmul", 1), ("matmul", "activation"),  # none
    ("emit", 2),  # sizes are read of a specialised term alone
    ("rank", 1),
}  # fmt: skip
"""Arguments of which some of WRONG are right."""


def complaint(do: Callable[[], object]) -> str:
    """Return what a TinyGpuError says, or "" if nothing is wrong."""
    try:
        do()
    except TinyGpuError as error:
        return str(error)
    return ""


def test_every_public_name_is_called() -> None:
    others = {"MACHINES", "Machine", "TinyGpuError"}
    assert {*tinygpu.__all__} == {name for name in RIGHT if name in tinygpu.__all__} | others
    assert dir(tinygpu) == sorted(tinygpu.__all__)


@pytest.mark.parametrize("name", RIGHT)
def test_a_wrong_argument_is_a_tinygpu_error(name: str) -> None:
    """And never Python's AttributeError, ValueError, AssertionError; the right call works."""
    call, arguments, options = RIGHT[name]
    call(*arguments, **options)
    for place in (*range(len(arguments)), *options):
        for wrong in WRONG:
            given, named = list(arguments), dict(options)
            if isinstance(place, int):
                given[place] = wrong
            else:
                named[place] = wrong
            said = complaint(lambda: call(*given, **named))  # noqa: B023
            assert said or (name, place) in ACCEPTED, (place, wrong)
            assert "\n" not in said


def test_what_is_forgotten_is_named() -> None:
    """An axis that the output lacks is reduced: the message says how to write it."""
    a, c = Operand("a", ("m", "k"), "f32"), Operand("c", ("m",), "f32")
    with pytest.raises(OperationError, match=re.escape("c[m] f32 lacks k, and no reduction")) as e:
        Operation("sums", ("m", "k"), (a,), c, epilogue=value("a"))
    assert "give one, or an output with the axes m, k" in str(e.value)
    Operation("sums", ("m", "k"), (a,), c, (Reduction("acc", "add", value("a"), ("k",)),))
    with pytest.raises(OperationError, match="no inputs"):
        Operation("none", ("m",), (), c, epilogue=value("m"))


@pytest.mark.parametrize(
    "statement",
    [
        lambda: ForTile("t", "turn", (), start=1),  # type: ignore[arg-type]
        lambda: When(3, 4, ()),  # type: ignore[arg-type]
        lambda: Wait(FULL, 0),  # type: ignore[arg-type]
        lambda: Wait("full", Affine()),  # type: ignore[arg-type]
        lambda: Arrive(FULL, None),  # type: ignore[arg-type]
        lambda: Access("x"),  # type: ignore[arg-type]
        lambda: Access(registers("x", "f32", 1), origin=(0,)),  # type: ignore[arg-type]
        lambda: Access(registers("x", "f32", 1), index=2),  # type: ignore[arg-type]
    ],
)
def test_a_number_where_a_form_belongs(statement: Callable[[], object]) -> None:
    with pytest.raises(ProgramError, match=r"is of type .*; give one of type"):
        statement()


def test_registers_take_no_pattern() -> None:
    held = Kernel("mine", matmul()).registers("x", "f32")
    with pytest.raises(ProgramError, match=r"x: registers take no pattern; k.each goes"):
        held["i = v"]  # type: ignore[index]


class Lacking(Machine):
    """It multiplies, and lists no instruction that does."""

    name = "lacking"
    numeric = True
    levels = (*MACHINES["elementwise"].levels[:1], REGISTERS)
    instructions = instructions("ld.global", "st.global")
    threads, vector = Choice(64, 128, 256), Choice(1, 2, 4)

    def forward(self, k: Kernel) -> None:
        k.grid("block")
        k.threads(thread=self.threads)
        k.values(v=self.vector)
        x = k.load(k.inputs[0]["i = (block thread v)"])
        k.store(k.output["i = (block thread v)"], k.compute(k.op.epilogue, {"x": x}))


class Unlike(Lacking):
    """Its digit has two lengths."""

    name = "unlike"

    def forward(self, k: Kernel) -> None:
        k.tile(t=self.threads)
        k.tile(t=self.vector)


@pytest.mark.parametrize(
    ("machine", "told"),
    [
        (Lacking(), "fma(a, x_held) x 1 to 4 needs fma, none of its instructions"),
        (Unlike(), "digit t: has 64 to 256 elements in another tile, here 1 to 4"),
    ],
)
def test_no_array_is_in_a_message(machine: Machine, told: str) -> None:
    """Over a space a number is an array: the message has its range."""
    problem = Problem.of(elementwise("a*x"), i=4096)
    with pytest.raises((MachineError, ProgramError)) as error:
        tinygpu.Space(machine, problem, DEVICE).count()
    assert told in str(error.value).replace("fma.mul", "fma")
    assert "[[" not in str(error.value)
    assert number_text(np.array([[8], [8]])) == "8"


def test_a_limit_names_its_number() -> None:
    """What the schedule has, what the device allows, and the way out."""

    class Wide(Lacking):
        name = "wide"
        instructions = instructions("ld.global", "st.global", "fma")
        threads = Choice(2048, 4096)

    space = tinygpu.Space(Wide(), Problem.of(elementwise("a*x"), i=4096), DEVICE)
    with pytest.raises(TinyGpuError, match="keeps threads; a CTA has 2048 threads; h200 allows 1 "):
        tinygpu.rank(space, 1)


@pytest.mark.parametrize("given", [Requirement("even", True, "it is even", "double it"), None, [1]])
def test_requirements_that_are_no_tuple_are_named(given: Any) -> None:
    """Wherever they are asked for: one schedule, a space, a question."""

    class Own(Simt):
        def requires(self, operation: Operation, choose: Any) -> Any:
            return given

    space = tinygpu.Space(Own(), PROBLEM, DEVICE, fixed=dict(LADDER["naive"]))
    asks: tuple[Callable[[], object], ...] = (
        lambda: tinygpu.check_schedule(SCHEDULE, Own(), PROBLEM, DEVICE),
        space.count,
        lambda: tinygpu.ask(space, "tile_m > 0"),
    )
    for ask in asks:
        with pytest.raises(MachineError, match="return a tuple of Requirements"):
            ask()
