"""The parts of a protocol: legal ones imply a legal whole, and many wholes have them in common."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.async_mutants import mutants
from tests.hopper_terms import LARGE, term
from tinygpu import events
from tinygpu.agents import TILES
from tinygpu.conditions import hazards
from tinygpu.device import load_device
from tinygpu.machine import Chosen
from tinygpu.machines.hopper import Hopper
from tinygpu.operation import Problem, matmul
from tinygpu.program import Affine, Program, var
from tinygpu.protocol import Act, Crew, Loop, One, Protocol, Ring, Tiles, Touch
from tinygpu.protocol_extraction import protocol_of
from tinygpu.protocol_parts import parts
from tinygpu.space import Space
from tinygpu.synchronization import Arrive, Barrier, Commit, Fence, Sync, Wait, WaitGroup
from tinygpu.tile_window import tile_window

WHOLES: dict[str, Program] = {
    "persistent": term("persistent", stages=2, store_stages=1, store_n=64, tile_n=128),
    "pingpong": term("pingpong", stages=2, in_flight=0),
    "three": term("persistent", stages=2, tile_m=192, consumers=3, tile_n=64),
    "row": term("cluster", stages=2, in_flight=0, tile_n=64, consumers=1, tile_m=64),
    "square": term("cluster", stages=2, tile_m=64, tile_n=64, consumers=1, cluster_n=2),
    "row of two": term("cluster", stages=2, in_flight=0, tile_n=64, consumers=2, tile_m=128),
    "shared k": term("shared k", stages=2, in_flight=0, tile_n=16, store_n=16),
    "row of shared k": term(
        "shared k",
        stages=2,
        tile_m=128,
        consumers=2,
        cluster_m=2,
        epilogue="tma",
        tile_n=32,
        store_n=16,
    ),
}


FEW_CTAS = ("persistent", "pingpong", "three")


@cache
def changed(name: str) -> tuple[tuple[str, Program], ...]:
    return (("unchanged", WHOLES[name]), *mutants(WHOLES[name]))


def by_parts(protocol: Protocol) -> bool:
    found = parts(protocol)
    return found != (protocol,) and all(map(events._is_legal, found))


def whole(protocol: Protocol) -> bool:
    return not any(hazards(protocol, p) for p in tile_window(protocol)[1])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_legal_parts_imply_a_legal_whole(data: Any) -> None:
    """Also of programs with a fault: whoever is illegal has a part that is."""
    name, program = data.draw(st.sampled_from(changed(data.draw(st.sampled_from(list(WHOLES))))))
    protocol = protocol_of(program)
    if by_parts(protocol):
        assert whole(protocol), name


def test_a_space_asks_for_the_verdict() -> None:
    """Of asynchronous programs, too, should a machine without barriers have them in its space."""
    found = {
        name: (events.is_legal(p), events.verdict(p).legal) for name, p in changed("pingpong")[:40]
    }
    assert set(found.values()) == {(True, True), (False, False)}


@pytest.mark.parametrize("name", WHOLES)
def test_parts_of_the_machines_terms_decide(name: str) -> None:
    protocol = protocol_of(WHOLES[name])
    assert by_parts(protocol)
    assert whole(protocol)


def test_numbers_that_do_not_matter_are_gone() -> None:
    """Chunks, cluster extents, tile sizes, persistence, and which of the inputs is shared."""
    wholes: set[Protocol] = set()
    pieces: set[Protocol] = set()
    for chunk, ctas, stay, epilogue, swap in product(
        (32, 64), ((2, 1), (4, 1), (1, 2)), (0, 1), ("tma", "direct"), (0, 1)
    ):
        changes: dict[str, Any] = {"stages": 4, "tile_m": 256, "tile_n": 256, "persistent": stay}
        if epilogue == "direct":
            chunk, changes["store_stages"] = 256, 1
        changes |= {"cluster_m": ctas[0], "cluster_n": ctas[1], "swap": swap, "store_n": chunk}
        protocol = protocol_of(term("cluster", epilogue=epilogue, **changes))
        wholes.add(protocol)
        pieces.update(parts(protocol))
    assert len(wholes) >= 20
    assert len(pieces) == 3  # one of the store's chunks; of the rest, two CTAs, and two copies


def test_verdicts_over_a_space_cost_little() -> None:
    """Parts repeat: of n schedules nearly all have a protocol of their own, few have new parts."""
    operation = matmul("bf16", layout="nt")
    space = Space(Hopper(), Problem.of(operation, **LARGE), load_device("h200"))
    counts = []
    for seed in range(4):  # one draw has 210 to 265
        chosen = [dict(s.decisions) for s in space.sample(np.random.default_rng(seed), 300) if s]
        protocols = [protocol_of(Hopper().program(operation, Chosen(d))) for d in chosen]
        assert len(set(protocols)) > 290
        pieces = Counter(part for p in protocols for part in parts(p))
        counts.append(len(pieces))
    assert sum(counts) / len(counts) < 250
    start = time.process_time()
    for protocol in protocols:
        assert all(part in pieces for part in parts(protocol))
    assert (time.process_time() - start) / len(protocols) < 0.01


RING, OTHER = Ring("x", 2, "cta"), Ring("y", 1, "copy")
FULL, EMPTY, HELD = Barrier("full", 2, 1), Barrier("empty", 2, 128), Barrier("held", 1, 128)
N = var("t")


def protocol(consume: tuple[Any, ...], copies: int = 1) -> Protocol:
    """One producer, and copies that take a tile each from one ring."""
    empty = replace(EMPTY, arrivals=128 * copies)
    load = Act("load", "load", (Touch(RING, N, True),), (FULL, N), "", 1)
    fill = (Wait(empty, N + -2), Arrive(FULL, N, 1), load)
    give = (One((Tiles("t", "i", Affine(), 1, fill),)),)
    read = Act("read", "generic", (Touch(RING, N, False),))
    body = (Wait(FULL, N), read, Arrive(empty, N), *consume)
    take = (Tiles("t", "i", Affine(), 1, body),)
    crews = (Crew("producer", 32, 1, "", give), Crew("consumer", 128, copies, "w", take))
    return Protocol(crews, (), True, ())


def chunk(*ordered: Any, chunks: int = 3) -> tuple[Any, ...]:
    """Write and store chunks; what is ``ordered`` stands between."""
    at = var("c") + var("i", chunks)
    write = Act("st", "generic", (Touch(OTHER, at, True),))
    send = Act("send", "store", (Touch(OTHER, at, False),))
    wait, one = One((WaitGroup(0, "bulk", read=True),)), One((send, Commit("bulk")))
    steps: dict[str, Any] = {"wait": wait, "sync": Sync(1, "role"), "fence": Fence("proxy.async")}
    steps |= {"write": write, "send": one}
    return (Loop("c", 0, chunks, tuple(steps[o] for o in ordered)),)


RIGHT = ("wait", "sync", "write", "fence", "sync", "send")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_smaller_window_decides_what_the_larger_does(data: Any) -> None:
    """With the stricter form of A, whoever is illegal at some point is so within fewer steps."""
    name, program = data.draw(st.sampled_from(changed(data.draw(st.sampled_from(FEW_CTAS)))))
    protocol_ = protocol_of(program)
    small, points = tile_window(protocol_, observed=True)
    large = tile_window(protocol_)[0]
    assert all(a <= b for (_, a), (_, b) in zip(small.most, large.most, strict=True))
    if not any(hazards(protocol_, point, observed=True) for point in points):
        assert whole(protocol_), name


def test_a_wait_that_follows_all_arrivals_is_not_observed() -> None:
    """A thread that arrives alone, twice, and waits for the second: legal, but not strictly."""
    alone = Barrier("own", 1, 1)
    body = (Tiles("t", "i", Affine(), 1, (Arrive(alone, N), Wait(alone, N))),)
    right = Protocol((Crew("one", 1, 1, "", body),), (), True, ())
    assert not hazards(right, {TILES: 3}, observed=True)
    late = (Arrive(alone, var("t", 2)), Arrive(alone, var("t", 2) + 1), Wait(alone, N * 2 + 1))
    odd = Protocol((Crew("one", 1, 1, "", (Tiles("t", "i", Affine(), 1, late),)),), (), True, ())
    assert not hazards(odd, {TILES: 3})
    assert {h.kind for h in hazards(odd, {TILES: 3}, observed=True)} == {"parity"}
    assert events.verdict_of_protocol(odd).outcome == "unproved"


def test_chunks_by_hand() -> None:
    """Each step of a chunk is needed, whether the whole or its parts are asked."""
    end = One((WaitGroup(0, "bulk", read=True),))

    def made(*ordered: str) -> Protocol:
        found = protocol(chunk(*ordered), 2)
        crew = found.crews[1]
        return replace(found, crews=(found.crews[0], replace(crew, body=(*crew.body, end))))

    assert by_parts(made(*RIGHT))
    assert len(parts(made(*RIGHT))) == 2
    assert whole(made(*RIGHT))
    for left in range(len(RIGHT) - 1):
        wrong = made(*RIGHT[:left], *RIGHT[left + 1 :])
        assert not whole(wrong), RIGHT[left]
        assert not by_parts(wrong), RIGHT[left]


def test_copies_that_are_alike_are_two() -> None:
    """And their arrivals are counted in proportion, so that a wrong count stays wrong."""
    for copies in (2, 3, 5):
        assert [c.copies for c in parts(protocol((), copies))[-1].crews] == [1, 2]
        assert by_parts(protocol((), copies))
    wrong = protocol((), 3)
    for arrivals in (383, 385, 256):
        bad = replace(EMPTY, arrivals=arrivals)
        body = wrong.crews[1].body[0]
        assert isinstance(body, Tiles)
        inner = tuple(replace(n, barrier=bad) if isinstance(n, Arrive) else n for n in body.body)
        crew = replace(wrong.crews[1], body=(replace(body, body=inner),))
        term_ = replace(wrong, crews=(wrong.crews[0], crew))
        assert not by_parts(term_)
        assert not whole(term_)


def test_barriers_that_share_a_number_are_not_taken_apart() -> None:
    """A copy's bar.sync 1 + copy meets the producer's."""
    found = protocol((Sync(1, "role"),), 2)
    assert parts(found) != (found,)
    producer = replace(found.crews[0], body=(*found.crews[0].body, Sync(2, "role")))
    clash = replace(found, crews=(producer, found.crews[1]))
    assert parts(clash) == (clash,)
    assert not whole(clash)
