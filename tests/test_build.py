"""Many terms are built in parallel processes as one is built here."""

from __future__ import annotations

import base64
import pickle
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tinygpu.codegen.emit import emit
from tinygpu.codegen.run import build
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.build import Builders, Built, build_many
from tinygpu.deadline import Deadline
from tinygpu.errors import TinyGpuError
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.program import Program

ARCH = "sm_90a"


def _terms() -> list[Program]:
    return [Simt().program(matmul("f32"), Chosen(values)) for values in [*LADDER.values()][:5]]


def _wanted(terms: list[Program]) -> list[tuple[Program, str, None]]:
    return [(term, ARCH, None) for term in terms]


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_is_what_one_alone_is(jobs: int) -> None:
    terms, seen = _terms(), []
    found = build_many(_wanted(terms), jobs=jobs, progress=lambda *at: seen.append(at))
    assert seen == [(i + 1, len(terms)) for i in range(len(terms))]
    for term, built in zip(terms, found, strict=True):
        assert isinstance(built, Built)
        assert built.ptx == emit(term, ARCH)
        assert built.cubin == assemble(built.ptx, ARCH)


@pytest.mark.parametrize("jobs", [1, 2])
def test_one_that_fails_stands_in_its_place(jobs: int) -> None:
    terms = _terms()
    terms[3] = replace(terms[3], specialised=True)  # and no sizes are given
    found = build_many(_wanted(terms), jobs=jobs)
    assert [i for i, built in enumerate(found) if isinstance(built, TinyGpuError)] == [3]
    assert "\n" not in str(found[3])


def test_a_worker_that_dies_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_COMMAND", ("false",))
    assert all(isinstance(b, TinyGpuError) for b in build_many(_wanted(_terms()), jobs=2))


def test_a_worker_that_was_idle_when_others_are_given_up_serves_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed with the one that built, and its death is no schedule's."""
    fast, slow = _wanted(_terms()[:2])
    script = tmp_path / "builder.py"
    script.write_text(
        "import json, sys, time\n"
        "for line in sys.stdin:\n"
        f"    if {base64.b64encode(pickle.dumps(slow)).decode()!r} in line: time.sleep(60)\n"
        "    print(json.dumps({'error': 'x'}), flush=True)\n"
    )
    monkeypatch.setattr(build, "_COMMAND", (sys.executable, str(script)))
    soon = Deadline.within(60.0, time.monotonic)
    with Builders(2) as builders:
        some = builders.each([fast, slow], soon)
        assert str(next(some)) == "x"
        some.close()
        assert [str(one) for one in builders.each([fast, fast], soon)] == ["x", "x"]


def test_codes_are_those_that_are_assembled() -> None:
    """After a deadline none is asked for."""
    terms = _terms()
    terms[3] = replace(terms[3], specialised=True)  # and no sizes are given
    with Builders(2) as builders:
        found = list(builders.codes(_wanted(terms)))
        assert not list(builders.codes(_wanted(terms), Deadline.within(0.0, lambda: 1.0)))
    assert len(found) == len(terms)
    for number, (term, code) in enumerate(zip(terms, found, strict=True)):
        if number == 3:
            assert isinstance(code, TinyGpuError)
        else:
            cubin = assemble(emit(term, ARCH), ARCH)
            spilled = cubin.spill_stores_bytes + cubin.spill_loads_bytes
            assert code == (cubin.registers, spilled)
