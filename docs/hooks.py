"""What the site makes itself: the page of the commands, and doctests as blocks of code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe
import typer

from tinygpu.cli import app

__all__ = ["Doctests", "commands", "on_page_markdown"]

_HERE = "<!-- commands -->"
_DOCTEST = re.compile(r"^>>> .*\n(?:.+\n)*", re.MULTILINE)


class Doctests(griffe.Extension):  # type: ignore[misc, unused-ignore]
    """Fences the doctests of docstrings: in Markdown ``>>>`` would be three quotations."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Rewrite a docstring."""
        if obj.docstring is not None:
            obj.docstring.value = _fenced(obj.docstring.value.strip() + "\n")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the commands where a page asks for them, and fence doctests."""
    markdown = _fenced(markdown + "\n")
    return markdown.replace(_HERE, "\n".join(commands())) if _HERE in markdown else markdown


def _fenced(text: str) -> str:
    return _DOCTEST.sub(r"```pycon\n\g<0>```\n", text)


def commands() -> Iterator[str]:
    """Yield Markdown on every command, from what ``--help`` says."""
    yield from _command(typer.main.get_command(app), "tinygpu", None)


def _command(command: Any, name: str, parent: Any) -> Iterator[str]:
    context = command.context_class(command, info_name=name, parent=parent)
    if hasattr(command, "commands"):
        for below in command.list_commands(context):
            yield from _command(command.get_command(context, below), below, context)
        return
    yield f"## {context.command_path}\n"
    yield f"{command.help.strip()}\n"
    yield f"```text\n{' '.join(command.get_usage(context).split()).removeprefix('Usage: ')}\n```\n"
    yield "| argument or option | | default |\n|---|---|---|"
    for parameter in command.get_params(context):
        if parameter.name != "help":
            yield _row(parameter, context)
    yield ""


def _row(parameter: Any, context: Any) -> str:
    """Return the line of an argument or an option."""
    spelled, told = parameter.get_help_record(context) or (parameter.name, "")
    told = re.sub(
        r"\s*\[[^][]*\]$", "", told.replace("\\[", "[")
    )  # the default: a column of its own
    default = parameter.default
    none = default is None or default is False or default == "" or callable(default)
    default = "required" if parameter.required else "" if none else f"`{default}`"
    return "| " + " | ".join(c.replace("|", "\\|") for c in (f"`{spelled}`", told, default)) + " |"
