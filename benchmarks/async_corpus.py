"""The judge against the interpreter: ``python -m benchmarks.async_corpus [--out DIR]``.

Two judges that share no code are asked about each program of a corpus at points (T tiles, K trips):

    mutants   right programs of the machine ``hopper``, and those by hand, each with one change
    drawn     small schedules, half of them with a count, a depth or an index changed at random

What the interpreter makes fail at one of its seeds (all orders of agents, with late, early and
random completions) the judge has to reject.  The outcome of a program at a point is one of

    legal          both find nothing
    illegal        the judge rejects it, and it fails
    missed         it fails by order, and the judge accepts it: one of the two is wrong
    conservative   the judge rejects it, and no seed makes it fail
    other law      only its values are wrong or missing, which is no matter of order

It writes ``async_corpus.json``, a row for each right program and each lot of drawn ones, and goes
on where it was cut off.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.peers import FOLDER, write_tree
from tests.async_mutants import changes, moves
from tests.async_protocols import TILE, by_hand
from tinygpu.codegen.run.provenance import provenance
from tinygpu.errors import TinyGpuError
from tinygpu.legality.concurrency.blocks import laid_out
from tinygpu.legality.concurrency.conditions import Fault
from tinygpu.legality.concurrency.cutoff import Witness, replayed
from tinygpu.legality.concurrency.erase import erase
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.meaning.interpret import check
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import matmul
from tinygpu.term.program import Program

__all__ = [
    "Case",
    "Outcome",
    "changed",
    "drawn",
    "judge",
    "main",
    "programs",
    "row_of",
    "summary",
    "verdict_at",
]

Outcome = Literal["legal", "illegal", "missed", "conservative", "other law", "refused"]
OUTCOMES: tuple[Outcome, ...] = (
    "legal", "illegal", "missed", "conservative", "other law", "refused",
)  # fmt: skip
ORDER = {
    "race", "deadlock", "stale", "unwritten_read", "unwaited", "unfenced", "unbalanced", "exited",
    "aliased",
}  # fmt: skip
"""What the interpreter finds of order; the rest is about values and coverage."""
SEEDS = tuple(range(0, 36, 3))  # one cluster gets all tiles; all strategies with all landings
FEW = SEEDS[:4]
MANY = tuple(range(0, 360, 3))  # of what is rejected for its order: until the one agent is starved
LOT, DRAWN = 50, 1000
STEPS = 3  # of every so many mutants of a cluster of four one is taken

_SMALL: Mapping[str, Value] = {
    **STARTS["tma store"], "tile_m": 64, "tile_n": 16, "consumers": 1, "stages": 2, "store_n": 8,
    "store_stages": 1, "in_flight": 0, "raster": 1,
}  # fmt: skip
_DIRECT: Mapping[str, Value] = {"epilogue": "direct", "store_n": 16}
_STAY: Mapping[str, Value] = {"persistent": 1}
_TURNS: Mapping[str, Value] = {"persistent": 1, "consumers": 2, "consume": "pingpong"}
_BOTH: Mapping[str, Value] = {"consumers": 2, "tile_m": 128}
_POINTS: tuple[tuple[str, Mapping[str, Value]], ...] = (
    ("nt", {}),
    ("nt", {"stages": 4, "in_flight": 2, **_DIRECT}),
    ("nt", {**_BOTH, "stages": 3, "in_flight": 1}),
    ("nt", {**_STAY, "store_stages": 2, "in_flight": 1, "stages": 3}),
    ("nt", {**_STAY, **_DIRECT}),
    ("nt", {**_STAY, **_BOTH, "in_flight": 1}),
    ("nt", {**_TURNS}),
    ("nt", {**_TURNS, "stages": 3, "in_flight": 2, "store_stages": 2}),
    ("nt", {**_TURNS, **_DIRECT, "in_flight": 1}),
    ("nt", {"cluster_m": 2}),
    ("nt", {"cluster_n": 2, **_STAY, "in_flight": 1}),
    ("nt", {"cluster_m": 2, **_STAY, "in_flight": 1, "stages": 3, "store_stages": 2}),
    ("nt", {"cluster_n": 2, **_TURNS}),
    ("nt", {"cluster_m": 2, "cluster_n": 2, **_DIRECT, "in_flight": 1}),
    ("nt", {"swap": 1}),
    ("nt", {"swap": 1, **_STAY, **_DIRECT, "in_flight": 1}),
    ("nt", {"swap": 1, "cluster_n": 2, **_STAY}),
    ("nn", {"tile_n": 64, "store_n": 64, "in_flight": 1}),
    ("nn", {"tile_n": 64, "store_n": 32, **_STAY, "store_stages": 2}),
    ("tn", {**_STAY, "tile_n": 64, "store_n": 64, "stages": 3, "in_flight": 2}),
    ("tt", {**_TURNS, "in_flight": 1}),
    ("tt", {"cluster_m": 2, "in_flight": 1}),
    ("nt", {"cluster_k": 2}),
    ("nt", {"cluster_k": 2, "cluster_m": 2, **_DIRECT, "store_n": 8, "in_flight": 1}),
    ("nn", {"cluster_k": 4, **_BOTH, **_DIRECT, "swap": 1, "tile_n": 64, "store_n": 16}),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A program, at points (tiles of a cluster, trips) with the sizes that give them.

    ``step``: one of so many mutants is taken.  ``seeds`` are for what the graph accepts.
    """

    name: str
    program: Program
    points: tuple[tuple[int, int, Mapping[str, int]], ...]
    step: int = 1
    seeds: tuple[int, ...] = FEW

    def of(self, program: Program) -> Case:
        """Return the case of another program at the same points."""
        return replace(self, program=program)


def _hopper(layout: str, changes: Mapping[str, Value]) -> Case | None:
    """Return a case of the machine; None if it does not allow it."""
    d: dict[str, Any] = {**_SMALL, **changes}
    operation = matmul("bf16", layout=layout)
    if not all(r.holds for r in Hopper().requires(operation, Chosen(d))):
        return None
    rows, columns = ("n", "m") if d["swap"] else ("m", "n")
    tiles = (1, 1) if not d["persistent"] else (5, 3) if d["consume"] == "pingpong" else (3, 2)
    points = tuple(
        (t, k, {rows: d["tile_m"] * d["cluster_m"] * t, columns: d["tile_n"] * d["cluster_n"],
                "k": 64 * d["cluster_k"] * k - 56})
        for t, k in zip(tiles, (1, d["stages"] + 1), strict=True)
    )  # fmt: skip
    told = ", ".join(f"{n} {v}" for n, v in changes.items())
    step = STEPS if d["cluster_m"] * d["cluster_n"] * d["cluster_k"] > 2 else 1
    return Case(f"{layout} {told}", Hopper().program(operation, Chosen(d)), points, step)


def programs() -> Iterator[Case]:
    """Yield the right programs."""
    for program in by_hand():
        points = tuple((1, k, {"i": TILE * k - 8}) for k in (1, 6))
        yield Case(program.name, program, points)
    for layout, other in _POINTS:
        if case := _hopper(layout, other):
            yield case


def changed(case: Case) -> Iterator[tuple[str, Program]]:
    """Yield the case's program, and those with one change."""
    yield "unchanged", case.program
    edits = chain(changes(case.program), moves(case.program))
    for name, make in islice(edits, 0, None, case.step):
        yield name, make()


def drawn(seed: int, count: int) -> Iterator[tuple[str, Case]]:
    """Yield small schedules, half of them with a number changed."""
    rng = np.random.default_rng(seed)

    def one(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    while count:
        shape: dict[str, Value] = {
            "stages": one(2, 3, 4), "in_flight": one(0, 1, 2), "store_stages": one(1, 2, 4),
            "swap": one(0, 1), "cluster_m": one(1, 1, 1, 2), "cluster_n": one(1, 1, 1, 2),
            "tile_n": one(16, 16, 64), **one({}, _STAY, _TURNS, _BOTH, {**_BOTH, **_STAY}),
        }  # fmt: skip
        shape |= one({"store_n": one(8, 16)}, {**_DIRECT, "store_stages": 1})
        if shape.get("epilogue") == "direct":
            shape["store_n"] = shape["tile_n"]
        case = _hopper(one("nt", "nt", "nn", "tn", "tt"), shape)
        if case is None:
            continue
        name = "unchanged"
        if rng.random() < 0.5:
            kinds = ("count", "stages", "pending", "bound", "later", "sooner", "phase", "full")
            edits = chain(changes(case.program), moves(case.program))
            some = [edit for edit in edits if edit[0].startswith(kinds)]
            name, make = some[int(rng.integers(len(some)))]
            case = case.of(make())
        count -= 1
        point = case.points[int(rng.integers(2))]
        yield name, replace(case, points=(point,), seeds=FEW[:2])


def verdict_at(program: Program, run: Witness) -> Fault | None:
    """Return the fault of one run, if it has one; no assumption is needed."""
    return replayed(laid_out(erase(program)), run)


def judge(case: Case, number: int) -> tuple[Outcome, str]:
    """Return the outcome at a point, with what the judge (or the interpreter) says first."""
    tiles, trips, sizes = case.points[number]
    program = case.program
    try:
        once = tuple((name, trips) for name, _ in program.parameters)
        rejected = verdict_at(program, Witness((once,) * tiles if program.persistent else (), once))
        counted = rejected is not None and rejected.kind == "balance"  # so at every seed
        failed: set[str] = set()
        for seed in case.seeds if rejected is None else SEEDS if counted else MANY:
            failed |= {str(f.kind) for f in check(program, sizes, seeds=(seed,))}
            if failed:
                break
    except TinyGpuError as error:
        return "refused", str(error)
    if rejected is not None:
        return ("illegal", rejected.kind) if failed else ("conservative", str(rejected))
    if failed & ORDER:
        return "missed", ", ".join(sorted(failed))
    return ("other law", ", ".join(sorted(failed))) if failed else ("legal", "")


def row_of(
    name: str,
    found: Sequence[tuple[str, Case]],
    *,
    ask: Callable[[Case, int], tuple[Outcome, str]] = judge,
) -> dict[str, Any]:
    """Ask about programs at their points; return the counts, and what there is to explain."""
    counts: Counter[str] = Counter()
    told: dict[str, list[str]] = {"missed": [], "conservative": [], "other law": [], "refused": []}
    for change, case in found:
        for number, (tiles, trips, _) in enumerate(case.points):
            outcome, why = ask(case, number)
            counts[outcome] += 1
            if outcome in told:
                told[outcome].append(f"{change} [{tiles}, {trips}]: {why}")
    return {"program": name, "programs": len(found),
            "points": sum(len(c.points) for _, c in found),
            **{o: counts[o] for o in OUTCOMES}, "told": told}  # fmt: skip


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up the rows; tell conservative rejections by the kind of change and of hazard."""
    kinds: Counter[str] = Counter()
    for row in rows:
        for line in row["told"]["conservative"]:
            change, why = line.split("]: ", 1)
            kinds[f"{' '.join(change.split()[:2])}: {why.split(':', 1)[0]}"] += 1
    totals = {o: sum(int(r[o]) for r in rows) for o in ("programs", "points", *OUTCOMES)}
    return {**totals, "conservative kinds": dict(kinds.most_common())}


def lots() -> dict[str, Callable[[], Sequence[tuple[str, Case]]]]:
    """Return the corpus, in lots that are made, judged and written one at a time."""
    found: dict[str, Callable[[], Sequence[tuple[str, Case]]]] = {}
    for number, case in enumerate(programs()):
        found[case.name] = partial(_changes, case)
        if number < DRAWN // LOT:
            found[f"drawn {number}"] = partial(_drawn, number)
    return found


def _changes(case: Case) -> Sequence[tuple[str, Case]]:
    return [(name, case.of(program)) for name, program in changed(case)]


def _drawn(lot: int) -> Sequence[tuple[str, Case]]:
    return tuple(drawn(lot, LOT))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is not there yet; write ``async_corpus.json``."""
    from rich.progress import track

    parser = argparse.ArgumentParser(prog="python -m benchmarks.async_corpus")
    parser.add_argument("--out", type=Path, default=FOLDER.parent, help="folder of the results")
    out = parser.parse_args(arguments).out
    path = out / "async_corpus.json"
    words = sys.argv[1:] if arguments is None else arguments
    record = provenance(" ".join(("python -m benchmarks.async_corpus", *words)))
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
    rows = {row["program"]: row for row in old["rows"]}
    try:
        for name, made in track(lots().items(), "judging", total=len(lots())):
            if name not in rows:
                rows[name] = row_of(name, made())
                told = summary(list(rows.values()))
                tree = {"provenance": record, "summary": told, "rows": list(rows.values())}
                write_tree(path, tree)
    except TinyGpuError as error:
        sys.exit(str(error))
    sys.stdout.write(json.dumps(summary(list(rows.values())), indent=2) + "\n")


if __name__ == "__main__":
    main()
