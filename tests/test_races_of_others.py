"""The harness for racy kernels of others: lists, graphs, verdicts, and kernels that hang."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.others import Launches
from benchmarks.races_of_others import indigo, listed, main, summary, told

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
    assert total == {**wanted, "other_findings": 0, "not_run": 1}
    [part] = json.loads((folder / "out.json").read_text()).values()
    rows = part["rows"]
    found = [row["found"][0][1] for row in rows]
    assert found == [{"error": ["race"]}, {}, {"refused": "longer than 8 s"}]


def test_results_maps_and_structures(folder: Path) -> None:
    """A wrong result is told; tensor maps and structures have the addresses of ``held``."""
    text = """.version 8.0\n.target sm_90a\n.address_size 64
    .visible .entry copy(.param .align 64 .b8 map[128], .param .align 8 .b8 s[16]) {
      .reg .u64 %d<3>; .reg .u32 %r<3>; .reg .pred %p;
      .shared .align 128 .b8 tile[64]; .shared .align 8 .b64 bar;
      mov.b64 %d0, map; cvta.param.u64 %d0, %d0; mov.u32 %r0, 0;
      ld.param.u64 %d1, [s]; ld.param.u32 %r1, [s+8];
      mbarrier.init.shared.b64 [bar], 1; fence.mbarrier_init.release.cluster;
      mbarrier.arrive.expect_tx.shared.b64 %d2, [bar], 64;
      cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [tile],
        [%d0, {%r0, %r1}], [bar];
      L: mbarrier.try_wait.parity.shared.b64 %p, [bar], 0; @!%p bra L;
      ld.shared.u32 %r2, [tile+4]; st.global.u32 [%d1], %r2; ret; }"""
    (folder / "copy.ptx").write_text(text)
    np.save(folder / "x.npy", np.arange(32, dtype=np.uint32))
    tensor = {"map": "&0", "dtype": "u32", "shape": [16, 2], "strides_bytes": [64], "box": [16, 1]}
    row = {
        "file": "copy.ptx", "kernel": "", "grid": 1, "block": 1, "racy": False,
        "arguments": [tensor, {"fields": [["u64", "&1"], ["u64", 1]]}],
        "held": ["x.npy", "u32[1]"], "expected": {"&1": "one.npy"},
    }  # fmt: skip
    (folder / "launches.json").write_text(json.dumps([row]))
    for number, wrong in ((17, {}), (18, {"wrong": ["&1"]})):
        np.save(folder / "one.npy", np.array([number], np.uint32))
        assert told(next(listed(folder))) == wrong


def test_a_list_is_read_as_it_was_made(tmp_path: Path) -> None:
    made, x = Launches(tmp_path), np.arange(3, dtype=np.float16)
    made.add("a.ptx", "k", [2, 1], 32, [x, "u32[4]", {"map": "&0"}, 5], {"&0": x}, held=[2 * x])
    [row] = listed(tmp_path)
    array, zeros, *rest = row["arguments"]
    assert (array.tolist(), zeros.tolist(), rest) == ([0, 1, 2], [0] * 4, [{"map": "&0"}, 5])
    assert (row["held"][0].tolist(), row["expected"]["&0"].tolist()) == ([0, 2, 4], [0, 1, 2])
    assert (row["grid"], row["racy"]) == ([2, 1], False)


def test_each_input_is_counted_apart() -> None:
    """A kernel is found if one input shows it; a refused launch says nothing."""
    race, slow = {"error": ["race"]}, {"refused": "longer than 8 s"}
    rows = [
        {"racy": True, "found": [["small", {}], ["large", race]]},
        {"racy": False, "found": [["small", race], ["large", slow]]},
    ]
    total = summary(rows)
    assert (total["found"], total["false_alarms"], total["not_run"]) == (1, 1, 1)
    assert [total["inputs"][i]["found"] for i in ("small", "large")] == [0, 1]
    assert [total["inputs"][i]["false_alarms"] for i in ("small", "large")] == [1, 0]
