"""``dispatch`` where something fails: a candidate, a process, a GPU; and with groups of rows.

The GPU pretends: a worker answers as one would, and says of some schedules that they fail.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tests import fleet_jobs
from tests.fake_gpu import Card, CupyArray, Gpu, Nothing
from tests.sample import some
from tests.test_bad_input import complaint
from tests.test_dispatch import SIMT, SMALL, Here, done, few, manifest, tinygpu
from tinygpu.codegen.run import build, measure
from tinygpu.codegen.run.build import Built
from tinygpu.codegen.runtime import driver
from tinygpu.codegen.runtime.bundle import load_bundle
from tinygpu.devices.device import load_device
from tinygpu.errors import AssemblyError, LaunchError, OperationError, TinyGpuError
from tinygpu.machines import MACHINES
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.search.time.cost import cost
from tinygpu.search.tuning import dispatching
from tinygpu.search.tuning.dispatching import Fleet, timed_at
from tinygpu.search.tuning.shape import Shape, ends_of
from tinygpu.term.operation import Groups, Problem, grouped_matmul
from tinygpu.term.program import Program
from tinygpu.term.schedule import from_json

pytestmark = pytest.mark.usefixtures("believed")

# The fleet: processes of their own.


def test_each_gpu_has_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them take part, each sees its own GPU, of those that are visible here."""
    for visible, wanted in (("", {"0", "1", "2"}), ("7,3,5", {"3", "5", "7"})):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with Fleet(3) as fleet:
            found = fleet.each(fleet_jobs.where, [None] * 9)  # type: ignore[list-item]
        places = [one for one in found if not isinstance(one, TinyGpuError)]
        assert len(places) == 9
        assert {gpu for gpu, _ in places} == wanted
        assert len({pid for _, pid in places}) == 3


def test_a_process_that_dies_fails_its_own_job() -> None:
    """The others are done, in order, and another process takes its place."""
    done: list[int] = []
    with Fleet(2) as fleet:
        for _ in range(2):
            found = fleet.each(
                fleet_jobs.dies_at_two,
                range(5),  # type: ignore[arg-type]
                lambda count, total, said: done.append(count),
            )
            assert [one for one in found if not isinstance(one, TinyGpuError)] == [0, 1, 3, 4]
            assert "ended by itself" in str(found[2])
            assert fleet.retired == {}
    assert done == [1, 2, 3, 4, 5] * 2


def test_a_gpu_that_is_out_of_order_is_left_out() -> None:
    """Its jobs are done by the others, then and later."""
    with Fleet(3) as fleet:
        for _ in range(2):
            found = fleet.each(fleet_jobs.fails_on_one, range(9))  # type: ignore[arg-type]
            ran = [one for one in found if not isinstance(one, TinyGpuError)]
            assert [number for _, number in ran] == [*range(9)]
            assert {gpu for gpu, _ in ran} == {"0", "2"}
        assert fleet.retired == {1: "worker: GPU 1 has fallen off the bus"}


def test_what_is_no_failure_ends_it() -> None:
    with Fleet(2) as fleet, pytest.raises(ZeroDivisionError):
        fleet.each(fleet_jobs.errs, range(5))  # type: ignore[arg-type]


# The command, on a GPU that pretends.


class Pretended:
    """A worker: of a schedule's name what it answers; ``wrong`` says which fail, and how."""

    wrong: ClassVar[Callable[[dict[str, Any], str], str]] = lambda decisions, doing: ""

    def __init__(self, _: Any) -> None:
        pass

    def __enter__(self) -> Pretended:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, request: Any, limit_seconds: float) -> dict[str, Any]:
        doing = request["do"]
        if doing == "hello":
            return {"arch": "sm_90a", "device": "pretended", "driver": "1"}
        if doing == "peers":
            return {"names": []}
        if doing == "validate":
            decisions = json.loads(request["name"])["decisions"]
            match type(self).wrong(decisions, doing):
                case "wrong":
                    return {"error": 9.0}
                case "":
                    return {"error": 0.5}
                case why:
                    return {"failed": why}
        told = {"spread": 0.01, "rounds": request["rounds"], "clock_mhz": 1, "error": 0.5}
        again = "again" if request["rounds"] == 9 else doing
        failures = {}
        timings = {}
        for name in request["kernels"]:
            if why := type(self).wrong(json.loads(name)["decisions"], again):
                failures[name] = why
            else:
                timings[name] = {"seconds": 1e-5 + 1e-8 * (zlib.crc32(name.encode()) % 999), **told}
        return {"timings": timings, "failures": failures}


class Gpus(Here):
    """A fleet of this process, of however many GPUs."""

    def __init__(self, gpus: int) -> None:
        super().__init__(0)
        self.gpus = gpus

    def each(self, do: Callable[..., Any], jobs: Sequence[Any], tell: Any = None) -> list[Any]:
        return [self.one(do, job) for job in jobs]

    def one(self, do: Callable[..., Any], job: Any) -> Any:
        try:
            return super().one(do, job)
        except LaunchError as error:
            return error


@pytest.fixture
def pretended(card: Card, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    card.measuring(worker=Pretended)
    monkeypatch.setitem(MACHINES, "simt", SIMT)
    monkeypatch.setattr(driver, "devices", lambda: 1)
    monkeypatch.setattr(dispatching, "Fleet", Gpus)
    monkeypatch.setattr(dispatching, "_crew", None)
    monkeypatch.setattr(Pretended, "wrong", lambda decisions, doing: "")
    yield
    dispatching._crew = None


MEASURED = [word for word in SMALL if word != "--no-measure"]


def decisions_in(path: Path) -> list[dict[str, Any]]:
    """The decisions of a bundle's kernels."""
    files = [json.loads((path / k["schedule"]).read_text()) for k in manifest(path)["kernels"]]
    return [file["decisions"] for file in files]


def test_nothing_fails(pretended: None, tmp_path: Path) -> None:
    said = done(*MEASURED, "--out", tmp_path / "b")
    tree = manifest(tmp_path / "b")
    assert tree["failed"] == []
    assert tree["measured_on"] == {"device": "pretended", "driver": "1"}
    assert "left out" not in said


@pytest.mark.parametrize(
    "why", some(["wrong", "it hangs: no answer in 45 s", "its process died"], 2)
)
def test_a_candidate_that_fails_loses_its_place(
    why: str, pretended: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command says which, where and why, and goes on with the others."""

    def wrong(decisions: dict[str, Any], doing: str) -> str:
        return why if decisions["thread_m"] == 8 and doing == "validate" else ""

    monkeypatch.setattr(Pretended, "wrong", wrong)
    said = done(*MEASURED, "--out", tmp_path / "b")
    tree = manifest(tmp_path / "b")
    assert tree["failed"]
    for one in tree["failed"]:
        assert "thread_m=8" in one["what"]
        assert one["at"].keys() == {"m", "n", "k"}
        assert ("it is wrong" if why == "wrong" else why) in one["reason"]
    assert "failed, and left out: simt " in said
    assert {d["thread_m"] for d in decisions_in(tmp_path / "b")} == {4}


def test_a_candidate_that_fails_at_one_shape_is_trusted_nowhere(
    pretended: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second measurement, too: then others are chosen and scored."""
    seen: list[dict[str, Any]] = []

    def wrong(decisions: dict[str, Any], doing: str) -> str:
        if doing == "again" and seen in ([], [decisions]):
            seen[:] = [decisions]
            return "it faults"
        return ""

    monkeypatch.setattr(Pretended, "wrong", wrong)
    said = done(*MEASURED, "--out", tmp_path / "b")
    (one,) = manifest(tmp_path / "b")["failed"]
    assert one["reason"] == "it faults"
    assert seen[0] not in decisions_in(tmp_path / "b")
    assert "it faults" in said
    scores = manifest(tmp_path / "b")["scores"].values()
    assert all(math.isfinite(told["mean"]) for told in scores)


class Unbuilt(Nothing):
    """Builders of which ptxas refuses tiles of 64 rows."""

    def each(self, wanted: Sequence[Any], until: Any = None) -> Any:
        for (program, *_), built in zip(wanted, super().each(wanted), strict=True):
            bad = "64" in str(program.grid[1].extent)
            yield AssemblyError("ptxas: it refuses") if bad else built


def test_a_candidate_that_is_not_assembled_loses_its_place(
    pretended: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "Builders", Unbuilt)
    done(*MEASURED, "--out", tmp_path / "b")
    failed = manifest(tmp_path / "b")["failed"]
    assert {one["reason"] for one in failed} == {"ptxas: it refuses"}
    assert all("tile_m=64" in one["what"] for one in failed)
    assert 64 not in {d["tile_m"] for d in decisions_in(tmp_path / "b")}


def test_a_process_that_dies_costs_the_schedule_that_killed_it(
    pretended: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of all schedules dies with one of them; done one by one, that one alone does."""
    killers: set[Any] = set()

    class Dying(Gpus):
        def one(self, do: Callable[..., Any], job: Any) -> Any:
            killers.update(job.schedules[:1] if do is timed_at and not killers else ())
            if do is timed_at and killers & {*job.schedules}:
                return LaunchError("dispatch: a process ended by itself")
            return super().one(do, job)

    monkeypatch.setattr(dispatching, "Fleet", Dying)
    said = done(*MEASURED, "--out", tmp_path / "b")
    (killer,) = killers
    (one,) = manifest(tmp_path / "b")["failed"]
    assert all(f"{name}={value}" in one["what"].split() for name, value in killer.decisions)
    assert one["reason"] == "dispatch: a process ended by itself"
    assert dict(killer.decisions) not in decisions_in(tmp_path / "b")
    assert "ended by itself" in said


def test_nothing_is_left(pretended: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with a reason, and no bundle."""
    monkeypatch.setattr(Pretended, "wrong", lambda decisions, doing: "it faults")
    result = tinygpu(*MEASURED, "--out", tmp_path / "b")
    assert result.exit_code == 2
    assert "it faults" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "b").exists()


def test_a_kernel_that_is_not_built_loses_its_place(
    pretended: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the model alone: another one is chosen for it, with the same command."""
    refused: list[Program] = []
    real = build.build_many

    def build_many(wanted: Sequence[Any]) -> list[Built | TinyGpuError]:
        found = list(real(wanted))
        if not refused:
            refused.append(wanted[0][0])
            found[0] = AssemblyError("ptxas: it refuses")
        return found

    monkeypatch.setattr(build, "build_many", build_many)
    said = done(*SMALL, "--out", tmp_path / "b")
    (one,) = manifest(tmp_path / "b")["failed"]
    assert (one["at"], one["reason"]) == (None, "ptxas: it refuses")
    assert "ptxas: it refuses" in said
    for kernel in manifest(tmp_path / "b")["kernels"]:
        text = (tmp_path / "b" / kernel["schedule"]).read_text()
        machine, problem, schedule = from_json(text, MACHINES)
        assert schedule.program(machine, problem.operation) != refused[0]


def test_gpus_that_differ_are_refused(
    pretended: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times of two kinds of GPU do not compare."""
    real = dispatching._timed

    def timed(job: Any, problem: Problem) -> Any:
        card = "large" if problem.sizes["m"] > 100 else "small"
        return replace(real(job, problem), device=card)

    monkeypatch.setattr(dispatching, "_timed", timed)
    result = tinygpu(*MEASURED, "--out", tmp_path / "b")
    assert result.exit_code == 2
    assert "the GPUs differ: large, small; name those of one kind in" in result.stderr


def test_all_gpus_are_used_and_one_out_of_order_is_told(
    pretended: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many processes as the driver has GPUs; the command says which it left out."""
    counts: list[int] = []

    class Four(Gpus):
        def __init__(self, gpus: int) -> None:
            super().__init__(gpus)
            counts.append(gpus)
            self.retired = {2: "worker: it is out of order"} if gpus else {}

    monkeypatch.setattr(driver, "devices", lambda: 4)
    monkeypatch.setattr(dispatching, "Fleet", Four)
    said = done(*MEASURED, "--out", tmp_path / "b")
    assert counts == [4, 0]  # one that measures, one that searches
    assert "failed, and left out: GPU 2: worker: it is out of order" in said
    told = {"what": "GPU 2", "at": None, "reason": "worker: it is out of order"}
    assert manifest(tmp_path / "b")["failed"] == [told]


# Groups of rows.

GROUPED = ["dispatch", "grouped", "--machine", "hopper", "--no-measure", "--device", "h100"]
GROUPED += ["-g", "4", "-n", "256", "-k", "128", "-m", "64,1000,4096", "--kernels", "2"]
ROUTED = ["--groups", "even", "--groups", "5,0,1,2"]
H100 = load_device("h100")


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hopper with few decisions left."""
    fixed: dict[str, tuple[int | str, ...]]
    fixed = {name: (value,) for name, value in STARTS["persistent"].items()}
    fixed |= {"epilogue": ("direct",), "store_n": (64, 128, 256), "store_stages": (1,)}
    fixed |= {"tile_n": (64, 128, 256), "raster": (1, 8)}
    monkeypatch.setitem(MACHINES, "hopper", few(Hopper, fixed))
    monkeypatch.setattr(dispatching, "Fleet", Here)


def test_a_bundle_of_groups(hopper: None, fake: Gpu, tmp_path: Path) -> None:
    """Its rule is of all rows; a time is the mean over the routings; it is called with ends."""
    done(*GROUPED, *ROUTED, "--out", tmp_path / "b")
    tree, bundle = manifest(tmp_path / "b"), load_bundle(tmp_path / "b")
    assert (tree["along"], tree["axes"]) == ("m", ["g", "m", "n", "k"])
    programs = []
    for kernel in tree["kernels"]:
        machine, problem, schedule = from_json(
            (tmp_path / "b" / kernel["schedule"]).read_text(), MACHINES
        )
        assert problem.ends
        programs.append(schedule.program(machine, problem.operation))
    of = Groups("g", "m", "ends")
    more = 0
    for row in tree["shapes"]:
        assert row["routings"] == {"even": 1.0, "5,0,1,2": 1.0}
        sizes = {axis: row[axis] for axis in "gmnk"}
        each = [ends_of(text, of, sizes, scaled=True) for text in row["routings"]]
        for program, told in zip(programs, row["predicted"], strict=True):
            times = [float(cost(program, sizes | {"ends": e}, H100).seconds) for e in each]
            assert times[0] <= times[1]
            more += times[0] < times[1]
            assert told == pytest.approx(np.mean(times))
        assert bundle.choose(**sizes) == row["kernel"]
    assert more
    for m in (64, 900, 5000):
        a, b = CupyArray((m, 128), np.uint16), CupyArray((4, 256, 128), np.uint16)
        ends = CupyArray((4,), np.int32)
        assert bundle(a, b, ends).shape == (m, 256)
    assert len(fake.launched()) == 3
    with pytest.raises(LaunchError, match="ends: dtype f32"):
        bundle(a, b, CupyArray((4,), np.float32))


def test_which_of_groups(hopper: None, tmp_path: Path) -> None:
    """By the bundle's routings, or those that are asked for."""
    done(*GROUPED, *ROUTED, "--out", tmp_path / "b")
    seconds = {}
    for name, words in {"both": [], "even": ROUTED[:2], "list": ROUTED[2:]}.items():
        told = json.loads(done("which", tmp_path / "b", "-m", 1000, *words, "--json"))
        seconds[name] = told["kernels"][0]["predicted_seconds"]
    assert seconds["both"] == pytest.approx((seconds["even"] + seconds["list"]) / 2)
    row = manifest(tmp_path / "b")["shapes"][1]
    assert (row["m"], row["predicted"][0]) == (1000, pytest.approx(seconds["both"]))
    said = done("which", tmp_path / "b", "-m", 1000)
    assert "predicted for groups of rows: even, 5,0,1,2; the mean" in said


def test_shapes_of_groups_in_a_file(hopper: None, tmp_path: Path) -> None:
    """Rows of equal sizes are one shape, whose routings count by their weights."""
    (tmp_path / "s.csv").write_text(
        'g,m,n,k,weight,groups\n4,64,256,128,3,even\n4,64,256,128,1,"5,0,1,2"\n4,900,256,128,1,zipf\n'
    )
    words = [*GROUPED[:7], "--kernels", "2", "--shapes", tmp_path / "s.csv"]
    done(*words, "--out", tmp_path / "b")
    first, second = manifest(tmp_path / "b")["shapes"]
    assert (first["weight"], first["routings"]) == (4.0, {"even": 3.0, "5,0,1,2": 1.0})
    assert (second["weight"], second["routings"]) == (1.0, {"zipf": 1.0})
    shape = Shape((("g", 4), ("m", 64), ("n", 256), ("k", 128)), "m",
                  routings=(("even", 3.0), ("5,0,1,2", 1.0)))  # fmt: skip
    problems = shape.problems(grouped_matmul())
    assert [share for _, share in problems] == [0.75, 0.25]
    assert [problem.ends for problem, _ in problems] == [(16, 32, 48, 64), (40, 40, 48, 64)]


def test_groups_are_measured_with_each_routing(
    hopper: None, pretended: None, card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with a GPU the mean of what was measured is what kernels are chosen by."""
    asked: list[tuple[int, ...]] = []
    real = dispatching._timed

    def timed(job: Any, problem: Problem) -> Any:
        asked.append(problem.ends)
        seconds = 2e-5 if problem.ends[0] == problem.ends[1] else 1e-5
        found = real(job, problem)
        return replace(found, seconds=(seconds,) * len(found.seconds))

    monkeypatch.setattr(dispatching, "_timed", timed)
    words = [word for word in GROUPED if word != "--no-measure"]
    done(*words, *ROUTED, "--out", tmp_path / "b")
    for row in manifest(tmp_path / "b")["shapes"]:
        assert row["measured"] == pytest.approx([1.5e-5] * len(row["measured"]))
    assert {(16, 32, 48, 64), (40, 40, 48, 64)} <= {*asked}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--groups 1,2", "2 ends; there are 4 groups"),
        ("--groups 0,0,0,0", "the last group ends at 0"),
        ("--groups odd", "give even, zipf, or rows of each"),
        ("--dtype f32", "choose dtype bf16, f16, e4m3"),
    ],
)
def test_bad_groups_are_one_line(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = complaint([*GROUPED, "--out", str(tmp_path / "b"), *words.split()])
    assert said in found
    assert "simt" not in found


def test_groups_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation in a file takes --groups if it has groups; else one line says that."""
    (tmp_path / "own.py").write_text(
        "from tinygpu.term.operation import grouped_matmul, matmul\n"
        "experts, plain = grouped_matmul('bf16'), matmul('bf16', layout='nt')\n"
    )
    monkeypatch.chdir(tmp_path)
    sizes = ["-m", "128", "-n", "256", "-k", "128", "--machine", "hopper", "--device", "h100"]
    fixed = [w for n, v in STARTS["persistent"].items() for w in ("--fix", f"{n}={v}")]
    words = ["search", "own.py:experts", "-g", "2", *sizes, *fixed, "--out", "found"]
    done(*words, "--groups", "28,100")
    assert json.loads((tmp_path / "found" / "01.json").read_text())["sizes"]["ends"] == [28, 128]
    assert "--groups: own.py:plain has none, it is of grouped" in complaint(
        ["search", "own.py:plain", *sizes, "--groups", "even"]
    )
    twice = ["--groups", "even", "--groups", "zipf"]
    assert "a problem has one of them; dispatch takes several" in complaint([*words, *twice])


def test_a_list_of_rows_is_scaled_for_dispatch_alone() -> None:
    of, sizes = Groups("g", "m", "ends"), {"g": 3, "m": 7}
    assert ends_of("2,0,2", of, sizes, scaled=True) == (3, 3, 7)
    with pytest.raises(OperationError, match="ends at 4, and m is 7"):
        ends_of("2,0,2", of, sizes)
