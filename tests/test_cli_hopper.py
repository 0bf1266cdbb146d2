"""The command line with ``hopper``: every command, its types and layouts, its GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fake_gpu import Card
from tests.test_cli import SIZES, tinygpu
from tinygpu.machines.ampere import Ampere
from tinygpu.machines.blackwell import Blackwell
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.machines.simt import Simt
from tinygpu.search.tuning.climb import why_no_gpu
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.schedule import Schedule, to_json


@pytest.fixture
def hopper(tmp_path: Path) -> Path:
    problem = Problem.of(matmul("bf16", layout="nt"), m=4096, n=4096, k=4096)
    path = tmp_path / "hopper.json"
    path.write_text(to_json(Schedule.of(Hopper(), STARTS["plain"]), problem))
    return path


def test_hopper_goes_through_every_command(hopper: Path, tmp_path: Path) -> None:
    """Explained with what relieves the bottleneck, proved, emitted for its architecture, run."""
    tree = json.loads(tinygpu("explain", hopper, "--json").stdout)
    worst = next(c for c in tree["causes"] if c["resource"] == tree["bottleneck"])
    assert worst["saves_seconds"] > 0
    assert min(lever["seconds"] for lever in worst["changed_by"]) < tree["seconds"]
    assert "changed by" in tinygpu("explain", hopper).stdout
    assert "proved for every K and every number of tiles" in tinygpu("check", hopper).stdout
    result = tinygpu("emit", hopper, "-o", tmp_path / "k.ptx", "--cubin", tmp_path / "k.cubin")
    assert "sm_90a" in result.stdout
    assert "wgmma.mma_async" in (tmp_path / "k.ptx").read_text()
    assert "hopper" in tinygpu("machines").stdout


@pytest.mark.usefixtures("believed")
def test_several_schedules_are_emitted_into_a_folder(tmp_path: Path) -> None:
    """PTX and cubin of each, in a folder; what was not given right is said in a line."""
    problem = Problem.of(matmul("bf16", layout="nt"), m=4096, n=4096, k=4096)
    files = []
    for name in ("plain", "ring", "cluster", "pingpong", "tma store"):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(to_json(Schedule.of(Hopper(), STARTS[name]), problem))
    result = tinygpu("emit", *files, "-o", tmp_path / "built")
    assert result.exit_code == 0
    for file in files:
        assert file.stem in result.stdout
        assert "wgmma" in (tmp_path / "built" / f"{file.stem}.ptx").read_text()
        assert (tmp_path / "built" / f"{file.stem}.cubin").read_bytes().startswith(b"\x7fELF")
    other = tmp_path / "other" / "ring.json"
    other.parent.mkdir()
    other.write_text(files[1].read_text())
    for words in (files[:2], [files[1], other, "-o", tmp_path / "built"]):
        result = tinygpu("emit", *words)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert result.stderr.startswith("error: several schedules: ")


def test_hopper_takes_tensor_core_types_and_a_layout() -> None:
    """bf16 if no type is given; --layout turns an input."""
    words = ["search", "matmul", "--machine", "hopper", *SIZES, "--layout", "nt", "--top", "1"]
    fixed = [part for n, of in STARTS["ring"].items() if n != "stages"
             for part in ("--fix", f"{n}={of}")]  # fmt: skip
    assert "b[n,k] bf16" in json.loads(tinygpu(*words, *fixed, "--json").stdout)["operation"]


def test_gpus_fit_the_machine(card: Card) -> None:
    """wgmma and tcgen05 run on their architecture alone, the others on any."""
    for arch, fits in (("sm_80", ""), ("sm_90a", "hopper"), ("sm_100a", "blackwell")):
        card.arch(arch)
        assert why_no_gpu(Simt()) == why_no_gpu(Ampere()) == ""
        for machine in (Hopper(), Blackwell()):
            told = why_no_gpu(machine)
            assert (told == "") == (machine.name == fits)
            assert not told or f"it is {arch}" in told

    card.missing("no GPU here")
    assert why_no_gpu(Simt()) == "no GPU here"
