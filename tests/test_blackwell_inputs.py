"""First inputs in tensor memory: tcgen05.cp puts them there, tcgen05.mma takes them from there.

What both interpreters compute, what ptxas takes, and what it costs.  Order: another file.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.blackwell_terms import B200, LARGE, broken, small, term
from tests.hopper_terms import dos
from tests.ptx_runs import run_matmul
from tests.ptx_runs import unchecked as emit
from tinygpu.codegen.run.assemble import assemble
from tinygpu.errors import ProgramError
from tinygpu.machines.blackwell import STARTS, Blackwell
from tinygpu.meaning.interpret import check
from tinygpu.search.time.work import Event, agents
from tinygpu.space.space import Space
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import (
    Access,
    Do,
    Program,
)
from tinygpu.term.tensor_memory import allocated_columns, first_columns, used_columns

SIZES = {"m": 200, "n": 72, "k": 200}
CP, MMA = "tcgen05.cp", "tcgen05.mma"
SMALL = small("a in tmem")


def test_a_lies_beside_the_sums() -> None:
    """bf16 inputs take a column for two steps of k, and as many stages as shared memory has."""
    program = term("a in tmem", tile_n=64, tile_k=128, stages=3)
    assert used_columns(program) == 2 * 64 + 3 * 64
    assert allocated_columns(program) == 512
    assert first_columns(program) == {"sums": 0, "held_x": 128}
    assert used_columns(term("persistent", tile_n=64, tile_k=128, stages=3)) == 128


@pytest.mark.parametrize(
    ("dtype", "layout", "tile_k", "k"),
    [
        ("bf16", "nn", 64, 136),
        ("bf16", "nt", 128, 264),
        ("f16", "nn", 64, 72),
        ("tf32", "nt", 64, 76),
        ("e4m3", "nt", 128, 272),
        ("e5m2", "nt", 128, 144),
    ],
)
def test_every_type_is_right(dtype: str, layout: str, tile_k: int, k: int) -> None:
    """By the term's interpreter and by the code's; ptxas takes the code without a spill."""
    values = {**STARTS["a in tmem"], "tile_k": tile_k, "stages": 2, "tile_n": 64, "store_n": 32}
    program = Blackwell().program(matmul(dtype, layout=layout), Chosen(values))
    sizes = {"m": 136, "n": 72, "k": k}
    assert broken(program) == {}
    assert check(program, sizes, seeds=(0,)) == ()
    text = emit(program, "sm_100a")
    assert text.count("\ttcgen05.cp.cta_group::1.128x256b [") == text.count("\ttcgen05.mma.")
    said = assemble(text, "sm_100a").messages
    assert "0 bytes spill stores, 0 bytes spill loads" in said
    assert "C75" not in said
    outcome = run_matmul(program, sizes, text=text, arch="sm_100a", clusters=2)
    assert outcome.right
    assert outcome.report.findings == ()


def test_a_random_schedule_is_right() -> None:
    operation = matmul("bf16", layout="nt")
    problem = Problem.of(operation, m=512, n=512, k=512)
    fixed: dict[str, Value | tuple[Value, ...]] = {"a_from": "tmem"}
    space = Space(Blackwell(), problem, B200, fixed=fixed)
    for schedule in space.sample(np.random.default_rng(3), 2):
        program = schedule.program(Blackwell(), operation)
        sizes = {"m": 136, "n": 72, "k": 72}
        assert check(program, sizes, seeds=(0,)) == ()
        outcome = run_matmul(program, sizes, arch="sm_100a", clusters=2, completion="random")
        assert outcome.right
        assert outcome.report.findings == ()


def test_code_without_one_copy_is_found() -> None:
    """Each of the four copies of a stage is needed."""
    lines = emit(SMALL, "sm_100a").splitlines(keepends=True)
    copies = [i for i, line in enumerate(lines) if "\ttcgen05.cp" in line]
    assert len(copies) == 4
    for i in copies:
        text = "".join((*lines[:i], *lines[i + 1 :]))
        assert run_matmul(SMALL, SIZES, text=text, arch="sm_100a", clusters=1).report.findings


def test_code_that_copies_elsewhere_is_found() -> None:
    """Descriptors and columns that do not go together give wrong sums."""
    text = emit(SMALL, "sm_100a")
    pairs = re.findall(r"128x256b (\[%w\d+\]), (%rd\d+)", text)
    (one, of), (other, _) = pairs[:2]
    swapped = text.replace(f"128x256b {one}, {of}", f"128x256b {other}, {of}")
    outcome = run_matmul(SMALL, SIZES, text=swapped, arch="sm_100a", clusters=1)
    assert not outcome.right or outcome.report.findings


def test_copies_that_have_no_code_are_refused() -> None:
    def turned(do: Do) -> Do:
        (read,) = do.reads
        assert isinstance(read, Access)
        first, second, *rest = read.value
        return replace(do, reads=(replace(read, value=(second, first, *rest)),))

    def half(do: Do) -> Do:
        return replace(do, values=(do.values[0], 64, *do.values[2:]))

    with pytest.raises(ProgramError, match="its rows have to be 128 neighbours"):
        emit(dos(SMALL, CP, turned), "sm_100a")
    with pytest.raises(ProgramError, match="32 B of 128 rows"):
        emit(dos(SMALL, CP, half), "sm_100a")


def test_a_copy_reads_shared_memory_instead_of_the_product() -> None:
    """What a stage's products and copies read together is the same; products alone read less."""

    def read(program: Program) -> list[float]:
        (found,) = (a for a in agents(program, B200, LARGE) if a.name == "multiplier")
        nodes = [n for n in found.body if isinstance(n, Event) and n.kind == "product"]
        return [float(n.cycles["smem"]) for n in nodes]

    (alone,) = read(term("persistent"))
    copied, product = read(term("a in tmem"))
    assert copied + product == pytest.approx(alone)
    assert product < alone
