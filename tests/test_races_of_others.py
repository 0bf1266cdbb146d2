"""The harness for racy kernels of others: lists, graphs, verdicts, and kernels that hang."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.races_of_others import indigo, listed, main, told

HEAD = """.version 8.0
.target sm_90
.address_size 64
.visible .entry test_kernel(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d,
  .param .u32 n) {
  .reg .u64 %d<3>; .reg .u32 %r<3>;
  ld.param.u64 %d0, [c]; cvta.to.global.u64 %d0, %d0; mov.u32 %r0, %tid.x;
"""
SUM, ATOMIC = (
    f"{HEAD} {body} ret; }}"
    for body in (
        "ld.global.u32 %r1, [%d0]; add.u32 %r1, %r1, %r0; st.global.u32 [%d0], %r1;",
        "red.global.add.u32 [%d0], %r0;",
    )
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of one racy kernel, a right one, and one that never ends."""
    texts = {
        "sum_atomicBug": SUM,
        "sum": ATOMIC,
        "sum_boundsBug": "",
        "ever": f"{HEAD} L: bra L; }}",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.ptx").write_text(text)
    np.save(tmp_path / "c.npy", np.zeros(4, np.int32))
    launch = {"grid": 2, "block": 64, "arguments": ["i32[4]", "i32[4]", "c.npy", "i32[4]", 4]}
    rows = [
        {**launch, "file": f"{n}.ptx", "racy": "Bug" in n} for n in ("sum_atomicBug", "sum", "ever")
    ]
    (tmp_path / "launches.json").write_text(json.dumps(rows))
    return tmp_path


def test_verdicts(folder: Path) -> None:
    racy, right, _ = listed(folder)
    assert told(racy) == {"error": ["race"]}
    assert told(right) == {}
    assert "refused" in told({**right, "kernel": "another"})


def test_graphs(folder: Path) -> None:
    """Indigo's launches: each kernel on each graph, but for those with other faults."""
    inputs = folder / "inputs"
    inputs.mkdir()
    np.array([3, 2, 0, 1, 2, 2, 1, 2], np.int32).tofile(inputs / "small.egr")
    launches = list(indigo(folder, inputs))
    assert [Path(one["file"]).stem for one in launches] == ["ever", "sum", "sum_atomicBug"]
    assert [one["racy"] for one in launches] == [False, False, True]
    begins, neighbours, *_, nodes = launches[0]["arguments"]
    assert (begins.tolist(), neighbours.tolist(), nodes) == ([0, 1, 2, 2], [1, 2], 3)


def test_the_whole(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that hangs is ended, and counts as not run."""
    main([str(folder), "--out", str(folder / "out.json"), "--limit", "8"])
    total = json.loads(capsys.readouterr().out)
    wanted = {"kernels": 3, "racy": 1, "found": 1, "recall": 1.0, "false_alarms": 0, "wrong": 0}
    assert total == {**wanted, "not_run": 1}
    assert [row["found"][0][1] for row in json.loads((folder / "out.json").read_text())["rows"]] == [
        {"error": ["race"]}, {}, {"refused": "longer than 8 s"},
    ]  # fmt: skip
