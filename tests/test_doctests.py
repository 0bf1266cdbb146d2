from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import tinygpu

ROOT = Path(tinygpu.__file__).parent
OPTIONAL = {"cuda", "cupy", "dask", "numba", "torch"}  # what no extra, or only an extra, installs

MODULES = sorted(
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
    for pattern in ("*.py", "*/*.py", "*/*/*.py")  # search/ and codegen/ through the links
    for path in ROOT.glob(pattern)
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_docstring_are_true(name: str) -> None:
    """What a module's docstrings say that Python prints, it prints."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in OPTIONAL:
            raise
        pytest.skip(f"{name} needs {package}, which is not installed")
    failed, attempted = doctest.testmod(module)
    assert attempted > 0
    assert failed == 0
