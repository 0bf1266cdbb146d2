"""The agreement of the PTX interpreter with a GPU, as far as it needs no GPU."""

from __future__ import annotations

import base64
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import interpreter_agreement as agreement
from benchmarks.agreement_cases import CASES, MACHINES, PARTS, draw, load_cases
from benchmarks.interpreter_agreement import FIELDS, interpret
from benchmarks.peers import ROW, load_rows, write_results
from tests.sample import draws
from tinygpu.codegen.emit import emit
from tinygpu.devices.device import load_device
from tinygpu.isa.memory import DTYPES
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES as ALL
from tinygpu.term.program import Program
from tinygpu.term.schedule import from_json

KEPT = load_cases()
FEW = [
    min(
        (i for i, (_, schedule) in enumerate(KEPT) if schedule.machine == name),
        key=lambda i: math.prod(KEPT[i][0].sizes.values()),
    )
    for name in MACHINES
]
"""The smallest case of each."""
FEWER = [(name, 1, types) for name, _, types in PARTS[1:][: draws(1, 3)]]


def fake(request: Mapping[str, Any], limit_seconds: float) -> dict[str, Any]:
    """Answer as a GPU's worker whose outputs are the interpreter's."""
    _, problem, schedule = from_json(request["case"], ALL)
    found = interpret((problem, schedule), request["number"], assembled=False)
    return {"output": base64.b64encode(found.output).decode(), "digest": found.digest}


def row_of(number: int, ask: agreement.Ask = fake) -> dict[str, Any]:
    case = KEPT[number]
    mine = interpret(case, number, assembled=False)
    return agreement.row(case, number, mine, agreement.launched(case, number, ask))


NEWER = {"cp.async+ld.shared"}
"""Values that decisions got after the cases ran on a GPU."""


def test_kept_cases_are_legal_and_many() -> None:
    """80 different ones of each machine and more, of every structure that a draw should meet."""
    names = [schedule.machine for _, schedule in KEPT]
    assert names == [name for name, count, _ in PARTS for _ in range(count)]
    assert all(names.count(name) >= 80 for name in MACHINES)
    assert len(set(KEPT)) == len(KEPT)
    for name, _, types in PARTS:
        drawn = {p.operation.inputs[0].dtype for p, s in KEPT if s.machine == name}
        assert {dtype for dtype, _ in types} <= drawn
    device = load_device("h200")
    for problem, schedule in KEPT[::16]:
        assert check_schedule(schedule, ALL[schedule.machine], problem, device) == ()
    for name in MACHINES:
        mine = [schedule for _, schedule in KEPT if schedule.machine == name]
        for decision, choice in ALL[name].decisions().items():
            if choice.structural:  # a newer one than the cases has one value in all of them
                values = set(choice.values) if choice.before is None else {choice.before}
                assert {s[decision] for s in mine} == values - NEWER, decision


def test_the_draw_is_deterministic() -> None:
    first = draw(seed=3, parts=FEWER)
    assert first == draw(seed=3, parts=FEWER)
    assert first != draw(seed=4, parts=FEWER)
    for problem, schedule in first:
        device = load_device("h200")
        assert check_schedule(schedule, ALL[schedule.machine], problem, device) == ()


@pytest.mark.parametrize("number", FEW)
def test_equal_outputs_agree(number: int) -> None:
    row = row_of(number)
    assert set(row) == {*ROW, *FIELDS}
    assert row["agree"]
    assert row["difference"] == 0
    assert 0 < row["error"] == row["interpreter_error"] <= 1
    assert row["case"] == f"{KEPT[number][1].machine} {number}"


def test_one_wrong_element_does_not_agree() -> None:
    number = FEW[1]

    def wrong(request: Mapping[str, Any], limit: float) -> dict[str, Any]:
        answer = fake(request, limit)
        output = bytearray(base64.b64decode(answer["output"]))
        output[-2:] = b"\x00\x7e"  # a large number, or not one, of every type
        return {**answer, "output": base64.b64encode(bytes(output)).decode()}

    row = row_of(number, wrong)
    assert not row["agree"]
    assert float(row["difference"]) > 1
    assert float(row["error"]) > 1 >= float(row["interpreter_error"])


def test_a_failure_and_another_text_do_not_agree() -> None:
    row = row_of(FEW[1], lambda *_: {"failed": "it hangs: no answer in 30 s"})
    assert (row["agree"], row["error"], row["difference"]) == (False, None, None)
    assert row["reason"] == "GPU: it hangs: no answer in 30 s"
    row = row_of(FEW[1], lambda *given: {**fake(*given), "digest": "another"})
    assert (row["agree"], row["difference"]) == (False, 0)
    assert row["reason"] == "the two ran different texts"


def test_what_the_interpreter_finds_does_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without its first barrier is right or not, but it has a race."""
    number = FEW[1]

    def dropped(*given: Any) -> str:
        return emit(*given).replace("bar.sync", "// ", 1)

    monkeypatch.setattr("benchmarks.interpreter_agreement.emit", dropped)
    row = row_of(number)
    assert not row["agree"]
    assert row["reason"]


def test_the_run_goes_on_and_writes_a_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Fake:
        def __init__(self, command: tuple[str, ...]) -> None:
            assert command[0] == sys.executable

        def __enter__(self) -> Fake:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def ask(self, request: Mapping[str, Any], limit_seconds: float) -> dict[str, Any]:
            return {} if request["do"] == "hello" else fake(request, limit_seconds)

    monkeypatch.setattr(agreement, "Worker", Fake)
    small = tmp_path / "cases.json"
    rows = json.loads(CASES.read_text(encoding="utf-8"))["rows"]
    small.write_text(json.dumps({"rows": rows[80:82]}), encoding="utf-8")
    words = ["--out", str(tmp_path), "--cases", str(small)]
    agreement.main([*words, "--limit", "1"])
    first = load_rows("interpreter_agreement", tmp_path)
    assert [r["case"] for r in first] == ["ampere 0"]
    agreement.main(words)
    found = load_rows("interpreter_agreement", tmp_path)
    assert [r["case"] for r in found] == ["ampere 0", "ampere 1"]
    assert found[0] == first[0]  # not run again
    tree = json.loads((tmp_path / "interpreter_agreement.json").read_text(encoding="utf-8"))
    told = tree["summary"]["ampere"]
    assert (told["cases"], told["disagree"], told["equal"]) == (2, 0, 2)
    assert "1/1, 1 agree" in capsys.readouterr().err


def test_rows_of_another_emitter_run_again(tmp_path: Path) -> None:
    row = row_of(FEW[1])
    rows = [row, {**row, "case": f"ampere {FEW[1] + 1}", "emitter": "old"}]
    write_results("interpreter_agreement", rows, {}, tmp_path, fields=FIELDS)
    known = load_rows("interpreter_agreement", tmp_path)
    left = agreement.waiting(KEPT, known)
    assert set(range(len(KEPT))) - set(left) == {FEW[1]}


def test_the_run_loads_neither_z3_nor_dask() -> None:
    code = (
        "import sys; from benchmarks import interpreter_agreement as a; c = a.load_cases(); "
        f"n = {FEW[1]}; o = a.interpret(c[n], n, assembled=False); a.row(c[n], n, o, o); "
        "sys.exit(bool({'z3', 'dask', 'cupy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=CASES.parent.parent, check=False)
    assert done.returncode == 0


def test_inputs_are_the_same_everywhere_and_differ_between_cases() -> None:
    one, same, other = (agreement.Data.of(KEPT[0], n).inputs[0] for n in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_without_a_gpu_it_says_so_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import json; print(json.dumps({'failed': 'no GPU'}), flush=True)"
    monkeypatch.setattr(agreement, "COMMAND", (sys.executable, "-c", code))
    with pytest.raises(SystemExit, match="worker: no GPU"):
        agreement.main(["--out", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wild", [False, True])
def test_a_worker_runs_a_case(wild: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With NumPy in CuPy's place, and a kernel that is interpreted into the output it is given."""
    number = FEW[1]
    problem, schedule = KEPT[number]

    class Kernel:
        def __init__(self, program: Program, *, arch: str, sizes: dict[str, int]) -> None:
            self.program, self.sizes = program, sizes
            self.ptx = emit(program, arch, sizes)

        def __call__(self, *inputs: Any, out: Any) -> None:
            kinds = (DTYPES[o.dtype].numpy for o in problem.operation.inputs)
            given = [x.view(kind) for x, kind in zip(inputs, kinds, strict=True)]
            found, _ = agreement.run(self.ptx, self.program, given, self.sizes)
            out[...] = found.view(out.dtype)
            if wild:
                out.base[0] = 0

    library = SimpleNamespace(
        asarray=np.asarray, asnumpy=np.asarray, empty=np.empty, zeros=np.zeros
    )
    monkeypatch.setattr("tinygpu.codegen.run.launch.gpu", lambda: library)
    monkeypatch.setattr("tinygpu.codegen.run.launch.Kernel", Kernel)
    monkeypatch.setattr("tinygpu.codegen.run.validation.gpu", lambda: library)
    asked: list[Any] = []

    def ask(request: Mapping[str, Any], limit_seconds: float) -> dict[str, Any]:
        asked.append(json.loads(json.dumps(request)))
        return agreement.answer_on_gpu(asked[-1])

    assert agreement.answer_on_gpu({"do": "hello"}) == {}
    row = row_of(number, ask)
    assert row["agree"] == (not wild)
    assert row["difference"] == (None if wild else 0)
    assert ("outside" in row["reason"]) == wild
    assert from_json(asked[0]["case"], ALL)[1:] == (problem, schedule)
