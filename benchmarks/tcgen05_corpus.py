"""``blackwell`` without its chip: ``python -m benchmarks.tcgen05_corpus [--out DIR] [--jobs N]``.

    schedules  random legal ones: ptxas assembles each without a spill or a warning, and both the
               interpreter of terms and that of PTX find its results right, in every order
    rows       mutants of terms: what the interpreter makes fail, the judge rejects; the
               outcomes are those of ``benchmarks.async_corpus``
    texts      kernels whose PTX lacks a line or has a wrong number: the PTX interpreter finds it

What the graph accepts although its order fails is *missed*, unless another law rejects it: the
layout of tensor memory, and who may commit, are not the graph's.  What is rejected though no seed
makes it fail, and what no order of a wrong text shows, carries its category: ``REASONS``.

It writes ``tcgen05_corpus.json`` lot by lot, and goes on where it was cut off.  A lot whose terms
or emitter have changed is done again; after a change of a judge remove the file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.async_corpus import Case, Outcome, judge, row_of
from benchmarks.async_corpus import summary as summary_of_rows
from benchmarks.peers import FOLDER, write_tree
from benchmarks.tcgen05_cases import (
    ARCH,
    Drawn,
    cases,
    drawn,
    long_sizes,
    lot_names,
    mutants_of,
    texts,
)
from benchmarks.tcgen05_reasons import REASONS, of_term, of_text
from tests.blackwell_terms import broken
from tests.ptx_runs import Outcome as Ran
from tests.ptx_runs import run_matmul
from tinygpu.codegen.emit import EMITTER_VERSION, emit
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.provenance import provenance
from tinygpu.errors import TinyGpuError
from tinygpu.isa.memory import DTYPES
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.meaning.interpret import interpret
from tinygpu.meaning.tolerance import error_ratio, roundoff
from tinygpu.term.program import Program

__all__ = ["explained", "judged", "lots", "main", "row_of_drawn", "row_of_text", "summary"]

PARTS = ("schedules", "texts", "rows")
COMPLETIONS = ("late", "early", "random")
SEEDS = (0, 4, 8)  # one to three clusters, things land late, at random, early


def judged(case: Case, number: int) -> tuple[Outcome, str]:
    """Return the outcome at a point; what another law rejects is not missed by the graph."""
    outcome, why = judge(case, number)
    if outcome == "missed" and (laws := broken(case.program, case.points[number][2])):
        return "other law", f"{next(iter(laws))}: {why}"
    return outcome, why


def row_of_drawn(one: Drawn) -> dict[str, Any]:
    """Assemble a schedule's kernel and run it by both interpreters; ``reason``: what is wrong."""
    start = time.perf_counter()
    program = one.program
    row: dict[str, Any] = {
        **one.sizes, "clusters": one.clusters, "schedule": dict(one.schedule.decisions),
    }  # fmt: skip
    reasons: list[str] = []
    try:
        found = verdict(program)
        row["proved"] = found.legal
        reasons += [] if found.legal else [found.reason]
        text = emit(program, ARCH, one.sizes)
        cubin = assemble(text, ARCH)
        warnings = [x for x in cubin.messages.splitlines() if "warning" in x or "(C7" in x]
        spilled = cubin.spill_stores_bytes + cubin.spill_loads_bytes
        row |= {"registers": cubin.registers, "spilled_bytes": spilled, "warnings": warnings}
        reasons += [f"{spilled} B are spilled"] * bool(spilled) + warnings
        for completion in COMPLETIONS:
            ran = run_matmul(program, one.sizes, text=text, arch=ARCH, clusters=one.clusters,
                             completion=completion, seed=1)  # fmt: skip
            row[f"ptx_{completion}"] = _number(_ratio(ran))
            reasons += [f"{completion}: {f}" for f in ran.report.findings]
            reasons += [f"{completion}: wrong result"] * (not ran.right)
        row["term"], findings = _term(program, one.sizes)
        reasons += findings
    except TinyGpuError as error:
        reasons.append(str(error))
    row |= {"seconds": round(time.perf_counter() - start, 2), "reason": "; ".join(reasons)}
    return row


def _ratio(ran: Ran) -> float:
    """Return the largest error over what is allowed; a number that is none is infinitely wrong."""
    ratio = np.abs(ran.output - ran.exact) / ran.bound
    return float(np.where(np.isfinite(ratio), ratio, np.inf).max())


def _term(program: Program, sizes: Mapping[str, int]) -> tuple[float | str, list[str]]:
    """Return the largest error of a term's results over its seeds, and what was found."""
    operation, worst = program.operation, 0.0
    shapes = operation.shapes(sizes)
    found: list[str] = []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        given = {o.name: rng.standard_normal(shapes[o.name]) for o in operation.inputs}
        result = interpret(program, sizes, given, seed=seed)
        rounded = {o.name: DTYPES[o.dtype].round(given[o.name]) for o in operation.inputs}
        exact = operation.reference(rounded, {})
        name = operation.output.name
        ratio = error_ratio(
            result.outputs[name], exact[name], exact[f"scale of {name}"], depth=sizes["k"],
            roundoff=roundoff(program), dtype=operation.output.dtype,
        )  # fmt: skip
        worst = max(worst, float(ratio.max()))
        found += [f"seed {seed}: {f}" for f in result.findings]
    return _number(worst), found


def _number(ratio: float) -> float | str:
    return float(f"{ratio:.3g}") if math.isfinite(ratio) else str(ratio)


def row_of_text(case: Case, step: int = 1) -> dict[str, Any]:
    """Run every ``step``-th mutant of a kernel's text; return what was found, and what was not."""
    sizes = long_sizes(case)
    kinds: Counter[str] = Counter()
    unfound: list[str] = []
    every = [*texts(emit(case.program, ARCH, sizes))][::step]
    for name, text in every:
        found = _found(case.program, sizes, text)
        kinds.update(found)
        unfound += [] if found else [name]
    return {"program": case.name, "mutants": len(every), "found": len(every) - len(unfound),
            "one_tile": not case.program.persistent, "kinds": dict(kinds.most_common()),
            "unfound": unfound}  # fmt: skip


def _found(program: Program, sizes: Mapping[str, int], text: str) -> set[str]:
    """Return what the first order that shows anything shows."""
    for completion in COMPLETIONS:
        try:
            ran = run_matmul(program, sizes, text=text, arch=ARCH, clusters=1,
                             completion=completion)  # fmt: skip
        except TinyGpuError:
            return {"refused"}
        if found := ran.report.kinds | ({"wrong result"} if not ran.right else set()):
            return found
    return set()


def lots() -> tuple[tuple[str, str], ...]:
    """Return (part of the results, name) of every lot."""
    names = [case.name for case in cases()]
    return (
        *(("rows", name) for name in names),
        *(("texts", name) for name in names),
        *(("schedules", name) for name in lot_names()),
    )


def _case(name: str) -> Case:
    return next(case for case in cases() if case.name == name)


def key_of(lot: tuple[str, str]) -> str:
    """Return what a lot's rows depend on, in short: its terms and the emitter."""
    part, name = lot
    if part == "schedules":
        told = [f"{dict(d.sizes)} {d.clusters} {d.schedule} {d.program}" for d in drawn(name)]
    else:
        case = _case(name)
        told = [str(case.program), str(case.points), str(case.step)]
    told.append(str(EMITTER_VERSION))
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]


def rows_of(lot: tuple[str, str]) -> list[dict[str, Any]]:
    """Do a lot."""
    part, name = lot
    if part == "schedules":
        return [row_of_drawn(one) for one in drawn(name)]
    case = _case(name)
    if part == "texts":
        return [row_of_text(case)]
    return [row_of(name, tuple(mutants_of(case)), ask=judged)]


def explained(part: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with how many of what it has to explain are of each category."""
    found: Counter[str] = Counter()
    if part == "rows":
        stages = {b.name: b.stages for b in _case(row["program"]).program.barriers}
        found.update(of_term(line, stages) for line in row["told"]["conservative"])
    elif part == "texts":
        found.update(of_text(name, one_tile=row["one_tile"]) for name in row["unfound"])
    return {**row, **({"categories": dict(found.most_common())} if part != "schedules" else {})}


def _work(lot: tuple[str, str], known: str) -> tuple[str, list[dict[str, Any]] | None]:
    """Do a lot unless it is known; return its key and rows."""
    key = key_of(lot)
    return key, None if key == known else rows_of(lot)


def summary(tree: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Add up all parts."""
    drawn_rows, terms, kernels = tree["schedules"], tree["rows"], tree["texts"]
    kept: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    for row in terms:
        kept.update(row["categories"])
    for row in kernels:
        lost.update(row["categories"])
    orders = [f"ptx_{c}" for c in COMPLETIONS]
    return {
        "schedules": {
            "schedules": len(drawn_rows),
            "wrong": sum(bool(r["reason"]) for r in drawn_rows),
            "proved": sum(bool(r.get("proved")) for r in drawn_rows),
            "spilled_bytes": sum(int(r.get("spilled_bytes", 0)) for r in drawn_rows),
            "warnings": sum(len(r.get("warnings", ())) for r in drawn_rows),
            "worst PTX error": _worst(drawn_rows, *orders),
            "worst term error": _worst(drawn_rows, "term"),
            "seconds": round(sum(float(r["seconds"]) for r in drawn_rows)),
        },
        "rows": {**summary_of_rows(terms), "conservative categories": dict(kept.most_common())},
        "texts": {
            "mutants": sum(int(r["mutants"]) for r in kernels),
            "found": sum(int(r["found"]) for r in kernels),
            "unfound categories": dict(lost.most_common()),
        },
        "reasons": REASONS,
    }


def _worst(rows: Sequence[Mapping[str, Any]], *fields: str) -> float | str:
    return _number(max((float(row.get(f, 0)) for row in rows for f in fields), default=0.0))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is not there yet; write ``tcgen05_corpus.json``."""
    from rich.progress import track

    parser = argparse.ArgumentParser(prog="python -m benchmarks.tcgen05_corpus")
    parser.add_argument("--out", type=Path, default=FOLDER.parent, help="folder of the results")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    record = provenance(" ".join(("python -m benchmarks.tcgen05_corpus", *words)))
    path = given.out / "tcgen05_corpus.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known = {
        (part, row["lot"]): [r for r in old[part] if r["lot"] == row["lot"]]
        for part in PARTS for row in old.get(part, ())
    }  # fmt: skip
    try:
        with ProcessPoolExecutor(given.jobs) as pool:
            order = sorted(lots(), key=lambda lot: PARTS.index(lot[0]))  # the quick ones first
            asked = {
                pool.submit(_work, lot, known[lot][0]["key"] if lot in known else ""): lot
                for lot in order
            }
            for done in track(as_completed(asked), "judging", total=len(asked)):
                lot = asked[done]
                key, rows = done.result()
                if rows is not None:
                    known[lot] = [{"lot": lot[1], "key": key, **row} for row in rows]
                    _write(path, record, known)
    except TinyGpuError as error:
        sys.exit(str(error))
    sys.stdout.write(json.dumps(_write(path, record, known), indent=2) + "\n")


def _write(
    path: Path,
    record: Mapping[str, Any],
    known: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]],
) -> dict[str, Any]:
    """Write the lots that there are, in order; return their summary."""
    tree: dict[str, list[Mapping[str, Any]]] = {part: [] for part in PARTS}
    for lot in lots():
        tree[lot[0]] += [explained(lot[0], row) for row in known.get(lot, ())]
    told = summary(tree)
    write_tree(path, {"provenance": record, "summary": told, **tree})
    return told


if __name__ == "__main__":
    main()
