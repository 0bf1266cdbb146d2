"""What of the Hopper benchmark needs no GPU: its cases, candidates, rows and draws."""

from __future__ import annotations

import doctest
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.hopper_cases import CASES, Candidate, Case
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import cublaslt, hopper_cases, hopper_fuzz, hopper_matmul, peers, triton_matmul
from benchmarks.simt_fuzz import save_cases
from tinygpu.codegen.emit import EMITTER_VERSION
from tinygpu.codegen.measure import Options
from tinygpu.device import Device, load_device
from tinygpu.errors import LaunchError, ScheduleError, StoreError
from tinygpu.laws import LAWS
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.measurement import Measurement, Results, describe
from tinygpu.operation import Problem, matmul
from tinygpu.reach import Case as LawCase
from tinygpu.schedule import Schedule
from tinygpu.search.store import Store

TORCH, CUBLASLT, TRITON = hopper_matmul.TORCH, hopper_matmul.CUBLASLT, hopper_matmul.TRITON
MAIN = [case for case in CASES if case.group == "main"]


@pytest.fixture
def store() -> Iterator[Store]:
    with Store(":memory:") as empty:
        yield empty


def part(name: str) -> Case:
    return next(case for case in CASES if case.part == name)


def broken(schedule: Schedule, problem: Problem) -> set[str]:
    """Return the machine's requirements and the laws of numbers that a schedule breaks."""
    machine, operation = Hopper(), problem.operation
    failed = {r.name for r in machine.requires(operation, schedule.chosen()) if not r.holds}
    if failed:
        return failed
    program = schedule.program(machine, operation)
    case = LawCase.of(program, problem.sizes, load_device("h200"))
    laws = [law for law in LAWS.values() if law.numeric]
    return {law.name for law in laws if not all(c.holds for c in law.clauses(case))}


def schedules(count: int) -> list[Candidate]:
    found = hopper_cases.candidates(part("4096").problem)[:count]
    return [Candidate(s, 1e-3) for s in found]


def test_marks_are_there() -> None:
    """The shapes of the marks, each a linear layer in bf16; parts name one case each."""
    shapes = {tuple(case.problem.sizes[axis] for axis in "mnk") for case in MAIN}
    rows = (16, 64, 128, 256, 512, 1024, 2048, 3500, 8192)
    assert shapes == {
        *((2**p,) * 3 for p in range(9, 15)),
        *((m, 4096, 4096) for m in rows),
        *((m, n, k) for m in (16, 128, 512, 2048, 8192) for n, k in ((14336, 4096), (4096, 14336))),
    }
    assert len({case.part for case in CASES}) == len(CASES)
    assert {case.problem.operation for case in MAIN} == {matmul("bf16", layout="nt")}


@pytest.mark.parametrize("name", ["512", "16x4096x4096", "3500x4096x4096", "bf16-tt-4096"])
def test_candidates_keep_the_laws(name: str) -> None:
    """20 to 48 different schedules; each keeps every law of numbers; a deeper ring does not fit."""
    problem = part(name).problem
    found = hopper_cases.candidates(problem)
    assert 20 <= len(found) <= hopper_cases.MOST
    assert len(set(found)) == len(found)
    assert any(s["swap"] == 1 for s in found) == (problem.sizes["m"] <= 256)

    depths = [int(n) for n in Hopper.stages.values]
    for schedule in found:
        assert not broken(schedule, problem), schedule
        deeper = [n for n in depths if n > int(schedule["stages"])]
        for stages in deeper[:1]:
            assert broken(schedule.with_(stages=stages), problem) & {"smem_per_cta", "smem_per_sm"}


def test_ranked_schedules_survive_a_file(tmp_path: Path) -> None:
    """What --rank writes --schedules reads, shape by shape; a broken file is said."""
    path = tmp_path / "ranked.json"
    found = {"512": schedules(2), "4096": [Candidate(schedules(1)[0].schedule)]}
    hopper_cases.save(path, found, "a command")
    assert hopper_cases.load_candidates(path) == found
    hopper_matmul.main(["--rank", str(path), "--parts", "512", "1024", "--top", "0"])
    again = hopper_cases.load_candidates(path)
    assert [c.schedule for c in again["512"]] == hopper_cases.candidates(part("512").problem)
    assert again["4096"] == found["4096"]
    assert set(again) == {"512", "1024", "4096"}
    text = path.read_text()
    path.write_text(text.replace('"tile_m": 64', '"tile_m": 65'))
    with pytest.raises(ScheduleError, match="no value 65"):
        hopper_cases.load_candidates(path)
    path.write_text(text[:40])
    with pytest.raises(StoreError, match="rank them again"):
        hopper_cases.load_candidates(path)


class Gpu:
    """In the place of ``measure``: seconds by schedule or peer, and what was asked."""

    def __init__(self, seconds: Callable[[Any, Options], float | None]) -> None:
        self.seconds = seconds
        self.asked: list[tuple[int, tuple[str, ...], Options]] = []

    def __call__(
        self,
        given: Sequence[Schedule],
        machine: Hopper,
        problem: Problem,
        *,
        store: Results | None = None,
        progress: Callable[[int, int], None] | None = None,
        peers: Sequence[str] = (),
        options: Options,
    ) -> list[Measurement]:
        self.asked.append((len(given), tuple(peers), options))
        operation, sizes, _ = describe(problem, Schedule("", ()))
        found = []
        for one in (*given, *peers):
            seconds = self.seconds(one, options)
            found.append(
                Measurement(
                    operation=operation, sizes=sizes, schedule=str(one), device="d", driver="r",
                    emitter=EMITTER_VERSION, seconds=seconds, clock_mhz=1500, capped=True,
                    error=0.5 if seconds else math.inf, reason="" if seconds else "it is wrong",
                )
            )  # fmt: skip
            if progress:
                progress(len(found), len(given) + len(peers))
        return found


def peer_seconds(one: Any, options: Options) -> float | None:
    """PyTorch 5, algorithm i 3 + i, but 0 fails and coarse says otherwise of 9; Triton 8 or 7."""
    if isinstance(one, Schedule):
        return 4.0 + 0.1 * int(one["cluster_m"])
    if one == TORCH:
        return 5.0
    if one.startswith(CUBLASLT):
        number = int(one.rpartition("_")[2])
        if number == 9:
            return 1.0 if options is hopper_matmul.COARSE else 6.0
        return 3.0 + number if number else None
    return 7.0 if one.endswith("t128x128x64_s3_w4_g8") else 8.0


def test_a_row_is_of_the_last_timing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is timed coarsely; the best again, beside the best of each kind of peer."""
    gpu = Gpu(peer_seconds)
    monkeypatch.setattr(hopper_matmul, "measure", gpu)
    case, given = part("4096"), schedules(12)
    every = hopper_matmul.peers_of(case.problem, 10)
    row, coarse = hopper_matmul.compare(case, given, every, store)
    (count, asked, options), (last, beside, fine) = gpu.asked
    assert (count, asked, options) == (12, every, hopper_matmul.COARSE)
    assert (last, fine) == (hopper_matmul.FINALISTS, hopper_matmul.FINE)
    assert fine.warm_seconds >= 0.5
    assert beside[:3] == (TORCH, f"{CUBLASLT}algorithm_9", f"{CUBLASLT}algorithm_1")
    assert beside[3] == f"{TRITON}t128x128x64_s3_w4_g8"
    assert len(beside) == 5
    assert (row["peer"], row["peer_seconds"]) == ("cublaslt algorithm_1", 4.0)
    assert (row["triton_seconds"], row["seconds"]) == (7.0, 4.1)
    assert (row["group"], row["m"], row["predicted_seconds"]) == ("main", 4096, 1e-3)
    assert len(coarse) == 12 + len(every)
    assert [r["reason"] for r in coarse if r["peer"] == "cublaslt algorithm_0"] == ["it is wrong"]


def test_a_row_tells_an_early_start_apart(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all finalists start early, the best that does not is timed beside them too."""

    def seconds(one: Any, options: Options) -> float | None:
        if not isinstance(one, Schedule):
            return 9.0
        return 1.0 + 0.01 * int(one["raster"]) + (0 if one["early"] else int(one["cluster_m"]))

    gpu = Gpu(seconds)
    monkeypatch.setattr(hopper_matmul, "measure", gpu)
    given = [Candidate(s) for s in hopper_cases.candidates(part("4096").problem)]
    assert sum(bool(c.schedule["early"]) for c in given) > hopper_matmul.FINALISTS
    row, _ = hopper_matmul.compare(part("4096"), given, [TORCH], store)
    assert gpu.asked[1][0] == hopper_matmul.FINALISTS + 1
    assert (row["schedule"]["early"], row["seconds"], row["seconds_in_order"]) == (1, 1.08, 2.08)


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (lambda one: isinstance(one, Schedule), "none of 3 schedules ran; first: it is wrong"),
        (lambda one: isinstance(one, str) and "triton" not in one, "nothing to compare"),
    ],
)
def test_nothing_to_compare_is_said(
    lost: Callable[[Any], bool], said: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No right schedule, or no library, is an error; Triton alone may be missing."""
    case, given = part("4096"), schedules(3)
    every = hopper_matmul.peers_of(case.problem, 2)
    gpu = Gpu(lambda one, options: None if lost(one) else peer_seconds(one, options))
    monkeypatch.setattr(hopper_matmul, "measure", gpu)
    with pytest.raises(LaunchError, match=said):
        hopper_matmul.compare(case, given, every, store)
    gpu.seconds = lambda one, o: None if "triton" in str(one) else peer_seconds(one, o)
    row, _ = hopper_matmul.compare(case, given, every, store)
    assert (row["triton"], row["triton_seconds"], row["peer_seconds"]) == ("", None, 4.0)


def test_parts_go_on_where_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part that fails does not stop the others; --missing does just those without a row."""
    monkeypatch.setattr(cublaslt, "count", lambda problems: [3] * len(problems))
    ill = {"512"}

    def seconds(one: Any, options: Options) -> float | None:
        return None if "512" in ill and isinstance(one, Schedule) else peer_seconds(one, options)

    gpu = Gpu(seconds)
    monkeypatch.setattr(hopper_matmul, "measure", gpu)
    common = ["--out", str(tmp_path), "--parts", "512", "1024"]
    with pytest.raises(SystemExit, match="2 of 2 parts failed; the first: 512: none of"):
        hopper_matmul.main(common)
    ill.clear()
    hopper_matmul.main([*common[:-1]])
    hopper_matmul.main([*common[:3], "1024", "--missing"])
    gpu.asked.clear()
    hopper_matmul.main([*common, "--missing"])
    assert not gpu.asked
    hopper_matmul.main([*common[:3], "f16-nt-512", "--missing"])
    tree = json.loads((tmp_path / "hopper_matmul.json").read_text())
    assert [(r["group"], r["m"]) for r in tree["rows"]] == [
        ("main", 512), ("main", 1024), ("f16", 512),
    ]  # fmt: skip
    assert set(tree["rows"][0]) == {*peers.ROW, *hopper_matmul.FIELDS, "run"}
    assert {"torch", "triton", "nvidia-cublas"} < set(tree["provenance"])
    assert tree["summary"]["peer"]["shapes"] == 2
    assert tree["summary"]["peer"]["geometric mean"] == round(4.0 / 4.1, 4)
    said = capsys.readouterr().out
    assert "main 512: " in said
    assert "0.976 of cublaslt algorithm_1" in said
    assert "1500 MHz capped" in said


def test_peers_are_tested_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--peers-only tells each peer's rate or reason, and leaves the rows of matmuls alone."""
    monkeypatch.setattr(cublaslt, "count", lambda problems: [2] * len(problems))
    monkeypatch.setattr(hopper_matmul, "measure", Gpu(peer_seconds))
    hopper_matmul.main(["--out", str(tmp_path), "--parts", "1024", "--peers-only"])
    said = capsys.readouterr().out.splitlines()
    assert f"1024 cublaslt algorithm_1: {2 * 1024**3 / 4 * 1e-12:.1f} TFLOP/s, error 0.50" in said
    assert "1024 cublaslt algorithm_0: failed: it is wrong" in said
    assert not (tmp_path / "hopper_matmul.json").exists()
    rows = peers.load_rows("hopper_coarse", tmp_path)
    assert {r["group"] for r in rows} == {"peers"}


def test_summary_names_the_worst() -> None:
    """Geometric means over the rows of the marks that have both times."""
    row = dict.fromkeys((*peers.ROW, *hopper_matmul.FIELDS))
    rows = [
        {**row, "group": "main", "m": m, "n": 1, "k": 1, "seconds": 1.0, "peer_seconds": s,
         "triton_seconds": t, "seconds_in_order": 2.0}
        for m, s, t in ((1, 2.0, None), (2, 0.5, 3.0), (3, 1.0, None))
    ]  # fmt: skip
    rows.append({**rows[0], "group": "f16", "peer_seconds": 0.01})
    found = hopper_matmul.summary(rows)
    assert found["peer"] == {
        "shapes": 3, "geometric mean": 1.0, "worst": 0.5, "worst shape": "2x1x1",
    }  # fmt: skip
    assert found["triton"]["geometric mean"] == 3.0
    assert found["peer, in order"]["geometric mean"] == 0.5
    assert hopper_matmul.summary([]) == {}


@given(st.integers(0, 2**32), st.integers(0, 200))
def test_random_shapes_suit_tma(seed: int, number: int) -> None:
    """Contiguous extents are multiples of 8; one shape in five has a k of one stage."""
    problem = hopper_fuzz.shape(np.random.default_rng(seed), number)
    for operand in problem.operation.operands:
        assert problem.sizes[operand.axes[-1]] % 8 == 0
    assert problem.sizes["k"] <= (64 if number % 5 == 3 else 600)


def test_random_shapes_have_every_layout_and_type() -> None:
    """16 numbers in a row have all layouts with all types; not all extents are multiples of 8."""
    rng = np.random.default_rng(1)
    problems = [hopper_fuzz.shape(rng, number) for number in range(16)]
    assert len({p.operation for p in problems}) == 16
    assert any(p.sizes["m"] % 8 for p in problems)
    assert any(p.sizes["k"] % 8 for p in problems)


def test_random_schedules_are_of_each_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed decides the draw; schedules differ, mix structures, and are asked about one by one.

    Here the event graph is one that refuses a single row of clusters, so as to be quick.
    """

    def refused(s: Schedule, machine: Hopper, problem: Problem, device: Device) -> tuple[str, ...]:
        return ("no",) if s["raster"] == 1 else ()

    monkeypatch.setattr(hopper_fuzz, "check_schedule", refused)
    fixed: dict[str, Any] = {"tile_k": 64, "stages": 2, "in_flight": (0, 1), "raster": (1, 2, 4)}
    cases = hopper_fuzz.draw(3, shapes=2, count=32, fixed=fixed)
    assert cases == hopper_fuzz.draw(3, shapes=2, count=32, fixed=fixed)
    assert cases != hopper_fuzz.draw(4, shapes=2, count=32, fixed=fixed)
    for problem, drawn in cases:
        assert len(set(drawn)) == 16
        kinds = {tuple(s[name] for name in hopper_fuzz.STRUCTURAL) for s in drawn}
        assert len(kinds) == 8
        for schedule in drawn:
            assert not broken(schedule, problem)
            assert schedule["raster"] != 1


def test_fuzz_goes_on_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are there, of the same schedules and emitter, are left alone."""
    good, wrong = (Schedule.of(Hopper(), STARTS[name]) for name in ("ring", "swapped"))
    gpu = Gpu(lambda one, options: 1e-6 if one == good else None)
    monkeypatch.setattr(hopper_fuzz, "measure", gpu)
    first = Problem.of(matmul("bf16", layout="nt"), m=8, n=8, k=8)
    other = Problem.of(matmul("f16", "f32", "tn"), m=8, n=16, k=3)
    cases = [(first, (good, wrong)), (other, (good,))]
    path = tmp_path / "cases.json"
    save_cases(path, cases, "c")
    assert hopper_fuzz.load_cases(path) == cases
    for asked in (2, 0):
        gpu.asked.clear()
        hopper_fuzz.main(["--out", str(tmp_path), "--schedules", str(path)])
        assert len(gpu.asked) == asked
    tree = json.loads((tmp_path / "hopper_fuzz.json").read_text())
    assert (tree["summary"]["schedules"], tree["summary"]["wrong"]) == (3, 1)
    assert tree["summary"]["reasons"] == ["it is wrong"]
    assert tree["summary"]["structures"]["swap"] == {"0": 2, "1": 1}
    assert [r["layout"] for r in tree["rows"]] == ["nt", "nt", "tn"]
    assert set(tree["rows"][0]) == {*peers.ROW, *hopper_fuzz.FIELDS, "run"}
    changed = [(first, (good,)), (other, (good,))]
    save_cases(path, changed, "c")
    gpu.asked.clear()
    hopper_fuzz.main(["--out", str(tmp_path), "--schedules", str(path)])
    assert len(gpu.asked) == 1
    assert len(peers.load_rows("hopper_fuzz", tmp_path)) == 2
    monkeypatch.setattr(hopper_fuzz, "EMITTER_VERSION", EMITTER_VERSION + 1)
    gpu.asked.clear()
    hopper_fuzz.main(["--out", str(tmp_path), "--schedules", str(path)])
    assert len(gpu.asked) == 2


@pytest.mark.parametrize("module", [cublaslt, triton_matmul, hopper_cases, hopper_fuzz])
def test_examples_are_true(module: Any) -> None:
    """What a benchmark's docstrings say that Python prints, it prints."""
    failed, attempted = doctest.testmod(module)
    assert (failed, attempted > 0) == (0, True)
