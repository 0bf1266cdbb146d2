"""Commands that look at things: ``machines``, ``explain``, ``check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tinygpu.cli.console import say, say_json, table, working
from tinygpu.cli.given import DEVICE, JSON, SCHEDULE, machine_named, read_schedule
from tinygpu.errors import ScheduleError
from tinygpu.machines import MACHINES

__all__ = ["add_to", "proof_text"]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (machines, explain, check):
        app.command()(command)


def machines(
    name: Annotated[str, typer.Argument(help="Show this machine.")] = "",
    as_json: JSON = False,
) -> None:
    """List the machines, or show one: its levels, instructions and decisions."""
    shown = [machine_named(name)] if name else list(MACHINES.values())
    if as_json:
        say_json([_machine_tree(machine) for machine in shown])
    elif name:
        say(shown[0])
    else:
        rows = [
            (
                m.name,
                len(m.levels),
                len(m.instructions),
                len(m.decisions()),
                ", ".join(m.operations) or "any",
                (m.__doc__ or "").strip().splitlines()[0],
            )
            for m in shown
        ]
        columns = ("machine", "#levels", "#instructions", "#decisions", "operations", "what")
        table("machines (tinygpu machines NAME shows one)", columns, rows)


def _machine_tree(machine: Any) -> dict[str, Any]:
    return {
        "name": machine.name,
        "levels": [level.name for level in machine.levels],
        "instructions": [instruction.name for instruction in machine.instructions],
        "operations": list(machine.operations),
        "decisions": {
            name: {
                "values": list(choice.values),
                "structural": choice.structural,
                "meaning": choice.meaning,
            }
            for name, choice in machine.decisions().items()
        },
    }


def explain(
    schedule: SCHEDULE,
    other: Annotated[Path | None, typer.Argument(help="Say why one beats the other.")] = None,
    device: DEVICE = "h200",
    as_json: JSON = False,
) -> None:
    """Say how long a schedule takes and what it waits for, or why one beats another."""
    one = read_schedule(schedule, device)
    one.program()  # an illegal schedule has no time
    two = one if other is None else read_schedule(other, device)
    two.program()
    if (two.machine, two.problem) != (one.machine, one.problem):
        raise ScheduleError(
            f"explain: {schedule} and {other} are for different problems or machines; "
            "give two schedules of one search"
        )
    from tinygpu.search import explain as explaining

    found: explaining.Explanation | explaining.Comparison
    where = (one.machine, one.problem, one.device)
    if other is None:
        found = explaining.explain(one.schedule, *where)
    else:
        found = explaining.compare(one.schedule, two.schedule, *where)
    if as_json:
        say_json(found.tree())
    else:
        say(found)


def check(schedule: SCHEDULE, device: DEVICE = "h200", as_json: JSON = False) -> None:
    """Judge a schedule: every law it breaks (status 1), else the proof for every trip count."""
    from tinygpu.laws import check_schedule

    given = read_schedule(schedule, device)
    with working("judging"):
        broken = check_schedule(given.schedule, given.machine, given.problem, given.device)
    proof = (
        "" if broken else proof_text(given.schedule.program(given.machine, given.problem.operation))
    )
    if as_json:
        violations = [{"law": v.law, "message": v.message, "mend": v.mend} for v in broken]
        say_json({"legal": not broken, "violations": violations, "concurrency": proof})
    elif broken:
        say(f"illegal: {schedule} breaks {len(broken)} law{'s' * (len(broken) > 1)}")
        for violation in broken:
            say(f"  {violation}")
    else:
        say(f"legal: {schedule} on {given.device.name}")
        say(f"  no deadlock, no race: {proof}")
    if broken:
        raise typer.Exit(1)


def proof_text(program: Any) -> str:
    """Return the event graph's verdict in words."""
    from tinygpu.events import verdict

    found = verdict(program)
    if not found.proved:
        return f"checked up to {found.window}"
    axes = ", ".join(program.operation.reduced).upper() or "size"
    return f"proved for every {axes} and every number of tiles ({found.window})"
