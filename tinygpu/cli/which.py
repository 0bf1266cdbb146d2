"""The command ``which``: which kernel of a bundle serves a shape, and why not another.

What was measured is in the bundle; what the time model says of exactly these sizes is computed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tinygpu.cli.console import say, say_json, table, time_text
from tinygpu.cli.given import JSON, OWN, machines_with
from tinygpu.cli.sizes import SIZES, sizes_of, spelled
from tinygpu.devices.device import load_device
from tinygpu.errors import LaunchError, OperationError, nearest
from tinygpu.search.tuning.shape import Shape
from tinygpu.term.operation import Operation, Problem
from tinygpu.term.schedule import from_json

if TYPE_CHECKING:
    from tinygpu.codegen.runtime.bundle import Bundle
    from tinygpu.term.machine import Machine

__all__ = ["BUNDLE", "choices_tree", "which"]

_LONG = 30
BUNDLE = Annotated[Path, typer.Argument(help="A folder or .zip that dispatch wrote.")]


def which(
    bundle: BUNDLE,
    sizes: SIZES = None,
    layer: Annotated[str, typer.Option(help="A layer's name, instead of -n and -k.")] = "",
    rule: Annotated[str, typer.Option(help="Another rule than the bundle's.")] = "",
    machine: OWN = "",
    groups: Annotated[
        list[str] | None,
        typer.Option(help="Predict for these rows of groups, not the bundle's; repeatable."),
    ] = None,
    ptx: Annotated[bool, typer.Option("--ptx", help="Print its PTX.")] = False,
    sass: Annotated[bool, typer.Option("--sass", help="Print its machine code.")] = False,
    as_json: JSON = False,
) -> None:
    """Say which kernel of a bundle serves a shape, and why not another.

    Status 1: the shape lies beyond those that the bundle was made for.
    """
    from tinygpu.codegen.runtime.bundle import load_bundle

    opened = load_bundle(bundle, rule=rule)
    asked = _sizes_in(opened, sizes or (), layer)
    tree = choices_tree(opened, asked, machines_with(machine), groups or ())
    kernel = opened.tree["kernels"][tree["number"]]
    if ptx or sass:
        text = opened.code[kernel["ptx"]].decode()
        if sass:
            from tinygpu.codegen.run.assemble import sass as machine_code

            text = machine_code(opened.code[kernel["cubin"]])
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
    elif as_json:
        say_json(tree)
    else:
        _say_which(tree)
    if tree["beyond"]:
        typer.echo(tree["beyond"], err=True)
        raise typer.Exit(1)


def _sizes_in(bundle: Bundle, given: Sequence[str], layer: str) -> dict[str, int]:
    """Return the sizes that are asked for.  Raises TinyGpuError where they are not said."""
    shapes, axes = bundle.tree["shapes"], bundle.axes
    name = bundle.tree["operation"].partition(":")[0]
    asked = sizes_of(name, axes, given)
    others = [axis for axis in axes if axis != bundle.along]
    if layer:
        named = {s["layer"]: {axis: s[axis] for axis in others} for s in shapes if s["layer"]}
        if layer not in named:
            raise LaunchError(
                f"--layer {layer}: {nearest(layer, named) if named else 'it has none'}"
            )
        asked |= named[layer]
    if bundle.along not in asked:
        option = spelled(bundle.along)
        raise LaunchError(f"{option}: not given; say which size is to be served, as {option} 64")
    every = {tuple(s[axis] for axis in others): s["layer"] for s in shapes}
    fit = [at for at in every if all(asked.get(a, s) == s for a, s in zip(others, at, strict=True))]
    if any(axis not in asked for axis in others):
        if len(fit) != 1:
            options = ", ".join(map(spelled, others))
            known = ", ".join(f"{' x '.join(map(str, at))} {n}".strip() for at, n in every.items())
            raise LaunchError(f"{options}: the bundle serves {known}; say which")
        asked |= zip(others, fit[0], strict=True)
    return {axis: asked[axis] for axis in axes}


def _beyond(bundle: Bundle, sizes: Mapping[str, int]) -> str:
    """Return which sizes lie beyond those of the bundle's shapes, or ""."""
    found = []
    for axis, size in sizes.items():
        every = [shape[axis] for shape in bundle.tree["shapes"]]
        if not min(every) <= size <= max(every):
            made = f"{min(every)} to {max(every)}" if min(every) < max(every) else f"{every[0]}"
            found.append(f"{axis} is {size}, and the bundle was made for {axis} {made}")
    way = "nothing was compared there: make a bundle for these sizes by tinygpu dispatch"
    return f"beyond: {'; '.join(found)}; {way}" if found else ""


def choices_tree(
    bundle: Bundle,
    sizes: Mapping[str, int],
    machines: Mapping[str, Machine],
    routings: Sequence[str] = (),
) -> dict[str, Any]:
    """Return what serves the sizes and why: every kernel with its times near by and its bottleneck.

    Predicted times are of these sizes, for kernels of the ``machines``; measured ones of the
    nearest shapes below and above.  Of an operation with groups, a predicted time is the mean over
    ``routings``, or those of the nearest shape, and the bottleneck that of the slowest of them.
    Raises OperationError for routings that do not fit.
    """
    from tinygpu.codegen.runtime.contract import Contract
    from tinygpu.search.time.cost import cost

    told = bundle.which(**sizes)
    rows = []
    near = _near(bundle, sizes)
    shares = dict.fromkeys(routings, 1.0) or bundle.near(**sizes).get("routings", {})
    shape = Shape(tuple(sizes.items()), bundle.along, routings=tuple(shares.items()))
    chip = load_device(bundle.tree["device"])
    for number, kernel in enumerate(bundle.tree["kernels"]):
        text = bundle.code[kernel["schedule"]].decode()
        row: dict[str, Any] = {"kernel": kernel["name"], "machine": kernel["machine"]}
        row["decisions"] = json.loads(text)["decisions"]
        if kernel["machine"] in machines:
            machine, problem, schedule = from_json(text, machines)
            if routings and problem.operation.groups is None:
                raise OperationError(f"--groups: {problem.operation.name} has no groups")
            refused = _refused(Contract.of(kernel["contract"]), problem.operation, sizes)
            if refused:
                row["illegal"] = refused
            else:
                program = schedule.term(machine, problem.operation)
                each = [
                    (cost(program, one.sizes, chip), share)
                    for one, share in shape.problems(problem.operation)
                ]
                slowest, _ = max(each, key=lambda pair: float(pair[0].seconds))
                mean = sum(share * float(found.seconds) for found, share in each)
                row |= {"predicted_seconds": mean, "bottleneck": slowest.bottleneck}
        row["measured"] = {
            shape[bundle.along]: seconds
            for shape in near
            if (seconds := (shape.get("scored") or shape["measured"] or [None] * 99)[number])
        }
        rows.append(row)
    return {
        **told,
        "along": bundle.along,
        "sizes": dict(sizes),
        **({"routings": shares} if shares else {}),
        "beyond": _beyond(bundle, sizes),
        "shapes_near": [s[bundle.along] for s in near],
        "kernels": rows,
    }


def _refused(contract: Any, operation: Operation, sizes: Mapping[str, int]) -> str:
    """Return why a kernel cannot take arrays of these sizes, or ""."""
    from tinygpu.codegen.run.arguments import dense
    from tinygpu.codegen.runtime.steps import check_steps

    try:
        check_steps(contract, dense(Problem.of(operation, **sizes)))
    except LaunchError as error:
        return str(error)
    return ""


def _near(bundle: Bundle, sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the shapes of the bundle next to the sizes: below or at, and above."""
    along = bundle.along
    others = [axis for axis in bundle.axes if axis != along]
    group = [s for s in bundle.tree["shapes"] if all(s[axis] == sizes[axis] for axis in others)]
    below = [s for s in group if s[along] <= sizes[along]]
    above = [s for s in group if s[along] > sizes[along]]
    exact = below and max(s[along] for s in below) == sizes[along]
    found = [max(below, key=lambda s: s[along])] if below else []
    found += [min(above, key=lambda s: s[along])] if above and not exact else []
    return found


def _say_which(tree: Mapping[str, Any]) -> None:
    sizes = " x ".join(str(size) for size in tree["sizes"].values())
    if "interval" in tree:
        low, high = tree["interval"]
        where = f"it serves {tree['along']} from {low}" + (f" to {high}" if high else " on")
    else:
        where = "of the nearest shape, " + " x ".join(map(str, tree["nearest"].values()))
    say(f"{sizes}: {tree['kernel']}, by the rule {tree['rule']!r}; {where}")
    mine = tree["kernels"][tree["number"]].get("decisions", {})
    near = [m for m in tree["shapes_near"] if any(m in row["measured"] for row in tree["kernels"])]
    rows = []
    for row in tree["kernels"]:
        theirs = row.get("decisions", {})
        differs = " ".join(f"{n}={v}" for n, v in theirs.items() if mine.get(n) != v)
        if row["kernel"] == tree["kernel"]:
            differs = "serves it"
        measured = [time_text(row["measured"][m]) if m in row["measured"] else "-" for m in near]
        predicted = time_text(row["predicted_seconds"]) if "predicted_seconds" in row else "-"
        why = row.get("illegal") or row.get("bottleneck", "")
        rows.append([row["kernel"], row["machine"], predicted, *measured, why, differs])
    at = [f"#measured, {tree['along']}={m}" for m in near]
    table(
        f"kernels at {sizes}",
        ["kernel", "machine", "#predicted", *at, "waits for", "where it differs"],
        rows,
    )
    unknown = {r["machine"] for r in tree["kernels"] if not {"illegal", "bottleneck"} & {*r}}
    if unknown:
        names = " and ".join(sorted(unknown))
        say(f"no time of {names} is predicted: give --machine FILE.py:Class")
    if routings := tree.get("routings"):
        said = ", ".join(text if len(text) <= _LONG else f"{text[:_LONG]}.." for text in routings)
        say(f"predicted for groups of rows: {said}" + "; the mean" * (len(routings) > 1))
    say("its schedule: " + " ".join(f"{name}={value}" for name, value in mine.items()))
