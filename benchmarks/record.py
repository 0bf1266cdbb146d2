"""What stays as it is while the code is rebuilt: ``python -m benchmarks.record --check | --write``.

    ptx         PTX of random legal schedules: all machines, operations, types and layouts
    verdicts    what the judge says of every term of the tests' corpora and of their mutants
    times       predicted seconds of random legal schedules, exactly

``--write`` records under ``tests/golden/record``: schedules that were recorded and are legal still
stay, and only what is missing is drawn.  ``--check`` makes everything anew, compares, lists each
difference and exits with 1 if there is one.  ``--only PART`` does one part.

A record is lots of entries; an entry is a key and a value.  Of ``ptx`` and ``times`` a lot is a
machine, a device and a problem, and a key the decisions of a schedule, so that a check draws
nothing.  Of ``verdicts`` a key is a number: the lots' terms follow from seeds.

>>> print(operation_of("matmul bf16 f32 nt bias relu").epilogue)
max((acc + bias), 0.0)
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import random
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.internal.conjecture.providers import PrimitiveProvider

from benchmarks import async_corpus, tcgen05_cases
from benchmarks.peers import write_tree
from tests import ampere_terms, async_mutants, blackwell_terms, hopper_terms, hopper_wrong, mutants
from tests.blackwell_mutants import tensor_mutants
from tests.small_programs import pipelined
from tinygpu.codegen.emit import emit
from tinygpu.devices.device import Device, load_device
from tinygpu.errors import OperationError, TinyGpuError
from tinygpu.isa.memory import DTYPES
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES, ampere, blackwell, hopper, simt
from tinygpu.search.time.cost import cost
from tinygpu.space.space import Space
from tinygpu.term.expression import parse
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import (
    ACTIVATIONS,
    OPERATIONS,
    Operand,
    Operation,
    Problem,
    attention,
    elementwise,
    matmul,
    reduce,
)
from tinygpu.term.program import Program
from tinygpu.term.schedule import Schedule

__all__ = [
    *("COUNTS", "FOLDER", "PARTS", "Lot", "Record", "advice", "differences", "drawn", "load"),
    *("main", "made", "operation_of", "random_operation", "random_sizes", "verdict_lots"),
]

FOLDER = Path(__file__).parent.parent / "tests" / "golden" / "record"
PARTS = ("ptx", "verdicts", "times")
SEED = 221126
LAYOUTS = ("nn", "nt", "tn", "tt")
DEVICES = ("h200", "b200", "a100", "rtx3060")
EACH: Mapping[str, int] = {"ptx": 2, "times": 4}
"""How many schedules there are of a problem and a structure."""
TRIES = 24
"""How many structures are drawn for an operation before the next one is taken."""
COUNTS: Mapping[str, Mapping[str, int]] = {
    "ptx": {"simt": 100, "ampere": 80, "hopper": 90, "blackwell": 70, "elementwise": 30,
            "rows": 30},
    "times": {"simt": 500, "ampere": 400, "hopper": 480, "blackwell": 420, "elementwise": 80,
              "rows": 120},
}  # fmt: skip
"""How many schedules there are of each machine."""
EXPRESSIONS = ("a*x + b", "max(x*w, z)", "x*rsqrt(y0 + z*z)", "x / (1.0 + ex2(w))", "x")
REDUCED = {
    "moment": ("x*x", "x*rcp(acc)"),
    "centred": ("x", "a*(x - acc/j)"),
    "weighted": ("x*w", "max(x*w - acc, 0)"),
}
"""Reductions over rows: what is summed, and what is made of the sum."""
FURTHER, FURTHER_LOT = 3000, 100
SMALL, SMALL_LOT = 600, 100
_TURNS = ("hopper", "blackwell", "simt", "ampere", "hopper", "simt", "blackwell", "ampere",
          "hopper", "rows", "blackwell", "simt", "hopper", "ampere", "elementwise")  # fmt: skip
"""The machines of the further mutants, one after another."""
_SIMT_CHANGES: Mapping[str, Mapping[str, Value]] = {
    "register 1": {"pipeline": "register", "stages": 2, "issue": 1},
    "cp.async 2": {"pipeline": "cp.async", "stages": 2},
    "cp.async 3": {"pipeline": "cp.async", "stages": 3, "issue": 1},
    "leaves": {"edges": "return"},
    "whole tiles": {"guards": "tile"},
}
_SIMT_POINTS: Mapping[str, Mapping[str, Value]] = {
    **simt.LADDER,
    **{name: {**simt.LADDER["warp-tiled"], **c} for name, c in _SIMT_CHANGES.items()},
}
_STARTS: Mapping[str, Mapping[str, Mapping[str, Value]]] = {
    "simt": _SIMT_POINTS, "ampere": ampere.STARTS, "hopper": hopper.STARTS,
    "blackwell": blackwell.STARTS,
}  # fmt: skip


_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Lot:
    """Entries that are made together; ``names`` is a digest of what their terms are called."""

    name: str
    keys: tuple[str, ...]
    values: tuple[str, ...]
    names: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """A part as it was recorded; ``decisions`` are each machine's, in the order of the keys."""

    part: str
    lots: tuple[Lot, ...]
    decisions: Mapping[str, Sequence[str]]
    made_with: Mapping[str, str]


def advice(part: str) -> str:
    """Say what to do about a difference."""
    return (
        f"Mend the code. Or, if the change is meant, record anew with "
        f"'python -m benchmarks.record --write --only {part}' and give the reason in "
        "docs/decisions.md."
    )


def differences(record: Record, wanted: Mapping[str, Sequence[int]] | None = None) -> Iterator[str]:
    """Yield a line for each entry that is not as recorded; ``wanted``: lots and entries."""
    for lot in record.lots:
        if wanted is None or lot.name in wanted:
            yield from _of_lot(record, lot, None if wanted is None else wanted[lot.name])


def _of_lot(record: Record, lot: Lot, numbers: Sequence[int] | None) -> Iterator[str]:
    try:
        found = list(made(record, lot, numbers))
    except (LookupError, TinyGpuError) as error:
        yield f"{record.part}: {lot.name}: cannot be made: {type(error).__name__}: {error}"
        return
    for number, value, note in found:
        if not _same(record.part, lot.values[number], value):
            key = lot.keys[number] if lot.keys else str(number)
            was = lot.values[number]
            yield f"{record.part}: {lot.name}: {key}: was {was}, is {value}{note}{_how(was, value)}"


def _same(part: str, was: str, value: str) -> bool:
    """Return whether an entry is as it was; of times but for what another NumPy rounds."""
    if part != "times":
        return was == value
    return abs(float(value) - float(was)) <= _ROUNDING * float(was)


def _how(was: str, value: str) -> str:
    """Say of a difference how small it is."""
    if re.fullmatch(r"[0-9a-f]{64} [0-9a-f]{8}", value) and was[-8:] == value[-8:]:
        return " (only comments differ)"
    try:
        apart = abs(float(value) / float(was) - 1.0)
    except ValueError:
        return ""
    return f" (by {apart:.2g} of it)"


def made(record: Record, lot: Lot, numbers: Sequence[int] | None) -> Iterator[tuple[int, str, str]]:
    """Make entries of a lot anew; yield each number, its value and a note about it.

    Raises LookupError or TinyGpuError if there is no such lot any more.
    """
    every = range(len(lot.values)) if numbers is None else numbers
    if record.part != "verdicts":
        for number in every:
            yield number, _of_key(record, lot.name, lot.keys[number]), ""
        return
    entries = verdict_lots()[lot.name]()
    if len(entries) != len(lot.values):
        raise LookupError(f"it has {len(entries)} terms, and {len(lot.values)} were recorded")
    same = _digest(name for name, _ in entries) == lot.names
    for number in every:
        name, judge = entries[number]
        yield number, judge(), f" of {name}" + ("" if same else " (the lot's terms changed)")


def operation_of(text: str) -> Operation:
    """Return the operation that a lot's name says.

    >>> print(operation_of("elementwise f16 a*x"))
    elementwise: y[i] f16 = (a * x)
    """
    name, dtype, *words = text.split(" ")
    match name:
        case "matmul":
            output, layout, *more = words
            flags: dict[str, Any] = {w: True for w in more if w not in ACTIVATIONS}
            activation = "".join(w for w in more if w in ACTIVATIONS)
            return matmul(dtype, output, layout, activation=activation, **flags)
        case "elementwise":
            return elementwise(" ".join(words), dtype=dtype)
        case "attention":
            return attention(dtype, mask=" ".join(words) or "none")
        case "reduce":
            combine, epilogue = map(parse, REDUCED[words[0]])
            arrays = [Operand("x", ("i", "j"), dtype), Operand("w", ("j",), dtype)]
            read = {*combine.names(), *epilogue.names()}
            inputs = tuple(o for o in arrays if o.name in read)
            return reduce(combine, epilogue, inputs=inputs, output=Operand("y", ("i", "j"), dtype))
    return OPERATIONS[name](dtype)


def _of_key(record: Record, name: str, key: str) -> str:
    """Return the value of a schedule; what it was refused with, if it was."""
    try:
        place, text, sizes = name.split(" | ")
        machine_name, device_name = place.split()
        machine, device = MACHINES[machine_name], load_device(device_name)
        extents = dict(size.split("=") for size in sizes.split())
        problem = Problem.of(operation_of(text), **{a: int(n) for a, n in extents.items()})
        words: list[Value] = [int(v) if v.isdigit() else v for v in key.split()]
        values = dict(zip(record.decisions[machine_name], words, strict=True))
        return _value(record.part, Schedule.of(machine, values), problem, device)
    except (LookupError, TinyGpuError) as error:
        return f"{type(error).__name__}: {error}"


def _value(part: str, schedule: Schedule, problem: Problem, device: Device) -> str:
    """Return the digests of its PTX (whole, and without comments), or its predicted seconds."""
    machine = MACHINES[schedule.machine]
    program = schedule.program(machine, problem.operation)
    if part == "times":
        return repr(float(cost(program, problem.sizes, device).seconds))
    if broken := check_schedule(schedule, machine, problem, device):
        return "illegal: " + ", ".join(violation.law for violation in broken)
    text = emit(program, device.arch, problem.sizes)
    whole, code = (
        hashlib.sha256(t.encode()).hexdigest() for t in (text, re.sub(r"\s*//.*", "", text))
    )
    return f"{whole} {code[:8]}"


def _kept(record: Record, name: str) -> Iterator[Lot]:
    """Make the recorded schedules of a machine anew; leave out those that are none any more."""
    if list(record.decisions.get(name, ())) != list(MACHINES[name].decisions()):
        return
    for lot in record.lots:
        if lot.name.startswith(f"{name} "):
            kept: dict[str, str] = {}
            for i, value, _ in made(record, lot, None):
                if ": " not in value:  # it is a schedule still, and legal
                    was = lot.values[i]
                    kept[lot.keys[i]] = was if _same(record.part, was, value) else value
            if kept:
                yield Lot(lot.name, tuple(kept), tuple(kept.values()))


def drawn(part: str, record: Record) -> Iterator[Lot]:
    """Keep what was recorded; draw the rest, each structure as likely as another."""
    rng, known = np.random.default_rng((SEED, PARTS.index(part))), set[str]()
    for name, count in COUNTS[part].items():
        left, number = count, 0
        for lot in _kept(record, name):
            if len(lot.keys) <= left:
                yield lot
                known.add(lot.name)
                left -= len(lot.keys)
        while left:
            for _ in range(TRIES):
                new = _lot(part, name, number, min(EACH[part], left), rng)
                if new and new.name not in known:
                    yield new
                    known.add(new.name)
                    left -= len(new.keys)
                    break
            number += 1


def _lot(part: str, name: str, number: int, count: int, rng: np.random.Generator) -> Lot | None:
    """Draw a problem, a structure and legal schedules of it; None if there are none."""
    machine = MACHINES[name]
    devices = [d for d in DEVICES if machine.runs_on(load_device(d).arch)]
    device = load_device(devices[(number + number // 4) % len(devices)])
    text = random_operation(name, number, rng)
    operation = operation_of(text)
    problem = Problem.of(operation, **random_sizes(operation, rng, long=part == "times"))
    choices = machine.decisions()
    structure = {n: _one(rng, c.values) for n, c in choices.items() if c.structural}
    space = Space(machine, problem, device, fixed=structure)
    schedules = space.sample(rng, count) if space.count() else []
    schedules = [s for s in schedules if not check_schedule(s, machine, problem, device)]
    if not schedules:
        return None
    title = " ".join(f"{a}={n}" for a, n in problem.sizes.items())
    keys = [" ".join(str(v) for _, v in s.decisions) for s in schedules]
    values = [_value(part, s, problem, device) for s in schedules]
    return Lot(f"{name} {device.name} | {text} | {title}", tuple(keys), tuple(values))


def _one(rng: np.random.Generator, values: Sequence[Any]) -> Any:
    return values[int(rng.integers(len(values)))]


def random_operation(machine: str, number: int, rng: np.random.Generator) -> str:
    """Return an operation that the machine can do: types and layout follow from a number."""
    it = MACHINES[machine]
    if it.operations == ("elementwise",):
        turn, which = divmod(number, len(EXPRESSIONS))
        return f"elementwise {it.dtypes[turn % len(it.dtypes)]} {EXPRESSIONS[which]}"
    if "matmul" not in it.operations:
        ends = [f"{name} {{}}" for name in it.operations if name != "reduce"]
        ends += [f"reduce {{}} {name}" for name in REDUCED if "reduce" in it.operations]
        turn, which = divmod(number, len(ends))
        return ends[which].format(it.dtypes[turn % len(it.dtypes)])
    pairs = [(a, c) for a, outputs in it.outputs.items() for c in outputs]
    pairs = pairs or [(t, t) for t in it.dtypes] + [("f16", "f32"), ("bf16", "f32")]
    turn, which = divmod(number, len(LAYOUTS))
    plain = ["matmul", *pairs[turn % len(pairs)], LAYOUTS[which]]
    while True:
        words = [word for word in ("scaled", "bias", "batched") if rng.random() < 0.3]
        words += [_one(rng, tuple(ACTIVATIONS))] if rng.random() < 0.4 else []
        try:
            it.check(operation_of(" ".join([*plain, *words])))
        except OperationError:
            continue
        return " ".join([*plain, *words])


def random_sizes(operation: Operation, rng: np.random.Generator, *, long: bool) -> dict[str, int]:
    """Draw sizes: even, ragged or of a few elements; what is contiguous is often whole 16 B."""
    sizes = {}
    for axis in operation.axes:
        most = (8192 if long else 1024) << (8 if len(operation.axes) == 1 else 0)
        steps = [16 // DTYPES[o.dtype].bytes for o in operation.operands if o.axes[-1] == axis]
        whole = max(steps, default=1) if rng.random() < 0.8 else 1
        step = _one(rng, (whole, whole, 64, 256)) if axis != "l" else 1
        drawn = int(np.exp(rng.uniform(0.0, np.log(4 if axis == "l" else most))))
        sizes[axis] = max(1, drawn // step) * step
    return sizes


Entry = tuple[str, Callable[[], str]]
"""What a term is called, and what is said of it when it is asked."""


@cache
def verdict_lots() -> Mapping[str, Callable[[], Sequence[Entry]]]:
    """Return the lots of terms, each made when it is called."""
    found: dict[str, Callable[[], Sequence[Entry]]] = {
        "hopper wrong": lambda: _judged((law, p) for law, _, p in hopper_wrong.WRONG),
        "hopper right": lambda: _judged(hopper_wrong.RIGHT),
        "hopper wrong, laws": lambda: [
            (law, partial(_laws, hopper_terms.broken, p)) for law, _, p in hopper_wrong.WRONG
        ],
        "hopper right, laws": lambda: [
            (law, partial(_laws, hopper_terms.broken, p)) for law, p in hopper_wrong.RIGHT
        ],
        "hopper terms": lambda: _judged(
            (f"{start} {layout}", hopper_terms.term(start, layout))
            for start, layout in product(hopper.STARTS, LAYOUTS)
        ),
        "blackwell terms": lambda: _judged(
            (f"{start} {layout}", blackwell_terms.term(start, layout))
            for start, layout in blackwell_terms.FORMS
        ),
        "ampere terms": lambda: _judged(
            (f"{start} {layout} {dtype}", ampere_terms.term(start, layout, dtype))
            for start, layout, dtype in product(ampere.STARTS, LAYOUTS, ("bf16", "tf32"))
        ),
        "simt terms": lambda: _judged(
            (f"{name} {layout}", _simt(name, layout))
            for name, layout in product(_SIMT_POINTS, LAYOUTS)
        ),
    }
    for case in async_corpus.programs():
        found[f"async {case.name}"] = partial(_changed, case)
    for case in tcgen05_cases.cases():
        found[f"tcgen05 {case.name}"] = partial(_tensor, case)
    for start in blackwell.STARTS:
        found[f"blackwell {start}, mutants"] = partial(_small_blackwell, start)
    for start in ampere.STARTS:
        found[f"ampere {start}, mutants"] = partial(_plain, partial(ampere_terms.term, start))
    for point in _SIMT_POINTS:
        found[f"simt {point}, mutants"] = partial(_plain, partial(_simt, point))
    for first in range(0, SMALL, SMALL_LOT):
        found[f"small programs from {first}"] = partial(_small, first)
    for first in range(0, FURTHER, FURTHER_LOT):
        found[f"further mutants from {first}"] = partial(_further, first)
    return found


def _judged(terms: Iterable[tuple[str, Program]]) -> list[Entry]:
    return [(name, partial(_verdict, partial(_itself, program))) for name, program in terms]


def _itself(program: Program) -> Program:
    return program


def _changed(case: async_corpus.Case) -> list[Entry]:
    return _judged(async_corpus.changed(case))


def _tensor(case: async_corpus.Case) -> list[Entry]:
    return _judged((name, c.program) for name, c in tcgen05_cases.mutants_of(case))


def _small_blackwell(start: str) -> list[Entry]:
    return _judged(tensor_mutants(blackwell_terms.small(start)))


def _plain(term: Callable[[], Program]) -> list[Entry]:
    return _judged(mutants.mutants(term()))


def _simt(point: str, layout: str = "nn") -> Program:
    return simt.Simt().program(matmul("f32", layout=layout), Chosen(_SIMT_POINTS[point]))


def _verdict(term: Callable[[], Program]) -> str:
    """Say in a word what the judge says: proved, checked, or what it finds first."""
    try:
        found = verdict(term())
    except TinyGpuError as error:
        return f"refused: {type(error).__name__}"
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        return f"failed: {type(error).__name__}"  # of a term that no law but another one allows
    if found.fault is None:
        return "proved" if found.legal else "checked"
    return found.fault.kind


def _laws(broken: Callable[[Program], Mapping[str, str]], program: Program) -> str:
    return ", ".join(broken(program)) or "none broken"


class _Draws(PrimitiveProvider):
    """What hypothesis draws, from a seed alone: its own draws know what modules are loaded."""

    def __init__(self, seed: int) -> None:
        super().__init__(None)
        self.random = random.Random(seed)

    def draw_boolean(self, p: float = 0.5) -> bool:
        return self.random.random() < p

    def draw_integer(
        self,
        min_value: int | None = None,
        max_value: int | None = None,
        *,
        weights: dict[int, float] | None = None,
        shrink_towards: int = 0,
    ) -> int:
        assert min_value is not None
        assert max_value is not None
        return self.random.randint(min_value, max_value)

    def draw_float(self, *_: Any, **__: Any) -> float:
        raise NotImplementedError

    def draw_string(self, *_: Any, **__: Any) -> str:
        raise NotImplementedError

    def draw_bytes(self, *_: Any, **__: Any) -> bytes:
        raise NotImplementedError


def _small(first: int) -> list[Entry]:
    """Return drawn pipelines around one ring."""
    found = []
    for seed in range(first, first + SMALL_LOT):
        program = ConjectureData(random=None, provider=_Draws(seed)).draw(pipelined())
        found.append((f"{zlib.crc32(repr(program.roles).encode()):08x}", program))
    return _judged(found)


def _further(first: int) -> list[Entry]:
    return [
        (str(n), partial(_verdict, partial(_mutant, n))) for n in range(first, first + FURTHER_LOT)
    ]


def _mutant(number: int) -> Program:
    """Draw a term near a machine's named points that its own laws allow; change it."""
    rng = np.random.default_rng((SEED, len(PARTS), number))
    name = _TURNS[number % len(_TURNS)]
    program = _near(name, rng)
    for _ in range(1 + (rng.random() < 0.25)):
        try:
            every = list(_mutants(name, program))
        except LookupError:  # of a change that leaves a block empty there is no second one
            break
        program = _one(rng, every)[1] if every else program
    return program


def _near(name: str, rng: np.random.Generator) -> Program:
    machine, starts = MACHINES[name], _STARTS.get(name)
    choices = machine.decisions()
    first: dict[str, Value] = {n: c.values[0] for n, c in choices.items()}
    while True:
        operation = operation_of(random_operation(name, int(rng.integers(60)), rng))

        def broken(values: Mapping[str, Value], operation: Operation = operation) -> int:
            return sum(not r.holds for r in machine.requires(operation, Chosen(values)))

        chosen = {**first, **_one(rng, tuple(starts.values()))} if starts else first
        for _ in range(int(rng.integers(1, 9))):
            decision = _one(rng, tuple(choices))
            other = {**chosen, decision: _one(rng, choices[decision].values)}
            if broken(other) <= broken(chosen):
                chosen = other
        if not broken(chosen):
            try:
                return machine.program(operation, Chosen(chosen))
            except ZeroDivisionError:  # threads that a vector leaves nothing to do
                continue


def _mutants(machine: str, program: Program) -> Iterator[tuple[str, Program]]:
    if machine in ("hopper", "blackwell"):
        yield from async_mutants.mutants(program)
        yield from async_mutants.moved(program)
        yield from tensor_mutants(program) if machine == "blackwell" else ()
    else:
        yield from mutants.mutants(program)


def _digest(names: Iterable[str]) -> str:
    return f"{zlib.crc32(chr(10).join(names).encode()):08x}"


def _judged_lots() -> Iterator[Lot]:
    for name, entries_of in verdict_lots().items():
        entries = entries_of()
        values = tuple(judge() for _, judge in entries)
        yield Lot(name, (), values, _digest(n for n, _ in entries))


def load(part: str, folder: Path = FOLDER) -> Record:
    """Read what ``--write`` wrote."""
    tree = json.loads((folder / f"{part}.json").read_text(encoding="utf-8"))
    lots = []
    for name, *rest in tree["lots"]:
        if part == "verdicts":
            names, text = rest
            lots.append(Lot(name, (), tuple(tree["words"][ord(c) - ord("0")] for c in text), names))
        else:
            keys, values = zip(*rest[0], strict=True)
            lots.append(Lot(name, keys, values))
    return Record(part, tuple(lots), tree.get("decisions", {}), tree["made_with"])


def _write(part: str, folder: Path) -> Path:
    """Make a part and write it: a line for each lot, each word of the verdicts one character."""
    from rich.progress import track

    made_with = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "hypothesis": hypothesis.__version__,
        "machine": platform.machine(),
    }
    tree: dict[str, Any] = {"part": part, "made_with": made_with}
    if part == "verdicts":
        lots = list(track(_judged_lots(), part, total=len(verdict_lots())))
        words = sorted({value for lot in lots for value in lot.values})
        letter = {word: chr(ord("0") + i) for i, word in enumerate(words)}
        tree |= {"words": words}
        tree["lots"] = [[t.name, t.names, "".join(letter[v] for v in t.values)] for t in lots]
    else:
        total = sum(COUNTS[part].values()) // EACH[part]
        lots = list(track(drawn(part, load(part)), part, total=total))
        tree |= {"decisions": {name: list(MACHINES[name].decisions()) for name in COUNTS[part]}}
        tree["lots"] = [[t.name, list(zip(t.keys, t.values, strict=True))] for t in lots]
    return write_tree(folder / f"{part}.json", tree)


def _check(part: str, folder: Path) -> list[str]:
    from rich.progress import track

    record = load(part, folder)
    found: list[str] = []
    for lot in track(record.lots, part):
        found += differences(replace(record, lots=(lot,)))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the arguments say; exit with 1 if something is not as recorded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.record")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="compare with what is recorded")
    what.add_argument("--write", action="store_true", help="record")
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the records")
    given = parser.parse_args(arguments)
    differing = False
    for part in (given.only,) if given.only else PARTS:
        if given.write:
            sys.stdout.write(f"wrote {_write(part, given.out)}\n")
            continue
        found = _check(part, given.out)
        sys.stdout.writelines(f"{line}\n" for line in found)
        sys.stdout.write(f"{part}: {len(found)} differences\n")
        if found:
            differing = True
            sys.stdout.write(advice(part) + "\n")
    if differing:
        sys.exit(1)


if __name__ == "__main__":
    main()
