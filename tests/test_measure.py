from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import peers
from tests.fake_gpu import Card
from tests.online_rows import C, weighted
from tinygpu.codegen.run import assemble, validation
from tinygpu.codegen.run.measure import Base, Campaign, Options, measure, peer_of
from tinygpu.codegen.run.provenance import Clock, commit, provenance
from tinygpu.codegen.run.scoreboards import Hazard, SassInstruction, Waits
from tinygpu.codegen.run.timing import summary
from tinygpu.codegen.run.worker import Worker
from tinygpu.deadline import NEVER
from tinygpu.errors import LaunchError, StoreError
from tinygpu.isa.memory import DTYPES
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.meaning.inputs import KINDS
from tinygpu.meaning.tolerance import between, loose, usual_narrowing
from tinygpu.search.store import Store
from tinygpu.space.measurement import Key, Measurement
from tinygpu.term.machine import Value
from tinygpu.term.operation import Problem, attention, elementwise, matmul
from tinygpu.term.program import Program
from tinygpu.term.schedule import Schedule

PROBLEM = Problem.of(matmul(), m=64, n=64, k=64)
FAKE = """
import json, os, sys, time
import tinygpu.term.program  # now: what it takes to load is not the first candidate's time
from tinygpu.codegen.run.worker import serve
from tinygpu.deadline import NEVER
from tinygpu.errors import LaunchError, StoreError

SECONDS = {32: 3e-3, 64: 2e-3, 128: 1e-3}

def what(name):
    return json.loads(name)["decisions"]["raster"]

def misbehave(raster, doing):
    # raster tells the candidates apart: 2 hangs, 4 dies, 8 is wrong, 16 goes wrong when timed
    if raster == 2:
        time.sleep(1000)
    if raster == 4:
        print("illegal address", file=sys.stderr)
        os._exit(7)

def handle(request):
    print("noise that must not reach the answers")
    doing = request["do"]
    if doing == "hello":
        open(LOG + ".workers", "a").write(f"{os.getpid()}\\n")
        return {"arch": "sm_90a", "device": "fake", "driver": "1"}
    open(LOG, "a").write(doing + "\\n")
    if doing == "peers":
        return {"names": ["fast", "slow"]} if request["module"] == "some.module" else {"names": []}
    if doing == "validate":
        if "peer" in request:
            if request["peer"] == "missing:peer":
                raise LaunchError("no such peer")
            return {"error": 4.0 if request["peer"] == "some.module:rough" else 0.25}
        raster = what(request["name"])
        misbehave(raster, doing)
        return {"error": float("inf") if raster == 8 else 0.5}
    timings = {}
    for name in request["kernels"]:
        raster = what(name)
        if raster == 16 and MODE == "die":
            os._exit(1)
        drift = 2.0 if MODE == "drift" and request["against"] else 1.0
        ctas = json.loads(name)["decisions"]["ctas_per_sm"]
        timings[name] = dict(seconds=1e-3 * raster * ctas * drift, spread=0.1,
                             rounds=request["rounds"], clock_mhz=1700, capped=False,
                             error=3.0 if raster == 16 else 0.5)
    failures = {}
    for name, peer in request["peers"].items():
        if peer == "some.module:spoils":
            raise RuntimeError("a library may not do this during stream capture")
        if peer == "some.module:refuses":
            failures[name] = "RuntimeError: not while a graph is captured"
            continue
        error = 4.0 if peer == "some.module:rough" else 0
        timings[name] = dict(
            seconds=5e-4, spread=0.0, rounds=1, clock_mhz=1, capped=True, error=error
        )
    return {"timings": timings, "failures": failures}

serve(handle)
"""


class Kept:
    """A store for tests: a dict, and what was put, in order.  Empty, it is false, as a Store is."""

    def __init__(self) -> None:
        self.known: dict[Key, Measurement] = {}
        self.puts: list[Measurement] = []

    def __len__(self) -> int:
        return len(self.known)

    def get(self, key: Key) -> Measurement | None:
        return self.known.get(key)

    def put(self, measurement: Measurement) -> None:
        self.known[measurement.key] = measurement
        self.puts.append(measurement)


class Fake:
    """Options that measure with the fake worker, and what it was asked to do."""

    def __init__(self, folder: Path, mode: str = "") -> None:
        self.log = folder / "log"
        script = folder / "fake.py"
        script.write_text(f"LOG = {str(self.log)!r}\nMODE = {mode!r}\n" + FAKE)
        self.options = Options(worker=(sys.executable, str(script)), limit_seconds=1.0)

    @property
    def asked(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []

    @property
    def workers(self) -> set[str]:
        return set(Path(f"{self.log}.workers").read_text().split())


def schedules(*rasters: int) -> list[Schedule]:
    naive = Schedule.of(Simt(), LADDER["coalesced"])
    return [naive.with_(raster=raster) for raster in rasters]


def programs(*rasters: int) -> dict[Schedule, Program]:
    return {s: s.program(Simt(), PROBLEM.operation) for s in schedules(*rasters)}


def test_the_watchdog_goes_on(tmp_path: Path) -> None:
    """A candidate that hangs, dies or is wrong is recorded so; the others are measured."""
    fake, kept = Fake(tmp_path), Kept()
    seen: list[tuple[int, int]] = []
    start = time.monotonic()
    found = measure(
        [*schedules(2), *(s.with_(ctas_per_sm=2) for s in schedules(2)), *schedules(1, 4, 8, 16)],
        Simt(),
        PROBLEM,
        store=kept,
        progress=lambda done, total: seen.append((done, total)),
        options=fake.options,
    )
    hung, again, right, died, wrong, late = found
    assert time.monotonic() - start < 60
    assert hung.reason == again.reason == "it hangs: no answer in 1 s"
    assert "died with status 7: illegal address" in died.reason
    assert "it is wrong: its worst error is not finite" in wrong.reason
    assert "3 times what rounding allows" in late.reason
    assert [m.ok for m in found] == [False, False, True, False, False, False]
    assert right.seconds == 1e-3
    assert (right.device, right.driver, right.clock_mhz, right.rounds) == ("fake", "1", 1700, 7)
    assert {m.key for m in kept.puts} == {m.key for m in found}
    assert [done for done, _ in seen] == [1, 2, 3, 4, 5, 6]


def test_what_is_known_is_not_measured_again(tmp_path: Path) -> None:
    """The second call asks no worker for a candidate, failed ones included."""
    fake, kept = Fake(tmp_path), Kept()
    both = schedules(1, 8)
    first = measure(both, Simt(), PROBLEM, store=kept, options=fake.options)
    asked = len(fake.asked)
    assert measure(both, Simt(), PROBLEM, store=kept, options=fake.options) == first
    assert len(fake.asked) == asked
    other = replace(PROBLEM, extents=(("m", 128), ("n", 64), ("k", 64)))
    measure(both, Simt(), other, store=kept, options=fake.options)
    assert len(fake.asked) > asked


def test_a_kernel_that_lacks_a_wait_is_neither_run_nor_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails with ptxas's version and the way out; the next ptxas is asked again."""
    fake, kept = Fake(tmp_path), Kept()
    load = SassInstruction(16, "", "LDS", "R4, [R8]", 0, 7, 0, frozenset({"R8"}), frozenset({"R4"}))
    use = replace(load, address=32, opcode="FADD", write=7)
    wrong = Waits((Hazard("R4", "reads", load, use),))
    with monkeypatch.context() as patched:
        patched.setattr(assemble, "waits_of", lambda _: wrong)
        (found,) = measure(schedules(1), Simt(), PROBLEM, store=kept, options=fake.options)
    assert not found.ok
    assert found.reason.startswith(f"ptxas {assemble.ptxas_version()}: {assemble.DROPPED}: `0020")
    assert "pip install -U nvidia-cuda-nvcc" in found.reason
    assert fake.asked == []
    assert not kept.puts
    (found,) = measure(schedules(1), Simt(), PROBLEM, store=kept, options=fake.options)
    assert found.ok


def test_a_store_file_keeps_candidates_and_peers(tmp_path: Path) -> None:
    """The second call takes all from the store; a new candidate does not touch the old ones."""
    fake, peer = Fake(tmp_path), ("some.module:peer",)
    naive = schedules(1)[0]
    both = [naive, naive.with_(ctas_per_sm=2)]
    with Store(tmp_path / "store.db") as store:
        first = measure(both, Simt(), PROBLEM, store=store, peers=peer, options=fake.options)
        assert len(store) == 3
        asked = len(fake.asked)
        options = replace(fake.options, rounds=5)
        again = measure(both, Simt(), PROBLEM, store=store, peers=peer, options=options)
        assert again == first
        assert len(fake.asked) == asked
        more = [*both, Schedule.of(Simt(), LADDER["naive"])]
        found = measure(more, Simt(), PROBLEM, store=store, peers=peer, options=options)
        assert found[:2] == first[:2]
        assert fake.asked[asked:] == ["validate", "validate", "time"]  # the new one and the peer
        assert [m.rounds for m in found[:3]] == [7, 7, 5]
        assert {m.key: m for m in store} == {m.key: m for m in found}


@pytest.mark.parametrize(("raster", "again"), [(2, True), (4, True), (8, False), (1, False)])
def test_lost_candidates_are_retried_on_request(tmp_path: Path, raster: int, again: bool) -> None:
    """A timeout or a lost worker is tried again if that is asked for; what is wrong stays wrong."""
    fake, kept = Fake(tmp_path), Kept()
    one = schedules(raster)
    (first,) = measure(one, Simt(), PROBLEM, store=kept, options=fake.options)
    asked = len(fake.asked)
    measure(one, Simt(), PROBLEM, store=kept, options=fake.options)
    assert len(fake.asked) == asked
    options = replace(fake.options, retry_lost=True)
    (found,) = measure(one, Simt(), PROBLEM, store=kept, options=options)
    assert found.ok == first.ok == (raster == 1)
    assert (len(fake.asked) > asked) == again


def test_a_batch_that_dies_is_halved(tmp_path: Path) -> None:
    """One candidate that kills the timing of a batch costs the others nothing."""
    fake = Fake(tmp_path, "die")
    naive = Schedule.of(Simt(), LADDER["coalesced"])
    ladder = (naive, Schedule.of(Simt(), LADDER["naive"]))
    good = [one.with_(ctas_per_sm=n) for one in ladder for n in (1, 2)]
    found = measure([*good, *schedules(16)], Simt(), PROBLEM, options=fake.options)
    assert [m.ok for m in found] == [True] * 4 + [False]
    assert "died with status 1" in found[-1].reason


def test_peers_stand_beside_the_candidates(tmp_path: Path) -> None:
    """Peers are timed with the candidates, come last, and may fail on their own."""
    fake = Fake(tmp_path)
    both = ("some.module:peer", "missing:peer")
    found = measure(schedules(1), Simt(), PROBLEM, peers=both, options=fake.options)
    assert [m.seconds for m in found] == [1e-3, 5e-4, None]
    assert found[1].schedule == '{"peer":"some.module:peer"}'
    assert found[1].capped
    assert found[2].reason == "no such peer"
    alone = measure([], Simt(), PROBLEM, peers=both[:1], options=fake.options)
    assert alone[0].seconds == 5e-4


@pytest.mark.parametrize("peer", ["some.module:spoils", "some.module:refuses"])
def test_a_peer_that_cannot_be_timed_is_left_out(tmp_path: Path, peer: str) -> None:
    """It is recorded with its reason, whether its batch fails or it alone; all others have times.

    CuPy refuses cuBLAS while a graph is captured; no f32 or f16 problem was measured then.
    """
    fake, kept = Fake(tmp_path), Kept()
    given, beside = schedules(1, 16, 1), (peer, "some.module:fast")
    given[2] = given[2].with_(ctas_per_sm=2)
    found = measure(given, Simt(), PROBLEM, store=kept, peers=beside, options=fake.options)
    assert [m.seconds for m in found] == [1e-3, None, 2e-3, None, 5e-4]
    assert "capture" in found[3].reason
    assert peer_of(found[3]) == peer
    assert {m.key: m for m in found} == kept.known
    (alone,) = measure([], Simt(), PROBLEM, peers=[peer], options=fake.options)
    assert alone.reason == found[3].reason


@pytest.mark.parametrize(("allowed", "right"), [(1.0, False), (8.0, True)])
def test_a_peer_may_be_less_exact(tmp_path: Path, allowed: float, right: bool) -> None:
    """As far as it is told: a library's gelu is an approximation.  A schedule may not."""
    options = replace(Fake(tmp_path).options, peer_error=allowed)
    found = measure(schedules(16), Simt(), PROBLEM, peers=["some.module:rough"], options=options)
    assert [m.ok for m in found] == [False, right]


def test_a_campaign_has_one_worker_for_its_calls(tmp_path: Path) -> None:
    """What a call validated, the next does not; a candidate that is known costs nothing."""
    fake = Fake(tmp_path)
    with Campaign(PROBLEM, options=fake.options) as campaign:
        assert campaign.peers("some.module") == ("some.module:fast", "some.module:slow")
        assert campaign.peers("other.module") == ()
        before = len(fake.asked)
        (first,) = campaign.measure(programs(1))
        again = campaign.measure(programs(1, 16), ["some.module:fast"])
        assert campaign.measure({}) == []
        assert fake.asked[before:] == ["validate", "time", "validate", "validate", "time"]
        assert again[0] == first
        assert again[1].reason.startswith("it is wrong")
        assert peer_of(again[2]) == "some.module:fast"
        assert peer_of(first) == ""
        slower = replace(fake.options, rounds=11)
        assert [m.rounds for m in campaign.measure(programs(1), options=slower)] == [11]
        assert len(fake.workers) == 1
        campaign.measure(programs(4))  # dies
        assert len(fake.workers) == 1
        (fine,) = campaign.measure(programs(1))
        assert (fine, len(fake.workers)) == (first, 2)


def test_anew_is_for_comparing(tmp_path: Path) -> None:
    """The store is neither asked nor told: all are timed together, and it keeps the first times."""
    fake, kept = Fake(tmp_path), Kept()
    options, peer = replace(fake.options, rounds=3), ("some.module:fast",)
    with Campaign(PROBLEM, store=kept, options=options) as campaign:
        first = campaign.measure(programs(1, 16, 8), peer)
        before, known = list(kept.puts), dict(kept.known)
        for _ in range(2):
            asked = len(fake.asked)
            found = campaign.measure(programs(1, 16, 8), peer, options=fake.options, anew=True)
            assert [m.rounds for m in found if m.ok] == [7, 1]
            assert [m.reason for m in found] == [m.reason for m in first]
            assert fake.asked[asked:].count("time") == 1
        assert (kept.puts, kept.known) == (before, known)
        assert campaign.measure(programs(1, 16, 8), peer) == first
    with Campaign(PROBLEM, store=kept, options=options) as campaign:  # nothing is validated yet
        found = campaign.measure(programs(1), anew=True, options=fake.options)
        assert [m.rounds for m in found] == [7]
    assert (kept.puts, kept.known) == (before, known)


def test_what_cannot_run_never_reaches_the_worker(tmp_path: Path) -> None:
    """A schedule that the problem's arrays break is refused with the law, without a GPU."""
    fake = Fake(tmp_path)
    ragged = Problem.of(matmul(), m=63, n=63, k=63)
    vector = Schedule.of(Simt(), LADDER["vectorised"])
    (found,) = measure([vector], Simt(), ragged, options=fake.options)
    assert "vector: " in found.reason
    assert fake.asked == []


def test_equal_schedules_are_measured_once(tmp_path: Path) -> None:
    """Twins share one measurement, and the order of the results is that of the schedules."""
    fake = Fake(tmp_path)
    found = measure([*schedules(1, 8), *schedules(1)], Simt(), PROBLEM, options=fake.options)
    assert found[0] == found[2]
    assert fake.asked.count("validate") == 2


def test_no_gpu_is_said(tmp_path: Path) -> None:
    """A worker that cannot start is a LaunchError with its last words."""
    options = Options(worker=(sys.executable, "-c", "raise SystemExit('no GPU here')"))
    with pytest.raises(LaunchError, match="worker: its process died with status 1: no GPU here"):
        measure(schedules(1), Simt(), PROBLEM, options=options)
    with pytest.raises(LaunchError, match="does not start"):
        measure(schedules(1), Simt(), PROBLEM, options=Options(worker=(str(tmp_path / "none"),)))


def test_a_worker_that_talks_nonsense_is_replaced(tmp_path: Path) -> None:
    """An answer that is no JSON is a failure, and the worker after it is a new one."""
    script = tmp_path / "w.py"
    script.write_text("print('{not json', flush=True)\ninput()\ninput()\n")
    with Worker((sys.executable, str(script))) as worker:
        assert worker.ask({}, 5.0) == {"failed": "its worker's answer is no JSON"}
        assert worker.ask({}, 5.0) == {"failed": "its worker's answer is no JSON"}


@pytest.fixture
def on_the_host(card: Card) -> None:
    """NumPy in the place of CuPy, for what the two have in common."""
    card.library(np)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
@pytest.mark.usefixtures("on_the_host")
def test_a_trial_tells_right_from_wrong(dtype: str) -> None:
    """The rounded reference is right; one element off, unwritten, or out of place is wrong."""
    problem = Problem.of(matmul(dtype), m=8, n=16, k=32)
    data = validation.trial(problem, 1)
    u = DTYPES["f32"].roundoff
    output = validation.Output(problem)
    assert data.worst(output, u) == np.inf
    rounded = data.reference["c"].astype(DTYPES[dtype].numpy)
    output.array[:] = rounded.view(np.uint16) if dtype == "bf16" else rounded
    assert data.worst(output, u) <= 1
    wrong = rounded.copy()
    wrong[3, 5] += 1
    output.array[:] = wrong.view(np.uint16) if dtype == "bf16" else wrong
    assert data.worst(output, u) > 1
    output.poison()
    output.array[:] = rounded.view(np.uint16) if dtype == "bf16" else rounded
    output._all[0][-1] = 0
    assert data.worst(output, u) == np.inf


@pytest.mark.usefixtures("on_the_host")
def test_a_trial_has_inputs_of_a_kind_and_knows_what_stages_may_round() -> None:
    """A rising one is beyond fp32's exponential; what bf16 weights sum to is right by T alone."""
    problem = Problem.of(weighted("bf16"), i=64, e=8, j=128)
    for kind in KINDS:
        data, output = validation.trial(problem, 1, kind=kind), validation.Output(problem)
        x, v = (validation._widen(held, "bf16") for held in data.inputs)
        assert (kind == "rising") == (x.max() > 100)
        p = np.exp2((x - x.max(axis=1, keepdims=True)) * C)
        rounded = DTYPES["bf16"].round(p).astype(np.float64)
        output.array[:] = rounded @ v / p.sum(axis=1, keepdims=True)
        u, narrow = DTYPES["f32"].roundoff, usual_narrowing(problem.operation)
        assert data.worst(output, u, narrow) < 0.5
        if kind == "normal":
            assert data.worst(output, u) > 5


CAUSAL = Problem.of(attention(mask="causal"), l=5, h=2, g=1, m=3, n=4, d=8, e=8)
BATCHED = Problem.of(matmul("f16", batched=True), l=3, m=8, n=16, k=32)


@pytest.mark.parametrize(("problem", "parts"), [(CAUSAL, 3), (BATCHED, 3), (PROBLEM, 1)])
@pytest.mark.usefixtures("on_the_host")
def test_a_large_trial_is_referred_to_in_parts(
    problem: Problem, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Along a batch: the reference is that of the whole, and so is what stages may round."""
    operation = problem.operation
    elements = sum(np.prod(x) for x in operation.shapes(problem.sizes).values())
    monkeypatch.setattr(validation, "_MOST_ELEMENTS", int(elements // 2))
    assert len([*validation._parts(operation, problem.sizes)]) == parts
    data = validation.trial(problem, 1)
    names = zip(operation.inputs, data.inputs, strict=True)
    exact = {o.name: validation._widen(held, o.dtype) for o, held in names}
    whole = operation.reference(exact, data.scalars, loose=loose(operation))
    assert whole.keys() == data.reference.keys()
    for name, array in whole.items():
        assert np.array_equal(data.reference[name], array), name
    for name, array in between(operation, exact, data.scalars, whole).items():
        assert np.array_equal(data.between[name], array), name
    shapes = operation.shapes(problem.sizes)
    assert [x.shape for x in data.inputs] == [shapes[o.name] for o in operation.inputs]
    assert not np.array_equal(data.inputs[0][0], data.inputs[0][-1])


def test_no_part_is_cut_where_an_index_tells_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "_MOST_ELEMENTS", 1)
    sizes = {"i": 4}
    assert len([*validation._parts(elementwise("x + index(i)"), sizes)]) == 1
    assert len([*validation._parts(elementwise("x + 1"), sizes)]) == 4


@pytest.mark.usefixtures("on_the_host")
def test_trials_are_fresh_and_repeatable() -> None:
    """Another seed draws other data, the same seed the same."""
    one, same, other = (validation.trial(PROBLEM, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.inputs[0], same.inputs[0])
    assert not np.array_equal(one.inputs[0], other.inputs[0])
    assert not np.array_equal(one.inputs[0], one.inputs[1].T)


@pytest.mark.parametrize(
    ("accumulator", "roundoff"),
    [("f32", 2.0**-24), ("f64", 2.0**-53), ("f32+f64", 2.0**-24)],
)
def test_the_roundoff_is_of_the_narrowest_arithmetic(accumulator: Value, roundoff: float) -> None:
    """fp32 products in fp64 sums count as fp32."""
    schedule = Schedule.of(Simt(), {**LADDER["naive"], "accumulator": accumulator})
    assert validation.roundoff(schedule.program(Simt(), matmul())) == roundoff


rounds = st.lists(st.floats(0.5, 2.0), min_size=3, max_size=25)


@given(rounds, st.floats(0.1, 10.0))
def test_what_two_share_in_each_round_is_in_no_ratio(base: list[float], ratio: float) -> None:
    """A clock that drifts for both: the ratio is exact, and its spread is none."""
    timing = summary([ratio * one for one in base], [], base)
    assert timing.seconds == pytest.approx(ratio * float(np.median(base)))
    assert timing.spread == pytest.approx(0.0, abs=1e-9)
    assert summary(base, [], base).spread == 0.0


def test_others_are_timed_against_the_incumbent(tmp_path: Path) -> None:
    """All twice as slow as when it was timed: the others are what they would have been then."""
    fake, store = Fake(tmp_path, "drift"), Kept()
    (naive,) = schedules(1)

    def some(*ctas: int) -> dict[Schedule, Program]:
        every = [naive.with_(ctas_per_sm=count) for count in ctas]
        return {s: s.program(Simt(), PROBLEM.operation) for s in every}

    with Campaign(PROBLEM, store=store, options=fake.options) as campaign:
        (first,) = campaign.measure(some(2))
        ((schedule, program),) = some(2).items()
        base = Base(schedule, program, first.seconds or 0.0)
        assert base.seconds == 2e-3
        found = campaign.measure({**some(1), **programs(16)}, against=base)
        assert [one.seconds for one in found] == [1e-3, None]
        assert len(store.puts) == 3  # what the incumbent takes is known
        both = campaign.measure(some(1, 2), against=base, anew=True)
        assert [one.seconds for one in both] == [2e-3, 4e-3]  # as they are now
    with Campaign(PROBLEM, options=fake.options) as campaign:  # in another it is built first
        assert [one.seconds for one in campaign.measure(some(1), against=base)] == [1e-3]
        (wrong,) = schedules(8)
        lost = replace(base, schedule=wrong, program=programs(8)[wrong])
        assert [one.seconds for one in campaign.measure(some(1), against=lost)] == [1e-3]
        assert campaign.registers(some(1), NEVER)[naive] > 0


def test_summary_is_the_median() -> None:
    """One slow round moves neither the time nor the spread; a capped clock is remembered."""
    timing = summary([1.0, 1.0, 1.0, 1.0, 9.0], [Clock(1700), Clock(1800, True), Clock()])
    assert (timing.seconds, timing.spread, timing.rounds) == (1.0, 0.0, 5)
    assert (timing.clock_mhz, timing.capped) == (1750, True)


def test_results_are_added_row_by_row(tmp_path: Path) -> None:
    """A row is there as soon as it is written; an equal case replaces the old row."""
    row: dict[str, Any] = dict.fromkeys(peers.ROW, None) | {"case": "a", "seconds": 1.0}
    assert peers.load_rows("r", tmp_path) == []
    peers.write_results("r", [row], {"device": "x"}, tmp_path)
    peers.write_results("r", [{**row, "case": "b"}], {"device": "x"}, tmp_path)
    path = peers.write_results("r", [{**row, "seconds": 2.0}], {"device": "y"}, tmp_path)
    rows = peers.load_rows("r", tmp_path)
    assert [(r["case"], r["seconds"]) for r in rows] == [("a", 2.0), ("b", 1.0)]
    assert json.loads(path.read_text())["provenance"] == {"device": "y"}
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]
    with pytest.raises(StoreError, match="fields extra amiss"):
        peers.write_results("r", [{**row, "extra": 1}], {}, tmp_path)
    path.write_text("{")
    with pytest.raises(StoreError, match="not readable"):
        peers.load_rows("r", tmp_path)


def test_provenance_has_every_key(tmp_path: Path) -> None:
    """A record names what a number depends on; a tree without git reads .commit."""
    record = provenance("a command")
    needed = {"device", "driver", "clock_mhz", "commit", "date", "command", "ptxas"}
    assert needed <= set(record)
    assert commit(tmp_path) == "unknown"
    (tmp_path / ".commit").write_text("abc123\n")
    assert commit(tmp_path) == "abc123"
