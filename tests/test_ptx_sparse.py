"""Sparse and scaled products: their values, the forms that ptxas takes, and what is refused."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.ptx_forms import kernel, rejected
from tests.ptx_sparse import SCALED, SPARSE, WGMMA, Case, scaled, sparse, warpgroup
from tinygpu.codegen.emulator import Memory, Module, Report, launch
from tinygpu.codegen.run.assemble import find_ptxas
from tinygpu.errors import ProgramError


def run(case: Case, text: str = "") -> tuple[Report, np.ndarray]:
    memory, y = Memory(), np.zeros_like(case.y)
    given = [memory.allocate(case.x.copy(), "x"), memory.allocate(y, "y")]
    return launch(Module.parse(text or case.text), "k", 1, len(y), given, memory), y


def assembled(text: str, folder: Path) -> str:
    """Return what ptxas says of a kernel."""
    path = folder / "k.ptx"
    path.write_text(text, encoding="utf-8")
    target = text.partition(".target ")[2].split()[0]
    command = [f"{find_ptxas()}", f"-arch={target}", "-o", f"{folder}/k.cubin", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return str(done.stderr)


CASES = {
    **{f"{s[0]} {s[1]} {s[2]} {o}": sparse(*s, ordered=o) for s in SPARSE for o in (True, False)},
    **{f"wgmma {s[:3]}": warpgroup(*s) for s in WGMMA},
    **{f"{s[0]} {s[2]} {s[4]}": scaled(*s) for s in SCALED},
}


@pytest.mark.parametrize("name", CASES)
def test_products(name: str, tmp_path: Path) -> None:
    """Of small numbers, whose sums are exact; ptxas takes the kernel too."""
    report, y = run(CASES[name])
    assert report.findings == ()
    np.testing.assert_array_equal(y.astype(np.float64), CASES[name].y.astype(np.float64))
    assert "error" not in assembled(CASES[name].text, tmp_path)


@pytest.mark.parametrize("ids", ["{0, 0} {1, 2}", "{3, 1} {3, 0}", "{1, 1} {0, 1}"])
def test_which_bytes_and_threads_give_scales(ids: str) -> None:
    case = scaled("mxf8f6f4", "m16n8k32", "e3m2", "e2m3", "ue8m0", 1, ids=ids, seed=4)
    report, y = run(case)
    assert report.findings == ()
    np.testing.assert_array_equal(y, case.y)


def test_the_kind_may_stand_first(tmp_path: Path) -> None:
    """CUTLASS and Triton write it before the shape."""
    for one in ("mxf8f6f4", "mxf4", "mxf4nvf4", "f8f6f4"):
        case = next(c for n, c in CASES.items() if n.startswith(f"{one} "))
        shape, _, kind = case.text.partition("aligned.")[2].split(".f32")[0].partition(".row.col.")
        text = case.text.replace(f"{shape}.row.col.{kind}", f"{kind}.{shape}.row.col")
        assert text != case.text
        assert "error" not in assembled(text, tmp_path)
        np.testing.assert_array_equal(run(case, text)[1], case.y)


def test_a_sparse_product_of_narrow_types(tmp_path: Path) -> None:
    """On sm_120a: elements of 4 and 6 bits in bytes, metadata as for 8 bits."""
    case = sparse("m16n8k64", "f32", "e4m3", "e4m3", 0, ordered=True)
    text = case.text.replace("col.f32.e4m3", "col.kind::f8f6f4.f32.e4m3").replace("90a", "120a")
    assert "error" not in assembled(text, tmp_path)
    np.testing.assert_array_equal(run(case, text)[1], case.y)


@pytest.mark.parametrize(
    ("shape", "bits", "says"),
    [(0, 0b0000, "row 5, chunk 0: 0b0000"), (0, 0b1010, "0b1010 is no metadata of .f16"),
     (5, 0b1000, "0b1000 is no metadata of .tf32"), (6, 0b1111, "0b1111 is no metadata of .e4m3"),
     (0, 0b0001, "")],
)  # fmt: skip
def test_metadata_that_mean_nothing(shape: int, bits: int, says: str) -> None:
    """A finding, and no result; unsorted ones are wrong for ordered metadata alone."""
    selector = SPARSE[shape][4]
    for ordered in (True, False):
        case = sparse(*SPARSE[shape], ordered=ordered)
        words = case.x.copy()
        lane = 4 * 5 + selector * (2 if SPARSE[shape][0] == "m16n8k16" and shape == 5 else 1)
        words[lane, -1] = words[lane, -1] & ~np.uint32(15) | np.uint32(bits)
        report, y = run(Case(case.text, words, case.y))
        if says or ordered:
            [finding] = report.findings
            assert finding.kind == "descriptor"
            assert (says or "0b0001 is no metadata") in finding.message
            assert not np.array_equal(y, case.y)
        else:
            assert report.findings == ()


def test_metadata_of_a_warpgroup() -> None:
    """They are read at once: a register may have another value before the wait."""
    case = warpgroup(*WGMMA[0])
    wait = "wgmma.commit_group.sync.aligned;"
    report, y = run(case, case.text.replace(wait, f"{wait} mov.b32 %r4, 0;"))
    assert report.findings == ()
    np.testing.assert_array_equal(y, case.y)
    bad = case.text.replace("ld.global.b32 %r4, [%da+", "mov.b32 %r4, 0; ld.global.b32 %r3, [%da+")
    assert run(case, bad)[0].kinds == {"descriptor"}
    early = case.text.replace(wait, f"{wait} mov.b32 %r8, 0;")
    assert run(case, early)[0].kinds == {"register"}


@pytest.mark.parametrize(
    ("ids", "says"),
    [("{1, 0} {0, 0}", "{1, 0} selects no scales of .ue8m0 for 2"), ("{0, 2} {0, 0}", "{0, 2}"),
     ("{0, 1} {4, 0}", "{4, 0}"), ("{0, 1} {0, 4}", "{0, 4}")],
)  # fmt: skip
def test_scales_that_are_not_there(ids: str, says: str) -> None:
    case = scaled("mxf4", "m16n8k64", "e2m1", "e2m1", "ue8m0", 2)
    report, y = run(case, case.text.replace("{2, 1}", ids[:6]).replace("{2, 3}", ids[7:]))
    assert {f.kind for f in report.findings} == {"descriptor"}
    assert says in report.findings[0].message
    assert not np.array_equal(y, case.y)


def test_a_scale_without_a_sign() -> None:
    case = scaled("mxf4nvf4", "m16n8k64", "e2m1", "e2m1", "ue4m3", 4)
    words = case.x.copy()
    words[:, -1] |= np.uint32(0x80)
    assert run(Case(case.text, words, case.y))[0].kinds == {"descriptor"}


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("m16n8k32 f16 f16 True", ", 0;", ", 2;", "2 stands where 0 or 1 has to"),
        ("m16n8k64 f32 e4m3 False", ", 0;", ", 1;", "1 stands where 0 has to"),
        ("m16n8k16 f32 bf16 True", ", 0;", ", 4;", "4 stands where 0 or 1 or 2 or 3 has to"),
        ("m16n8k16 f32 bf16 True", "%r8, 0;", "%r8;", "5 operands"),
        (
            "m16n8k8 f32 tf32 True",
            "mma.sp::ordered_metadata.sync.a",
            "mma.sp::ordered_metadata.a",
            "is not run",
        ),
        ("m16n8k8 f32 tf32 False", "mma.sp.sync.aligned", "mma.sp.sync", "not what follows mma.sp"),
        ("wgmma ('f16', 'f32', 16)", "wgmma.mma_async.sp.sync", "wgmma.mma_async.sp", "not what"),
        ("m16n8k16 f32 bf16 True", "m16n8k16", "m16n8k32", "2, 2 and 4 registers; 4, 4, 4"),
        ("m16n8k64 s32 s8 True", "m16n8k64", "m16n8k32", ".s32 is not what follows"),
        ("m16n8k64 s32 s8 True", "s8.u8", "s4.u4", ".s4 is not what follows"),
        ("m16n8k32 f32 f16 True", "90a", "75", "needs .target sm_80"),
        ("m16n8k32 f32 f16 True", ".version 9.0", ".version 8.0", "needs .version 8.5"),
        ("wgmma ('f16', 'f32', 16)", "%r4, 1", "%r4, 2", "2 stands where 0 or 1 has to"),
        ("wgmma ('u8', 's32', 24)", "m64n24", "m64n40", ".s32 is not what follows"),
        ("mxf4 e2m1 ue8m0", "120a", "100a", "needs .target sm_120a"),
        ("mxf4 e2m1 ue8m0", "::2X", "::4X", ".scale_vec::4X is not what follows"),
        ("mxf4nvf4 e2m1 ue4m3", "ue4m3", "ue8m0", ".ue8m0 is not what follows"),
        ("f8f6f4 e2m1 ", "kind::f8f6f4.", "", ".e2m1 is not what follows"),
    ],
)
def test_what_is_refused(name: str, old: str, new: str, says: str, tmp_path: Path) -> None:
    """By name, as ptxas refuses it (but for the layouts that are not known here)."""
    text = CASES[name].text.replace(old, new)
    assert text != CASES[name].text
    with pytest.raises(ProgramError, match="PTX line") as caught:
        run(CASES[name], text)
    assert says in str(caught.value)
    assert "m16n8k64 s32 s8" in name or "error" in assembled(text, tmp_path)


@pytest.mark.parametrize(("kind", "register"), [("e2m1", "b8"), ("e2m3", "b16"), ("e3m2", "b16")])
def test_conversions_of_narrow_types(kind: str, register: str, tmp_path: Path) -> None:
    """Every number comes back as it went; others go to the nearest, ties to even codes, NaN up."""
    exponent, fraction = {"e2m1": (2, 1), "e2m3": (2, 3), "e3m2": (3, 2)}[kind]
    sizes = []
    for code in range(1 << exponent + fraction):
        e, f = code >> fraction, code & (1 << fraction) - 1
        scale = 2.0 ** (max(e, 1) - 2 ** (exponent - 1) + 1)
        sizes.append(scale * (f / (1 << fraction) + (e > 0)))
    middles = [(a + b) / 2 for a, b in itertools.pairwise(sizes)]
    codes = [*range(len(sizes)), *(n + (n & 1) for n in range(len(middles)))]
    given = np.array([*sizes, *middles, np.inf, 1e9, np.nan], np.float32)
    codes += [len(sizes) - 1] * 3
    x = np.stack([given, -given], 1)
    sign = 1 << exponent + fraction
    pairs = [(c | sign) if g == g else c for c, g in zip(codes, given.tolist(), strict=True)]
    to = f"""cvt.rn.satfinite.{kind}x2.f32 %c, %f1, %f0; cvt.rn.f16x2.{kind}x2 %r1, %c;
      cvt.rn.satfinite.relu.{kind}x2.f32 %q, %f1, %f0;"""
    wide = {"b8": "mov.b32 %r0, {%c, %q, %c, %q};", "b16": "mov.b32 %r0, {%c, %q};"}[register]
    text = f""".version 9.0\n.target sm_100a\n.address_size 64
    .visible .entry k(.param .u64 x, .param .u64 y) {{
      .reg .f32 %f<2>; .reg .{register} %c, %q; .reg .b32 %r<2>, %t; .reg .b64 %x, %y;
      ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; mov.u32 %t, %tid.x;
      mad.wide.u32 %x, %t, 8, %x; mad.wide.u32 %y, %t, 8, %y;
      ld.global.v2.f32 {{%f0, %f1}}, [%x]; {to} {wide}
      st.global.v2.b32 [%y], {{%r0, %r1}}; ret; }}"""
    assert "error" not in assembled(text, tmp_path)
    memory, y = Memory(), np.zeros((len(x), 2), np.uint32)
    arguments = [memory.allocate(x, "x"), memory.allocate(y, "y")]
    assert launch(Module.parse(text), "k", 1, len(x), arguments, memory).findings == ()
    bits = 4 if kind == "e2m1" else 8
    for n, (low, high) in enumerate(zip(codes, pairs, strict=True)):
        whole, limited = int(y[n, 0]) & (1 << 2 * bits) - 1, int(y[n, 0]) >> 2 * bits
        assert whole == low | high << bits, (kind, x[n])
        top = high if high < sign else 0
        assert limited & (1 << 2 * bits) - 1 == low | top << bits, (kind, x[n])
        back = y[n, 1:].view(np.float16)
        assert back[0] == sizes[low]
        assert back[1] == (-sizes[low] if high >= sign else sizes[low])


SCALES = "[%b32_0], %b64_0, %b64_1, %b32_3, [%b32_1], [%b32_2], %pred_0;"


@pytest.mark.parametrize(
    ("modifiers", "version", "taken"),
    [
        ("kind::mxf8f6f4.block_scale.scale_vec::1X", "8.6", True),
        ("kind::mxf8f6f4.block_scale.block32", "8.8", True),
        ("kind::mxf8f6f4.block_scale", "8.6", True),
        ("kind::mxf4.block_scale.collector::a::fill", "8.8", True),
        ("kind::mxf4nvf4.block_scale.block16", "8.8", True),
        ("kind::mxf4nvf4.block_scale.scale_vec::4X", "8.6", False),
        ("kind::mxf4.block_scale.scale_vec::4X", "8.8", False),
        ("kind::mxf4nvf4.block_scale", "8.8", False),
        ("kind::mxf4", "8.8", False),
        ("kind::f8f6f4.block_scale", "8.8", False),
    ],
)
def test_forms_of_scaled_products_of_tensor_memory(
    modifiers: str, version: str, taken: bool
) -> None:
    """They are taken and refused as by ptxas; pairs of CTAs, which it takes, are refused."""
    for group in (1, 2):
        text = f"tcgen05.mma.cta_group::{group}.{modifiers} {SCALES}"
        assert (text not in rejected([text], version, "sm_100a")) == taken
        module = Module.parse(kernel([text], version, "sm_100a"))
        if taken and group == 1:
            assert module.code("k", Memory())
        else:
            with pytest.raises(ProgramError, match="PTX line 6"):
                module.code("k", Memory())
