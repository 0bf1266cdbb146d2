"""The benchmarks of matmuls, as far as they need no GPU: their cases, rows and command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ampere_matmul, hopper_matmul, matmul, peers, simt_ladder
from benchmarks.matmul import FIELDS, Case, case, main, row_of, run, summary
from benchmarks.peers import ROW
from tinygpu.codegen.emit import EMITTER_VERSION
from tinygpu.errors import LaunchError
from tinygpu.machines.ampere import Ampere
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.neighbourhood import Candidate
from tinygpu.search.tuning.climb import CUBLASLT, Effort, Tuned
from tinygpu.space.measurement import Measurement, canonical, describe
from tinygpu.space.space import Space
from tinygpu.term.machine import Value
from tinygpu.term.operation import Operation
from tinygpu.term.operation import matmul as matmul_of
from tinygpu.term.schedule import Schedule

ONE = case("main", 256, 256, 256, "f32", "nn")
OTHER = case("main", 512, 256, 256, "f32", "nn")
RAGGED = case("others", 255, 256, 256, "f32", "nn")
RASTERS = {**LADDER["tuned"], "raster": (1, 2, 4, 8)}


def measurement(name: str, seconds: float | None) -> Measurement:
    return Measurement(
        operation="o", sizes="s", schedule=name, device="d", driver="r", emitter=EMITTER_VERSION,
        seconds=seconds, error=0.5, clock_mhz=1500, capped=True, reason="" if seconds else "wrong",
    )  # fmt: skip


def peer(name: str, seconds: float) -> Measurement:
    return measurement(canonical({"peer": name}), seconds)


PEERS = (
    peer(f"{CUBLASLT}:algorithm_3", 4e-6),
    peer("benchmarks.peers:torch_matmul", 5e-6),
    peer("benchmarks.triton_matmul:t128x128x64_s3_w4_g8", 7e-6),
    peer("benchmarks.triton_matmul:t64x128x64_s4_w4_g8", 8e-6),
)


def tuned(schedules: Sequence[Schedule], one: Case, seconds: Sequence[float | None]) -> Tuned:
    """What ``tune`` would return of these finalists; two more were evaluated."""
    finalists = tuple(
        (Candidate(s, 3e-6), measurement(describe(one.problem, s)[2], t))
        for s, t in zip(schedules, seconds, strict=True)
    )
    rest = [schedules[0].with_(raster=r) for r in (1, 2)]
    evaluated = {s: measurement("", 1e-6) for s in (*schedules, *rest)}
    return Tuned(finalists, PEERS, evaluated, {}, True)


# Cases.


def of(cases: Sequence[Case], group: str) -> set[tuple[int, ...]]:
    """Return the shapes of a group."""
    return {tuple(c.problem.sizes[axis] for axis in "mnk") for c in cases if c.group == group}


def test_marks_are_there() -> None:
    """The shapes that the marks are set for, each in its type and layout."""
    rows = (16, 64, 128, 256, 512, 1024, 2048, 3500, 8192)
    assert of(hopper_matmul.CASES, "main") == {
        *((2**p,) * 3 for p in range(9, 15)),
        *((m, 4096, 4096) for m in rows),
        *((m, n, k) for m in (16, 128, 512, 2048, 8192) for n, k in ((14336, 4096), (4096, 14336))),
    }
    assert of(hopper_matmul.CASES, "others") >= {(33, 4096, 11008), (1, 4096, 4096)}
    assert of(simt_ladder.CASES, "main") == {(s,) * 3 for s in (2048, 4096, 8192)}
    assert of(simt_ladder.CASES, "others") >= {
        (4095, 4097, 4093), (333, 777, 1111), (64, 64, 65536),
    }  # fmt: skip
    assert (1000, 1000, 1000) in of(ampere_matmul.CASES, "main")
    linear, plain = matmul_of("bf16", layout="nt"), matmul_of("f32")
    wanted: list[tuple[Sequence[Case], Operation]] = [
        (hopper_matmul.CASES, linear), (ampere_matmul.CASES, linear), (simt_ladder.CASES, plain),
    ]  # fmt: skip
    for cases, operation in wanted:
        assert {c.problem.operation for c in cases if c.group == "main"} == {operation}


@pytest.mark.parametrize(
    ("cases", "machine"),
    [
        (hopper_matmul.CASES, Hopper()),
        (ampere_matmul.CASES, Ampere()),
        (simt_ladder.CASES, Simt()),
    ],
)
def test_each_case_has_a_name_and_fits_its_machine(cases: Sequence[Case], machine: Any) -> None:
    """Parts and rows are of one case each; the machine takes the operation."""
    assert len({c.part for c in cases}) == len(cases)
    assert len({matmul._identity_of(c) for c in cases}) == len(cases)
    for one in cases:
        if (one.group, machine.name) != ("layouts", "simt"):  # its threads walk along nn alone
            machine.check(one.problem.operation)
    assert {c.part for c in cases if c.group == "layouts"} == {
        f"{cases[0].problem.operation.inputs[0].dtype}-{layout}-4096"
        for layout in ("nn", "nt", "tn", "tt")
        if matmul_of(cases[0].problem.operation.inputs[0].dtype, layout=layout)
        != cases[0].problem.operation
    }


def test_a_batch_counts_its_flops() -> None:
    (one,) = (c for c in hopper_matmul.CASES if c.group == "batch")
    assert one.flops == 2 * 32 * 1024**3
    assert ONE.flops == 2 * 256**3


# Rows.


def schedules(*rasters: int) -> list[Schedule]:
    return [Schedule.of(Simt(), {**LADDER["tuned"], "raster": r}) for r in rasters]


def test_a_row_is_of_the_fastest_finalist() -> None:
    """Beside the fastest library and the fastest of Triton, with its place in the ranking."""
    spread = tuple(LADDER["tuned"][name] for name in Simt.spread)
    other = ("other",) * len(spread)
    found = tuned(schedules(4, 8), ONE, (2e-6, 2.5e-6))
    row = row_of(ONE, Simt(), found, [other, spread])
    assert set(row) == {*ROW, *FIELDS}
    assert row["schedule"] == dict(schedules(4)[0].decisions)
    assert (row["seconds"], row["seconds_in_order"], row["predicted_seconds"]) == (2e-6, 2e-6, 3e-6)
    assert (row["peer"], row["peer_seconds"]) == ("cublaslt algorithm_3", 4e-6)
    assert row["triton"] == "triton_matmul t128x128x64_s3_w4_g8"
    assert (row["triton_seconds"], row["place"], row["evaluations"]) == (7e-6, 2, 4)
    assert (row["group"], row["m"], row["dtype"], row["settled"]) == ("main", 256, "f32", True)
    assert row_of(ONE, Simt(), found, [other])["place"] is None
    alone = row_of(ONE, Simt(), replace(found, peers=PEERS[1:2]), [spread])
    assert (alone["peer"], alone["triton"], alone["triton_seconds"]) == ("torch_matmul", "", None)


def test_a_row_tells_an_early_start_apart() -> None:
    """``seconds_in_order`` is of the fastest that does not start early; none is None."""
    one = hopper_matmul.CASES[0]
    early = Schedule.of(Hopper(), {**STARTS["ring"], "early": 1})
    found = tuned([early, early.with_(early=0)], one, (2e-6, 3e-6))
    assert row_of(one, Hopper(), found, [])["seconds_in_order"] == 3e-6
    found = tuned([early], one, (2e-6,))
    assert row_of(one, Hopper(), found, [])["seconds_in_order"] is None


def test_nothing_to_compare_is_said() -> None:
    """No finalist that ran, or no library; Triton alone may be missing."""
    with pytest.raises(LaunchError, match="256: nothing to compare: wrong"):
        row_of(ONE, Simt(), tuned(schedules(4), ONE, (None,)), [])
    found = replace(tuned(schedules(4), ONE, (1e-6,)), peers=PEERS[2:])
    with pytest.raises(LaunchError, match="256: nothing to compare: no library ran"):
        row_of(ONE, Simt(), found, [])


def test_a_case_is_searched_from_the_models_spreads(monkeypatch: pytest.MonkeyPatch) -> None:
    """``climb`` is given one schedule a spread, the best first, and all modules of peers."""
    asked: dict[str, Any] = {}

    def climb(spaces: Sequence[Space], first: Sequence[Candidate], **named: Any) -> Tuned:
        asked.update(named, spaces=spaces, first=first)
        named["tell"](3, None, 1e-6)
        return tuned([first[1].schedule], ONE, (1e-6,))

    monkeypatch.setattr(matmul, "climb", climb)
    fixed: Mapping[str, Value | tuple[Value, ...]] = {**RASTERS, "tile_m": (64, 128)}
    effort = Effort(seconds=5)
    row = run(ONE, Simt(), ("some.peers",), store=None, effort=effort, fixed=fixed)
    assert row["place"] == 2
    assert sorted(c.schedule["tile_m"] for c in asked["first"]) == [64, 128]
    assert [c.predicted_seconds for c in asked["first"]] == sorted(
        c.predicted_seconds for c in asked["first"]
    )
    assert asked["peers"] == ("benchmarks.peers", CUBLASLT, "some.peers")
    assert asked["effort"] is effort
    assert len(asked["spaces"]) == 1


def test_summary_names_the_worst() -> None:
    """Geometric means by group over rows with both times; "all" is the fastest of all peers."""
    row = dict.fromkeys((*ROW, *FIELDS)) | {"case": "c"}
    rows = [
        {**row, "group": "main", "m": m, "n": 1, "k": 1, "seconds": 1.0, "peer_seconds": s,
         "triton_seconds": t, "seconds_in_order": 2.0}
        for m, s, t in ((1, 2.0, None), (2, 0.5, 3.0), (3, 1.0, 0.25))
    ]  # fmt: skip
    rows.append({**rows[0], "group": "f16", "peer_seconds": 0.01, "seconds_in_order": None})
    rows.append({**rows[0], "seconds": None})
    found = summary(rows)
    assert found["main"]["library"] == {
        "shapes": 3, "geometric mean": 1.0, "worst": 0.5, "worst shape": "c 2x1x1",
    }  # fmt: skip
    assert found["main"]["triton"]["geometric mean"] == round((3.0 * 0.25) ** 0.5, 4)
    assert found["main"]["all"]["geometric mean"] == round((2.0 * 0.5 * 0.25) ** (1 / 3), 4)
    assert found["main"]["all"]["worst shape"] == "c 3x1x1"
    assert found["main"]["all, in order"]["worst"] == 0.125
    assert set(found["f16"]) == {"library", "all"}
    assert summary([]) == {}


# The command line.


class Runs:
    """In the place of ``run``: what was asked, and what fails."""

    def __init__(self, *ill: str) -> None:
        self.ill, self.asked, self.seconds = set(ill), [], 2e-6

    asked: list[str]

    def __call__(
        self, one: Case, machine: Simt, modules: Sequence[str], **_: Any
    ) -> dict[str, Any]:
        self.asked.append(one.part)
        if one.part in self.ill:
            raise LaunchError(f"{one.part}: no luck")
        return row_of(one, machine, tuned(schedules(4), one, (self.seconds,)), [])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    found = Runs()
    monkeypatch.setattr(matmul, "run", found)
    return found


def command(out: Path, *words: str) -> None:
    main("some_matmul", Simt(), (ONE, OTHER, RAGGED), ["--out", str(out), *words])


def rows(out: Path) -> list[tuple[str, int]]:
    return [(r["group"], r["m"]) for r in peers.load_rows("some_matmul", out)]


def test_parts_that_fail_do_not_stop_the_others(
    tmp_path: Path, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are said and counted; ``--missing`` does just those that have no row."""
    runs.ill = {"256"}
    with pytest.raises(SystemExit, match="1 of 3 parts failed; the first: 256: no luck"):
        command(tmp_path)
    assert rows(tmp_path) == [("main", 512), ("others", 255)]
    assert "256: no luck" in capsys.readouterr().out
    runs.ill.clear()
    runs.asked.clear()
    command(tmp_path, "--missing")
    assert runs.asked == ["256"]
    command(tmp_path, "--missing")
    assert runs.asked == ["256"]
    runs.seconds = 1e-6
    command(tmp_path, "--parts", "256")
    tree = json.loads((tmp_path / "some_matmul.json").read_text())
    assert [(r["m"], r["seconds"]) for r in tree["rows"]] == [
        (512, 2e-6), (255, 2e-6), (256, 1e-6),
    ]  # fmt: skip
    assert set(tree["rows"][0]) == {*ROW, *FIELDS, "run"}
    assert {"torch", "triton", "nvidia-cublas"} < set(tree["provenance"])
    assert tree["summary"]["main"]["library"]["shapes"] == 2
    assert tree["summary"]["main"]["library"]["geometric mean"] == round(8**0.5, 4)
    said = capsys.readouterr().out
    assert f"main 256: {ONE.flops / 1e-6 * 1e-12:.1f} TFLOP/s, 4.000 of cublaslt" in said
    assert "7.000 of triton_matmul t128x128x64_s3_w4_g8" in said
    assert "1500 MHz capped" in said


def test_shares_are_merged(tmp_path: Path, runs: Runs) -> None:
    """Each process does its own; together they did all, each row with its run's command."""
    for share in range(2):
        command(tmp_path / str(share), "--share", f"{share}/2")
    assert runs.asked == ["256", RAGGED.part, "512x256x256"]
    runs.asked.clear()
    command(tmp_path, "--merge", str(tmp_path / "0"), str(tmp_path / "1"))
    assert runs.asked == []
    assert sorted(rows(tmp_path)) == [("main", 256), ("main", 512), ("others", 255)]
    tree = json.loads((tmp_path / "some_matmul.json").read_text())
    commands = {row["m"]: tree["runs"][row["run"]]["command"] for row in tree["rows"]}
    assert "--share 0/2" in commands[256]
    assert "--share 1/2" in commands[512]
    assert tree["summary"]["main"]["all"]["shapes"] == 2
    runs.seconds = 5e-7
    command(tmp_path / "0", "--parts", "256")
    command(tmp_path, "--merge", str(tmp_path / "0"))
    found = {r["m"]: r["seconds"] for r in peers.load_rows("some_matmul", tmp_path)}
    assert found == {256: 5e-7, 512: 2e-6, 255: 2e-6}


@pytest.mark.parametrize("words", [["--parts", "1"], ["--share", "2"], ["--share", "2/2"]])
def test_wrong_words_are_refused(
    words: list[str], tmp_path: Path, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown part, a share that is none: a usage line, and nothing is done."""
    with pytest.raises(SystemExit) as caught:
        command(tmp_path, *words)
    assert caught.value.code == 2
    assert "usage: python -m benchmarks.some_matmul" in capsys.readouterr().err
    assert runs.asked == []


def test_a_folder_without_results_is_not_merged(tmp_path: Path, runs: Runs) -> None:
    with pytest.raises(SystemExit, match=r"nowhere.*no results"):
        command(tmp_path, "--merge", str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("module", "machine", "modules"),
    [
        (hopper_matmul, "hopper", ("benchmarks.triton_matmul",)),
        (ampere_matmul, "ampere", ("benchmarks.triton_mma",)),
        (simt_ladder, "simt", ()),
    ],
)
def test_each_benchmark_runs_its_cases(
    module: Any, machine: str, modules: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own machine and peers go to the driver; simt sums in f32, as its peers do."""
    asked: list[Any] = []
    monkeypatch.setattr(matmul, "main", lambda *given, **named: asked.append((given, named)))
    module.main(["--missing"])
    (((name, of_machine, cases, words), named),) = asked
    assert name == module.__name__.rpartition(".")[2]
    assert (of_machine.name, cases, words) == (machine, module.CASES, ["--missing"])
    assert named.get("peers", ()) == modules
    assert named.get("fixed") == ({"accumulator": "f32"} if machine == "simt" else None)


def test_the_ladder_has_a_row_for_each_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place of older rows of the ladder; without a peer that ran, too."""

    def measured(space: Space, given: Sequence[Schedule], **_: Any) -> list[Measurement]:
        mine = [measurement(describe(space.problem, s)[2], 1e-3) for s in given]
        return [*mine, *beside]

    beside = list(PEERS[:1])
    monkeypatch.setattr(simt_ladder, "measured", measured)
    for _ in range(2):
        simt_ladder.main(["--ladder", str(tmp_path)])
    found = peers.load_rows("simt_ladder", tmp_path)
    assert [r["case"] for r in found] == list(LADDER)
    assert {(r["group"], r["peer"], r["peer_seconds"]) for r in found} == {
        ("ladder", "cublaslt algorithm_3", 4e-6)
    }
    assert all(r["predicted_seconds"] > 0 for r in found)
    beside.clear()
    assert {r["peer_seconds"] for r in simt_ladder.ladder()} == {None}
