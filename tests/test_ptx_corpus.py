"""The corpus of nvcc's and Triton's kernels: each computes what it should.

None has a finding of severity error, but those builds whose PTX leaves out what PTX asks for.
"""

from __future__ import annotations

import pytest

from tests import ptx_corpus, ptx_corpus_late, ptx_corpus_triton
from tests.sample import some
from tinygpu.errors import ProgramError

NVCC = ptx_corpus.CASES | ptx_corpus_late.CASES
WARNED = {
    "cub_merge_sort": "uninitialised",  # CUB reads a key past the end, and does not use it
    "cub_warp_merge": "uninitialised",
    "atomic_float": "race",  # a plain load before a compare-and-swap that looks again
    "union_find": "race",
    "std_memcpy": "proxy",  # libcu++ has no fence between mbarrier.init and the copy onto it
    "boxed_sm90": "proxy",  # nor has Triton
    "persistent_sm90": "proxy",
    "histograms_sm90": "race",  # several warps store 0
    "sorts_sm80": "race",  # several warps store the same
    "sorts_sm90": "race",
    "arg_reduce_sm80": "race",
    "arg_reduce_sm100": "race",
}
"""What a warning tells of, by kernel or build."""
LEFT_OUT = ("matmul_fp16_sm100", "matmul_fp8_sm100", "causal_sm100", "boxed_sm100")
"""Triton's tcgen05: no tcgen05.fence, and registers of a load are moved before its wait."""
REFUSED = {"described_sm90": "tensormap.replace"}


def test_there_are_enough() -> None:
    assert len(NVCC) >= 150
    assert len(ptx_corpus_triton.BUILDS) >= 40


@pytest.mark.parametrize("name", some(NVCC, 2))
def test_nvcc(name: str) -> None:
    case = NVCC[name]
    report, before, after = ptx_corpus.run(case)
    assert [str(f) for f in report.findings if f.severity == "error"] == []
    assert report.kinds == ({WARNED[name]} if name in WARNED else set())
    assert ptx_corpus.wrong(case, before, after) == ""


@pytest.mark.parametrize("name", some((b for b in ptx_corpus_triton.BUILDS if b not in REFUSED), 2))
def test_triton(name: str) -> None:
    case = ptx_corpus_triton.CASES[name.rpartition("_")[0]]
    report, before, after = ptx_corpus_triton.run(name)
    errors = {f.kind for f in report.findings if f.severity == "error"}
    if name in LEFT_OUT:
        assert {"race", "proxy"} <= errors <= {"race", "proxy", "register"}
    else:
        assert errors == set()
        assert report.kinds == ({WARNED[name]} if name in WARNED else set())
    assert ptx_corpus.wrong(case, before, after) == ""


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named(name: str) -> None:
    with pytest.raises(ProgramError, match=rf"line \d+: .*{REFUSED[name]}"):
        ptx_corpus_triton.run(name)
