"""Kernels that Triton made (tests/ptx/triton_kernels.py): mma.sync, wgmma, TMA, attention."""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.sample import by_turns
from tinygpu.codegen.emulator import Memory, Module, Report, TensorMap, launch

Array = NDArray[Any]
BF16 = ml_dtypes.bfloat16
ULP = 2.0**-8
RAGGED = [(64, 64, 96), (37, 144, 48), (130, 80, 112)]

every_order = pytest.mark.parametrize("completion", ["late", "early", "random"])


@functools.cache
def text(name: str) -> str:
    return (Path(__file__).parent / "ptx" / f"triton_{name}.ptx").read_text(encoding="utf-8")


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(BF16)


def within(c: Array, a: Array, b: Array) -> bool:
    """Whether every element of c is a b but for roundoff."""
    exact = a.astype(np.float64) @ b.astype(np.float64)
    size = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    bound = 4 * 2.0**-24 * math.sqrt(a.shape[1]) * size + ULP * np.abs(exact)
    return bool((np.abs(c.astype(np.float64) - exact) <= bound).all())


def matmul(name: str, m: int, n: int, k: int, code: str = "", **how: Any) -> tuple[Report, bool]:
    """Run the kernel by pointers; its tiles are 64 x 64 x 32."""
    memory = Memory()
    a, b, c = normal(m, k), normal(k, n, seed=1), np.full((m, n), np.nan, BF16)
    places = [memory.allocate(x, label) for x, label in ((a, "a"), (b, "b"), (c, "c"))]
    module = Module.parse(code or text(name))
    grid, arguments = (-(-m // 64), -(-n // 64)), [*places, m, n, k, 0, 0]
    report = launch(module, "_matmul", grid, 128, arguments, memory, smem_bytes=49152, **how)
    return report, within(c, a, b)


@every_order
@pytest.mark.parametrize(("m", "n", "k"), RAGGED)
@pytest.mark.parametrize("name", ["sm80", "sm90"])
def test_matmul(name: str, m: int, n: int, k: int, completion: str) -> None:
    """Software-pipelined cp.async before mma.sync or wgmma; masks at every edge."""
    report, right = matmul(name, m, n, k, completion=completion)
    assert report.findings == ()
    assert right
    opcodes = " ".join(report.instruction_counts)
    assert "cp.async" in opcodes
    assert ("wgmma.mma_async" if name == "sm90" else "mma.sync") in opcodes


@pytest.mark.parametrize("name", ["sm80", "sm90"])
def test_matmul_that_waits_too_little(name: str) -> None:
    """Waits that let two groups more be in flight: data is read before it is there."""
    wrong = re.sub(r"cp\.async\.wait_group\s+2;", "cp.async.wait_group 4;", text(name))
    assert wrong != text(name)
    report, _ = matmul(name, 64, 64, 160, wrong)
    assert {"race", "uninitialised"} & report.kinds


def test_matmul_without_its_proxy_fence() -> None:
    """wgmma reads what cp.async wrote through another proxy."""
    wrong = text("sm90").replace("fence.proxy.async.shared::cta;", "")
    assert matmul("sm90", 64, 64, 160, wrong)[0].kinds == {"proxy"}


def boxes(m: int, n: int, k: int, code: str = "", **how: Any) -> tuple[Report, bool]:
    """Run the kernel by tensor descriptors; its tiles are 64 x 128 x 64, rows swizzled."""
    memory = Memory()
    a, b, c = normal(m, k), normal(k, n, seed=1), np.full((m, n), np.nan, BF16)
    arguments: list[object] = []
    for x, rows, name in ((a, 64, "a"), (b, 64, "b"), (c, 64, "c")):
        at, (height, width) = memory.allocate(x, name), x.shape
        given = TensorMap(at, "bf16", (width, height), (2 * width,), (64, rows), 3)
        arguments += [given, height, width, width, 1]
    module = Module.parse(code or text("sm90_boxes"))
    grid = (-(-m // 64), -(-n // 128))
    arguments += [k, 0, 0]
    report = launch(module, "_boxes", grid, 128, arguments, memory, smem_bytes=98304, **how)
    return report, within(c, a, b)


def test_boxes_have_no_fence_of_their_barriers() -> None:
    """Triton makes mbarriers, and lets TMA complete on them behind a mere bar.sync.

    PTX (section 8, proxies) asks for a fence between the generic and the asynchronous one, and
    this is all that is found.
    """
    report, right = boxes(130, 80, 112)
    assert right
    assert report.kinds == {"proxy"}
    assert {f.other_text.split()[1] for f in report.findings} == {"mbarrier.init.shared::cta.b64"}


@every_order
@pytest.mark.parametrize(("m", "n", "k"), RAGGED)
def test_boxes(m: int, n: int, k: int, completion: str) -> None:
    """Boxes by TMA onto mbarriers, wgmma, and a box stored back; the fence put in."""
    fenced = text("sm90_boxes").replace(
        "bar.sync", "fence.mbarrier_init.release.cluster; bar.sync", 1
    )
    report, right = boxes(m, n, k, fenced, completion=completion)
    assert report.findings == ()
    assert right


def attention(name: str, rows: int, code: str = "", **how: Any) -> tuple[Report, Array, Array]:
    """Run attention of one head, 64 wide; returns what came out and what is right."""
    memory = Memory()
    q, k, v = (normal(rows, 64, seed=s) for s in range(3))
    out = np.full((rows, 64), np.nan, BF16)
    places = [memory.allocate(x) for x in (q, k, v, out)]
    module = Module.parse(code or text(f"{name}_attention"))
    arguments = [*places, rows, 0.125, 0, 0]
    report = launch(
        module, "_attention", -(-rows // 64), 128, arguments, memory, smem_bytes=65536, **how
    )
    score = q.astype(np.float64) @ k.astype(np.float64).T * 0.125
    weight = np.exp(score - score.max(1, keepdims=True))
    weight /= weight.sum(1, keepdims=True)
    return report, out.astype(np.float64), weight @ v.astype(np.float64)


@every_order
@pytest.mark.parametrize(("rows", "name"), by_turns([64, 100, 200], ["sm80", "sm90"]))
def test_attention(name: str, rows: int, completion: str) -> None:
    """Two products a step, the second's left operand from registers; exponentials in between."""
    report, out, right = attention(name, rows, completion=completion)
    assert report.findings == ()
    assert np.abs(out - right).max() <= 4 * ULP * np.abs(right).max()
