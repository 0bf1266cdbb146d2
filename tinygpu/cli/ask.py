"""The commands ``ask`` and ``prove``: a schedule with a wish, and a claim about all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tinygpu.cli.asked import Asked, asking, problem_of
from tinygpu.cli.console import say, say_json, working, write
from tinygpu.cli.given import DEVICE, FIX, JSON, MACHINE, device_given, fixed_values, machines_for
from tinygpu.devices.device import label
from tinygpu.errors import MachineError
from tinygpu.term.schedule import to_json

if TYPE_CHECKING:
    from tinygpu.space.questions import Answer
    from tinygpu.space.space import Space

__all__ = ["ask", "prove"]

_OUT = Annotated[Path | None, typer.Option(help="File for the schedule that is found.")]


@asking
def ask(
    asked: Asked,
    wish: Annotated[str, typer.Argument(help='As "stages >= 5 and tile_n == 256".')] = "",
    machine: MACHINE = "",
    device: DEVICE = "",
    fix: FIX = None,
    out: _OUT = None,
    as_json: JSON = False,
) -> None:
    """Find a legal schedule with a wish; else say what excludes it (status 1)."""
    from tinygpu.space.questions import ask as answered

    space, wish = _space(asked, wish, machine, device, fix)
    with working("looking for a schedule"):
        answer = answered(space, wish)
    _tell(answer, space, out, as_json)


@asking
def prove(
    asked: Asked,
    claim: Annotated[str, typer.Argument(help='As "smem_bytes <= 200000".')] = "",
    machine: MACHINE = "",
    device: DEVICE = "",
    fix: FIX = None,
    out: _OUT = None,
    as_json: JSON = False,
) -> None:
    """Prove a claim of every legal schedule; else give a counterexample (status 1)."""
    from tinygpu.space.questions import prove as proved

    space, claim = _space(asked, claim, machine, device, fix)
    with working("looking for a counterexample"):
        answer = proved(space, claim)
    _tell(answer, space, out, as_json)


def _space(
    asked: Asked, wish: str, machine: str, device: str, fix: list[str] | None
) -> tuple[Space, str]:
    """Return the space that is asked about, and the wish: the first text, if there is one text."""
    from tinygpu.space.space import Space

    if asked.operation != "elementwise" and not wish:
        asked, wish = replace(asked, expression=""), asked.expression
    problem, chip = problem_of(asked, machine), device_given(device)
    chosen, *others = machines_for(problem.operation, chip, machine, problem.sizes)
    if others:
        names = ", ".join(one.name for one in (chosen, *others))
        raise MachineError(
            f"--machine: {names} can do it; choose one, a wish is about its decisions"
        )
    return Space(chosen, problem, chip, fixed=fixed_values(chosen, fix or ())), wish


def _tell(answer: Answer, space: Space, out: Path | None, as_json: bool) -> None:
    """Print the answer, write its schedule; exit with a status that says which it was."""
    if as_json:
        say_json(answer.tree())
    else:
        say(answer)
    if out is not None and answer.schedule is not None:
        file = write(out, to_json(answer.schedule, space.problem, device=label(space.device)))
        if not as_json:
            say(f"schedule: {file}; why: tinygpu explain {file}")
    raise typer.Exit({"found": 0, "proved": 0, "unknown": 3}.get(answer.outcome, 1))
