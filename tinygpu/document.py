"""Documents: JSON files that are read strictly, so that what is wrong is said where it is read.

A document is a JSON object with a ``format``, a ``version`` and fields of given names and kinds, no
others.  Its keys differ, its numbers are finite, its text is Unicode.  Everything else raises
DocumentError, in one line.

>>> document('{"format": "list", "version": 1, "items": []}', "list", 1, {"items": list})
{'items': []}
>>> document('{"format": "list", "version": 1, "item": []}', "list", 1, {"items": list})
Traceback (most recent call last):
    ...
tinygpu.errors.DocumentError: list: field item is unknown; known are items; did you mean items?

Source: RFC 8259, which leaves duplicate keys and the range of numbers to the reader.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from tinygpu.errors import DocumentError, nearest

__all__ = ["Fields", "Json", "document", "fields_of", "parsed", "shown"]

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | float | None"
"""A JSON value that is written."""
Fields: TypeAlias = dict[str, Any]
"""Fields that were read, each of the kind that is asked of it."""

_LONG = 20  # digits from which on a whole number is read as a float, as RFC 8259 allows
_KINDS = {dict: "an object {..}", list: "a list [..]", str: "text", int: "a whole number",
          float: "a number"}  # fmt: skip


def document(
    text: str,
    name: str,
    version: int,
    kinds: Mapping[str, type | None],
    optional: Mapping[str, type | None] = MappingProxyType({}),
) -> Fields:
    """Return the fields of a document of this format; a kind None takes any JSON value."""
    tree = parsed(text)
    if not isinstance(tree, dict) or tree.get("format") != name:
        raise DocumentError(f'no {{"format": "{name}"}} in it; give a file that tinygpu wrote')
    found = tree.get("version")
    if type(found) is not int or found != version:
        kind = "" if type(found) is int else " (a number)"
        raise DocumentError(
            f"version {shown(found)}; this tinygpu reads version {version}{kind}: "
            "write the file again"
        )
    rest = {field: value for field, value in tree.items() if field not in ("format", "version")}
    return fields_of(rest, name, kinds, optional)


def fields_of(
    tree: object,
    what: str,
    kinds: Mapping[str, type | None],
    optional: Mapping[str, type | None] = MappingProxyType({}),
) -> Fields:
    """Return the fields of an object, in this order; all but the ``optional`` have to be there."""
    if not isinstance(tree, dict):
        raise DocumentError(f"{what} is {shown(tree)}; give an object with {', '.join(kinds)}")
    every = {**kinds, **optional}
    for name in tree:
        if name not in every:
            said = shown(name)[1:-1]  # in one line
            raise DocumentError(f"{what}: field {said} is unknown; {nearest(name, every)}")
    for name, kind in every.items():
        if name not in tree:
            if name in optional:
                continue
            raise DocumentError(f"{what}: field {name} is missing; write the file again")
        value = tree[name]
        if kind and (isinstance(value, bool) or not isinstance(value, kind)):
            raise DocumentError(f"{what}: {name} is {shown(value)}; give {_KINDS[kind]}")
    return {name: tree[name] for name in every if name in tree}


def parsed(text: str) -> Any:
    """Return the value of a JSON text."""
    try:
        tree = json.loads(text, object_pairs_hook=_object, parse_int=_integer)
        _check(tree, "")
        json.dumps(tree, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise DocumentError(
            f"not complete JSON (line {error.lineno}: {error.msg}); "
            "it may be truncated: write it again"
        ) from None
    except UnicodeEncodeError:
        raise DocumentError("half a surrogate pair in a text; write it in Unicode") from None
    except RecursionError:
        raise DocumentError("JSON nested too deeply; give a file that tinygpu wrote") from None
    return tree


def shown(value: object) -> str:
    """Return a value as JSON has it, its middle left out if it is long.

    >>> shown("x" * 100), shown(None)
    ('"xxxxxxxxxxxxxxxxxxxxxxxxxx..xxxxxxxxxxxxxxxxxxxxxxxxxx"', 'null')
    """
    text = json.dumps(value, default=str)
    return text if len(text) <= 56 else f"{text[:27]}..{text[-27:]}"


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in tree if names.count(name) > 1)
        raise DocumentError(f"field {shown(twice)} is there twice; keep one")
    return tree


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) < _LONG else float(digits)


def _check(tree: object, where: str) -> None:
    match tree:
        case float() if not math.isfinite(tree):
            said = shown(where or "file")[1:-1]  # in one line
            raise DocumentError(f"{said} is {tree}; give a finite number")
        case dict():
            for name, value in tree.items():
                _check(value, f"{where}.{name}".removeprefix("."))
        case list():
            for place, value in enumerate(tree):
                _check(value, f"{where}[{place}]")
