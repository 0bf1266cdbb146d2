"""The command line: what each command prints, and that every mistake is one line with a way out."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner, Result

import tinygpu as package
from tests.conftest import why_no_gpu
from tests.fake_gpu import Card
from tinygpu.cli import app
from tinygpu.cli.console import write
from tinygpu.errors import AssemblyError, LaunchError
from tinygpu.legality.laws import LAWS
from tinygpu.machines import MACHINES
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.schedule import Schedule, from_json, to_json

PROBLEM = Problem.of(matmul(), m=256, n=256, k=256)
OPEN = ("raster", "pad_a", "issue")
FIX = [
    part
    for name, value in LADDER["multi-stage"].items()
    if name not in OPEN
    for part in ("--fix", f"{name}={value}")
]
SIZES = ["-m", "256", "-n", "256", "-k", "256"]
ASKED = ["search", "matmul", *SIZES]
SEARCH = [*ASKED, *FIX, "--top", "3"]


def tinygpu(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def complaint(result: Result, status: int = 2) -> str:
    """The one line of a mistake: on standard error, no traceback, the right status."""
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.exit_code == status
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.fixture
def legal(tmp_path: Path) -> Path:
    path = tmp_path / "legal.json"
    path.write_text(to_json(Schedule.of(Simt(), LADDER["multi-stage"]), PROBLEM))
    return path


@pytest.fixture
def illegal(tmp_path: Path) -> Path:
    chosen = {**LADDER["multi-stage"], "tile_m": 256, "tile_n": 256, "ctas_per_sm": 16}
    path = tmp_path / "illegal.json"
    path.write_text(to_json(Schedule.of(Simt(), chosen), PROBLEM))
    return path


def test_loading_is_light() -> None:
    """``tinygpu --help`` loads neither the solver nor plots nor CuPy, and rich only to print."""
    code = "import sys, tinygpu.cli; print([m for m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    loaded = set(run.stdout.replace("'", "").strip("[]\n").split(", "))
    assert "tinygpu.cli" in loaded
    assert not {"z3", "matplotlib", "cupy", "rich.console", "rich.progress"} & loaded


def test_the_package_has_the_names_that_it_lists() -> None:
    """Each name loads on first use and is what its home calls so; others are unknown."""
    names = {name: getattr(package, name) for name in package.__all__}
    assert names["matmul"] is matmul
    assert all(value is not None for value in names.values())
    with pytest.raises(AttributeError, match="no attribute 'matmull'"):
        _ = package.matmull


def test_module_runs_as_the_command() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tinygpu", "machines"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0
    assert "simt" in run.stdout


def test_machines_are_listed_shown_and_written_as_json() -> None:
    assert "simt" in tinygpu("machines").stdout
    assert tinygpu("machines", "simt").stdout.strip() == str(Simt())
    [tree] = json.loads(tinygpu("machines", "simt", "--json").stdout)
    assert tree["decisions"]["tile_m"]["values"] == list(Simt.tile_m.values)


def test_search_prints_counts_and_writes_schedules(tmp_path: Path) -> None:
    """The table, the raw, legal and ranked counts, and files that the other commands take."""
    result = tinygpu(*SEARCH, "--out", tmp_path / "found")
    assert result.exit_code == 0, result.stderr
    assert "45 schedules" in result.stdout
    assert "admissible" in result.stdout
    names = sorted(path.name for path in (tmp_path / "found").iterdir())
    assert names == ["01.json", "02.json", "03.json", "search.json"]
    machine, problem, _ = from_json((tmp_path / "found" / "01.json").read_text(), MACHINES)
    assert (machine.name, problem) == ("simt", PROBLEM)
    kept = json.loads((tmp_path / "found" / "search.json").read_text())
    assert kept["provenance"]["commit"]
    assert tinygpu("check", tmp_path / "found" / "01.json").exit_code == 0


def test_search_as_json_is_in_order() -> None:
    tree = json.loads(tinygpu(*SEARCH, "--json").stdout)
    times = [row["predicted_seconds"] for row in tree["best"]]
    assert times == sorted(times)
    assert tree["raw"] == 45 >= tree["admissible"] >= len(times) == 3
    first = tree["best"][0]
    assert first["bottleneck"] == max(first["parts_seconds"], key=first["parts_seconds"].get)


@pytest.mark.usefixtures("believed")
def test_a_known_fault_of_ptxas_is_named(
    legal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By search, as text and as JSON, and by emit where it assembles."""
    fault = "ptxas 13.0.88 (/bin/ptxas): it may drop a wait"
    monkeypatch.setattr("tinygpu.codegen.run.assemble.known_fault", lambda: fault)
    assert fault in " ".join(tinygpu(*SEARCH).stdout.split())
    assert json.loads(tinygpu(*SEARCH, "--json").stdout)["ptxas_fault"] == fault
    ptx, cubin = tmp_path / "k.ptx", tmp_path / "k.cubin"
    assembled = tinygpu("emit", legal, "-o", ptx, "--cubin", cubin)
    assert fault in assembled.stdout
    assert "waits of its SASS: " in " ".join(assembled.stdout.split())
    assert fault not in tinygpu("emit", legal, "-o", ptx).stdout
    monkeypatch.setattr("tinygpu.codegen.run.assemble.known_fault", lambda: "")
    assert "ptxas_fault" not in json.loads(tinygpu(*SEARCH, "--json").stdout)


@pytest.mark.usefixtures("believed")
def test_search_may_ask_ptxas_before_one_is_trusted() -> None:
    """The same schedules as by the term, with the times of their code, in order."""
    words = (*SEARCH[:-1], "45", "--json", "--spread", ",".join(OPEN))
    by_term = json.loads(tinygpu(*words, "--climb").stdout)["best"]
    by_code = json.loads(tinygpu(*words, "--assemble").stdout)
    times = [row["predicted_seconds"] for row in by_code["best"]]
    assert times == sorted(times)
    assert not by_code["proven"]
    found = ({str(row["decisions"]) for row in rows} for rows in (by_code["best"], by_term))
    assert len(set.intersection(*found)) == len(times) > 3


def test_fix_takes_several_values() -> None:
    tree = json.loads(tinygpu(*SEARCH, "--fix", "raster=2,4", "--json").stdout)
    assert tree["raw"] == 18
    assert {row["decisions"]["raster"] for row in tree["best"]} <= {2, 4}


def test_an_empty_space_says_why() -> None:
    words = ["search", "matmul", *SIZES, *FIX, "--fix", "ctas_per_sm=16"]
    assert "ctas_per_sm" in complaint(tinygpu(*words))


def test_check_proves_a_legal_schedule(legal: Path) -> None:
    result = tinygpu("check", legal)
    assert result.exit_code == 0
    assert "proved for every K and every number of tiles" in result.stdout
    assert json.loads(tinygpu("check", legal, "--json").stdout)["legal"] is True


def test_check_names_the_laws_that_are_broken(illegal: Path) -> None:
    """Status 1, and each law in a line with what it got and the way out."""
    result = tinygpu("check", illegal)
    assert result.exit_code == 1
    assert "residency" in result.stdout
    assert "ctas_per_sm 16" in result.stdout
    tree = json.loads(tinygpu("check", illegal, "--json").stdout)
    assert not tree["legal"]
    assert "residency" in {violation["law"] for violation in tree["violations"]}


@pytest.mark.parametrize("command", ["emit", "run", "explain"])
def test_an_illegal_schedule_goes_no_further(command: str, illegal: Path) -> None:
    assert "threads" in complaint(tinygpu(command, illegal))


def test_emit_writes_and_assembles(legal: Path, tmp_path: Path) -> None:
    ptx, cubin = tmp_path / "new" / "k.ptx", tmp_path / "k.cubin"
    result = tinygpu("emit", legal, "-o", ptx, "--cubin", cubin, "--arch", "sm_80")
    assert result.exit_code == 0, result.stderr
    assert ".target sm_80" in ptx.read_text()
    assert cubin.read_bytes()[:4] == b"\x7fELF"
    assert "registers a thread" in result.stdout
    assert tinygpu("emit", legal, "--arch", "sm_80").stdout.strip() == ptx.read_text().strip()


@pytest.mark.skipif(why_no_gpu() is None, reason="this machine has a GPU")
def test_what_needs_a_gpu_says_so_first(tmp_path: Path) -> None:
    """Before any search, and without a folder left behind."""
    folder = tmp_path / "out"
    said = complaint(tinygpu(*SEARCH, "--measure", "--out", folder))
    assert "no NVIDIA driver" in said
    assert not folder.exists()
    assert complaint(tinygpu("calibrate", "-o", tmp_path / "d.json"))
    assert not (tmp_path / "d.json").exists()


def test_doctor_has_a_row_for_everything() -> None:
    rows = json.loads(tinygpu("doctor", "--json").stdout)
    assert {"Python", "ptxas", "CuPy"} <= {row["what"] for row in rows}
    assert all(row["how"] for row in rows if row["missing"])
    assert "ptxas" in tinygpu("doctor").stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["machines", "sint"], "did you mean simt?"),
        (["machines", "hoper"], "did you mean hopper?"),
        (["search", "matmull"], "did you mean matmul?"),
        (["search", "matmul", "--machine", "simd"], "known are simt"),
        (["search", "matmul", "--dtype", "fp32"], "did you mean f32?"),
        (["search", "matmul", "--device", "h20"], "did you mean h200?"),
        (["search", "matmul", "--device", "none.json"], "tinygpu calibrate writes one"),
        (["search", "matmul", "-m", "0"], "at least 1"),
        (["search", "matmul", "-k", "-4"], "at least 1"),
        (["search", "matmul", "-n", "many"], "-n: 'many' is no size; give a whole number"),
        (["search", "matmul", "--machine", "hopper", "-m", "99999999999"], "at most 2147483647"),
        (["search", "matmul", "--machine", "hopper", "-m", "-5"], "at least 1"),
        (
            ["search", "matmul", *SIZES, "--machine", "hopper", "--dtype", "f32"],
            "choose dtype bf16",
        ),
        (["search", "matmul", "--layout", "tx"], "there are nn, nt, tn, tt"),
        (
            ["search", "matmul", *SIZES, "--machine", "hopper", "--fix", "tile_k=96"],
            "did you mean 64?",
        ),
        ([*ASKED, "--fix", "tile_x=64"], "did you mean tile_"),
        ([*ASKED, "--fix", "tile_m=65"], "did you mean 64?"),
        ([*ASKED, "--fix", "tile_m"], "decision=value"),
        (
            ["search", "matmul", *SIZES, "--fix", "tile_m=64", "--fix", "tile_m=8"],
            "--fix tile_m=64,8",
        ),
        (
            ["search", "matmul", *SIZES, "--machine", "blackwell"],
            "and h200 is sm_90a; or choose another",
        ),
        (
            ["search", "matmul", *SIZES, "--machine", "ampere", "-n", "1"],
            "single elements, as simt",
        ),
        ([*ASKED, "--measure"], "give --out"),
        (["search", "matmul", "--top", "0"], "--top"),
        (["search"], "tinygpu search --help"),
        (["serch"], "Did you mean 'search'?"),
        (["demo", "--layer", "qkw"], "did you mean qkv?"),
        (["check", "missing.json"], "missing.json: No such file"),
        (["check", "."], "it is a folder"),
        (["plot", "measured", "missing.db"], "no such file"),
    ],
)
def test_mistakes(words: list[str], told: str) -> None:
    """Unknown names with the nearest one, sizes, files: one line, status 2."""
    assert told in complaint(tinygpu(*words))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text[: len(text) // 2], "it may be truncated"),
        (lambda text: text.replace('"version": 1', '"version": 99'), "version 99"),
        (lambda text: text.replace('"simt"', '"tensor"'), "machine tensor: known are simt"),
        (lambda text: text.replace('"tile_m": 128', '"tile_m": 100'), "no value 100"),
        (lambda text: re.sub(r'"m": (\d+)', r'"m": \1.5', text), "every size is an int"),
        (lambda text: "[]", "tinygpu schedule"),
        (lambda text: "[" * 100_000, "nested too deeply"),
    ],
)
def test_bad_schedule_files(legal: Path, change: Any, told: str) -> None:
    """Truncated, of another version, of an unknown machine or value: the file and the way out."""
    text = legal.read_text()
    assert change(text) != text
    legal.write_text(change(text))
    line = complaint(tinygpu("check", legal))
    assert told in line
    assert str(legal) in line


def test_a_seed_is_not_negative(legal: Path) -> None:
    assert "--seed" in complaint(tinygpu("run", legal, "--seed", "-1"))


@pytest.mark.parametrize("words", [[], ["plot"]])
def test_no_command_shows_the_help(words: list[str]) -> None:
    """The help, status 2, and no empty error after it."""
    shown = tinygpu(*words)
    assert (shown.exit_code, shown.stderr) == (2, "")
    assert "Usage" in shown.stdout


def test_a_machine_stands_in_columns() -> None:
    """What an instruction moves begins in one column, however long its name."""
    for machine in MACHINES.values():
        lines = str(machine).split("  decisions")[0].split("  instructions\n")[1].splitlines()
        assert len({line.index(" seen by ") for line in lines if " seen by " in line}) == 1
        assert not any(line.endswith(" ") for line in str(machine).splitlines())


def test_a_binary_file_is_no_schedule(legal: Path) -> None:
    legal.write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in complaint(tinygpu("check", legal))


def test_no_ptxas(legal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """emit works without it; assembling says how to get it; demo says so before it searches."""

    def none() -> NoReturn:
        raise AssemblyError("ptxas: found neither in the wheel nor on PATH; pip install it")

    monkeypatch.setattr("tinygpu.codegen.run.assemble.find_ptxas", none)
    assert tinygpu("emit", legal, "-o", tmp_path / "k.ptx").exit_code == 0
    words = ("emit", legal, "-o", tmp_path / "k.ptx", "--cubin", tmp_path / "k.cubin")
    assert "pip install" in complaint(tinygpu(*words))
    assert "pip install" in complaint(tinygpu("demo", "--out", tmp_path / "report"))
    assert not (tmp_path / "report").exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk(legal: Path) -> None:
    assert "free some space" in complaint(tinygpu("emit", legal, "-o", "/dev/full"))
    assert os.path.exists("/dev/full")


def test_a_folder_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the way, a read-only file system: before the search begins."""

    def never(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("it searched")

    monkeypatch.setattr("tinygpu.search.exact.best.rank", never)
    (tmp_path / "file").write_text("")
    assert "choose another folder" in complaint(tinygpu(*SEARCH, "--out", tmp_path / "file" / "x"))

    def read_only(*_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.EROFS, "Read-only file system", "file.x7.part")

    monkeypatch.setattr("tempfile.mkstemp", read_only)
    told = complaint(tinygpu(*SEARCH, "--out", tmp_path / "out"))
    assert "read-only" in told
    assert f"{tmp_path / 'out'}" in told
    assert ".part" not in told


def test_files_are_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a" / "file", "before")

    def full(*_: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space") as caught:
        write(path, "after")
    assert caught.value.filename == str(path)
    assert path.read_text() == "before"
    assert list(path.parent.iterdir()) == [path]


def test_a_gpu_that_fails_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: Card
) -> None:
    """Out of memory while it measures: an earlier search is there as it was."""

    def failing(*_: Any) -> NoReturn:
        raise LaunchError("worker: GPU out of memory; free some or lower the sizes")

    assert tinygpu(*SEARCH, "--out", tmp_path).exit_code == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    card.arch()
    monkeypatch.setattr("tinygpu.codegen.run.measure.Campaign.__enter__", failing)
    line = complaint(tinygpu(*SEARCH, "--measure", "--replace", "--out", tmp_path))
    assert "out of memory" in line
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_an_interrupt_anywhere_else_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("tinygpu.cli.look.machine_named", stopped)
    assert "interrupted" in complaint(tinygpu("machines", "simt"), status=130)


def test_laws_are_listed_and_one_is_shown() -> None:
    """In words and in JSON; a wrong name is one line."""
    listed = tinygpu("laws", "--json")
    assert {law["name"] for law in json.loads(listed.stdout)} == {*LAWS}
    assert "tma_box" in tinygpu("laws").stdout
    shown = tinygpu("laws", "early").stdout
    assert all(said in shown for said in (LAWS["early"].sentence, "source: ", "mend: "))
    assert json.loads(tinygpu("laws", "early", "--json").stdout)["name"] == "early"
    wrong = tinygpu("laws", "tma_bx")
    assert wrong.exit_code == 2
    assert "did you mean tma_box?" in wrong.output
