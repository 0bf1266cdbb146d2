"""Time of blackwell: rates of products, what overlaps, and what a search finds."""

from __future__ import annotations

import pytest

from tests.blackwell_terms import B200, term
from tinygpu.machines.blackwell import Blackwell
from tinygpu.search.exact.best import rank
from tinygpu.search.time.cost import cost, features
from tinygpu.search.time.work import Event, agents
from tinygpu.space.space import Space
from tinygpu.term.machine import Value
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Program

LARGE = {"m": 8192, "n": 8192, "k": 8192}


def seconds(program: Program, sizes: dict[str, int]) -> float:
    return float(cost(program, sizes, B200).seconds)


def product_cycles(program: Program) -> float:
    """Cycles of the tensor cores of one product of 16 steps of k."""
    found = next(a for a in agents(program, B200, LARGE) if a.name == "multiplier")
    (product,) = (n for n in found.body if isinstance(n, Event) and n.kind == "product")
    return float(product.cycles["tensor"]) / 4


@pytest.mark.parametrize(
    ("start", "tile_m", "tile_n", "measured"),
    [
        ("ring", 128, 64, 48.6),
        ("ring", 128, 128, 64.6),
        ("ring", 128, 256, 128.6),
        ("small", 64, 256, 128.0),
        ("pair", 256, 128, 64.8),
        ("pair", 256, 256, 128.7),
        ("narrow pair", 128, 256, 64.7),
    ],
)
def test_products_take_what_was_measured_elsewhere(
    start: str, tile_m: int, tile_n: int, measured: float
) -> None:
    """SemiAnalysis' microbenchmarks of a B200; what shares the port of shared memory is fitted."""
    program = term(start, tile_m=tile_m, tile_n=tile_n, store_n=16)
    assert product_cycles(program) == pytest.approx(measured, rel=0.15)


def test_roles_come_in_the_order_of_what_they_give() -> None:
    """The epilogue takes no steps; it comes last, as it waits for the others' tile."""
    found = agents(term("pair"), B200, LARGE)
    assert [a.name for a in found] == ["producer", "multiplier", "epilogue"]
    assert found[2].body == ()
    assert all(a.steps == "trips" for a in found)


def test_a_second_accumulator_hides_the_epilogue() -> None:
    """With few steps a tile, storing would take as long as multiplying."""
    sizes = {"m": 8192, "n": 8192, "k": 512}
    one, two = (seconds(term("persistent", accumulators=n), sizes) for n in (1, 2))
    assert two < 0.9 * one


def test_a_pair_loads_less() -> None:
    """Two CTAs of 128 rows each: as a pair each loads half of y."""
    alone = term("persistent", tile_n=256, stages=3)
    paired = term("pair", tile_n=256, stages=3)

    def loaded(program: Program) -> float:
        (producer,) = (a for a in agents(program, B200, LARGE) if a.name == "producer")
        return sum(float(n.fetched_bytes) for n in producer.body if isinstance(n, Event))

    assert loaded(paired) == loaded(alone) * 2 / 3
    assert seconds(paired, LARGE) <= seconds(alone, LARGE)


def test_the_best_keeps_the_tensor_cores_busy() -> None:
    problem = Problem.of(matmul("bf16", layout="nt"), **LARGE)
    fixed: dict[str, Value | tuple[Value, ...]] = {"epilogue": "tma", "early": 0, "tile_k": 64}
    space = Space(Blackwell(), problem, B200, fixed=fixed)
    schedule = rank(space, 1).best[0].schedule
    assert (schedule["cta_pair"], schedule["tile_m"], schedule["tile_n"]) == (1, 256, 256)
    assert schedule["accumulators"] == 2


def test_tensor_memory_limits_the_ctas_of_an_sm() -> None:
    """Two accumulators of 256 columns are all that an SM has, however small the rings are."""
    sizes = {"m": 8192, "n": 8192, "k": 4096}
    for accumulators, n, want in ((1, 64, 3), (2, 128, 2), (2, 256, 1)):
        program = term(
            "persistent", tile_n=n, accumulators=accumulators, stages=2, store_n=32, epilogues=1
        )
        assert features(program, sizes, B200).launch.resident() == want
