"""The command ``ptx``: what a kernel's text does on arrays, and what is wrong with it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from tinygpu.cli.console import json_text, say, say_json, write
from tinygpu.cli.given import JSON
from tinygpu.errors import LaunchError, ProgramError

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(ptx)


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
            help="NAME=VALUE, once for each parameter: a .npy file, f32[1024] for so many zeros of "
            "a type, or a number. By the parameters' names, else in their order."
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
    limit: Annotated[int, typer.Option(help="Instructions of groups that a run may have.")] = (
        5_000_000
    ),
    sarif: Annotated[Path | None, typer.Option(help="Write the findings as SARIF there.")] = None,
    as_json: JSON = False,
) -> None:
    """Run a kernel on arrays, without a GPU, and say what is wrong with it, by line.

    Exits with 0 if nothing is found, 1 for errors, 3 for warnings alone.
    """
    from tinygpu.codegen.emulator import checking

    given = dict(_pair(text, "--arg") for text in arg or ())
    checked = checking.check(
        _text(file),
        kernel,
        _extent(grid, "--grid"),
        _extent(block, "--block"),
        {name: checking.argument(value) for name, value in given.items()},
        cluster=_extent(cluster, "--cluster"),
        smem_bytes=smem,
        orders=checking.orders(order),
        lanes=lanes,
        limit=limit,
    )
    for name, path in (_pair(text, "--save") for text in save or ()):
        if name not in checked.results:
            raise LaunchError(f"--save: {name} is no array; {', '.join(checked.results) or 'none'}")
        np.save(path, checked.results[name])
    if sarif is not None:
        write(sarif, json_text(checking.sarif(checked, str(file))))
    if as_json:
        say_json(checked.json)
    else:
        for finding in checked.findings:
            say(f"{file}: {finding}")
        for name in checked.differing:
            say(f"{file}: warning: {name} is not the same in every order")
        told = f"{len(checked.findings)} findings" if checked.findings else "nothing found"
        say(f"{checked.kernel}: {told}; orders {', '.join(map(str, checked.orders))}")
        say(f"not checked: {', '.join(checking.NOT_CHECKED)}")
    sys.exit(checked.status)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ProgramError(f"{file}: no text; give PTX, not a cubin") from None


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise LaunchError(f"{option}: {text!r}; give NAME=VALUE")
    return name, value


def _extent(text: str, option: str) -> Any:
    if not re.fullmatch(r"\d{1,9}(,\d{1,9}){0,2}", text):
        raise LaunchError(f"{option}: {text!r}; one to three numbers, as 4,2,1")
    return tuple(map(int, text.split(",")))
