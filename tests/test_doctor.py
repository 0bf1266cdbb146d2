from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fake_gpu import Card
from tinygpu.codegen.run import doctor
from tinygpu.codegen.run.doctor import Row, diagnose
from tinygpu.errors import AssemblyError


def rows() -> dict[str, Row]:
    return {row.what: row for row in diagnose()}


def test_every_missing_thing_says_how_to_get_it() -> None:
    """A row that is not ok names what is missing and the way to it; one that is, what was found."""
    for row in diagnose():
        if row.ok:
            assert row.found
        else:
            assert row.missing
            assert row.how


def test_what_the_tests_need_is_there() -> None:
    """The packages that run these tests are found, with their versions."""
    found = rows()
    import numpy

    assert found["numpy"].found == numpy.__version__
    assert found["Python"].ok
    assert found["Python"].found.startswith(sys.version.split()[0])


def test_no_ptxas_and_old_ptxas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ptxas, or with one that does not know PTX 9.0, the row says so and does not raise."""

    def none() -> tuple[()]:
        raise AssemblyError("ptxas: found neither in the wheel nor on PATH; get it")

    def there(*versions: str) -> None:
        every = tuple((Path(f"/{version}/ptxas"), version) for version in versions)
        monkeypatch.setattr(doctor, "every_ptxas", lambda: every)

    monkeypatch.setattr(doctor, "every_ptxas", none)
    assert not rows()["ptxas"].ok
    there("12.9.41")
    assert "13.0" in rows()["ptxas"].missing
    there("13.0.88")
    assert rows()["ptxas"].ok
    assert "drop the wait" in rows()["ptxas"].found
    assert "pip install -U nvidia-cuda-nvcc" in rows()["ptxas"].found
    there("13.5.37", "13.0.88")
    assert rows()["ptxas"].found == "13.5.37 (/13.5.37/ptxas); not used: 13.0.88 (/13.0.88/ptxas)"


def test_no_nvdisasm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nvdisasm kernels are not checked, and doctor says so and how to get it."""
    monkeypatch.setattr(doctor, "find_nvdisasm", lambda: None)
    row = rows()["nvdisasm"]
    assert not row.ok
    assert not row.needed
    assert "not checked for waits" in row.missing
    assert "pip install nvidia-cuda-nvdisasm" in row.how


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is not installed is a row with the command that installs it."""
    monkeypatch.setattr(doctor, "_PACKAGES", ("numpy", "no-such-package"))
    row = rows()["no-such-package"]
    assert not row.ok
    assert row.how == "pip install no-such-package"


@pytest.mark.parametrize(
    ("name", "driver", "ok", "lost"),
    [
        ("NVIDIA H200", "580.159", {"driver", "GPU", "device file"}, set[str]()),
        ("NVIDIA A100-SXM4-80GB", "550.54", {"GPU", "device file"}, {"driver"}),
        ("NVIDIA GeForce RTX 3060", "580.1", {"driver", "GPU", "device file"}, set[str]()),
        ("NVIDIA T4", "unknown", {"driver", "GPU"}, {"device file"}),
        ("none", "none", set[str](), {"GPU"}),
    ],
)
def test_gpu_rows(card: Card, name: str, driver: str, ok: set[str], lost: set[str]) -> None:
    """Driver, GPU and device file are told apart."""
    card.named(name, driver)
    found = {w: r for w, r in rows().items() if w in {"driver", "GPU", "device file"}}
    assert {w for w, r in found.items() if r.ok} == ok
    assert {w for w, r in found.items() if not r.ok} == lost


def test_cache_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache may be in folders that are not there yet; not under a file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    assert rows()["cache"].ok
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert not rows()["cache"].ok
    assert not rows()["cache"].needed


def test_nothing_slow_is_loaded() -> None:
    """diagnose loads neither z3 nor CuPy nor matplotlib."""
    code = (
        "import sys; from tinygpu.codegen.run.doctor import diagnose; diagnose(); "
        "print(sorted({'z3', 'cupy', 'matplotlib', 'torch'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
