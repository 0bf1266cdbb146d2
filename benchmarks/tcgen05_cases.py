"""What ``benchmarks.tcgen05_corpus`` asks about: schedules of ``blackwell``, mutants, their text.

Schedules are drawn from the whole space, the same number for each pair of types that the machine
multiplies, each layout, each structure (its structural decisions, and whether CTAs stay); every
such lot has a seed of its own, so that new types or structures leave the others as they are.  A
shape is drawn for each: a few tiles and a few steps of k, ragged or even, some far too small.

Mutants are single changes of terms that are small enough to be interpreted many times, at points
(tiles, trips); those of text lack one line of the PTX, or have one number changed.

>>> len(POINTS), sorted({name for point in POINTS for name in point[1]})[:3]
(12, ['accumulators', 'cluster_m', 'cluster_n'])

Source: ``docs/model-concurrency.md``, section "Against the interpreter".
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain, product
from typing import Any

import numpy as np

from benchmarks.async_corpus import Case, changed
from tests.blackwell_mutants import tensor_mutants
from tinygpu.devices.device import load_device
from tinygpu.isa.memory import DTYPES
from tinygpu.legality.laws import check_schedule
from tinygpu.machines.blackwell import STARTS, Blackwell
from tinygpu.space.space import Space
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import Operation, Problem, matmul
from tinygpu.term.program import Program
from tinygpu.term.schedule import Schedule

__all__ = [
    "ARCH",
    "POINTS",
    "Drawn",
    "cases",
    "drawn",
    "long_sizes",
    "lot_names",
    "mutants_of",
    "texts",
]

LAYOUTS = ("nt", "nn", "tn", "tt")
ROUNDS = 1
NOMINAL = 512  # a schedule is drawn for this size, then its shape
MOST_CTA_TILES = 4  # of a shape, over all CTAs
MOST_TRIPS = 4
TRIES = 40
DEVICE = load_device("b200")
ARCH = "sm_100a"

_SMALL: Mapping[str, Value] = {
    **STARTS["tma store"], "tile_m": 64, "tile_n": 32, "stages": 2, "store_n": 16, "raster": 1,
}  # fmt: skip
_DIRECT: Mapping[str, Value] = {"epilogue": "direct", "store_stages": 1, "vector_c": 8}
_STAY: Mapping[str, Value] = {"persistent": 1, "accumulators": 2}
_PAIR: Mapping[str, Value] = {"cta_pair": 1, "tile_m": 256}
_FOLDED: Mapping[str, Value] = {"cta_pair": 1, "tile_m": 128, "tile_n": 64}
POINTS: tuple[tuple[str, Mapping[str, Value]], ...] = (
    ("nt", {"tile_n": 64}),
    ("nt", {**_DIRECT, "stages": 3}),
    ("nt", _STAY),
    ("nt", {**_STAY, **_DIRECT, "accumulators": 1, "tile_m": 128}),
    ("tn", {**_STAY, "tile_n": 64, "epilogues": 2, "accumulators": 4}),
    ("nt", {**_STAY, "cluster_m": 2, "stages": 3}),
    ("nn", {**_STAY, **_DIRECT, "cluster_n": 2, "tile_n": 64}),
    ("nt", {**_STAY, **_PAIR}),
    ("nt", {**_PAIR, **_DIRECT, "stages": 3}),
    ("tt", {**_STAY, **_FOLDED, "tile_n": 128}),
    ("nt", {**_STAY, **_FOLDED, **_DIRECT}),
    ("nt", {**_STAY, **_PAIR, "cluster_n": 2, "stages": 3}),
    ("nt", {**_STAY, "a_from": "tmem", "tile_m": 128}),
)
"""Layouts and decisions of the terms that mutants are made of."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A legal schedule and a shape; ``clusters`` are launched of a kernel whose CTAs stay."""

    operation: Operation
    schedule: Schedule
    sizes: Mapping[str, int]
    clusters: int

    @property
    def program(self) -> Program:
        """The term."""
        return self.schedule.program(Blackwell(), self.operation)


def _types() -> Iterator[tuple[str, str]]:
    """Yield the types of inputs and output that the machine multiplies."""
    for inputs, outputs in Blackwell.outputs.items():
        yield from ((inputs, output) for output in outputs)


def lot_names() -> tuple[str, ...]:
    """Return the names of the lots of schedules: round, types, layout.

    >>> lot_names()[0], len(lot_names()) >= 28
    ('0 bf16 bf16 nt', True)
    """
    types = sorted(_types())
    every = product(range(ROUNDS), types, LAYOUTS)
    return tuple(f"{number} {a} {c} {layout}" for number, (a, c), layout in every)


@cache
def drawn(lot: str) -> tuple[Drawn, ...]:
    """Return a lot's schedules, one of every structure that has some."""
    return tuple(_drawn(lot))


def _drawn(lot: str) -> Iterator[Drawn]:
    _, inputs, output, layout = lot.split()
    operation = matmul(inputs, output, layout)
    problem = Problem.of(operation, **dict.fromkeys("mnk", NOMINAL))
    choices = Blackwell.decisions()
    names = [*(n for n, c in choices.items() if c.structural), "persistent"]
    for values in product(*(choices[n].values for n in names)):
        fixed = dict(zip(names, values, strict=True))
        space = Space(Blackwell(), problem, DEVICE, fixed=dict(fixed))
        if not space.count():
            continue
        rng = np.random.default_rng(zlib.crc32(f"{lot} {fixed}".encode()))
        (schedule,) = space.sample(rng, 1)
        yield _shaped(operation, schedule, rng)


def _shaped(operation: Operation, schedule: Schedule, rng: np.random.Generator) -> Drawn:
    """Draw sizes that the schedule is legal for, as the nominal ones are."""
    for _ in range(TRIES):
        sizes = _sizes(operation, schedule, rng)
        problem = Problem.of(operation, **sizes)
        if not check_schedule(schedule, Blackwell(), problem, DEVICE):
            return Drawn(operation, schedule, sizes, int(rng.integers(1, 3)))
    sizes = dict.fromkeys("mnk", NOMINAL // 4)
    return Drawn(operation, schedule, sizes, 1)


def _sizes(operation: Operation, d: Schedule, rng: np.random.Generator) -> dict[str, int]:
    """Draw a shape of a few tiles: even, ragged, or less than one."""
    m, n = int(d["cluster_m"]), int(d["cluster_n"])
    wide = {"m": int(d["tile_m"]) * m, "n": int(d["tile_n"]) * n, "k": int(d["tile_k"])}
    most = max(1, MOST_CTA_TILES // (m * n * (2 if d["cta_pair"] else 1)))
    rows = int(rng.integers(1, min(most, 4) + 1))
    columns = int(rng.integers(1, min(most // rows, 3) + 1))
    trips = int(rng.integers(1, min(int(d["stages"]) + 2, MOST_TRIPS) + 1))
    sizes = {}
    for axis, count in zip("mnk", (rows, columns, trips), strict=True):
        step = max(16 // DTYPES[o.dtype].bytes if o.axes[-1] == axis else 1
                   for o in operation.operands)  # fmt: skip
        kind = str(rng.choice(("even", "ragged", "ragged", "little")))
        least, whole = (count - 1) * wide[axis], wide[axis] // step
        part = {"even": whole, "little": 1}.get(kind) or int(rng.integers(1, whole + 1))
        sizes[axis] = least + step * max(part, 1)
    return sizes


def cases() -> Iterator[Case]:
    """Yield the small terms, at points."""
    for layout, changes in POINTS:
        d: dict[str, Any] = {**_SMALL, **changes}
        ctas = int(d["cluster_m"]) * int(d["cluster_n"]) * (1 + int(d["cta_pair"]))
        tiles = (2 * d["accumulators"] + 1, 3) if d["persistent"] else (1, 1)
        points = tuple(
            (t, k, {"m": d["tile_m"] * d["cluster_m"] * t, "n": d["tile_n"] * d["cluster_n"],
                    "k": 64 * k - 56})
            for t, k in zip(tiles, (1, d["stages"] + 1), strict=True)
        )  # fmt: skip
        told = ", ".join(f"{n} {v}" for n, v in changes.items())
        program = Blackwell().program(matmul("bf16", layout=layout), Chosen(d))
        yield Case(f"{layout} {told}".strip(), program, points, step=5 if ctas > 1 else 3)


def long_sizes(case: Case) -> dict[str, int]:
    """Return sizes with the most tiles of a case's points, and twice the most trips."""
    most = {axis: max(sizes[axis] for _, _, sizes in case.points) for axis in "mnk"}
    return {**most, "k": 2 * most["k"] + 56}


def mutants_of(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield the case, and those with one change of the term; all of those of tensor memory."""
    for name, program in chain(changed(case), tensor_mutants(case.program)):
        yield name, case.of(program)


_ORDERS = (
    r"tcgen05\.(fence|wait|commit|dealloc|alloc)", r"fence\.", r"mbarrier\.(arrive|init)",
    r"bar\.sync", r"barrier\.cluster", r"cp\.async\.bulk\.(commit|wait)_group",
)  # fmt: skip
_LINES = re.compile(rf"\t(?:@!?%p\d+ )?(?:{'|'.join(_ORDERS)})")
_WHOLE = (
    ("drop both", r"(?m)^\t(fence[^\n]*)\n\tfence[^\n]*\n", ""),
    ("drop", r"(?m)^\$wait_\d+:\n\t(mbarrier\.try_wait[^\n]*)\n[^\n]*\n", ""),
    ("swap", r"(?m)^(\ttcgen05\.alloc[^\n]*\n)(\ttcgen05\.relinquish[^\n]*\n)", r"\2\1"),
)
_NUMBERS = (
    ("count+", r"(mbarrier\.init[^\n]*, )(\d+);", 1),
    ("count-", r"(mbarrier\.init[^\n]*, )(\d+);", -1),
    ("warp-", r"(mbarrier\.init[^\n]*, )(\d+);", -32),
    ("bytes+", r"(expect_tx[^\n]*, )(\d+);", 16),
    ("bytes-", r"(expect_tx[^\n]*, )(\d+);", -16),
    ("columns-", r"(tcgen05\.alloc[^\n]*, )(\d+);", -32),
)
_OPENED = "\tld.shared.b32 %w0"


def texts(text: str) -> Iterator[tuple[str, str]]:
    r"""Yield (name, PTX) of every mutant of a kernel's text.

    What stands before the kernel knows where its tensor memory is, is of the *opening*.

    >>> [name for name, _ in texts("a\n\tbar.sync 1, 128;\nb")]
    ['line 2: drop bar.sync 1, 128;']
    """
    lines = text.split("\n")
    opened = text.find(_OPENED)

    def at(place: int) -> str:
        return f"line {text.count(chr(10), 0, place) + 1}{' (opening)' * (place < opened)}"

    place = 0
    for i, line in enumerate(lines):
        if _LINES.match(line):
            yield f"{at(place)}: drop {line.strip()}", "\n".join((*lines[:i], "", *lines[i + 1 :]))
        place += len(line) + 1
    for name, pattern, new in _WHOLE:
        for match in re.finditer(pattern, text):
            changed_text = text[: match.start()] + match.expand(new) + text[match.end() :]
            yield f"{at(match.start())}: {name} {match[1].strip()}", changed_text
    for name, pattern, by in _NUMBERS:
        for match in re.finditer(pattern, text):
            if (number := int(match[2]) + by) > 0:
                changed_text = text[: match.start(2)] + str(number) + text[match.end(2) :]
                yield f"{at(match.start())}: {name} {match[0]}", changed_text
