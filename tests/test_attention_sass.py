"""The machine code of attention: what the term puts between two waits stands between them there."""

from __future__ import annotations

import re
from math import prod

import pytest

from tests.sample import some
from tinygpu.codegen.emit import Emitter, emit
from tinygpu.codegen.run.assemble import assemble, every_ptxas, find_nvdisasm, sass
from tinygpu.errors import AssemblyError
from tinygpu.machines import MACHINES
from tinygpu.machines.attention import STARTS, Attention, consumer_orders
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import attention
from tinygpu.term.program import Block, Body, Do, For, Program, WaitGroup
from tinygpu.term.schedule import Schedule

CASES = (
    ("fa3", "none"), ("fa3 by mbarriers", "none"), ("tma store", "causal"),
    ("queries in registers", "causal"), ("wide", "none"),
)  # fmt: skip
"""Named points whose second product flies under the exponentials, and masks."""


def missing() -> str:
    """Say which tool there is none of."""
    try:
        every_ptxas()
    except AssemblyError as error:
        return str(error)
    none = "nvdisasm is not installed (pip install nvidia-cuda-nvdisasm)"
    return "" if find_nvdisasm() else none


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "tools are there")


def program(point: str, mask: str) -> Program:
    machine = MACHINES["attention"]
    return Schedule.of(machine, STARTS[point]).program(machine, attention("bf16", mask=mask))


def waits(body: Body) -> list[int]:
    """The pending groups of the waits for products in some statements."""
    inside = [s.body if isinstance(s, Block) else (s,) for s in body]
    return [
        s.pending
        for part in inside
        for s in part
        if isinstance(s, WaitGroup) and s.group == "wgmma"
    ]


def of_term(body: Body) -> int:
    """How many exponentials a thread computes between the waits of a step, as the term says."""
    for s in body:
        if isinstance(s, For) and 1 in waits(s.body):
            places = [i for i, one in enumerate(s.body) if waits((one,))]
            first = next(i for i in places if waits((s.body[i],)) == [1])
            last = next(i for i in places if i > first + 1)
            some = [d for d in s.body[first:last] if isinstance(d, Do) and d.variant == "ex2.ftz"]
            return sum(prod(d.values) for d in some)
        if isinstance(s, Block) and (found := of_term(s.body)):
            return found
    return 0


def of_code(text: str) -> int:
    """How many exponentials stand between the waits of a step in the machine code."""
    after = text.split("WARPGROUP.DEPBAR.LE gsb0, 0x1")[1]
    return len(re.findall(r"MUFU\.EX2", after.split("WARPGROUP.DEPBAR.LE gsb0, 0x0")[0]))


@pytest.mark.parametrize(("point", "mask"), some(CASES, 2))
def test_the_exponentials_stand_under_the_second_product(point: str, mask: str) -> None:
    """ptxas neither moves the wait up, nor serialises products (C75xx), nor spills."""
    term = program(point, mask)
    code = assemble(emit(term, "sm_90a"), "sm_90a")
    assert "(C75" not in code.messages
    assert not code.spills
    wanted = of_term(term.roles[0].body)
    assert wanted > int(STARTS[point]["tile_n"]) // 2  # a thread's scores, and what shrinks
    assert of_code(sass(code.bytes)) == wanted


def test_without_its_pin_the_wait_moves_above_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Emitter, "_hold", lambda *_: None)
    code = assemble(emit(program("fa3", "none"), "sm_90a"), "sm_90a")
    assert of_code(sass(code.bytes)) == 0


ORDERS = consumer_orders()
LEFT_OUT = ("SsvMELOPV", "SsvMEOPVL", "SvsMELOPV", "SvsMEOPVL")
"""All orders in which a product is in flight at a step's end, but for what nothing tells apart."""


def messages(order: str) -> str:
    machine = MACHINES["attention"]
    chosen = Chosen({**STARTS["longest first"], "consumer_order": order})
    term = machine.program(attention("bf16", mask="causal"), chosen)
    code = assemble(emit(term, "sm_90a"), "sm_90a")
    assert not code.spills
    return code.messages


@pytest.mark.parametrize("order", some(ORDERS.values, 9))
def test_no_order_is_serialised(order: str) -> None:
    assert "(C75" not in messages(order)


@pytest.mark.parametrize("order", some(Attention.producer_order.values, 3, 1))
def test_no_order_of_loads_serialises_products(order: str) -> None:
    chosen = Chosen({**STARTS["zigzag"], "producer_order": order})
    term = Attention().program(attention("bf16", mask="causal"), chosen)
    assert "(C75" not in assemble(emit(term, "sm_90a"), "sm_90a").messages


def test_those_in_flight_at_the_end_are_left_out() -> None:
    left = {order for order, same in ORDERS.same.items() if not same}
    assert {*LEFT_OUT} <= left
    assert {ORDERS.standing_for(order) for order in left} == {*LEFT_OUT}


@pytest.mark.parametrize("order", some(LEFT_OUT, 2))
def test_orders_that_are_left_out_are_refused(order: str) -> None:
    """Under a causal mask ptxas waits for the product there (C7517), or serialises all (C7514)."""
    with pytest.raises(AssemblyError, match="C75"):
        messages(order)
