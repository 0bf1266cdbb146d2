"""What a search that starts from nothing does not do: the same work twice, or work for nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tinygpu.codegen.run import agreement
from tinygpu.codegen.run.agreement import computed
from tinygpu.devices.device import load_device
from tinygpu.errors import OperationError
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.meaning.identity import computes
from tinygpu.search.exact.best import rank
from tinygpu.search.exact.branch import Search
from tinygpu.search.exact.scorer import Scorer
from tinygpu.search.time.cost import Placed, features
from tinygpu.search.time.recursion import Following, Recursion, numbers
from tinygpu.search.time.register_quantities import flying
from tinygpu.space.sharing import narrowed
from tinygpu.space.space import Space
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.plan import one_kernel

H200 = load_device("h200")
BF16 = matmul("bf16", layout="nt")


def hopper_space() -> Space:
    fixed = {
        **STARTS["persistent"], "tile_m": (64, 128), "tile_n": (128, 256), "in_flight": (0, 1, 2),
        "stages": (2, 3, 4), "consumers": (1, 2), "cluster_m": (1, 2, 4), "persistent": (0, 1),
        "raster": (1, 2, 4, 8, 16, 32),
    }  # fmt: skip
    return Space(Hopper(), Problem.of(BF16, m=1024, n=1536, k=640), H200, fixed=fixed)


def followed_points(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each run of the recursion adds its points."""
    sizes: list[int] = []
    cycles = Following.cycles

    def noted(self: Following, *given: Any) -> Any:
        sizes.append(self.size)
        return cycles(self, *given)

    monkeypatch.setattr(Following, "cycles", noted)
    return sizes


def test_steps_are_followed_where_the_floor_is_below_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the branch and bound gives a time has a floor below what it has to beat."""
    search = Search(hopper_space(), 3, ())
    search.start()
    asked, seconds = [], Scorer.seconds

    def noted(self: Scorer, points: Any) -> Any:
        asked.append(len(points))
        assert (self.least(points) < search.found.limit).all()
        return seconds(self, points)

    monkeypatch.setattr(Scorer, "seconds", noted)
    search.finish()
    assert asked


def test_a_floor_is_at_most_the_time() -> None:
    """Of full points ``least`` is a bound too; without steps it is the time itself."""
    for space in (hopper_space(), loads_space()):
        for batch in space.batches():
            scorer = Scorer(batch, space)
            points = space.points(batch, np.random.default_rng(1), 30)
            least, exact = scorer.least(points), scorer.seconds(points)
            assert (least <= exact * (1 + 1e-9)).all()
            assert scorer.floor is not None or least.tolist() == exact.tolist()


def test_equal_numbers_are_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points that have the same numbers take the same time, to the bit, and are one run."""
    program = Hopper().program(BF16, Chosen(STARTS["persistent"]))
    found = Placed.of(features(program, {"m": 1024, "n": 1536, "k": 640}, H200)).agents
    steps = np.array([10.0, 20.0, 10.0, 40.0, 20.0, 10.0])
    alone = [float(Recursion(found)(1, 1, n, 4, *numbers(found))) for n in steps]
    sizes = followed_points(monkeypatch)
    Recursion(found)(1, 1, np.unique(steps), 4, *numbers(found))
    different = sum(sizes)
    sizes.clear()
    assert np.array_equal(Recursion(found)(1, 1, steps, 4, *numbers(found)), alone)
    assert sum(sizes) == different


def test_ranks_are_those_of_every_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of a space with steps are those of its schedules one by one, to the bit."""
    space = hopper_space()
    every = np.concatenate(
        [Scorer(b, space).seconds(space.sums.points(b.tables)) for b in space.batches()]
    )
    sizes = followed_points(monkeypatch)
    best = [one.seconds for one in rank(space, 5).best]
    assert best == pytest.approx(np.sort(every)[:5], rel=1e-12)
    assert sum(sizes) < len(every)


def loads_space() -> Space:
    """Return a space whose fragments come straight from global memory, as they are laid out."""
    fixed = {
        **LADDER["naive"], "tile_m": (8, 16, 32), "tile_n": (32, 64), "lanes_m": (1, 4, 32),
        "tile_k": (1, 8), "k_step": (1, 2), "thread_m": (1, 2), "thread_n": (1, 2),
        "ctas_per_sm": (1, 2), "split_k": (1, 4), "combine": ("st", "red"),
        "vector_a": (1, 2, 4), "vector_b": (1, 2, 4), "edges": "guard",
    }  # fmt: skip
    return Space(Simt(), Problem.of(matmul(), m=512, n=512, k=512), H200, fixed=fixed)


def test_loads_in_flight_are_arrays_of_what_changes_them() -> None:
    """Over a space they have no axis along which nothing changes: such made gigabytes."""
    seen = 0
    with np.errstate(all="ignore"):
        for batch in loads_space().batches():
            many, held = flying(one_kernel(batch.program))
            for number in (many, held):
                if isinstance(number, np.ndarray):
                    seen += 1
                    assert number.shape == narrowed(number.view(np.ndarray)).shape
    assert seen


def test_a_search_keeps_no_features() -> None:
    """After its start a search remembers nothing that only its features asked for."""
    search = Search(hopper_space(), 3, ())
    search.start()
    batch = search.scorers[0].batch
    assert not any(getattr(number, "memo", None) for number in vars(batch.chosen).values())


def test_what_programs_compute_is_found_on_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets what ``computes`` says of it, in order, whatever else is asked."""
    monkeypatch.setattr(agreement, "cores", lambda: 2)
    right = Simt().program(matmul(), Chosen(LADDER["shared"]))
    wrong = replace(right, grid=right.grid[::-1])
    programs = [right, wrong, right, replace(right, raster=4)]
    assert list(computed(programs)) == [computes(one) for one in programs]


def test_an_error_of_a_copy_is_that_of_the_first_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes with its traceback, which tells whose code it is."""
    monkeypatch.setattr(agreement, "cores", lambda: 2)

    def fails(program: Any) -> Any:
        raise OperationError(f"here: {os.getpid()}")

    monkeypatch.setattr(agreement, "computes", fails)
    right = Simt().program(matmul(), Chosen(LADDER["shared"]))
    with pytest.raises(OperationError, match=f"here: {os.getpid()}"):
        list(computed([right, right]))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_the_command_line_has_one_thread() -> None:
    """BLAS has none of its own: they would spin between products that are too small for two."""
    script = (
        "import sys, os; sys.argv = ['tinygpu', '--version']\n"
        "from tinygpu.__main__ import main\n"
        "try: main()\n"
        "finally:\n"
        "    import numpy\n"
        "    print(len(os.listdir('/proc/self/task')))"
    )
    env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    said = subprocess.run(
        (sys.executable, "-c", script), capture_output=True, text=True, check=True, env=env
    )
    assert said.stdout.splitlines()[-1] == "1"
