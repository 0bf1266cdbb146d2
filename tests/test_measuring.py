"""A search by measuring, from the first candidates to the files, with a worker that only pretends.

The worker predicts with the cost model and adds noise: one for coarse times, another under load.
It notes how many it was to time, but for the incumbent beside those of a coarse batch.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.fake_gpu import Card
from tests.test_dispatch import few
from tinygpu.cli import app
from tinygpu.codegen.run import build, measure
from tinygpu.codegen.run.build import Builders
from tinygpu.codegen.run.measure import COARSE, SUSTAINED, Options, peer_of
from tinygpu.codegen.run.worker import Worker
from tinygpu.deadline import Deadline
from tinygpu.devices.device import load_device
from tinygpu.errors import DeviceError, IllegalScheduleError, LaunchError, OperationError
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES
from tinygpu.machines.ampere import STARTS as AMPERE
from tinygpu.machines.ampere import Ampere
from tinygpu.machines.elementwise import Elementwise
from tinygpu.machines.hopper import STARTS as HOPPER
from tinygpu.machines.hopper import Hopper
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.exact.best import rank
from tinygpu.search.neighbourhood import Candidate, Neighbourhood
from tinygpu.search.store import Store
from tinygpu.search.strategies.gaussian import BATCH
from tinygpu.search.strategies.smt import pipeline
from tinygpu.search.ties import plainness
from tinygpu.search.tuning import climb as climbing
from tinygpu.search.tuning import tune as tuning
from tinygpu.search.tuning.climb import CUBLASLT, Effort, Tuned, climb, measured
from tinygpu.search.tuning.tune import tune
from tinygpu.space.measurement import describe
from tinygpu.space.space import Space
from tinygpu.term.expression import value
from tinygpu.term.machine import Machine, Value
from tinygpu.term.operation import Problem, elementwise, matmul
from tinygpu.term.schedule import Schedule, from_json

FAKE = """
import base64, hashlib, json, pickle, time
from pathlib import Path
from tinygpu.codegen.run.worker import serve
from tinygpu.deadline import NEVER, Deadline
from tinygpu.devices.device import load_device
from tinygpu.machines import MACHINES
from tinygpu.term.schedule import Schedule
from tinygpu.search.time.cost import cost

DEVICE = load_device("h200")

def noise(name, rounds):
    digest = hashlib.md5(f"{name} {rounds}".encode()).hexdigest()
    return 1 + int(digest, 16) % 1000 / 5000

def model(name, packed):
    problem, told = pickle.loads(base64.b64decode(packed)), json.loads(name)
    schedule = Schedule(told["machine"], tuple(told["decisions"].items()))
    program = schedule.program(MACHINES[schedule.machine], problem.operation)
    early = 0.5 if program.early else 1.0
    return early * float(cost(program, problem.sizes, DEVICE).seconds)

def handle(request):
    doing = request["do"]
    if doing == "hello":
        return {"arch": "sm_90a", "device": "pretended", "driver": "1"}
    said = json.loads(Path(FOLDER, "said.json").read_text())
    if doing == "draw":
        time.sleep(said["draw_sleeps"])
        return {}
    what = [doing]
    if doing == "time":
        count = len(request["kernels"])
        what += [request["rounds"], count - (request["rounds"] == 3 and request["against"] != "")]
    with open(FOLDER + "/log", "a") as log:
        log.write(json.dumps(what) + "\\n")
    if doing == "peers":
        return {"names": list(said["peers"]) if request["module"] in said["modules"] else []}
    if doing == "validate":
        peer = request.get("peer", "").rpartition(":")[2]
        if peer:
            time.sleep(said["peer_sleeps"])
        time.sleep(said["kernel_sleeps"] * ("kernel" in request))
        wrong = "kernel" in request and said["fails"] or peer == "algorithm_1"
        return {"error": 100.0 if wrong else 0.5}
    seconds, failures = {}, {}
    for name in request["kernels"]:
        seconds[name] = model(name, request["problem"]) * noise(name, request["rounds"])
    for name, peer in request["peers"].items():
        seconds[name] = said["peers"][peer.rpartition(":")[2]]
        if not seconds[name]:
            failures[name] = "RuntimeError: not while a graph is captured"
    told = dict(rounds=request["rounds"], clock_mhz=1700, capped=True, error=0.5)
    told["spread"] = said["spread"]
    return {
        "timings": {name: {"seconds": s, **told} for name, s in seconds.items() if s},
        "failures": failures,
    }

if __name__ == "__main__":
    serve(handle)
"""
PEERS = {"algorithm_0": 3e-3, "algorithm_1": 1e-3, "algorithm_2": None, "algorithm_3": 1e-3,
         "algorithm_4": 2e-3}  # fmt: skip
"""The worker says that number 1 is wrong, and that 2 cannot be captured."""
DEVICE = load_device("h200")
PROBLEM = Problem.of(matmul(), m=256, n=256, k=256)
OPEN: dict[str, tuple[Value, ...]] = {
    "tile_m": (32, 64, 128),
    "tile_n": (32, 64, 128),
    "thread_m": (4, 8),
    "thread_n": (4, 8),
    "tile_k": (8, 16, 32),
    "ctas_per_sm": (1, 2, 4),
    "raster": (1, 4, 8),
    "vector_c": (1, 2, 4),
}


KNOWN: dict[tuple[str, str], float] = {}
"""What the worker's model says of a schedule and a problem, asked once for all tests."""


def known(model: Callable[[str, str], float], name: str, packed: str) -> float:
    asked = (name, packed)
    if asked not in KNOWN:
        KNOWN[asked] = model(*asked)
    return KNOWN[asked]


class Fake:
    """The worker's options, what it shall do, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        script = folder / "fake.py"
        script.write_text(f"FOLDER = {str(folder)!r}\n{FAKE}")
        self.options = replace(COARSE, worker=(sys.executable, str(script)))
        self.handle: dict[str, Any] = {"__name__": "here"}
        exec(script.read_text(), self.handle)
        self.handle["model"] = partial(known, self.handle["model"])
        self.say()

    def say(self, **what: Any) -> None:
        usual = {"peers": PEERS, "modules": [CUBLASLT], "fails": False, "peer_sleeps": 0.0,
                 "kernel_sleeps": 0.0, "draw_sleeps": 0.0, "spread": 0.0}  # fmt: skip
        self.sleeps = what.keys() & {"peer_sleeps", "kernel_sleeps", "draw_sleeps"}
        (self.folder / "said.json").write_text(json.dumps(usual | what))

    def worker(self, command: Sequence[str] = ()) -> Worker | Here:
        """Return a process where it sleeps or is another; it takes half a second to begin."""
        if self.sleeps or tuple(command) != self.options.worker:
            return Worker(command)
        return Here(self.handle["handle"])

    def asked(self) -> list[list[Any]]:
        """Return what was asked since the last call."""
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]


class Here:
    """A worker in this process; what it is asked, and answers, is JSON all the same."""

    def __init__(self, handle: Callable[[Any], Any]) -> None:
        self._handle = handle

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, limit_seconds: float, request: Mapping[str, Any] | None = None) -> None:
        if request:
            self.ask(request, limit_seconds)

    def ask(self, request: Mapping[str, Any], limit_seconds: float) -> Any:
        return json.loads(json.dumps(self._handle(json.loads(json.dumps(request)))))


MEANINGS = climbing._meanings


@pytest.fixture
def fake(tmp_path: Path, card: Card, believed: None) -> Fake:
    """Nothing is assembled or asked what it computes, and the command uses the worker, too."""
    (tmp_path / "worker").mkdir()
    one = Fake(tmp_path / "worker")
    card.measuring(worker=one.worker, options=one.options)
    return one


def space_of(
    machine: Machine, problem: Problem, fixed: Mapping[str, Value | tuple[Value, ...]]
) -> Space:
    return Space(machine, problem, DEVICE, fixed=fixed)


@pytest.fixture(scope="module")
def simt() -> Space:
    return space_of(Simt(), PROBLEM, {**LADDER["tuned"], **OPEN})


@cache
def ranked(space: Space, count: int) -> tuple[Candidate, ...]:
    found = rank(space, count, spread=space.machine.spread, exact=False).best
    return tuple(Candidate(one.schedule, one.seconds) for one in found)


def first_of(space: Space, count: int = 6) -> list[Candidate]:
    """The first of a space, which most tests begin with: ranked once."""
    return list(ranked(space, count))


def times(found: Tuned) -> list[float | None]:
    return [m.seconds for _, m in found.finalists]


def test_the_winner_is_the_fastest_under_load(
    simt: Space, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fastest in bursts meet again round robin, with the best peers that ran."""
    monkeypatch.setattr(climbing, "_meanings", MEANINGS)
    first = first_of(simt)
    found = climb([simt], first, effort=Effort(finalists=5))
    assert found.settled
    assert times(found) == sorted(m.seconds or math.inf for _, m in found.finalists)
    assert {m.rounds for _, m in found.finalists} == {SUSTAINED.rounds}
    assert {m.rounds for m in found.evaluated.values()} == {COARSE.rounds}
    coarse = {s: m.seconds or math.inf for s, m in found.evaluated.items()}
    fastest = sorted(coarse, key=coarse.__getitem__)[:5]
    assert first[0].schedule not in fastest  # it is there as well
    assert {c.schedule for c, _ in found.finalists} == {*fastest, first[0].schedule}
    assert found.first == first[0].schedule
    assert found.meanings
    assert not any(one.wrong for one in found.meanings.values())
    assert {*found.meanings} <= {c.schedule for c, _ in found.finalists}
    assert [found.first_seconds] == [
        m.seconds for c, m in found.finalists if c.schedule == first[0].schedule
    ]
    assert found.finalists[0][0].schedule != min(coarse, key=coarse.__getitem__)  # noise decides
    for candidate, _ in found.finalists:
        assert candidate.predicted_seconds == found.predicted[candidate.schedule]
        assert check_schedule(candidate.schedule, Simt(), PROBLEM, DEVICE) == ()
    assert [peer_of(m) for m in found.peers] == [f"{CUBLASLT}:algorithm_{i}" for i in (3, 4)]
    assert [m.seconds for m in found.peers] == [1e-3, 2e-3]
    assert {m.rounds for m in found.peers} == {SUSTAINED.rounds}
    assert fake.asked()[-1] == ["time", SUSTAINED.rounds, 6]  # all in one batch


def test_no_change_of_the_best_is_left_that_the_model_thinks_faster(
    simt: Space, fake: Fake
) -> None:
    """It ends where every change of the fastest was measured or is too slow by its bound."""
    found = climb([simt], first_of(simt, 2), peers=())
    seconds = {s: m.seconds or math.inf for s, m in found.evaluated.items()}
    best = min(seconds, key=seconds.__getitem__)
    assert found.settled
    assert len(found.evaluated) > 10
    for change in Neighbourhood(simt)(best):
        slow = change.predicted_seconds >= 0.9 * seconds[best]
        assert change.schedule in found.evaluated or slow
    assert found.peers == ()


def test_of_those_that_tie_the_plainest_is_named(simt: Space, fake: Fake) -> None:
    """All within the noise of the fastest stand first, in an order that no time enters."""
    first = first_of(simt)
    apart = climb([simt], first, effort=Effort(finalists=5, evaluations=12), peers=())
    fake.say(spread=2.0)
    tied = climb([simt], first, effort=Effort(finalists=5, evaluations=12), peers=())
    schedules = [c.schedule for c, _ in tied.finalists]
    assert schedules == sorted(schedules, key=lambda one: plainness(one, 40))
    assert set(schedules) == {c.schedule for c, _ in apart.finalists}
    assert schedules != [c.schedule for c, _ in apart.finalists]


@pytest.mark.parametrize(("most", "names"), [(3, ["algorithm_0"]), (0, [])])
def test_only_the_first_peers_are_measured(
    most: int, names: list[str], simt: Space, fake: Fake
) -> None:
    """A module's peers are as many as asked for; those that fail are left out; none is no error."""
    found = climb([simt], first_of(simt, 2), most_peers=most, effort=Effort(evaluations=2))
    assert [peer_of(m).rpartition(":")[2] for m in found.peers] == names
    assert found.finalists[0][1].ok


def test_the_best_peers_of_each_module_are_in_the_final(simt: Space, fake: Fake) -> None:
    """Two of each; a module that has none is none."""
    fake.say(modules=[CUBLASLT, "some.peers"])
    modules = ("none.here", "some.peers", CUBLASLT)
    found = climb([simt], first_of(simt, 2), peers=modules, effort=Effort(evaluations=2))
    wanted = {f"{m}:algorithm_{i}" for m in modules[1:] for i in (3, 4)}
    assert {peer_of(m) for m in found.peers} == wanted
    assert len(found.peers) == 4


@pytest.mark.parametrize("budget", [1, 13])
def test_a_budget_of_evaluations_is_kept(budget: int, simt: Space, fake: Fake) -> None:
    """Exactly as many are measured, and progress says so."""
    told: list[tuple[int, int | None, float]] = []
    found = climb(
        [simt], first_of(simt), effort=Effort(evaluations=budget), peers=(),
        tell=lambda *what: told.append(what),
    )  # fmt: skip
    assert len(found.evaluated) == budget
    assert not found.settled
    assert len(found.finalists) == min(budget, 10)
    assert told[-1] == (budget, budget, min(m.seconds or 0 for m in found.evaluated.values()))
    assert [done for done, _, _ in told] == sorted({done for done, _, _ in told})
    assert [best for _, _, best in told] == sorted((b for _, _, b in told), reverse=True)


def test_peers_cost_no_budget(simt: Space, fake: Fake) -> None:
    """However long they take, schedules are measured then; what they take ends the search."""
    fake.say(peer_sleeps=0.1)
    found = climb([simt], first_of(simt, 2), effort=Effort(seconds=0.3))
    assert found.finalists[0][1].ok
    moment = climb([simt], first_of(simt), effort=Effort(seconds=0.001), peers=())
    assert len(moment.evaluated) == BATCH  # a batch is finished
    assert not moment.settled


def test_it_ends_by_its_deadline_whatever_is_slow(
    simt: Space, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Candidates that take long leave time for the final, whose rounds are as many as fit."""
    monkeypatch.setattr(measure, "_TIMING_SECONDS", 0.3)
    fake.say(kernel_sleeps=0.15, peer_sleeps=0.05)
    begun = time.monotonic()
    until = Deadline.within(4.0, time.monotonic)
    found = climb([simt], first_of(simt), effort=Effort(finalists=3), until=until)
    assert time.monotonic() - begun < 4.0 + 1.0
    assert not found.settled
    assert found.finalists[0][1].seconds
    assert 1 <= len(found.evaluated) < 30
    assert {m.reason for m in found.evaluated.values()} == {""}
    assert COARSE.rounds < found.finalists[0][1].rounds <= SUSTAINED.rounds


def test_without_time_for_a_final_the_coarse_times_count(simt: Space, fake: Fake) -> None:
    """Its peers' are those of the first batch, the best two."""
    now = [0.0]
    found = climb(
        [simt], first_of(simt, 3), effort=Effort(finalists=3), tell=lambda *_: now.append(99.0),
        until=Deadline.within(50.0, lambda: now[-1]),
    )  # fmt: skip
    assert {m.rounds for _, m in found.finalists} == {COARSE.rounds}
    assert [peer_of(m).rpartition(":")[2] for m in found.peers] == ["algorithm_3", "algorithm_4"]


def test_a_candidate_that_the_deadline_cuts_off_is_not_said_to_hang(
    simt: Space, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store knows nothing of it: the next search measures it."""
    monkeypatch.setattr(measure, "_LEAST_SECONDS", 0.2)
    monkeypatch.setattr(measure, "_TIMING_SECONDS", 0.3)
    monkeypatch.setattr(climbing, "_LATE_SECONDS", 0.5)
    fake.say(kernel_sleeps=30.0)
    begun = time.monotonic()
    with Store(tmp_path / "store.db") as store:
        with pytest.raises(LaunchError, match="give a longer --budget"):
            climb(
                [simt], first_of(simt), store=store, peers=(),
                until=Deadline.within(2.0, time.monotonic),
            )  # fmt: skip
        assert time.monotonic() - begun < 10  # not the 30 that it sleeps
        assert len(store) == 0


def test_a_card_that_begins_late_measures_the_first(simt: Space, fake: Fake) -> None:
    """The time is over before anything ran: the model's first is measured all the same."""
    first = first_of(simt)
    until = Deadline.within(0.0, time.monotonic)
    found = climb([simt], first, effort=Effort(finalists=3), peers=(), until=until)
    assert list(found.evaluated) == [first[0].schedule]
    assert found.finalists[0][1].seconds
    assert not found.settled


def test_data_that_take_long_are_waited_for(simt: Space, fake: Fake) -> None:
    """Drawing is longer than a request may take that begins in time: no kernel seems to hang."""
    fake.say(draw_sleeps=3.5)
    until = Deadline.within(2.0, time.monotonic)
    found = climb([simt], first_of(simt), effort=Effort(finalists=3), peers=(), until=until)
    assert found.finalists[0][1].seconds


def test_what_is_built_when_the_time_is_over_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of each process is quick; the second takes for ever, and the process is killed."""
    script = tmp_path / "builder.py"
    script.write_text(
        "import json, sys, time\n"
        "told = [{'error': 'x'}]\n"
        "for line in sys.stdin:\n"
        "    building = 'build' in line\n"
        "    if building and not told: time.sleep(60)\n"
        "    print(json.dumps(told.pop() if building else {}), flush=True)\n"
    )
    monkeypatch.setattr(build, "_COMMAND", (sys.executable, str(script)))
    program = Schedule.of(Simt(), LADDER["naive"]).program(Simt(), PROBLEM.operation)
    wanted = [(program, "sm_90a", None)] * 4
    with Builders(2) as builders:
        for _ in range(2):
            begun = time.monotonic()
            found = list(builders.each(wanted, Deadline.within(1.5, time.monotonic)))
            assert time.monotonic() - begun < 3.0
            assert [str(one) for one in found] == ["x", "x"]


def test_the_command_answers_within_its_budget_and_ten_seconds(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here three, so that the test is short: every phase takes what is left."""
    monkeypatch.setattr(tuning, "BESIDE_SECONDS", 3.0)
    monkeypatch.setattr(tuning, "_TELLING_SECONDS", 0.5)
    monkeypatch.setattr(measure, "_TIMING_SECONDS", 0.3)
    fake.say(kernel_sleeps=0.2, peer_sleeps=0.2)
    begun = time.monotonic()
    tree = searched(tmp_path / "out", "--budget", "2", "--top", "3")
    assert time.monotonic() - begun < 2.0 + 3.0 + 1.5
    assert not tree["settled"]
    assert tree["best"][0]["seconds"]


def test_a_ranking_without_time_has_the_best_met(simt: Space) -> None:
    """The best met of one batch, and not proven."""
    over = Deadline.within(0.0, time.monotonic)
    some = rank(simt, 6, spread=simt.machine.spread, exact=False, until=over)
    every = rank(simt, 6, spread=simt.machine.spread, exact=False)
    assert 1 <= len(some.best) <= 6
    assert some.scored <= every.scored
    assert not some.proven


def test_one_that_starts_in_order_is_in_the_final(fake: Fake) -> None:
    """Where all of the fastest start early: the best that does not, measured before or not."""
    problem = Problem.of(matmul("bf16", layout="nt"), m=512, n=512, k=512)
    open_: dict[str, tuple[Value, ...]] = {"early": (0, 1), "raster": (1, 2), "stages": (3, 4, 5)}
    space = space_of(Hopper(), problem, {**HOPPER["ring"], **open_})
    effort = Effort(evaluations=4, finalists=3, strategy="model")
    found = climb([space], first_of(space), effort=effort, peers=())
    assert {s["early"] for s in found.evaluated} == {1}
    *fastest, (last, timed) = found.finalists
    assert [c.schedule["early"] for c, _ in fastest] == [1, 1, 1]
    best = min(found.evaluated, key=lambda s: found.evaluated[s].seconds or math.inf)
    assert last.schedule == best.with_(early=0)
    assert timed.ok
    first = [Candidate(s, 1e-5) for s in space]
    found = climb([space], first, effort=Effort(finalists=3), peers=())
    slow = {s: m.seconds or math.inf for s, m in found.evaluated.items() if not s["early"]}
    in_order = [c.schedule for c, _ in found.finalists if not c.schedule["early"]]
    assert set(in_order) == {min(slow, key=slow.__getitem__), first[0].schedule}


def test_machines_are_ranked_together(fake: Fake) -> None:
    """Each schedule is changed within its machine's space, and the fastest of all win."""
    problem = Problem.of(matmul("bf16", layout="nt"), m=512, n=512, k=512)
    spaces = [
        space_of(Hopper(), problem, {**HOPPER["ring"], "stages": (2, 3, 4), "early": 0}),
        space_of(Ampere(), problem, {**AMPERE["ring"], "stages": (2, 3, 4)}),
    ]
    first = [one for space in spaces for one in first_of(space, 1)]
    found = climb(spaces, first, peers=())
    machines = [c.schedule.machine for c, _ in found.finalists]
    assert machines.count("hopper") in (1, 2, 3)
    assert machines.count("ampere") in (1, 2)
    assert times(found) == sorted(m.seconds or math.inf for _, m in found.finalists)


def test_schedules_of_a_machine_without_spread_are_all_apart(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several of them are changed, not only the fastest."""
    operation = elementwise(value("a") * value("x") + value("b"), inputs=("x",))
    problem = Problem.of(operation, i=1 << 20)
    space = space_of(Elementwise(), problem, {"vector": (1, 4), "threads": (128, 256)})
    parents: list[Schedule] = []
    changes = Neighbourhood.__call__

    def noted(self: Neighbourhood, schedule: Schedule) -> list[Candidate]:
        parents.append(schedule)
        return changes(self, schedule)

    monkeypatch.setattr(Neighbourhood, "__call__", noted)
    found = climb([space], first_of(space), peers=())
    assert len(set(parents)) == len(parents) >= 3
    assert found.finalists[0][1].ok


def test_a_search_goes_on_from_the_store(simt: Space, fake: Fake, tmp_path: Path) -> None:
    """The same search again measures the finals alone; a larger budget, only what is new."""
    first = first_of(simt)

    def again(evaluations: int) -> tuple[Tuned, list[int]]:
        fake.asked()
        with Store(tmp_path / "store.db") as store:
            found = climb(
                [simt], first, store=store, effort=Effort(evaluations=evaluations, finalists=4)
            )
        asked = fake.asked()
        coarse = [one[2] for one in asked if one[:2] == ["time", COARSE.rounds]]
        assert [one[2] for one in asked if one[:2] == ["time", SUSTAINED.rounds]] == [5]
        assert [one[0] for one in asked].count("validate") <= sum(coarse) + 5 + len(PEERS)
        return found, coarse

    found, coarse = again(12)
    assert sum(coarse) == 12
    same, nothing = again(12)
    assert (same, nothing) == (found, [])
    more, new = again(20)
    assert sum(new) == 8
    assert found.evaluated.items() < more.evaluated.items()


def test_nothing_that_runs_is_an_error(simt: Space, fake: Fake) -> None:
    """With how many were tried and the reason of the first; without any, that too."""
    fake.say(fails=True)
    with pytest.raises(LaunchError, match=r"none of \d+ schedules ran; the first: it is wrong"):
        climb([simt], first_of(simt), peers=())
    with pytest.raises(LaunchError, match="none of 0 schedules ran; the first: there was none"):
        climb([simt], [])
    options = Options(worker=(sys.executable, "-c", "raise SystemExit('no GPU here')"))
    with pytest.raises(LaunchError, match="no GPU here"):
        climb([simt], first_of(simt), options=options)


def test_schedules_are_measured_beside_the_best_algorithm(simt: Space, fake: Fake) -> None:
    """``measured`` gives each its time, in order, and then the fastest peer that ran, if any."""
    schedules = [c.schedule for c in first_of(simt)][::-1]
    seen: list[tuple[int, int]] = []
    options = replace(fake.options, rounds=5)
    *mine, peer = measured(simt, schedules, options=options, progress=lambda *at: seen.append(at))
    assert [m.schedule for m in mine] == [describe(PROBLEM, s)[2] for s in schedules]
    assert (peer_of(peer), peer.seconds) == (f"{CUBLASLT}:algorithm_3", 1e-3)
    assert {m.rounds for m in (*mine, peer)} == {5}
    assert seen == [(i + 1, 6 + len(PEERS)) for i in range(6 + len(PEERS))]
    fake.say(modules=[])
    assert measured(simt, schedules, options=options) == mine


# The command line.


def test_a_script_tunes_a_problem_as_the_command_does(fake: Fake, card: Card) -> None:
    """Given the problem alone: machines, ranking, the measuring process and the climb follow."""
    effort, shown = Effort(seconds=30, evaluations=6, finalists=2), list[str]()

    @contextmanager
    def watch(text: str) -> Iterator[Callable[..., None]]:
        shown.append(text)
        yield lambda *_: None

    tuned = {name: (choice,) for name, choice in LADDER["tuned"].items()}
    machines = [few(Simt, {**tuned, **OPEN}), MACHINES["elementwise"]]  # which does no matmul
    found = tune(PROBLEM, device=DEVICE, machines=machines, effort=effort, watch=watch)
    assert {c.schedule.machine for c, _ in found.finalists} == {"simt"}
    assert found.first in {c.schedule for c, _ in found.finalists}
    assert 0 < len(found.evaluated) <= 6  # fewer where the cores have other work
    assert shown == ["search simt", "measure"]
    card.named("pretended")
    with pytest.raises(DeviceError, match=r"no file is of pretended; tinygpu calibrate"):
        tune(PROBLEM, effort=effort)
    with pytest.raises(OperationError, match="no machine that ships does it"):
        tune(PROBLEM, device=DEVICE, machines=[MACHINES["elementwise"], MACHINES["rows"]])
    card.missing("GPU: there is none")
    with pytest.raises(LaunchError, match="GPU: there is none"):
        tune(PROBLEM, device=DEVICE)


def test_what_computes_something_else_is_no_finalist(
    simt: Space, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named with the reason; if all do, that is an error."""
    bad = first_of(simt)[0].schedule

    def found(programs: Mapping[Schedule, Any], until: Deadline) -> dict[Schedule, Any]:
        return {s: SimpleNamespace(wrong=s == bad or everything, __str__=str) for s in programs}

    everything = False
    monkeypatch.setattr(climbing, "_meanings", found)
    tuned = climb([simt], first_of(simt), effort=Effort(evaluations=8, finalists=8), peers=())
    assert bad not in {c.schedule for c, _ in tuned.finalists}
    assert [text.startswith(str(bad)) for text in tuned.wrong] == [True]
    everything = True
    with pytest.raises(IllegalScheduleError, match="computes: "):
        climb([simt], first_of(simt), effort=Effort(evaluations=8), peers=())


def fixes(values: Mapping[str, Value | tuple[Value, ...]]) -> list[str]:
    """Return the options that narrow decisions so."""
    several = {n: v if isinstance(v, tuple) else (v,) for n, v in values.items()}
    return [part for n, v in several.items() for part in ("--fix", f"{n}={','.join(map(str, v))}")]


SIZES = ["--machine", "simt", "-m", "256", "-n", "256", "-k", "256"]
SEARCH = ["search", "matmul", *SIZES, *fixes({**LADDER["tuned"], **OPEN})]


def tinygpu(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def searched(out: Path, *words: object) -> dict[str, Any]:
    """Search by measuring; return what was written of it."""
    result = tinygpu(*SEARCH, "--measure", "--out", out, *words)
    assert result.exit_code == 0, result.output
    tree: dict[str, Any] = json.loads((out / "search.json").read_text())
    return tree


def kept(out: Path) -> dict[str, bytes]:
    """Return the files of a folder, the store's left out."""
    return {p.name: p.read_bytes() for p in out.iterdir() if not p.name.startswith("store.db")}


def test_the_command_measures_and_writes(fake: Fake, tmp_path: Path) -> None:
    """A file for each finalist, the fastest first, and all that was found in ``search.json``."""
    out = tmp_path / "out"
    result = tinygpu(*SEARCH, "--measure", "--out", out, "--top", "4", "--evaluations", "12")
    assert result.exit_code == 0, result.output
    tree = json.loads((out / "search.json").read_text())
    assert len(tree["best"]) in (4, 5)  # the model's first is there as well
    assert set(kept(out)) == {f"{row['rank']:02}.json" for row in tree["best"]} | {"search.json"}
    assert (tree["evaluations"], tree["settled"], tree["measured_on"]) == (12, False, "pretended")
    assert [row["seconds"] for row in tree["best"]] == sorted(r["seconds"] for r in tree["best"])
    problem = [
        Candidate(one.schedule, one.seconds)
        for one in rank(
            space_of(Simt(), PROBLEM, {**LADDER["tuned"], **OPEN}),
            96,
            spread=Simt.spread,
            exact=False,
        ).best
    ]
    spreads = [tuple(c.schedule[n] for n in Simt.spread) for c in problem]
    for number, row in enumerate(tree["best"], 1):
        machine, found, schedule = from_json((out / f"{number:02}.json").read_text(), MACHINES)[:3]
        assert (machine.name, found) == ("simt", PROBLEM)
        assert dict(schedule.decisions) == row["decisions"]
        assert row["rank"] == number
        assert row["place"] == spreads.index(tuple(schedule[n] for n in Simt.spread)) + 1
        assert row["predicted_seconds"] > 0
        assert row["power_capped"]
    assert [(p["name"], p["seconds"]) for p in tree["peers"]] == [
        ("cublaslt:algorithm_3", 1e-3), ("cublaslt:algorithm_4", 2e-3),
    ]  # fmt: skip
    assert tree["cublas_seconds"] == 1e-3
    assert tree["best"][tree["model_first"] - 1]["decisions"] == dict(problem[0].schedule.decisions)
    assert f"the model's first choice is number {tree['model_first']} of these" in result.output
    assert tree["failed"] == []
    assert tree["provenance"]["commit"]
    assert "12 measured, until the budget was spent" in result.stdout
    assert "the best of cuBLASLt (cublaslt:algorithm_3): 1.000 ms" in result.stdout
    with Store(out / "store.db") as store:
        assert len(store) == 12 + len(PEERS)


def test_the_command_goes_on(fake: Fake, tmp_path: Path) -> None:
    """The second time it measures the finals alone; without a budget, until it is settled."""
    words = ("--top", "3", "--evaluations", "10")
    first = searched(tmp_path / "out", *words)
    fake.asked()
    again = searched(tmp_path / "out", *words)
    assert [one[1] for one in fake.asked() if one[0] == "time"] == [SUSTAINED.rounds]
    assert [row["decisions"] for row in again["best"]] == [r["decisions"] for r in first["best"]]
    assert searched(tmp_path / "out", "--top", "3")["settled"]


@pytest.mark.parametrize("when", ["ranking", "climbing", "finals"])
def test_an_interrupt_leaves_the_earlier_search(
    when: str, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are as they were, to the byte; what was measured is in the store."""
    out = tmp_path / "out"
    searched(out, "--top", "3", "--evaluations", "4")
    before = kept(out)
    calls: list[str] = []

    def stopping(name: str, real: Callable[..., Any], allowed: int) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            calls.append(name)
            if len(calls) > allowed:
                raise KeyboardInterrupt
            return real(*given, **named)

        return called

    target, allowed = {
        "ranking": ("tinygpu.search.tuning.ranking.rank", 0),
        "climbing": ("tinygpu.search.tuning.climb._Climb.evaluate", 1),
        "finals": ("tinygpu.search.tuning.climb._Climb.final", 0),
    }[when]
    real = rank if when == "ranking" else getattr(climbing._Climb, target.rpartition(".")[2])
    with monkeypatch.context() as patched:
        patched.setattr(target, stopping(target, real, allowed))
        words = ("--measure", "--out", out, "--top", "2", "--evaluations", "12")
        result = tinygpu(*SEARCH, *words)
    assert result.exit_code == 130
    assert len(calls) == allowed + 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert "goes on" in result.stderr
    assert kept(out) == before
    with Store(out / "store.db") as store:
        known = len(store)
    assert known == {"ranking": 4, "climbing": BATCH}.get(when, known) + len(PEERS) * (
        when != "finals"
    )
    fake.asked()
    searched(out, "--top", "2", "--evaluations", "12")
    coarse = sum(one[2] for one in fake.asked() if one[:2] == ["time", COARSE.rounds])
    assert coarse == 12 + len(PEERS) - known


def sizes(*axes: str) -> list[str]:
    return [word for axis in axes for word in (f"-{axis}", "4096")]


def test_what_finds_nothing_leaves_the_earlier_search(fake: Fake, tmp_path: Path) -> None:
    """An illegal problem, or schedules none of which runs: one line, and not a byte is changed."""
    out = tmp_path / "out"
    searched(out, "--top", "3", "--evaluations", "3")
    (out / "store.db").unlink()
    before = kept(out)
    fake.say(fails=True)
    for words, told in (
        (["search", "matmul", "-m", "0", *sizes("n", "k")], "at least 1"),
        (
            ["search", "matmul", *sizes("m", "n", "k"), "--machine", "simt", "--fix", "vector_k=3"],
            "did you mean vector_",
        ),
        (
            ["search", "matmul", "--machine", "ampere", "-n", "1", *sizes("m", "k")],
            "no schedule of ampere",
        ),
        ([*SEARCH, "--evaluations", "3"], "none of 3 schedules ran; the first: it is wrong"),
    ):
        result = tinygpu(*words, "--measure", "--replace", "--out", out)
        assert result.exit_code == 2
        (line,) = result.stderr.strip().splitlines()
        assert line.startswith("error: ")
        assert told in line
        assert kept(out) == before


def test_the_folder_holds_one_search(fake: Fake, tmp_path: Path) -> None:
    """Files of an earlier search are removed by one that found fewer; a user's own stay."""
    out = tmp_path / "out"
    searched(out, "--top", "5", "--evaluations", "6")
    for name in ("2048.json", "6.json", "notes.json", "99.txt"):
        (out / name).write_text("mine")
    tree = searched(out, "--top", "2", "--evaluations", "6")
    mine = {"2048.json", "6.json", "notes.json", "99.txt"}
    few = len(tree["best"])  # the two, and the model's first
    assert 2 <= few <= 3
    assert set(kept(out)) == {*(f"{i + 1:02}.json" for i in range(few)), "search.json", *mine}
    result = tinygpu(*SEARCH, "--top", "1", "--replace", "--out", out)  # under the model alone
    assert result.exit_code == 0, result.output
    assert set(kept(out)) == {"01.json", "search.json", *mine}
    assert "evaluations" not in json.loads((out / "search.json").read_text())


def test_what_a_solver_pipelined_is_measured_first(fake: Fake) -> None:
    """The strategy ``smt`` starts from the loop that z3 chose, and goes on in the model's order."""
    problem = Problem.of(matmul("bf16", layout="nt"), m=512, n=512, k=512)
    fixed: dict[str, Any] = {"consumers": 1, "tile_n": (64, 128), "tile_k": 64, "tile_m": 64}
    space = Space(Hopper(), problem, DEVICE, fixed=fixed | {"store_n": 64, "epilogue": "direct"})
    both = pipeline(space)
    assert both is not None
    first = first_of(space, 2)
    found = climb([space], first, peers=(), effort=Effort(strategy="smt", evaluations=3))
    wanted = dict.fromkeys((both[1], *(c.schedule for c in first)))
    assert list(found.evaluated) == list(wanted)[:3]
    assert found.predicted[both[1]] > 0
