"""The command line with ``hopper``: every command, its types and layouts, its peers and GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.test_cli import PROBLEM, SIZES, tinygpu
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.machines.simt import Simt
from tinygpu.operation import Problem, matmul
from tinygpu.schedule import Schedule, to_json


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
    fixed = [
        part for n in ("tile_m", "consumers") for part in ("--fix", f"{n}={STARTS['ring'][n]}")
    ]
    assert "b[n,k] bf16" in json.loads(tinygpu(*words, *fixed, "--json").stdout)["operation"]


def test_peers_and_gpus_fit_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLAS stands beside its types; wgmma runs on its architecture alone, simt on any."""
    from tinygpu.cli import peers

    assert peers.peers_of(PROBLEM) == ("tinygpu.cli.peers:cublas",)
    of_bf16 = Problem.of(matmul("bf16"), m=16, n=16, k=16)
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    assert peers.peers_of(of_bf16) == ()
    monkeypatch.setattr(peers, "find_spec", lambda name: object())
    assert peers.peers_of(of_bf16) == ("benchmarks.peers:torch_matmul",)
    assert peers.peers_of(Problem.of(matmul("bf16", "f32"), m=16, n=16, k=16)) == ()
    monkeypatch.setattr("tinygpu.codegen.launch.device_arch", lambda: "sm_80")
    assert peers.why_no_gpu(Simt()) == ""
    assert "it is sm_80" in peers.why_no_gpu(Hopper())
    monkeypatch.setattr("tinygpu.codegen.launch.device_arch", lambda: "sm_90a")
    assert peers.why_no_gpu(Hopper()) == ""


def test_cublas_multiplies_in_any_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs that are given transposed are turned back: checked with NumPy in CuPy's place."""
    from tinygpu.cli.peers import cublas

    monkeypatch.setattr("tinygpu.codegen.launch.gpu", lambda: np)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 5)), rng.normal(size=(5, 4))
    for layout in ("nn", "nt", "tn", "tt"):
        problem = Problem.of(matmul("f64", layout=layout), m=3, n=4, k=5)
        given = (a.T.copy() if layout[0] == "t" else a, b.T.copy() if layout[1] == "t" else b)
        out = np.empty((3, 4))
        cublas(problem, given, out, {})()
        assert np.allclose(out, a @ b)
