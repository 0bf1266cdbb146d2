"""Whether the check of SASS finds what ptxas drops, and nothing else.

    python -m benchmarks.scoreboards --out FILE [--count N] [--old PATH] [--processes P]

No GPU is needed, but nvdisasm.  Three groups of schedules are drawn, each by its number and
judged: ``every``, legal schedules of all machines and operations in turn, ``N`` in all, assembled
by the newest ptxas and one problem in four also by the one at PATH; ``aimed``, of the problems on
which ``benchmarks.fuzz`` met a wrong kernel, with what its decisions have in common, by both;
``wrong``, the schedules that were wrong on a GPU, by both.

A row is a problem: of each version of ptxas how many kernels are right, and those that the check
finds wrong or does not check, with their decisions and the reason.  Every one found wrong under
``every`` is a false alarm until its SASS has been read.  Rows that are in FILE stay.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzz import asked_of, each_done
from benchmarks.peers import FOLDER, write_tree
from benchmarks.problems import operation_of, random_operation, random_sizes
from tinygpu.codegen.emit import EMITTER_VERSION, emit
from tinygpu.codegen.run.assemble import assemble, every_ptxas, ptxas_version, waits_of
from tinygpu.codegen.run.provenance import provenance
from tinygpu.devices.device import load_device
from tinygpu.errors import AssemblyError
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES
from tinygpu.space.space import Space
from tinygpu.term.operation import Problem
from tinygpu.term.program import Program
from tinygpu.term.schedule import Schedule

__all__ = ["aimed", "drawn", "main", "row_of", "summary", "wrong_on_a_gpu"]

COUNT, EACH, SEED = 2_000, 4, 271125
AIMED = 100
DEVICES: Mapping[str, str] = {"blackwell": "b200"}
COMMON = {"tile_m": 32, "tile_n": 64, "tile_k": 32, "warps_m": 1, "warps_n": 4, "issue": 0}
"""What the decisions of the wrong kernels have in common."""
_TRIES = 24

Row = dict[str, Any]
Case = tuple[str, str, Problem, list[Schedule]]  # operation, device, problem, schedules


def drawn(name: str, number: int) -> Case | None:
    """Return up to ``EACH`` proved schedules of a machine, of one structure; None if it has none.

    Most are for an H200 or B200; every third problem of the other machines is for an A100.
    """
    machine = MACHINES[name]
    rng = np.random.default_rng([SEED, list(MACHINES).index(name), number])
    chip = DEVICES.get(name, "a100" if number % 3 == 2 and machine.runs_on("sm_80") else "h200")
    device = load_device(chip)
    for _ in range(_TRIES):
        text = random_operation(name, number, rng)
        operation = operation_of(text)
        problem = Problem.of(operation, **random_sizes(operation, rng, long=False))
        fixed = {
            decision: choice.values[int(rng.integers(len(choice.values)))]
            for decision, choice in machine.decisions().items()
            if choice.structural
        }
        space = Space(machine, problem, device, fixed=fixed)
        if space.count():
            schedules = [
                s
                for s in space.sample(rng, EACH)
                if not check_schedule(s, machine, problem, device)
                and verdict(s.program(machine, operation)).legal
            ]
            if schedules:
                return text, device.name, problem, schedules
    return None


def wrong_on_a_gpu() -> Iterator[Row]:
    """Yield the problems of ``benchmarks.fuzz`` that had wrong kernels, with their schedules."""
    seen = set()
    for path in sorted(FOLDER.parent.glob("*/fuzz.json")):
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            for decisions, _ in row["wrong"]:
                key = json.dumps([row["number"], decisions])
                if key not in seen:
                    seen.add(key)
                    yield {**row, "schedules": [decisions]}


def aimed(case: Row) -> Row:
    """Return a problem with schedules that have ``COMMON``."""
    problem, _ = asked_of(case)
    machine, device = MACHINES[case["machine"]], load_device("h200")
    space = Space(machine, problem, device, fixed=COMMON)
    rng = np.random.default_rng([SEED, case["number"]])
    schedules = space.sample(rng, AIMED)
    proved = [s for s in schedules if verdict(s.program(machine, problem.operation)).legal]
    return {**case, "schedules": [dict(s.decisions) for s in proved]}


def row_of(group: str, name: str, number: int, tools: Sequence[Path]) -> Row:
    """Draw a problem's schedules, assemble each with each ptxas, and check them."""
    if group == "every":
        case = drawn(name, number)
        if case is None:
            return {"group": group, "machine": name, "number": number, "schedules": 0, "ptxas": {}}
        text, chip, problem, schedules = case
        programs = {s: s.program(MACHINES[name], problem.operation) for s in schedules}
    else:
        found = list(wrong_on_a_gpu())[number]
        problem, programs = asked_of(found if group == "wrong" else aimed(found))
        text, chip = json.dumps(found["words"]), "h200"
    arch = load_device(chip).arch
    return {
        "group": group, "machine": name, "number": number, "arch": arch, "operation": text,
        "sizes": dict(problem.sizes), "schedules": len(programs),
        "ptxas": {ptxas_version(t): _checked(programs, problem, arch, t) for t in tools},
        "emitter": EMITTER_VERSION,
    }  # fmt: skip


def _checked(
    programs: Mapping[Schedule, Program], problem: Problem, arch: str, ptxas: Path
) -> dict[str, Any]:
    tree: dict[str, Any] = {"right": 0, "wrong": [], "not checked": []}
    for schedule, program in programs.items():
        try:
            cubin = assemble(emit(program, arch, problem.sizes), arch, ptxas=ptxas)
        except AssemblyError as error:
            tree["not checked"].append([dict(schedule.decisions), str(error)])
            continue
        found = waits_of(cubin.bytes)
        if found.right:
            tree["right"] += 1
        else:
            kind = "wrong" if found.hazards else "not checked"
            tree[kind].append([dict(schedule.decisions), str(found)])
    return tree


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Count kernels by group, version of ptxas and outcome, and those of ``every`` by machine."""
    tree: dict[str, dict[str, Counter[str]]] = {}
    machines: Counter[str] = Counter()
    for row in rows:
        if row["group"] == "every":
            machines[row["machine"]] += row["schedules"]
        for version, found in row["ptxas"].items():
            count = tree.setdefault(row["group"], {}).setdefault(version, Counter())
            count["right"] += found["right"]
            count["wrong"] += len(found["wrong"])
            count["not checked"] += len(found["not checked"])
    return {**tree, "schedules by machine": dict(machines)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw, assemble and check what FILE does not have yet; print the counts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scoreboards")
    parser.add_argument("--out", type=Path, default=FOLDER.parent / "scoreboards.json")
    parser.add_argument("--count", type=int, default=COUNT, help="schedules of all machines")
    parser.add_argument("--old", type=Path, help="another ptxas")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(arguments)
    record = provenance(
        " ".join(("python -m benchmarks.scoreboards", *(arguments or sys.argv[1:])))
    )
    old = [given.old] if given.old else []
    tools = [every_ptxas()[0][0], *old]
    rows: list[Row] = []
    if given.out.exists():
        rows = json.loads(given.out.read_text(encoding="utf-8"))["rows"]
    known = {(row["group"], row["machine"], row["number"]) for row in rows}
    cases = list(wrong_on_a_gpu())
    wanted: list[tuple[str, str, int, list[Path]]] = [
        (group, cases[n]["machine"], n, tools)
        for group in ("wrong", "aimed")
        for n in range(len(cases))
    ]
    problems = -(-given.count // EACH // len(MACHINES))
    wanted += [
        ("every", name, n, tools if n % 4 == 0 else tools[:1])
        for n in range(problems)
        for name in MACHINES
    ]
    wanted = [one for one in wanted if one[:3] not in known]
    for row in each_done(row_of, wanted, given.processes, f"check {len(wanted)} problems"):
        rows.append(row)
        rows.sort(key=lambda r: (r["group"], r["machine"], r["number"]))
        write_tree(given.out, {"provenance": record, "summary": summary(rows), "rows": rows})
    sys.stdout.write(json.dumps(summary(rows), indent=2) + "\n")


if __name__ == "__main__":
    main()
