"""Pages as programs: what their blocks of code print when they are run.

Blocks run from top to bottom, in one folder:

    ```python title="x.py"     is written to the file x.py
    ```ptx title="x.ptx"       is written, too
    ```python                  is run; the block of text after "It prints:" is its output
    ```console                 has commands, "$ ...", for a shell, each with its output

In an output, "..." alone stands for lines, and "…" for a part of a line, that differ from run to
run.  The comment "<!-- gpu -->" marks a block that needs a GPU: it is not run.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from tinygpu.cli import app

__all__ = ["faults", "true_page"]

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(
    r"(?P<gpu><!-- gpu -->\n)?^```(?P<kind>python|ptx|console|sh)"
    r"(?: title=\"(?P<title>[^\"\n]+)\")?\n"
    r"(?P<code>.*?)^```\n(?:\s*It prints:\s*^```text\n(?P<printed>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)
_SECONDS = 120


def true_page(text: str, folder: Path, variables: Mapping[str, str] | None = None) -> str:
    """Return a page with the outputs that its blocks have, run in a folder.

    ``variables`` are those of the process, if it is another environment than this project's.
    """
    given = _own(folder / ".bin") if variables is None else variables

    def true(block: re.Match[str]) -> str:
        code, told = block["code"], block[0]
        match block["kind"]:
            case "sh":
                return told
            case "console":
                return (
                    told if block["gpu"] else told.replace(code, _true_session(code, folder, given))
                )
        if block["gpu"]:
            return told
        if block["title"]:
            (folder / block["title"]).write_text(code, encoding="utf-8")
            return told
        printed = _run(["python", "-c", code], folder, given)
        if block["printed"] is None:
            assert not printed, f"it prints something: give it a title, or its output:\n{code}"
            return told
        return told.replace(f"```text\n{block['printed']}", f"```text\n{printed}")

    return _BLOCK.sub(true, text)


def _true_session(session: str, folder: Path, variables: Mapping[str, str]) -> str:
    lines = []
    for command, printed in _commands(session):
        true = _run(["bash", "-c", command], folder, variables)
        lines += [f"$ {command}", *_matched(printed, true)]
    return "".join(f"{line}\n" for line in lines)


def _commands(session: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a session with the lines that it is said to print."""
    for part in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        command, *printed = part.split("\n")[:-1]
        while command.endswith("\\"):
            command += "\n" + printed.pop(0)
        yield command, printed


def _matched(told: Sequence[str], printed: str) -> list[str]:
    """Return the lines printed; those that match a line with a mark are left as they were told."""
    lines = [line.rstrip() for line in printed.splitlines()]
    marked = [line for line in told if "…" in line]
    patterns = [re.compile(".*".join(map(re.escape, line.split("…")))) for line in marked]
    true = []
    for line in lines:
        fits = (m for m, pattern in zip(marked, patterns, strict=True) if pattern.fullmatch(line))
        true.append(next(fits, line))
    if "..." in told:
        before = told.index("...")
        after = len(told) - before - 1
        if len(true) >= before + after:
            true[before : len(true) - after] = ["..."]
    return true


def _own(commands: Path) -> dict[str, str]:
    """Write the commands ``tinygpu`` and ``python`` into a folder; return variables for them."""
    commands.mkdir(exist_ok=True)
    for name, call in (("python", ""), ("tinygpu", "-m tinygpu ")):
        script = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {call}"$@"\n'
        (commands / name).write_text(script, encoding="utf-8")
        (commands / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }


def _run(words: Sequence[str], folder: Path, variables: Mapping[str, str]) -> str:
    """Run something; return what it prints."""
    run = subprocess.run(
        words,
        cwd=folder,
        env={**variables, "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
    )
    assert "Traceback" not in run.stdout, run.stdout
    return run.stdout


def faults(text: str) -> list[str]:
    """Return what is wrong with the blocks of a page that are not run."""
    found: list[str] = []
    for block in _BLOCK.finditer(text):
        if block["kind"] == "python" and block["gpu"]:
            found += _faults_of_program(block["code"])
        elif block["kind"] == "console" and block["gpu"]:
            for command, _ in _commands(block["code"]):
                found += _faults_of_command(command)
        elif block["kind"] == "sh":
            for line in block["code"].splitlines():
                found += _faults_of_command(line.partition("#")[0].strip())
    return found


def _faults_of_program(code: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tinygpu"):
            module = import_module(str(node.module))
            for alias in node.names:
                if not hasattr(module, alias.name):
                    yield f"{node.module} has no {alias.name}"


def _faults_of_command(line: str) -> Iterator[str]:
    match shlex.split(line.replace("\\\n", " ")):
        case ["tinygpu", *words]:
            try:
                _parse(typer.main.get_command(app), "tinygpu", words, None)
            except Exception as error:  # of every kind of wrong option
                yield f"{line}: {error}"
        case ["python", "-m", str(module), *_] if module.startswith("benchmarks."):
            if not (ROOT / f"{module.replace('.', '/')}.py").exists():
                yield f"{line}: no such module"
        case ["make", str(target), *_]:
            targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            if target not in targets:
                yield f"{line}: no such target"


def _parse(command: Any, name: str, words: list[str], parent: Any) -> None:
    """Parse a command line without running it."""
    context = command.make_context(name, list(words), parent=parent)
    if hasattr(command, "resolve_command"):
        name, below, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        _parse(below, name, rest, context)
