"""A search that is killed, meets a full disk or another search: nothing is lost, and it goes on.

The GPU is pretended: a worker in the same process, which predicts with the cost model.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fake_gpu import Card
from tests.sample import draws, some
from tests.test_cli import complaint
from tests.test_measuring import OPEN, fixes, tinygpu
from tinygpu.cli import app
from tinygpu.cli.folder import claimed
from tinygpu.machines.simt import LADDER
from tinygpu.search.store import Store

FEW = {name: OPEN[name] for name in ("tile_m", "tile_n", "raster", "vector_c")}
WORDS = ["search", "matmul", "--machine", "simt", "-m", "256", "-n", "256", "-k", "256",
         *fixes({**LADDER["tuned"], **FEW})]  # fmt: skip
MEASURED = [*WORDS, "--measure", "--evaluations", "24", "--top", "3", "--out"]
RANKED = [*WORDS, "--top", "3", "--out"]


class Pretended:
    """A worker that answers at once, and always the same."""

    def __init__(self, command: Any = ()) -> None:
        pass

    def __enter__(self) -> Pretended:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, limit_seconds: float, request: Any = None) -> None:
        pass

    def ask(self, request: Any, limit_seconds: float) -> dict[str, Any]:
        doing = request["do"]
        if doing == "hello":
            return {"arch": "sm_90a", "device": "pretended", "driver": "1"}
        if doing == "peers":
            return {"names": []}
        time.sleep(0.002)
        if doing == "validate":
            return {"error": 0.5}
        told = {"spread": 0.01, "rounds": request["rounds"], "clock_mhz": 1, "error": 0.5}
        names = request["kernels"]
        times = {name: 1e-5 + 1e-8 * (zlib.crc32(name.encode()) % 1000) for name in names}
        return {"timings": {name: {"seconds": s, **told} for name, s in times.items()}}


@pytest.fixture
def pretended(card: Card, believed: None) -> None:
    card.measuring(worker=Pretended)


def result_of(out: Path) -> dict[str, Any]:
    """The files of a finished search, less who made it and when."""
    found = {p.name: json.loads(p.read_text()) for p in out.glob("*.json")}
    del found["search.json"]["provenance"]
    return found


def child(words: list[Any]) -> Any:
    """Run a command in a process of its own, which has imported all already."""

    def run() -> None:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        app([str(word) for word in words])

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    return process


def whole(out: Path) -> int:
    """Check that what is there is whole; return how many measurements are kept."""
    for path in out.glob("*.json"):
        json.loads(path.read_text())
    if not (out / "store.db").exists():
        return 0
    database = sqlite3.connect(out / "store.db")
    assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    database.close()
    with Store(out / "store.db") as store:
        return len(store)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("words", "kills"),
    [(MEASURED, draws(3, 16)), (RANKED, draws(2, 4))],
    ids=["measured", "ranked"],
)
def test_killed_at_any_moment_it_goes_on(
    words: list[str], kills: int, pretended: None, tmp_path: Path
) -> None:
    """By SIGKILL or SIGTERM, in one folder: what was measured stays, and the end is the same."""
    begun = time.monotonic()
    alone = child([*words, tmp_path / "alone"])
    alone.join()
    seconds = time.monotonic() - begun
    assert alone.exitcode == 0
    wanted, out = result_of(tmp_path / "alone"), tmp_path / "killed"
    rng, killed, kept = np.random.default_rng(7), 0, 0
    while killed < kills:
        process = child([*words, out])
        time.sleep(float(rng.uniform(0, seconds)))
        os.kill(process.pid, (signal.SIGKILL, signal.SIGTERM)[killed % 2])
        process.join()
        killed += 1
        before, kept = kept, whole(out)
        assert kept >= before
        if process.exitcode == 0:  # it was quicker: the next begins anew
            assert result_of(out) == wanted
            for path in out.iterdir():
                path.unlink()
            kept = 0
    last = child([*words, out])
    last.join()
    assert last.exitcode == 0
    assert result_of(out) == wanted
    assert not list(out.rglob(".*"))  # nothing half-written, no lock


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("kib", some([8, 40, 64], 3))
def test_on_a_full_disk_it_says_so_and_goes_on(
    kib: int, pretended: None, small_disk: Path, tmp_path: Path
) -> None:
    """One line with the way out; with space again the same command does the rest."""

    def sized(size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(small_disk)], check=True)

    out = small_disk / "out"
    sized(f"{kib}k")
    told = complaint(tinygpu(*MEASURED, out))
    assert str(small_disk) in told
    assert "free some space" in told
    sized("4m")
    whole(out)
    result = tinygpu(*MEASURED, out)
    assert result.exit_code == 0, result.output
    assert tinygpu(*MEASURED, tmp_path / "alone").exit_code == 0
    assert result_of(out) == result_of(tmp_path / "alone")


def test_a_disk_that_fills_as_the_result_is_written(
    pretended: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier result stays, to the byte."""
    out = tmp_path / "out"
    assert tinygpu(*RANKED, out).exit_code == 0
    before = {p.name: p.read_bytes() for p in out.iterdir()}

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert "free some space" in complaint(tinygpu(*RANKED, out))
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


HOLDER = """
import sys, time
from pathlib import Path
from tinygpu.cli.folder import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_of_two_says_who_is_there(tmp_path: Path) -> None:
    """Process, host and time, status 1; once that one is killed, its lock holds nobody up."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            for words in (RANKED, ["demo", "--no-measure", "--layer", "o", "--out"]):
                told = complaint(tinygpu(*words, tmp_path), status=1)
                assert f"process {holder.pid} on {socket.gethostname()}, since 20" in told
                assert "give another folder" in told
        finally:
            holder.kill()
    assert json.loads((tmp_path / ".tinygpu.lock").read_text())["pid"] == holder.pid
    with claimed(tmp_path):
        assert json.loads((tmp_path / ".tinygpu.lock").read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_claimed_loses_what_was_half_written(tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    for name in (".search.json.x1.part", "plots/.a.png.x2.part"):
        (tmp_path / name).write_text("half")
    (tmp_path / "mine.part").write_text("whole")
    with claimed(tmp_path):
        assert [p.name for p in tmp_path.rglob("*.part")] == ["mine.part"]


def test_a_second_search_into_a_folder_asks(tmp_path: Path) -> None:
    """Another folder or --replace; the same search goes on, with more of the best as well."""
    assert tinygpu(*RANKED, tmp_path).exit_code == 0
    (tmp_path / "report.html").write_text("of the first")
    assert tinygpu(*WORDS, "--top", "4", "--out", tmp_path).exit_code == 0
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    other = [word if word != "256" else "512" for word in RANKED]
    told = complaint(tinygpu(*other, tmp_path), status=1)
    assert "of which sizes differs; give another folder, or --replace" in told
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert tinygpu(*other[:-1], "--replace", "--out", tmp_path).exit_code == 0
    assert json.loads((tmp_path / "search.json").read_text())["sizes"]["m"] == 512
    assert not (tmp_path / "report.html").exists()
    (tmp_path / "search.json").unlink()
    (tmp_path / "report.html").write_text("of a demo")
    assert "--replace" in complaint(tinygpu(*other, tmp_path), status=1)
