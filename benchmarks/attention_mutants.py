"""Mutants of attention's terms, and whether one that is called legal fails.

    python -m benchmarks.attention_mutants [--count N] [--seed S] [--seconds T] [--out DIR]

Terms of the machines of attention at small decisions are changed at one place: statements dropped,
doubled or moved, also across the border of a loop or guard; indices, arrivals, bytes, stages,
groups, fences; trips of a tile in one role; expressions of tile values; bounds of guards; bounds
and steps of predicates; another register, another operator; where sums start anew.  Each is judged,
and the laws are asked.  What is legal runs in the interpreter under several orders, with empty
tiles and several tiles a CTA: a race, a wait for ever or a read of what nobody wrote is a *fault*
of the judge.  Then ``computes`` is asked at one of those sizes: what floats find it has to find;
and at sizes of its own if nothing is found.  What passes all of it *survives*.

It writes ``attention_mutants.json``: a row for each kind of mutant, and all faults and survivors.
It goes on where it stopped: what is in the folder's ``attention_mutants.rows`` is not asked again.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import FOLDER, write_tree
from tests.async_mutants import moved, mutants
from tinygpu.codegen.run.provenance import provenance
from tinygpu.devices.device import load_device
from tinygpu.errors import TinyGpuError
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import LAWS
from tinygpu.legality.reach import Case
from tinygpu.machines import ampere_attention
from tinygpu.machines.attention import STARTS, Attention
from tinygpu.meaning.identity import computes
from tinygpu.meaning.inputs import drawn, kinds
from tinygpu.meaning.interpret import SCALAR, interpret
from tinygpu.term.expression import Apply, Constant, Expression, apply
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import attention
from tinygpu.term.program import (
    Access,
    Affine,
    Block,
    Body,
    Do,
    For,
    ForTile,
    Program,
    Statement,
    When,
    walk,
)

__all__ = ["bases", "drawn_mutants", "judged", "main", "ran", "summary"]

SMALL = {"depth": 64, "tile_n": 64, "raster": 1}
POINTS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("fa2", {"consumers": 1}),
    ("fa2", {"consumers": 2, "stages_k": 1, "stages_v": 3}),
    ("fa3 without turns", {"consumers": 1}),
    ("fa3", {"consumers": 2}),
    ("tma store", {"consumers": 1, "stages_k": 3}),
    ("tma store", {"consumers": 2, "stages_v": 1, "persistent": 0}),
    ("queries ahead", {"consumers": 1}),
    ("longest first", {"consumers": 1}),
    ("fa3 by mbarriers", {"consumers": 2}),
    ("queries in registers", {"consumers": 2}),
    ("weights through memory", {"consumers": 1}),
)
"""A named point of the machine, and what is other than there."""
BY_WARPS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("fa2", {}),
    ("few keys", {}),
    ("meet once", {"stages_k": 3}),
    ("queries held", {"stages_v": 3}),
)
"""Those of the machine ``ampere_attention``."""
RUNS: tuple[tuple[Mapping[str, int], tuple[int, ...]], ...] = (
    ({"l": 1, "h": 1, "g": 1, "m": 140, "n": 221, "d": 64, "e": 64}, (3, 9)),
    ({"l": 1, "h": 1, "g": 1, "m": 200, "n": 71, "d": 64, "e": 64}, (0, 6)),  # with empty tiles
)
"""Sizes and seeds at which a legal mutant runs; with these seeds one cluster has all tiles."""
LAWS_AT = {"l": 1, "h": 2, "g": 2, "m": 4096, "n": 4096, "d": 64, "e": 64}
VALUES = frozenset({"wrong_result", "unwritten", "out_of_bounds", "written_twice"})
"""Findings that are no matter of the judge's."""
_LEGAL = {"outcome": "legal"}


@cache
def bases() -> tuple[tuple[str, Program], ...]:
    """Return the terms that are changed, each with its name."""
    found = []
    for (name, other), mask in ((p, m) for p in POINTS for m in ("none", "causal")):
        chosen = Chosen({**STARTS[name], **SMALL, **other})
        operation = attention("bf16", mask=mask, scale=True)
        text = ", ".join((name, mask, *(f"{k} {v}" for k, v in other.items())))
        found.append((text, Attention().program(operation, chosen)))
    few = {"depth": 64, "tile_n": 32, "warps": 2, "warp_rows": 16, "raster": 1}
    for (name, other), mask in ((p, m) for p in BY_WARPS for m in ("none", "causal")):
        machine = ampere_attention.AmpereAttention()
        chosen = Chosen({**ampere_attention.STARTS[name], **few, **other})
        text = ", ".join((machine.name, name, mask, *(f"{k} {v}" for k, v in other.items())))
        found.append((text, machine.program(attention("bf16", mask=mask, scale=True), chosen)))
    return tuple(found)


def changes(program: Program) -> Iterator[tuple[str, Program]]:
    """Yield every mutant of a term with its name, the kind of change first.

    What no term can be is left out: whoever builds it is told.
    """
    seen: Counter[str] = Counter()
    for name, mutant in chain(mutants(program), moved(program), _more(program)):
        seen[name] += 1
        yield f"{name} ({seen[name]})" if seen[name] > 1 else name, mutant


def _more(program: Program) -> Iterator[tuple[str, Program]]:
    for r, role in enumerate(program.roles):
        for name, body in (*_bodies(program, role.body), *_borders(role.body)):
            roles = (*program.roles[:r], replace(role, body=body), *program.roles[r + 1 :])
            try:
                yield f"{name} of {role.name}", replace(program, roles=roles)
            except TinyGpuError:
                continue  # no term
    yield from _together(program)


def _together(program: Program) -> Iterator[tuple[str, Program]]:
    """Yield terms whose roles agree on another expression of a tile value."""
    first = next((s for s, _ in walk(program) if isinstance(s, ForTile)), None)
    if first is None:
        return
    for name, values in _other_values(first):
        roles = tuple(replace(role, body=_valued(role.body, values)) for role in program.roles)
        try:
            yield f"values of all: {name}", replace(program, roles=roles)
        except TinyGpuError:
            continue


def _valued(body: Body, values: Any) -> Body:
    return tuple(
        replace(s, values=values) if isinstance(s, ForTile)
        else replace(s, body=_valued(s.body, values)) if isinstance(s, Block)
        else s
        for s in body
    )  # fmt: skip


def _other_values(tile: ForTile) -> Iterator[tuple[str, Any]]:
    for i, (name, expression) in enumerate(tile.values):
        for what, other in _expressions(expression):
            yield what, (*tile.values[:i], (name, other), *tile.values[i + 1 :])


def _expressions(e: Expression) -> Iterator[tuple[str, Expression]]:
    """Yield other numbers of a tile."""
    yield "one more", e + Constant(1)
    yield "one less", apply("max", e - Constant(1), Constant(0))
    yield "one at least", apply("max", e, Constant(1))
    yield "one", Constant(1)
    yield "none", Constant(0)
    yield "two at most", apply("min", e, Constant(2))
    if isinstance(e, Apply) and e.operator == "ceildiv":
        inner, by = e.arguments
        for less in (1, 63, 64):
            other = apply("max", inner - Constant(less), Constant(0)).ceildiv(by)
            yield f"{less} fewer", other


def _bodies(program: Program, body: Body) -> Iterator[tuple[str, Body]]:
    for i, s in enumerate(body):
        before, after = body[:i], body[i + 1 :]
        if isinstance(s, Block):
            for name, inner in _bodies(program, s.body):
                yield name, (*before, replace(s, body=inner), *after)
            yield f"drop block {s}", (*before, *after)
            yield f"open block {s}", (*before, *s.body, *after)
        if isinstance(s, Do):
            yield f"drop {s}", (*before, *after)
            yield f"double {s}", (*before, s, s, *after)
            if after:
                yield f"swap {s}", (*before, after[0], s, *after[1:])
        for name, changed in _changes(program, s):
            yield f"{name} {s}", (*before, changed, *after)


def _borders(body: Body) -> Iterator[tuple[str, Body]]:
    """Yield bodies with a statement moved into or out of a block beside it."""
    for i, s in enumerate(body):
        if not isinstance(s, Block):
            continue
        for name, inner in _borders(s.body):
            yield name, (*body[:i], replace(s, body=inner), *body[i + 1 :])
        first, last = s.body[:1], s.body[-1:]
        if len(s.body) > 1:
            out = (*body[:i], *first, replace(s, body=s.body[1:]), *body[i + 1 :])
            yield f"out before {first[0]}", out
            out = (*body[:i], replace(s, body=s.body[:-1]), *last, *body[i + 1 :])
            yield f"out after {last[0]}", out
        if i:
            into = replace(s, body=(body[i - 1], *s.body))
            yield f"into next {body[i - 1]}", (*body[: i - 1], into, *body[i + 1 :])
        if i + 1 < len(body):
            into = replace(s, body=(*s.body, body[i + 1]))
            yield f"into last {body[i + 1]}", (*body[:i], into, *body[i + 2 :])


def _changes(program: Program, s: Statement) -> Iterator[tuple[str, Statement]]:
    if isinstance(s, Do):
        yield from _of_do(program, s)
    if isinstance(s, For):
        yield "start+", replace(s, start=s.start + 1)
        if isinstance(s.trips, str):
            yield "trips 1", replace(s, trips=1)
            yield "trips 2", replace(s, trips=2)
        else:
            yield "trips-", replace(s, trips=s.trips - 1)
    if isinstance(s, ForTile):
        for name, values in _other_values(s):
            yield f"values: {name}", replace(s, values=values)
        yield "step 2", replace(s, step=2)
        yield "start 1", replace(s, start=s.start + 1)
    if isinstance(s, When):
        yield "turned", replace(s, index=s.index * -1)
        if isinstance(s.bound, str):
            yield "bound 1", replace(s, bound=1)
            yield "bound 2", replace(s, bound=2)
        else:
            yield "bound 3", replace(s, bound=3)


def _of_do(program: Program, s: Do) -> Iterator[tuple[str, Statement]]:
    if s.where is not None:
        where = s.where
        yield "where dropped", replace(s, where=None)
        for by in (1, -1, 64):
            yield f"where bound{by:+}", replace(s, where=replace(where, bound=where.bound + by))
        for kind in ("value", "thread"):
            steps = getattr(where, kind)
            for i, step in enumerate(steps):
                if step:
                    other = (*steps[:i], 2 * step, *steps[i + 1 :])
                    changed: Any = {kind: other}
                    yield f"where {kind} {i}", replace(s, where=replace(where, **changed))
    for old, new in (("max", "add"), ("add", "max"), ("mul", "add")):
        if s.variant == old:
            how = {"max": "alu", "add": "fma"}.get(new, s.instruction.name)
            yield f"{new} for {old}", replace(s, variant=new, instruction=INSTRUCTIONS[how])
    if s.across:
        yield "across", replace(s, across=s.across * 2)
    if s.fresh is not None:
        yield "never anew", replace(s, fresh=None)
        yield "always anew", replace(s, fresh=Affine())
    elif s.instruction.name == "wgmma":
        yield "always anew", replace(s, fresh=Affine())
    for i, read in enumerate(s.reads):
        if not isinstance(read, Access) or read.buffer.level != "registers":
            continue
        held = read.buffer
        for buffer in program.buffers:
            same = buffer.level == "registers" and buffer.name != held.name
            if same and (buffer.dtype, buffer.shape) == (held.dtype, held.shape):
                reads = (*s.reads[:i], replace(read, buffer=buffer), *s.reads[i + 1 :])
                yield f"register {buffer.name} for {held.name} in", replace(s, reads=reads)


def drawn_mutants(
    seed: int, terms: Sequence[tuple[str, Program]]
) -> Iterator[tuple[str, str, Program]]:
    """Yield (term, mutant's name, mutant), one of a random kind of a random term after another.

    Every mutant comes once; all kinds are drawn alike as long as they have some left.
    """
    random = np.random.default_rng(seed)
    left: dict[str, list[tuple[str, str, Program]]] = {}
    for base, program in terms:
        for name, mutant in changes(program):
            left.setdefault(kind_of(name), []).append((base, name, mutant))
    for several in left.values():
        random.shuffle(several)
    while left:
        kind = sorted(left)[int(random.integers(len(left)))]
        yield left[kind].pop()
        if not left[kind]:
            del left[kind]


def kind_of(name: str) -> str:
    """Return a mutant's kind: the first words of its name."""
    head = name.split(" ", 2)
    many = ("drop", "swap", "double", "into", "out", "values", "where", "later", "sooner")
    return " ".join(head[:2]) if head[0].rstrip(":") in many and len(head) > 1 else head[0]


def ordering(name: str) -> bool:
    """Say whether a mutant changes what orders, and not what is computed."""
    return not re.search(r"^\w+ (block )?\S+ = |^(register|where|max|add|across|values)", name)


def judged(program: Program) -> dict[str, Any]:
    """Ask the judge and the laws about a mutant; "legal" if both agree."""
    begun = time.process_time()
    try:
        found = verdict(program)
        row: dict[str, Any] = {"seconds": round(time.process_time() - begun, 3)}
        if not found.legal:
            return row | {"outcome": found.outcome, "why": found.fault.kind if found.fault else ""}
        case = Case.of(program, LAWS_AT, load_device("h200"))
        numeric = [law for law in LAWS.values() if law.numeric]
        broken = (law.name for law in numeric if not all(c.holds for c in law.clauses(case)))
    except TinyGpuError as error:
        return {"outcome": "refused", "why": str(error)}
    return row | {"outcome": "law", "why": law} if (law := next(broken, "")) else row | _LEGAL


def ran(program: Program, *, orders: bool) -> dict[str, Any]:
    """Interpret a legal mutant, and ask what it computes; ``orders``: under twice the orders."""
    operation, wrong = program.operation, dict[int, str]()
    scalars = dict.fromkeys(operation.scalars, SCALAR)
    every = kinds(operation)
    for i, (sizes, seeds) in enumerate(RUNS):
        for seed in seeds[: 1 + orders]:
            random = np.random.default_rng(seed)
            inputs = drawn(operation, sizes, every[seed % len(every)], random.standard_normal)
            try:
                result = interpret(program, sizes, inputs, scalars=scalars, seed=seed)
            except TinyGpuError as error:
                return {"outcome": "refused", "why": str(error)}
            for finding in result.findings:
                if finding.kind not in VALUES:
                    return {"outcome": "fault", "why": finding.kind, "said": finding.message}
                wrong.setdefault(i, finding.message)
    if orders and not wrong:
        return {"outcome": "survives"}  # what orders, and races with nothing, changes no value
    if computes(program, RUNS[min(wrong, default=0)][0]):
        if wrong:
            return {"outcome": "fault", "why": "computes", "said": next(iter(wrong.values()))}
        return {"outcome": "survives" if computes(program) else "wrong", "why": "all sizes"}
    return {"outcome": "wrong", "why": "floats and field" if wrong else "field"}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return counts by outcome, by kind, the slowest verdict, faults and survivors."""
    by_kind: dict[str, Counter[str]] = {}
    for row in rows:
        by_kind.setdefault(kind_of(row["mutant"]), Counter())[row["outcome"]] += 1
    seconds = [row["seconds"] for row in rows if "seconds" in row]
    return {
        "mutants": len(rows),
        "outcomes": dict(Counter(row["outcome"] for row in rows)),
        "slowest_verdict_seconds": max(seconds, default=None),
        "mean_verdict_seconds": round(sum(seconds) / max(1, len(seconds)), 4),
        "kinds": {kind: dict(counts) for kind, counts in sorted(by_kind.items())},
        "faults": [row for row in rows if row["outcome"] == "fault"],
        "survivors": [row for row in rows if row["outcome"] == "survives"],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask about mutants; write ``attention_mutants.json``; exit with 1 if there is a fault."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention_mutants")
    parser.add_argument("--out", type=Path, default=FOLDER.parent, help="folder of the results")
    parser.add_argument("--count", type=int, default=3000, help="mutants")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    record = provenance(" ".join(("python -m benchmarks.attention_mutants", *words)))
    kept = given.out / "attention_mutants.rows"
    lines = kept.read_text().splitlines() if kept.exists() else []
    rows = {(row["term"], row["mutant"]): row for row in map(json.loads, lines)}
    chosen = list(islice(drawn_mutants(given.seed, bases()), given.count))
    end = time.monotonic() + given.seconds
    with kept.open("a") as file:
        for again in (False, True):  # all are judged before the first runs
            for n, (base, name, program) in enumerate(chosen):
                row = rows.get((base, name))
                if time.monotonic() > end or (row and not (again and row["outcome"] == "legal")):
                    continue
                new = judged(program) if row is None else ran(program, orders=ordering(name))
                rows[base, name] = {"term": base, "mutant": name, **(row or {}), **new}
                file.write(json.dumps(rows[base, name]) + "\n")
                file.flush()
                if new["outcome"] == "fault" or not (n + 1) % 100:
                    sys.stdout.write(f"{n + 1}: {rows[base, name]}\n")
                    sys.stdout.flush()
    found = summary(list(rows.values()))
    write_tree(given.out / "attention_mutants.json", {"provenance": record, **found})
    sys.stdout.write(f"{found['mutants']} mutants: {found['outcomes']}\n")
    if found["faults"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
