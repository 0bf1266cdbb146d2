"""Two judges of one term that share no code: the judge for every trip count, the interpreter
for one.  What the interpreter sees go wrong among threads, the graph has to reject."""

from __future__ import annotations

from typing import Any

import pytest

from tests.mutants import mutants
from tests.sample import SOAK, some
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.meaning.interpret import check, reduced
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Problem, matmul

AMONG_THREADS = {"race", "deadlock", "stale", "unwaited"}
TINY = {
    **LADDER["vectorised"], "tile_m": 16, "tile_n": 32, "tile_k": 8, "thread_m": 2, "thread_n": 4,
    "lanes_m": 8, "vector_a": 1, "vector_b": 1, "vector_shared": 2, "vector_c": 1,
}  # fmt: skip
POINTS: dict[str, dict[str, Any]] = {
    "none": {},
    "register": {"pipeline": "register", "stages": 2, "issue": 1},
    "cp.async 2": {"pipeline": "cp.async", "stages": 2},
    "cp.async 3": {"pipeline": "cp.async", "stages": 3, "issue": 1},
    "leaves": {"edges": "return"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", POINTS)
def test_what_the_interpreter_sees_the_graph_rejects(name: str) -> None:
    """Of a ragged tile and two steps more than stages; at a soak, of two tiles each way."""
    program = Simt().program(matmul("f32"), Chosen({**TINY, **POINTS[name]}))
    sizes = reduced(Problem.of(matmul("f32"), m=64, n=64, k=64), program)
    if not SOAK:
        sizes |= {"m": 9, "n": 29}
    missed, legal = [], 0
    for mutant, changed in (("unchanged", program), *some(mutants(program), 3)):
        if not verdict(changed).legal:
            continue  # whatever the interpreter sees, it is rejected
        legal += 1
        kinds = {f.kind for f in check(changed, sizes, seeds=(0, 1))} & AMONG_THREADS
        if kinds:
            missed.append((mutant, sorted(kinds)))
    assert not missed
    assert legal
