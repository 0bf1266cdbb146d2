"""An operation of one's own, with a machine of one's own, in every command; sizes by its axes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_bad_input import tree_of
from tests.test_cli_language import complaint, said, tinygpu
from tests.test_dispatch import Here
from tests.test_report_page import Page
from tinygpu.codegen.emit import EMITTER_VERSION
from tinygpu.machines.file import operation_in
from tinygpu.search.store import Store
from tinygpu.search.tuning import dispatching
from tinygpu.space.measurement import Measurement, describe
from tinygpu.term.operation import Problem
from tinygpu.term.schedule import Schedule

FILE = """
from tinygpu import Choice, Kernel, Machine, Operation, elementwise
from tinygpu.isa.memory import GMEM, REGISTERS
from tinygpu.term.expression import value
from tinygpu.term.machine import instructions
from tinygpu.term.operation import Operand

BOTH = ("rows", "columns")
x, r = (Operand(name, BOTH, "f32") for name in "xr")
gates = Operation(
    "gated", BOTH, (x, Operand("g", ("columns",), "f32"), r), Operand("y", BOTH, "f32"),
    epilogue=value("r") + value("g") * value("x"),
)
twice = Operation("twice", ("i",), (Operand("x", ("i",), "f32"),), Operand("y", ("i",), "f32"),
                  epilogue=value("x") + value("x"))
number = 3

def made(dtype="f32"):
    return gates

def needing(dtype):
    return gates

def failing():
    return 1 / 0

def wrong():
    return elementwise("x +")

def nothing():
    pass

class Gated(Machine):
    name = "gates"
    operations = ("gated",)
    levels = (GMEM, REGISTERS)
    instructions = instructions("ld.global", "fma", "st.global")
    threads, vector = Choice(64, 128), Choice(1, 4)

    def forward(self, k: Kernel) -> None:
        x, g, r = k.inputs
        across = "columns = (block thread v)"
        at = f"rows = row, {across}"
        k.grid("row", "block")
        k.threads(thread=self.threads)
        k.values(v=self.vector)
        held = {"x": k.load(x[at]), "g": k.load(g[across]), "r": k.load(r[at])}
        k.store(k.output[at], k.compute(k.op.epilogue, held))
"""
LOADER = """
import sys
from loader import load_bundle
bundle = load_bundle(sys.argv[1])
print(bundle.along, bundle.axes, bundle.which(rows=7, columns=256)["kernel"])
assert not any(name.startswith("tinygpu") for name in sys.modules)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What --machine is; the operations are own.py:gates and own.py:made."""
    (tmp_path / "own.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dispatching, "Fleet", Here)
    return f"{tmp_path / 'own.py'}:Gated"


def test_every_command_takes_it(own: str, tmp_path: Path) -> None:
    """From a search to the report of what was measured; files hold the operation."""
    sizes = ("--rows", 300, "--columns=1024")
    for operation in ("own.py:gates", "own.py:made"):
        text = said("search", operation, "--machine", own, *sizes, "--top", 2, "--out", "found")
        assert "gated rows=300 columns=1024, gates on h200" in text
        assert "2 compute their operation: proved for every rows, columns" in text
    path, machine = "found/01.json", ("--machine", own)
    assert "it waits for" in said("explain", path, *machine)
    assert "from A to B" in said("explain", path, "found/02.json", *machine)
    assert "legal: found/01.json" in said("check", path, *machine)
    assert ".visible .entry gates(" in said("emit", path, *machine)
    words = ("run", path, *machine, "--backend", "interpreter", "--rows", 3, "--json")
    tree = json.loads(said(*words))
    assert tree["right"]
    assert tree["sizes"]["rows"] == 3
    said("plot", "timeline", path, *machine, "-o", "timeline.png")
    assert "vector=4" in said("ask", "own.py:made", "vector == 4 and rows > 5", *machine, *sizes)
    assert "proved" in said("prove", "own.py:made", "threads <= 128", *machine, *sizes)
    measure("found", own)
    assert said("plot", "measured", "found/store.db", *machine, "-o", "m.png") == "m.png\n"
    assert "report: found/report.html" in said("report", "found", *machine)
    page = (tmp_path / "found" / "report.html").read_text()
    assert "gated 300 x 1024" in page
    assert "NVIDIA H200, driver 580" in Page(page).unpacked("data")


def measure(folder: str, machine: str) -> None:
    """Put a measurement of every schedule into the folder's store, as --measure does."""
    problem = Problem.of(operation_in("own.py:made"), rows=300, columns=1024)
    with Store(Path(folder, "store.db")) as store:
        for threads in (64, 128):
            schedule = Schedule("gates", (("threads", threads), ("vector", 4)))
            operation, sizes, text = describe(problem, schedule)
            store.put(
                Measurement(
                    operation=operation, sizes=sizes, schedule=text, device="NVIDIA H200",
                    driver="580", emitter=EMITTER_VERSION, seconds=3e-6,
                )
            )  # fmt: skip


def test_a_bundle_needs_no_file_of_the_users(own: str, tmp_path: Path) -> None:
    """Its rules are along the first axis with several sizes; ``which`` predicts by --machine."""
    words = ("dispatch", "own.py:made", "--machine", own, "--kernels", 2, "--no-measure")
    text = said(*words, "--rows", "1:64", "--columns", 256, "--points", 3, "--out", "b")
    assert "gated, 3 shapes" in text
    assert "ask it: tinygpu which b --rows 8" in text
    (tmp_path / "own.py").rename(tmp_path / "elsewhere.py")
    told = said("which", "b", "--rows", 7)
    assert "7 x 256: k00" in told
    assert "no time of gates is predicted: give --machine FILE.py:Class" in told
    assert "its schedule: threads=" in told
    (tmp_path / "elsewhere.py").rename(tmp_path / "own.py")
    (row, *_) = json.loads(said("which", "b", "--rows", 7, "--machine", own, "--json"))["kernels"]
    assert row["predicted_seconds"] > 0
    beyond = tinygpu("which", "b", "--rows", 65)
    assert beyond.exit_code == 1
    assert "rows is 65, and the bundle was made for rows 1 to 64" in beyond.stderr
    assert said("plot", "bundle", "b", "-o", "b.png") == "b.png\n"
    command = [sys.executable, "-c", f"import sys; sys.path[0] = 'b'\n{LOADER}", "b"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={})
    assert run.stdout == "rows ('rows', 'columns') k00\n", run.stderr


@pytest.mark.usefixtures("believed")
def test_other_operations_are_dispatched_along_any_axis(own: str) -> None:
    words = ("dispatch", "softmax", "-i", 8, "-j", "32,64", "--kernels", 1, "--no-measure")
    text = said(*words, "--out", "s")
    assert "tinygpu which s -j" in text
    assert "8 x 33: k00" in said("which", "s", "-j", 33)


SIZES = "--rows 4 --columns 4"
BAD = {
    f"search own.py:gate {SIZES}": "did you mean gates?",
    f"search own.py {SIZES}": "give FILE.py:NAME; known are gates, twice, made",
    f"search none.py:gates {SIZES}": "no Python file 'none.py'; give FILE.py:NAME",
    f"search own.py:number {SIZES}": "number is of type int; give a tinygpu.Operation",
    f"search own.py:Gated {SIZES}": "give a tinygpu.Operation",
    f"search own.py:needing {SIZES}": "the function needing needs arguments; give one that needs",
    f"search own.py:failing {SIZES}": "own.py, line 25: ZeroDivisionError: division by zero",
    f"search own.py:wrong {SIZES}": "operation own.py:wrong: ",
    f"search own.py:nothing {SIZES}": "of type NoneType; give a tinygpu.Operation",
    f"search own.py:gates {SIZES}": "no machine that ships does it; give your own",
    f"search own.py:gates {SIZES} --machine simt": "operation gated; known are matmul",
    "search own.py:twice -i 4 --machine own.py:Gated": "operation twice; known are gated",
    f"search own.py:gates {SIZES} --dtype bf16": "--dtype: own.py:gates has none, it is of matmul",
    f"search own.py:gates {SIZES} --bias": "--bias: own.py:gates has none, it is of matmul",
    "search own.py:gates": "gated: --rows and --columns not given; give each size, as --rows 4096 ",
    "search own.py:gates --rows 4": "gated: --columns not given; give each size, as --columns 4096",
    "search own.py:gates --rows 4 -c 4": "-c 4: there is no such option, and gated has no axis c",
    "search own.py:gates --rows": "No such option: --rows",
    "search own.py:gates --rows x": "No such option: --rows",
    "search own.py:gates --rows 1.5 --columns 4": "--rows: '1.5' is no size; give a whole number",
    "search own.py:gates --rows=0 --columns 4": "--rows: '0' is no size",
    "search own.py:gates --rows -3 --columns 4": "--rows: '-3' is no size",
    "search matmul": "matmul: -m and -n and -k not given; give each size, as -m 4096 -n 4096 -k 4",
    "search elementwise x": "elementwise: -i not given; give each size, as -i 4096",
    "search softmax -i 4": "softmax: -j not given; give each size, as -j 4096",
    "search matmul -m 4 -n 4 -k 4 -l 0": "-l: '0' is no size",
    "search matmul -m 4 -n 4 -k 4 --batch 0": "--batch: '0' is no size",
    "search matmul --tpo 5": "--tpo 5: there is no such option, and matmul has no axis tpo",
    "ask own.py:gates": "gated: --rows and --columns not given",
    "prove own.py:gates --rows 4": "gated: --columns not given",
    "dispatch own.py:gates --rows 1:8 --out b": "gated: --columns not given; give each size, as --",
    "dispatch own.py:gates --rows 8:1 --columns 4 --out b": "the range 8:1 is backwards",
    "dispatch own.py:gates --layer qkv --out b": "--layer: it is of a matmul",
    "dispatch own.py:gates --rows 1 --columns 4 --out b": "no machine that ships does it",
}


@pytest.mark.parametrize("words", BAD)
@pytest.mark.usefixtures("own")
def test_mistakes_are_one_line(words: str) -> None:
    before = tree_of(Path())
    assert BAD[words] in complaint(*words.split(" "))
    assert {n: d for n, d in tree_of(Path()).items() if "__pycache__" not in n} == before


def test_the_last_of_two_sizes_counts(own: str) -> None:
    tree = json.loads(said("search", "softmax", "-i4", "-j", 8, "-i", 16, "--top", 1, "--json"))
    assert tree["sizes"] == {"i": 16, "j": 8}
