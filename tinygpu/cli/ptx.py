"""The command ``ptx``: what a kernel's text does on arrays, and what is wrong with it."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tinygpu.cli.console import json_text, say, say_json, write
from tinygpu.cli.given import JSON

__all__ = ["Annotations", "ptx"]


class Annotations(StrEnum):
    """The CIs whose annotations are known."""

    GITHUB = "github"


def ptx(
    file: Annotated[Path, typer.Argument(help="A file of PTX, of nvcc, Triton or by hand.")],
    kernel: Annotated[str, typer.Option(help="The kernel; the first, if it is left out.")] = "",
    grid: Annotated[str, typer.Option(help="CTAs: 8, or 4,2,1.")] = "1",
    block: Annotated[str, typer.Option(help="Threads of a CTA: 128, or 32,4.")] = "32",
    cluster: Annotated[str, typer.Option(help="CTAs of a cluster.")] = "1",
    smem: Annotated[int, typer.Option(help="Bytes of dynamic shared memory.")] = 0,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=VALUE, once for each parameter: a .npy file, f32[1024] or float[1024] for "
            "so many zeros of a type, f32[1024]:random, or a number. By the parameters' names, "
            "else in their order."
        ),
    ] = None,
    save: Annotated[
        list[str] | None, typer.Option(help="NAME=FILE.npy: write an argument's array there.")
    ] = None,
    order: Annotated[
        str, typer.Option(help="When asynchronous operations complete: late,early,random:20.")
    ] = "late,early,random",
    lanes: Annotated[
        bool | None,
        typer.Option(
            help="Threads as agents, which finds races inside a warp; small CTAs have it."
        ),
    ] = None,
    races: Annotated[
        bool, typer.Option("--global/--no-global", help="Look for races in global memory.")
    ] = True,
    limit: Annotated[int, typer.Option(help="Instructions of groups that a run may have.")] = (
        5_000_000
    ),
    sarif: Annotated[Path | None, typer.Option(help="Write the findings as SARIF there.")] = None,
    annotations: Annotated[
        Annotations | None,
        typer.Option(help="Print the findings as a CI shows them beside the source."),
    ] = None,
    as_json: JSON = False,
) -> None:
    """Run a kernel on arrays, without a GPU, and say what is wrong with it, by line.

    Exits with 0 if nothing is found, 1 for errors, 3 for warnings alone.
    """
    from tinygpu.codegen.emulator import checking

    checked = checking.check_file(
        file, kernel=kernel, grid=grid, block=block, cluster=cluster, smem=smem, arg=arg or (),
        save=save or (), order=order, lanes=lanes, limit=limit, races=races,
    )  # fmt: skip
    if sarif is not None:
        write(sarif, json_text(checking.sarif(checked, str(file))))
    if as_json:
        say_json(checked.json)
    else:
        told = checking.workflow_commands if annotations else checking.lines
        for line in told(checked, file):
            say(line)
    sys.exit(checked.status)
