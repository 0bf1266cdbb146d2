"""Commands that look: ``machines``, ``devices``, ``laws``, ``explain``, ``check``, ``verify``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tinygpu.cli.console import say, say_json, table, working, write
from tinygpu.cli.given import JSON, ON, OWN, SCHEDULE, certificate_of, file_of_each, read_schedule
from tinygpu.devices.device import DEVICES, NUMBERS, Device, load_device, to_json
from tinygpu.errors import ScheduleError, nearest
from tinygpu.machines import MACHINES
from tinygpu.machines.file import machine_named
from tinygpu.term.plan import kernels_of

__all__ = ["check", "devices", "explain", "laws", "machines", "proof_text", "verify"]


def machines(
    name: Annotated[str, typer.Argument(help="Show this machine; FILE.py:Class: yours.")] = "",
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


def devices(
    name: Annotated[str, typer.Argument(help="Show this device, or this .json file.")] = "",
    as_json: JSON = False,
) -> None:
    """List the devices, or show one: each number with its kind and source.

    With --json, NAME is written as a device file, which --device takes.
    """
    shown = [load_device(one) for one in ((name,) if name else DEVICES)]
    if as_json:
        trees = [json.loads(to_json(device)) for device in shown]
        say_json(trees[0] if name else trees)
    elif name:
        say(shown[0])
    else:
        columns = ("device", "arch", "#SMs", "#GHz", "#KiB smem/CTA", "#MiB L2", "#GiB", "#GB/s",
                   "#fp32 TFLOP/s", "#tensor TFLOP/s", "its numbers")  # fmt: skip
        title = "devices (tinygpu devices NAME shows one, with the source of each number)"
        table(title, columns, [_device_row(device) for device in shown])


def _device_row(d: Device) -> tuple[object, ...]:
    kinds = [d.provenance[field].kind for field in NUMBERS]
    counts = ", ".join(f"{kinds.count(k)} {k}" for k in dict.fromkeys(kinds))
    per_cycle = d.sms * d.clock_hz / 1e12
    return (
        d.name, d.arch, d.sms, f"{d.clock_hz / 1e9:.3g}", f"{d.smem_bytes_per_cta_max / 2**10:.4g}",
        f"{d.l2_bytes / 2**20:.4g}", f"{d.dram_bytes / 2**30:.4g}",
        f"{d.dram_bytes_per_second / 1e9:.4g}", f"{2 * d.fma_f32_per_cycle_per_sm * per_cycle:.3g}",
        f"{d.tensor_flop_per_cycle_per_sm * per_cycle:.4g}", counts,
    )  # fmt: skip


def laws(
    name: Annotated[str, typer.Argument(help="Show this law.")] = "", as_json: JSON = False
) -> None:
    """List the laws of terms, or show one: what it states, where that is from, what mends it."""
    from tinygpu.legality.laws import LAWS

    if name and name not in LAWS:
        raise ScheduleError(f"law {name}: {nearest(name, LAWS)}")
    shown = [LAWS[name]] if name else list(LAWS.values())
    if as_json:
        told = ("name", "sentence", "source", "mend")
        trees = [{field: getattr(law, field) for field in told} for law in shown]
        say_json(trees[0] if name else trees)
    elif name:
        say(f"{shown[0]}\n  source: {shown[0].source}\n  mend: {shown[0].mend}")
    else:
        rows = [(law.name, law.sentence.removeprefix("States that ")) for law in shown]
        table("laws (tinygpu laws NAME shows one)", ("law", "states that"), rows)


def explain(
    schedule: SCHEDULE,
    other: Annotated[Path | None, typer.Argument(help="Say why one beats the other.")] = None,
    device: ON = "",
    machine: OWN = "",
    as_json: JSON = False,
) -> None:
    """Say how long a schedule takes and what it waits for, or why one beats another."""
    one = read_schedule(schedule, device, machine=machine)
    one.program()  # an illegal schedule has no time
    two = one if other is None else read_schedule(other, device, machine=machine)
    two.program()
    if (two.machine, two.problem) != (one.machine, one.problem):
        raise ScheduleError(
            f"explain: {schedule} and {other} are for different problems or machines; "
            "give two schedules of one search"
        )
    from tinygpu.search.explain import explain as explaining

    found: explaining.Explanation | explaining.Comparison
    where = (one.machine, one.problem, one.device)
    if other is None:
        found = explaining.explain(one.schedule, *where)
    else:
        each = explaining.explain if as_json else explaining.outlined
        found = explaining.compare(one.schedule, two.schedule, *where, each)
    if as_json:
        say_json(found.tree())
    else:
        say(found)


def check(
    schedule: SCHEDULE,
    device: ON = "",
    machine: OWN = "",
    certificate: Annotated[
        Path | None,
        typer.Option(help="Write a certificate of the term's order, which verify checks."),
    ] = None,
    as_json: JSON = False,
) -> None:
    """Judge a schedule: every law it breaks (status 1), else the proof for every trip count.

    A term that does not compute its operation at small sizes, in a prime field, is illegal too, and
    one whose PTX, run at a small instance, does not keep its order.
    Status 3: it is legal, and there is no certificate, which was asked for.
    """
    from tinygpu.checker.sums import computed
    from tinygpu.codegen.run.agreement import computes_as_emitted
    from tinygpu.codegen.run.held import held
    from tinygpu.legality.laws import Violation, check_schedule

    given = read_schedule(schedule, device, machine=machine)
    with working("judging"):
        broken = check_schedule(given.schedule, given.machine, given.problem, given.device)
    proof = meaning = sums = code = ""
    if not broken:
        program = given.schedule.term(given.machine, given.problem.operation)
        with working("executing small instances"):
            found = computes_as_emitted(program)
        rulings = [computed(kernel) for kernel in kernels_of(program)]
        wrong = [str(found)] * bool(found.wrong)
        wrong += [str(ruling) for ruling in rulings if ruling.word == "refused"]
        if not wrong:
            proof, meaning, code = proof_text(program), str(found), str(held(program))
            sums = "; ".join(dict.fromkeys(map(str, rulings)))
        else:
            mend = f"let the term compute {program.operation}"
            broken = (Violation("computes", wrong[0], mend),)
    outcome = "legal"
    if broken:
        outcome = "unproved" if all(v.unproved for v in broken) else "illegal"
    if as_json:
        violations = [{"law": v.law, "message": v.message, "mend": v.mend} for v in broken]
        tree = {"legal": not broken, "outcome": outcome, "violations": violations}
        tree["concurrency"] = proof
        say_json({**tree, "meaning": meaning, "sums": sums, "code": code})
    elif outcome == "unproved":
        say(f"unproved: {schedule} is not known to break a law, nor proved to keep one")
        for violation in broken:
            say(f"  {violation}")
    elif broken:
        say(f"illegal: {schedule} breaks {len(broken)} law{'s' * (len(broken) > 1)}")
        for violation in broken:
            say(f"  {violation}")
    else:
        say(f"legal: {schedule} on {given.device.name}")
        say(f"  no deadlock, no race: {proof}")
        say(f"  it {meaning}")
        say(f"  by provenance, for all sizes, {sums}")
        say(f"  {code}")
    if broken:
        raise typer.Exit(1)
    if certificate is not None:
        term = given.schedule.term(given.machine, given.problem.operation)
        for kernel, path in file_of_each(term, certificate):
            _certify(kernel, path)


def _certify(program: Any, path: Path) -> None:
    """Write a term's certificate, or say why there is none, with status 3."""
    with working("certifying"):
        text, ruling = certificate_of(program)
    if not text:
        typer.echo(f"no certificate: {ruling}", err=True)
        raise typer.Exit(3)
    write(path, text)
    typer.echo(f"{path}: a certificate of {ruling.nodes} invariants", err=True)


def verify(
    term: Annotated[Path, typer.Argument(help="A term's text: tinygpu emit --term writes one.")],
    certificate: Annotated[Path, typer.Argument(help="What tinygpu check --certificate wrote.")],
    machine: OWN = "",
) -> None:
    """Check a certificate of a term's order: accepted, refused (status 1), not certified (3).

    Then check what it computes, which needs no certificate: refused is status 1, too.
    Nothing of the search, the judge or the emitter is asked: docs/proof.md says what is believed.
    """
    from tinygpu.checker.sums import computed
    from tinygpu.checker.written import verified
    from tinygpu.term.text import parse

    own = {i.name: i for i in machine_named(machine).instructions} if machine else {}
    texts = []
    for path in (term, certificate):
        try:
            texts.append(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise ScheduleError(f"verify: {path} is no UTF-8 text; give a text file") from None
    program = parse(texts[0], own)
    ruling = verified(program, texts[1])
    say(f"order {ruling}")
    if not ruling.accepted:
        raise typer.Exit(1 if ruling.word == "refused" else 3)
    meaning = computed(program)
    say(f"meaning {meaning}")
    if meaning.word == "refused":
        raise typer.Exit(1)


def proof_text(program: Any) -> str:
    """Return the judge's verdict on a term in words; only what is proved is called so."""
    from tinygpu.legality.concurrency.judge import verdict

    found = verdict(program)
    if not found.legal:
        return str(found)
    over = dict.fromkeys(a for r in program.operation.reductions for a in r.over)
    axes = ", ".join(axis.upper() if len(axis) == 1 else axis for axis in over) or "size"
    states = f"{found.states} state{'s' * (found.states != 1)}"
    return f"proved for every {axes} and every number of tiles, in {states}"
