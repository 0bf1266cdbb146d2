"""The commands on a GPU as a user types them, from a wheel, where the checkout is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.test_report_page import Page

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parent.parent
KINDS = [
    *(("simt", dtype, "nn") for dtype in ("f32", "f64", "f16", "bf16")),
    *(("ampere", dtype, "nt") for dtype in ("bf16", "f16", "tf32")),
    *(("hopper", dtype, "nt") for dtype in ("bf16", "f16", "e4m3")),
    ("", "bf16", "nt"),
]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the package, as its wheel has it."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    made = sorted((ROOT / "dist").glob("tinygpu-*.whl"))
    if not made:
        words = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
        done = subprocess.run([*pip, *words], capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.skip(f"no wheel can be made here: {done.stderr.strip().splitlines()[-1]}")
        made = sorted(folder.glob("*.whl"))
    wheel = made[-1]
    installed = ["install", "--no-deps", "--no-index", "--target", str(folder / "site"), str(wheel)]
    subprocess.run([*pip, *installed], check=True, capture_output=True, timeout=300)
    return folder / "site"


def tinygpu(site: Path, folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a command line in a folder where there is no checkout."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tinygpu", *map(str, words)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize(("machine", "dtype", "layout"), KINDS)
def test_search_and_run(machine: str, dtype: str, layout: str, site: Path, tmp_path: Path) -> None:
    """``search --measure`` ends with a schedule that is right, beside cuBLASLt; ``run`` agrees."""
    named = ["--machine", machine] if machine else []
    asked = ["--dtype", dtype, "--layout", layout, "-m", 512, "-n", 512, "-k", 512]
    effort = ["--measure", "--budget", 8, "--evaluations", 24, "--top", 4, "--out", "found"]
    done = tinygpu(site, tmp_path, "search", "matmul", *named, *asked, *effort)
    assert done.returncode == 0, done.stderr
    tree: dict[str, Any] = json.loads((tmp_path / "found" / "search.json").read_text())
    best = tree["best"][0]
    assert best["seconds"] > 0
    assert tree["evaluations"] >= 16
    assert bool(tree["peers"]) == (tree["cublas_seconds"] is not None)
    if dtype != "e4m3":
        assert tree["cublas_seconds"] > 0
    assert machine or best["machine"] == "hopper"
    again = tinygpu(site, tmp_path, "run", "found/01.json", "--json")
    assert again.returncode == 0, again.stderr
    ran = json.loads(again.stdout)
    assert ran["where"] == "GPU"
    assert ran["right"]
    assert 0.5 < ran["seconds"] / best["seconds"] < 2


@pytest.mark.parametrize("machine", ["simt", "ampere", "hopper"])
def test_demo(machine: str, site: Path, tmp_path: Path) -> None:
    """``demo`` measures one layer and writes its report."""
    dtype = ["--layout", "nn"] if machine == "simt" else []
    small = ["--tokens", 256, "--layer", "o", "--top", 3]
    done = tinygpu(site, tmp_path, "demo", "--machine", machine, *dtype, *small)
    assert done.returncode == 0, done.stderr
    assert "nothing was measured" not in done.stdout
    page = Page((tmp_path / "report" / "report.html").read_text())
    (layer,) = (one["found"] for one in json.loads(page.unpacked("data"))["sections"])
    assert all(row["seconds"] for row in layer["best"])
    assert layer["cublas_seconds"]
    assert (tmp_path / "report" / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    "asked",
    [
        ("elementwise", "x * sigmoid(a*x) * z + b", "-i", 1_000_003),
        ("elementwise", "max(a*x, 0)", "-i", 1_000_000, "--dtype", "bf16"),
        ("rmsnorm", "-i", 1000, "-j", 4096, "--dtype", "bf16"),
        ("softmax", "-i", 1000, "-j", 1000),
        ("softmax", "-i", 1000, "-j", 4096, "--dtype", "bf16"),
        ("matmul", "-m", 256, "-n", 256, "-k", 256, "--dtype", "bf16", "--batch", 3, "--scale"),
        ("matmul", "-m", 256, "-n", 256, "-k", 256, "--dtype", "bf16", "--bias",
         "--activation", "gelu", "--out-dtype", "f32"),
    ],
    ids=lambda asked: " ".join(map(str, asked)),
)  # fmt: skip
def test_every_operation(asked: tuple[object, ...], site: Path, tmp_path: Path) -> None:
    """The whole language runs and is right, beside a peer or alone."""
    effort = ["--measure", "--budget", 2, "--evaluations", 16, "--top", 3, "--out", "found"]
    done = tinygpu(site, tmp_path, "search", *asked, *effort)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "found" / "search.json").read_text())["best"][0]["seconds"] > 0
    scalars = ["--scalar", "a=-1.5"] if "a" in str(asked[1]) and asked[0] == "elementwise" else []
    again = tinygpu(site, tmp_path, "run", "found/01.json", "--json", *scalars)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["right"]


def test_a_machine_of_ones_own(site: Path, tmp_path: Path) -> None:
    machine = ["--machine", f"{ROOT / 'examples' / 'first_machine.py'}:Axpb"]
    effort = ["--measure", "--budget", 2, "--top", 3, "--out", "found"]
    done = tinygpu(
        site, tmp_path, "search", "elementwise", "a*x + b", "-i", 4096, *machine, *effort
    )
    assert done.returncode == 0, done.stderr
    again = tinygpu(site, tmp_path, "run", "found/01.json", "--json", *machine)
    assert json.loads(again.stdout)["right"]
