"""Digits of a role's threads: a chain of two products, its sums the second one's first factor."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.attention_terms import term
from tests.hopper_terms import broken, dos, rewritten
from tests.ptx_runs import unchecked as emit
from tests.sample import by_turns
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.interpretation import interpret as run
from tinygpu.devices.device import load_device
from tinygpu.errors import ProgramError
from tinygpu.isa.algebra import FLOATS
from tinygpu.isa.memory import DTYPES
from tinygpu.legality.concurrency.assumptions import assumptions
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import LAWS
from tinygpu.legality.reach import Case
from tinygpu.machines import MACHINES, hopper
from tinygpu.machines.attention import STARTS, Attention
from tinygpu.meaning.canonical import canonical_run
from tinygpu.meaning.interpret import check
from tinygpu.search.time.cost import cost
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import attention, matmul
from tinygpu.term.program import (
    Access,
    Commit,
    Do,
    Elect,
    Fence,
    Program,
    Statement,
    Wait,
    WaitGroup,
    walk,
)

POINTS: dict[str, dict[str, Any]] = {
    "one": {},
    "two": {"consumers": 2, "stages": 3, "keys": 80},
    "once, f16": {"persistent": 0, "dtype": "f16", "keys": 32},
    "wide": {"consumers": 2, "depth": 128, "keys": 128, "registers": (24, 240)},
}

HEADS = {"l": 1, "h": 1, "g": 1}


@cache
def built(name: str) -> Program:
    return term(**POINTS[name])


def sizes_of(name: str) -> dict[str, int]:
    point = POINTS[name]
    depth = point.get("depth", 64)
    return {**HEADS, "m": 136, "n": 3 * point.get("keys", 64), "d": depth, "e": depth}


@pytest.mark.parametrize(("name", "completion"), by_turns(POINTS, ["late", "random"]))
def test_a_chain_of_products_is_legal_and_right(name: str, completion: str) -> None:
    """Tiles that each have their own number of steps; any order in which copies land."""
    program, sizes = built(name), sizes_of(name)
    assert verdict(program, apart=True).legal
    assert broken(program, {**sizes, "n": 4096}) == {}
    assert check(program, sizes, seeds=(0, 1)) == ()
    assert run(program, sizes, arch="sm_90a", completions=(completion,)).right


@pytest.mark.parametrize("name", ["one", "two"])
def test_all_instances_at_once_compute_the_same(name: str) -> None:
    program, sizes = built(name), sizes_of(name)
    random, operation = np.random.default_rng(0), program.operation
    shapes = operation.shapes(sizes)
    inputs = {
        o.name: DTYPES[o.dtype].round(random.standard_normal(shapes[o.name])).astype(np.float64)
        for o in operation.inputs
    }
    scalars = {"scale": sizes["d"] ** -0.5}
    found, findings, _ = canonical_run(program, sizes, inputs, scalars, FLOATS)
    wanted = operation.reference(inputs, scalars)["o"]
    assert findings == ()
    assert np.abs(found["o"] - wanted).max() < 2.0**-8


def test_it_assembles_without_a_spill_and_in_no_line_of_products() -> None:
    """ptxas warns (C75xx) where it has to serialise products, and says what it spills."""
    for name in ("one", "wide"):
        found = assemble(emit(built(name)), "sm_90a")
        assert not found.spills
        assert "C75" not in found.messages


def test_the_first_factor_is_read_from_registers() -> None:
    text = emit(built("one"))
    lines = [line for line in text.splitlines() if "wgmma.mma_async" in line]
    assert len(lines) == 8
    assert sum("}, {" in line for line in lines) == 4  # k16 four times, of 64 keys


def test_the_time_model_takes_it() -> None:
    found = cost(
        built("wide"), {**HEADS, "m": 16384, "n": 4096, "d": 128, "e": 128}, load_device("h200")
    )
    assert found.seconds > 0


def test_the_store_that_holds_a_wait_is_never_done() -> None:
    """It asks for the bits of a signalling NaN, of a sum: no numbers have such a sum."""
    program = Attention().program(attention(), Chosen(STARTS["fa3"]))
    text = emit(program)
    held = re.findall(
        r"add\.f32 (%\w+), .*\n\tmov\.b32 (%\w+), (%\w+);\n"
        r"\tsetp\.eq\.u32 (%\w+), (%\w+), 0x7fa5a5a5;\n\t@(%\w+) st\.shared\.u32 .*, (%\w+);",
        text,
    )
    assert len(held) == text.count("0x7fa5a5a5") == 2
    for total, bits, of, holds, compared, asked, stored in held:
        assert (total, bits, bits, holds) == (of, compared, stored, asked)


# made wrong: the order of statements


def dropped(kind: type, number: int) -> Callable[[Program], Program]:
    """Without the statement of a kind that is written as the number-th, of the consumer."""

    def change(program: Program) -> Program:
        consumer = next(r for r in program.roles if r.name == "consumer")
        few = [s for s, _ in walk(replace(program, roles=(consumer,))) if isinstance(s, kind)]
        return rewritten(program, lambda s: () if s is few[number] else s)

    return change


def written_early(program: Program) -> Program:
    """Round again before the wait for the product that reads the last rounding."""
    cvt = next(s for s, _ in walk(program) if isinstance(s, Do) and s.instruction.name == "cvt")
    waits = [s for s, _ in walk(program) if isinstance(s, WaitGroup)]
    return rewritten(program, lambda s: (cvt, s) if s is waits[-1] else s)


def read_early(program: Program) -> Program:
    """Read what a product reads before the wait: PTX leaves that undefined, too."""
    cvt = next(s for s, _ in walk(program) if isinstance(s, Do) and s.instruction.name == "cvt")
    (source,) = cvt.reads
    assert isinstance(source, Access)
    back = replace(cvt, write=source, reads=(cvt.write,))
    waits = [s for s, _ in walk(program) if isinstance(s, WaitGroup)]
    return rewritten(program, lambda s: (back, s) if s is waits[-1] else s)


def rounded_late(program: Program) -> Program:
    """Round after the fence of the product that reads it."""
    cvt = next(s for s, _ in walk(program) if isinstance(s, Do) and s.instruction.name == "cvt")
    fences = [s for s, _ in walk(program) if isinstance(s, Fence)]
    moved = rewritten(program, lambda s: () if s is cvt else s)
    return rewritten(moved, lambda s: (s, cvt) if s is fences[-1] else s)


ORDER: dict[str, tuple[Callable[[Program], Program], set[str], set[str]]] = {
    # the change, what the interpreter finds, what the judge finds
    "no wait for scores": (dropped(WaitGroup, 0), {"unwaited"}, {"race"}),
    "no wait for values": (dropped(WaitGroup, 1), {"unwaited", "race"}, {"race", "exit"}),
    "no fence of registers": (dropped(Fence, 1), {"unfenced"}, {"proxy"}),
    "rounded after the fence": (rounded_late, {"unfenced"}, {"proxy"}),
    "rounded before the wait": (written_early, {"unwaited"}, {"race"}),
    "read before the wait": (read_early, {"unwaited"}, {"race"}),
    "no wait for v": (dropped(Wait, 2), {"race", "stale", "unwritten_read"}, {"race", "unwritten"}),
}


@pytest.mark.parametrize("name", ORDER)
def test_a_wrong_order_is_found(name: str) -> None:
    change, seen, known = ORDER[name]
    program = change(built("one"))
    fault = verdict(program).fault
    assert fault is not None
    assert fault.kind in known
    found = {f.kind for f in check(program, sizes_of("one"), seeds=(0, 1))}
    assert found & seen


def test_a_group_that_nobody_closes_is_found() -> None:
    program = dropped(Commit, 1)(built("one"))
    assert not verdict(program).legal


# made wrong: values


def without_variant(variant: str) -> Callable[[Program], Program]:
    """Without the last statement of this arithmetic in the loop over keys."""

    def change(program: Program) -> Program:
        found = [s for s, around in walk(program)
                 if isinstance(s, Do) and s.variant == variant and len(around) > 1]  # fmt: skip
        return rewritten(program, lambda s: () if s is found[-1] else s)

    return change


def unshuffled(program: Program) -> Program:
    shuffles = [s for s, _ in walk(program) if isinstance(s, Do) and s.across]
    return rewritten(program, lambda s: () if s is shuffles[0] else s)


def other_lanes(program: Program) -> Program:
    return dos(program, "shfl.sync", lambda do: replace(do, across=4))


VALUES: dict[str, Callable[[Program], Program]] = {
    "sums not rescaled": without_variant("mul"),
    "a quad's maximum of two": unshuffled,
    "lanes of other rows": other_lanes,
}


@pytest.mark.parametrize("name", VALUES)
def test_a_wrong_value_is_found(name: str) -> None:
    """By the interpreter and by the emulated code."""
    program = VALUES[name](built("one"))
    assert {f.kind for f in check(program, sizes_of("one"), seeds=(0,))} & {
        "wrong_result", "unwritten_read",
    }  # fmt: skip
    assert not run(program, sizes_of("one"), arch="sm_90a", completions=("late",)).right


# made wrong: digits


def said(program: Program, law: str) -> list[str]:
    sizes = {**HEADS, "m": 4096, "n": 4096, "d": 64, "e": 64}
    case = Case.of(program, sizes, load_device("h200"))
    return [str(clause) for clause in LAWS[law].clauses(case) if not clause.holds]


def of_registers(change: Callable[[Access], Access]) -> Callable[[Program], Program]:
    """With the first factor in registers changed."""

    def other(do: Do) -> Do:
        first = do.reads[0]
        assert isinstance(first, Access)
        if first.buffer.level != "registers":
            return do
        return replace(do, reads=(change(first), *do.reads[1:]))

    return lambda program: dos(program, "wgmma", other)


def swapped(one: int, other: int) -> Callable[[Access], Access]:
    """With the ways of two modes of values in each other's place."""

    def change(access: Access) -> Access:
        value = list(access.value)
        value[one], value[other] = value[other], value[one]
        return replace(access, value=tuple(value))

    return change


DIGITS: dict[str, tuple[Callable[[], Program], str]] = {
    "quads first": (lambda: term(of_k="quad group pair"), "steps of k that threads hold"),
    "quads last": (lambda: term(of_k="group pair quad"), "steps of k that threads hold"),
    "pairs of groups": (
        lambda: of_registers(swapped(0, 2))(built("one")), "pairs of a first factor in registers",
    ),
    "lanes that hold it all": (
        lambda: of_registers(swapped(1, 2))(built("one")), "pairs of a first factor in registers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DIGITS)
def test_other_digits_are_refused_by_law_and_have_no_code(name: str) -> None:
    make, text = DIGITS[name]
    program = make()
    assert any(text in clause for clause in said(program, "wgmma_shape"))
    with pytest.raises(ProgramError, match=text):
        emit(program)


def test_keys_are_whole_slices() -> None:
    assert any("dimension 0 reaches 9" in text for text in said(term(keys=72), "inside"))


def test_a_shuffle_is_of_whole_warps() -> None:
    """The law says so, the judge does not call it legal, the interpreter finds it."""

    def alone(s: Statement) -> Statement:
        return Elect((s,)) if isinstance(s, Do) and s.across else s

    program = rewritten(built("one"), alone)
    assert any("no lanes beside it" in text for text in said(program, "issuers"))
    assert not verdict(program).legal
    assert any("one thread does" in doubt for doubt in assumptions(program))
    assert {f.kind for f in check(program, sizes_of("one"), seeds=(0,))} & {"deadlock", "shuffle"}
    some = dos(built("one"), "shfl.sync", lambda do: replace(do, lanes=(4, 8, 0)))
    assert not verdict(some).legal
    assert any("a part of a warp does" in doubt for doubt in assumptions(some))


@pytest.mark.parametrize("machine", ["hopper", "attention"])
def test_descriptors_are_made_before_a_loop_and_what_its_turn_waits_for(machine: str) -> None:
    """Behind a wait a product's tile is some bytes from one that is known; none is made in a turn.

    An address in a descriptor has 18 bits; a ring's stage is a step of 64 bits from the first.
    """
    of = attention() if machine == "attention" else matmul("bf16", layout="nt")
    turns = 0
    for chosen in {"attention": STARTS, "hopper": hopper.STARTS}[machine].values():
        lines = emit(MACHINES[machine].program(of, Chosen(chosen)), "sm_90a").splitlines()
        places = {line[:-1]: at for at, line in enumerate(lines) if line.endswith(":")}
        for end, line in enumerate(lines):
            turn = lines[places.get(line.rpartition("bra ")[2][:-1], end) : end]
            ready = False
            if "bra $kt" not in line or not any("wgmma.mma" in one for one in turn):
                continue
            for one in turn:
                ready = "wgmma.mma" not in one and (ready or "bra $wait" in one)
                assert "0x3ffff" not in one
                assert not (ready and "mad.wide.s32 %rd" in one), one
            turns += 1
    assert turns > 6
