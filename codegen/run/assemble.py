"""Assembly: PTX text to a cubin through ptxas, and what ptxas says of it.

ptxas is looked for in the wheel ``nvidia-cuda-nvcc`` and then on PATH.  Its verbose report gives
the registers and spilled bytes of each entry; where a text has several, the largest counts.  A
cubin is a function of (text, architecture, options, version of ptxas), so it is cached under that
key; a cache that cannot be written is done without.

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
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinygpu.cores import cores
from tinygpu.errors import AssemblyError

__all__ = [
    "Cubin",
    "assemble",
    "assemble_many",
    "cache_folder",
    "find_ptxas",
    "parse",
    "ptxas_version",
    "sass",
]

_LIMIT_SECONDS = 300.0
_GET = "pip install nvidia-cuda-nvcc, or put the CUDA toolkit's bin folder on PATH"
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

    bytes: bytes
    arch: str
    registers: int
    spill_stores_bytes: int
    spill_loads_bytes: int
    smem_bytes: int
    stack_bytes: int
    messages: str

    @property
    def spills(self) -> bool:
        """Whether registers went to local memory."""
        return self.spill_stores_bytes + self.spill_loads_bytes > 0


def find_ptxas() -> Path:
    """Return the path of ptxas.  Raises AssemblyError where there is none."""
    for folder in _wheel_folders():
        if os.access(folder / "ptxas", os.X_OK):
            return folder / "ptxas"
    if found := shutil.which("ptxas"):
        return Path(found)
    raise AssemblyError(f"ptxas: found neither in the wheel nor on PATH; {_GET}")


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


def assemble_many(
    texts: Sequence[tuple[str, str]],
    *,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Cubin | AssemblyError, ...]:
    """Assemble (PTX, arch) pairs in parallel; a text that fails gives its error in its place.

    ``progress(done, all)`` is called after each.  Raises AssemblyError where there is no ptxas.
    """
    find_ptxas()
    done = 0

    def one(text: tuple[str, str]) -> Cubin | AssemblyError:
        try:
            return assemble(*text)
        except AssemblyError as error:
            return error

    results: list[Cubin | AssemblyError] = []
    with ThreadPoolExecutor(jobs or cores()) as pool:
        for result in pool.map(one, texts):
            results.append(result)
            done += 1
            if progress:
                progress(done, len(texts))
    return tuple(results)


def sass(cubin: bytes) -> str:
    """Disassemble a cubin.  Raises AssemblyError without nvdisasm and cuobjdump."""
    folders = [*map(str, _wheel_folders()), os.environ.get("PATH", "")]
    for tool, options in (("nvdisasm", ["-c"]), ("cuobjdump", ["--dump-sass"])):
        found = shutil.which(tool, path=os.pathsep.join(folders))
        if found is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "kernel.cubin")
            path.write_bytes(cubin)
            run = _process([found, *options, str(path)])
        if run.returncode == 0:
            return run.stdout
        raise AssemblyError(f"{tool}: {run.stderr.strip() or 'failed'}; is it older than ptxas?")
    raise AssemblyError(
        "disassembly: neither nvdisasm nor cuobjdump is installed; install the CUDA toolkit, "
        "or save the cubin and disassemble it elsewhere"
    )


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
    return Cubin(bytes=code, arch=arch, **parse(report), messages=report)


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
        return Cubin(**{**stored, "bytes": base64.b64decode(stored["bytes"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, cubin: Cubin) -> None:
    """Cache a cubin: written whole or not at all, and not at all where nothing can be written."""
    fields = {name: getattr(cubin, name) for name in Cubin.__slots__}
    text = json.dumps({**fields, "bytes": base64.b64encode(cubin.bytes).decode()})
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
