"""Bad input of every kind gives one line that says what is wrong, and leaves nothing behind."""

from __future__ import annotations

import copy
import functools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.sample import draws
from tinygpu.cli import app
from tinygpu.codegen.run.doctor import how_to_install
from tinygpu.devices.device import DEVICES, load_device
from tinygpu.errors import DeviceError, ScheduleError, StoreError
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.explain.explain import explain
from tinygpu.search.store import Store
from tinygpu.search.time.cost import cost
from tinygpu.space.measurement import Measurement, describe
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.schedule import Schedule, from_json, to_json

PROBLEM = Problem.of(matmul(), m=64, n=64, k=64)
SIMT = Schedule.of(Simt(), LADDER["multi-stage"])
HOPPER_PROBLEM = Problem.of(matmul("bf16", layout="nt"), m=256, n=256, k=256)
HOPPER = Schedule.of(Hopper(), STARTS["cluster"])
GOOD: dict[str, Any] = json.loads(to_json(SIMT, PROBLEM))
H200: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "tinygpu" / "devices" / "h200.json").read_text(encoding="utf-8")
)
FIXED = " ".join(f"--fix {name}={value}" for name, value in SIMT.decisions)
ONE = f"search matmul -m 64 -n 64 -k 64 {FIXED}"
SMALL = "search matmul --machine hopper -m 64 -n 64 -k 64 --fix swap=0 --fix cluster_k=1"
ASK = "ask matmul -m 64 -n 64 -k 64 --machine hopper"
PROVE = "prove matmul -m 64 -n 64 -k 64 --machine hopper"
MATMUL = "search matmul -m 64 -n 64 -k 64"
MINE = """
from tinygpu import Machine

class Other: pass

class Mine(Machine):
    name, levels, instructions = "mine", (), ()
    def program(self, operation, choose): ...
"""
Change = Callable[[Any], object]


@functools.cache
def _files() -> dict[str, bytes]:
    """What lies in the folder of every test: good files, and some that are none."""
    good = json.dumps(GOOD)
    return {
        "s.json": good.encode(),
        "t.json": good.encode(),
        "h.json": to_json(Schedule.of(Hopper(), STARTS["plain"]), HOPPER_PROBLEM).encode(),
        "empty.json": b"",
        "null.json": b"null",
        "binary.json": b"\xff\xfe\x00",
        "file": b"x",
        "cut.json": good[:200].encode(),
        "twice.json": f'{good[:-1]}, "version": 1}}'.encode(),
        "deep.json": b"[" * 100_000,
        "nan.json": good.replace('"m": 64', '"m": NaN').encode(),
        "long.json": good.replace('"m": 64', f'"m": {"9" * 5000}').encode(),
        "infinite.json": good.replace('"m": 64', '"m": 1e999').encode(),
        "surrogate.json": good.replace('"simt"', '"\\ud800"').encode(),
        "zero.py": b"1 / 0",
        "mine.py": MINE.encode(),
        "text.db": b"not a store",
        "k.ptx": b"garbage",
        "none.ptx": b"",
        "k.csv": b"m,n\n1,2\n",
        "empty.db": b"",
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, data in _files().items():
        (tmp_path / name).write_bytes(data)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def tree_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() or path.is_symlink())
    kept = {str(p.relative_to(folder)): p.read_bytes() for p in files}
    folders = {str(p.relative_to(folder)) + "/": b"" for p in folder.rglob("*") if p.is_dir()}
    ours = (kept | folders).items()
    return {n: d for n, d in ours if not n.startswith(("cache", "__pycache__"))}


def complaint(words: list[str]) -> str:
    """Return the one line of a mistake: no traceback, no warning, status 2, no file written."""
    before = tree_of(Path())
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, SystemExit), (words, result.exception)
    assert result.exit_code == 2, (words, result.stdout)
    lines = result.stderr.splitlines()
    assert len(lines) == 1, (words, lines)
    assert lines[0].startswith("error: ")
    assert len(lines[0]) < 6500
    assert tree_of(Path()) == before, words
    return lines[0]


# What is typed, blanks between the words, and a part of what is said.
COMMANDS = {
    # names and options that there are not
    "machines SIMT": "did you mean simt?",
    "machines sim": "did you mean simt?",
    "machines simt hopper": "unexpected extra argument",
    "machines --jsn": "--json",
    "machines \u0130": "known are simt",
    "machine": "Did you mean 'machines'?",
    "-x": "No such option",
    "search": "Missing argument",
    "search MATMUL": "did you mean matmul?",
    "search matmul gemm": "matmul has none",
    "search matmul --machine hoper": "did you mean hopper?",
    "search matmul --dtype F32": "did you mean f32?",
    "search matmul --dtype int8": "known are f64",
    f"{MATMUL} --assemble --measure --out found": "is assembled anyway",
    "search matmul --layout NN": "there are nn",
    "search matmul --layout n": "there are nn",
    # sizes
    "search matmul -m 0": "at least 1",
    "search matmul -m -1": "at least 1",
    "search matmul -m 1e3": "is no size; give a whole number",
    "search matmul -m 0x40": "is no size",
    "search matmul -m nan": "is no size",
    "search matmul -m 2147483648": "at most 2147483647",
    "search matmul --machine hopper -m 2147483648": "at most 2147483647",
    "search matmul --machine ampere -n 9223372036854775808": "at most 2147483647",
    "search matmul --machine blackwell -k 18446744073709551616": "at most 2147483647",
    f"search matmul -m {'9' * 400}": "at most 2147483647",
    f"search matmul -m {'9' * 5000}": "is no size",
    "search matmul -m 64 -n": "requires an argument",
    # numbers of schedules
    "search matmul --top 0": "--top",
    "search matmul --top -3": "--top",
    "search matmul --top 1.5": "--top",
    "demo --top 100000000": "--top",
    # devices
    "search matmul --device H200": "did you mean h200?",
    "search matmul --device .": "known are h100",
    "search matmul --device file": "known are h100",
    "search matmul --device none.json": "calibrate writes one",
    "search matmul --device file/x.json": "Not a directory",
    "search matmul --device empty.json": "truncated",
    "search matmul --device binary.json": "UTF-8",
    "search matmul --device s.json": "tinygpu device",
    # decisions
    f"{MATMUL} --fix =": "decision=value",
    f"{MATMUL} --fix tile_m": "decision=value",
    f"{MATMUL} --fix tile_m=": "decision=value",
    f"{MATMUL} --fix =64": "decision=value",
    f"{MATMUL} --fix tile_m=64,": "no value",
    f"{MATMUL} --fix tile_m=,64": "no value",
    f"{MATMUL} --fix tile_m==64": "did you mean 64?",
    f"{MATMUL} --fix tile_m=064": "did you mean 64?",
    f"{MATMUL} --fix tile_m=64.0": "did you mean 64?",
    f"{MATMUL} --fix tile_m=-64": "did you mean 64?",
    f"{MATMUL} --fix tile_m=\uff16\uff14": "no value",
    f"{MATMUL} --fix TILE_M=64": "did you mean tile_m?",
    f"{MATMUL} --fix edges=Guard": "did you mean guard?",
    f"{MATMUL} --fix tile_m=64 --fix tile_m=64": "given twice",
    f"{MATMUL} --fix tile_m=64 tile_n=64": "matmul has none",
    f"{MATMUL} --spread tile_q": "is no decision of",
    f"{MATMUL} --spread tile_m,,tile_n": "is no decision of",
    # other operations
    "search elementwise": "give its expression",
    "search elementwise x+": "invalid syntax",
    "search elementwise x)": "unmatched",
    "search elementwise f(x)": "known are add",
    "search elementwise max(x)": "1 arguments; it takes 2",
    "search elementwise x.real": "is no number, name",
    "search elementwise __import__('os')": "is no number, name",
    "search elementwise x*1e400": "no finite number",
    f"search elementwise {'(' * 400}x{')' * 400}": "at most 500",
    "search elementwise a*b": "it does not read",
    "search elementwise y*x": "y is named twice",
    "search elementwise i*x": "i is named twice",
    "search elementwise \u00e9*x": "letters, digits",
    "search elementwise x --inputs z": "it does not read z",
    "search elementwise x -i 0": "at least 1",
    "search elementwise x -i 99999999999": "at most 2147483647",
    "search elementwise x -m 64": "elementwise has no axis m; its sizes are -i",
    "search elementwise x -i 64 --dtype e4m3": "known are f32",
    "search rmsnorm x": "rmsnorm has none",
    "search rmsnorm --bias": "rmsnorm has none",
    "search softmax -i 64 -j 64 --machine hopper": "known are matmul",
    "search matmul --batch 0": "at least 1",
    "search matmul --out-dtype f99": "unknown dtype",
    "search matmul --activation swish": "known are relu",
    "search matmul --inputs x": "matmul has none",
    "search matmul --budget 0": "--budget",
    "search matmul --evaluations 0": "--evaluations",
    "search matmul --top 100000000": "--top",
    # machines of one's own
    "search matmul --machine none.py:X": "no Python file",
    "search matmul --machine s.json:X": "no Python file",
    "search matmul --machine zero.py:X": "zero.py, line 1: ZeroDivisionError",
    "search matmul --machine mine.py": "known are Mine",
    "search matmul --machine mine.py:Mien": "did you mean Mine?",
    "search matmul --machine mine.py:Other": "no class derived",
    "search matmul --machine mine.py:Mine": "it has no decision",
    "check s.json --machine mine.py:Mine": "it has no decision",
    "check s.json --machine hopper": "it is of machine simt",
    "devices h20": "did you mean h200?",
    "devices s.json": "tinygpu device",
    "devices none.json": "No such file",
    "devices h200 a100": "unexpected extra argument",
    # spaces with nothing in them
    f"{SMALL} --fix tile_m=256 --fix consumers=1 --fix tile_n=256": "keeps accumulators",
    f"{SMALL} --fix consume=pingpong --fix consumers=1": "consumers = 1",
    f"{SMALL} -n 4097 --fix tile_m=128 --fix tile_n=128": "pad the rows",
    f"{SMALL} -m 2147483647 -n 65536 --fix tile_m=64": "keeps device_memory",
    f"{MATMUL} --machine hopper --device a100 --fix tile_m=128 --fix tile_n=128": "--device",
    # folders and files to write
    f"{ONE} --out file": "choose another folder",
    f"{ONE} --out file/x": "choose another folder",
    f"{ONE} --out {'x' * 300}": "File name too long",
    f"{ONE} --measure": "give --out",
    "emit s.json -o .": "it is a folder",
    "emit s.json -o file/x": "in the way",
    f"emit s.json -o {'x' * 300}": "File name too long",
    "emit s.json --cubin .": "it is a folder",
    "emit s.json -o k --cubin k": "give two files",
    "plot timeline s.json -o .": "ends in .png, .svg, .pdf",
    "plot timeline s.json -o x.gif": "ends in .png, .svg, .pdf",
    "plot timeline s.json -o x": "ends in .png, .svg, .pdf",
    "plot timeline s.json -o file/x.png": "in the way",
    "demo --out file": "in the way",
    "demo --out file/x": "choose another folder",
    # files to read
    "explain": "Missing argument",
    "explain s.json t.json h.json": "unexpected extra argument",
    "explain s.json h.json": "different problems",
    "explain .": "it is a folder",
    "explain none.json": "No such file",
    "explain file/x.json": "Not a directory",
    f"explain {'x' * 300}": "File name too long",
    "explain s.json none.json": "No such file",
    "explain s.json --device b100": "did you mean h100?",
    "explain h.json --device a100": "wgmma needs sm_90a",
    "check empty.json": "truncated",
    "check null.json": "tinygpu schedule",
    "check binary.json": "UTF-8",
    "check cut.json": "truncated",
    "check twice.json": '"version" is there twice',
    "check deep.json": "nested too deeply",
    "check nan.json": "sizes.m is nan",
    "check long.json": "sizes.m is inf",
    "check infinite.json": "sizes.m is inf",
    "check surrogate.json": "surrogate",
    "check text.db": "truncated",
    "check s.json --top 3": "No such option",
    "check --device h200": "Missing argument",
    # emit
    "emit": "Missing argument",
    "emit none.json": "No such file",
    "emit s.json --arch foo": "known are sm_75",
    "emit s.json --arch sm_70": "known are sm_75",
    "emit s.json --arch SM_90A": "did you mean sm_90a?",
    "emit s.json --arch compute_90": "did you mean",
    "emit h.json --arch sm_80": "wgmma needs sm_90a",
    "emit h.json --arch sm_90": "wgmma needs sm_90a",
    "emit s.json h.json": "give -o FOLDER",
    "emit s.json h.json -o k --cubin c": "give -o FOLDER",
    "emit s.json s.json -o k": "one name",
    "emit s.json none.json -o k": "No such file",
    "emit s.json h.json -o k --arch sm_80": "wgmma needs sm_90a",
    "emit s.json h.json -o file": "in the way",
    # run
    "run none.json": "No such file",
    "run s.json --backend cpu": "'gpu', 'interpreter'",
    "run s.json --seed -1": "--seed",
    "run s.json --seed x": "--seed",
    "run s.json -m 0": "at least 1",
    "run s.json -m 9999999999": "at most 2147483647",
    "run s.json --backend interpreter -m 65536 -n 65536 -k 65536": "give smaller sizes",
    "run s.json --backend interpreter -m 2147483647": "split the problem",
    "run h.json -k 3": "pad the rows",
    # plots
    "plot x": "No such command",
    "plot timeline": "Missing argument",
    "plot timeline none.json": "No such file",
    "plot timeline s.json --iterations 0": "--iterations",
    "plot timeline s.json --iterations 1000000000": "--iterations",
    "plot timeline empty.json": "truncated",
    "plot measured": "Missing argument",
    "plot measured none.db": "no such file",
    "plot measured .": "no such file",
    "plot measured text.db": "no store",
    "plot measured empty.db": "no such file",
    "plot measured s.json": "no store",
    "plot timeline s.json --trace file/x": "in the way",
    "plot bundle none": "there is none",
    # wishes and claims
    "ask matmul stages>2": "-m and -n and -k not given",
    f"{ASK} stages": "is no condition; compare it",
    f"{ASK} stages>2 --out .": "it is a folder: give a file",
    f"{ASK} stages>2 --out file/x.json": "in the way",
    f"{ASK} stages>1e400": "not of the language",
    f"{ASK} stages>'2'": "compare an integer with an integer",
    f"{ASK} m/0>2": "not of the language",
    f"{ASK} stagez>2": "did you mean stages?",
    "ask nothing stages>2": "known are matmul, grouped, elementwise",
    f"{PROVE} smem_bytes<=": "invalid syntax",
    f"{PROVE} smem_bytes<=2 --fix stages=0": "no value 0; known are 2",
    f"{PROVE} lambda:3": "not of the language",
    f"{PROVE} ": "is empty; give a value",
    # sizes, of any command
    "search matmul -m 64 -q": "-q: the option requires an argument",
    "search elementwise -x -i 64": "-x: the option requires an argument",
    f"{MATMUL} --batch 2 --machine simt": "choose a machine that fuses",
    f"{MATMUL} --rows 2": "matmul has no axis rows; its sizes are -m, -n, -k",
    f"{MATMUL} --inputs x": "--inputs: matmul has none, it is of elementwise",
    f"{MATMUL} --machine": "requires an argument",
    f"{MATMUL} --measure --out found --strategy best": "known are gaussian, model",
    f"{MATMUL} --measure --out found --scheduler nowhere": "give its address, as tcp://HOST",
    f"{MATMUL} --budget 5": "give --measure",
    f"{MATMUL} --out s.json": "in the way",
    "search rmsnorm -i 64 -j 64 --out-dtype bf16": "--out-dtype: rmsnorm has none, it is of matmul",
    "run s.json --batch 2": "matmul has no axis batch",
    "run s.json --rows 2": "matmul has no axis rows",
    "run s.json -m x": "-m: 'x' is no size",
    "run s.json --scalar a=1": "matmul has no scalar a; it has none",
    "run s.json --backend interpreter -k 1000000000": "split the problem",
    "run h.json --device a100": "wgmma needs sm_90a; a100 is sm_80",
    # ptx
    "ptx": "Missing argument",
    "ptx k.ptx": "PTX line 1: no ';' ends",
    "ptx none.ptx": "give a whole module",
    "ptx missing.ptx": "No such file",
    "ptx .": "it is a folder",
    "ptx binary.json": "give PTX, not a cubin",
    "ptx k.ptx --nothing": "No such option",
    # bundles
    "dispatch": "Missing argument",
    "dispatch matmul --out b --shapes k.csv": "it lacks k",
    "dispatch matmul --out b --shapes binary.json": "no utf-8 text; give a .json or .csv",
    "dispatch elementwise -i 64 --out b": "give its expression",
    "dispatch rmsnorm -i 64 --layer qkv --out b": "--layer: it is of a matmul",
    "dispatch matmul -m 1: -n 64 -k 64 --out b": "'' is no size",
    "which": "Missing argument",
    "which .": "'bundle.json' is missing",
    "which s.json -m 64": "it is no .zip",
    "which none -m 64": "there is none",
    # stores and reports
    "store lists": "Did you mean 'list'?",
    "store list text.db": "it is no store, or damaged",
    "store list none.db": "there is none",
    "store list .": "it is a folder, and there is no store.db in it",
    "store import": "Missing argument",
    "store import new.db": "Missing argument",
    "store import new.db none.jsonl": "No such file",
    "store import new.db .": "it is a folder, and there is no store.db in it",
    "store import . s.json": "it is a folder, and there is no store.db in it",
    "store import new.db s.json": "line 1: measurement",
    "report": "Missing argument",
    "report none": "does not exist",
    "report .": "no search.json in it",
    "report s.json": "no search.json in it",
    # the rest
    "demo --machine hopper --device a100": "a100 is sm_80",
    "demo --machine rows": "known are rmsnorm, softmax",
    "demo --machine hopper --dtype f64": "choose dtype bf16",
    "demo --layout xx": "there are nn",
    "nothing": "No such command",
    "--nothing": "No such option",
    "demo --layer x": "known are qkv",
    "demo --tokens 0": "at least 1",
    "demo --tokens 1e3": "valid integer",
    "demo --tokens 99999999999": "at most 2147483647",
    "demo --machine sims": "did you mean simt?",
    "demo --fix tile_m=1": "no value 1",
    "demo extra": "unexpected extra argument",
    "doctor x": "unexpected extra argument",
    "doctor --jsno": "--json",
    "calibrate": "--output",
    "calibrate -o": "requires an argument",
}


@pytest.mark.usefixtures("folder", "believed")
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[:60])
def test_bad_words(words: str) -> None:
    assert COMMANDS[words] in complaint(words.split(" "))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "words",
    [
        ["demo", "--out", ""],
        ["search", "matmul", "--out", ""],
        ["search", "matmul", "--out="],
        ["emit", "s.json", "-o", ""],
        ["emit", "s.json", "--arch", ""],
        ["check", ""],
        [""],
        ["search", "matmul", "--fix", ""],
    ],
)
def test_an_empty_word_is_no_path(words: list[str]) -> None:
    """An empty path would be the current folder: a variable that a shell did not know."""
    assert "is empty; give a value" in complaint(words)


@pytest.mark.usefixtures("folder")
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write all")
def test_a_folder_that_is_read_only() -> None:
    Path("closed").mkdir(mode=0o500)
    assert "change its permissions" in complaint(["emit", "s.json", "-o", "closed/k.ptx"])
    assert "change its permissions" in complaint([*ONE.split(" "), "--out", "closed/out"])


def operation(**parts: Any) -> Change:
    return lambda tree: tree["operation"].update(parts)


def summed(expression: Any = ("mul", "a", "b"), over: Any = ("k",)) -> Change:
    """Another expression or other axes of the sum."""
    return operation(reductions=[["acc", "add", expression, over]])


def sizes(**parts: Any) -> Change:
    return lambda tree: tree["sizes"].update(parts)


def decisions(**parts: Any) -> Change:
    return lambda tree: tree["decisions"].update(parts)


def top(**parts: Any) -> Change:
    return lambda tree: tree.update(parts)


A, B, C = ["a", ["m", "k"], "f32"], ["b", ["k", "n"], "f32"], ["c", ["m", "n"], "f32"]
SCHEDULES: list[tuple[Change, str]] = [
    (top(version="1"), 'version "1"; this tinygpu reads version 1 (a number)'),
    (top(version=True), "version true"),
    (top(version=2), "version 2"),
    (lambda tree: tree.pop("version"), "version null"),
    (top(format="tinygpu device"), "tinygpu schedule"),
    (top(machine="smt"), "did you mean simt?"),
    (top(machine=["simt"]), "give text"),
    (lambda tree: tree.pop("machine"), "machine is missing"),
    (top(sises={}), "did you mean sizes?"),
    (top(device=5), "give text"),
    (top(device="b20"), "did you mean b200?"),
    (top(sizes=[64, 64, 64]), "give an object"),
    (top(sizes={}), "size m: not given"),
    (sizes(m="64"), "every size is an int"),
    (sizes(m=64.0), "every size is an int"),
    (sizes(m=True), "every size is an int"),
    (sizes(m=None), "every size is an int"),
    (sizes(m=0), "at least 1"),
    (sizes(m=-64), "at least 1"),
    (sizes(m=2**31), "at most 2147483647"),
    (sizes(m=2**63), "at most 2147483647"),
    (sizes(m=2**64), "every size is an int"),  # more than 64 bits are read as a float
    (sizes(z=5), "size z: no such axis"),
    (sizes(operation=5), "size operation: no such axis"),
    (top(decisions=[["tile_m", 64]]), "give an object"),
    (top(decisions={}), "machine simt needs it"),
    (decisions(tile=64), "did you mean tile_"),
    (decisions(tile_m=100), "no value 100"),
    (decisions(tile_m="64"), "did you mean 64?"),
    (decisions(tile_m=64.0), "did you mean 64?"),
    (decisions(tile_m=True), "no value True"),
    (decisions(tile_m=None), "no value None"),
    (decisions(tile_m=[64]), "no value [64]"),
    (decisions(tile_m="x" * 10**5), "known are 8"),
    (top(operation="matmul"), "give an object"),
    (lambda tree: tree["operation"].pop("reductions"), "reductions is missing"),
    (operation(extra=1), "extra is unknown"),
    (operation(name="conv"), "known are matmul"),
    (operation(name=3), "give text"),
    (summed(over=[]), "acc: it is over no axis"),
    (summed(over=["m"]), "c[m,n] f32 lacks k, and no reduction is over it"),
    (summed(over=["z"]), "axis z is not the operation's"),
    (summed(over=["k", "k"]), "an axis is there twice"),
    (summed(over="k"), "give a list"),
    (summed(over=[1]), "axes of acc are [1]; give a list of names"),
    (operation(axes=["m", "n"]), "axis k is not the operation's"),
    (operation(axes=["m", "n", "k", "k"]), "k is named twice"),
    (operation(axes=["k", "n", "m"]), "in this order"),
    (operation(inputs=[]), "it has no inputs; give one or more operands"),
    (operation(inputs=[A]), "no input, scalar, axis or reduction"),
    (operation(inputs=[A, A]), "a is named twice"),
    (operation(inputs=[A, ["b", "kn", "f32"]]), "give a list of names"),
    (operation(inputs=[A, ["b", ["k", "k"], "f32"]]), "an axis is there twice"),
    (operation(inputs=[A, ["b", ["k", "n"]]]), "give [name, [axes], type]"),
    (operation(inputs=[A, ["b", ["k", "n"], "f99"]]), "unknown dtype"),
    (operation(inputs=[A, ["b", [], "f32"]]), "no matmul"),
    (operation(inputs=[A, ["b b", ["k", "n"], "f32"]]), "letters, digits"),
    (operation(inputs=[A, ["\u00e9", ["k", "n"], "f32"]]), "letters, digits"),
    (operation(output=["c", ["n", "m"], "f32"]), "in this order"),
    (operation(output=["c", ["m"], "f32"]), "c[m] f32 lacks n, and no reduction is over it"),
    (operation(output=["a", ["m", "n"], "f32"]), "a is named twice"),
    (summed(expression=["mul", "a"]), "1 arguments; it takes 2"),
    (summed(expression=["mul", "a", "b", "b"]), "3 arguments; it takes 2"),
    (summed(expression=["pow", "a", "b"]), "operator pow"),
    (summed(expression=["add", "a", "b"]), "no matmul"),
    (summed(expression=["mul", "a", "a"]), "no matmul"),
    (summed(expression=["mul", "a", True]), "true is no expression"),
    (summed(expression=["mul", "a", "acc"]), "expression names 'acc'"),
    (summed(expression=["mul", "a", 10**400]), "is inf"),
    (summed(expression=None), "null is no expression"),
    (summed(expression=[]), "[] is no expression"),
    (operation(reductions=[["acc", "add", "a"]]), "give [name, operator, expression, [axes]]"),
    (operation(reductions=[["acc", "mean", "a", ["k"]]]), "acc: mean; known are add, max"),
    (summed(expression=["le", "a", "b"]), "le"),
    (summed(expression=["index", "z"]), "expression names 'index(z)'"),
    (summed(expression=["where", ["le", "a", ["index", "k"]], "a", "b"]), "a is no size"),
    (summed(expression=["where", "a", "a", "b"]), "a is no condition"),
    (operation(epilogue=["neg", ["neg", ["mul", "acc", "a"]]]), "has the axis k"),
    (operation(epilogue=1.0), "the reduction acc is read by nothing"),
    (operation(epilogue="c"), "expression names 'c'"),
    (operation(epilogue=["max", "acc"]), "1 arguments; it takes 2"),
    (operation(epilogue=json.loads('["neg",' * 200 + '"acc"' + "]" * 200)), "levels"),
    (operation(epilogue=["add", "acc", 1.0]), "choose a machine that fuses"),
    (operation(scalars=["zeta"]), "scalar zeta is in no expression"),
    (operation(scalars="x"), "give a list"),
    (operation(scalars=["a"]), "a is named twice"),
]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("number", range(len(SCHEDULES)))
def test_bad_schedules(number: int) -> None:
    change, told = SCHEDULES[number]
    tree = copy.deepcopy(GOOD)
    change(tree)
    Path("bad.json").write_text(json.dumps(tree))
    line = complaint(["check", "bad.json"])
    assert line.startswith("error: schedule file bad.json: ")
    assert told in line


def number(field: str, value: Any) -> Change:
    return lambda tree: tree["numbers"][field].update(value=value)


CHIPS: list[tuple[Change, str]] = [
    (top(version="2"), 'version "2"'),
    (top(version=1), "version 1; this tinygpu reads version 4"),
    (top(format="tinygpu schedule"), "tinygpu device"),
    (top(extra=1), "extra is unknown"),
    (lambda tree: tree.pop("name"), "name is missing"),
    (top(name=5), "give text"),
    (top(name=""), "a name that can be printed"),
    (top(name="a\nb"), "a name that can be printed"),
    (top(arch="sm_91a"), "did you mean sm_90a?"),
    (top(arch="hopper"), "known are sm_75"),
    (top(arch=None), "give text"),
    (top(numbers=[]), "give an object"),
    (top(numbers={}), "sms is missing"),
    (lambda tree: tree["numbers"].pop("clock_hz"), "clock_hz is missing"),
    (lambda tree: tree["numbers"].update(smss={}), "value is missing"),
    (lambda tree: tree["numbers"].update(smss=tree["numbers"]["sms"]), "did you mean sms?"),
    (lambda tree: tree["numbers"].update(sms=132), "give an object with value, kind, source"),
    (lambda tree: tree["numbers"]["sms"].pop("kind"), "kind is missing"),
    (lambda tree: tree["numbers"]["sms"].update(kind="guess"), "known are spec"),
    (lambda tree: tree["numbers"]["sms"].update(source=""), "no source"),
    (lambda tree: tree["numbers"]["sms"].update(unit="1"), "unit is unknown"),
    (number("sms", 1), "clusters_of_4 is 30; with sms 1 it is at most 0"),
    (number("sms", 0), "more than 0"),
    (number("sms", -1), "more than 0"),
    (number("sms", 131.5), "whole number"),
    (number("sms", "132"), "finite number"),
    (number("sms", None), "finite number"),
    (number("sms", True), "finite number"),
    (number("sms", [132]), "finite number"),
    (number("sms", float("nan")), "sms.value is nan"),
    (number("sms", float("inf")), "sms.value is inf"),
    (number("sms", 10**400), "sms.value is inf"),
    (number("sms", 10**9), "look at its unit"),
    (number("clock_hz", 1e308), "finite number"),
    (number("clock_hz", 1e30), "look at its unit"),
    (number("clock_hz", 1980), "look at its unit"),
    (number("launch_seconds", 0.6), "look at its unit"),
    (number("dram_bytes_per_second", 4800), "look at its unit"),
    (number("l2_bytes", 50), "look at its unit"),
    (number("sector_bytes", 48), "power of two"),
    (number("smem_bytes_per_cta_max", 262144), "at most 233472"),
    (number("threads_per_cta_max", 4096), "at most 2048"),
]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("number", range(len(CHIPS)))
def test_bad_devices(number: int) -> None:
    change, told = CHIPS[number]
    tree = copy.deepcopy(H200)
    change(tree)
    Path("chip.json").write_text(json.dumps(tree))
    line = complaint(["explain", "s.json", "--device", "chip.json"])
    assert line.startswith("error: device file chip.json: ")
    assert told in line


def measured(**parts: Any) -> dict[str, Any]:
    operation, sizes, schedule = describe(PROBLEM, SIMT)
    one = Measurement(
        operation=operation, sizes=sizes, schedule=schedule, device="NVIDIA H200", driver="580",
        emitter=1, seconds=1e-5,
    )  # fmt: skip
    tree: dict[str, Any] = {**json.loads(one.to_json()), **parts}
    return tree


RECORDS: list[tuple[str, str]] = [
    ("", "none"),
    ("null", "give an object"),
    ("[" * 10**5, "nested too deeply"),
    (json.dumps(measured())[:-9], "truncated"),
    (json.dumps(measured(extra=1)), "extra is unknown"),
    (json.dumps(measured(seconds="fast")), "give a number"),
    (json.dumps(measured(seconds=float("nan"))), "finite"),
    (json.dumps(measured(device=5)), "give text"),
    (json.dumps(measured(error="big")), "could not convert"),
    (json.dumps(measured(device="NVIDIA A100-SXM4-80GB")), "measured on NVIDIA A100"),
    (json.dumps(measured(seconds=None)), "no measured schedule"),
    (json.dumps(measured(schedule="{}")), "no measured schedule"),
    (json.dumps(measured(schedule="[")), "truncated"),
    (json.dumps(measured(schedule='{"machine":"smt","decisions":{}}')), "did you mean simt?"),
    (json.dumps(measured(operation="5")), "give an object"),
    (json.dumps(measured(sizes='{"m":64}')), "size n: not given"),
    (json.dumps(measured(sizes=f'{{"m":64,"n":64,"k":{2**40}}}')), "at most 2147483647"),
]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("number", range(len(RECORDS)))
def test_bad_stores(number: int) -> None:
    """A record that another program wrote, or that was made on another GPU."""
    record, told = RECORDS[number]
    with Store("store.db"):
        pass
    with sqlite3.connect("store.db") as db:
        db.execute("insert into measurement values ('a', 'b', 'c', 'd', 'e', 1, ?)", (record,))
    db.close()
    assert told in complaint(["plot", "measured", "store.db"])


def test_the_cases_are_more_than_a_hundred() -> None:
    assert len(COMMANDS) >= 100
    assert len(SCHEDULES) + len(CHIPS) + len(RECORDS) >= 100


# A file is what it has to be or is refused, whatever was done to it.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
SLOW = [HealthCheck.too_slow]


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    here = [(tree, key) for key in keys]
    inside = (tree[key] for key in keys if isinstance(tree[key], dict | list))
    return here + [place for part in inside for place in places(part)]


def mutated(tree: Any, data: st.DataObject) -> Any:
    """A tree with one part taken out, changed or put elsewhere."""
    tree = copy.deepcopy(tree)
    all_places = places(tree)
    container, key = data.draw(st.sampled_from(all_places))
    match data.draw(st.sampled_from(("value", "part", "out"))):
        case "value":
            container[key] = data.draw(JSON)
        case "part":
            other, where = data.draw(st.sampled_from(all_places))
            container[key] = copy.deepcopy(other[where])
        case _:
            del container[key]
    return tree


@given(JSON)
def test_any_json_is_no_schedule(tree: Any) -> None:
    for text in (json.dumps(tree), json.dumps({**GOOD, "operation": tree})):
        with pytest.raises(ScheduleError) as error:
            from_json(text, MACHINES)
        assert "\n" not in str(error.value)


@settings(suppress_health_check=SLOW, max_examples=draws(80, 200))
@given(st.data())
def test_a_changed_schedule_is_read_or_refused(data: st.DataObject) -> None:
    """What is read can also be judged and written again."""
    tree = mutated(GOOD, data)
    try:
        machine, problem, schedule = from_json(json.dumps(tree), MACHINES)
    except ScheduleError:
        return
    assert from_json(to_json(schedule, problem), MACHINES)[1:] == (problem, schedule)
    check_schedule(schedule, machine, problem, load_device("h200"))


@settings(suppress_health_check=SLOW, max_examples=draws(80, 200))
@given(st.data())
def test_a_changed_device_is_read_or_refused(data: st.DataObject) -> None:
    """What is read gives schedules a time, without a warning."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "chip.json")
        path.write_text(json.dumps(mutated(H200, data)))
        try:
            device = load_device(path)
        except DeviceError:
            return
    for schedule, machine, problem in ((SIMT, Simt(), PROBLEM), (HOPPER, Hopper(), HOPPER_PROBLEM)):
        program = schedule.program(machine, problem.operation)
        assert np.isfinite(cost(program, problem.sizes, device).seconds)


@given(JSON)
def test_any_json_is_no_measurement(tree: Any) -> None:
    with pytest.raises(StoreError):
        Measurement.from_json(json.dumps(tree))


WORD = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12
).filter(lambda word: not word.startswith("-"))


@settings(
    suppress_health_check=[*SLOW, HealthCheck.function_scoped_fixture], max_examples=draws(20, 50)
)
@given(WORD, st.sampled_from(("--fix", "--machine", "--dtype", "--layout", "--device", "-m")))
@pytest.mark.usefixtures("folder")
def test_any_word_as_an_option(word: str, option: str) -> None:
    known = {*MACHINES, *DEVICES, "f32", "f64", "f16", "bf16", "nn", "nt", "tn", "tt"}
    if word in known or (option == "-m" and any(c.isdigit() for c in word)):
        return
    complaint(["search", "matmul", option, word])


# Python's own.


def test_a_chip_of_one_sm_has_a_time() -> None:
    """No cluster fits it, so none of what is divided by their number is right, nor warns."""
    small = load_device("h200").with_values(sms=1)
    assert "on an SM" in str(explain(HOPPER, Hopper(), HOPPER_PROBLEM, small))


def test_what_is_installed_by_hand_comes_from_here() -> None:
    """No index has this package: the way is the checkout, or the wheel."""
    assert how_to_install() == f'pip install ".[gpu]" in {Path(__file__).parent.parent}'


# Ctrl-C.


def test_the_script_begins_where_the_module_does() -> None:
    """Both load the command line within what tells Ctrl-C in a line."""
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)["project"]["scripts"] == {"tinygpu": "tinygpu.__main__:main"}


INTERRUPTED = """
import importlib.abc, os, signal, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
sys.meta_path.insert(0, Finder())
sys.argv = ["tinygpu", {words}]
from tinygpu.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("typer.main", "'machines'"),
        ("numpy", "'machines'"),
        ("tinygpu.cli", "'machines'"),
        ("tinygpu.machines.hopper", "'machines'"),
        ("tinygpu.cli.demo", "'machines'"),
        ("rich.table", "'machines'"),
        ("tinygpu.space.space", "'search', 'matmul', '-m', '8'"),
    ],
)
def test_ctrl_c_at_the_start(module: str, words: str) -> None:
    """While the command line is loaded, and while a command loads what it needs."""
    code = INTERRUPTED.format(module=module, words=words)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stderr == "error: interrupted; files written before are whole\n"
    assert run.returncode in (130, -signal.SIGINT)  # which a shell calls 130, too
    assert run.stdout == ""
