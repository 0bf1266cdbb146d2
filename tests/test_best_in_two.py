"""Two processes find what one finds, and end together, however either of them ends."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sample import some
from tests.test_best import DEVICE, space_of
from tinygpu.errors import IllegalScheduleError, ProgramError, TinyGpuError
from tinygpu.machines.hopper import Hopper
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.exact import best, branch, pair
from tinygpu.search.exact.best import Ranking, rank
from tinygpu.search.exact.branch import Search
from tinygpu.space.space import Space
from tinygpu.term.operation import Operation, Problem, matmul
from tinygpu.term.program import Program

IN_HALF = getattr(sys.modules["__main__"].__spec__, "name", "") == "tinygpu.search.exact.half"
PROBLEM = Problem.of(matmul(), m=512, n=384, k=256)
WIDE: dict[str, Any] = {
    **LADDER["tuned"], "tile_m": (64, 128), "tile_k": (8, 16), "pipeline": ("none", "register"),
    "combine": ("st", "red"), "a_layout": ("km", "mk"), "accumulator": ("f32", "f64", "f32+f64"),
    "split_k": (1, 2), "raster": (1, 4), "vector_a": (1, 4), "edges": ("guard", "exact", "return"),
}  # fmt: skip
HOPPER: dict[str, Any] = {
    "tile_m": 128,
    "tile_n": (64, 128),
    "tile_k": 64,
    "stages": (3, 4),
    "consumers": 2,
}


class Faulty(Simt):
    """In the second process it does what it is made for, instead of building a term."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def program(self, operation: Operation, choose: Any) -> Program:
        if IN_HALF and self.fault == "error":
            raise ProgramError("program x: is not one; take another")
        if IN_HALF and self.fault == "bug":
            raise ZeroDivisionError("by nothing")
        if IN_HALF and self.fault == "death":
            os.kill(os.getpid(), signal.SIGKILL)
        if IN_HALF and self.fault == "hang":
            time.sleep(60)
        return super().program(operation, choose)


def spaces() -> dict[str, Space]:
    """Spaces whose batches are dealt, and one, the last, that is built in halves."""
    bf16 = Problem.of(matmul("bf16", layout="nt"), m=512, n=512, k=512)
    return {
        "case": space_of(2),
        "hopper": Space(Hopper(), bf16, DEVICE, fixed=HOPPER),
        "wide": Space(Simt(), PROBLEM, DEVICE, fixed=WIDE),
    }


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Any space is large and there are two cores; gives the processes, none left at the end."""
    monkeypatch.setattr(best, "_LARGE", 0)
    monkeypatch.setattr(best, "cores", lambda: 2)
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def popen(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*words, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    yield started
    assert all(process.returncode is not None for process in started)


def alone(space: Space, k: int, **options: Any) -> Ranking:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(best, "cores", lambda: 1)
        return rank(space, k, **options)


@pytest.mark.parametrize("name", spaces())
def test_two_find_what_one_finds(name: str, two: list[Any]) -> None:
    """The same seconds and counts, in a fixed order; each batch of either is told of once."""
    space, steps = spaces()[name], list[tuple[int, int]]()
    both = rank(space, 30, progress=lambda done, total: steps.append((done, total)))
    one = alone(spaces()[name], 30)
    assert len(two) == 1
    assert [r.seconds for r in both.best] == [r.seconds for r in one.best]
    assert len({r.schedule for r in both.best}) == len(both.best) == 30
    assert all(space.contains(r.schedule) for r in both.best[:5])
    assert (both.raw, both.admissible, both.proven) == (one.raw, one.admissible, True)
    assert both.admissible == space.count()
    assert steps == sorted(steps)
    assert steps[-1] == (len(space.batches()),) * 2
    places = [best._place(space, r.schedule) for r in both.best]
    in_order = [(r.seconds, p) for r, p in zip(both.best, places, strict=True)]
    assert in_order == sorted(in_order)


def test_the_best_of_each_combination(two: list[Any]) -> None:
    """With a spread, the halves may both have a combination: the faster one stays."""
    for spread in (("tile_m", "tile_k"), ("pipeline",)):
        both = rank(spaces()["wide"], 4, spread=spread)
        one = alone(spaces()["wide"], 4, spread=spread)
        assert [r.seconds for r in both.best] == [r.seconds for r in one.best]
        keys = {tuple(r.schedule[n] for n in spread) for r in both.best}
        assert len(keys) == len(both.best)
    assert len(two) == 2


@pytest.mark.parametrize("case", [0, 1, 2, "wide"])
def test_halves_are_all_of_it(case: int | str) -> None:
    """No schedule is in both, each is in one; what is built already is taken over."""
    space = spaces()["wide"] if case == "wide" else space_of(int(case))
    halves = space.halves()
    if halves is None:
        assert all(len(space.values[n]) == 1 or case == 0 for n in space.structural)
        return
    name, first, second = halves
    assert name in space.structural
    assert sorted(map(str, first + second)) == sorted(map(str, space.values[name]))
    anew = [space.part(name, values).count() for values in (first, second)]
    assert sum(anew) == space.count()
    assert min(anew) > 0
    parts = [space.part(name, values) for values in (first, second)]
    assert [part.count() for part in parts] == anew
    assert {b for part in parts for b in part.batches()} == set(space.batches())
    assert parts[0].raw + parts[1].raw == space.raw


@pytest.mark.parametrize("turned", [False, True])
def test_an_empty_half_is_no_error(
    turned: bool, two: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = (("guard", "exact"), ("return",))
    assert not Space(Simt(), PROBLEM, DEVICE, fixed={**WIDE, "edges": "return"}).count()
    monkeypatch.setattr(
        Space, "halves", lambda self: ("edges", *(parts[::-1] if turned else parts))
    )
    both, one = rank(spaces()["wide"], 9), alone(spaces()["wide"], 9)
    assert [r.seconds for r in both.best] == [r.seconds for r in one.best]
    assert both.admissible == one.admissible
    assert len(two) == 1


def test_an_empty_space_is_explained(two: list[Any]) -> None:
    """By the words that one process has for it."""
    said = []
    bf16 = Problem.of(matmul("bf16", layout="nt"), m=512, n=512, k=512)
    for search in (rank, alone):
        space = Space(Hopper(), bf16, DEVICE, fixed={"tile_m": 256, "tile_n": 256})
        with pytest.raises(IllegalScheduleError, match=r"keeps accumulators; .*: lower") as raised:
            search(space, 3)
        said.append(str(raised.value))
    assert said[0] == said[1]
    assert len(two) == 1


def faulty(fault: str) -> Space:
    return Space(Faulty(fault), PROBLEM, DEVICE, fixed=WIDE)


def test_an_error_of_the_second_process_is_raised(two: list[Any]) -> None:
    """It is the same error as in one process; a death is one too, with its status."""
    assert rank(faulty(""), 3).admissible == spaces()["wide"].count()
    with pytest.raises(ProgramError, match="take another"):
        rank(faulty("error"), 3)
    with pytest.raises(TinyGpuError, match="ended with status -9; it may lack memory"):
        rank(faulty("death"), 3)
    assert len(two) == 3


def test_a_bug_says_where_in_the_second_process_it_is(two: list[Any]) -> None:
    """Its traceback is a note of the error that is raised here; the user's own errors have none."""
    with pytest.raises(ZeroDivisionError, match="by nothing") as bug:
        rank(faulty("bug"), 3)
    (note,) = bug.value.__notes__
    assert "second process" in note
    assert "test_best_in_two.py" in note
    with pytest.raises(ProgramError) as error:
        rank(faulty("error"), 3)
    assert not hasattr(error.value, "__notes__")
    assert len(two) == 2


def test_ctrl_c_ends_both(two: list[Any]) -> None:
    """While this process waits for the other, which hangs.

    Two things would drop the KeyboardInterrupt: a shell that starts tests in the background lets
    them ignore SIGINT; and Hypothesis listens to garbage collection, where exceptions get lost.
    """
    begun = time.monotonic()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()
    timer = threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            rank(faulty("hang"), 3)
    finally:
        timer.cancel()
        gc.enable()
        signal.signal(signal.SIGINT, handler)
    assert time.monotonic() - begun < 30
    assert two[0].returncode == -signal.SIGKILL


def test_an_error_here_ends_the_second_process(two: list[Any]) -> None:
    def stops(done: int, total: int) -> None:
        raise ProgramError("enough")

    with pytest.raises(ProgramError, match="enough"):
        rank(spaces()["wide"], 3, progress=stops)
    assert two[0].returncode is not None


def test_the_second_process_ends_with_this_one(two: list[Any]) -> None:
    """Also if it hangs: the end of the pipe is all that it sees of the other's end."""
    task = pair.Task(Faulty("hang"), PROBLEM, DEVICE, WIDE, 3, (), float("inf"), None)
    with pair._other(pair._packed(task)) as other:
        assert os.getpgid(other.process.pid) != os.getpgid(0)  # Ctrl-C is for one of them
        other.pipe.close()
        assert other.process.wait(30) == 1
    assert len(two) == 1


def test_a_machine_that_only_this_process_has(
    two: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local class, the script's own, one whose module is nowhere: one process searches alone."""

    class Local(Simt):
        pass

    class Script(Simt):
        pass

    class Nowhere(Simt):
        pass

    Script.__module__, Script.__qualname__ = "__main__", "Script"
    Nowhere.__module__, Nowhere.__qualname__ = "nowhere", "Nowhere"
    monkeypatch.setitem(sys.modules, "nowhere", SimpleNamespace(Nowhere=Nowhere))
    monkeypatch.setattr(sys.modules["__main__"], "Script", Script, raising=False)
    want = [r.seconds for r in alone(spaces()["wide"], 3).best]
    for machine, processes in ((Local(), 0), (Script(), 0), (Nowhere(), 1)):
        found = rank(Space(machine, PROBLEM, DEVICE, fixed=WIDE), 3)
        assert [r.seconds for r in found.best] == want
        assert len(two) == processes


def test_the_second_process_loads_little() -> None:
    """Neither what prints nor what solves: it has to begin at once."""
    code = "import json, sys, tinygpu.search.exact.half; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"typer", "rich", "z3", "matplotlib", "cupy"} & set(json.loads(run.stdout))


@pytest.mark.parametrize("name", some(spaces(), 2))
def test_impatience_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each order is soon given up for another, the best are the same."""
    want = alone(spaces()[name], 9)
    monkeypatch.setattr(branch, "_PATIENCE", 1)
    found = alone(spaces()[name], 9)
    assert [r.seconds for r in found.best] == [r.seconds for r in want.best]
    assert found.scored > want.scored


def test_news_makes_the_limit() -> None:
    """Times of another part count as the k best known, and are no part of what is found here."""
    name, first, second = spaces()["wide"].halves() or pytest.fail("no halves")
    searches = [Search(spaces()["wide"].part(name, v), 5, ()) for v in (first, second)]
    news = [search.start() for search in searches]
    better = min(range(2), key=lambda i: min(news[i].known.values()))
    worse = searches[1 - better]
    worse.learn(news[better])
    assert worse.told == news[better].loose
    assert worse.found.limit == max(sorted([*news[0].known.values(), *news[1].known.values()])[:5])
    assert {key for key, _, _ in worse.entries()} <= news[1 - better].known.keys()


def test_results_are_joined_by_their_times() -> None:
    """In any order; of two with one key, which ``spread`` makes, only the faster is left."""
    space = spaces()["wide"]
    search = Search(space, 30, ())
    search.start()
    entries = sorted(search.entries(), key=lambda entry: entry[1])
    slower = [(entries[0][0], seconds, schedule) for _, seconds, schedule in entries[20:]]
    found = best._ranking(space, 5, [*slower, *entries[::-1]], 1, 1).best
    assert [r.seconds for r in found] == pytest.approx([s for _, s, _ in entries[:5]], rel=1e-9)
    assert len({r.schedule for r in found}) == 5
