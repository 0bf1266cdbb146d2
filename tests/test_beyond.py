"""A loop that runs on does what one loop of more turns does, with its guards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tinygpu.errors import ProgramError
from tinygpu.term.access_map import Affine, var
from tinygpu.term.beyond import beyond_trips, within_trips
from tinygpu.term.builder import Kernel
from tinygpu.term.operation import matmul
from tinygpu.term.statement import Arrive, Barrier, Body, Elect, For, Wait, When

FULL, EMPTY = Barrier("full", 4), Barrier("empty", 4)


def loop(late: int) -> For:
    """A step's wait, and a release some steps late that a guard of its own CTA stands around."""
    release = Arrive(EMPTY, var("t", "trips") + var("k") + -late)
    once = Wait(FULL, var("k"))
    return For("k", "trips", (
        When(var("k"), "trips", (Wait(FULL, var("t", "trips") + var("k")), Elect((once,)))),
        When(var("rank"), 1, (When(Affine(late, (("k", -1),)), 1, (Elect((release,)),)),)),
    ))  # fmt: skip


def done(body: Body, env: Mapping[str, int], turns: int = 0) -> Iterator[tuple[str, int]]:
    """Execute statements; a loop over k has ``turns`` more."""
    for s in body:
        match s:
            case For(name, trips):
                stop = env[trips] + turns if isinstance(trips, str) else trips
                for i in range(stop):
                    yield from done(s.body, {**env, name: i})
            case When(index, bound):
                if index.evaluate(env) < (env[bound] if isinstance(bound, str) else bound):
                    yield from done(s.body, env)
            case Wait(barrier, index) | Arrive(barrier, index):
                yield barrier.name, index.evaluate(env)
            case _:
                yield from done(s.body, env)


@pytest.mark.parametrize("late", range(4))
def test_it_does_what_one_loop_of_more_turns_does(late: int) -> None:
    """In order, for any trips, those fewer than it is late too."""
    one = loop(late)
    two = (
        For("k", "trips", within_trips(one)),
        For("j", late, beyond_trips(one, "j"), unrolled=True),
    )
    for trips in range(13):
        for rank in (0, 1):
            env = {"trips": trips, "t": 2, "rank": rank}
            assert list(done(two, env)) == list(done((one,), env, late))


@pytest.mark.parametrize(
    "guard",
    [
        When(var("k"), 2, ()),
        When(var("k") + 1, "trips", ()),
        When(var("k", 2), "trips", ()),
        When(var("k", -2) + 3, 1, ()),
    ],
    ids=str,
)
def test_other_guards_are_refused(guard: When) -> None:
    """Whether they hold beyond the trips is nothing that a guard of the trips can say."""
    with pytest.raises(ProgramError, match="in turns beyond trips only"):
        beyond_trips(For("k", "trips", (guard,)), "j")


def test_only_a_loop_before_runs_on() -> None:
    k = Kernel("x", matmul("f32"))
    with pytest.raises(ProgramError, match="run_on step: no loop of this name"):
        k.run_on("step", 1)


def test_a_parameters_multiple_cannot_be_moved() -> None:
    body = (Wait(FULL, var("k", "trips")),)
    with pytest.raises(ProgramError, match="steps beyond trips"):
        beyond_trips(For("k", "trips", body), "j")
