"""What stays as it is while the code is rebuilt: ``python -m benchmarks.record --check | --write``.

    ptx         PTX of random legal schedules: all machines, operations, types and layouts
    verdicts    what the judge says of every term of the tests' corpora and of their mutants
    times       predicted seconds of random legal schedules, exactly
    counts      how many schedules of a space are admissible: random structures, some whole spaces
    nodes       the exact best three of a space: how many nodes are scored, times, the best schedule
    meanings    what ``computes`` says of named points, random schedules, mutants, hostile terms
    texts       laws that are broken and reasons of verdicts as a user reads them: hostile and wrong
                terms, mutants, random illegal schedules

``--write`` records under ``tests/golden/record``: what was recorded and can be made still stays,
and only what is missing is drawn.  ``--check`` makes everything anew, compares, lists each
difference and exits with 1 if there is one.  ``--only PART`` does one part.

A record is lots of entries; an entry is a key and a value.  A lot of what is drawn is a machine, a
device and a problem.  A key is the decisions of a schedule, or those of a space that are fixed, so
that a check draws nothing.  A lot of terms (``record_terms.py``) has their names as keys; one of
``verdicts`` has numbers, as its terms follow from seeds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np

from benchmarks.peers import write_tree
from benchmarks.problems import (
    SEED,
    device_of,
    one,
    operation_of,
    place_of,
    random_operation,
    random_sizes,
)
from benchmarks.record_terms import Words, meaning_lots, text_lots, verdict_lots
from tinygpu.codegen.emit import emit
from tinygpu.devices.device import Device
from tinygpu.errors import TinyGpuError, nearest
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES
from tinygpu.meaning.identity import computes
from tinygpu.search.exact.best import rank
from tinygpu.search.time.cost import cost
from tinygpu.space.space import Space
from tinygpu.term.machine import Machine, Value
from tinygpu.term.operation import Problem
from tinygpu.term.schedule import Schedule

__all__ = [
    *("COUNTS", "FOLDER", "LOTS", "PARTS", "WHOLE", "Lot", "Record", "advice", "differences"),
    *("drawn", "load", "main", "made"),
]

FOLDER = Path(__file__).parent.parent / "tests" / "golden" / "record"
PARTS = ("ptx", "verdicts", "times", "counts", "nodes", "meanings", "texts")
EACH: Mapping[str, int] = {
    "ptx": 2, "times": 4, "counts": 1, "nodes": 1, "meanings": 2, "texts": 4,
}  # fmt: skip
"""How many schedules, or spaces, there are of a problem and a structure."""
GROUPED = 3
"""Of how many of a machine's problems the matmuls are grouped, if it does those."""
TRIES = 24
"""How many structures are drawn for an operation before the next one is taken."""
COUNTS: Mapping[str, Mapping[str, int]] = {
    "ptx": {"simt": 100, "ampere": 80, "hopper": 96, "blackwell": 70, "elementwise": 30,
            "rows": 30, "attention": 12, "ampere_attention": 6, "hopper_split": 6,
            "hopper_rmsnorm": 4},
    "times": {"simt": 500, "ampere": 400, "hopper": 492, "blackwell": 420, "elementwise": 80,
              "rows": 120, "attention": 28, "ampere_attention": 12, "hopper_split": 12,
              "hopper_rmsnorm": 6},
    "counts": {"simt": 40, "ampere": 24, "hopper": 60, "blackwell": 40, "elementwise": 20,
               "rows": 30, "attention": 18},
    "nodes": {"simt": 24, "ampere": 16, "hopper": 14, "blackwell": 8, "elementwise": 12,
              "rows": 24},
    "meanings": {"simt": 14, "ampere": 14, "hopper": 16, "blackwell": 14, "elementwise": 6,
                 "rows": 8},
    "texts": {"simt": 60, "ampere": 40, "hopper": 60, "blackwell": 40, "elementwise": 12,
              "rows": 24, "attention": 8},
}  # fmt: skip
"""How many schedules, or spaces, there are of each machine."""
LOTS: Mapping[str, Callable[[], Mapping[str, Callable[[], Words]]]] = {
    "meanings": meaning_lots, "texts": text_lots,
}  # fmt: skip
"""The lots of terms that are recorded beside what is drawn."""
WHOLE: Mapping[str, tuple[str, ...]] = {
    "counts": (
        "simt h200 | matmul f32 f32 nn | m=4096 n=4096 k=4096",
        "ampere a100 | matmul bf16 bf16 nt | m=2048 n=2048 k=2048",
        "hopper h200 | matmul bf16 bf16 nt | m=4096 n=4096 k=4096",
        "hopper h200 | matmul e4m3 bf16 nt bias gelu | m=1000 n=512 k=96",
        "blackwell b200 | matmul bf16 bf16 nt | m=4096 n=4096 k=4096",
        "elementwise h200 | elementwise f32 a*x + b | i=1048577",
        "elementwise a100 | elementwise f16 a*x + b | i=4096",
        "rows h200 | rmsnorm bf16 | i=4096 j=4096",
        "rows h200 | softmax f32 | i=512 j=1000",
        "attention h200 | attention bf16 causal | l=2 h=16 g=1 m=4096 n=4096 d=128 e=128",
    ),
    "nodes": (
        "elementwise h200 | elementwise f32 a*x + b | i=1048577",
        "rows h200 | rmsnorm bf16 | i=4096 j=4096",
        "rows h200 | softmax f32 | i=512 j=1000",
    ),
}
"""Whole spaces; their keys fix nothing."""
_BEST, _SPACE = 3, "~"
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
    """Return whether an entry is as it was; times but for what another NumPy rounds."""
    if part not in ("times", "nodes"):
        return was == value
    before, now = was.split(), value.split()
    return len(before) == len(now) and all(map(_near, before, now))


def _near(was: str, value: str) -> bool:
    """Return whether words are equal, or numbers but for rounding."""
    if was == value:
        return True
    try:
        return abs(float(value) - float(was)) <= _ROUNDING * abs(float(was))
    except ValueError:
        return False


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


def _of_key(record: Record, name: str, key: str) -> str:
    """Return the value of a schedule, a space or a term; what it was refused with, if it was."""
    try:
        if name in LOTS.get(record.part, dict)():
            return _words(record.part, name)[key]()
        machine, problem, device = place_of(name)
        if record.part in ("counts", "nodes"):
            fixed = {n: _value_of(v) for n, v in (word.split("=") for word in key.split())}
            return _of_space(record.part, Space(machine, problem, device, fixed=fixed))
        words = map(_value_of, key.split())
        values = dict(zip(record.decisions[machine.name], words, strict=True))
        return _value(record.part, Schedule.of(machine, values), problem, device)
    except (LookupError, TinyGpuError) as error:
        return f"{type(error).__name__}: {error}"


@cache
def _words(part: str, lot: str) -> Words:
    return LOTS[part]()[lot]()


def _value_of(word: str) -> Value:
    return int(word) if word.isdigit() else word.replace(_SPACE, " ")


def _word_of(value: Value) -> str:
    return str(value).replace(" ", _SPACE)


def _of_space(part: str, space: Space) -> str:
    """Return how many schedules a space has, or what the search for the best ones does."""
    if part == "counts":
        return str(space.count())
    found = rank(space, _BEST)
    times = " ".join(repr(ranked.seconds) for ranked in found.best)
    best = " ".join(str(v) for _, v in found.best[0].schedule.decisions)
    proven = "" if found.proven else " unproven"
    return f"{found.scored} of {found.admissible}{proven}: {times} s: {best}"


def _value(part: str, schedule: Schedule, problem: Problem, device: Device) -> str:
    """Return what a part records of a schedule.

    The digests of its PTX (whole, and without comments), its predicted seconds, whether it computes
    its operation, the laws that it breaks.
    """
    machine = MACHINES[schedule.machine]
    if part == "texts":
        return "\n".join(map(str, check_schedule(schedule, machine, problem, device))) or "legal"
    program = schedule.term(machine, problem.operation)
    if part == "meanings":
        return str(computes(program))
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
    """Make what was drawn of a machine anew; leave out what cannot be made any more."""
    spaces = record.part in ("counts", "nodes")  # whose keys name their decisions
    if not spaces and list(record.decisions.get(name, ())) != list(MACHINES[name].decisions()):
        return
    for lot in record.lots:
        if lot.name.startswith(f"{name} ") and lot.keys != ("",):
            kept: dict[str, str] = {}
            for i, value, _ in made(record, lot, None):
                if not re.match(r"\w+Error: |(il)?legal", value):  # it is still what was drawn
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
        more = GROUPED if "grouped" in MACHINES[name].operations else 0
        while left:
            grouped = sum(" | grouped " in o for o in known if o.startswith(f"{name} ")) < more
            for _ in range(TRIES):
                new = _lot(part, name, number, min(EACH[part], left), rng, grouped=grouped)
                if new and new.name not in known:
                    yield new
                    known.add(new.name)
                    left -= len(new.keys)
                    break
            number += 1


def _lot(
    part: str, name: str, number: int, count: int, rng: np.random.Generator, *, grouped: bool
) -> Lot | None:
    """Draw a problem, a structure and what is recorded of it; None if there is nothing."""
    machine = MACHINES[name]
    device = device_of(machine, number)
    text = random_operation(name, number, rng, grouped=grouped)
    operation = operation_of(text)
    long = part in ("times", "counts", "nodes")
    problem = Problem.of(operation, **random_sizes(operation, rng, long=long))
    sizes = " ".join(f"{a}={n}" for a, n in problem.sizes.items())
    title = f"{name} {device.name} | {text} | {sizes}"
    choices = machine.decisions()
    structure = {n: one(rng, c.values) for n, c in choices.items() if c.structural}
    space = Space(machine, problem, device, fixed=structure)
    if not space.count():
        return None
    if part in ("counts", "nodes"):
        fixed = " ".join(f"{n}={_word_of(v)}" for n, v in structure.items())
        return Lot(title, (fixed,), (_of_space(part, space),))
    schedules = space.sample(rng, count)
    if part == "texts":
        schedules = [_illegal(s, machine, problem, device, rng) for s in schedules]
    else:
        schedules = [s for s in schedules if not check_schedule(s, machine, problem, device)]
    found = {
        " ".join(_word_of(v) for _, v in s.decisions): _value(part, s, problem, device)
        for s in schedules
    }
    return Lot(title, tuple(found), tuple(found.values())) if found else None


def _illegal(
    schedule: Schedule,
    machine: Machine,
    problem: Problem,
    device: Device,
    rng: np.random.Generator,
) -> Schedule:
    """Change decisions of a schedule until it breaks a law."""
    choices, values = machine.decisions(), dict(schedule.decisions)
    while True:
        name = one(rng, tuple(choices))
        values[name] = one(rng, choices[name].values)
        changed = Schedule.of(machine, values)
        if check_schedule(changed, machine, problem, device):
            return changed


def _digest(names: Iterable[str]) -> str:
    return f"{zlib.crc32(chr(10).join(names).encode()):08x}"


def _of_terms(part: str) -> Iterator[Lot]:
    """Make the lots of terms, and of whole spaces."""
    for name in LOTS.get(part, dict)():
        values = {key: say() for key, say in _words(part, name).items()}
        yield Lot(name, tuple(values), tuple(values.values()))
    for name in WHOLE.get(part, ()):
        yield Lot(name, ("",), (_of_space(part, Space(*place_of(name))),))


def _judged_lots(lot: str) -> Iterator[Lot]:
    """Judge the terms of a lot, or of all; keep the others."""
    if lot not in ("", *verdict_lots()):
        raise SystemExit(f"error: lot {lot}: {nearest(lot, verdict_lots())}")
    kept = {one.name: one for one in load("verdicts").lots} if lot else {}
    for name, entries_of in verdict_lots().items():
        if lot not in ("", name):
            yield kept[name]
            continue
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


def _write(part: str, folder: Path, lot: str) -> Path:
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
        lots = list(track(_judged_lots(lot), part, total=len(verdict_lots())))
        words = sorted({value for lot in lots for value in lot.values})
        letter = {word: chr(ord("0") + i) for i, word in enumerate(words)}
        tree |= {"words": words}
        tree["lots"] = [[t.name, t.names, "".join(letter[v] for v in t.values)] for t in lots]
    else:
        total = sum(COUNTS[part].values()) // EACH[part]
        first = Record(part, (), {}, made_with)
        record = load(part) if (FOLDER / f"{part}.json").exists() else first
        lots = list(track(drawn(part, record), part, total=total))
        lots += _of_terms(part)
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
    parser.add_argument("--lot", default="", help='of verdicts, one lot alone, as "hopper wrong"')
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the records")
    given = parser.parse_args(arguments)
    differing = False
    for part in (given.only,) if given.only else PARTS:
        if given.write:
            sys.stdout.write(f"wrote {_write(part, given.out, given.lot)}\n")
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
