"""What is held against a GPU: the file of cases, and that a wrong result is seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.ptx_agreement import THREADS, Case, faults, read
from benchmarks.ptx_agreement_cases import (
    CORPUS,
    Cases,
    corpora,
    drawn,
    interpreted,
    others,
    pixels,
    sparse_products,
    warps,
)
from tinygpu.codegen.emulator import Memory, Module, launch


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Case], dict[str, np.ndarray]]:
    """A few cases of each kind, written and read."""
    cases, path = Cases(), Path(tmp_path_factory.mktemp("agreement")) / "cases.npz"
    drawn(cases, warps("sm_90a", 3, 0), 0)
    names = [n for n, c in CORPUS.items() if c.file == next(iter(CORPUS.values())).file]
    corpora(cases, "sm_90a", names[:12])
    others(cases, "sm_90a")
    sparse_products(cases, 1)
    pixels(cases)
    cases.write(path)
    return read(path)


def test_every_kind_is_held(held: tuple[list[Case], dict[str, np.ndarray]]) -> None:
    """The interpreter's own results agree; with bits changed in what a kernel wrote they do not."""
    cases, arrays = held
    assert {c.kind for c in cases} == {"lines", "corpus", "near", "registers", "bytes"}
    for case in cases:
        mine = [arrays[key] if key else None for key in case.after]
        assert not list(faults(case, arrays, mine)), case.name
        wrong = [None if a is None else a ^ np.uint8(0x15) for a in mine]
        assert list(faults(case, arrays, wrong)), case.name


def test_drawn_kernels_are_without_races_of_lanes() -> None:
    x = np.random.default_rng(0).integers(0, 1 << 63, (THREADS, 8)).astype(np.uint64)
    for _, text, lines in warps("sm_90a", 8, 1):
        memory, y = Memory(), np.zeros((THREADS, len(lines)), np.uint64)
        given = [memory.allocate(x.copy()), memory.allocate(y)]
        report = launch(Module.parse(text), "k", 1, THREADS, given, memory, lanes=True)
        assert report.findings == ()
        assert np.array_equal(y, interpreted(text, x, len(lines)))
