"""What of the benchmarks needs no GPU: what they draw, write, read, choose and count."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import elementwise, peers, scoring, simt_fuzz, speed, streaming
from benchmarks.memory import peak_mib
from tinygpu.codegen.run.measure import Options
from tinygpu.devices.device import load_device
from tinygpu.errors import StoreError, TinyGpuError
from tinygpu.legality.laws import check_schedule
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.space.measurement import Measurement, Results, describe
from tinygpu.space.space import Space
from tinygpu.term.machine import Value
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.schedule import Schedule

NARROW: dict[str, Any] = {
    n: v for n, v in LADDER["shared"].items() if n not in ("tile_k", "raster", "split_k", "combine")
}


def schedule_of(point: str = "vectorised", **changes: Value) -> Schedule:
    return Schedule.of(Simt(), {**LADDER[point], **changes})


class Gpu:
    """In the place of ``measure``: times by schedule, and what was asked."""

    def __init__(self, seconds: Callable[[Schedule, Options], float | None]) -> None:
        self.seconds = seconds
        self.asked: list[tuple[int, Options]] = []
        self.peer: float | None = 1e-3

    def __call__(
        self,
        schedules: Sequence[Schedule],
        machine: Simt,
        problem: Problem,
        *,
        store: Results | None = None,
        peers: Sequence[str] = (),
        options: Options,
    ) -> list[Measurement]:
        self.asked.append((len(schedules), options))
        found = []
        for s in schedules:
            operation, sizes, name = describe(problem, s)
            one = Measurement(
                operation=operation, sizes=sizes, schedule=name, device="d", driver="r", emitter=1
            )
            seconds = self.seconds(s, options)
            one = replace(one, seconds=seconds, reason="" if seconds else "it is wrong", error=0.5)
            if store is not None:
                store.put(one)
            found.append(one)
        return found + [replace(found[0], seconds=self.peer, reason="no torch")] * len(peers)


def test_a_row_keeps_the_provenance_of_its_run(tmp_path: Path) -> None:
    """Rows of several runs name their own; a run without rows is forgotten; old files have one."""
    row: dict[str, Any] = dict.fromkeys(peers.ROW, None)
    old, one, two = ({"commit": name} for name in ("old", "one", "two"))
    rows = [{**row, "case": case} for case in "abc"]
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"provenance": old, "rows": rows}))

    def runs() -> list[str]:
        tree = json.loads(path.read_text())
        return [tree["runs"][r["run"]]["commit"] for r in tree["rows"]]

    peers.write_results("r", rows[:1], one, tmp_path)
    assert runs() == ["one", "old", "old"]
    peers.write_results("r", rows[1:2], one, tmp_path, beside={"summary": 3})
    assert runs() == ["one", "one", "old"]
    peers.write_results("r", rows[2:], two, tmp_path)
    assert runs() == ["one", "one", "two"]
    tree = json.loads(path.read_text())
    assert (tree["provenance"], tree["runs"], "summary" in tree) == (two, [one, two], False)
    assert peers.load_rows("r", tmp_path) == rows
    path.write_text(json.dumps({**tree, "runs": [one]}))
    with pytest.raises(StoreError, match="a row of no run"):
        peers.load_rows("r", tmp_path)


@pytest.mark.parametrize("path", sorted(peers.FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_committed_rows_name_their_run(path: Path) -> None:
    """Each row is of a run with device, driver, commit, date, command; no path of a machine."""
    tree = json.loads(path.read_text())
    runs = tree.get("runs", [tree["provenance"]])
    assert {row.get("run", 0) for row in tree["rows"]} == set(range(len(runs)))
    for run in (tree["provenance"], *runs):
        assert run.keys() >= {"device", "driver", "commit", "date", "command"}
        assert not re.search(r"(^|\s)/", run["command"])


@pytest.mark.parametrize(
    "path", sorted(peers.FOLDER.parent.rglob("*.json")), ids=lambda path: path.stem
)
def test_a_result_says_what_it_is_from(path: Path) -> None:
    """A file, or each part of it, has date and command: a list that was only drawn is no result."""
    tree = json.loads(path.read_text())
    parts = [tree] if "provenance" in tree or "command" in tree else tree.values()
    assert all({"date", "command"} <= part.get("provenance", part).keys() for part in parts)


def test_stored_rows_are_predicted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run predicts as it measures; --predict fills the same in, needs no GPU and says so."""
    monkeypatch.setattr(streaming, "measure", Gpu(lambda s, o: 1e-3))
    one = elementwise.cases(1 << 20)[:1]
    monkeypatch.setattr(elementwise, "cases", lambda: one)
    elementwise.main(["--out", str(tmp_path)])
    path = tmp_path / "elementwise.json"
    before = json.loads(path.read_text())
    assert [r["group"] for r in before["rows"]] == ["space"] * 24 + ["main"] * 3
    assert all(r["predicted_seconds"] > 0 for r in before["rows"])
    assert "predictions" not in before
    blank = [{**r, "predicted_seconds": None} for r in before["rows"]]
    path.write_text(json.dumps({**before, "rows": blank}))
    elementwise.main(["--out", str(tmp_path), "--predict"])
    after = json.loads(path.read_text())
    assert (after["rows"], after["runs"]) == (before["rows"], before["runs"])
    assert after["provenance"] == before["provenance"]
    assert after["predictions"]["command"] == "python -m benchmarks.elementwise --predict"
    assert "24 of 24 off by more than 30 %" in capsys.readouterr().out
    path.write_text(json.dumps({**before, "rows": [{**blank[0], "m": 7}]}))
    with pytest.raises(SystemExit, match="row of axpb 7 is of no case here"):
        elementwise.main(["--out", str(tmp_path), "--predict"])


def test_random_schedules_are_legal_and_the_same_again(tmp_path: Path) -> None:
    """The seed decides the draw; each schedule is legal for its shape; a file keeps all."""
    cases = simt_fuzz.draw(5, shapes=6, count=12, fixed=NARROW)
    assert simt_fuzz.draw(5, shapes=6, count=12, fixed=NARROW) == cases
    assert simt_fuzz.draw(6, shapes=6, count=12, fixed=NARROW) != cases
    device = load_device("h200")
    for problem, schedules in cases:
        assert len(set(schedules)) == 2
        for s in schedules:
            assert not check_schedule(s, Simt(), problem, device)
    types = {(p.operation.inputs[0].dtype, p.operation.output.dtype) for p, _ in cases}
    assert len(types) == 5
    path = tmp_path / "cases.json"
    simt_fuzz.save_cases(path, cases, "c")
    assert simt_fuzz.load_cases(path) == cases


def test_16_bit_sums_do_not_meet_across_ctas() -> None:
    """A 16-bit output is stored once: adding to it would round at every part."""
    device = load_device("h200")
    split = schedule_of("shared", split_k=4, combine="red")
    for dtype, output, legal in (("f16", None, False), ("f16", "f32", True), ("f32", None, True)):
        problem = Problem.of(matmul(dtype, output), m=64, n=64, k=256)
        broken = [v.law for v in check_schedule(split, Simt(), problem, device)]
        assert (broken == []) == legal, broken


def test_fuzz_rows_count_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row has what ptxas said beside what was foreseen; the summary counts wrong ones."""
    good, wrong = schedule_of("naive"), schedule_of("naive", raster=2)
    monkeypatch.setattr(simt_fuzz, "measure", Gpu(lambda s, o: 1e-6 if s == good else None))
    cases = [(Problem.of(matmul(), m=8, n=8, k=8), (good, wrong))]
    drawn = tmp_path / "cases.json"
    simt_fuzz.save_cases(drawn, cases, "c")
    for _ in range(2):
        simt_fuzz.main(["--out", str(tmp_path), "--schedules", str(drawn)])
    tree = json.loads((tmp_path / "simt_fuzz.json").read_text())
    assert (tree["summary"]["schedules"], tree["summary"]["wrong"]) == (2, 1)
    assert tree["summary"]["reasons"] == ["it is wrong"]
    assert tree["summary"]["spills"]["neither"] == 2
    row = tree["rows"][0]
    assert 8 <= row["registers"] <= 64
    assert (row["spill_bytes"], row["predicted_spill"]) == (0, False)
    assert set(row) == {*peers.ROW, *simt_fuzz.FIELDS, "run"}


def test_speed_counts() -> None:
    """Each part of the speed benchmark on a small space gives finite numbers with units."""
    problem = Problem.of(matmul(), m=64, n=64, k=64)
    space = Space(Simt(), problem, load_device("h200"), fixed=NARROW)
    programs = [s.program(Simt(), problem.operation) for s in list(space)[:4]]
    rows = speed.emitting(programs, space) + speed.verdicts(programs)
    assert min(scoring.rates(300, 64, "tuned")) > 0
    with pytest.raises(TinyGpuError, match="ended with status 1"):
        scoring.rates(300, 64, "nothing")
    rows += speed.child([sys.executable, "-c", "x = bytearray(64 << 20)"], "a child")
    assert all(np.isfinite(r["value"]) and r["value"] > 0 for r in rows)
    named = {r["name"]: r["value"] for r in rows}
    own = peak_mib()  # a child begins as its parent's copy
    assert 64 < named["a child, peak resident memory"] < 1024 + own
    assert named["skeletons in the sample"] <= named["schedules in the sample"] == 4
    code = "import sys; print('no luck', file=sys.stderr); sys.exit(3)"
    with pytest.raises(TinyGpuError, match="status 3, it said: no luck"):
        speed.child([sys.executable, "-c", code], "a child")
