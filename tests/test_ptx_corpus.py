"""The corpus of unseen nvcc kernels: each computes what it should, without a finding."""

from __future__ import annotations

import pytest

from tests import ptx_corpus


@pytest.mark.parametrize("name", ptx_corpus.CASES)
def test_it_computes_what_it_should(name: str) -> None:
    case = ptx_corpus.CASES[name]
    report, before, after = ptx_corpus.run(case)
    assert [str(f) for f in report.findings if f.severity == "error"] == []
    assert ptx_corpus.wrong(case, before, after) == ""
