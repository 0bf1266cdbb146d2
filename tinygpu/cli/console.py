"""What the commands print and write: lines, tables, bars, JSON, whole files."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import typer

__all__ = [
    "bar",
    "complain",
    "count_text",
    "json_text",
    "resumable",
    "say",
    "say_json",
    "table",
    "time_text",
    "working",
    "write",
]


class Progress(Protocol):
    """What is told of progress: how much is done, of how much if that is known, and in words."""

    def __call__(self, done: int, total: int | None, told: str = "", /) -> None:
        """Show it."""


def complain(text: str) -> int:
    """Print ``error: ..`` in one line on standard error; return the status for it."""
    typer.echo(f"error: {' '.join(text.split())}", err=True)
    return 2


def say(text: object) -> None:
    """Print to standard output."""
    typer.echo(str(text))


def json_text(tree: Any) -> str:
    """Write JSON for machines: NumPy's numbers become Python's."""

    def plain(value: Any) -> Any:
        return value.item() if hasattr(value, "item") else str(value)

    return json.dumps(tree, indent=2, default=plain)


def say_json(tree: Any) -> None:
    """Print JSON to standard output."""
    typer.echo(json_text(tree))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; columns whose name begins with ``#`` are flush right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        right = column.startswith("#")
        shown.add_column(column.removeprefix("#") or "#", justify="right" if right else "left")
    for row in rows:
        shown.add_row(*map(str, row))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 200  # a file or a pipe has no edge to wrap at
    console.print(title, style="italic")  # one of the table's own is wrapped where that is narrow
    console.print(shown)


@contextmanager
def bar(text: str) -> Iterator[Progress]:
    """Show a progress bar on standard error, on a terminal; give ``progress(done, all)``."""
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(), bars.TextColumn("{task.fields[told]}"),
    )  # fmt: skip
    console = Console(stderr=True)
    with bars.Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as shown:
        task = shown.add_task(text, total=None, told="")

        def progress(done: int, total: int | None, told: str = "", /) -> None:
            shown.update(task, completed=done, total=total, told=told)

        yield progress


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show that something goes on, on a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


@contextmanager
def resumable(way: str) -> Iterator[None]:
    """Say how to go on when Ctrl-C comes, and exit with status 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"interrupted: {way}", err=True)
        sys.exit(130)


def write(path: Path, content: str | bytes) -> Path:
    """Write a file whole or not at all, and its folder; return the path."""
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():  # a device or a pipe is no file to replace
        path.write_bytes(data)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    name = ""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None
        raise
    return path


def time_text(seconds: float) -> str:
    """Write a time with the unit that suits it, in four digits: more are not meant.

    >>> time_text(0.0016354), time_text(0.000311535), time_text(7.36e-7)
    ('1.635 ms', '311.5 us', '736.0 ns')
    """
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if (scaled := seconds * factor) >= 1:
            digits = 3 if scaled < 10 else 2 if scaled < 100 else 1
            return f"{scaled:.{digits}f} {unit}"
    return f"{seconds * 1e9:.1f} ns"


def count_text(number: int) -> str:
    """Write a count, a large one in powers of ten too."""
    return f"{number:,}" if number < 10**7 else f"{number:.2e}".replace("e+", "e")
