"""Writing a bundle: kernels, rules and measurements in a folder, with a loader of one file.

The loader is the modules of ``runtime/`` and the errors, joined: what tinyGPU itself calls kernels
with, and nothing else.  A bundle that stands is replaced when the new one is whole.

>>> "from tinygpu" in loader_text() or "import tinygpu" in loader_text()
False

Source: ``runtime/bundle.py``, which reads it.
"""

from __future__ import annotations

import ast
import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinygpu import errors
from tinygpu.codegen.emit import EMITTER_VERSION
from tinygpu.codegen.run.build import Built
from tinygpu.codegen.run.provenance import installed
from tinygpu.codegen.runtime import (
    bundle,
    contract,
    driver,
    function,
    maps,
    operator,
    steps,
    views,
)
from tinygpu.codegen.runtime.bundle import BUNDLE_FORMAT, digest, sealed
from tinygpu.codegen.runtime.contract import Contract
from tinygpu.errors import StoreError

__all__ = ["LOADER", "BundledKernel", "bundle_parts", "loader_text", "refuse_other", "write_bundle"]

LOADER = "loader.py"
_ERRORS = {"TinyGpuError", "LaunchError", "KernelError", "out_of_memory"}  # the runtime's
_MODULES = (errors, views, driver, maps, contract, steps, operator, function, bundle)


@dataclass(frozen=True, slots=True)
class BundledKernel:
    """A kernel of a bundle: its name, its contract, its code, and its schedule as a file's text.

    ``terms``: of each entry of its code the term's text, and that of its certificate, "" where it
    has none.
    """

    name: str
    machine: str
    contract: Contract
    built: Built
    schedule: str
    terms: tuple[tuple[str, str], ...] = ()


def loader_text() -> str:
    """Return the loader: the modules of the runtime in one file, which imports no tinyGPU.

    Raises AssertionError if two of them define one name.
    """
    plain: set[str] = set()
    taken: dict[str, set[str]] = {}
    bodies: list[str] = []
    defined: dict[str, str] = {}
    for module in _MODULES:
        assert module.__file__
        source = Path(module.__file__).read_text(encoding="utf-8")
        lines, end = source.splitlines(), 0
        kept: list[str] = []
        for node in ast.parse(source).body:
            text = "\n".join(lines[end : node.end_lineno]).strip("\n")
            end = node.end_lineno or end
            names = _names(node)
            if isinstance(node, ast.Import):
                plain.add(ast.unparse(node))
            elif isinstance(node, ast.ImportFrom):
                if node.module != "__future__" and not f"{node.module}".startswith("tinygpu"):
                    taken.setdefault(f"{node.module}", set()).update(a.name for a in node.names)
            elif "__all__" not in names and (kept or not _is_text(node)):
                if module is errors and not {*names} & _ERRORS:
                    continue
                for name in names:
                    assert name not in defined, f"{name}: {defined[name]}, {module.__name__}"
                    defined[name] = module.__name__
                kept.append(text)
        bodies.append("\n\n\n".join(kept))
    imports = [
        f"from {of} import {', '.join(sorted(names))}" for of, names in sorted(taken.items())
    ]
    main = (
        'if __name__ == "__main__":\n'
        "    where = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent\n"
        "    print(load_bundle(where))"
    )
    head = "\n".join(
        ("from __future__ import annotations\n", *sorted({*plain, "import sys"}), *imports)
    )
    about = f'"""{(bundle.__doc__ or "").strip()}\n"""\n'
    return "\n\n\n".join((f"{about}\n{head}", *bodies, main)) + "\n"


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _names(node: ast.stmt) -> list[str]:
    """Return the names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def bundle_parts(
    members: Sequence[BundledKernel],
    manifest: Mapping[str, Any],
) -> dict[str, bytes]:
    """Return a bundle's files by their names.

    ``manifest`` has what ``runtime/bundle.py`` reads beside the kernels (along, axes, shapes,
    rules, rule) and whatever else is to be kept with them.
    """
    parts: dict[str, bytes] = {LOADER: loader_text().encode()}
    kernels = []
    for member in members:
        names = {
            kind: f"{folder}/{member.name}.{kind}"
            for folder, kind in (("kernels", "ptx"), ("kernels", "cubin"), ("schedules", "json"))
        }
        parts[names["ptx"]] = member.built.ptx.encode()
        parts[names["cubin"]] = member.built.cubin.bytes
        parts[names["json"]] = member.schedule.encode()
        terms: list[str] = []
        certificates: list[str | None] = []
        for number, (term, certificate) in enumerate(member.terms, 1):
            stem = f"{member.name}.{number}" if number > 1 else member.name
            terms.append(f"terms/{stem}.term")
            parts[terms[-1]] = term.encode()
            certificates.append(f"certificates/{stem}.json" if certificate else None)
            if certificate:
                parts[f"certificates/{stem}.json"] = certificate.encode()
        kernels.append(
            {
                "name": member.name,
                "machine": member.machine,
                "contract": member.contract.tree(),
                "ptx": names["ptx"],
                "cubin": names["cubin"],
                "schedule": names["json"],
                "terms": terms,
                "certificates": certificates,
                "registers": member.built.cubin.registers,
                "ptxas": member.built.cubin.ptxas,
                "waits": member.built.waits,
            }
        )
    tree = {
        "format": BUNDLE_FORMAT,
        "tinygpu": installed("tinygpu"),
        "emitter": EMITTER_VERSION,
        "arch": members[0].built.arch,
        **manifest,
        "kernels": kernels,
        "files": {name: digest(data) for name, data in sorted(parts.items())},
    }
    text = json.dumps(sealed(json.loads(json.dumps(tree))), indent=1)
    return {"bundle.json": text.encode(), **parts}


def write_bundle(path: Path, parts: Mapping[str, bytes]) -> Path:
    """Write a bundle as a folder, or as one file where the path ends in .zip.

    It takes the place of a bundle that stood there when it is whole.  Raises StoreError where
    something else stands, OSError where it cannot be written.
    """
    refuse_other(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
            for name, data in parts.items():
                file.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
        aside = path.with_name(f".{path.name}.new")
        try:
            aside.write_bytes(packed.getvalue())
            os.replace(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        return path
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    old = aside.with_name(f"{aside.name}.old")
    try:
        aside.chmod(0o755)
        for name, data in parts.items():
            (aside / name).parent.mkdir(exist_ok=True)
            (aside / name).write_bytes(data)
        with suppress(FileNotFoundError):
            path.rename(old)
        aside.rename(path)
    except BaseException:
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(aside, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
    return path


def refuse_other(path: Path) -> None:
    """Raise StoreError if something stands at a bundle's path that is none."""
    if not path.name:
        raise StoreError(f"{path}: a bundle's folder is replaced whole; give one of its own")
    if path.suffix == ".zip" and path.is_dir():
        raise StoreError(f"{path}: it is a folder; give a .zip that is a file, or a folder's name")
    if not path.exists():
        return
    if path.suffix == ".zip":
        with suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as file:
            if "bundle.json" in file.namelist():
                return
    elif path.is_dir() and (not any(path.iterdir()) or (path / "bundle.json").is_file()):
        return
    raise StoreError(f"{path}: it holds something else than a bundle; choose another --out")
