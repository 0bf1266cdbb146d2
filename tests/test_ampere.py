"""The machine ampere: what its terms mean, which are legal, what a warp's instructions do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product as choices
from typing import Any

import numpy as np
import pytest

from benchmarks.registers import predicted_spill, register_limit
from tests.ampere_terms import changed, of_read, statements, term
from tests.hopper_terms import H200, LARGE, LAYOUTS, broken, dos
from tests.mutants import mutants
from tests.sample import by_turns, draws, some
from tinygpu.codegen.emit import emit
from tinygpu.codegen.rules.mma_sync import rows_of
from tinygpu.codegen.run.assemble import assemble
from tinygpu.devices.device import load_device
from tinygpu.errors import ProgramError
from tinygpu.isa.fragment import FRAGMENTS
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.isa.mma_sync import products
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import check_schedule
from tinygpu.legality.warp_laws import WARP_LAWS
from tinygpu.machines.ampere import STARTS, Ampere
from tinygpu.meaning.interpret import check
from tinygpu.meaning.touched import coordinates
from tinygpu.search.exact.best import rank
from tinygpu.search.time.cost import cost
from tinygpu.search.time.rates import matrices
from tinygpu.search.time.registers import register_estimate
from tinygpu.space.questions import prove
from tinygpu.space.space import Space
from tinygpu.term.access import bank_wavefronts
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Access, Do
from tinygpu.term.schedule import Schedule

RAGGED = {"m": 72, "n": 88, "k": 176}
NARROW: dict[str, dict[str, Any]] = {
    "tiles": {**STARTS["ring"], "tile_m": some((32, 64, 256), 2),
              "tile_n": some((32, 128, 256), 2), "tile_k": (32, 128), "warps_m": (1, 4),
              "warps_n": (1, 2), "stages": (2, 6), "issue": (0, 2), "ctas_per_sm": (1, 3)},
    "stores": {**STARTS["lines"], "tile_n": (32, 256), "warps_n": (1, 4), "tile_k": (32, 64),
               "vector_c": some((1, 2, 4, 8), 2, 1), "epilogue": ("direct", "smem"),
               "stages": some((2, 3, 4), 2),
               "edges": ("guard", "exact")},
    "parts": {**STARTS["parts of k"], "split_k": (1, 4, 16), "combine": ("st", "red"),
              "vector_c": (1, 2), "epilogue": ("direct", "smem"), "warps_m": (2, 4)},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype", "layout"),
    [
        (*of, layout)
        for of, layout in by_turns(
            [*((n, "bf16") for n in STARTS), ("plain", "tf32"), ("lines", "tf32")], LAYOUTS
        )
    ],
)
def test_starts_are_legal_and_mean_the_product(name: str, dtype: str, layout: str) -> None:
    problem = Problem.of(term(name, layout, dtype).operation, **LARGE)
    chosen = {**STARTS[name]}
    if dtype == "tf32":  # half as many numbers in the same bytes
        chosen |= {"tile_k": 32, "vector_c": min(4, int(chosen["vector_c"]))}
    assert check_schedule(Schedule.of(Ampere(), chosen), Ampere(), problem, H200) == ()
    small: Any = {"tile_m": 64, "tile_n": 64, "warps_m": 2, "warps_n": 2}
    program = term(name, layout, dtype, **small)
    assert verdict(program).legal
    sizes = {"m": 128, "n": 64, "k": 192} if name == "exact" else RAGGED
    assert check(program, sizes, seeds=(0, 1)) == ()


def test_no_product_at_all_where_k_is_short_of_the_stages() -> None:
    assert check(term("ring", tile_m=64, tile_n=64), {"m": 16, "n": 24, "k": 8}) == ()


def held(fragment: str, matrix: np.ndarray[Any, Any], values: tuple[int, ...]) -> Any:
    """Return the registers of a tile: (values, 32), in the order that ``values`` counts."""
    rows, columns = FRAGMENTS[fragment].places((matrix.shape[0], matrix.shape[1]))
    return matrix[rows, columns].T.reshape(values)


@pytest.mark.parametrize(("kind", "each"), [("", 2), ("_tf32", 1)])
def test_products_of_fragments_are_the_product(kind: str, each: int) -> None:
    """Two blocks of rows and three of columns, each held as the PTX manual's fragments say."""
    random = np.random.default_rng(0)
    a, b, c = (random.standard_normal(s) for s in ((32, 8 * each), (24, 8 * each), (32, 24)))
    # values count pair, half, half of k, columns, rows; numpy's axes the other way round
    left = held("mma_a" + kind, a, (2, 1, 2, 2, each, 32))
    right = held("mma_b" + kind, b, (1, 3, 2, 1, each, 32))
    sums = held("mma", c, (2, 3, 1, 2, 2, 32))
    whole = (2, 3, 2, 2, 2, 32)
    flat = [np.broadcast_to(x, whole).reshape(-1, 32) for x in (left, right, sums)]
    blocks = INSTRUCTIONS["mma.sync"].blocks_of("bf16" if each == 2 else "tf32")
    got = products(blocks, (2, 2, 2, 3, 2), *flat).reshape(whole)
    np.testing.assert_allclose(got[:, :, 0], held("mma", a @ b.T + c, (2, 3, 2, 2, 32)))
    np.testing.assert_array_equal(got[:, :, 0], got[:, :, 1])
    with pytest.raises(ProgramError, match="2 \\* 2 \\* 2 of a thread"):
        products(blocks, (2, 2, 1, 3, 2), *flat)
    with pytest.raises(ProgramError, match="whole warps"):
        products(blocks, (2, 2, 2, 3, 2), *(x[:, :24] for x in flat))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("tile", "deep"), [(32, 32), (64, 64), (256, 128)])
def test_rows_of_ldmatrix_meet_no_bank_twice(layout: str, tile: int, deep: int) -> None:
    """The rows that lanes give are those of the values; the model and the banks count alike."""
    program = term("plain", layout, tile_m=tile, tile_n=tile, tile_k=deep, warps_m=1, warps_n=2)
    reads = statements(program, "ldmatrix")
    assert {do.variant for do in reads} == {
        "" if x else "trans" for x in (layout[0] == "n", layout[1] == "t")
    }
    for do in reads:
        (source,) = do.reads
        assert isinstance(source, Access)
        access, threads, at_once = rows_of(do)
        rows = coordinates(access, (), threads, np.arange(64))[:, 0]
        cells = coordinates(source, do.values, do.threads, np.arange(64))
        assert at_once == 4
        turned = do.variant == "trans"
        for lane, i in choices(range(32, 64), range(4)):
            thread, value = np.divmod(lane, 4), 2 * i
            first = cells[:, value, lane].tolist()
            start = rows[:, 32 + 8 * i + (2 * (lane % 4) if turned else thread[0] % 8)].tolist()
            along = 1 - int(source.buffer.stride[1] != 1)
            start[along] += lane // 4 % 8 if turned else 2 * (lane % 4)
            assert first == start
        for swizzle in (source.buffer.swizzle, (0, 0, 0)):
            buffer = replace(source.buffer, swizzle=swizzle)
            offsets = np.asarray(buffer.layout(tuple(rows)))[32:].reshape(4, 8)
            lanes = (2 * offsets[:, :, None] + 4 * np.arange(4)).reshape(4, 32)
            found = replace(do, reads=(replace(source, buffer=buffer),))
            count, wavefronts = matrices(found)
            assert bank_wavefronts(lanes, 4).tolist() == [int(wavefronts)] * 4
            assert (int(wavefronts) == 1) == (swizzle[0] > 0)
        assert count == np.prod(do.values) // 2


WRONG: dict[str, tuple[str, str, Callable[[Do], Do]]] = {
    "lanes": ("ldmatrix_rows", "ldmatrix", lambda d: replace(d, threads=(8, 4, *d.threads[2:]))),
    "three": ("ldmatrix_rows", "ldmatrix", lambda d: replace(d, values=(1, *d.values[1:]))),
    "quads": ("ldmatrix_rows", "ldmatrix", of_read(0, thread=lambda t: ((0, 4), *t[1:]))),
    "columns": ("ldmatrix_rows", "ldmatrix", changed(variant="trans")),
    "rows": (
        "ldmatrix_rows",
        "ldmatrix",
        of_read(0, origin=lambda o: (o[0], o[1] + 4)),
    ),
    "steps": ("ldmatrix_rows", "ldmatrix", of_read(0, value=lambda v: (v[0], (0, 4), *v[2:]))),
    "order": ("mma_shape", "mma.sync", of_read(0, value=lambda v: (v[0], v[2], v[1], *v[3:]))),
    "blocks": ("mma_shape", "mma.sync", lambda d: replace(d, values=(2, 2, 1, *d.values[3:]))),
    "shared": ("mma_shape", "mma.sync", of_read(1, value=lambda v: (*v[:4], (1, 0, 0)))),
    "one sum": (
        "mma_shape",
        "mma.sync",
        lambda d: replace(
            d, write=replace(d.write, value=(*d.write.value[:3], *[(0, 0, 0, 0)] * 2))
        ),
    ),
    "others": (
        "mma_shape",
        "mma.sync",
        of_read(2, buffer=lambda b: replace(b, name="others")),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_laws_of_a_warp_break(name: str) -> None:
    law, instruction, change = WRONG[name]
    program = term("ring")
    assert broken(program) == {}
    known = {b.name for b in program.buffers}
    used = [a.buffer for s in statements(program, instruction) for a in change(s).accesses]
    more = {b.name: b for b in used if b.name not in known}
    wider = replace(program, buffers=(*program.buffers, *more.values()))
    assert law in broken(dos(wider, instruction, change))


def test_every_law_of_a_warp_is_broken_by_something() -> None:
    ours = set(WARP_LAWS) - {"stmatrix_rows"}  # which hopper_wrong has
    assert {law for law, _, _ in WRONG.values()} == ours


def test_mma_needs_an_ampere() -> None:
    old = replace(H200, arch="sm_75")
    problem = Problem.of(matmul("bf16", layout="nt"), **LARGE)
    found = check_schedule(Schedule.of(Ampere(), STARTS["plain"]), Ampere(), problem, old)
    assert [v.law for v in found] == ["architecture"]


@pytest.mark.parametrize("name", ["plain", pytest.param("lines", marks=pytest.mark.slow)])
def test_what_the_interpreter_sees_of_mutants_the_graph_rejects(name: str) -> None:
    small: Any = {"tile_m": 32, "tile_n": 32, "warps_m": 1, "warps_n": 1}
    program = term(name, **small)
    sizes = {"m": 32, "n": 40, "k": 72 if name == "plain" else 264}
    among = {"race", "deadlock", "stale", "unwaited"}
    seen, missed = 0, []
    for mutant, wrong in some(mutants(program), 5):
        kinds = {f.kind for f in check(wrong, sizes, seeds=(0,))} & among
        seen += bool(kinds)
        if kinds and verdict(wrong).legal:
            missed.append((mutant, sorted(kinds)))
    assert not missed
    assert seen > 3


@pytest.mark.parametrize("name", NARROW)
def test_a_space_is_its_legal_schedules(name: str) -> None:
    output = "f32" if name == "parts" else None
    problem = Problem.of(matmul("bf16", output, "nt"), **LARGE)
    space = Space(Ampere(), problem, H200, fixed=NARROW[name])
    legal = set()
    for values in choices(*space.values.values()):
        chosen = dict(zip(space.values, values, strict=True))
        if all(
            r.holds for r in Ampere().requires(problem.operation, Chosen(chosen))
        ) and not broken(Ampere().program(problem.operation, Chosen(chosen)), problem.sizes):
            legal.add(Schedule("ampere", tuple(chosen.items())))
    assert 0 < len(legal) < space.raw
    assert set(space) == legal


def test_random_schedules_are_right_assemble_and_do_not_spill() -> None:
    """What the estimate of registers allows, ptxas takes without a spill."""
    problem = Problem.of(matmul("bf16", layout="nn"), m=1024, n=1024, k=1024)
    fixed: Any = {"split_k": 1, "edges": "guard", "tile_m": (32, 64, 128), "ctas_per_sm": (1, 2)}
    space = Space(Ampere(), problem, H200, fixed=fixed)
    assembled = 0
    for schedule in space.sample(np.random.default_rng(3), draws(2, 4)):
        program = schedule.program(Ampere(), problem.operation)
        assert verdict(program).legal
        assert check(program, {"m": 40, "n": 264, "k": 136}, seeds=(0,)) == ()
        if not predicted_spill(program, H200):
            cubin = assemble(emit(program, "sm_80"), "sm_80")
            assert not cubin.spills
            assert cubin.registers <= register_limit(program, H200)
            assembled += 1
    assert assembled > draws(0, 1)


def test_ordinary_warps_have_enough_registers_and_too_large_ones_do_not() -> None:
    assert not predicted_spill(term("wide"), H200)
    assert float(register_estimate(term("wide", warps_n=2))) > 255
    assert predicted_spill(term("wide", ctas_per_sm=2), H200)


def test_time_is_that_of_the_tensor_cores_at_best() -> None:
    """A100's are busy all the time that its peak allows; wider tiles ask L2 for less."""
    a100 = load_device("a100")
    deep, plain = (cost(term(n), LARGE, a100) for n in ("deep", "plain"))
    peak = 2 * 4096**3 / (a100.tensor_flop_per_cycle_per_sm * a100.sms * a100.clock_hz)
    assert deep.parts["tensor"] == pytest.approx(peak, rel=0.2)
    assert peak < deep.seconds < plain.seconds
    hopper = cost(term("deep"), LARGE, H200)
    rate = H200.tensor_flop_per_cycle_per_sm * H200.sms * H200.clock_hz
    assert hopper.parts["tensor"] > 1.4 * 2 * 4096**3 / rate


def test_the_best_of_the_model_multiplies_in_large_tiles() -> None:
    problem = Problem.of(matmul("bf16", layout="nt"), **LARGE)
    (best,) = rank(Space(Ampere(), problem, H200), 1).best
    decisions: Any = dict(best.schedule.decisions)
    assert decisions["tile_m"] * decisions["tile_n"] >= 128 * 128
    assert best.seconds < cost(term("ring"), LARGE, H200).seconds


def test_instructions_of_a_warp_are_declared() -> None:
    for name in ("ldmatrix", "mma.sync"):
        assert INSTRUCTIONS[name].issuer == "warp"
        assert INSTRUCTIONS[name] in Ampere.instructions


def test_proofs_tables_and_one_schedule_at_a_time_agree() -> None:
    """No legal tile of warps of its own has more than 64 x 128 sums."""
    problem = Problem.of(matmul("bf16", layout="nn"), **LARGE)
    fixed = {"epilogue": "smem", "combine": "st", "edges": "guard"}
    space = Space(Ampere(), problem, H200, fixed=fixed)
    claim = "tile_m * tile_n <= 64 * 128 * warps_m * warps_n"
    assert prove(space, claim).outcome == "proved"
    assert prove(space, "stages <= 4").outcome == "refuted"
    (batch,) = space.batches()
    rng = np.random.default_rng(1)
    seen = set()
    for i in range(20):
        if i % 2:
            values = dict(space.schedule(batch, space.points(batch, rng, 1)[0]).decisions)
        else:
            values = {n: v[rng.integers(len(v))] for n, v in space.values.items()}
        point = [space.values[n].index(values[n]) for n in batch.axes]
        holds = all(t.holds[tuple(point[a] for a in t.axes)] for t in batch.tables)
        assert space.contains(Schedule.of(Ampere(), values)) == holds
        seen.add(bool(holds))
    assert seen == {True, False}
