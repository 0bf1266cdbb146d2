"""Sizes as the command line gives them: each is an option with the name of its axis.

    -m 64 -n 64 -k 64         a matmul;  --batch 8 too, if it is batched
    --rows 64 --columns 1024  an operation with the axes rows and columns
    -b 4 --heads 32 --kv-heads 8 -m 4096 -n 4096 -d 128
                              attention: l = b, h = kv heads (else heads), g = heads / kv heads,
                              e = d if nothing else is said

The operation says which axes there are, and it may lie in a file of the user's.  So a command whose
class is ``SizedCommand`` takes every option that it does not know for a size, ``--rows 64`` as
``--AXIS rows=64``; ``sizes_of`` refuses what is no axis.
"""

from __future__ import annotations

import itertools
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tinygpu.errors import OperationError
from tinygpu.term.operation import LARGEST_SIZE, Operation, attention

__all__ = ["SIZES", "SizedCommand", "every_size", "size_in", "sizes_of", "spelled", "texts_of"]

_ATTENTION = attention().axes
_WORDS = {"b": "l", "batch": "l", "kv-heads": "h", "heads": "g"}
"""Words for axes of attention; heads are those of all kv heads."""
_EXAMPLES = {"l": "-b 4", "h": "--heads 32", "g": "--heads 32", "d": "-d 128", "e": "-d 128"}
_OPTION = "--AXIS"
SIZES = Annotated[
    list[str] | None,
    typer.Option(
        _OPTION,
        metavar="N",
        help="The size of an axis, by its name: -m 64 -n 64 -k 64, --rows 64. matmul: -m -n -k, "
        "and --batch; elementwise: -i; rmsnorm, softmax: -i -j; attention: -b --heads --kv-heads "
        "-m -n -d.",
    ),
]


class SizedCommand(TyperCommand):
    """A command that takes sizes by the names of their axes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words, those of sizes as values of one option."""
        takes = {
            option: not getattr(parameter, "is_flag", False)
            for parameter in self.get_params(ctx)
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
        return super().parse_args(ctx, list(_gathered(args, takes)))


def _gathered(words: Sequence[str], takes: Mapping[str, bool]) -> Iterator[str]:
    """Yield the words, sizes as ``--AXIS axis=size``; ``takes``: whether an option has a value.

    >>> list(_gathered(["x", "-m", "64", "--rows=8", "-i4", "--top", "3"], {"--top": True}))
    ['x', '--AXIS', 'm=64', '--AXIS', 'rows=8', '--AXIS', 'i=4', '--top', '3']
    """
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        short = re.fullmatch(r"-([A-Za-z_])=?(.*)", word, re.DOTALL)
        if word == "--":
            yield word
            yield from rest
        elif name in takes or word[:2] in takes:
            yield word
            if takes.get(name) and not equals:
                yield from itertools.islice(rest, 1)
        elif short:
            size = short[2] or next(rest, None)
            if size is None or re.match(r"-[A-Za-z-]", size):
                raise OperationError(f"{word}: the option requires an argument, as {word} 4096")
            yield from (_OPTION, f"{short[1]}={size}")
        elif re.fullmatch(r"--[A-Za-z_][\w-]+", name):
            size = value if equals else next(rest, None)
            if size is not None and (name[2:] in _WORDS or re.match(r"[-+]?\d", size)):
                yield from (_OPTION, f"{name[2:]}={size}")
            else:
                yield word
                yield from [] if equals or size is None else [size]
        else:
            yield word


def spelled(axis: str) -> str:
    """Return the option that gives the size of an axis.

    >>> spelled("m"), spelled("rows")
    ('-m', '--rows')
    """
    return f"-{axis}" if len(axis) == 1 else f"--{axis}"


def size_in(option: str, text: str) -> int:
    """Read one size.  Raises OperationError for what is none."""
    digits = text.strip()
    number = int(digits) if re.fullmatch(r"[0-9]{1,10}", digits) else 0
    if not 1 <= number <= LARGEST_SIZE:
        raise OperationError(
            f"{option}: {reprlib.repr(text)} is no size; give a whole number, at least 1 and at "
            f"most {LARGEST_SIZE}"
        )
    return number


def texts_of(operation: str, axes: Sequence[str], given: Sequence[str]) -> dict[str, str]:
    """Return what is given for each axis of the operation of this name, in the axes' order.

    The last counts.  Raises OperationError for what is no axis, and for heads that kv heads do not
    divide.
    """
    return {axis: text for axis, (_, text) in _said(operation, axes, given).items()}


def sizes_of(operation: str, axes: Sequence[str], given: Sequence[str]) -> dict[str, int]:
    """Return the sizes that are given.  Raises OperationError for what is no axis or no size."""
    said = _said(operation, axes, given)
    return {axis: size_in(option, text) for axis, (option, text) in said.items()}


def _said(operation: str, axes: Sequence[str], given: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return each axis that is given with the option that gave it and its text."""
    by_heads = tuple(axes) == _ATTENTION
    words = _WORDS if by_heads else {"batch": "l"} if "l" in axes else {}
    found: dict[str, tuple[str, str]] = {}
    for text in given:
        name, _, size = text.partition("=")
        axis = name if name in axes else words.get(name, name)
        if axis not in axes:
            shown = ("b", "heads", "kv-heads", *axes[3:]) if by_heads else axes
            raise OperationError(
                f"{spelled(name)} {reprlib.repr(size)[1:-1]}: there is no such option, and "
                f"{operation} has no axis {name}; its sizes are {', '.join(map(spelled, shown))}"
            )
        found[axis] = spelled(name), size
    if by_heads:
        _share_heads(found)
    return {axis: found[axis] for axis in axes if axis in found}


def _share_heads(found: dict[str, tuple[str, str]]) -> None:
    """Let heads of attention be those of each kv head, and e be d; see the module's text."""
    if "d" in found:
        if re.search("[,:]", found["d"][1]):
            raise OperationError(f"-d {found['d'][1]}: give one head dimension, as -d 128")
        found.setdefault("e", found["d"])
    option, text = found.get("g", ("", ""))
    if option != "--heads":
        return
    if "h" not in found:
        found["h"], found["g"] = (option, text), (option, "1")
        return
    heads, shared = size_in(option, text), size_in(*found["h"])
    if heads % shared:
        ways = " or ".join(f"--heads {n}" for n in _multiples(heads, shared))
        raise OperationError(
            f"--heads {heads} --kv-heads {shared}: as many heads share each kv head, so that heads "
            f"are a multiple of kv heads; give {ways}"
        )
    found["g"] = option, f"{heads // shared}"


def _multiples(number: int, of: int) -> list[int]:
    """Return the multiples next to a number, from 1 times on."""
    return [of * n for n in (number // of, number // of + 1) if n]


def every_size(
    operation: Operation, found: Mapping[str, Any], example: str = "4096", ways: str = ""
) -> None:
    """Raise OperationError, which names the options, unless each axis has a size.

    ``ways``: what else may be given.
    """
    examples = _EXAMPLES if operation.axes == _ATTENTION else {}
    missing = dict.fromkeys(
        examples.get(axis, f"{spelled(axis)} {example}")
        for axis in operation.axes
        if axis not in found
    )
    if missing:
        raise OperationError(
            f"{operation.name}: {' and '.join(text.split()[0] for text in missing)} not given; "
            f"give each size, as {' '.join(missing)}{ways}"
        )
