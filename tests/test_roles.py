"""Code of several roles: each thread does what the term says, and nothing that it does not say."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hopper_terms import H200, LARGE, LAYOUTS, term
from tests.ptx_runs import unchecked as emit
from tests.ptx_threads import run
from tests.sample import by_turns, draws, some
from tests.term_threads import Thread, once, parameters_of, seen
from tinygpu.codegen.emit import signature
from tinygpu.codegen.kernel.smem import smem_plan
from tinygpu.codegen.run.assemble import Cubin, assemble
from tinygpu.cores import cores
from tinygpu.errors import ProgramError
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.space.space import Space
from tinygpu.term.expression import value
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Operation, Problem, matmul
from tinygpu.term.program import (
    Affine,
    Arrive,
    Axis,
    Barrier,
    Elect,
    For,
    ForTile,
    Program,
    Role,
    Statement,
    Sync,
    Wait,
    var,
)

SIZES = {"m": 300, "n": 520, "k": 136}
POINTS = [
    (start, layout)
    for start in STARTS
    for layout in LAYOUTS
    if all(r.holds for r in Hopper().requires(matmul("bf16", layout=layout), Chosen(STARTS[start])))
]
GOLDEN: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("plain", {"tile_n": 16, "store_n": 16}),
    "cluster": ("cluster", {"tile_n": 32, "store_n": 16, "consumers": 2, "raster": 2}),
    "pingpong": ("pingpong", {"tile_n": 16, "store_n": 16, "swap": 1, "cluster_n": 2}),
}
OPERATIONS = (
    matmul("bf16", layout="tt"),
    matmul("e4m3", "bf16", "nt"),
    matmul("f16", "f32", "nn", batched=True),
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ptxas runs: nothing comes from the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def agree(program: Program, text: str, thread: Thread) -> None:
    told, did = once(thread.told()), once(seen(thread.did(text), program))
    first = next((i for i, (a, b) in enumerate(zip(told, did, strict=False)) if a != b), None)
    assert first is None, (thread, told[first], did[first])
    assert len(told) == len(did)


def threads_of(program: Program) -> list[int]:
    """The first and the last thread of each role's copy, and one between."""
    found, first = [], 0
    for role in program.roles:
        for copy in range(role.copies):
            start = first + copy * role.threads
            found += [start, start + 17, start + role.threads - 1]
        first += role.threads * role.copies
    return found


@pytest.mark.parametrize(("start", "layout"), some(POINTS, 2))
def test_a_thread_does_what_the_term_says(start: str, layout: str) -> None:
    """Waits, arrivals, loads, products, stores: where, of which phase, in the term's order."""
    program = term(start, layout)
    text = emit(program)
    for number in threads_of(program):
        for rank in range(Thread(program, SIZES, 0).ctas):
            agree(program, text, Thread(program, SIZES, number, rank, 1, 3))


@pytest.mark.parametrize(("changes", "operation"), by_turns(
    [
        {"cluster_n": 2, "cluster_m": 1}, {"cluster_m": 2, "cluster_n": 2},
        {"cluster_m": 4, "tile_n": 256},
        {"cluster_m": 1, "cluster_n": 4, "tile_m": 256},
        {"cluster_m": 2, "cluster_n": 1, "cluster_k": 2, "persistent": 0, "early": 0},
        {"cluster_m": 1, "cluster_n": 2, "cluster_k": 4, "persistent": 0},
    ],
    OPERATIONS,
), ids=str)  # fmt: skip
def test_clusters_batches_and_types(operation: Operation, changes: dict[str, Any]) -> None:
    """Every CTA of a cluster sends its part to the right ones; matrices of a batch follow."""
    fixed = {"tile_n": 128, "tile_k": 128, "stages": 2, "store_n": 32}
    point = Chosen({**STARTS["cluster"], **fixed, **changes})
    assert all(r.holds for r in Hopper().requires(operation, point))
    program = Hopper().program(operation, point)
    text = emit(program)
    sizes = {**SIZES, **({"l": 3} if "l" in operation.axes else {})}
    for number in threads_of(program)[::3]:
        for rank in range(Thread(program, SIZES, 0).ctas):
            agree(program, text, Thread(program, sizes, number, rank, 1, 2))


@cache
def whole(operation: Operation) -> Space:
    return Space(Hopper(), Problem.of(operation, **LARGE), H200)


@settings(max_examples=draws(10, 25))
@given(
    st.integers(0, 2**32), st.sampled_from(LAYOUTS), st.sampled_from((None, "f32")),
    st.tuples(st.integers(1, 700), st.integers(1, 700), st.integers(1, 300)), st.data(),
)  # fmt: skip
def test_so_does_one_of_any_schedule(
    seed: int, layout: str, output: str | None, extents: tuple[int, int, int], data: Any
) -> None:
    operation = matmul("f16", output, layout)
    sizes = dict(zip("mnk", extents, strict=True))
    (schedule,) = whole(operation).sample(np.random.default_rng(seed), 1)
    program = schedule.program(Hopper(), operation)
    text = emit(program)
    ctas = Thread(program, sizes, 0).ctas
    for number in threads_of(program)[::3]:
        rank, clusters = data.draw(st.integers(0, ctas - 1)), data.draw(st.integers(1, 5))
        cluster = data.draw(st.integers(0, clusters - 1))
        if not program.persistent:  # one for each tile
            rows, columns = program.grid_extents(sizes)
            cluster = data.draw(st.integers(0, rows * columns - 1))
        agree(program, text, Thread(program, sizes, number, rank, cluster, clusters))


def assembled(texts: list[str]) -> list[Cubin]:
    with ThreadPoolExecutor(cores()) as pool:
        return list(pool.map(lambda text: assemble(text, "sm_90a"), texts))


def test_they_assemble_without_spills() -> None:
    """For sm_90a; ptxas serialises no product and ignores no register count (it would raise)."""
    cubins = assembled([emit(term(*point)) for point in POINTS])
    for point, cubin in zip(POINTS, cubins, strict=True):
        assert not cubin.spills, point
        program = term(*point)
        assert cubin.registers * program.threads * program.ctas_per_sm <= 65536


@pytest.mark.parametrize(
    ("output", "cluster_k"), some([(None, 1), ("f32", 1), ("f32", 8), ("f32", 4)], 2)
)
def test_the_widest_sums_assemble(output: str | None, cluster_k: int) -> None:
    """What the machine takes for sums leaves ptxas the registers that it wants."""
    operation, texts = matmul("bf16", output, "nt"), []
    for consumers, ctas_per_sm in ((1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (3, 2)):
        for epilogue, swap in (("tma", 0), ("direct", 0), ("direct", 1)):
            for tile_n in map(int, reversed(Hopper.decisions()["tile_n"].values)):
                if tile_n % (8 * cluster_k) or tile_n > 256:  # a product's, and no consumer's part
                    continue
                wide = tile_n // cluster_k
                point = {
                    **STARTS["persistent"], "tile_m": 64 * consumers, "tile_n": tile_n,
                    "consumers": consumers, "ctas_per_sm": ctas_per_sm, "epilogue": epilogue,
                    "swap": swap, "store_n": min(wide & -wide, 16 if epilogue == "tma" else 256),
                    "stages": 2,
                    "store_stages": 1, "cluster_k": cluster_k,
                    "persistent": int(cluster_k == 1 and (ctas_per_sm == 1 or consumers == 1)),
                }  # fmt: skip
                if all(r.holds for r in Hopper().requires(operation, Chosen(point))):
                    texts.append(emit(Hopper().program(operation, Chosen(point))))
                    break
    assert len(texts) == 18
    for cubin in assembled(texts):
        assert not cubin.spills


@pytest.mark.slow
def test_any_candidate() -> None:
    """Whatever the space holds is taken; a text is made in less than 100 ms of CPU time."""
    operation = matmul("bf16", layout="nt")
    drawn = whole(operation).sample(np.random.default_rng(7), draws(30, 100))
    found = [s.program(Hopper(), operation) for s in drawn]
    before = time.process_time()
    texts = [emit(program) for program in found]
    assert (time.process_time() - before) / len(texts) < 0.1
    assembled(texts)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_text_is_as_it_was(name: str, golden: Callable[[str, str], None]) -> None:
    """A change of the emitted text is seen and wanted: ``pytest --update-golden`` writes it."""
    start, changes = GOLDEN[name]
    text = emit(term(start, **changes))
    golden(f"hopper/{name}.ptx", text)
    assert assemble(text, "sm_90a").registers > 0


@pytest.mark.parametrize("start", STARTS)
def test_one_text_serves_every_shape(start: str) -> None:
    program = term(start)
    texts = {emit(program, sizes=s) for s in (SIZES, {"m": 1, "n": 4096, "k": 8})}
    assert texts == {emit(program)}
    declared = re.findall(r"\.param \.u32 n_(\w+)", texts.pop())
    assert tuple(declared) == signature(program)


def hand(*roles: Role, stages: tuple[int, ...], **how: Any) -> Program:
    barriers = tuple(Barrier(f"ring{i}", n) for i, n in enumerate(stages))
    return Program(
        name="hand",
        operation=matmul("bf16"),
        buffers=(),
        parameters=(("trips", value("k")),),
        grid=(Axis("br", value("m")), Axis("bc", value("n"))),
        roles=roles or (Role("all", 32, (Sync(),)),),
        barriers=barriers,
        **how,
    )


@settings(max_examples=120)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(-9, 9), st.booleans()), min_size=1,
             max_size=5),
    st.integers(1, 3), st.integers(0, 2), st.integers(1, 4), st.integers(1, 9), st.integers(1, 5),
)  # fmt: skip
def test_positions_in_rings(
    stages: list[int], uses: list[tuple[int, int, bool]], copies: int, first: int, step: int,
    tiles: int, trips: int,
) -> None:  # fmt: skip
    """Stage and parity are floor and mod of the index, at any depth, distance, start and step."""
    program = hand(stages=tuple(stages))
    depth = max(9, *stages)  # an index is not negative by more than the ring's uses before it

    def touch(which: int, far: int, *, waits: bool, index: Affine) -> Statement:
        barrier = program.barriers[which % len(stages)]
        at = index + max(far, -barrier.stages)
        return Wait(barrier, at) if waits else Arrive(barrier, at + depth, to="cluster")

    def all_of(index: Affine) -> tuple[Statement, ...]:
        return tuple(touch(which, far, waits=waits, index=index) for which, far, waits in uses)

    inner = var("t", "trips") + var("k")
    last = var("t", "trips") + var("trips") + max(1, first)
    body = (
        *(touch(w, far, waits=waits, index=var("t")) for w, far, waits in uses[:2]),
        For("k", "trips", all_of(inner), start=first),
        For("j", 2, all_of(last + var("j", -1)), unrolled=True),
        For("k", "trips", all_of(var("k")), start=first),
        For("q", 2, (For("k", 3, all_of(var("q", 3) + var("k"))), *all_of(var("q")))),
        For("q", 3, (For("k", 2, all_of(var("q") + var("k"))),)),
    )
    loop = ForTile("t", "i", body, var("w") if copies > 1 else Affine(), step)
    role = Role("all", 32, (loop,), copies, "w")
    program = replace(
        program, roles=(role,), persistent=True, cluster=(("x", 2), ("y", 1)), raster=2
    )
    text = emit(program)
    sizes = {"m": tiles, "n": 1, "k": trips}
    for copy in range(copies):
        for clusters in (1, 2):
            agree(program, text, Thread(program, sizes, 32 * copy, 1, 0, clusters))


@pytest.mark.parametrize(
    ("pattern", "instead"),
    [
        (r"\t@%p\d+ xor\.b32 .*\n", ""),  # the parity does not turn
        (r"(setp\.eq\.s32 %p\d+, %r\d+), 2;", r"\1, 3;"),  # a stage too many
        (r"(and\.b32 %r\d+, %r\d+), 0x3ffff;", r"\1, 0xffffffff;"),  # the rank in a descriptor
        (r"0x40000040", "0x40000080"),  # eight rows lie too far apart
        (r"(add\.s64 %rd\d+, %rd\d+), 128;", r"\1, 64;"),  # k steps by half
        (r"(wgmma.*), 1, 1;", r"\1, 0, 1;"),  # a is not turned
        (r"(setp\.ne\.u32 %p\d+, 1), 0;", r"\1, 1;"),  # sums start anew at each slice
        (r"(mapa.*), 1;", r"\1, 0;"),  # only one CTA is told
        (r"(cp\.async\.bulk\.wait_group\.read) 1;", r"\1 0;"),
        (r"(shl\.b32 %r\d+, %r\d+), 8;", r"\1, 7;"),  # a tile's first row
    ],
)
def test_a_wrong_text_is_seen(pattern: str, instead: str) -> None:
    """The comparison of text and term fails where one of them is another."""
    program = term("cluster", "tn", stages=2, in_flight=1)
    text = emit(program)
    wrong = re.sub(pattern, instead, text)
    assert wrong != text

    def agree_all(given: str) -> None:
        for number in threads_of(program):
            agree(program, given, Thread(program, {**SIZES, "k": 320}, number, 1, 0, 2))

    agree_all(text)
    with pytest.raises(AssertionError):
        agree_all(wrong)


@pytest.mark.parametrize("start", ["two consumers", "pingpong", "plain", "cluster"])
def test_registers_move_from_producer_to_consumers(start: str) -> None:
    """setmaxnreg raises what the launch gives, or lowers it, once for each role that asks."""
    program = term(start)
    text = emit(program)
    at_launch = min(255, 65536 // program.threads // program.ctas_per_sm // 8 * 8)
    first, total = 0, 0
    for role in program.roles:
        found = [e for e in run(text, first, parameters_of(program, SIZES))
                 if e.opcode.startswith("setmaxnreg")]  # fmt: skip
        assert len(found) == bool(role.registers)
        for event in found:
            assert event.operands == (role.registers,)
            assert (".inc." in event.opcode) == (role.registers > at_launch)
        first += role.threads * role.copies
        total += role.threads * role.copies * (role.registers or at_launch)
    assert total <= 65536


@pytest.mark.parametrize("start", STARTS)
def test_shared_memory_is_apart(start: str) -> None:
    """Buffers, their stages and copies, and barriers overlap nowhere; tiles start at 1 KiB."""
    program = term(start)
    plan, taken = smem_plan(program), np.zeros(smem_plan(program).total_bytes, int)
    for b in program.buffers:
        for copy in range(b.copies if b.level == "smem" else 0):
            for stage in range(b.stages):
                at = plan.start[b.name] + copy * b.stages * b.stage_bytes
                at += stage * plan.stage_bytes[b.name]
                assert at % 1024 == 0
                taken[at : at + b.stage_bytes] += 1
    for barrier in program.barriers:
        at = plan.start[barrier.name]
        taken[at : at + 8 * barrier.stages] += 1
    assert taken.min() == taken.max() == 1
    made = [e.operands for e in run(emit(program), 0, parameters_of(program, SIZES))
            if e.opcode.startswith("mbarrier.init")]  # fmt: skip
    assert [count for _, count in made] == [b.arrivals for b in program.barriers
                                            for _ in range(b.stages)]  # fmt: skip
    assert len(dict(made)) == len(made)


RING = Barrier("ring0", 3)
REFUSED: dict[str, tuple[str, tuple[Statement, ...], Mapping[str, Any]]] = {
    "bytes of others": (
        "one barrier alone",
        (Arrive(RING, Affine(), 16, "cluster"),),
        {"cluster": (("x", 2),)},
    ),
    "a second tile": ("but one, tile 0", (ForTile("t", "i", (), start=Affine(1)),), {}),
    "an index that counts down": (
        "count up",
        (For("k", "trips", (Wait(RING, var("k", -1) + 9),)),),
        {},
    ),
    "a variable of no loop": ("names 'q'", (Wait(RING, var("q")),), {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_code_is_refused(name: str) -> None:
    message, body, how = REFUSED[name]
    with pytest.raises(ProgramError, match=message) as caught:
        emit(hand(Role("all", 32, body), stages=(3,), **how))
    assert "\n" not in str(caught.value)


def test_a_loop_of_no_trips_is_nothing() -> None:
    wait, none = Wait(RING, Affine()), For("k", 2, (Elect((Wait(RING, var("k")),)),), start=2)
    texts = {emit(hand(Role("all", 32, body), stages=(3,))) for body in ((wait,), (none, wait))}
    assert len(texts) == 1
