"""The command ``which``: which kernel of a bundle serves a shape, and why not another.

What was measured is in the bundle; what the time model says of exactly these sizes is computed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tinygpu.cli.console import say, say_json, table, time_text
from tinygpu.cli.given import JSON
from tinygpu.devices.device import load_device
from tinygpu.errors import LaunchError, nearest
from tinygpu.machines import MACHINES

if TYPE_CHECKING:
    from tinygpu.codegen.runtime.bundle import Bundle
    from tinygpu.term.operation import Operation

__all__ = ["BUNDLE", "add_to", "choices_tree", "read_bundle"]

BUNDLE = Annotated[Path, typer.Argument(help="A folder or .zip that dispatch wrote.")]


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(which)


def read_bundle(path: Path, rule: str = "") -> Bundle:
    """Read a bundle.  Raises LaunchError for what is none, or is damaged."""
    from tinygpu.codegen.runtime.bundle import load_bundle

    return load_bundle(path, rule=rule)


def which(
    bundle: BUNDLE,
    m: Annotated[int, typer.Option("-m", help="Rows of c.")],
    n: Annotated[
        int | None, typer.Option("-n", help="Columns; the bundle's, if it has one.")
    ] = None,
    k: Annotated[int | None, typer.Option("-k", help="Terms of a sum, likewise.")] = None,
    layer: Annotated[str, typer.Option(help="A layer's name, instead of -n and -k.")] = "",
    rule: Annotated[str, typer.Option(help="Another rule than the bundle's.")] = "",
    ptx: Annotated[bool, typer.Option("--ptx", help="Print its PTX.")] = False,
    sass: Annotated[bool, typer.Option("--sass", help="Print its machine code.")] = False,
    as_json: JSON = False,
) -> None:
    """Say which kernel of a bundle serves a shape, and why not another."""
    opened = read_bundle(bundle, rule)
    sizes = _sizes_in(opened, m, n, k, layer)
    tree = choices_tree(opened, sizes)
    kernel = opened.tree["kernels"][tree["number"]]
    if ptx or sass:
        text = opened.code[kernel["ptx"]].decode()
        if sass:
            from tinygpu.codegen.run.assemble import sass as machine_code

            text = machine_code(opened.code[kernel["cubin"]])
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        return
    if as_json:
        say_json(tree)
        return
    _say_which(tree)


def _sizes_in(bundle: Bundle, m: int, n: int | None, k: int | None, layer: str) -> dict[str, int]:
    """Return the sizes that are asked for.  Raises LaunchError where they are not said."""
    pairs = {(s["n"], s["k"]): s["layer"] for s in bundle.tree["shapes"]}
    if layer:
        named = {s["layer"]: (s["n"], s["k"]) for s in bundle.tree["shapes"] if s["layer"]}
        if layer not in named:
            raise LaunchError(
                f"--layer {layer}: {nearest(layer, named) if named else 'it has none'}"
            )
        n, k = named[layer]
    if n is None or k is None:
        fit = [p for p in pairs if n in (None, p[0]) and k in (None, p[1])]
        if len(fit) != 1:
            known = ", ".join(f"{x} x {y} {name}".strip() for (x, y), name in pairs.items())
            raise LaunchError(f"-n, -k: the bundle serves {known}; say which")
        n, k = fit[0]
    return {"m": m, "n": n, "k": k}


def choices_tree(bundle: Bundle, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return what serves the sizes and why: every kernel with its times near by and its bottleneck.

    Predicted times are of these sizes; measured ones of the nearest shapes below and above.
    """
    from tinygpu.codegen.runtime.contract import Contract
    from tinygpu.search.time.cost import cost
    from tinygpu.term.schedule import from_json

    told = bundle.which(**sizes)
    rows = []
    near = _near(bundle, sizes)
    chip = load_device(bundle.tree["device"])
    for number, kernel in enumerate(bundle.tree["kernels"]):
        text = bundle.code[kernel["schedule"]].decode()
        row: dict[str, Any] = {"kernel": kernel["name"], "machine": kernel["machine"]}
        if kernel["machine"] in MACHINES:
            machine, problem, schedule = from_json(text, MACHINES)
            row["decisions"] = dict(schedule.decisions)
            refused = _refused(Contract.of(kernel["contract"]), problem.operation, sizes)
            if refused:
                row["illegal"] = refused
            else:
                program = schedule.program(machine, problem.operation)
                found = cost(program, sizes, chip)
                row |= {"predicted_seconds": float(found.seconds), "bottleneck": found.bottleneck}
        row["measured"] = {
            shape["m"]: seconds
            for shape in near
            if (seconds := (shape.get("scored") or shape["measured"] or [None] * 99)[number])
        }
        rows.append(row)
    return {**told, "sizes": dict(sizes), "shapes_near": [s["m"] for s in near], "kernels": rows}


def _refused(contract: Any, operation: Operation, sizes: Mapping[str, int]) -> str:
    """Return why a kernel cannot take arrays of these sizes, or ""."""
    from tinygpu.codegen.run.arguments import dense
    from tinygpu.codegen.runtime.contract import check
    from tinygpu.term.operation import Problem

    try:
        check(contract, dense(Problem.of(operation, **sizes)))
    except LaunchError as error:
        return str(error)
    return ""


def _near(bundle: Bundle, sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the shapes of the bundle next to the sizes: below or at, and above."""
    group = [s for s in bundle.tree["shapes"] if (s["n"], s["k"]) == (sizes["n"], sizes["k"])]
    below = [s for s in group if s["m"] <= sizes["m"]]
    above = [s for s in group if s["m"] > sizes["m"]]
    exact = below and max(s["m"] for s in below) == sizes["m"]
    found = [max(below, key=lambda s: s["m"])] if below else []
    found += [min(above, key=lambda s: s["m"])] if above and not exact else []
    return found


def _say_which(tree: Mapping[str, Any]) -> None:
    sizes = " x ".join(str(size) for size in tree["sizes"].values())
    if "interval" in tree:
        low, high = tree["interval"]
        where = f"it serves m from {low}" + (f" to {high}" if high else " on")
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
    at = [f"#measured, m={m}" for m in near]
    table(
        f"kernels at {sizes}",
        ["kernel", "machine", "#predicted", *at, "waits for", "where it differs"],
        rows,
    )
    say("its schedule: " + " ".join(f"{name}={value}" for name, value in mine.items()))
