"""Every operation on every machine that does it, a machine of one's own, and old files, by command.

Each goes from ``search`` over the file that it writes through all commands that read one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.fake_gpu import Card
from tests.sample import SOAK, by_turns
from tinygpu.cli import app
from tinygpu.devices.device import DEVICES, Device, load_device
from tinygpu.devices.device import to_json as device_json
from tinygpu.machines import MACHINES, ampere, blackwell, hopper
from tinygpu.machines.file import machine_named
from tinygpu.machines.simt import LADDER
from tinygpu.term.machine import Value
from tinygpu.term.operation import Problem, elementwise
from tinygpu.term.schedule import Schedule, device_in, from_json, to_json

VECTORS = {"vector": 2, "unroll": 2, "threads": 128, "ctas": 0}
CUBE = ["-m", "64", "-n", "64", "-k", "64"]
ROWS = {"vector": 2, "chunks": 1, "warps": 2, "rows": 1, "teams": 1, "ctas": 0}
SQUARE = ("-m", 96, "-n", 80, "-k", 64)
CASES: dict[str, tuple[tuple[object, ...], Mapping[str, Value]]] = {
    "simt": (("matmul", *SQUARE, "--machine", "simt"), LADDER["naive"]),
    "ampere": (
        ("matmul", *SQUARE, "--machine", "ampere", "--bias", "--activation", "gelu"),
        ampere.STARTS["plain"],
    ),
    "tf32": (("matmul", *SQUARE, "--machine", "ampere", "--dtype", "tf32"), ampere.STARTS["plain"]),
    "batched": (
        ("matmul", *SQUARE, "--machine", "hopper", "--batch", 2, "--scale"),
        hopper.STARTS["plain"],
    ),
    "wide": (
        ("matmul", *SQUARE, "--machine", "hopper", "--out-dtype", "f32", "--activation", "relu"),
        hopper.STARTS["plain"],
    ),
    "blackwell": (
        ("matmul", *SQUARE, "--machine", "blackwell", "--device", "b200", "--layout", "nt"),
        blackwell.STARTS["plain"],
    ),
    "elementwise": (("elementwise", "x * sigmoid(a*x) * z + b", "-i", 1000), VECTORS),
    "elementwise bf16": (
        ("elementwise", "max(p, -q)", "--inputs", "p,q", "-i", 600, "--dtype", "bf16"),
        VECTORS,
    ),
    "rmsnorm": (("rmsnorm", "-i", 5, "-j", 100, "--dtype", "bf16"), ROWS),
    "softmax": (("softmax", "-i", 5, "-j", 100), ROWS),
    "softmax bf16": (("softmax", "-i", 5, "-j", 100, "--dtype", "bf16"), ROWS),
}
OWN = Path(__file__).parent.parent / "examples" / "first_machine.py"


def tinygpu(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def said(*words: object) -> str:
    result = tinygpu(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def complaint(*words: object) -> str:
    """The one line of a mistake."""
    result = tinygpu(*words)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


def fixed(point: Mapping[str, Value]) -> list[str]:
    return [word for name, value in point.items() for word in ("--fix", f"{name}={value}")]


@pytest.mark.parametrize(("name", "whole"), by_turns(CASES, [False, True]))
def test_an_operation_goes_through_every_command(
    name: str, whole: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """search, check, emit, explain, run and a plot; the file names the device."""
    if not whole:
        request.getfixturevalue("believed")
    words, point = CASES[name]
    said("search", *words, *fixed(point), "--out", tmp_path)
    path = tmp_path / "01.json"
    assert device_in(path.read_text()) == ("b200" if name == "blackwell" else "h200")
    assert "no deadlock, no race: proved" in said("check", path)
    assert ".visible .entry" in said("emit", path)
    if SOAK or whole:
        assert "predicted: " in said("explain", path)
    tree = json.loads(said("run", path, "--backend", "interpreter", "--json"))
    assert tree["right"]
    assert 0 < tree["error"] <= 1 or name == "elementwise bf16"  # which rounds nothing
    if whole:
        said("plot", "timeline", path, "-o", tmp_path / "timeline.png")
        assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def own(tmp_path: Path) -> tuple[Path, str]:
    """A schedule of the example's machine, and what --machine is."""
    machine = f"{OWN}:Axpb"
    words = ["elementwise", "a*x + b", "-i", 1000, "--machine", machine, "--top", 2]
    assert "axpb on a100" in said("search", *words, "--device", "a100", "--out", tmp_path)
    return tmp_path / "01.json", machine


def test_a_machine_of_ones_own_goes_through_every_command(own: tuple[Path, str]) -> None:
    """As a shipped one; its device is the file's, unless another is given."""
    path, machine = own
    given = (path, "--machine", machine)
    assert f"legal: {path} on a100" in said("check", *given)
    assert "on h200" in said("check", *given, "--device", "h200")
    assert ".visible .entry axpb" in said("emit", *given)
    told = said("explain", *given)
    assert "axpb, elementwise: y[i] f32 = ((a * x) + b); i = 1000; a100" in told
    assert "memory latency (time of one CTA)" in told
    assert "from A to B" in said("explain", path, path.with_name("02.json"), "--machine", machine)
    tree = json.loads(
        said("run", *given, "--backend", "interpreter", "-i", 300, "--scalar", "a=-7", "--json")
    )
    assert tree["right"]
    assert tree["sizes"] == {"i": 300}
    assert "png" in said("plot", "timeline", *given)
    assert "elements that a thread moves at once" in said("machines", machine)
    folder = path.parent / "code"
    said("emit", path, path.with_name("02.json"), "--machine", machine, "-o", folder)
    assert len([*folder.glob("*.ptx")]) == 2


def test_measurements_of_ones_own_machine_are_drawn(own: tuple[Path, str], tmp_path: Path) -> None:
    from tinygpu.machines.file import machine_named
    from tinygpu.search.store import Store
    from tinygpu.space.measurement import Measurement, describe

    path, machine = own
    one = machine_named(machine)
    _, problem, schedule = from_json(path.read_text(), {one.name: one})
    operation, sizes, chosen = describe(problem, schedule)
    with Store(tmp_path / "store.db") as kept:
        kept.put(
            Measurement(
                operation=operation, sizes=sizes, schedule=chosen, device="NVIDIA H200", driver="1",
                emitter=1, seconds=1e-6,
            )
        )  # fmt: skip
    said("plot", "measured", tmp_path / "store.db", "--machine", machine)
    assert "FILE.py:Class" in complaint("plot", "measured", tmp_path / "store.db")


MISTAKES = {
    "nothing.py:Axpb": "no Python file 'nothing.py'",
    f"{OWN}:Axbp": "did you mean Axpb?",
    f"{OWN}:Kernel": "is no class derived from tinygpu.Machine",
    f"{OWN}": "give FILE.py:Class; known are Axpb",
    "bad.py:Shipped": "simt is the name of a shipped machine",
    "bad.py:Spaced": "its name is 'a b'",
    "bad.py:Abstract": "levels is None; give a tuple of Levels",
    "bad.py:Levels": "not one of its levels gmem",
    "bad.py:Nothing": "program() gave None; it has to return a Program",
    "bad.py:Wrong": "bad.py, line 23: AttributeError: 'int' object has no attribute 'axes'",
    "raises.py:Axpb": "raises.py, line 1: ModuleNotFoundError: No module named 'nothing_such'",
    "syntax.py:Axpb": "syntax.py: line 1: SyntaxError: invalid syntax",
    "exits.py:Axpb": "exits.py, line 1: SystemExit: 3",
    "empty.py:Axpb": "has no class derived from tinygpu.Machine",
    "smt": "blackwell, elementwise, rows, attention, ampere_attention; did you mean simt?",
}
BAD = """
from tinygpu.term.machine import Choice, Machine, instructions
from tinygpu.isa.memory import GMEM, REGISTERS
class Shipped(Machine):
    name = "simt"
    levels = (GMEM, REGISTERS)
    instructions = instructions("ld.global", "st.global")
    vector = Choice(1, 2)
    def program(self, operation, choose):
        return None
class Spaced(Shipped):
    name = "a b"
class Abstract(Machine):
    name = "abstract"
class Levels(Shipped):
    name = "levels"
    levels = (GMEM,)
class Nothing(Shipped):
    name = "nothing"
class Wrong(Shipped):
    name = "wrong"
    def program(self, operation, choose):
        return choose.vector.axes
"""


@pytest.mark.parametrize("machine", MISTAKES)
def test_mistakes_in_a_machine_are_one_line(
    machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is wrong with the file, the class or what it does: where, and what."""
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "raises.py").write_text("import nothing_such\n")
    (tmp_path / "syntax.py").write_text("x = 1 +\n")
    (tmp_path / "exits.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "empty.py").write_text("\n")
    monkeypatch.chdir(tmp_path)
    line = complaint("search", "elementwise", "x", "-i", 4096, "--machine", machine)
    assert MISTAKES[machine] in line


def test_a_file_and_its_machine_agree(own: tuple[Path, str], tmp_path: Path) -> None:
    """A file of an unknown machine says what to give; another machine is not taken for it."""
    path, machine = own
    assert "machine axpb: known are" in complaint("check", path)
    assert "give --machine FILE.py:Class" in complaint("explain", path)
    said("search", "softmax", "-i", 5, "-j", 100, *fixed(ROWS), "--out", tmp_path / "rows")
    line = complaint("check", tmp_path / "rows" / "01.json", "--machine", machine)
    assert "it is of machine rows, and --machine" in line


def test_a_file_of_an_older_version_is_read(tmp_path: Path) -> None:
    """What was written before files had a device, or operations more than one reduction."""
    text = (Path(__file__).parent / "golden" / "schedule.json").read_text()
    machine, problem, schedule = from_json(text, MACHINES)
    assert (machine.name, device_in(text), len(problem.operation.reductions)) == ("hopper", "", 1)
    assert schedule == Schedule.of(machine, hopper.STARTS["plain"])
    assert from_json(to_json(schedule, problem), MACHINES) == (machine, problem, schedule)
    path = tmp_path / "old.json"
    path.write_text(text)
    assert f"legal: {path} on h200" in said("check", path)


def test_a_device_of_ones_own_has_to_be_given_again(tmp_path: Path) -> None:
    """A file remembers that its device is none of ours, also where that has a name of ours."""
    for name in ("h200", "mine"):
        device = load_device("h200").with_values(l2_bytes=2**25)
        own = Device.of(name, device.arch, device.provenance)
        (tmp_path / "device.json").write_text(device_json(own))
        words = ["softmax", "-i", 5, "-j", 100, *fixed(ROWS), "--out", tmp_path / name]
        said("search", *words, "--device", tmp_path / "device.json")
        path = tmp_path / name / "01.json"
        assert device_in(path.read_text()) == f"{name} (a file)"
        assert f"for device {name} (a file); give that file" in complaint("check", path)
        assert "legal" in said("check", path, "--device", tmp_path / "device.json")


def test_devices_are_listed_shown_and_written(tmp_path: Path) -> None:
    """Each number with its kind and source; --json is a device file."""
    listed = said("devices")
    assert all(name in listed for name in DEVICES)
    assert "20 spec, 22 measured" in listed
    one = said("devices", "h200")
    assert one.strip() == str(load_device("h200"))
    path = tmp_path / "h200.json"
    path.write_text(said("devices", "h200", "--json"))
    assert load_device(path) == load_device("h200")
    assert [tree["name"] for tree in json.loads(said("devices", "--json"))] == list(DEVICES)
    assert "did you mean h200?" in complaint("devices", "h20")


def test_the_version_is_told() -> None:
    assert said("--version").startswith("tinygpu 0.")


def test_a_spread_search_gives_no_two_alike() -> None:
    words = ["search", "softmax", "-i", 64, "-j", 256, "--top", 4, "--json"]
    rows = json.loads(said(*words, "--spread", "warps,vector"))["best"]
    pairs = [(row["decisions"]["warps"], row["decisions"]["vector"]) for row in rows]
    assert len(set(pairs)) == len(pairs) == 4
    assert "did you mean warps?" in complaint(*words, "--spread", "warp")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["softmx"], "did you mean softmax?"),
        (["elementwise"], "give its expression"),
        (["elementwise", "a*x +"], "invalid syntax"),
        (["elementwise", "exp(x)"], "exp(x) is ex2(1.44"),
        (["elementwise", "x ** 2"], "x ** 2 is no number, name, sum"),
        (["elementwise", "max(x)"], "1 arguments; it takes 2"),
        (["elementwise", "1/0 + x"], "is inf"),
        (["elementwise", "a"], "does not read u or v"),
        (["elementwise", "y + x"], "y is named twice"),
        (["elementwise", "x + x" * 300], "at most 500"),
        (["elementwise", "x", "-i", "64", "--dtype", "f64"], "known are f32, f16, bf16"),
        (["softmax", "x"], "EXPRESSION: softmax has none"),
        (["softmax", "--bias"], "--bias: softmax has none, it is of matmul"),
        (
            ["matmul", "-i", "3"],
            "matmul has no axis i; its sizes are -m, -n, -k",
        ),
        (["matmul", "--out-dtype", "f3"], "unknown dtype 'f3'"),
        (["matmul", *CUBE, "--bias"], "machine simt: matmul with a batch or an epilogue"),
        (["matmul", "--activation", "tanh"], "known are relu, gelu, silu"),
        (["matmul", "--batch", "0"], "--batch: '0' is no size"),
        (
            ["matmul", *CUBE, "--machine", "blackwell"],
            "is of sm_100a, and h200 is sm_90a",
        ),
        (["softmax", "-i", "64", "-j", "200000"], "covers more"),
    ],
)
def test_what_makes_no_sense_is_one_line(words: list[str], told: str) -> None:
    assert told in complaint("search", *words)


@pytest.mark.parametrize(
    ("scalar", "told"),
    [("c=1", "has no scalar c; known are a, b"), ("a=", "give a finite"), ("a=1e99", "fp32")],
)
def test_scalars_that_make_no_sense(own: tuple[Path, str], scalar: str, told: str) -> None:
    path, machine = own
    assert told in complaint("run", path, "--machine", machine, "--scalar", scalar)


def test_scalars_reach_the_kernel(own: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's inputs have them: a kernel that is given others is wrong."""
    from tinygpu.codegen.run import interpretation

    path, machine = own
    words = ("run", path, "--machine", machine, "--backend", "interpreter", "--scalar", "a=3")
    assert json.loads(said(*words, "--json"))["right"]
    execute = interpretation.execute

    def half(*given: Any, scalars: Any, **more: Any) -> Any:
        assert scalars == {"a": 3.0, "b": 0.5}
        return execute(*given, scalars={**scalars, "a": 0.5}, **more)

    monkeypatch.setattr(interpretation, "execute", half)
    assert tinygpu(*words).exit_code == 1


WRONG = '''
from dataclasses import replace
from tinygpu.machines.elementwise import Elementwise
from tinygpu.term.operation import elementwise

class Wrong(Elementwise):
    """Computes the difference, whatever is asked."""

    name = "wrong"

    def program(self, operation, choose):
        return replace(super().program(elementwise("a*x - b"), choose), operation=operation)
'''


def test_a_term_that_computes_something_else_is_illegal(tmp_path: Path) -> None:
    """Status 1, with the element and the statement that wrote it; a right one says where."""
    file = tmp_path / "wrong.py"
    file.write_text(WRONG)
    machine, path = f"{file}:Wrong", tmp_path / "wrong.json"
    for text, legal in (("a*x - b", True), ("a*x + b", False)):
        problem = Problem.of(elementwise(text), i=1000)
        path.write_text(to_json(Schedule.of(machine_named(machine), VECTORS), problem))
        result = tinygpu("check", path, "--machine", machine)
        assert result.exit_code == 1 - legal, result.output
        tree = json.loads(tinygpu("check", path, "--machine", machine, "--json").stdout)
        assert tree["legal"] == legal
        if legal:
            tested = "computes its operation: proved for every i, by 2 sizes, 1024 to 770; 3 larger"
            assert tested in result.stdout
            assert tree["meaning"] == tested
        else:
            assert "breaks 1 law" in result.stdout
            assert "wrong_result: wrong: y[0] is " in result.stdout
            assert [v["law"] for v in tree["violations"]] == ["computes"]
            assert "written by y[" in tree["violations"][0]["message"]


@pytest.mark.parametrize(
    ("gpu", "device", "line"),
    [
        ("none", "h200", ""),
        ("NVIDIA GeForce RTX 4090", "rtx4090", ""),
        ("NVIDIA H100 PCIe", "h100_pcie", ""),
        ("NVIDIA T4", "h200", "device: no file is of NVIDIA T4, h200 stands for it; tinygpu calib"),
    ],
)
def test_the_device_is_the_card_that_is_there(gpu: str, device: str, line: str, card: Card) -> None:
    """Without --device; what the output is of it says.  A card without a file is told in a line."""
    card.named(gpu, "580.1")
    found = tinygpu("search", "elementwise", "a*x + b", "-i", 4096, "--fix", "threads=256")
    assert found.exit_code == 0
    assert f"elementwise on {device}\n" in found.stdout
    assert found.stderr.count("\n") == bool(line)
    assert found.stderr.startswith(line)
    named = tinygpu("ask", "softmax", "warps == 2", "-i", 64, "-j", 64, "--device", "a100")
    assert (named.exit_code, named.stderr) == (0, "")
