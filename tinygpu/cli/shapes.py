"""The shapes that a bundle is to serve, as the command line gives them.

    -m 1:8192 -n 4096 -k 4096        a range of one size: ``points`` sizes of it, dense at its start
    -m 1,16,256:8192                 a list, of sizes and ranges
    --rows 1:8192 --columns 4096     likewise, of an operation with these axes
    --layer qkv --layer up=28672x4096
    --shapes FILE                    .json or .csv with a size for each axis, maybe weight, layer,
                                     and of grouped groups: even, zipf, or rows in proportion

Sizes of a range lie evenly by their logarithm; every second one is a multiple of 64 where it can
be, the others are ragged, as they come.  A bundle's rules are *along* the first axis that has
several sizes; each choice of the others has a rule of its own.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tinygpu.cli.sizes import every_size, size_in, spelled
from tinygpu.errors import OperationError, nearest
from tinygpu.search.tuning.shape import Shape
from tinygpu.term.operation import Groups, Operation, is_matmul

__all__ = ["LAYERS", "sampled", "shapes_in", "shapes_of"]

LAYERS = {
    "qkv": ("the queries, keys and values", 6144, 4096),
    "o": ("the attention's output", 4096, 4096),
    "gate_up": ("the gate and up projections", 28672, 4096),
    "down": ("the down projection", 4096, 14336),
}
"""What each linear layer of an 8B-parameter Llama computes, its columns and its terms a sum.

Source: "The Llama 3 Herd of Models", table 3: width 4096, 32 heads of 128, 8 of them for keys and
values, feed-forward width 14336.
"""
_MOST = 4096
_MULTIPLE = 64
_FEW_POINTS = 5


_FIELDS = ("weight", "layer", "routings", "kernel", "predicted", "bottleneck", "measured", "best",
           "scored", "scored_best", "peer", "peer_seconds")  # fmt: skip
"""What a bundle notes of a shape beside its sizes."""


def shapes_of(
    operation: Operation,
    texts: Mapping[str, str],
    layers: Sequence[str],
    file: Path | None,
    points: int,
    routings: Sequence[str] = (),
) -> tuple[Shape, ...]:
    """Return the shapes, in order of layer, other sizes, and size along the axis of the rules.

    ``texts`` are the sizes, ranges or lists that were given, by axis; ``routings`` how rows fall
    into groups, each of which counts the same.  Raises OperationError for a range that is empty or
    backwards, for what is no size or not given, and for a routing that does not fit the sizes.
    """
    found = _shapes_of(operation, texts, layers, file, points)
    each = tuple((text, 1.0) for text in dict.fromkeys(routings))
    every = tuple(replace(shape, routings=shape.routings or each) for shape in found)
    for shape in every:
        shape.problems(operation)
    return every


def _shapes_of(
    operation: Operation,
    texts: Mapping[str, str],
    layers: Sequence[str],
    file: Path | None,
    points: int,
) -> tuple[Shape, ...]:
    axes = operation.axes
    if taken := [axis for axis in axes if axis in _FIELDS]:
        raise OperationError(
            f"dispatch: axis {taken[0]} of {operation.name}: a bundle notes something else under "
            "this name; rename the axis"
        )
    if file is not None:
        if texts or layers:
            raise OperationError(
                "--shapes: the file has all sizes; leave "
                f"{', '.join(map(spelled, axes))} and --layer out"
            )
        return shapes_in(file, axes, operation.groups)
    pairs: list[tuple[str, dict[str, int]]] = [("", {})]
    if layers:
        if not (is_matmul(operation) and axes == ("m", "n", "k")):
            raise OperationError(f"--layer: it is of a matmul; give {operation.name} its sizes")
        if "n" in texts or "k" in texts:
            raise OperationError("--layer: it has n and k; leave -n and -k out")
        pairs = [(name, {"n": n, "k": k}) for name, n, k in map(_layer, layers)]
    ways = "; or give --shapes FILE" + ", or --layer" * is_matmul(operation)
    every_size(operation, {**texts, **pairs[0][1]}, "1:8192", ways)
    usual = operation.groups.rows if operation.groups else axes[0]
    along = next((a for a, text in texts.items() if ":" in text or "," in text), usual)
    found = {
        axis: _sizes(spelled(axis), text, points if axis == along else min(points, _FEW_POINTS))
        for axis, text in texts.items()
    }
    count = math.prod(map(len, found.values())) * len(pairs)
    if count > _MOST:
        raise OperationError(
            f"shapes: {count} of them; at most {_MOST}: lower --points, or give a list"
        )
    others = [[(axis, size) for size in found[axis]] for axis in found if axis != along]
    return tuple(
        _shape(axes, {**dict(fixed), **pair, along: size}, along, 1.0, name)
        for name, pair in pairs
        for fixed in itertools.product(*others)
        for size in found[along]
    )


def _shape(
    axes: Iterable[str], sizes: Mapping[str, int], along: str, weight: float, layer: str
) -> Shape:
    return Shape(tuple((axis, sizes[axis]) for axis in axes), along, weight, layer)


def sampled(low: int, high: int, points: int) -> list[int]:
    """Return about ``points`` sizes of a range, its ends among them.

    >>> sampled(1, 512, 12)
    [1, 2, 3, 5, 10, 17, 30, 53, 93, 192, 290, 512]
    """
    count = min(points, high - low + 1)
    if count <= 2:
        return sorted({low, high})

    def spaced(steps: int) -> list[int]:
        return sorted({round(low * (high / low) ** (i / (steps - 1))) for i in range(steps)})

    steps = bisect_left(range(32 * count), count, lo=count, key=lambda s: len(spaced(s)))
    every = spaced(steps)
    for i in range(1, len(every) - 1, 2):
        even = _MULTIPLE * round(every[i] / _MULTIPLE)
        if every[i] > 1.5 * _MULTIPLE and every[i - 1] < even < every[i + 1]:
            every[i] = even
    return every


def shapes_in(path: Path, axes: Sequence[str], groups: Groups | None = None) -> tuple[Shape, ...]:
    """Read a list of shapes; of an operation with groups, rows may have a routing, ``groups``.

    Rows of equal sizes are one shape, of several routings if they differ in that.  Raises
    OperationError for what is none, OSError.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows: Any = (
            list(csv.DictReader(io.StringIO(text))) if path.suffix == ".csv" else json.loads(text)
        )
        if not isinstance(rows, list) or not rows:
            raise ValueError("give a list of shapes")
        every = [_row(row, axes, ("groups",) if groups else ()) for row in rows]
    except UnicodeDecodeError:
        raise OperationError(f"shapes {path}: no utf-8 text; give a .json or .csv file") from None
    except (ValueError, RecursionError, csv.Error, OperationError) as error:
        raise OperationError(f"shapes {path}: {error}") from None
    if len(every) > _MOST:
        raise OperationError(f"shapes {path}: {len(every)} of them; at most {_MOST}")
    several = (axis for i, axis in enumerate(axes) if len({sizes[i] for sizes, *_ in every}) > 1)
    along = next(several, groups.rows if groups else axes[0])
    merged: dict[Shape, dict[str, float]] = {}
    for sizes, weight, layer, routing in every:
        shape = Shape(tuple(zip(axes, sizes, strict=True)), along, layer=layer)
        shares = merged.setdefault(shape, {})
        shares[routing] = shares.get(routing, 0.0) + weight
    order = sorted(merged, key=lambda shape: (shape.layer, shape.at, shape.size))
    if any("" in shares and shares.keys() != {""} for shares in merged.values()):
        raise OperationError(f"shapes {path}: some rows of a shape have groups; give them to all")
    return tuple(
        replace(
            shape,
            weight=sum(merged[shape].values()),
            routings=tuple((text, w) for text, w in merged[shape].items() if text),
        )
        for shape in order
    )


def _row(
    row: Any, axes: Sequence[str], more: Sequence[str]
) -> tuple[tuple[int, ...], float, str, str]:
    """Return the sizes, the weight, the layer and the routing of a row of a file."""
    if not isinstance(row, Mapping):
        example = json.dumps(dict.fromkeys(axes, 4096))
        raise ValueError(f"{row!r}; a shape is an object, as {example}")
    known = (*axes, "weight", "layer", *more)
    for name in row:
        if name not in known:
            raise ValueError(f"{name!r}: {nearest(str(name), known)}")
    if missing := [axis for axis in axes if row.get(axis) in (None, "")]:
        raise ValueError(f"{dict(row)}: it lacks {', '.join(missing)}")
    sizes = tuple(size_in(f"size {axis}", str(row[axis])) for axis in axes)
    given = row.get("weight")
    try:
        weight = 1.0 if given in (None, "") else float(str(given))
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise ValueError(f"{dict(row)}: weight {given!r}; give a number above 0")
    return sizes, weight, str(row.get("layer") or ""), str(row.get("groups") or "")


def _sizes(option: str, text: str, points: int) -> list[int]:
    return sorted({size for part in text.split(",") for size in _part(option, part, points)})


def _part(option: str, text: str, points: int) -> Iterator[int]:
    low, colon, high = text.partition(":")
    first = size_in(option, low)
    if not colon:
        yield first
        return
    last = size_in(option, high)
    if last < first:
        raise OperationError(
            f"{option} {text}: the range {text} is backwards; write it {last}:{first}"
        )
    yield from sampled(first, last, points)


def _layer(text: str) -> tuple[str, int, int]:
    name, equals, sizes = text.partition("=")
    if not equals:
        if name not in LAYERS:
            raise OperationError(f"layer {name}: {nearest(name, LAYERS)}; or NAME=NxK")
        return name, *LAYERS[name][1:]
    n, _, k = sizes.partition("x")
    try:
        return name, size_in("n", n), size_in("k", k)
    except OperationError as error:
        raise OperationError(f"--layer {text}: {error}; write it NAME=NxK") from None
