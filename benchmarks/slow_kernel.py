"""A slow kernel, explained: ``python -m benchmarks.slow_kernel``.

Somebody's naive fp32 matmul (4092 cubed, one thread an element, in Python through numba) took about
1.25 s where the same in CUDA C took about 0.2 s.  Seven guesses changed nothing; fp32 instead of
fp64 sums gave 0.566 s, flat indices 0.587 s; the rest stayed unexplained.

Here each guess is a variant of one term: the type of the sums, the width of indices, which way
threads run (along rows, so that a warp reads a column, or along columns), an early return or
guards, block size and array sizes as arguments or constants.  All combinations of the first four
are predicted and measured, and each of the other guesses at two.  A row's ``case`` names its
variant; ``peer`` is the same kernel without the guess that is tried: what it costs is
``seconds / peer_seconds``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.peers import FOLDER, write_results
from tinygpu.codegen.run.launch import Kernel
from tinygpu.codegen.run.provenance import provenance
from tinygpu.codegen.run.timing import time_interleaved
from tinygpu.codegen.run.validation import Output, roundoff, trial
from tinygpu.devices.device import Device, load_device
from tinygpu.errors import LaunchError
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.time.cost import cost
from tinygpu.term.expression import Constant
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Access, Affine, Do, Exit, For, Program, Statement, When
from tinygpu.term.schedule import Schedule

__all__ = ["PROBLEM", "Variant", "block_as_argument", "main", "published_ratio", "variants"]

PROBLEM = Problem.of(matmul(), m=4092, n=4092, k=4092)
SUMS = {"fp64 sums": "f32+f64", "fp32 sums": "f32"}
INDICES = {"i64": "i64", "i32": "i32"}
THREADS = {"rows": {"order": "m", "lanes_m": 32}, "columns": {"order": "n", "lanes_m": 1}}
EDGES = ("return", "guard")
PUBLISHED_RATIO = 2.2  # 1.25 s to 0.566 s


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel: its name, the name of what it is compared with, its decisions, its term."""

    name: str
    beside: str
    schedule: Schedule
    program: Program


def variants() -> Iterator[Variant]:
    """Yield every variant; the first is the kernel of the story."""
    machine, operation = Simt(), PROBLEM.operation

    def make(name: str, beside: str, changes: dict[str, Any], *, argument: bool = False) -> Variant:
        schedule = Schedule.of(machine, {**LADDER["naive"], **changes})
        program = schedule.program(machine, operation)
        return Variant(name, beside, schedule, block_as_argument(program) if argument else program)

    for sums, index, threads, edges in product(SUMS, INDICES, THREADS, EDGES):
        beside = ", ".join((sums, index, threads, "return"))
        yield make(
            ", ".join((sums, index, threads, edges)),
            beside if edges == "guard" else "",
            {
                "accumulator": SUMS[sums],
                "addressing": INDICES[index],
                "edges": edges,
                **THREADS[threads],
            },
        )
    for sums, threads in (("fp64 sums", "rows"), ("fp32 sums", "columns")):
        beside = ", ".join((sums, "i64", threads, "return"))
        same = {"accumulator": SUMS[sums], "addressing": "i64", **THREADS[threads]}
        yield make(f"{beside}, block size an argument", beside, same, argument=True)
        yield make(f"{beside}, sizes constant", beside, {**same, "specialised": 1})
        yield make(f"{beside}, fp64 product", beside, {**same, "accumulator": "f64"})


def block_as_argument(program: Program) -> Program:
    """Return the term with the tile's size along m and n as launch parameters."""
    names = {"bm": "block_m", "bn": "block_n"}
    sizes: dict[str, int] = {}

    def index(affine: Affine) -> Affine:
        terms: list[tuple[str, int | str]] = []
        for name, coefficient in affine.terms:
            if name in names and isinstance(coefficient, int):
                sizes[names[name]] = coefficient
                terms.append((name, names[name]))
            else:
                terms.append((name, coefficient))
        return Affine(affine.constant, tuple(terms))

    def access(old: Any) -> Any:
        if not isinstance(old, Access):
            return old
        return replace(old, origin=tuple(map(index, old.origin)))

    def statement(old: Statement) -> Statement:
        match old:
            case Do():
                return replace(old, write=access(old.write), reads=tuple(map(access, old.reads)))
            case For() | When():
                return replace(old, body=tuple(map(statement, old.body)))
            case Exit():
                return replace(old, access=access(old.access))
        return old

    roles = tuple(replace(r, body=tuple(map(statement, r.body))) for r in program.roles)
    parameters = (*program.parameters, *((n, Constant(s)) for n, s in sorted(sizes.items())))
    return replace(program, roles=roles, parameters=parameters)


def predicted(variant: Variant, device: Device) -> float:
    """Return the model's seconds."""
    return float(cost(variant.program, PROBLEM.sizes, device).seconds)


def published_ratio() -> float:
    """Return fp64 to fp32 sums on the consumer GPU, by the model: the published one is 2.2.

    Threads run along columns here: along rows, uncoalesced loads hide part of the fp64 work (1.6),
    so the published kernel's loads were coalesced, or its GPU's L1 served rows faster.
    """
    device = load_device("rtx3060")
    found = {v.name: v for v in variants()}
    slow, fast = (found[f"{sums}, i64, columns, return"] for sums in SUMS)
    return predicted(slow, device) / predicted(fast, device)


def measured() -> Iterator[dict[str, Any]]:
    """Validate and time every variant, interleaved; yield a row each.  Raises LaunchError."""
    device = load_device("h200")
    data = trial(PROBLEM, 1)
    output = Output(PROBLEM)
    every = list(variants())
    launches, errors = {}, {}
    for variant in every:
        kernel = Kernel(variant.program, sizes=PROBLEM.sizes)
        output.poison()
        kernel(*data.inputs, out=output.array)
        errors[variant.name] = data.worst(output, roundoff(variant.program))
        bound = kernel.prepare(*data.inputs, out=output.array)
        launches[variant.name] = lambda _, go=bound: go()
    times = time_interleaved(launches, rounds=5)
    for variant in every:
        yield {
            "group": "main",
            "case": variant.name,
            **PROBLEM.sizes,
            "dtype": "f32",
            "schedule": dict(variant.schedule.decisions),
            "predicted_seconds": predicted(variant, device),
            "seconds": times[variant.name].seconds,
            "peer": variant.beside,
            "peer_seconds": times[variant.beside].seconds if variant.beside else None,
            "error": errors[variant.name],
        }


def main() -> None:
    """Measure, print and write ``slow_kernel.json``; ``--predict`` needs no GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--predict", action="store_true", help="print predictions only")
    options = parser.parse_args()
    print(f"fp64 to fp32 sums on rtx3060: {published_ratio():.2f}, published {PUBLISHED_RATIO}")
    if options.predict:
        for variant in variants():
            times = (predicted(variant, load_device(name)) for name in ("h200", "rtx3060"))
            print(f"{variant.name:50}", *(f"{seconds:.4f} s" for seconds in times))
        return
    try:
        rows = list(measured())
    except LaunchError as error:
        sys.exit(str(error))
    for row in rows:
        ratio = row["predicted_seconds"] / row["seconds"]
        print(
            f"{row['case']:50} {row['seconds']:.4f} s, predicted {row['predicted_seconds']:.4f} "
            f"({ratio:.2f}), error {row['error']:.2f}"
        )
    write_results("slow_kernel", rows, provenance("python -m benchmarks.slow_kernel"), options.out)


if __name__ == "__main__":
    main()
