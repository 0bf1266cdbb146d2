"""The wheel ``tinygpu-ptx``: the emulator's own files, installed where nothing else is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, cast
from zipfile import ZipFile

import pytest
import typer

from tests import pages
from tests.test_ptx_twins import TWINS
from tinygpu.cli import app
from tinygpu.codegen.emulator.command import options

ROOT = Path(__file__).parent.parent
EMULATOR = ROOT / "codegen/emulator"
README = EMULATOR / "README.md"
RACE, LINE = TWINS["no barrier between warps"].text(faulty=True)
GOOD, _ = TWINS["no barrier between warps"].text(faulty=False)
SAME, _ = TWINS["several warps store the same value"].text(faulty=True)
ARRAYS = ("--arg", "x=u32[128]", "--arg", "y=u32[128]", "--block", "64")


def pip(*words: object) -> str:
    """Run pip without the network."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with the backend that the extra ``dev`` installs."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", folder, EMULATOR)
    [built] = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def variables(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Install the wheel beside NumPy and ml_dtypes alone; return a process's variables for it."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    for name in ("numpy", "ml_dtypes"):
        found = distribution(name)
        for top in {path.parts[0] for path in found.files or ()} - {".."}:
            (packages / top).symlink_to(str(found.locate_file(top)))
    pip("--python", folder / "bin/python", "install", "--no-index", wheel)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return kept | {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def tool(
    folder: Path, variables: dict[str, str], words: Sequence[str], text: str = GOOD
) -> tuple[int, str]:
    (folder / "k.ptx").write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["tinygpu-ptx", *words], cwd=folder, env=variables, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def test_its_files_are_those_of_the_repository(wheel: Path) -> None:
    """It has no other dependency, and the version of the project."""
    with ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    [about] = [data.decode() for name, data in held.items() if name.endswith("METADATA")]
    assert re.findall(r"Requires-Dist: ([\w-]+)", about) == ["ml-dtypes", "numpy"]
    assert f"Version: {distribution('tinygpu').version}\n" in about
    assert about.endswith(README.read_text(encoding="utf-8"))
    files = {path.name: path for path in (*EMULATOR.glob("*.py"), EMULATOR / "forms.txt")}
    files |= {n: ROOT / "tinygpu" / n for n in ("errors.py", "py.typed")}
    files["LICENSE"] = ROOT / "LICENSE"
    inside = {n.removeprefix("tinygpu_ptx/"): d for n, d in held.items() if "dist-info" not in n}
    assert inside == {name: path.read_bytes() for name, path in files.items()}


def test_building_leaves_nothing_behind(wheel: Path) -> None:
    assert wheel.exists()
    assert {path.suffix for path in EMULATOR.iterdir() if path.name != "__pycache__"} == {
        ".py", ".txt", ".toml", ".md",
    }  # fmt: skip


def test_an_empty_environment_is_enough(tmp_path: Path, variables: dict[str, str]) -> None:
    """The package runs there, which has no other packages than these three."""
    code = """
from importlib.metadata import distributions
import numpy as np, tinygpu_ptx
print(sorted(d.metadata["Name"] for d in distributions()))
text = open("k.ptx").read()
memory, x, y = tinygpu_ptx.Memory(), np.arange(128, dtype="u4"), np.zeros(128, "u4")
held = [memory.allocate(x), memory.allocate(y)]
print(tinygpu_ptx.launch(tinygpu_ptx.Module.parse(text), "k", 1, 64, held, memory).findings, y[:4])
try:
    tinygpu_ptx.Module.parse("no PTX")
except tinygpu_ptx.errors.ProgramError as error:
    print(type(error).__module__)
try:
    import tinygpu
except ImportError:
    print("no tinygpu")
"""
    (tmp_path / "k.ptx").write_text(GOOD, encoding="utf-8")
    done = subprocess.run(
        ["python", "-c", code], cwd=tmp_path, env=variables, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        "['ml_dtypes', 'numpy', 'tinygpu-ptx']",
        "() [32 33 34 35]",
        "tinygpu_ptx.errors",
        "no tinygpu",
    ], done.stderr


@pytest.mark.parametrize(("text", "status"), [(GOOD, 0), (RACE, 1), (SAME, 3)])
def test_the_command_says_what_tinygpu_ptx_says(
    tmp_path: Path, variables: dict[str, str], text: str, status: int
) -> None:
    code, out = tool(tmp_path, variables, ("check", "k.ptx", *ARRAYS), text)
    assert code == status, out
    words = ("-m", "tinygpu", "ptx", "k.ptx", *ARRAYS)
    whole = {**os.environ, "PYTHONPATH": str(ROOT)}
    other = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=whole, capture_output=True, text=True
    )
    assert (code, out) == (other.returncode, other.stdout)


def test_json_sarif_and_arrays(tmp_path: Path, variables: dict[str, str]) -> None:
    more = ("--json", "--sarif", "k.sarif", "--save", "y=y.npy")
    code, out = tool(tmp_path, variables, ("check", "k.ptx", *ARRAYS, *more), RACE)
    assert code == 1
    assert f'"line": {LINE}' in out
    assert f'"startLine": {LINE}' in (tmp_path / "k.sarif").read_text(encoding="utf-8")
    assert (tmp_path / "y.npy").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "required: command, file; see tinygpu-ptx --help"),
        (("chek", "k.ptx"), "invalid choice: 'chek'"),
        (("check", "no.ptx"), "no.ptx: No such file"),
        (("check", "."), "Is a directory"),
        (("check", "y.npy"), "give PTX, not a cubin"),
        (("check", "README"), "PTX line 1: no ';' ends"),
        (("check", "k.ptx", *ARRAYS, "--kernel", "no"), "kernel no: the module has k"),
        (("check", "k.ptx", *ARRAYS, "--kern", "k"), "unrecognized arguments: --kern"),
        (("check", "k.ptx", *ARRAYS, "--limit", "few"), "invalid int value: 'few'"),
        (("check", "k.ptx", "--arg", "x"), "give NAME=VALUE"),
        (("check", "k.ptx", *ARRAYS, "--sarif", "no/k.sarif"), "no/k.sarif: No such file"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, variables: dict[str, str], words: tuple[str, ...], says: str
) -> None:
    (tmp_path / "README").write_text("garbage", encoding="utf-8")
    (tmp_path / "y.npy").write_bytes(b"\x93NUMPY")
    code, out = tool(tmp_path, variables, words)
    assert (code, out.count("\n")) == (2, 1), out
    assert out.startswith("error: ")
    assert says in out


def test_both_command_lines_have_the_same_options() -> None:
    """Their names, what they are if left out, and their help."""
    command = cast("Any", typer.main.get_command(app)).commands["ptx"]
    whole = {p.opts[0]: (p.default or None, p.help) for p in command.params}
    alone = {
        a.option_strings[0] if a.option_strings else a.dest: (a.default or None, a.help)
        for a in options()._actions
        if a.dest not in ("command", "help")
    }
    assert alone == whole


def test_the_readme_is_true(tmp_path: Path, variables: dict[str, str]) -> None:
    """Its programs and commands print there what it says."""
    text = README.read_text(encoding="utf-8")
    assert text == pages.true_page(text, tmp_path, variables)
