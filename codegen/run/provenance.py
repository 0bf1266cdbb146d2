"""Provenance: what a measured number depends on besides the schedule.

A number without its device, driver, clock, commit, date and command cannot be held against others.
Where something is not to be had the record says so ("none", "unknown", 0) instead of failing:
a run on a machine without a GPU is a record too.

>>> record = provenance("make demo")
>>> record["command"], sorted(record)[:4]
('make demo', ['clock_mhz', 'command', 'commit', 'cupy'])

Source: NVML API Reference, "Device Queries" (clocks and the reasons for them).
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tinygpu.codegen.run.assemble import ptxas_version
from tinygpu.errors import AssemblyError

__all__ = ["Clock", "clock", "commit", "device_and_driver", "installed", "power", "provenance"]

_ROOT = Path(__file__).resolve().parents[2]
_SM_CLOCK = 1  # spec: nvmlClockType_t
_CAPPED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80  # spec: nvmlClocksEventReason: power cap, slowdowns, heat


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of the SMs, and whether power or heat holds it down; 0 MHz: not known."""

    sm_mhz: int = 0
    capped: bool = False


def provenance(command: str) -> dict[str, Any]:
    """Return what describes a run of ``command`` here and now, ready for JSON."""
    device, driver = device_and_driver()
    try:
        ptxas = ptxas_version()
    except AssemblyError:
        ptxas = "none"
    return {
        "device": device,
        "driver": driver,
        "clock_mhz": clock().sm_mhz,
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": command,
        "ptxas": ptxas,
        "python": platform.python_version(),
        "cupy": installed("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    }


def commit(root: Path = _ROOT) -> str:
    """Return the commit of the source tree: of a file ``.commit``, else of git, else "unknown".

    The file names the commit that a copy of the tree was made from.  A tree that git knows to
    differ from its commit says ``+dirty``.
    """
    with suppress(OSError):
        return (root / ".commit").read_text(encoding="utf-8").strip() or "unknown"
    head = _git(root, "rev-parse", "--short=12", "HEAD") if (root / ".git").exists() else None
    if head is not None:
        return head + ("+dirty" if _git(root, "status", "--porcelain", "-uno") else "")
    return "unknown"


def device_and_driver() -> tuple[str, str]:
    """Return the names of the device and its driver, or ("none", "none")."""
    nvml = _nvml()
    if nvml is None:
        return "none", "none"
    library, device = nvml
    name, driver = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    if library.nvmlDeviceGetName(device, name, 96):
        return "none", "none"
    library.nvmlSystemGetDriverVersion(driver, 96)
    return name.value.decode(), driver.value.decode() or "unknown"


def clock() -> Clock:
    """Return the clock at this moment; take it while the GPU is busy."""
    nvml = _nvml()
    if nvml is None:
        return Clock()
    library, device = nvml
    sm_mhz, reasons = ctypes.c_uint(), ctypes.c_ulonglong()
    library.nvmlDeviceGetClockInfo(device, _SM_CLOCK, ctypes.byref(sm_mhz))
    library.nvmlDeviceGetCurrentClocksThrottleReasons(device, ctypes.byref(reasons))
    return Clock(sm_mhz.value, bool(reasons.value & _CAPPED))


def power() -> float:
    """Return the watts that the GPU draws at this moment; 0 where NVML does not say."""
    nvml = _nvml()
    if nvml is None:
        return 0.0
    library, device = nvml
    milliwatts = ctypes.c_uint()
    library.nvmlDeviceGetPowerUsage(device, ctypes.byref(milliwatts))
    return milliwatts.value * 1e-3


@functools.cache
def _nvml() -> tuple[Any, ctypes.c_void_p] | None:
    """Return NVML and the first device that this process may use; None where there is none."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    device = ctypes.c_void_p()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    if library.nvmlInit_v2():
        return None
    if visible.startswith(("GPU-", "MIG-")):
        failed = library.nvmlDeviceGetHandleByUUID(visible.encode(), ctypes.byref(device))
    else:
        index = int(visible) if visible.isdecimal() else 0
        failed = library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
    return None if failed else (library, device)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        run = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.strip() if run.returncode == 0 else None


def installed(*packages: str) -> str:
    """Return the version of the first of these distributions that is installed, or "none"."""
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "none"
