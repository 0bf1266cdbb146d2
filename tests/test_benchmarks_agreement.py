"""What is wrong does not agree, in the benchmark of the PTX interpreter beside a GPU."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import interpreter_agreement as agreement
from benchmarks.agreement_cases import MACHINES, load_cases
from benchmarks.interpreter_agreement import interpret
from tests.fake_gpu import Card
from tinygpu.codegen.emit import emit
from tinygpu.isa.memory import DTYPES
from tinygpu.machines import MACHINES as ALL
from tinygpu.term.program import Program
from tinygpu.term.schedule import from_json

KEPT = load_cases()
SMALLEST = min(
    (i for i, (_, schedule) in enumerate(KEPT) if schedule.machine == MACHINES[1]),
    key=lambda i: math.prod(KEPT[i][0].sizes.values()),
)


def fake(request: Mapping[str, Any], limit_seconds: float) -> dict[str, Any]:
    """Answer as a GPU's worker whose outputs are the interpreter's."""
    _, problem, schedule = from_json(request["case"], ALL)
    found = interpret((problem, schedule), request["number"], assembled=False)
    return {"output": base64.b64encode(found.output).decode(), "digest": found.digest}


def row_of(number: int, ask: agreement.Ask = fake) -> dict[str, Any]:
    case = KEPT[number]
    mine = interpret(case, number, assembled=False)
    return agreement.row(case, number, mine, agreement.launched(case, number, ask))


def test_one_wrong_element_does_not_agree() -> None:
    number = SMALLEST

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
    row = row_of(SMALLEST, lambda *_: {"failed": "it hangs: no answer in 30 s"})
    assert (row["agree"], row["error"], row["difference"]) == (False, None, None)
    assert row["reason"] == "GPU: it hangs: no answer in 30 s"
    row = row_of(SMALLEST, lambda *given: {**fake(*given), "digest": "another"})
    assert (row["agree"], row["difference"]) == (False, 0)
    assert row["reason"] == "the two ran different texts"


def test_what_the_interpreter_finds_does_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without its first barrier is right or not, but it has a race."""
    number = SMALLEST

    def dropped(*given: Any) -> str:
        return emit(*given).replace("bar.sync", "// ", 1)

    monkeypatch.setattr("benchmarks.interpreter_agreement.emit", dropped)
    row = row_of(number)
    assert not row["agree"]
    assert row["reason"]


@pytest.mark.parametrize("wild", [False, True])
def test_a_worker_runs_a_case(wild: bool, card: Card) -> None:
    """With NumPy in CuPy's place, and a kernel that is interpreted into the output it is given."""
    number = SMALLEST
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
    card.library(library)
    card.kernels(Kernel)
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
