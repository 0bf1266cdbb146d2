"""The processes of a climb end together, however one of them ends, and what they say is heard."""

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
from tinygpu.errors import IllegalScheduleError, ProgramError
from tinygpu.machines.hopper import Hopper
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.exact import best, branch, process
from tinygpu.search.exact.best import Ranking, rank
from tinygpu.search.exact.branch import Search
from tinygpu.search.exact.parts import PartTask, parts_of
from tinygpu.space.space import Space
from tinygpu.term.operation import Operation, Problem, matmul
from tinygpu.term.program import Program

ELSEWHERE = getattr(sys.modules["__main__"].__spec__, "name", "") == "tinygpu.search.exact.part"
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
    """In another process it does what it is made for, instead of building a term."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def program(self, operation: Operation, choose: Any) -> Program:
        if ELSEWHERE and self.fault == "error":
            raise ProgramError("program x: is not one; take another")
        if ELSEWHERE and self.fault == "bug":
            raise ZeroDivisionError("by nothing")
        if ELSEWHERE and self.fault == "death":
            os.kill(os.getpid(), signal.SIGKILL)
        if ELSEWHERE and self.fault == "hang":
            time.sleep(60)
        return super().program(operation, choose)


def spaces() -> dict[str, Space]:
    """Spaces of few batches and of many."""
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


def climbed(space: Space, **options: Any) -> Ranking:
    return rank(space, 3, exact=False, **options)


def alone(space: Space, k: int, **options: Any) -> Ranking:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(best, "cores", lambda: 1)
        return rank(space, k, **options)


def test_an_empty_space_is_explained(two: list[Any]) -> None:
    """By the words that one process has for it."""
    said = []
    bf16 = Problem.of(matmul("bf16", layout="nt"), m=512, n=512, k=512)
    for search in (rank, alone):
        space = Space(Hopper(), bf16, DEVICE, fixed={"tile_m": 256, "tile_n": 256})
        with pytest.raises(IllegalScheduleError, match=r"keeps accumulators; .*: lower") as raised:
            search(space, 3, exact=False)
        said.append(str(raised.value))
    assert said[0] == said[1]
    assert len(two) == 1


def faulty(fault: str) -> Space:
    return Space(Faulty(fault), PROBLEM, DEVICE, fixed=WIDE)


def test_an_error_of_another_process_is_raised(two: list[Any]) -> None:
    """It is the same error as in one process; a death is one too, with its status."""
    assert climbed(faulty("")).admissible == spaces()["wide"].count()
    with pytest.raises(ProgramError, match="take another"):
        climbed(faulty("error"))
    with pytest.raises(RuntimeError, match="a process of the search ended: 9"):
        climbed(faulty("death"))
    assert len(two) == 3


def test_a_bug_says_where_in_another_process_it_is(two: list[Any]) -> None:
    """Its traceback is a note of the error that is raised here; the user's own errors have none."""
    with pytest.raises(ZeroDivisionError, match="by nothing") as bug:
        climbed(faulty("bug"))
    (note,) = bug.value.__notes__
    assert "another process" in note
    assert "test_processes.py" in note
    with pytest.raises(ProgramError) as error:
        climbed(faulty("error"))
    assert not hasattr(error.value, "__notes__")
    assert len(two) == 2


def test_ctrl_c_ends_all(two: list[Any]) -> None:
    """While this process waits for the others, which hang.

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
            climbed(faulty("hang"))
    finally:
        timer.cancel()
        gc.enable()
        signal.signal(signal.SIGINT, handler)
    assert time.monotonic() - begun < 30
    assert two[0].returncode == -signal.SIGKILL


def test_an_error_here_ends_the_others(two: list[Any]) -> None:
    def stops(done: int, total: int) -> None:
        raise ProgramError("enough")

    with pytest.raises(ProgramError, match="enough"):
        climbed(spaces()["wide"], progress=stops)
    assert two[0].returncode is not None


def test_the_others_end_with_this_one(two: list[Any]) -> None:
    """Also if they hang: the end of the pipe is all that they see of this one's end."""
    parts, never = parts_of(faulty("hang")), float("inf")
    task = PartTask(Faulty("hang"), PROBLEM, DEVICE, WIDE, parts, 3, (), never, never, 2)
    with process.started(task) as pipe:
        assert os.getpgid(two[0].pid) != os.getpgid(0)  # Ctrl-C is for one of them
        pipe.close()
        assert two[0].wait(30) == -signal.SIGKILL


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
    want = [r.seconds for r in alone(spaces()["wide"], 3, exact=False).best]
    for machine, processes in ((Local(), 0), (Script(), 0), (Nowhere(), 1)):
        found = climbed(Space(machine, PROBLEM, DEVICE, fixed=WIDE))
        assert [r.seconds for r in found.best] == want
        assert len(two) == processes


def test_another_process_loads_little() -> None:
    """Neither what prints nor what solves: it has to begin at once."""
    code = "import json, sys, tinygpu.search.exact.part; print(json.dumps(sorted(sys.modules)))"
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
