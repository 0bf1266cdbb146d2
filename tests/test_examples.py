"""The examples: each is short, runs, and prints a term and its PTX."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from examples.first_machine import Axpb
from examples.redux import RowMax, row_max
from examples.rmsnorm_matmul import NORMALISED_PRODUCT, NormalisedProduct
from examples.softmax_of_product import CHAIN, Chain
from examples.tma_and_warps import TmaWarps
from tests.hopper_terms import rewritten
from tinygpu.codegen.run.agreement import computes
from tinygpu.codegen.run.interpretation import interpret
from tinygpu.devices.device import load_device
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import require_legal
from tinygpu.machines import MACHINES
from tinygpu.machines.hopper import STARTS
from tinygpu.meaning.interpret import check
from tinygpu.search.time.cost import cost
from tinygpu.space.space import Space
from tinygpu.term.machine import Machine
from tinygpu.term.operation import Operation, Problem, elementwise, grouped_matmul, matmul
from tinygpu.term.plan import one_kernel
from tinygpu.term.program import Fence
from tinygpu.term.schedule import Schedule, to_json

EXAMPLES = Path(__file__).parent.parent / "examples"
MOST_LINES = {
    "first_machine": 45, "elementwise": 55, "rows": 25, "naive_matmul": 50, "transpose": 50,
    "rmsnorm": 65, "softmax": 55, "ring": 70, "cluster": 110,
    "reduce": 115, "rmsnorm_matmul": 60, "softmax_of_product": 62, "fp64_tensor_cores": 70,
    "tma_and_warps": 76, "redux": 79,
}  # fmt: skip


@pytest.mark.parametrize("name", MOST_LINES)
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= MOST_LINES[name]


def test_every_example_is_here() -> None:
    others = {"__init__", "llama_block", "moe"}  # a client of a bundle: tests/test_gpu_bundle.py
    found = {path.stem for path in EXAMPLES.glob("*.py")}
    assert found == {*others, *MOST_LINES}, "an example has a line of MOST_LINES"


@pytest.mark.parametrize("name", MOST_LINES)
def test_runs_as_a_script(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run as a script, each prints the term and then its PTX."""
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.index("program ") < printed.index(".version")
    assert printed.rstrip().endswith("}")


def test_a_mixture_says_what_it_would_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a GPU: both products, and when each would be done; kept schedules are taken."""
    monkeypatch.setattr("tinygpu.search.tuning.climb.why_no_gpu", lambda machine: "GPU: none")
    sizes = ("--tokens", "100", "--hidden", "64", "--ffn", "72", "--experts", "4")
    words = ["moe.py", *sizes, "--schedules", str(tmp_path / "kept")]
    monkeypatch.setattr(sys, "argv", words)
    narrow = {**STARTS["persistent"], "tile_n": 128}
    schedule = Schedule.of(MACHINES["hopper"], narrow)
    for name, gate, n, k in (("gate_up", "silu", 72, 64), ("down", "", 64, 72)):
        problem = Problem.of(grouped_matmul("bf16", gate=gate), g=4, m=200, n=n, k=k)
        (tmp_path / "kept").mkdir(exist_ok=True)
        (tmp_path / "kept" / f"{name}.json").write_text(to_json(schedule, problem))
    runpy.run_path(str(EXAMPLES / "moe.py"), run_name="__main__")
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("gate_up: g 4, m 200, n 72, k 64: predicted ")
    assert second.startswith("down: g 4, m 200, n 64, k 72: predicted ")
    assert all("tile_m=128" in line for line in (first, second))
    assert last == "nothing was run: GPU: none"


def test_a_mixture_searches_for_what_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of other sizes is not taken; what is found is kept."""
    found = runpy.run_path(str(EXAMPLES / "moe.py"))
    given = SimpleNamespace(schedules=tmp_path / "kept", device="h100")
    problem, other = (Problem.of(grouped_matmul("bf16"), g=2, m=64, n=n, k=64) for n in (64, 128))
    schedule = Schedule.of(MACHINES["hopper"], STARTS["persistent"])
    ranks: list[Problem] = []

    def rank(space: Space, *_: object, **__: object) -> SimpleNamespace:
        ranks.append(space.problem)
        return SimpleNamespace(best=[SimpleNamespace(schedule=schedule)])

    monkeypatch.setitem(found["schedule_of"].__globals__, "rank", rank)
    for one in (problem, problem, other, other):
        assert found["schedule_of"]("down", one, given) == schedule
    assert ranks == [problem, other]


def test_the_first_machine_is_right() -> None:
    """Its term and its PTX compute a*x + b at a ragged size."""
    schedule = Schedule.of(Axpb(), {"vector": 4, "threads": 128})
    program = schedule.program(Axpb(), elementwise("a*x + b"))
    assert check(program, {"i": 1500}) == ()
    assert interpret(program, {"i": 1500}, arch="sm_90a", completions=("late",)).right


@pytest.mark.parametrize(
    ("machine", "operation", "decisions", "sizes"),
    [
        (NormalisedProduct(), NORMALISED_PRODUCT, {"tx": 8, "ty": 8}, {"m": 9, "n": 17, "k": 20}),
        (Chain(), CHAIN, {"depth": 16}, {"m": 3, "n": 9, "d": 8, "e": 33}),
    ],
)
def test_chains_of_ones_own_are_right(
    machine: Machine, operation: Operation, decisions: dict[str, int], sizes: dict[str, int]
) -> None:
    """Their terms are legal and compute the operation, their PTX does; scores may be large."""
    schedule = Schedule.of(machine, decisions)
    program = require_legal(schedule, machine, Problem.of(operation, **sizes), load_device("h200"))
    assert not computes(program).wrong
    assert interpret(program, sizes, arch="sm_90a", completions=("late",)).right


@pytest.mark.parametrize("sizes", [{"i": 5, "j": 392}, {"i": 3, "j": 4}])
def test_the_largest_of_a_warp_is_right(sizes: dict[str, int]) -> None:
    """Of rows that end inside of a warp's part, too; by the judge, the meaning and the PTX."""
    schedule = Schedule.of(RowMax(), {"warps": 2, "vector": 4})
    problem = Problem.of(row_max, **sizes)
    program = require_legal(schedule, RowMax(), problem, load_device("a100"))
    assert check(program, sizes) == ()
    assert computes(program).finding is None
    assert interpret(program, sizes, arch="sm_80").right


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("redux, *turned, f", "redux, f"),  # negative rows come out of order
        ("max.s32 {bits}", "min.s32 {bits}"),
        ("top = k.apply(REDUX, top)", "pass"),  # a lane's largest, not the warp's
        ("outside=-math.inf", "outside=0.0"),  # of rows that are all negative
    ],
)
def test_a_wrong_largest_is_found(right: str, wrong: str, tmp_path: Path) -> None:
    text = (EXAMPLES / "redux.py").read_text()
    assert text.count(right) == 1
    path = tmp_path / "wrong.py"
    path.write_text(text.replace(right, wrong))
    found = runpy.run_path(str(path))
    machine = found["RowMax"]()
    program = Schedule.of(machine, {"warps": 2, "vector": 4}).program(machine, found["row_max"])
    assert computes(program).wrong


@pytest.mark.parametrize("sum_", ["shrunk + S,", "shrunk + S * "])
def test_a_chain_that_forgets_to_rescale_is_wrong(sum_: str, tmp_path: Path) -> None:
    """Of the sum, or of the products."""
    text = (EXAMPLES / "softmax_of_product.py").read_text()
    assert text.count(sum_) == 1
    path = tmp_path / "forgetful.py"
    path.write_text(text.replace(sum_, sum_.replace("shrunk", 'value("old")')))
    found = runpy.run_path(str(path))
    machine = found["Chain"]()
    program = Schedule.of(machine, {"depth": 16}).program(machine, found["CHAIN"])
    assert computes(program).wrong


def test_warps_behind_tma_are_right_with_their_fence_and_race_without() -> None:
    """For laws, judge, meaning, code, emulator; without the fence for each that looks at order."""
    problem, device = Problem.of(matmul("bf16", layout="nt"), m=4096, n=4096, k=4096), "h100"
    values = {"tile_m": 64, "tile_n": 64, "warps_m": 1, "warps_n": 4, "stages": 2}
    schedule, small = Schedule.of(TmaWarps(), values), {"m": 72, "n": 136, "k": 200}
    program = one_kernel(require_legal(schedule, TmaWarps(), problem, load_device(device)))
    assert check(program, small) == ()
    assert computes(program).proved
    assert interpret(program, small, arch="sm_90a").right
    assert cost(program, problem.sizes, load_device(device)).seconds > 0
    bare = rewritten(program, lambda s: () if isinstance(s, Fence) else s)
    fault = verdict(bare).fault
    assert fault is not None
    assert fault.kind == "proxy"
    assert {f.kind for f in check(bare, small)} == {"unfenced"}
    found = interpret(bare, small, arch="sm_90a").findings
    assert {f.kind for f in found if f.severity == "error"} == {"proxy"}
