"""Assembly: PTX text to a cubin through ptxas, and what ptxas says of it.

Of the ptxas that are found, in the wheel ``nvidia-cuda-nvcc``, on PATH and where the toolkit is
installed, the newest assembles.  Its verbose report gives the registers and spilled bytes of each
entry; where a text has several, the largest counts.  A cubin is a function of (text, architecture,
options, version of ptxas), so it is cached under that key; a cache that cannot be written is done
without.  nvdisasm tells a cubin's SASS, and ``scoreboards.py`` whether its waits are right.

>>> report = '''ptxas info    : Compiling entry function 'k' for 'sm_90a'
... ptxas info    : Function properties for k
...     16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
... ptxas info    : Used 40 registers, used 1 barriers, 4096 bytes smem'''
>>> parse(report)["registers"], parse(report)["spill_stores_bytes"], parse(report)["smem_bytes"]
(40, 8, 4096)

Source: "ptxas", in NVIDIA's CUDA Compiler Driver documentation.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinygpu.codegen.run.ptxas_faults import faults_of, numbers_of, way_out
from tinygpu.codegen.run.scoreboards import Waits, unwaited
from tinygpu.errors import AssemblyError

__all__ = [
    "DROPPED",
    "Cubin",
    "assemble",
    "cache_folder",
    "check_waits",
    "every_ptxas",
    "find_nvdisasm",
    "find_ptxas",
    "known_fault",
    "life_ranges",
    "parse",
    "ptxas_version",
    "sass",
    "waits_of",
]

_LIMIT_SECONDS = 300.0
_GET = "pip install nvidia-cuda-nvcc, or put the CUDA toolkit's bin folder on PATH"
_TOOLKITS = ("CUDA_HOME", "CUDA_PATH")
_INSTALLED = (("/usr/local", "cuda*/bin"), ("/opt", "cuda*/bin"))
DROPPED = "it dropped a wait, the kernel would be wrong"
"""What an error says of a cubin that lacks a wait: the fault is not the schedule's."""
_CHECKED = 1  # the version of the check, of which what was found is kept
_NUMBERS = {
    "registers": r"Used (\d+) registers",
    "spill_stores_bytes": r"(\d+) bytes spill stores",
    "spill_loads_bytes": r"(\d+) bytes spill loads",
    "smem_bytes": r"(\d+) bytes smem",
    "stack_bytes": r"(\d+) bytes stack frame",
}


@dataclass(frozen=True, slots=True)
class Cubin:
    """A cubin's bytes and what ptxas reported; ``smem_bytes`` is the static part alone."""

    bytes: bytes = field(repr=False)
    arch: str
    registers: int
    spill_stores_bytes: int
    spill_loads_bytes: int
    smem_bytes: int
    stack_bytes: int
    messages: str
    ptxas: str = ""  # its version

    @property
    def spills(self) -> bool:
        """Whether registers went to local memory."""
        return self.spill_stores_bytes + self.spill_loads_bytes > 0


def find_ptxas() -> Path:
    """Return the path of the newest ptxas.  Raises AssemblyError where there is none that runs."""
    return every_ptxas()[0][0]


def every_ptxas() -> tuple[tuple[Path, str], ...]:
    """Return each ptxas that is found and its version, the newest first; then as it is found.

    Raises AssemblyError where there is none that answers.
    """
    found: dict[Path, tuple[Path, str]] = {}
    lost: AssemblyError | None = None
    for path in _tools("ptxas"):
        if (real := path.resolve()) not in found:
            try:
                found[real] = path, ptxas_version(path)
            except AssemblyError as error:
                lost = error
    if not found:
        raise lost or AssemblyError(f"ptxas: found neither in the wheel nor on PATH; {_GET}")
    return tuple(sorted(found.values(), key=lambda one: numbers_of(one[1]), reverse=True))


def known_fault() -> str:
    """Return a line about the ptxas that is used if it has a known fault; else ""."""
    try:
        path, version = every_ptxas()[0]
    except AssemblyError:
        return ""
    faults = "; ".join(map(str, faults_of(version)))
    return f"ptxas {version} ({path}): {faults}; {way_out(version)}" if faults else ""


def find_nvdisasm() -> Path | None:
    """Return the path of nvdisasm, or None; without it no SASS is checked."""
    return next(_tools("nvdisasm"), None)


def ptxas_version(ptxas: Path | None = None) -> str:
    """Return its version as ``13.0.88``.  Raises AssemblyError where it does not run."""
    path = ptxas or find_ptxas()
    return _version(path, path.stat().st_mtime_ns)


def assemble(
    ptx: str, arch: str, *, extra: tuple[str, ...] = (), ptxas: Path | None = None
) -> Cubin:
    """Assemble PTX text for ``arch`` (sm_90a, ..), through the cache.

    Raises AssemblyError, in one line, with the first error of ptxas and the line that it is about.
    """
    ptxas = ptxas or find_ptxas()
    parts = (ptx, arch, "\0".join(extra), ptxas_version(ptxas))
    key = hashlib.sha256("\1".join(parts).encode()).hexdigest()
    path = cache_folder() / "cubin" / f"{key}.json"
    if (cached := _read(path)) is not None:
        return cached
    cubin = _run(ptxas, ptx, arch, extra)
    _write(path, cubin)
    return cubin


def sass(cubin: bytes) -> str:
    """Disassemble a cubin.  Raises AssemblyError without nvdisasm and cuobjdump."""
    for tool, options in (("nvdisasm", ["-c"]), ("cuobjdump", ["--dump-sass"])):
        if found := next(_tools(tool), None):
            return _disassembled(found, options, cubin)
    raise AssemblyError(
        "disassembly: neither nvdisasm nor cuobjdump is installed; install the CUDA toolkit, "
        "or save the cubin and disassemble it elsewhere"
    )


def _disassembled(tool: Path, options: Sequence[str], cubin: bytes) -> str:
    with tempfile.TemporaryDirectory(prefix="tinygpu-") as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        run = _process([str(tool), *options, str(path)])
    if run.returncode == 0:
        return run.stdout
    reason = (run.stderr.strip() or "failed").splitlines()[0]
    raise AssemblyError(f"{tool.name}: {reason}; is it older than ptxas?")


def life_ranges(cubin: bytes) -> str:
    """Return the SASS that ``scoreboards.py`` reads.  Raises AssemblyError without nvdisasm."""
    tool = find_nvdisasm()
    if tool is None:
        raise AssemblyError("nvdisasm is not installed; pip install nvidia-cuda-nvdisasm")
    return _disassembled(tool, ["-c", "-hex", "-plr", "-lrm", "narrow"], cubin)


def waits_of(cubin: bytes) -> Waits:
    """Say whether a cubin's SASS waits for its registers; unknown without nvdisasm.

    That a cubin is right is kept in the cache.
    """
    kept = cache_folder() / "waits" / hashlib.sha256(cubin + b"%d" % _CHECKED).hexdigest()
    with suppress(OSError):
        if kept.read_text(encoding="utf-8") == "right":
            return Waits()
    try:
        found = unwaited(life_ranges(cubin))
    except AssemblyError as error:
        return Waits(unknown=str(error))
    if found.right:
        _keep(kept, "right")
    return found


def check_waits(cubin: Cubin) -> Waits:
    """Return what ``waits_of`` says.  Raises AssemblyError where a wait is missing."""
    found = waits_of(cubin.bytes)
    if found.hazards:
        raise AssemblyError(
            f"ptxas {cubin.ptxas}: {DROPPED}: {found.hazards[0]}; {way_out(cubin.ptxas)}"
        )
    return found


def parse(report: str) -> dict[str, int]:
    """Return the numbers in a report of ``ptxas -v``, the largest over its entries."""
    found = {name: re.findall(pattern, report) for name, pattern in _NUMBERS.items()}
    return {name: max(map(int, numbers), default=0) for name, numbers in found.items()}


def cache_folder() -> Path:
    """Return the user's cache folder for tinygpu (it need not exist)."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if os.path.isabs(root) else Path.home() / ".cache") / "tinygpu"


def _wheel_folders() -> list[Path]:
    """Return the ``bin`` folders that NVIDIA's wheels may have put a tool into."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    return [Path(root, part, "bin") for root in roots for part in ("cu13", "cuda_nvcc")]


def _tools(name: str) -> Iterator[Path]:
    """Yield the places of a tool: in the wheels, on PATH, and where the toolkit is installed."""
    folders = _wheel_folders()
    folders += map(Path, filter(None, os.environ.get("PATH", "").split(os.pathsep)))
    folders += [Path(os.environ[name], "bin") for name in _TOOLKITS if os.environ.get(name)]
    for root, pattern in _INSTALLED:
        folders += sorted(Path(root).glob(pattern))
    for folder in dict.fromkeys(folders):
        path = folder / name
        if path.is_file() and os.access(path, os.X_OK):
            yield path


@functools.cache
def _version(path: Path, modified_ns: int) -> str:
    """Ask ptxas for its version; a ptxas that was replaced is asked again."""
    run = _process([str(path), "--version"])
    match = re.search(r"V(\d+\.\d+\.\d+)", run.stdout)
    if run.returncode or match is None:
        raise AssemblyError(f"ptxas: {path} does not answer --version; {_GET}")
    return match.group(1)


def _process(command: list[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=_LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise AssemblyError(
            f"{Path(command[0]).name}: took more than {_LIMIT_SECONDS:.0f} s; lower the unrolling"
        ) from None
    except OSError as error:
        raise AssemblyError(f"{command[0]}: does not run ({error.strerror}); {_GET}") from None


def _run(ptxas: Path, ptx: str, arch: str, extra: tuple[str, ...]) -> Cubin:
    try:
        folder = tempfile.TemporaryDirectory(prefix="tinygpu-")
    except OSError as error:
        raise AssemblyError(
            f"ptxas: no temporary folder ({error.strerror}); free some space or set TMPDIR"
        ) from None
    with folder as name:
        target = Path(name, "kernel.cubin")
        command = [str(ptxas), "-v", f"-arch={arch}", *extra, "-", "-o", str(target)]
        run = _process(command, ptx)
        report = run.stdout + run.stderr
        if run.returncode or not target.exists():
            raise AssemblyError(_complaint(report, ptx, arch, run.returncode))
        code = target.read_bytes()
    if repaired := re.search(r"\((C75\d\d)\).*", report):
        raise AssemblyError(f"ptxas {arch}: {repaired[0].strip()}; it would serialise the kernel")
    version = ptxas_version(ptxas)
    return Cubin(bytes=code, arch=arch, **parse(report), messages=report, ptxas=version)


def _complaint(report: str, ptx: str, arch: str, returncode: int) -> str:
    """Return one line: the first error, and the line of PTX that it is about."""
    located = re.search(r", line (\d+); (?:error|fatal)\s*: (.*)", report)
    if located:
        number, message = int(located.group(1)), located.group(2).strip()
        lines = ptx.splitlines()
        line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        return f"ptxas {arch}: {message}; line {number}: `{line}`"
    fatal = re.search(r"(?:error|fatal)\s*: (.*)", report)
    reason = fatal.group(1).strip() if fatal else f"failed with exit status {returncode}"
    return f"ptxas {arch}: {reason}; ptxas --help lists the architectures that it knows"


def _read(path: Path) -> Cubin | None:
    """Read a cached cubin; None where there is none, or one that was cut short."""
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        code = base64.b64decode(stored.pop("bytes"))
        return Cubin(bytes=code, ptxas=stored.pop("ptxas"), **stored)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, cubin: Cubin) -> None:
    """Cache a cubin."""
    fields = {name: getattr(cubin, name) for name in Cubin.__slots__}
    _keep(path, json.dumps({**fields, "bytes": base64.b64encode(cubin.bytes).decode()}))


def _keep(path: Path, text: str) -> None:
    """Write whole or not at all, and not at all where nothing can be written."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise
