from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tinygpu.codegen.emit import emit
from tinygpu.codegen.run import assemble as module
from tinygpu.codegen.run.assemble import (
    assemble,
    cache_folder,
    every_ptxas,
    find_ptxas,
    parse,
    ptxas_version,
)
from tinygpu.errors import AssemblyError
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.term.operation import matmul
from tinygpu.term.schedule import Schedule

EMPTY = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k() {
\tret;
}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of each test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder() / "cubin"


@pytest.mark.parametrize("point", LADDER)
def test_the_ladder_assembles_without_spills(point: str) -> None:
    """ptxas takes every named point, in registers that its CTAs can have, and spills none."""
    program = Schedule.of(Simt(), LADDER[point]).program(Simt(), matmul())
    cubin = assemble(emit(program), "sm_90a")
    assert not cubin.spills, cubin.messages
    allowed = 65536 // (program.threads * program.ctas_per_sm)
    assert 0 < cubin.registers <= min(255, allowed)
    assert cubin.bytes.startswith(b"\x7fELF")


def test_the_cache_gives_the_same_and_runs_nothing(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text is assembled once; another text, target or option is another cubin."""
    first = assemble(EMPTY, "sm_90a")
    assert len(list(own_cache.iterdir())) == 1
    run = module._run
    monkeypatch.setattr(module, "_run", None)
    assert assemble(EMPTY, "sm_90a") == first
    monkeypatch.setattr(module, "_run", run)
    assemble(EMPTY + "// other\n", "sm_90a")
    assemble(EMPTY, "sm_90a", extra=("-O1",))
    assemble(EMPTY.replace("sm_90a", "sm_90"), "sm_100")
    assert len(list(own_cache.iterdir())) == 4


def test_a_spoilt_cache_is_done_again(own_cache: Path) -> None:
    """A file that was cut short, and a folder that cannot be made, cost time only."""
    first = assemble(EMPTY, "sm_90a")
    (path,) = own_cache.iterdir()
    for spoilt in ("", "{", "{}", path.read_text()[:-20]):
        path.write_text(spoilt)
        assert assemble(EMPTY, "sm_90a").bytes == first.bytes
    path.unlink()
    own_cache.rmdir()
    own_cache.write_text("a file where the folder should be")
    assert assemble(EMPTY, "sm_90a").bytes == first.bytes


@pytest.mark.parametrize(
    ("text", "arch", "message"),
    [
        (EMPTY.replace("ret;", "no.such.op;"), "sm_90a", r"; line 5: `no\.such\.op;`"),
        (EMPTY.replace(".version 9.0", ".version 99.0"), "sm_90a", r"ptxas sm_90a: .*ersion"),
        (EMPTY, "sm_1", r"ptxas sm_1: .*sm_1"),
        ("", "sm_90a", r"ptxas sm_90a: "),
    ],
)
def test_refusals_take_one_line(text: str, arch: str, message: str) -> None:
    """ptxas's first error and the line that it is about."""
    with pytest.raises(AssemblyError, match=message) as caught:
        assemble(text, arch)
    assert "\n" not in str(caught.value)


def test_parse_takes_the_largest() -> None:
    """Of several entries the worst one counts; what is not said is 0."""
    line = "ptxas info    : Used {} registers, used 1 barriers, {} bytes smem\n"
    found = parse(line.format(40, 16) + line.format(33, 4096))
    assert (found["registers"], found["smem_bytes"]) == (40, 4096)
    assert found["spill_stores_bytes"] == 0
    assert set(parse("").values()) == {0}


def test_spills_are_seen() -> None:
    """Registers that are limited too far spill, and the report says so."""
    schedule = Schedule.of(Simt(), {**LADDER["2-D registers"], "ctas_per_sm": 4})
    cubin = assemble(emit(schedule.program(Simt(), matmul())), "sm_90a")
    assert cubin.spills
    assert cubin.registers <= 64


def fake_tool(folder: Path, script: str) -> Path:
    path = folder / "ptxas"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_ptxas_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the wheel, on PATH and where the toolkit is; the newest is taken, by its numbers."""
    folders = {name: tmp_path / name for name in ("wheel", "path", "home/bin", "local/cuda-13/bin")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    monkeypatch.setattr(module, "_wheel_folders", lambda: [folders["wheel"]])
    monkeypatch.setattr(module, "_INSTALLED", ((str(tmp_path / "local"), "cuda*/bin"),))
    monkeypatch.setenv("PATH", str(folders["path"]))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    with pytest.raises(AssemblyError, match="pip install nvidia-cuda-nvcc"):
        find_ptxas()
    mute = fake_tool(folders["wheel"], "exit 3")
    with pytest.raises(AssemblyError, match="does not answer --version"):
        find_ptxas()
    old = fake_tool(folders["path"], "echo V13.0.88")
    assert find_ptxas() == old
    newer = fake_tool(folders["home/bin"], "echo V13.5.37")
    assert find_ptxas() == newer
    newest = fake_tool(folders["local/cuda-13/bin"], "echo V13.10.2")
    assert every_ptxas() == ((newest, "13.10.2"), (newer, "13.5.37"), (old, "13.0.88"))
    (folders["wheel"] / "ptxas").unlink()
    (folders["wheel"] / "ptxas").symlink_to(newer)
    assert every_ptxas()[1] == (folders["wheel"] / "ptxas", "13.5.37")
    assert len(every_ptxas()) == 3
    newest.chmod(0o600)
    newer.chmod(0o600)
    assert find_ptxas() == old
    assert mute.parent == folders["wheel"]


def test_a_known_fault_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the ptxas that is used alone: which, what it does, in which versions, and the way out."""
    path = Path("/bin/ptxas")
    monkeypatch.setattr(module, "every_ptxas", lambda: ((path, "13.0.88"), (path, "12.9.1")))
    for part in ("ptxas 13.0.88 (/bin/ptxas)", "drop the wait", "13.0.48 to 13.0.88", "pip"):
        assert part in module.known_fault()
    monkeypatch.setattr(module, "every_ptxas", lambda: ((path, "13.1.80"), (path, "13.0.88")))
    assert module.known_fault() == ""

    def none() -> tuple[()]:
        raise AssemblyError("ptxas: none")

    monkeypatch.setattr(module, "every_ptxas", none)
    assert module.known_fault() == ""


def test_a_ptxas_that_is_none(tmp_path: Path) -> None:
    """A tool that does not answer --version, or is replaced, is noticed."""
    path = fake_tool(tmp_path, "exit 3")
    with pytest.raises(AssemblyError, match="does not answer --version"):
        ptxas_version(path)
    path = fake_tool(tmp_path, "echo 'release 13.1, V13.1.99'")
    os.utime(path, ns=(1, 1))
    assert ptxas_version(path) == "13.1.99"
