"""Each benchmark runs once on little, a GPU faked where it needs one, and writes what it should."""

from __future__ import annotations

import base64
import doctest
import importlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import (
    assemblers,
    attention,
    attention_drawn,
    elementwise,
    families,
    fuzz,
    hopper_bottleneck,
    hopper_matmul,
    hopper_sanitizer,
    host_overhead,
    interpreter_agreement,
    interpreter_speed,
    matmul,
    scoring,
    simt_fuzz,
    simt_ladder,
    speed,
    streaming,
    triton_attention,
    triton_matmul,
    triton_mma,
)
from benchmarks.agreement_cases import CASES as KEPT
from benchmarks.peers import FOLDER, load_rows
from tests.fake_gpu import Card, FakeWorker
from tests.hopper_terms import term
from tinygpu.codegen.emit import EMITTER_VERSION
from tinygpu.codegen.run.measure import Options
from tinygpu.devices.device import load_device
from tinygpu.errors import AssemblyError, LaunchError
from tinygpu.machines import MACHINES
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.neighbourhood import Candidate
from tinygpu.search.tuning.climb import CUBLASLT, Tuned
from tinygpu.space.measurement import Measurement, Results, canonical, describe
from tinygpu.space.space import Space
from tinygpu.term.operation import Problem
from tinygpu.term.operation import matmul as product_of
from tinygpu.term.schedule import Schedule, from_json

FOLDERS = FOLDER.parent
NARROW: dict[str, Any] = {
    n: v for n, v in LADDER["shared"].items() if n not in ("tile_k", "raster", "split_k", "combine")
}
SMALL = Problem.of(product_of(), m=64, n=64, k=64)


def measurement(name: str, seconds: float | None, **told: Any) -> Measurement:
    return Measurement(
        operation="o", sizes="s", schedule=name, device="d", driver="r", emitter=EMITTER_VERSION,
        seconds=seconds, error=0.5, clock_mhz=1500, capped=True, reason="" if seconds else "wrong",
    )  # fmt: skip


class Gpu:
    """In the place of ``measure``: times by schedule."""

    def __init__(self, seconds: Callable[[Schedule], float | None]) -> None:
        self.seconds = seconds

    def __call__(
        self,
        schedules: Sequence[Schedule],
        machine: Any,
        problem: Problem,
        *,
        store: Results | None = None,
        peers: Sequence[str] = (),
        options: Options,
    ) -> list[Measurement]:
        found = []
        for s in schedules:
            operation, sizes, name = describe(problem, s)
            one = replace(measurement(name, self.seconds(s)), operation=operation, sizes=sizes)
            if store is not None:
                store.put(one)
            found.append(one)
        return found + [replace(found[0], seconds=1e-3, reason="no torch")] * len(peers)


# Of all.

SCRIPTS = sorted(
    path.stem
    for path in FOLDERS.parent.glob("*.py")
    if "def main(arguments: Seq" in path.read_text()
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_says_how_it_is_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    if len(inspect.signature(module.main).parameters) > 1:
        return
    with pytest.raises(SystemExit) as caught:
        module.main(["--help"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")


@pytest.mark.parametrize("module", [triton_matmul, hopper_matmul])
def test_examples_are_true(module: Any) -> None:
    failed, attempted = doctest.testmod(module)
    assert (failed, attempted > 0) == (0, True)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_committed_rows_name_their_run(path: Path) -> None:
    """Each row is of a run with device, driver, commit, date, command; no path of a machine."""
    tree = json.loads(path.read_text())
    runs = tree.get("runs", [tree["provenance"]])
    assert {row.get("run", 0) for row in tree["rows"]} == set(range(len(runs)))
    for run in (tree["provenance"], *runs):
        assert run.keys() >= {"device", "driver", "commit", "date", "command"}
        assert not re.search(r"(^|\s)/", run["command"])


@pytest.mark.parametrize("path", sorted(FOLDERS.rglob("*.json")), ids=lambda path: path.stem)
def test_a_result_says_what_it_is_from(path: Path) -> None:
    """A file, or each part of it, has date and command: a list that was only drawn is no result."""
    tree = json.loads(path.read_text())
    parts = [tree] if "provenance" in tree or "command" in tree else tree.values()
    assert all({"date", "command"} <= part.get("provenance", part).keys() for part in parts)


# Of one each, on a GPU that is not there.


def test_elementwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured is predicted, and ``--predict`` says the same of stored rows."""
    one = elementwise.cases(1 << 20)[:1]
    monkeypatch.setattr(streaming, "measure", Gpu(lambda s: 1e-3))
    monkeypatch.setattr(elementwise, "cases", lambda: one)
    elementwise.main(["--out", str(tmp_path)])
    path = tmp_path / "elementwise.json"
    before = json.loads(path.read_text())
    assert [r["group"] for r in before["rows"]] == ["space"] * 24 + ["main"] * 3
    blank = [{**r, "predicted_seconds": None} for r in before["rows"]]
    path.write_text(json.dumps({**before, "rows": blank}))
    elementwise.main(["--out", str(tmp_path), "--predict"])
    assert json.loads(path.read_text())["rows"] == before["rows"]


def test_simt_fuzz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what was drawn, the wrong are counted."""
    ((problem, (good, wrong)),) = simt_fuzz.draw(5, shapes=1, count=2, fixed=NARROW)
    monkeypatch.setattr(simt_fuzz, "measure", Gpu(lambda s: 1e-6 if s == good else None))
    drawn = tmp_path / "cases.json"
    simt_fuzz.save_cases(drawn, [(problem, (good, wrong))], "c")
    simt_fuzz.main(["--out", str(tmp_path), "--schedules", str(drawn)])
    summary = json.loads((tmp_path / "simt_fuzz.json").read_text())["summary"]
    assert (summary["schedules"], summary["wrong"], summary["reasons"]) == (2, 1, ["wrong"])


def test_fuzz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was wrong is counted and makes the run fail; what was right is not run again."""
    path, wrong = tmp_path / "cases.jsonl", [[[{}, "it is wrong"]]]
    case = {"machine": "simt", "words": {}, "sizes": {}, "schedules": [{}] * 3, "unproved": []}
    path.write_text("".join(json.dumps({**case, "number": n}) + "\n" for n in range(3)))

    def each_done(_do: Any, each: Sequence[Any], *_: Any) -> list[dict[str, Any]]:
        more = {"schedules": 3, "worst_error": 0.5, "emitter": EMITTER_VERSION}
        return [{**one, **more, "wrong": wrong.pop() if wrong else []} for (one,) in each]

    monkeypatch.setattr(fuzz, "each_done", each_done)
    words = ["--cases", str(path), "--out", str(tmp_path)]
    with pytest.raises(SystemExit):
        fuzz.main(words)
    fuzz.main(words)
    summary = json.loads((tmp_path / "fuzz.json").read_text())["summary"]
    assert (summary["schedules"], summary["wrong"]) == (9, 0)


def test_matmul(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that fails stops no other; a row has the fastest schedule beside its peers."""
    one, other = (matmul.case("main", m, 256, 256, "f32", "nn") for m in (256, 512))
    schedule = Schedule.of(Simt(), LADDER["tuned"])
    peer = measurement(canonical({"peer": f"{CUBLASLT}:algorithm_3"}), 4e-6)

    def climb(spaces: Sequence[Space], first: Sequence[Candidate], **_: Any) -> Tuned:
        if spaces[0].problem == other.problem:
            raise LaunchError("512: no luck")
        mine = measurement(describe(one.problem, schedule)[2], 2e-6)
        return Tuned(((Candidate(schedule, 3e-6), mine),), (peer,), {schedule: mine}, {}, True)

    monkeypatch.setattr(matmul, "climb", climb)
    with pytest.raises(SystemExit, match="1 of 2 parts failed; the first: 512: no luck"):
        matmul.main("some", Simt(), (one, other), ["--out", str(tmp_path)], fixed=LADDER["tuned"])
    (row,) = load_rows("some", tmp_path)
    assert (row["m"], row["seconds"], row["peer_seconds"]) == (256, 2e-6, 4e-6)


def test_simt_ladder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(space: Space, given: Sequence[Schedule], **_: Any) -> list[Measurement]:
        return [measurement(describe(space.problem, s)[2], 1e-3) for s in given]

    monkeypatch.setattr(simt_ladder, "measured", measured)
    simt_ladder.main(["--ladder", str(tmp_path)])
    assert [r["case"] for r in load_rows("simt_ladder", tmp_path)] == list(LADDER)


def test_host_overhead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that takes longer than it is allowed is written, and fails the run."""
    row = {**host_overhead._row("call", "simt", "CuPy"), "error": 0, "replay_error": 0}
    rows = [
        {**row, "case": str(s), "seconds": s, "allowed_seconds": 4e-6, "holds": s < 4e-6}
        for s in (3e-6, 5e-6)
    ]
    monkeypatch.setattr(host_overhead, "driver_row", lambda: rows[0])
    monkeypatch.setattr(host_overhead, "cases", lambda: [None])
    monkeypatch.setattr(host_overhead, "rows_of", lambda case: rows[1:])
    with pytest.raises(SystemExit, match="1 of 2 rows do not hold"):
        host_overhead.main(["--out", str(tmp_path)])
    assert [r["holds"] for r in load_rows("host_overhead", tmp_path)] == [True, False]


def test_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: Card) -> None:
    """A case that hangs costs itself; a row is the fastest point beside the fastest peer."""
    told = {"clock_mhz": 1500, "capped": False, "spread": 0.01, "rounds": 3, "error": 0.3}
    times = {"point fast": 2e-6, "cudnn": 1e-6}
    timings = {name: {**told, "seconds": seconds} for name, seconds in times.items()}
    answers = ({"failed": "it hangs"}, {"timings": timings, "failures": {}})
    card.answering(attention, *answers)
    problem = Problem.of(product_of("bf16", layout="nt"), m=256, n=256, k=64)
    monkeypatch.setattr(attention, "problem_of", lambda _: problem)
    monkeypatch.setattr(attention, "points", lambda *_: {"fast": term("plain")})
    first, second = (one.part for one in attention.CASES[:2])
    with pytest.raises(SystemExit, match="1 of 2 parts failed"):
        attention.main(["--out", str(tmp_path), "--parts", first, second])
    (row,) = load_rows("attention", tmp_path)
    assert (row["case"], row["ratio"]) == (second, 0.5)


def test_what_the_command_line_finds_stands_beside_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: Card
) -> None:
    """The row is of what was found, though the model's first is faster here; an error is named."""
    one = attention.CASES[0]
    starts = MACHINES["attention"], importlib.import_module("tinygpu.machines.attention").STARTS

    def run(words: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if "--causal" in words:
            return subprocess.CompletedProcess(words, 2, "", "error: no GPU")
        assert words[3:] == (
            *("search", *attention.words_of(one), "--measure", "--budget", "10"),
            *("--out", words[-1]),
        )
        best = [{"machine": "attention", "decisions": dict(starts[1][n])} for n in ("early", "fa2")]
        text = json.dumps({"best": best, "model_first": 2})
        (Path(words[-1]) / "search.json").write_text(text, encoding="utf-8")
        return subprocess.CompletedProcess(words, 0, "", "")

    # its own name alone: provenance asks git by the module's ``run``
    monkeypatch.setattr(attention, "subprocess", SimpleNamespace(run=run))
    found = attention.searched(one, 10)
    assert list(found) == ["found", "model's first"]
    assert found["found"] == Schedule.of(starts[0], starts[1]["early"])
    causal = next(one for one in attention.CASES if one.causal)
    with pytest.raises(LaunchError, match="no GPU"):
        attention.searched(causal, 10)
    told = {"clock_mhz": 1500, "capped": False, "spread": 0.01, "rounds": 3, "error": 0.3}
    times = {"point found": 3e-6, "point model's first": 2e-6, "cudnn": 6e-6}
    timings = {name: {**told, "seconds": seconds} for name, seconds in times.items()}
    card.answering(attention, {"timings": timings, "failures": {}})
    attention.main(["--out", str(tmp_path), "--parts", one.part, "--search", "10"])
    (row,) = load_rows("attention_searched", tmp_path)
    assert (row["schedule"], row["ratio"]) == ({"point": "found"}, 2.0)
    assert row["decisions"]["model's first"]["consumer_order"] == "SsMELOPVv"


def test_interpreter_agreement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake(FakeWorker):
        """A GPU's worker whose outputs are the interpreter's."""

        def ask(self, request: Mapping[str, Any], limit: float) -> dict[str, Any]:
            if request["do"] == "hello":
                return {}
            _, problem, schedule = from_json(request["case"], MACHINES)
            case = (problem, schedule)
            found = interpreter_agreement.interpret(case, request["number"], assembled=False)
            return {"output": base64.b64encode(found.output).decode(), "digest": found.digest}

    monkeypatch.setattr(interpreter_agreement, "Worker", Fake)
    small = tmp_path / "cases.json"
    rows = json.loads(KEPT.read_text(encoding="utf-8"))["rows"]
    small.write_text(json.dumps({"rows": rows[80:81]}), encoding="utf-8")
    interpreter_agreement.main(["--out", str(tmp_path), "--cases", str(small)])
    (row,) = load_rows("interpreter_agreement", tmp_path)
    assert (row["case"], row["agree"], row["difference"]) == ("ampere 0", True, 0)


def test_assemblers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedules that a user's command found; one assembler is compared with none."""
    monkeypatch.setattr(assemblers, "every_ptxas", lambda: ((tmp_path / "ptxas", "13.0.88"),))
    with pytest.raises(AssemblyError, match=r"13\.0\.88 alone"):
        assemblers.main(["--out", str(tmp_path)])
    assert assemblers.jobs_of(json.loads((FOLDER / "drawn_matmul.json").read_text())["rows"])


def test_hopper_sanitizer_and_bottleneck() -> None:
    found = [hopper_sanitizer.said(*told)[0] for told in ((0, "ERROR SUMMARY: 0 errors"), (9, "="))]
    assert found == ["clean", "refused"]
    winner, _ = hopper_bottleneck.winner(hopper_bottleneck.SHAPES[0])
    assert winner.machine == "hopper"


# Of one each that needs no GPU.


def test_speed() -> None:
    """Each part on a small space gives finite numbers with units."""
    space = Space(Simt(), SMALL, load_device("h200"), fixed=NARROW)
    programs = [s.program(Simt(), SMALL.operation) for s in list(space)[:4]]
    rows = speed.emitting(programs, space) + speed.verdicts(programs)
    rows += speed.child([sys.executable, "-c", "x = bytearray(64 << 20)"], "a child")
    assert min(scoring.rates(300, 64, "tuned")) > 0
    assert all(np.isfinite(r["value"]) and r["value"] > 0 for r in rows)


def test_interpreter_speed() -> None:
    row = interpreter_speed.measured("ampere", "plain")
    assert 0 < row["cpu_seconds"] < 10
    tree = json.loads((FOLDERS / "interpreter_speed.json").read_text(encoding="utf-8"))
    assert {(r["machine"], r["point"]) for r in tree["rows"]} <= {*interpreter_speed.points()}
    assert max(r["cpu_seconds"] for r in tree["rows"]) < 10
    assert max(r["peak_mib"] for r in tree["rows"]) < 512
    assert interpreter_speed.rate(128)["million_a_second"] > 0.01


def test_families(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missed mutant fails the run."""
    row = {"term": "x", "family": "guard", "alarms": {}, "missed": [], "false alarm": []}
    monkeypatch.setattr(families, "TERMS", ("x",))
    monkeypatch.setattr(families, "changed", lambda name: {"guard": ()})
    rows = [{**row, "counts": {"legal": 2, "missed": 1}}]
    monkeypatch.setattr(families, "each_done", lambda *_: rows)
    with pytest.raises(SystemExit):
        families.main(["--out", str(tmp_path)])
    told = json.loads((tmp_path / "families.json").read_text())["summary"]
    assert (told["mutants"], told["missed"]) == (3, 1)


def test_draws() -> None:
    words = attention_drawn.words_of(3, np.random.default_rng(3))
    assert words["mask"] in ("none", "causal")
    assert fuzz.problem_of("ampere", 5, np.random.default_rng(1)).sizes["k"] <= 600


def test_peers_of_triton() -> None:
    """A configuration is its name, and the name asks the module for that peer."""
    problem = hopper_matmul.CASES[0].problem
    for module in (triton_matmul, triton_mma):
        found = module.configurations(problem)
        assert found
        for one in found:
            assert getattr(module, str(one)).args == (one,)
    for name in triton_attention.CONFIGURATIONS:
        assert triton_attention.Configuration.of(name).warps
