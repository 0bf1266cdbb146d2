"""The shapes that a bundle is to serve, as the command line gives them.

    -m 1:8192 -n 4096 -k 4096        a range of one size: ``points`` sizes of it, dense at its start
    -m 1,16,256:8192                 a list, of sizes and ranges
    --layer qkv --layer up=28672x4096
    --shapes FILE                    .json or .csv with m, n, k and maybe weight and layer

Sizes of a range lie evenly by their logarithm; every second one is a multiple of 64 where it can
be, the others are ragged, as they come.
"""

from __future__ import annotations

import csv
import io
import json
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinygpu.errors import OperationError, nearest
from tinygpu.term.operation import LARGEST_SIZE

__all__ = ["LAYERS", "Shape", "sampled", "shapes_in", "shapes_of"]

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


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes that a bundle serves, how much they count, and whose they are."""

    m: int
    n: int
    k: int
    weight: float = 1.0
    layer: str = ""

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by their axes."""
        return {"m": self.m, "n": self.n, "k": self.k}


def shapes_of(
    m: str, n: str, k: str, layers: Sequence[str], file: Path | None, points: int
) -> tuple[Shape, ...]:
    """Return the shapes, in order of layer, n, k and m.

    Raises OperationError for a range that is empty or backwards, and for what is no size.
    """
    if file is not None:
        if m or n or k or layers:
            raise OperationError("--shapes: the file has all sizes; leave -m, -n, -k, --layer out")
        return shapes_in(file)
    if not m:
        raise OperationError("-m: give the rows to serve, as -m 1:8192")
    rows = _sizes("-m", m, points)
    if layers:
        if n or k:
            raise OperationError("--layer: it has n and k; leave -n and -k out")
        pairs = [_layer(text) for text in layers]
    else:
        if not (n and k):
            raise OperationError("-n, -k: give both, or --layer, or --shapes")
        few = min(points, _FEW_POINTS)
        pairs = [("", x, y) for x in _sizes("-n", n, few) for y in _sizes("-k", k, few)]
    if len(rows) * len(pairs) > _MOST:
        raise OperationError(
            f"shapes: {len(rows)} x {len(pairs)}; at most {_MOST}: lower --points, or give a list"
        )
    return tuple(Shape(x, y, z, 1.0, name) for name, y, z in pairs for x in rows)


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


def shapes_in(path: Path) -> tuple[Shape, ...]:
    """Read a list of shapes.  Raises OperationError for what is none, OSError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows: Any = (
            list(csv.DictReader(io.StringIO(text))) if path.suffix == ".csv" else json.loads(text)
        )
        if not isinstance(rows, list) or not rows:
            raise ValueError("give a list of shapes")
        shapes = [_shape(row) for row in rows]
    except (ValueError, RecursionError, csv.Error) as error:
        raise OperationError(f"shapes {path}: {error}") from None
    if len(shapes) > _MOST:
        raise OperationError(f"shapes {path}: {len(shapes)} of them; at most {_MOST}")
    merged: dict[tuple[str, int, int, int], float] = {}
    for s in shapes:
        key = (s.layer, s.n, s.k, s.m)
        merged[key] = merged.get(key, 0.0) + s.weight
    return tuple(Shape(m, n, k, w, layer) for (layer, n, k, m), w in sorted(merged.items()))


def _shape(row: Any) -> Shape:
    if not isinstance(row, Mapping):
        raise ValueError(f'{row!r}; a shape is an object, as {{"m": 16, "n": 4096, "k": 4096}}')
    known = ("m", "n", "k", "weight", "layer")
    for name in row:
        if name not in known:
            raise ValueError(f"{name!r}: {nearest(str(name), known)}")
    if missing := [axis for axis in "mnk" if row.get(axis) in (None, "")]:
        raise ValueError(f"{dict(row)}: it lacks {', '.join(missing)}")
    sizes = [_size(axis, str(row[axis])) for axis in "mnk"]
    given = row.get("weight")
    try:
        weight = 1.0 if given in (None, "") else float(str(given))
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise ValueError(f"{dict(row)}: weight {given!r}; give a number above 0")
    return Shape(sizes[0], sizes[1], sizes[2], weight, str(row.get("layer") or ""))


def _sizes(option: str, text: str, points: int) -> list[int]:
    try:
        return sorted({size for part in text.split(",") for size in _part(option, part, points)})
    except ValueError as error:
        raise OperationError(f"{option} {text}: {error}") from None


def _part(option: str, text: str, points: int) -> Iterator[int]:
    low, colon, high = text.partition(":")
    first = _size(option, low)
    if not colon:
        yield first
        return
    last = _size(option, high)
    if last < first:
        raise ValueError(f"the range {text} is backwards; write it {last}:{first}")
    yield from sampled(first, last, points)


def _size(option: str, text: str) -> int:
    digits = text.strip()
    if not digits.isascii() or not digits.isdigit() or len(digits) > 10:
        raise ValueError(f"{text!r} is no size; give a whole number from 1, as 4096")
    size = int(digits)
    if not 1 <= size <= LARGEST_SIZE:
        raise ValueError(f"size {option.strip('-')} is {size}; at least 1, at most {LARGEST_SIZE}")
    return size


def _layer(text: str) -> tuple[str, int, int]:
    name, equals, sizes = text.partition("=")
    if not equals:
        if name not in LAYERS:
            raise OperationError(f"layer {name}: {nearest(name, LAYERS)}; or NAME=NxK")
        return name, *LAYERS[name][1:]
    n, _, k = sizes.partition("x")
    try:
        return name, _size("n", n), _size("k", k)
    except ValueError as error:
        raise OperationError(f"--layer {text}: {error}; write it NAME=NxK") from None
