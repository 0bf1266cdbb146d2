"""The commands ``store list | export | import``: the measurements that searches keep."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tinygpu.cli.console import say, say_json, table, time_text
from tinygpu.cli.given import JSON
from tinygpu.errors import StoreError
from tinygpu.search.store import Store, measurements_in

if TYPE_CHECKING:
    from tinygpu.space.measurement import Measurement

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="List, export and import what was measured.")
STORE = Annotated[Path, typer.Argument(help="The store: store.db in the folder of a search.")]


def _opened(path: Path) -> Store:
    """Open a store that there is."""
    _refuse_folder(path)
    if not path.is_file():
        raise StoreError(f"store {path}: there is none; a search with --measure --out DIR makes it")
    return Store(path)


def _refuse_folder(path: Path) -> None:
    """Raise StoreError for a folder: of a search, or without a store."""
    if path.is_dir():
        inside = path / "store.db"
        way = f"give {inside}" if inside.is_file() else "a search with --measure --out makes one"
        has = "the store is a file in it" if inside.is_file() else "there is no store.db in it"
        raise StoreError(f"store {path}: it is a folder, and {has}; {way}")


def _what(one: Measurement) -> tuple[str, str, str, str]:
    """Return an operation's name and types, its sizes, the device and the driver."""
    operation = json.loads(one.operation)
    types = dict.fromkeys(dtype for _, _, dtype in operation["inputs"])
    sizes = " ".join(f"{axis}={size}" for axis, size in json.loads(one.sizes).items())
    return f"{operation['name']} {' '.join(types)}", sizes, one.device, one.driver


@app.command("list")
def listed(store: STORE, as_json: JSON = False) -> None:
    """Print what a store has: problems, devices, how many schedules, the best time."""
    groups: dict[tuple[str, ...], list[Measurement]] = defaultdict(list)
    with _opened(store) as kept:
        for one in kept:
            groups[_what(one)].append(one)
    rows: list[tuple[Any, ...]] = []
    for what, found in sorted(groups.items()):
        times = [one.seconds for one in found if one.seconds is not None]
        rows.append((*what, len(found), len(found) - len(times), min(times, default=None)))
    columns = ("operation", "sizes", "device", "driver", "#measured", "#failed", "#best")
    if as_json:
        names = (*(name.removeprefix("#") for name in columns[:-1]), "best_seconds")
        say_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    rows = [(*row, time_text(best) if best else "") for *row, best in rows]
    table(f"{sum(map(len, groups.values()))} measurements", columns, rows)


@app.command("export")
def exported(
    store: STORE,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A file to write.")] = None,
) -> None:
    """Write all measurements as JSON lines: to a file, or to standard output."""
    with _opened(store) as kept:
        if output is None:
            kept.export_lines(sys.stdout)
            return
        try:
            with output.open("w", encoding="utf-8") as file:
                count = kept.export_lines(file)
        except OSError as error:
            raise StoreError(f"{output}: {error.strerror}; give another file") from None
    say(f"{output}: {count} measurements")


@app.command("import")
def imported(
    store: Annotated[Path, typer.Argument(help="The store; it is made if there is none.")],
    files: Annotated[list[Path], typer.Argument(help="Files of JSON lines, as export writes.")],
) -> None:
    """Keep the measurements of exported files: all, or none if a line is wrong."""
    _refuse_folder(store)
    found = {}
    for path in files:
        _refuse_folder(path)
        try:
            with path.open(encoding="utf-8") as file:
                found[path] = measurements_in(file)
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            raise StoreError(f"{path}: {why}; give a file that export wrote") from None
        except StoreError as error:
            raise StoreError(f"{path}: {error}") from None
    with Store(store) as kept:
        for path, measurements in found.items():
            say(f"{path}: {kept.put_all(measurements)} measurements")
        say(f"{store}: {len(kept)} measurements")
