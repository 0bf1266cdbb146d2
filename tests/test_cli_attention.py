"""Attention on the command line: how its sizes are said, and what each command says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.sample import some
from tinygpu.cli import app
from tinygpu.cli.sizes import sizes_of, texts_of
from tinygpu.devices.device import load_device
from tinygpu.errors import OperationError
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES
from tinygpu.machines.ampere_attention import STARTS as WARPS
from tinygpu.machines.attention import STARTS
from tinygpu.meaning.interpret import tile_of
from tinygpu.term.operation import Problem, attention
from tinygpu.term.schedule import Schedule, from_json, to_json

AXES = attention().axes
SIZES = "-b 2 --heads 4 --kv-heads 2 -m 100 -n 130 -d 64"
PLAIN = {**STARTS["fa2"], "turns": "none"}
ASK = "ask attention consumers==2"
ON_A100 = {**WARPS["few keys"], "depth": 64, "raster": 1}


def tinygpu(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def said(*words: object) -> str:
    result = tinygpu(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def legal(tmp_path: Path) -> Path:
    """The schedule file of a named point, causal, with grouped heads."""
    machine = MACHINES["attention"]
    problem = Problem.of(attention(mask="causal"), l=4, h=8, g=4, m=512, n=512, d=128, e=128)
    path = tmp_path / "causal.json"
    path.write_text(to_json(Schedule.of(machine, PLAIN), problem, device="h200"))
    return path


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ("b=2 heads=32 kv-heads=8 d=64", {"l": 2, "h": 8, "g": 4, "d": 64, "e": 64}),
        ("batch=2 heads=32", {"l": 2, "h": 32, "g": 1}),
        ("kv-heads=8 heads=16", {"h": 8, "g": 2}),
        ("heads=16 heads=8 kv-heads=4", {"h": 4, "g": 2}),
        ("l=3 h=2 g=5 d=64 e=128", {"l": 3, "h": 2, "g": 5, "d": 64, "e": 128}),
        ("kv-heads=8 m=3", {"h": 8, "m": 3}),
        ("e=64 d=128", {"d": 128, "e": 64}),
    ],
)
def test_words_are_sizes_of_axes(given: str, sizes: dict[str, int]) -> None:
    assert sizes_of("attention", AXES, given.split()) == sizes


def test_heads_of_a_bundle_may_be_several() -> None:
    given = ["heads=8,16", "m=1:64"]
    assert texts_of("attention", AXES, given) == {"h": "8,16", "g": "1", "m": "1:64"}
    with pytest.raises(OperationError, match="-d 64,128: give one head dimension"):
        texts_of("attention", AXES, ["d=64,128"])


def test_a_matmul_has_no_heads() -> None:
    with pytest.raises(OperationError, match="matmul has no axis kv-heads; its sizes are -m, -n"):
        sizes_of("matmul", ("m", "n", "k"), ["kv-heads=2"])


@pytest.mark.usefixtures("believed")
@pytest.mark.parametrize(
    ("words", "kind"),
    some(
        [
            ("--causal", {"mask": "causal"}),
            ("--mask causal", {"mask": "causal"}),
            ("--lse", {"lse": True}),
            ("", {}),
            ("--window 40 0", {"mask": "window:40:0"}),
            ("--mask window:3:20 --window 3 20 --lse", {"mask": "window:3:20", "lse": True}),
        ],
        5,
    ),
)
def test_schedules_are_searched_by_heads(words: str, kind: dict[str, Any], tmp_path: Path) -> None:
    """The file that is written has the problem that was said."""
    given: list[object] = ["--kv-heads", 2, "-m", 100, "-n", 130, "-d", 64, *words.split()]
    given += [word for name, value in PLAIN.items() for word in ("--fix", f"{name}={value}")]
    said("search", "attention", "-b", 2, "--heads", 4, *given, "--top", 1, "--out", tmp_path)
    machine, problem, _ = from_json(next(tmp_path.glob("*1.json")).read_text(), MACHINES)
    assert machine.name == "attention"
    assert problem == Problem.of(attention(**kind), l=2, h=2, g=2, m=100, n=130, d=64, e=64)


def test_a_chip_before_hopper_has_a_machine_of_its_own(tmp_path: Path) -> None:
    """A search for it takes the machine that it can run; the file is checked, emitted and run."""
    fixed = [word for name, value in ON_A100.items() for word in ("--fix", f"{name}={value}")]
    where = ["--device", "a100", "--top", 1, "--out", tmp_path]
    said("search", "attention", *SIZES.split(), "--causal", *fixed, *where)
    path = next(tmp_path.glob("*1.json"))
    machine, _, schedule = from_json(path.read_text(), MACHINES)
    assert machine.name == "ampere_attention"
    assert dict(schedule.decisions) == ON_A100
    text = said("check", path)
    assert "no deadlock, no race: proved for every D, N and every number of tiles" in text
    assert "mask cover proved for every m, n" in text
    said("emit", path, "-o", tmp_path / "warps.ptx")
    assert ".target sm_80" in (tmp_path / "warps.ptx").read_text()
    small = ["-b", 1, "--heads", 2, "--kv-heads", 1, "-m", 65, "-n", 70, "-d", 64]
    assert json.loads(said("run", path, "--backend", "interpreter", *small, "--json"))["right"]


def test_commands_that_take_its_file(legal: Path, tmp_path: Path) -> None:
    """Check proves and computes it, emit writes it."""
    text = said("check", legal)
    assert "no deadlock, no race: proved for every D, N and every number of tiles" in text
    assert "it computes its operation: tested" in text
    said("emit", legal, "-o", tmp_path / "causal.ptx")
    assert "wgmma" in (tmp_path / "causal.ptx").read_text()


def test_it_is_run_at_sizes_that_are_said(legal: Path) -> None:
    small = ["-b", 1, "--heads", 2, "--kv-heads", 1, "-m", 65, "-n", 70, "-d", 64]
    tree = json.loads(said("run", legal, "--backend", "interpreter", *small, "--json"))
    assert tree["right"]
    assert tree["sizes"] == {"l": 1, "h": 1, "g": 2, "m": 65, "n": 70, "d": 64, "e": 64}


def test_tiles_of_heads_are_found_without_all_heads() -> None:
    """Trips depend on queries and keys: 1024 heads of 1024 batches are not gone through."""
    machine = MACHINES["attention"]
    program = Schedule.of(machine, STARTS["fa3"]).program(machine, attention(mask="causal"))
    found = [tile_of(program, axis) for axis in "lhgmn"]
    assert found == [*[(1, False)] * 3, (128, False), (128, True)]


BAD = {
    f"{ASK} -b 4 --heads 30 --kv-heads 8 -m 9 -n 9 -d 64": "multiple of kv heads; give --heads 24 "
    "or --heads 32",
    f"{ASK} -b 4 --heads 3 --kv-heads 8 -m 9 -n 9 -d 64": "give --heads 8",
    f"{ASK} -b 4 --heads 3 --kv-heads 0 -m 9 -n 9 -d 64": "--kv-heads: '0' is no size",
    f"{ASK} -b 4 --heads x -m 9 -n 9 -d 64": "--heads: 'x' is no size",
    f"{ASK} -b 4 --kv-heads 8 -m 9 -n 9 -d 64": "--heads not given; give each size, as --heads 32",
    f"{ASK} --heads 8": "-b and -m and -n and -d not given; give each size, as -b 4 -m 4096 -n 409",
    f"{ASK} -k 8": "attention has no axis k; its sizes are -b, --heads, --kv-heads, -m, -n, -d, -e",
    f"{ASK} -b 4 --heads 8 -m 0 -n 9 -d 64": "-m: '0' is no size; give a whole number, at least 1",
    f"{ASK} -b 4 --heads 8 -m 9 -n 9 -d 100": "a multiple of 8, as TMA's lines are of 16 B",
    f"{ASK} -b 4 --heads 8 -m 9 -n 9 -d 264": "d is 264; a head dimension is a multiple of 8",
    f"{ASK} -b 4 --heads 8 -m 9 -n 9 -d 64 -e 12": "e is 12; a head dimension is a multiple of 8",
    f"{ASK} {SIZES} --dtype e5m2": "dtype e5m2; there are f16, bf16, f32, e4m3; convert the inputs",
    f"{ASK} {SIZES} --dtype fp8": "dtype fp8: known are",
    f"{ASK} {SIZES} --dtype f32": "known are bf16, f16",
    f"{ASK} {SIZES} --mask prefix": "there are none, causal and window:LEFT:RIGHT",
    f"{ASK} {SIZES} --window -1 0": "mask 'window:-1:0'; there are none, causal and window:LEFT:",
    f"{ASK} {SIZES} --window 1 x": "'--window': Input should be a valid integer",
    f"{ASK} {SIZES} --causal --window 1 0": "--window: --causal is another; give one of them",
    f"{ASK} {SIZES} --mask window:1:1 --window 1 0": "--window: --mask window:1:1 is another; give",
    f"{ASK} {SIZES} --causal --mask none": "--causal: --mask none is another; give one of them",
    f"{ASK} {SIZES} --device a100 --machine attention": "is of sm_90, and a100 is sm_80; or choose "
    "another --device",
    f"{ASK} {SIZES} --machine hopper": "operation attention; known are matmul",
    f"{ASK} {SIZES} --layout nt": "it is of matmul and grouped and rmsnorm_matmul; it takes "
    "--dtype, --causal",
    "ask softmax warps==2 -i 4 -j 4 --lse": "--lse: softmax has none, it is of attention",
    "ask softmax warps==2 -i 4 -j 4 --causal": "--causal: softmax has none, it is of attention",
    f"search attention {SIZES} -d 100": "as TMA's lines are of 16 B",
    "dispatch attention -b 1 --heads 4 -m 64:256 -n 9 -d 100 --out b --no-measure": "of 16 B",
    "run causal.json --heads 30 --kv-heads 8": "give --heads 24 or --heads 32",
}


@pytest.mark.parametrize("words", BAD)
def test_mistakes_are_one_line(words: str, legal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(legal.parent)
    result = tinygpu(*words.split(" "))
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    (line,) = result.stderr.strip().splitlines()
    assert BAD[words] in line


def test_the_refusal_of_sizes_is_what_laws_say() -> None:
    """A named point is illegal at head dimensions that the machine refuses; else one is legal."""
    machine, device = MACHINES["attention"], load_device("h200")
    for d in (8, 64, 96, 100, 128, 136, 256, 264):
        problem = Problem.of(attention(), l=1, h=1, g=1, m=64, n=64, d=d, e=d)
        point = STARTS["fa3" if d <= 128 else "256 dimensions"]
        broken = check_schedule(Schedule.of(machine, point), machine, problem, device)
        try:
            machine.check_sizes(problem.sizes)
        except OperationError:
            assert broken
        else:
            assert not broken
