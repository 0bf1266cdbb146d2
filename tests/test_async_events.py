"""The verdict on asynchronous programs: the machine's terms, and those with one fault."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.async_mutants import mutants
from tests.async_protocols import by_hand
from tinygpu.agents import TILES
from tinygpu.conditions import hazards
from tinygpu.errors import ProgramError
from tinygpu.events import concurrency_key, skeleton_of, verdict, verdict_of_protocol
from tinygpu.machine import Chosen
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.operation import matmul
from tinygpu.program import Access, Exit, Fence, Program, Sync
from tinygpu.protocol import Protocol


@cache
def hopper(start: str, layout: str = "nt", **changes: Any) -> Program:
    point = {**STARTS[start], **changes}
    return Hopper().program(matmul("bf16", layout=layout), Chosen(point))


def mutant(program: Program, name: str) -> Program:
    """The first mutant whose name starts so."""
    return next(m for n, m in mutants(program) if n.startswith(name))


@pytest.mark.parametrize("layout", ["nt", "nn"])
@pytest.mark.parametrize("start", STARTS)
def test_every_start_is_legal_for_every_number_of_tiles_and_trips(start: str, layout: str) -> None:
    got = verdict(hopper(start, layout))
    assert got.legal, got
    assert got.outcome == "legal", got.reason
    assert "trips" in str(got)


CLUSTERS = [(1, 2), (2, 2), (4, 1)]


@pytest.mark.parametrize(("m", "n"), CLUSTERS)
def test_clusters_of_any_shape_are_legal(m: int, n: int) -> None:
    changes = {"tile_m": 128, "tile_n": 128, "store_n": 64, "cluster_m": m, "cluster_n": n}
    got = verdict(hopper("cluster", stages=2, in_flight=0, **changes))
    assert got.legal, got


@pytest.mark.parametrize("start", ["ring", "persistent", "pingpong"])
@pytest.mark.parametrize("behind", [0, 1, 2])
def test_any_number_of_groups_in_flight_is_legal(start: str, behind: int) -> None:
    got = verdict(hopper(start, in_flight=behind, stages=3))
    assert got.legal, got


# start, how the mutant's name begins, the kinds of which at least one has to be found
FAULTS = [
    ("ring", "drop wait full", {"race", "parity"}),
    ("ring", "drop wait empty", {"race", "early"}),
    ("ring", "drop arrive full", {"balance"}),
    ("ring", "double arrive full", {"balance"}),
    ("persistent", "drop arrive empty", {"balance"}),
    ("ring", "bytes+ arrive full", {"balance"}),
    ("ring", "bytes- arrive full", {"balance"}),
    ("ring", "count+ full", {"balance"}),
    ("two consumers", "count- empty", {"balance"}),
    ("ring", "together ForTile", {"balance"}),
    ("ring", "drop wgmma.fence", {"proxy"}),
    ("ring", "drop wgmma.commit_group", {"race", "exit"}),
    ("ring", "drop wgmma.wait_group 0", {"race"}),
    ("persistent", "pending+ wgmma.wait_group 1", {"race"}),
    ("persistent", "pending+ wgmma.wait_group 0", {"race"}),
    ("persistent", "sooner arrive empty", {"balance"}),
    ("persistent", "later arrive empty", {"balance"}),
    ("ring", "sooner wait empty", {"race", "early", "parity"}),
    ("ring", "sooner wait full", {"race", "parity"}),
    ("ring", "later read 0", {"race", "unwritten", "stale"}),
    ("ring", "later write", {"race", "unwritten", "stale"}),
    ("ring", "later signal", {"balance"}),
    ("ring", "stages- barrier empty", {"early", "parity", "race"}),
    ("ring", "stages- barrier full", {"early", "parity", "race"}),
    ("ring", "stages- buffer smem_a", {"race"}),
    ("ring", "stale sums", {"unwritten", "stale"}),
    ("persistent", "stale sums", {"unwritten", "stale"}),
    ("tma store", "drop cp.async.bulk.wait_group.read", {"race"}),
    ("tma store", "pending+ cp.async.bulk.wait_group.read 1", {"race"}),
    ("tma store", "pending+ cp.async.bulk.wait_group.read 0", {"exit"}),
    ("tma store", "drop cp.async.bulk.commit_group", {"race", "exit"}),
    ("tma store", "drop bar.sync 1", {"race"}),
    ("tma store", "drop fence.proxy.async", {"proxy"}),
    ("tma store", "swap fence.proxy.async", {"proxy"}),
    ("tma store", "alone fence.proxy.async", {"proxy"}),
    ("tma store", "together c[", {"race"}),
    ("tma store", "stages- buffer smem_c", {"race"}),
    ("tma store", "shared smem_c", {"race"}),
    ("tma store", "drop barrier.cluster", {"deadlock"}),
    ("cluster", "near arrive empty", {"balance"}),
    ("cluster", "unsent smem_b", {"balance"}),
    ("pingpong", "drop wait turn", {"early", "parity", "race"}),
    ("pingpong", "drop arrive turn", {"balance"}),
    ("pingpong", "later wait turn", {"deadlock", "balance", "parity"}),
    ("pingpong", "drop bar.sync 1", {"parity"}),
]


@pytest.mark.parametrize(("start", "name", "kinds"), FAULTS)
def test_a_fault_is_found(start: str, name: str, kinds: set[str]) -> None:
    """It is rejected for a reason that fits, in one line, with a witness that can be replayed."""
    got = verdict(mutant(hopper(start), name))
    assert not got.legal
    assert {f.kind for f in got.findings} & kinds, got
    for finding in got.findings:
        assert "\n" not in str(finding)
        assert ";" in finding.message
    assert isinstance(got.skeleton, Protocol)
    first = got.findings[0]
    assert first in hazards(got.skeleton, dict(first.trips))


def harmless(start: str, name: str) -> bool:
    """Mutants that are slower, or wrong in what they compute, but neither race nor hang."""
    kind, what = name.split(" ", 1)
    one_cta = "cluster" not in start
    match kind:
        case "double":  # to wait, fence, commit or load nothing twice; values are not judged here
            return what.startswith(("wait", "wgmma", "cp.async.bulk", "bar", "fence", "sums", "c["))
        case "alone":  # what is one thread's already; a wait for products by one of two threads
            return what.startswith(("arrive", "wait empty", "cp.async.bulk", "wgmma.wait_group"))
        case "together":  # the others have no stores to wait for
            return what.startswith("cp.async.bulk.wait_group")
        case "swap":  # bytes may land before they are expected; a fence needs no wait; in one
            # tile nobody waits for the last releases
            return what.startswith(("arrive full", "smem_a", "wait full", "wgmma.wait_group 0"))
        case "pending-" | "full" | "stages+":
            return True
        case "later":  # a younger stage is free; a release that nobody waits for
            return what.startswith(("wait empty", "arrive empty@(trips*t + trips"))
        case "near" | "unsent":
            return one_cta or "smem_a" in what  # only y is shared along the cluster
        case "drop":  # the store itself; in one tile nobody waits for the last release
            return what.startswith(("c[", "arrive empty@(trips*t + trips"))
        case "bound+" | "bound-":
            return what.startswith("j")
        case _:
            return False


@pytest.mark.parametrize("start", ["ring", "tma store"])
def test_every_mutant_is_rejected_but_harmless_ones(start: str) -> None:
    rejected = 0
    for name, program in mutants(hopper(start)):
        got = verdict(program)
        rejected += not got.legal
        assert not got.legal or harmless(start, name), name
    assert rejected > 60


def test_turns_of_few_trips_need_a_barrier() -> None:
    """With trips <= in_flight no product is waited for before the turn is given on."""
    got = verdict(mutant(hopper("pingpong"), "drop bar.sync 1"))
    assert {f.kind for f in got.findings} == {"parity"}
    assert dict(got.findings[0].trips)["trips"] == 1
    assert verdict(mutant(hopper("pingpong", in_flight=0), "drop bar.sync 1")).legal


def test_sums_that_were_read_need_another_fence() -> None:
    """One wgmma.fence at the start is enough for one tile, and not for two."""

    def hoisted(program: Program) -> Program:
        bare = mutant(program, "drop wgmma.fence")
        roles = tuple(
            replace(r, body=(Fence("wgmma"), *r.body)) if r.name == "consumer" else r
            for r in bare.roles
        )
        return replace(bare, roles=roles)

    assert verdict(hoisted(hopper("tma store"))).legal
    assert {f.kind for f in verdict(hoisted(hopper("persistent"))).findings} == {"proxy"}


def test_a_fault_that_needs_many_tiles() -> None:
    """Two consumers in turn, each with eight buffers: the 17th tile meets the first."""
    few = {"stages": 2, "in_flight": 0, "tile_n": 64, "store_n": 64, "store_stages": 8}
    program = hopper("pingpong", **few)
    assert verdict(program).legal
    got = verdict(mutant(program, "pending+ cp.async.bulk.wait_group.read 7"))
    assert {f.kind for f in got.findings} == {"race"}
    assert isinstance(got.skeleton, Protocol)
    assert not hazards(got.skeleton, {TILES: 16, "trips": 2})
    assert hazards(got.skeleton, {TILES: 17, "trips": 2})


def test_leaving_without_a_cluster_barrier() -> None:
    """All roles together may do so alone in a CTA; in a cluster arrivals may come too late."""

    def left(program: Program) -> Program:
        roles = tuple(
            replace(r, body=tuple(s for s in r.body if not isinstance(s, Sync)))
            for r in program.roles
        )
        return replace(program, roles=roles)

    assert verdict(left(hopper("persistent"))).legal
    got = verdict(left(hopper("cluster")))
    assert {f.kind for f in got.findings} == {"exit"}
    assert "barrier.cluster" in str(got)


def test_schedules_that_differ_in_sizes_share_a_protocol() -> None:
    keys = {
        concurrency_key(hopper("persistent", tile_m=m, tile_n=n, store_n=n // 4, raster=raster))
        for m, n in ((128, 256), (256, 128))
        for raster in (1, 8)
    }
    assert len(keys) == 1
    assert concurrency_key(hopper("persistent", stages=3)) not in keys
    wrong = mutant(hopper("persistent"), "bytes+")
    assert concurrency_key(wrong) not in keys


def test_a_verdict_is_fast() -> None:
    verdict_of_protocol.cache_clear()
    start = time.process_time()
    verdict(hopper("cluster"))
    assert time.process_time() - start < 2.0
    start = time.process_time()
    for _ in range(20):
        verdict(hopper("cluster"))
    assert (time.process_time() - start) / 20 < 0.01


def test_an_exit_of_some_threads_is_refused() -> None:
    program = hopper("plain")
    role = program.roles[0]
    out = next(b for b in program.buffers if b.name == "c")
    leave = Exit(Access(out), (), ())
    left = replace(program, roles=(replace(role, body=(leave, *role.body)), *program.roles[1:]))
    with pytest.raises(ProgramError, match="may not leave early"):
        verdict(left)


def test_the_other_skeleton_refuses_what_it_has_no_words_for() -> None:
    with pytest.raises(ProgramError, match=r"bar\.sync and cp\.async only"):
        skeleton_of(hopper("plain"))


def test_parts_that_do_not_fill_an_index_are_found() -> None:
    """Two halves of a tile, of which one goes to another index: bytes add up, tiles do not."""
    two = next(p for p in by_hand() if p.name == "two producers 2 False")
    assert verdict(two).legal
    for name in ("later write in", "sooner write in"):
        found = {f.kind for f in verdict(mutant(two, name)).findings}
        assert "unwritten" in found, name
