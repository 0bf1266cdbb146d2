"""The PTX of a term is held to the term's order: legal terms pass, and each order that is needed
and is not in the text is found."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.orders_held import summary
from benchmarks.peers import FOLDER
from tests.orders_dropped import POINTS, dropped, lines_dropped, term
from tests.sample import SOAK, draws, some
from tinygpu.codegen.emit import emit, statement_at
from tinygpu.codegen.rules import barriers
from tinygpu.codegen.run import held as module
from tinygpu.codegen.run.agreement import computes_as_emitted
from tinygpu.codegen.run.held import held, instances, least_arch
from tinygpu.devices.device import load_device
from tinygpu.errors import ProgramError
from tinygpu.machines import MACHINES
from tinygpu.space.space import Space
from tinygpu.term.operation import Problem, matmul

FEW = ("simt shared", "ampere plain", "hopper plain", "hopper groups plain", "blackwell small",
       "ampere_attention few keys")  # fmt: skip
"""Points of each machine and each kind of order; at a soak all are asked."""


@pytest.fixture
def fresh() -> Iterator[None]:
    """Forget what was run, before and after."""
    module._held.cache_clear()
    yield
    module._held.cache_clear()


@pytest.mark.parametrize("name", POINTS if SOAK else FEW)
def test_named_points_are_held(name: str) -> None:
    assert str(held(term(name))).startswith("its PTX keeps the term's order")


@pytest.mark.slow
@pytest.mark.parametrize("name", POINTS if SOAK else FEW)
def test_an_order_that_is_dropped_or_moved_is_found(name: str) -> None:
    """As the judge says of the term without it: what is needed is found, what is not is not."""
    first = sum(map(ord, name))
    for one in dropped(term(name), every := draws(32, 8), first % every):
        assert one.judged != "legal" or not one.found, one
        assert one.judged != "illegal" or one.found or one.excused, one


@pytest.mark.slow
@pytest.mark.parametrize("name", some(["simt shared", "simt multi-stage", "hopper plain"], 2))
def test_a_line_that_is_dropped_is_found(name: str) -> None:
    """What the emitter adds by itself included: each one but the last, where all roles end."""
    for one in [*lines_dropped(term(name), draws(6, 1))][: -1 if SOAK else None]:
        assert one[-1], one


def test_the_recorded_run() -> None:
    """What is needed is found in the run that is committed, and nothing else is accused."""
    tree = json.loads((FOLDER.parent / "orders_held.json").read_text(encoding="utf-8"))
    assert summary(tree["rows"]) == tree["summary"]
    assert tree["summary"]["illegal"] >= 500
    assert tree["summary"]["missed"] == tree["summary"]["accused"] == 0


def test_a_barrier_that_the_emitter_loses_is_told(
    fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the statements' text and both lines, by whoever emits it."""
    program = term("simt shared")
    monkeypatch.setattr(barriers, "sync", lambda *_: None)
    found = computes_as_emitted(program)
    assert not found
    assert found.wrong
    assert re.search(r"at '.*(ld|st)\.shared.*' and '.*(ld|st)\.shared.*', PTX line \d+: race: ",
                     str(found))  # fmt: skip


def test_a_skeleton_is_run_once(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of other sizes have the same order; another pipeline has not."""
    ran = []

    def run(*given: Any) -> tuple[()]:
        ran.append(given)
        return ()

    monkeypatch.setattr(module, "orders_of", run)
    once = len(instances(term("simt shared")))
    for name, count in (("shared", once), ("2-D registers", once), ("multi-stage", 2 * once)):
        held(term(f"simt {name}"))
        assert len(ran) == count


def test_what_cannot_be_run_is_not_clean(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    program = term("simt shared")

    def refuse(*_: Any) -> None:
        raise ProgramError("PTX line 7: no such form")

    monkeypatch.setattr(module, "orders_of", refuse)
    assert str(held(program)) == (
        "its PTX is not known to keep the term's order: PTX line 7: no such form"
    )


def test_lines_have_their_statements() -> None:
    program = term("hopper tma store")
    arch, sizes = least_arch(program), instances(program)[0]
    lines = emit(program, arch, sizes, unchecked=True).split("\n")
    told = [statement_at(program, arch, sizes, number) for number in range(1, len(lines) + 1)]
    for line, statement in zip(lines, told, strict=True):
        for opcode, word in (("try_wait", "wait "), ("expect_tx", "arrive full"),
                             ("wgmma.commit", "wgmma.commit_group"), ("stmatrix", "smem_c@"),
                             ("mbarrier.init", "")):  # fmt: skip
            if opcode in line and not line.startswith("\t//"):
                assert statement.startswith(word)
                assert bool(statement) == bool(word)


@settings(max_examples=draws(2, 40), deadline=None)
@given(st.data())
def test_legal_schedules_are_held(data: st.DataObject) -> None:
    """Drawn from the whole space."""
    machine = MACHINES[data.draw(st.sampled_from(["simt", "ampere", "hopper", "blackwell"]))]
    operation = matmul("f32") if machine.name == "simt" else matmul("bf16", layout="nt")
    device = load_device("b200" if machine.name == "blackwell" else "h100")
    problem = Problem.of(operation, m=512, n=512, k=512)
    space = Space(machine, problem, device)
    [schedule] = space.sample(np.random.default_rng(data.draw(st.integers(0, 999))), 1)
    assert str(held(schedule.program(machine, operation))).startswith("its PTX keeps")
