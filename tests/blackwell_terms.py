"""Terms of blackwell, small enough to be interpreted many times, and their first broken clauses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.hopper_terms import rewritten
from tinygpu.devices.device import load_device
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.legality.laws import LAWS
from tinygpu.legality.reach import Case
from tinygpu.machines.blackwell import STARTS, Blackwell
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import matmul
from tinygpu.term.program import Access, Do, Fence, Program, Statement, WaitGroup

B200 = load_device("b200")
LARGE = {"m": 4096, "n": 4096, "k": 4096}
LAYOUTS = ("nn", "nt", "tn", "tt")
FORMS = tuple(
    (start, layout)
    for start, values in STARTS.items()
    for layout in LAYOUTS
    if values["a_from"] == "smem" or layout[0] == "n"  # copied along k
)
"""Named points, each with the layouts that it has."""


def term(start: str, layout: str = "nt", output: str | None = None, **changes: Value) -> Program:
    return built({**STARTS[start], **changes}, layout, output)


def built(values: Mapping[str, Value], layout: str = "nt", output: str | None = None) -> Program:
    return Blackwell().program(matmul("bf16", output, layout), Chosen(values))


def small(start: str) -> Program:
    """A named point with few columns and stages, so that few tiles and steps show its faults."""
    columns = 64 if start == "wide pair" else 32
    chunked = {"store_stages": 2} if STARTS[start]["epilogue"] == "tma" else {"vector_c": 8}
    changes = {"tile_n": columns, "stages": 2, "store_n": 16, "raster": 1}
    return built({**STARTS[start], **changes, **chunked})


def put_back(start: str, *, wait: bool = True, fence: bool = True) -> Program:
    """A small term whose epilogue stores what it loads from tensor memory, and loads it again.

    ``wait``: for what it stores, before it loads again; ``fence``: before it tells of that.
    """
    program = small(start)
    other = replace(next(b for b in program.buffers if b.name == "taken"), name="again")
    loads: list[Do] = []

    def one(s: Statement) -> Statement | tuple[Statement, ...]:
        if isinstance(s, Do) and s.instruction.name == "tcgen05.ld":
            loads.append(s)
        if isinstance(s, WaitGroup) and s.group == "tcgen05.ld":
            (sums,), stored = loads[-1].reads, WaitGroup(0, "tcgen05.st")
            assert isinstance(sums, Access)
            store = replace(
                loads[-1], instruction=INSTRUCTIONS["tcgen05.st"], write=sums,
                reads=(loads[-1].write,),
            )  # fmt: skip
            again = replace(loads[-1], write=replace(loads[-1].write, buffer=other))
            waits = (stored, again, s) if wait else (again, s, stored)
            return s, Fence("tcgen05.before"), store, *waits
        drops = isinstance(s, Fence) and s.kind == "tcgen05.before" and not fence
        return () if drops else s

    return rewritten(replace(program, buffers=(*program.buffers, other)), one)


def broken(program: Program, sizes: Mapping[str, int] = LARGE) -> dict[str, str]:
    """The first broken clause of each law that has arithmetic."""
    case = Case.of(program, sizes, B200)
    found: dict[str, str] = {}
    for law in LAWS.values():
        for clause in law.clauses(case) if law.numeric else ():
            if not clause.holds:
                found.setdefault(law.name, str(clause))
    return found
