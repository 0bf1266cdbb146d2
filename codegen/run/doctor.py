"""What this machine has, what it lacks, and how to get it.

``diagnose()`` looks at Python, the packages, the assembler, the GPU and the folders, and returns a
row for each; it never raises, and loads neither CuPy nor z3 (it reads their versions from the
installed metadata and asks the driver itself).  A row that is not ``needed`` is about something
that only a part of the work wants: without a GPU one can still model, search and emit.

>>> python = diagnose()[0]
>>> python.what, python.ok
('Python', True)

Source: ``README.md``, section "Install".
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

import tinygpu as package
from tinygpu.codegen.run.assemble import cache_folder, every_ptxas, find_nvdisasm
from tinygpu.codegen.run.provenance import device_and_driver, installed
from tinygpu.codegen.run.ptxas_faults import faults_of, numbers_of, way_out
from tinygpu.devices.device import device_of, load_device
from tinygpu.errors import TinyGpuError

__all__ = ["Row", "diagnose", "how_to_install"]

_PACKAGES = ("numpy", "ml_dtypes", "networkx", "matplotlib", "rich", "typer", "z3-solver")
_CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
_PTXAS_OLDEST = (13, 0)  # spec: the first that takes PTX 9.0
_DRIVER_OLDEST = 580  # spec: CUDA 13's compatibility table, the branch that came with CUDA 13.0


@dataclass(frozen=True, slots=True)
class Row:
    """One thing: what was found ("" for nothing), what is missing of it ("" for nothing), the way.

    ``needed`` says whether everything needs it, or only launching on a GPU.
    """

    what: str
    found: str
    missing: str = ""
    how: str = ""
    needed: bool = True

    @property
    def ok(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing


def diagnose() -> tuple[Row, ...]:
    """Look at this machine."""
    return (
        Row("Python", f"{platform.python_version()} ({sys.executable})"),
        *map(_package, _PACKAGES),
        _ptxas(),
        _disassembler(),
        _cupy(),
        *_gpu(*device_and_driver()),
        _cache(),
    )


def how_to_install() -> str:
    """Return the command that adds what launching needs: no index has this package.

    >>> how_to_install().startswith("pip install ")
    True
    """
    root = Path(package.__file__).resolve().parent.parent
    if (root / "pyproject.toml").is_file():
        return f'pip install ".[gpu]" in {root}'
    wheel = f"tinygpu-{installed('tinygpu')}-py3-none-any.whl"
    return f'pip install "{wheel}[gpu]" in the folder of that wheel'


def _package(name: str) -> Row:
    if (found := installed(name)) == "none":
        return Row(name, "", "not installed", f"pip install {name}")
    return Row(name, found)


def _ptxas() -> Row:
    how = "pip install nvidia-cuda-nvcc, or put the CUDA toolkit's bin folder on PATH"
    try:
        (path, found), *others = every_ptxas()
    except TinyGpuError as error:
        return Row("ptxas", "", str(error).partition("; ")[0], how)
    where = f"{found} ({path})"
    if numbers_of(found) < _PTXAS_OLDEST:
        return Row("ptxas", where, "13.0 or newer, which takes PTX 9.0", how)
    if faults := faults_of(found):
        where += "".join(f"; {fault}" for fault in faults) + f"; {way_out(found)}"
    if others:
        where += "; not used: " + ", ".join(f"{version} ({at})" for at, version in others)
    return Row("ptxas", where)


def _disassembler() -> Row:
    if found := find_nvdisasm():
        return Row("nvdisasm", str(found), needed=False)
    how = "pip install nvidia-cuda-nvdisasm, or install the CUDA toolkit"
    lost = "kernels are not checked for waits that ptxas dropped"
    return Row("nvdisasm", "", lost, how, needed=False)


def _cupy() -> Row:
    if (found := installed(*_CUPY)) != "none":
        return Row("CuPy", found, needed=False)
    return Row("CuPy", "", "needed to launch", how_to_install(), needed=False)


def _gpu(name: str, driver: str) -> tuple[Row, ...]:
    """Return the rows of the driver, the GPU and its device file."""
    if name == "none":
        lost = "none answers"
        how = "on a machine with an NVIDIA GPU, see what nvidia-smi says; else nothing to do"
        return (Row("GPU", "", lost, how, needed=False),)
    rows = [Row("GPU", name, needed=False)]
    major = driver.partition(".")[0]
    if major.isdecimal() and int(major) < _DRIVER_OLDEST:
        lost, how = f"{_DRIVER_OLDEST} or newer, which CUDA 13 needs", "update the driver"
        rows.insert(0, Row("driver", driver, lost, how, needed=False))
    else:
        rows.insert(0, Row("driver", driver, needed=False))
    known = device_of(name)
    if not known:
        how = "tinygpu calibrate -o FILE.json, and --device FILE.json"
        return (*rows, Row("device file", "", f"none for {name}", how, needed=False))
    device = load_device(known)
    measured = sum(n.source.startswith("tinygpu calibrate") for _, n in device.numbers)
    return (*rows, Row("device file", f"{device.name} ({device.arch}), {measured} numbers measured "
                                      "by tinygpu calibrate", needed=False))  # fmt: skip


def _cache() -> Row:
    """Look whether a file could be written into the cache, without writing anything."""
    place = path = cache_folder()
    while not place.exists() and place != place.parent:
        place = place.parent
    if os.access(place, os.W_OK) and place.is_dir():
        return Row("cache", str(path))
    how = "set XDG_CACHE_HOME to a folder that you may write; without it nothing is cached"
    return Row("cache", str(path), f"{place} is not writable", how, needed=False)
