"""Every field of a term is read by each walk, or the walk says why it need not; others refuse it.

What a walk reads is recorded: the descriptors of the classes' slots note who asks.  So a field that
is added to a statement fails here until it is in ``KNOWN``, and then until each walk reads it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field, fields, make_dataclass, replace
from functools import cache
from typing import Any

import pytest

from tests.ptx_runs import unchecked
from tests.test_predicates import masked
from tinygpu.codegen.emit import emit
from tinygpu.devices.device import load_device
from tinygpu.errors import IllegalScheduleError, ProgramError
from tinygpu.isa.instruction import Instruction
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import LAWS, own_laws
from tinygpu.legality.reach import Case
from tinygpu.machines import MACHINES, ampere, blackwell, hopper, simt
from tinygpu.meaning.identity import computes
from tinygpu.meaning.interpret import check, reduced
from tinygpu.search.time.cost import cost
from tinygpu.term.access_map import Access, Affine, Buffer, Immediate, Predicate, Scalar
from tinygpu.term.fields import KNOWN, unknown
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Operation, Problem, elementwise, matmul, rmsnorm
from tinygpu.term.program import (
    Arrive,
    Axis,
    Barrier,
    Commit,
    Do,
    Elect,
    Exit,
    Fence,
    For,
    ForTile,
    Program,
    Role,
    Sync,
    Wait,
    WaitGroup,
    When,
    changed,
    walk,
)

PARTS = (
    Program, Role, Axis, Buffer, Access, Affine, Immediate, Scalar, Predicate, Barrier, Instruction,
    Do, For, ForTile, When, Elect, Exit, Sync, Commit, WaitGroup, Wait, Arrive, Fence,
)  # fmt: skip

TYPES = "operands of other types are refused where the term is built"
LEFT_OUT = {
    "judge": {
        "the order of tiles, the way of addressing and what guards global memory order nothing": (
            "Program.raster Program.snake Program.zigzag Axis.down Program.addressing "
            "Program.guards "
            "Access.guard Access.outside Access.trimmed"
        ),
        "it decides all sizes": "Program.specialised Program.at_most",
        "what the launch does before and beside": (
            "Program.zeroed Program.ctas_per_sm Program.early Role.registers"
        ),
        "which values a predicate takes: a statement with one reads what it writes": (
            "Predicate.origin Predicate.value Predicate.thread Predicate.bound"
        ),
        "values: which operator, of which numbers": (
            "Immediate.number Scalar.name Scalar.size Do.variant Do.across Instruction.variants"
        ),
        "how one statement's elements are cut into instructions": "Do.vector",
        "erasing keeps kinds and footprints, which say where values go": (
            "Instruction.name Instruction.reads Instruction.writes"
        ),
        "other walks'": (
            "Instruction.arch Instruction.lower Instruction.laws Instruction.per_cycle"
        ),
        "what is wrong with them is asked where the term is built": (
            "Instruction.meaning Instruction.types"
        ),
        "an Exit counts as one whatever it looks at": "Exit.values",
        "where inputs lie, which nobody writes": "Buffer.pages",
        "adding to global memory is the law store_once's": "Instruction.atomic",
        "which lane has which value is the law mma_shape's": "Instruction.blocks",
    },
    "computes": {
        TYPES: "Instruction.types",
        "the same meaning (the program is asked without them)": (
            "Program.specialised Program.addressing Program.guards Program.ctas_per_sm "
            "Program.early"
        ),
        "registers are enough or not, which is a law's matter": "Role.registers",
        "levels are asked where a term is built": (
            "Instruction.reads Instruction.writes"
        ),
        "other walks'": (
            "Instruction.arch Instruction.lower Instruction.laws Instruction.per_cycle"
        ),
    },
    "interpreter": {
        TYPES: "Instruction.types",
        "the same meaning": (
            "Program.name Program.specialised Program.addressing Program.guards "
            "Program.ctas_per_sm Program.early"
        ),
        "levels are asked where a term is built": (
            "Instruction.reads Instruction.writes"
        ),
        "registers are enough or not, which is a law's matter": "Role.registers",
        "other walks'": (
            "Instruction.arch Instruction.lower Instruction.laws Instruction.per_cycle"
        ),
    },
    "laws": {
        TYPES: "Instruction.types",
        "meaning's and the order's": (
            "Program.raster Axis.down Program.specialised Program.guards Program.persistent "
            "Program.snake Program.zigzag Access.outside Access.peer Immediate.number Scalar.name "
            "Scalar.size Do.across Do.fresh WaitGroup.read Wait.index Arrive.index "
            "Instruction.variants Instruction.meaning"
        ),
        "levels are asked where a term is built": (
            "Instruction.reads Instruction.writes"
        ),
        "code's and time's": "Instruction.lower Instruction.per_cycle",
    },
    "time": {
        TYPES: "Instruction.types",
        "a name takes no time": "Program.name",
        "these terms' tiles take as long as each other, in any order": "Axis.down Program.snake "
        "Program.zigzag",
        "a comparison takes as long whatever it compares": (
            "Predicate.origin Predicate.value Predicate.thread Predicate.bound"
        ),
        "which stage and which number do not change how long it takes": (
            "Access.outside Immediate.number Scalar.name Scalar.size "
            "Barrier.home Do.across Do.fresh ForTile.start Exit.values Exit.threads"
        ),
        "other walks'": (
            "Instruction.reads Instruction.writes Instruction.variants Instruction.arch "
            "Instruction.lower Instruction.meaning Instruction.laws Instruction.folds"
        ),
    },
    "code": {
        "sizes that a term does not cover are refused at the launch": "Program.at_most",
        "the launch clears the output, and counts the grid": "Program.zeroed Axis.extent",
        "a name is not in the code": "Role.name",
        "asked where sizes are given": "Program.specialised",
        "meaning's and the laws'": (
            "Instruction.meaning Instruction.laws Instruction.arch Instruction.variants "
            "Instruction.writes Instruction.atomic Instruction.types Instruction.folds "
            "Instruction.per_cycle"
        ),
    },
}  # fmt: skip
"""What each walk does not read of a term, and why it need not."""


@cache
def terms() -> tuple[tuple[str, Program, str], ...]:
    """A few small terms that have every field between them, each with its device."""
    of: list[tuple[str, str, Operation, dict[str, Any], str]] = [
        ("simt", "simt", matmul(), dict(simt.LADDER["multi-stage"]), "h200"),
        ("simt naive", "simt", matmul(), dict(simt.LADDER["naive"]), "h200"),
        ("ampere", "ampere", matmul("bf16"), dict(ampere.STARTS["plain"]), "a100"),
        ("hopper", "hopper", matmul("bf16", layout="nt"), small("tma store"), "h200"),
        ("hopper cluster", "hopper", matmul("bf16", layout="nt"), small("cluster"), "h200"),
        ("hopper shared k", "hopper", matmul("bf16", layout="nt"), small("shared k"), "h200"),
        ("blackwell", "blackwell", matmul("bf16", layout="nt"), pair(), "b200"),
        ("rows", "rows", rmsnorm(), {}, "h200"),
        ("elementwise", "elementwise", elementwise("max(a*x + b*z, 0)"), {}, "h200"),
    ]
    return (
        *(
            (name, MACHINES[machine].program(operation, chosen(machine, values)), device)
            for name, machine, operation, values, device in of
        ),
        ("masked", masked(causal=False), "h200"),
    )


def small(start: str) -> dict[str, Any]:
    return {**hopper.STARTS[start], "tile_n": 64, "stages": 2}


def pair() -> dict[str, Any]:
    return {**blackwell.STARTS["narrow pair"], "stages": 2}


def chosen(machine: str, values: dict[str, Any]) -> Chosen:
    """Return values, or the first of each decision."""
    choices = MACHINES[machine].decisions()
    return Chosen({n: values.get(n, c.values[0]) for n, c in choices.items()})


def sizes_of(program: Program) -> dict[str, int]:
    most = dict(program.at_most)
    return {axis: min(128, most.get(axis, 128)) for axis in program.operation.axes}


def asks_laws(program: Program, device: str) -> None:
    case = Case.of(program, sizes_of(program), load_device(device))
    brought = own_laws([s.instruction for s, _ in walk(program) if isinstance(s, Do)])
    for law in (*LAWS.values(), *brought.values()):
        for clause in law.clauses(case) if law.numeric else ():
            assert clause.text


def interprets(program: Program) -> None:
    small_sizes = reduced(Problem.of(program.operation, **sizes_of(program)), program)
    check(program, small_sizes, seeds=(0,))


WALKS: dict[str, Callable[[Program, str], object]] = {
    "judge": lambda program, _: verdict(program),
    "computes": lambda program, _: computes(program),
    "interpreter": lambda program, _: interprets(program),
    "laws": asks_laws,
    "time": lambda program, device: cost(program, sizes_of(program), load_device(device)),
    "code": lambda program, device: unchecked(program, load_device(device).arch),
}


def building() -> bool:
    """Return whether a part is being made, whose class checks its fields: that is no walk."""
    frame = sys._getframe(2)
    while frame.f_code.co_name != "__post_init__":
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return True


class Noting:
    """A slot's descriptor that notes who reads the slot."""

    def __init__(self, name: str, slot: Any, seen: set[str]) -> None:
        self.name, self.slot, self.seen = name, slot, seen

    def __get__(self, part: Any, owner: type) -> Any:
        if part is None:
            return self
        asks = sys._getframe(1).f_code
        generated = asks.co_filename == "<string>" or asks.co_name.startswith("__")
        if not generated and "dataclasses" not in asks.co_filename:
            read = f"{type(part).__name__}.{self.name}"
            if read not in self.seen and not building():  # which walks up the stack
                self.seen.add(read)
        return self.slot.__get__(part, owner)

    def __set__(self, part: Any, value: Any) -> None:
        self.slot.__set__(part, value)


@contextmanager
def noted() -> Iterator[set[str]]:
    """Note which fields are read; what other tests asked is forgotten, or nobody reads it again."""
    for name, module in [*sys.modules.items()]:
        for kept in vars(module).values() if name.startswith("tinygpu.") else ():
            if isinstance(kept, functools._lru_cache_wrapper):
                kept.cache_clear()
    seen: set[str] = set()
    homes = [(k, f.name) for kind in PARTS for f in fields(kind) for k in kind.__mro__
             if f.name in k.__dict__]  # fmt: skip
    slots = {(kind, name): kind.__dict__[name] for kind, name in homes}
    for (kind, name), slot in slots.items():
        setattr(kind, name, Noting(name, slot, seen))
    try:
        yield seen
    finally:
        for (kind, name), slot in slots.items():
            setattr(kind, name, slot)


def test_the_known_fields_are_those_of_the_classes() -> None:
    assert {kind.__name__: {f.name for f in fields(kind)} for kind in PARTS} == dict(KNOWN)


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_reads_each_field_or_says_why_it_need_not(walk: str) -> None:
    every = {f"{kind.__name__}.{f.name}" for kind in PARTS for f in fields(kind)}
    built = terms()  # first: a builder reads, too
    with noted() as seen:
        for _, program, device in built:
            WALKS[walk](program, device)
    left_out = {name for names in LEFT_OUT[walk].values() for name in names.split()}
    assert every - seen == left_out


def test_a_law_of_a_statement_reads_no_field_that_its_key_leaves_out() -> None:
    """Over a space its clauses are those of every place with the same key in a like context."""
    for _, program, device in terms():
        case = Case.of(program, sizes_of(program), load_device(device))
        with noted() as counted:
            for place in case.places:
                assert place.key
            assert case.context.key
        with noted() as read:
            for law in LAWS.values():
                for place in case.places:
                    assert all(str(clause) for clause in law.at(case.context, place))
        whole = {name for name in read - counted if not name.startswith("Instruction.")}
        assert not {name for name in whole if name.split(".")[0] not in ("Program", "Axis")}
        assert not any(name.startswith("Program.") for name in read)


def test_parts_that_differ_in_a_field_have_other_keys() -> None:
    place = next(p for p in Case.of(masked(), {"i": 64, "j": 64}, None).places if p.do.where)
    do = place.do
    others = [
        replace(do, across=1), replace(do, where=None), replace(do, lanes=(1, 2, 0)),
        replace(do, write=replace(do.write, index=Affine(1))),
        replace(do, write=replace(do.write, peer=1)),
        replace(do, write=replace(do.write, buffer=replace(do.write.buffer, home="rank"))),
        replace(do, signal=(Barrier("full", 2, 1), Affine())),
        replace(do, instruction=replace(do.instruction, issuer="warp")),
    ]  # fmt: skip
    assert len({replace(place, do=one).key for one in (do, *others)}) == 1 + len(others)
    assert replace(place, do=replace(do)).key == place.key


# A field that no walk knows


NOVEL: dict[str, Any] = {}


def novel(kind: type) -> Any:
    """Return a class that has one field more, always the same."""
    more = [("novel", int, field(default=1))]
    made = make_dataclass(kind.__name__, more, bases=(kind,), frozen=True, slots=True)
    return NOVEL.setdefault(kind.__name__, made)


def widened(part: Any) -> Any:
    """Return a part with a field that nobody knows."""
    return novel(type(part))(**{f.name: getattr(part, f.name) for f in fields(part)})


def with_novel(kind: type, program: Program) -> Program | None:
    """Return the program with the field in its parts of a kind, None if it has no such part."""

    def access(one: Any) -> Any:
        if type(one) is kind:
            return widened(one)
        if not isinstance(one, Access):
            return one
        if kind is Affine:
            return replace(one, index=widened(one.index))
        return replace(one, buffer=widened(one.buffer)) if kind is Buffer else one

    def of(statement: Any) -> Any:
        if isinstance(statement, Do):
            statement = replace(
                statement, write=access(statement.write), reads=tuple(map(access, statement.reads))
            )
            if kind is Predicate and statement.where:
                statement = replace(statement, where=widened(statement.where))
            if kind is Instruction:
                statement = replace(statement, instruction=widened(statement.instruction))
            if kind is Barrier and statement.signal:
                barrier, index = statement.signal
                statement = replace(statement, signal=(widened(barrier), index))
        if kind is Barrier and isinstance(statement, Wait | Arrive):
            statement = replace(statement, barrier=widened(statement.barrier))
        return widened(statement) if type(statement) is kind else statement

    roles = tuple(replace(r, body=changed(r.body, of)) for r in program.roles)
    changes: dict[str, Any] = {"roles": tuple(map(widened, roles)) if kind is Role else roles}
    if kind is Axis:
        changes["grid"] = tuple(map(widened, program.grid))
    if kind is Buffer:
        changes["buffers"] = tuple(map(widened, program.buffers))
    if kind is Barrier:
        changes["barriers"] = tuple(map(widened, program.barriers))
    made = replace(program, **changes)
    made = widened(made) if kind is Program else made
    return made if unknown(made) else None


@pytest.mark.parametrize("kind", PARTS, ids=lambda kind: kind.__name__)
def test_no_walk_answers_where_a_field_is_not_known(kind: type) -> None:
    found = ((with_novel(kind, program), device) for _, program, device in terms())
    program, device = next((p, d) for p, d in found if p is not None)
    says = f"no walk knows the field novel of {kind.__name__}"
    assert says in unknown(program)
    judged = verdict(program)
    assert judged.outcome == "unproved"
    assert says in judged.reason
    assert not computes(program, sizes_of(program)).proved
    chip = load_device(device)
    with pytest.raises(ProgramError, match=says):
        check(program, sizes_of(program))
    with pytest.raises(ProgramError, match=says):
        cost(program, sizes_of(program), chip)
    with pytest.raises(IllegalScheduleError, match=says):
        emit(program, chip.arch)
    with pytest.raises(ProgramError, match=says):
        unchecked(program, chip.arch)
