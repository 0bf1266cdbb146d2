"""The layer rule: who may import whom, what loads on first use, and that every example runs."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sample import some

ROOT = Path(__file__).parent.parent
# Layers from the top down; a module may import its own layer and those that its row names.
LAYERS = {
    "users": {"tuning", "search", "codegen", "model"},
    "tuning": {"search", "codegen", "model"},
    "search": {"model"},
    "codegen": {"model"},
    "model": set[str](),
}
# One home for each library that is slow to load or may be missing.
HOMES = {
    "z3": {"tinygpu.smt"},
    "cupy": {"tinygpu.codegen.runtime.function"},
    "distributed": {"tinygpu.codegen.run.fleet"},
    "gymnasium": {"tinygpu.search.environment"},
}
RELATIVE = "tinygpu.codegen.emulator"
"""Its modules import each other by relative names: the wheel ``tinygpu-ptx`` has them, too."""
LAZY = ("z3", "matplotlib", "cupy")
_SOLVES = ("tinygpu.smt", "tinygpu.space.solve", "tinygpu.legality.mask_cover")


def modules() -> dict[str, Path]:
    """Each module of the package by its import name, read through the real folders."""
    found = {}
    for folder, prefix in (("tinygpu", ""), ("search", "tinygpu."), ("codegen", "tinygpu.")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[:2] in {("tinygpu", "search"), ("tinygpu", "codegen")}:
                continue  # the links, where rglob follows them
            found[prefix + ".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def layer(module: str) -> str:
    match module.split("."):
        case ["tinygpu"] | ["tinygpu", "cli" | "__main__", *_]:
            return "users"  # ``import tinygpu`` gives names of all, which load on first use
        case ["tinygpu", "search", "tuning", *_]:
            return "tuning"
        case ["tinygpu", "search" | "codegen" as name, *_]:
            return name
        case ["tinygpu", *_]:
            return "model"
        case _:
            return "users"


def imports(source: str) -> Iterator[str]:
    """Every module that the source imports, at any depth and under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.ImportFrom(level=level):
                yield "." * level
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def broken(module: str, source: str) -> list[str]:
    """Each import by which ``module`` breaks a rule."""
    own = layer(module)
    complaints = []
    for name in imports(source):
        top = name.split(".")[0]
        if not top and (name != "." or not module.startswith(RELATIVE)):
            complaints.append("a relative import")
        if top in {"search", "codegen"}:
            complaints.append(f"{name} is imported as tinygpu.{name}")
        if top == "tinygpu" and name != "tinygpu" and layer(name) not in {own, *LAYERS[own]}:
            complaints.append(f"{own} imports {name}, of {layer(name)}")
        if top in HOMES and own != "users" and module not in HOMES[top]:
            complaints.append(f"{top} has its home in {', '.join(HOMES[top])}")
        if own == "codegen" and (top in {"z3", "dask"} or name in _SOLVES):
            complaints.append(f"the emit-and-measure path imports {name}")
    return complaints


def python(code: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_downwards(module: str) -> None:
    """users -> tuning -> search | codegen -> the model; z3 and CuPy in one module each."""
    assert broken(module, MODULES[module].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tinygpu.term.layout", "import tinygpu.search"),
        ("tinygpu.term.layout", "from tinygpu import search"),
        ("tinygpu.term.layout", "def f():\n    from tinygpu.codegen.kernel.ptx import emit"),
        ("tinygpu.term.layout", "import tinygpu.cli"),
        ("tinygpu.search.time.cost", "from tinygpu.codegen import ptx"),
        ("tinygpu.codegen.kernel.ptx", "import tinygpu.search.time.cost"),
        ("tinygpu.codegen.kernel.ptx", "import importlib\nimportlib.import_module('dask.array')"),
        ("tinygpu.codegen.kernel.ptx", "import tinygpu.space.solve"),
        ("tinygpu.codegen.kernel.ptx", "from tinygpu.smt import z3_module"),
        ("tinygpu.space.solve", "import z3"),
        ("tinygpu.codegen.run.measure", "import cupy as cp"),
        ("tinygpu.search.smt", "import z3"),
        ("tinygpu.cli", "import search"),
        ("tinygpu.codegen.emit", "from .kernel import ptx"),
        ("tinygpu.codegen.emulator.run", "from ..kernel import ptx"),
    ],
)
def test_the_rule_catches(module: str, source: str) -> None:
    """Each way to break the rule is seen: a check that passes everything checks nothing."""
    assert broken(module, source)


def test_import_is_light() -> None:
    """`import tinygpu` takes under 0.3 s and loads no slow library."""
    code = (
        "import json, sys, time; start = time.perf_counter(); import tinygpu; "
        "print(json.dumps([time.perf_counter() - start, sorted(sys.modules)]))"
    )
    runs = [json.loads(python(code)) for _ in range(5)]
    assert not set(LAZY) & set(runs[0][1])
    assert min(seconds for seconds, _ in runs) < 0.3


def test_code_path_needs_no_solver() -> None:
    """Loading all of codegen loads neither z3 nor dask, not even by way of the model."""
    names = [name for name in MODULES if name.startswith("tinygpu.codegen")]
    loaded = json.loads(
        python(f"import json, sys, {', '.join(names)}; print(json.dumps(sorted(sys.modules)))")
    )
    assert not {"z3", "dask", "cupy", "matplotlib"} & set(loaded)


@pytest.mark.parametrize("name", ["search", "codegen"])
def test_bare_name_is_refused(name: str) -> None:
    """`import search` from the project's root says what to import instead."""
    code = f"try:\n    import {name}\nexcept ImportError as error:\n    print(error)"
    assert f"import tinygpu.{name}" in python(code)


EXAMPLES = sorted(
    path.name for path in ROOT.glob("examples/*.py") if "import torch" not in path.read_text()
)
"""Those that need no GPU; tests/test_gpu_bundle.py runs the others."""


@pytest.mark.slow
@pytest.mark.parametrize("example", some(EXAMPLES, 5))
def test_example_runs(example: str, tmp_path: Path) -> None:
    """An example runs from any folder; tests/test_examples.py runs them all, here."""
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / example],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
