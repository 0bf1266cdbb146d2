"""``dispatch`` and ``which`` without a GPU: what they write and say, and what they refuse.

The machine is simt with few decisions left, and most searches run in this process.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from tests.believed import believe
from tests.sample import draws
from tests.test_bad_input import complaint, tree_of
from tinygpu.cli import app
from tinygpu.cli.shapes import sampled
from tinygpu.codegen.run.bundle import write_bundle
from tinygpu.codegen.runtime.bundle import load_bundle
from tinygpu.machines import MACHINES
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.selection import AIMS, choose, intervals, smooth
from tinygpu.search.tuning import dispatching
from tinygpu.search.tuning.dispatching import (
    RULES,
    Job,
    anchors_of,
    predicted_at,
    pruned,
    ranked_at,
    served_of,
    tables_of,
)
from tinygpu.search.tuning.shape import Shape, matmul_shape
from tinygpu.term.machine import Choice, Machine, Value
from tinygpu.term.operation import matmul
from tinygpu.term.schedule import Schedule, from_json

pytestmark = pytest.mark.usefixtures("believed")

OPEN: dict[str, tuple[Value, ...]] = {
    "tile_m": (32, 64, 128),
    "tile_n": (64, 128),
    "thread_m": (4, 8),
    "vector_b": (1, 4),
    "vector_c": (1, 4),
    "specialised": (0, 1),
}
FIXED = {name: (value,) for name, value in LADDER["multi-stage"].items()}
MINE = f"""
from tinygpu.term.machine import Choice
from tinygpu.machines.simt import Simt

class Mine(Simt):
    name = "mine"

for name, values in { ({**FIXED, **OPEN})!r}.items():
    choice = Choice(*values, structural=vars(Simt)[name].structural)
    choice.__set_name__(Mine, name)
    setattr(Mine, name, choice)
"""
DTYPE = ["--dtype", "f32", "--layout", "nn", "--no-measure"]
SIZES = ["-m", "1:512", "-n", "64", "-k", "64", "--points", "5"]
SMALL = ["dispatch", "matmul", "--machine", "simt", *DTYPE, *SIZES, "--kernels", "2"]
TWO = ["--layer", "up=128x64", "--layer", "odd=63x64", "--layer", "same=128x64"]
LAYERS = [
    *("dispatch", "matmul", "--machine", "simt", *DTYPE, "-m", "1,64,512", *TWO, "--kernels", "3"),
    *("--rule", "intervals"),
]


def few(kind: type[Machine], choices: Mapping[str, tuple[Value, ...]]) -> Machine:
    """A machine of which most decisions are made."""
    left = {
        name: Choice(*values, structural=vars(kind)[name].structural)
        for name, values in choices.items()
    }
    made: type[Machine] = type("Few", (kind,), left)
    return made()


class Here:
    """A fleet of this process, which asks the model once of the same job."""

    def __init__(self, gpus: int) -> None:
        assert gpus == 0
        self.retired: dict[int, str] = {}

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def each(self, do: Callable[..., Any], jobs: Sequence[Any], tell: Any = None) -> list[Any]:
        return [self.one(do, job) for job in jobs]

    def one(self, do: Callable[..., Any], job: Any) -> Any:
        if do not in (ranked_at, predicted_at) or not MACHINES.keys() >= {*job.machines}:
            return do(job)
        return list(asked_once(do, job, tuple(MACHINES[name] for name in job.machines)))


@cache
def asked_once(do: Callable[[Job], list[Any]], job: Job, _: tuple[Machine, ...]) -> tuple[Any, ...]:
    return tuple(do(job))


class Anew(Here):
    """A fleet of this process that asks the model each time."""

    def one(self, do: Callable[..., Any], job: Any) -> Any:
        return do(job)


SIMT = few(Simt, {**FIXED, **OPEN})


def patch(patched: pytest.MonkeyPatch) -> None:
    believe(patched)
    patched.setitem(MACHINES, "simt", SIMT)
    patched.setattr(dispatching, "Fleet", Here)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch)


def tinygpu(*words: object) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def done(*words: object) -> str:
    result = tinygpu(*words)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with two bundles: ``one`` of one n and k, and ``layers`` of three layers."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patched:
        patch(patched)
        done(*SMALL, "--out", folder / "one")
        done(*LAYERS, "--out", folder / "layers")
        yield folder


def files_in(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def manifest(path: Path) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads((path / "bundle.json").read_text())
    return tree


# What is written.


def test_a_bundle_of_few_kernels(made: Path) -> None:
    """Its manifest, its kernels and what each shape gets hang together."""
    tree = manifest(made / "one")
    bundle = load_bundle(made / "one")
    assert [(s["m"], s["n"], s["k"]) for s in tree["shapes"]] == [
        (m, 64, 64) for m in sampled(1, 512, 5)
    ]
    assert (tree["along"], tree["axes"], tree["rule"], tree["aim"]) == (
        "m", ["m", "n", "k"], "measured", "mean",
    )  # fmt: skip
    assert 1 <= len(tree["kernels"]) <= 2
    assert set(tree["rules"]) == set(RULES)
    assert set(tree["scores"]) == {*RULES, "first call"}
    assert 1 <= tree["bound"] <= tree["slowdown"] * (1 + 1e-9)
    assert tree["measured_on"] is None
    assert tree["why_not_measured"] == "it was not asked for"
    for told in tree["scores"].values():
        assert 1 - 1e-9 <= told["mean"] <= told["worst"] * (1 + 1e-9)
    for shape in tree["shapes"]:
        sizes = {axis: shape[axis] for axis in "mnk"}
        assert bundle.choose(**sizes) == shape["kernel"]
        assert shape["measured"] == []
        assert shape["best"] == pytest.approx(min(shape["predicted"]), rel=0.5)
        assert shape["bottleneck"][shape["kernel"]]
    for kernel in tree["kernels"]:
        machine, problem, schedule = from_json(
            (made / "one" / kernel["schedule"]).read_text(), MACHINES
        )
        assert (machine.name, str(problem.operation)) == ("simt", tree["operation"])
        assert schedule["specialised"] == 0  # one that is for certain sizes serves no others
        assert kernel["registers"] > 0
    assert [p.name for p in made.iterdir() if "one" in p.name] == ["one"]


def test_two_runs_write_the_same(
    made: Path, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for when and how it was asked, to the byte; a .zip has the same parts."""
    monkeypatch.setattr(dispatching, "Fleet", Anew)
    said = done(*SMALL, "--out", tmp_path / "again")
    assert f"bundle: {tmp_path / 'again'}; ask it: tinygpu which {tmp_path / 'again'}" in said
    first, second = files_in(made / "one"), files_in(tmp_path / "again")
    trees = []
    for files in (first, second):
        tree = json.loads(files.pop("bundle.json"))
        trees.append({n: v for n, v in tree.items() if n not in ("provenance", "sha256")})
    assert first == second
    assert json.dumps(trees[0]) == json.dumps(trees[1])
    done(*SMALL, "--out", tmp_path / "b.zip")
    assert load_bundle(tmp_path / "b.zip").code == load_bundle(tmp_path / "again").code
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again", "b.zip"]


def test_json_is_the_manifest(quick: None, tmp_path: Path) -> None:
    """All but the files' hashes; and an earlier bundle is replaced."""
    done(*SMALL, "--out", tmp_path / "b")
    words = [*SMALL, "--aim", "worst", "--rule", "nearest", "--kernels", "1"]
    told = json.loads(done(*words, "--out", tmp_path / "b", "--json"))
    tree = manifest(tmp_path / "b")
    assert told == {name: value for name, value in tree.items() if name != "files"}
    assert (told["aim"], told["rule"], len(told["kernels"])) == ("worst", "nearest", 1)


def test_shapes_in_a_file(quick: None, tmp_path: Path) -> None:
    """Their weights and layers are kept; n and k that differ are rows of a table each."""
    (tmp_path / "s.csv").write_text("m,n,k,weight,layer\n5,64,64,3,a\n9,64,64,1,a\n5,60,40,2,b\n")
    words = ["dispatch", "matmul", "--machine", "simt", *DTYPE, "--shapes", tmp_path / "s.csv"]
    done(*words, "--out", tmp_path / "b")
    tree = manifest(tmp_path / "b")
    assert [(s["m"], s["n"], s["weight"], s["layer"]) for s in tree["shapes"]] == [
        (5, 64, 3.0, "a"), (9, 64, 1.0, "a"), (5, 60, 2.0, "b"),
    ]  # fmt: skip
    for rows in tree["rules"].values():
        assert [row["at"] for row in rows] == [[60, 40], [64, 64]]


def test_the_tables_on_a_terminal(quick: None, tmp_path: Path) -> None:
    """Every kernel, every rule, which one is chosen, and why nothing was measured."""
    said = done(*SMALL, "--out", tmp_path / "b", "--rule", "round up")
    for part in (*RULES, "first call", "round up (chosen)", "k00", "it was not asked for"):
        assert part in said
    assert "chosen among" in said
    assert "no other set is better" in said


def test_in_processes_of_their_own(tmp_path: Path) -> None:
    """A machine of the user's own, by its file; ``which`` and the loader read what comes out."""
    (tmp_path / "mine.py").write_text(MINE)
    words = ["dispatch", "matmul", "--machine", "mine.py:Mine", *DTYPE, *SIZES, "--points", "3"]
    outputs = []
    for line in (
        [*words, "--out", "b"],
        ["which", "b", "-m", "7"],
        ["which", "b", "-m", "7", "--json"],
    ):
        run = subprocess.run(
            [sys.executable, "-m", "tinygpu", *line],
            cwd=tmp_path, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert (run.returncode, run.stderr) == (0, "")
        outputs.append(run.stdout)
    assert "64 x 64: k0" in outputs[1]
    told = json.loads(outputs[2])
    assert {row["machine"] for row in told["kernels"]} == {"mine"}
    assert manifest(tmp_path / "b")["provenance"]["command"] == shlex.join(
        ["tinygpu", *words, "--out", "b"]
    )
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "__pycache__") == ["b", "mine.py"]


# which.


def test_which_says_all_as_json(made: Path) -> None:
    """The kernel of the rule and its interval, and of each kernel its time or why it is illegal."""
    tree = manifest(made / "layers")
    told = json.loads(done("which", made / "layers", "-m", 64, "-n", 63, "-k", 64, "--json"))
    bundle = load_bundle(made / "layers")
    sizes = {"m": 64, "n": 63, "k": 64}
    named = {name: told[name] for name in ("kernel", "number", "rule", "interval")}
    assert named == bundle.which(**sizes)
    assert (told["sizes"], told["rule"], told["shapes_near"]) == (sizes, "intervals", [64])
    assert [row["kernel"] for row in told["kernels"]] == bundle.names
    (shape,) = (s for s in tree["shapes"] if (s["m"], s["n"]) == (64, 63))
    for row, predicted in zip(told["kernels"], shape["predicted"], strict=True):
        assert ("illegal" in row) == (predicted is None)
        assert row.get("predicted_seconds") == predicted
        assert row["measured"] == {}
        assert row["decisions"]["specialised"] == 0
    assert any("illegal" not in row for row in told["kernels"])


def test_which_in_words(made: Path) -> None:
    """In between two shapes, beyond them, and of sizes that the bundle does not have."""
    for words, said in (
        (["-m", 64, "--layer", "odd"], "64 x 63 x 64: k0"),
        (["-m", 30, "--layer", "up"], "30 x 128 x 64: k0"),
        (["-m", 30, "--layer", "same"], "30 x 128 x 64: k0"),
        (["-m", 8, "-n", 63, "--rule", "first call"], "by the rule 'first call'; of the nearest"),
        (["-m", 8, "-n", 63, "--rule", "round down"], "by the rule 'round down'"),
    ):
        told = done("which", made / "layers", *words)
        assert said in told
        assert "serves it" in told
        assert "its schedule: tile_m=" in told
    assert "1 x 64 x 64: k0" in done("which", made / "one", "-m", 1)


@pytest.mark.parametrize(
    ("words", "said", "beyond"),
    [
        (
            ["-m", 513, "-n", 63],
            "it serves m from ",
            "m is 513, and the bundle was made for",
        ),
        (["-m", 8, "-n", 32, "-k", 64], "of the nearest shape, ", "n is 32, and the bundle was"),
        (
            ["-m", 8, "-n", 63, "-k", 65],
            "of the nearest shape, ",
            "k is 65, and the bundle",
        ),
    ],
)
def test_which_says_what_lies_beyond_the_bundle(
    words: list[object], said: str, beyond: str, made: Path
) -> None:
    """Status 1: the kernel is served, but at such sizes nothing was compared."""
    for form in ([], ["--json"], ["--ptx"]):
        result = tinygpu("which", made / "layers", *words, *form)
        assert result.exit_code == 1
        assert beyond in result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert form or said in result.stdout
        assert form != ["--json"] or beyond in json.loads(result.stdout)["beyond"]
    assert done("which", made / "layers", "-m", 512, "-n", 63)


def test_which_prints_the_code(made: Path) -> None:
    """The PTX of the kernel that serves, as the bundle has it."""
    bundle = load_bundle(made / "one")
    for m in (1, 512):
        text = done("which", made / "one", "-m", m, "--ptx")
        number = bundle.choose(m=m, n=64, k=64)
        assert text.rstrip("\n") == bundle.code[f"kernels/k0{number}.ptx"].decode().rstrip("\n")
        assert ".target sm_90a" in text


# Bad input.

BAD = {
    # dispatch
    "softmax": "it is of matmul and grouped and rmsnorm_matmul; it takes --dtype",
    "matmul --kernels 0": "--kernels 0: at least 1, at most 64",
    "matmul --kernels 65": "--kernels 65: at least 1, at most 64",
    "matmul --kernels x": "--kernels",
    "matmul --rule fastest": "--rule fastest: known are measured, intervals",
    "matmul --rule Measured": "did you mean measured?",
    "matmul --aim least": "--aim least: known are mean, worst",
    "matmul --machine smt": "did you mean simt?",
    "matmul --machine none.py:X": "no Python file",
    "matmul --machine elementwise": "matmul",
    "matmul --dtype int8": "known are f64",
    "matmul --layout no": "there are nn",
    "matmul --activation tanh": "tanh",
    "matmul --device h20": "did you mean h200?",
    "matmul --points 0": "--points",
    "matmul --candidates 0": "--candidates",
    "matmul --budget -1": "--budget",
    "matmul --layer qvk": "--layer: it has n and k",
    "matmul -m 9:8": "the range 9:8 is backwards; write it 8:9",
    "matmul -k 0": "-k: '0' is no size; give a whole number, at least 1",
    "matmul --rows 7": "matmul has no axis rows; its sizes are -m, -n, -k",
    "matmul -m x": "'x' is no size",
    "matmul -n 2147483648": "at most 2147483647",
    "matmul --shapes strings.json": "leave -m, -n, -k and --layer out",
    "matmul --out other": "it holds something else than a bundle; choose another --out",
    "matmul --out other/mine.txt": "it holds something else than a bundle",
    "matmul --out other/mine.txt/b": "a file of that name is in the way",
    "matmul --out other.zip": "it holds something else than a bundle",
    "matmul --out .": "a bundle's folder is replaced whole; give one of its own",
    "matmul --out ..": "it holds something else than a bundle",
    "matmul more": "EXPRESSION: matmul has none",
    # which
    "which none -m 1": "bundle none: there is none",
    "which other -m 1": "'bundle.json' is missing",
    "which other/mine.txt -m 1": "it is no .zip, or a damaged one",
    "which damaged -m 1": "'kernels/k00.cubin' was altered; copy it again",
    "which newer -m 1": "format 99, and this loader reads 1",
    "which one": "-m: not given; say which size is to be served, as -m 64",
    "which one --rows 3": "matmul has no axis rows; its sizes are -m, -n, -k",
    "which one -m x": "-m",
    "which one -m 0": "at least 1",
    "which one -m 2147483648": "at most 2147483647",
    "which one -m 1 -n 0 -k 1": "-n: '0' is no size",
    "which one -m 1 --rule fastest": "it has no rule 'fastest'; known are 'measured'",
    "which one -m 1 --layer up": "--layer up: it has none",
    "which one -m 1 -n 65": "the bundle serves 64 x 64; say which",
    "which layers -m 1": "-n, -k: the bundle serves ",
    "which layers -m 1 -k 64": "say which",
    "which layers -m 1 --layer upp": "did you mean up?",
}


@pytest.fixture
def folder(made: Path, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Bundles, a damaged one, one of a later format, files that are none, and other things."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, source in (
        ("one", "one"),
        ("layers", "layers"),
        ("damaged", "one"),
        ("newer", "one"),
    ):
        for file, data in files_in(made / source).items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    (tmp_path / "damaged" / "kernels" / "k00.cubin").write_bytes(b"\x7fELF")
    (tmp_path / "newer" / "bundle.json").write_text('{"format": 99}')
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    (tmp_path / "other.zip").write_text("mine")
    (tmp_path / "strings.json").write_text('["1x2x3"]')
    return tmp_path


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_line(words: str, folder: Path) -> None:
    """Status 2, and nothing is written, not even half."""
    line = words.split()
    if line[0] != "which":
        usual = [*SMALL[2:], "--out", "new"]
        line = ["dispatch", line[0], *usual, *line[1:]]
    assert BAD[words] in complaint(line)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--shapes strings.json", "'1x2x3'; a shape is an object"),
        ("--shapes none.json", "none.json: No such file"),
        ("--shapes other", "other: Is a directory"),
        ("--layer qvk -m 1", "did you mean qkv?"),
        ("-m 1", "-n and -k not given; give each size, as -n 1:8192 -k 1:8192; or give"),
        ("-n 1 -k 1", "-m not given; give each size, as -m 1:8192"),
        ("", "-m and -n and -k not given"),
        ("-m 1:4096 -n 1:8 -k 1:8 --points 4096", "at most 4096: lower --points"),
        ("-m 8 -n 64 -k 64 --machine hopper --dtype f32", "hopper"),
    ],
)
def test_bad_shapes_are_one_line(words: str, said: str, folder: Path) -> None:
    usual = ["dispatch", "matmul", "--machine", "simt", *DTYPE, "--out", "new/er"]
    assert said in complaint([*usual, *words.split()])


def test_no_bundle_is_named(folder: Path) -> None:
    assert "Missing option '--out'" in complaint(SMALL)
    assert "is empty; give a value" in complaint([*SMALL, "--out", ""])


def test_shapes_that_nothing_serves(
    quick: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No schedule fits at any of them."""
    ring = {name: (value,) for name, value in STARTS["ring"].items()}
    monkeypatch.setitem(MACHINES, "hopper", few(Hopper, ring))
    small = ["dispatch", "matmul", "--machine", "simt", *DTYPE, "--out", "b"]
    huge = [*small, "-m", "2147483647", "-n", "2147483647", "-k", "64"]
    assert "no machine fits any shape" in complaint(huge)
    odd = ["dispatch", "matmul", "--machine", "hopper", "--out", "b", "-m", "4", "-n", "333"]
    assert "multiple" in complaint([*odd, "-k", "333"])


# Ctrl-C.


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("one", "tinygpu.search.tuning.dispatching.anchors_of"),
        ("one", "tinygpu.search.tuning.dispatching.ranked_at"),
        ("one", "tinygpu.search.tuning.dispatching.predicted_at"),
        ("one", "tinygpu.search.selection.choose"),
        ("one", "tinygpu.codegen.run.build.build_many"),
        ("one", "tinygpu.codegen.run.bundle.bundle_parts"),
        ("one", "pathlib.Path.write_bytes"),
        ("one", "pathlib.Path.rename"),
        ("one.zip", "pathlib.Path.write_bytes"),
        ("one.zip", "os.replace"),
    ],
)
def test_an_interrupt_leaves_the_earlier_bundle(
    name: str, step: str, made: Path, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as it was, to the byte, and one line says so."""
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    out = Path(name)
    write_bundle(out, files_in(made / "one"))
    before = tree_of(Path())

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(step, interrupted)
        result = CliRunner().invoke(app, [*SMALL, "--out", name, "--kernels", "1"])
    assert result.exit_code == 130
    assert len(result.stderr.splitlines()) == 1
    assert "interrupted" in result.stderr
    assert tree_of(Path()) == before


HEEDED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
from tinygpu.__main__ import main
main()
"""
CHILD = """
import multiprocessing, os, signal, time
if multiprocessing.parent_process():
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    open("child", "w").write(f"{os.getpid()} {[*map(int, blocked)]}")"""
SLOW = {
    "started": f"{CHILD}\n    time.sleep(60)\n",
    "searching": f"{CHILD}\n    Mine.program = lambda *_: time.sleep(60)\n",
}


@pytest.mark.parametrize("after", SLOW)
def test_ctrl_c_on_a_terminal(after: str, tmp_path: Path) -> None:
    """It reaches all processes of the command: one line, at once, and none of them goes on."""
    (tmp_path / "mine.py").write_text(MINE + SLOW[after])
    words = ["dispatch", "matmul", "--machine", "mine.py:Mine", *DTYPE, *SIZES, "--out", "b"]
    run = subprocess.Popen(
        [sys.executable, "-c", HEEDED, *words], cwd=tmp_path, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    child = tmp_path / "child"
    try:
        end = time.monotonic() + 60
        while not (child.exists() and child.read_text()) and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.2)
        start = time.monotonic()
        os.killpg(run.pid, signal.SIGINT)
        _, said = run.communicate(timeout=30)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    assert said == "interrupted: nothing is lost; the same command starts again\n"
    assert run.returncode == 130
    assert time.monotonic() - start < 10
    number, blocked = child.read_text().split(" ", 1)
    assert int(signal.SIGINT) in json.loads(blocked)
    with pytest.raises(ProcessLookupError):
        os.kill(int(number), 0)
    assert not (tmp_path / "b").exists()


def test_a_process_that_dies(tmp_path: Path) -> None:
    """As by the system, for want of memory: one line."""
    (tmp_path / "mine.py").write_text(f"{MINE}{CHILD}\n    os._exit(9)\n")
    words = ["dispatch", "matmul", "--machine", "mine.py:Mine", *DTYPE, *SIZES, "--out", "b"]
    run = subprocess.run(
        [sys.executable, "-m", "tinygpu", *words],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert run.returncode == 2
    assert run.stderr.startswith("error: dispatch: a process that searched or measured ended")
    assert len(run.stderr.splitlines()) == 1
    assert not (tmp_path / "b").exists()


# Tables.

INF = math.inf
Times = np.ndarray[Any, np.dtype[np.float64]]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Shape], Times, list[int]]:
    """Shapes of two pairs of n and k, in any order; times of four kernels; those of a bundle."""
    pairs = draw(st.sets(st.tuples(st.integers(1, 60), st.sampled_from([8, 16])), min_size=2,
                         max_size=10))  # fmt: skip
    weight = st.sampled_from([1.0, 2.0, 1e-6])
    order = draw(st.permutations(sorted(pairs)))
    shapes = [matmul_shape(m, n, 4, draw(weight)) for m, n in order]
    seconds = st.sampled_from([1.0, 1.0, 1.0005, 1.3, 2.0, INF])
    row = st.lists(seconds, min_size=4, max_size=4)
    times = np.array([draw(row) for _ in shapes])
    kernels = draw(st.permutations(range(4)))[: draw(st.integers(1, 4))]
    times[:, kernels[0]] = np.minimum(times[:, kernels[0]], 3.0)  # it runs every shape
    return shapes, times, list(kernels)


def groups(shapes: Sequence[Shape]) -> dict[tuple[int, ...], list[int]]:
    found: dict[tuple[int, ...], list[int]] = {}
    for i in sorted(range(len(shapes)), key=lambda i: shapes[i].size):
        found.setdefault(shapes[i].at, []).append(i)
    return found


@settings(max_examples=draws(24, 60))
@given(cases(), st.sampled_from(AIMS), st.integers(0, 3))
def test_a_table_serves_its_shapes_as_was_chosen(
    case: tuple[list[Shape], Times, list[int]], aim: str, seed: int
) -> None:
    """At every shape; between two of them it switches where the model says, whatever that is."""
    shapes, times, kernels = case
    noise = np.random.default_rng(seed).uniform(0.5, 2, (4, 64))
    noise[noise > 1.9] = INF
    asked: list[int] = []

    def model(column: int, shape: Shape) -> float:
        asked.append(shape.size)
        return float(noise[column, shape.size % 64])

    tables = tables_of(times, times, shapes, kernels, aim, model)
    own = times[:, kernels]
    default = choose(own, 1, aim=aim).kernels[0]
    assert set(tables) == set(RULES)
    served = {rule: served_of(table, shapes, own) for rule, table in tables.items()}
    for (n, k), group in groups(shapes).items():
        here, share = own[group], [shapes[i].weight for i in group]
        wanted = {
            "measured": smooth(here, range(len(kernels)), default, share),
            "intervals": intervals(here, len(kernels), share, aim=aim).served,
            "model": here.argmin(axis=1),
        }
        for rule, mine in wanted.items():
            assert [served[rule][i] for i in group] == [int(j) for j in mine], rule
        for table in tables.values():
            (row,) = (row for row in table if row["at"] == [n, k])
            assert row["upto"] == sorted({*row["upto"]})
            assert len(row["upto"]) == len(row["kernels"])
            assert all(a != b for a, b in zip(row["kernels"], row["kernels"][1:], strict=False))
        sizes = [shapes[i].size for i in group]
        check_hints(tables, (n, k), sizes, [int(j) for j in wanted["measured"]])
    assert all(math.isfinite(own[i, j]) for rule in served for i, j in enumerate(served[rule]))
    assert all(min(s.size for s in shapes) <= m <= max(s.size for s in shapes) for m in asked)


def check_hints(
    tables: Mapping[str, list[dict[str, Any]]],
    at: tuple[int, int],
    sizes: Sequence[int],
    mine: Sequence[int],
) -> None:
    """Rules by hints, by their definition: the middle size of those that a kernel serves."""
    hints = {}
    for kernel in {*mine}:
        serves = [m for m, j in zip(sizes, mine, strict=True) if j == kernel]
        hints[serves[len(serves) // 2]] = kernel
    for m in range(1, 70):
        wanted = {
            "nearest": min((max(Fraction(m, h), Fraction(h, m)), h) for h in hints)[1],
            "round up": min((h for h in hints if h >= m), default=max(hints)),
            "round down": max((h for h in hints if h <= m), default=min(hints)),
        }
        for rule, hint in wanted.items():
            (row,) = (row for row in tables[rule] if row["at"] == list(at))
            i = next((i for i, end in enumerate(row["upto"]) if m <= end), -1)
            assert row["kernels"][i] == hints[hint], (rule, m, hints)


def test_a_switch_lies_where_the_model_says() -> None:
    """Its errors at both shapes are taken out; an illegal kernel begins at the next shape."""
    shapes = [matmul_shape(m, 8, 8) for m in (100, 200)]
    seen = np.array([[1.0, 1.5], [3.0, 1.5]])

    def crossing(at: int, error: float) -> Callable[[int, Shape], float]:
        return lambda j, s: error * (1.0 if (s.size <= at) == (j == 0) else 2.0)

    def switch(times: Times, model: Callable[[int, Shape], float]) -> int:
        (row,) = tables_of(times, times, shapes, [0, 1], "mean", model)["measured"]
        assert (row["kernels"], row["upto"][-1]) == ([0, 1], 200)
        return int(row["upto"][0])

    for at in (110, 150, 190):
        assert abs(switch(seen, crossing(at, 7.0)) - at) <= 10
    assert switch(seen, lambda j, s: INF) == 100
    never = np.array([[1.0, INF], [3.0, 1.5]])
    assert switch(never, crossing(150, 1.0)) == 100
    flat = switch(seen, lambda j, s: 1.0)  # by the errors alone: log 1.5 / log 3 of the way
    assert flat == 100 + round(4 / 12 * 100)
    holes = crossing(150, 1.0)
    assert (
        abs(switch(seen, lambda j, s: holes(j, s) if s.size % 100 in (0, 50) else INF) - 150) <= 50
    )


def test_two_layers_of_one_size() -> None:
    """Measured apart they may differ by noise: the first of the two serves."""
    shapes = [matmul_shape(m, 8, 8, 1.0, layer) for m in (1, 5, 9) for layer in ("a", "b")]
    times = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [2.0, 1.0], [2.0, 1.0], [2.0, 1.0]])
    tables = tables_of(times, times, shapes, [0, 1], "mean", lambda j, s: 1.0)
    for rule in ("measured", "intervals", "model"):
        assert tables[rule] == [{"at": [8, 8], "upto": [5, 9], "kernels": [0, 1]}]


def test_an_illegal_kernel_is_passed_over_as_by_the_loader() -> None:
    """To the next interval's, either side; where none of the table runs, to the fastest."""
    table = [{"at": [8, 8], "upto": [10, 20, 30], "kernels": [0, 1, 2]}]
    shapes = [matmul_shape(m, 8, 8) for m in (10, 11, 25, 31)]
    times = np.array([[INF, 1.0, 0.5, 0.1], [1.0, INF, 1.0, 0.1], [9.0, INF, INF, 0.1],
                      [INF, INF, INF, 0.1]])  # fmt: skip
    assert served_of(table, shapes, times) == [1, 0, 0, 3]


# Candidates.


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 2)), min_size=1, unique=True),
       st.integers(1, 8))  # fmt: skip
def test_anchors(pairs: list[tuple[int, int]], most: int) -> None:
    """At most as many, of each n and k as many, its smallest and largest m among them."""
    shapes = [matmul_shape(m, n, 4) for m, n in pairs]
    found = anchors_of(shapes, most)
    assert len({*found}) == len(found) <= max(most, len(groups(shapes)))
    for group in groups(shapes).values():
        mine = [s for s in found if s.at == shapes[group[0]].at]
        assert len(mine) == max(1, min(most // len(groups(shapes)), len(group)))
        assert mine[0] == shapes[group[0]]
        assert len(mine) == 1 or mine[-1] == shapes[group[-1]]


@given(cases(), st.integers(1, 4))
def test_pruning_keeps_what_serves(case: tuple[list[Shape], Times, list[int]], most: int) -> None:
    """At most as many, in order; the one that is chosen of all can still be chosen."""
    shapes, times, _ = case
    weights = [s.weight for s in shapes]
    kept = pruned(times, {}, 1, most, weights)
    assert kept == sorted({*kept})
    assert len(kept) == min(most, 4)
    best = choose(times, 1, weights)
    assert {*best.kernels} <= {*kept}


def test_times_under_the_model_are_infinite_where_illegal() -> None:
    """Rows of b that are no multiple of the vector; of a shape that it takes, a time."""
    wide, narrow = (
        Schedule.of(Simt(), {**LADDER["multi-stage"], "vector_b": v, "vector_c": v}) for v in (4, 1)
    )
    shapes = [matmul_shape(8, 64, 64), matmul_shape(8, 63, 64)]
    job = Job(("simt",), "h200", matmul(), shapes[0], shapes=tuple(shapes))
    times = np.array(predicted_at(replace(job, schedules=(wide, narrow))))
    assert np.isfinite(times).tolist() == [[True, False], [True, True]]
    assert (times > 0).all()
