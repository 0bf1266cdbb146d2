"""Attention's turns by mbarriers, its queries in registers, its weights in shared memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.attention_mutants import ran
from tests import hostile_attention as hostile
from tests.hopper_terms import rewritten
from tests.hostile_attention import base, changed
from tests.sample import all_by_turns, some
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.interpretation import interpret as emulated
from tinygpu.devices.device import load_device
from tinygpu.errors import ProgramError
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import check_schedule
from tinygpu.legality.mask_cover import mask_cover
from tinygpu.machines import MACHINES
from tinygpu.machines.attention import STARTS, Attention
from tinygpu.meaning.identity import computes
from tinygpu.term.builder import Kernel, trace
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import Problem, attention
from tinygpu.term.program import Access, Do, For, Program, Statement, walk
from tinygpu.term.schedule import Schedule

MACHINE, DEVICE = MACHINES["attention"], load_device("h200")
NEW = ("fa3 by mbarriers", "queries in registers", "weights through memory")
MUTANTS = (
    hostile.turns_that_nobody_gives,
    hostile.turns_of_another_step,
    hostile.turn_of_its_own,
    hostile.turns_in_a_ring_of_two,
    hostile.weights_without_a_fence,
    hostile.weights_of_a_warp,
    hostile.weights_under_a_product,
    hostile.weights_of_another_step,
    hostile.queries_released_by_a_warp,
    hostile.queries_read_before_they_are_there,
)


def term(name: str, mask: str = "causal", **other: Value) -> Program:
    return Attention().program(attention(mask=mask), Chosen({**STARTS[name], **other}))


def broken(values: dict[str, Value]) -> list[str]:
    d = int(values["depth"])
    problem = Problem.of(attention(), l=2, h=2, g=1, m=4096, n=4096, d=d, e=d)
    schedule = Schedule.of(MACHINE, values)
    return [v.law for v in check_schedule(schedule, MACHINE, problem, DEVICE)]


@all_by_turns(
    ("mask", ["none", "causal", "window:100:3"]),
    ("order", ["SsMELOPVv", "SVsMELvOP"]),
    ("name", NEW),
)
def test_it_is_proved(name: str, order: str, mask: str) -> None:
    """For every number of tiles and trips; and the mask is covered at every size."""
    program = term(name, mask, consumer_order=order)
    assert verdict(program).outcome == "legal"
    assert mask_cover(program)


@pytest.mark.parametrize("name", NEW)
def test_it_computes_its_operation(name: str) -> None:
    """In the ring and in floats, where queries, keys and dimensions fill no block."""
    sizes = {"l": 1, "h": 1, "g": 2, "m": 140, "n": 150, "d": 56, "e": 48}
    found = computes(base(name, 2), sizes)
    assert found, str(found)
    assert "mask cover proved" in str(found)


@pytest.mark.parametrize("name", NEW)
def test_the_interpreter_finds_nothing(name: str) -> None:
    """Under several orders of what is asynchronous."""
    assert ran(base(name, 2), orders=True)["outcome"] == "survives"


@pytest.mark.parametrize("make", MUTANTS, ids=lambda make: make.__name__)
def test_the_interpreter_finds_what_the_judge_refuses(make: Callable[[], Program]) -> None:
    """What the judge says is in ``test_attention_mutants.py``."""
    assert not verdict(make()).legal
    assert ran(make(), orders=True)["outcome"] == "fault"


@all_by_turns(
    ("mask", ["none", "causal"]),
    ("name", NEW),
)
def test_its_code_is_right(name: str, mask: str) -> None:
    sizes = {"l": 1, "h": 1, "g": 1, "m": 130, "n": 201, "d": 64, "e": 56}
    program = term(name, mask, depth=64, tile_n=64, consumers=2)
    found = emulated(program, sizes, arch="sm_90a", completions=("late",))
    assert found.findings == ()
    assert found.error < 0.6


@pytest.mark.parametrize(
    ("name", "other", "spills"),
    some(
        [
            ("queries in registers", {}, 0),
            ("fa3 by mbarriers", {}, 0),
            ("queries in registers", {"tile_n": 144}, 0),
            ("queries in registers", {"depth": 64, "consumers": 3, "tile_n": 96}, 0),
            ("queries in registers", {"turns": "mbarrier"}, 0),
            ("weights through memory", {}, 128),
        ],
        2,
        1,
    ),
)
def test_ptxas_has_registers(name: str, other: dict[str, Value], spills: int) -> None:
    """No product is serialised; what spills of a thread is less than so many bytes."""
    values = {**STARTS[name], **other}
    assert not broken(values)
    program = Attention().program(attention(mask="causal"), Chosen(values))
    cubin = assemble(emit(program, "sm_90a"), "sm_90a")
    assert "C75" not in cubin.messages
    assert cubin.spill_stores_bytes <= spills


@pytest.mark.parametrize(
    ("other", "law"),
    [
        ({"queries": "registers", "tile_n": 160}, "statistics"),
        ({"queries": "registers", "depth": 256, "tile_n": 64}, "statistics"),
        ({"queries": "registers", "stages_q": 2}, "queries_held"),
        ({"queries": "registers", "weights": "shared", "depth": 64}, "queries_held"),
        ({"queries": "registers", "consumers": 1}, "queries_held"),
        ({"weights": "shared"}, "weights_in_memory"),
        ({"weights": "shared", "consumers": 3, "tile_n": 144}, "weights_in_memory"),
        ({"turns": "mbarrier", "consumers": 3, "tile_n": 64}, "in_turn"),
    ],
)
def test_what_makes_no_sense_is_refused(other: dict[str, Value], law: str) -> None:
    assert law in broken({**STARTS["tma store"], **other})


def test_schedules_from_before_have_their_first_values() -> None:
    values = {n: v for n, v in STARTS["fa3"].items() if n not in ("queries", "weights")}
    assert Schedule.of(MACHINE, values) == Schedule.of(MACHINE, STARTS["fa3"])
    assert (STARTS["fa3"]["queries"], STARTS["fa3"]["weights"]) == ("shared", "registers")


def test_weights_of_another_turn_are_no_cover() -> None:
    """The ring in shared memory says of which turn they are."""
    found = mask_cover(hostile.weights_of_another_step())
    assert found.outcome == "wrong"
    assert "weights of another turn" in found.reason


def test_weights_stored_before_they_are_made_are_no_cover() -> None:
    """Registers then have those of the turn before."""

    def of(s: Statement) -> Statement:
        stores = isinstance(s, For) and any("stmatrix" in str(one) for one in s.body)
        return replace(s, body=s.body[::-1]) if isinstance(s, For) and stores else s

    other = changed(base("weights through memory"), rewritten(base("weights through memory"), of))
    found = mask_cover(other)
    assert found.outcome == "unproved"
    assert "does not make weights" in found.reason


def test_rows_of_other_threads_are_no_cover() -> None:
    """A fragment of queries whose halves are 16 rows apart, and not 8."""

    def of(s: Statement) -> Statement:
        if not isinstance(s, Do) or s.instruction.name != "ldmatrix":
            return s
        (read,) = s.reads
        assert isinstance(read, Access)
        value = tuple((2 * row, *rest) for row, *rest in read.value)
        return replace(s, reads=(replace(read, value=value),))

    other = changed(base("queries in registers"), rewritten(base("queries in registers"), of))
    assert not mask_cover(other)


def test_queries_go_through_the_port_once_a_tile() -> None:
    """By ldmatrix, four matrices at once; the first product then takes keys alone from there."""
    program = term("queries in registers")
    loads = [s for s, _ in walk(program) if isinstance(s, Do) and s.instruction.name == "ldmatrix"]
    assert [s.write.buffer.name for s in loads] == ["queries"]
    text = emit(program, "sm_90a")
    assert text.count("ldmatrix.sync.aligned.m8n8.x4.shared") == 8  # 64 rows, 128 columns: a warp
    assert "ldmatrix.sync.aligned.m8n8.x2" not in text


def test_a_digit_in_several_slabs_is_refused() -> None:
    """It would count on in the next line."""

    def forward(k: Kernel) -> None:
        with k.role("all", warpgroups=1):
            k.threads(warp=4, octet=8, quad=4)
            k.values(group=16, half=2, pair=2)
            tile = k.smem("tile", "bf16", high=64, col=128, swizzle=128)
            held = k.registers("held", "bf16", "group", "half", "pair")
            k.ldmatrix(held, tile["high = (warp half octet), col = (group quad pair)"])

    with pytest.raises(ProgramError, match="group: goes on in further slabs of tile; count it in"):
        trace("slabs", forward, attention())
