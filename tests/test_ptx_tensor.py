"""Matrix instructions of warps, warpgroups and tensor memory, against NumPy's products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tinygpu.codegen.emulator import Memory, Module, Report, launch
from tinygpu.codegen.emulator.values import TYPES

Array = NDArray[Any]
HEAD = """
  .reg .pred %p<8>; .reg .b16 %h<4>; .reg .b32 %r<64>, %a<8>, %b<4>; .reg .b64 %rd<16>;
  .reg .b32 %d<128>;
  ld.param.u64 %rd0, [in]; ld.param.u64 %rd1, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, smem;
"""
COPY = """  // words of the input into shared memory
  mov.u32 %r2, 0;
COPY: mad.lo.u32 %r3, %r2, {threads}, %r0; setp.ge.u32 %p0, %r3, {words}; @%p0 bra COPIED;
  mad.wide.u32 %rd2, %r3, 4, %rd0; ld.global.u32 %r4, [%rd2]; mad.lo.u32 %r5, %r3, 4, %r1;
  st.shared.u32 [%r5], %r4; add.u32 %r2, %r2, 1; bra COPY;
COPIED: fence.proxy.async.shared::cta; bar.sync 0;
"""


def run(body: str, given: Array, out: Array, *, threads: int = 32, **how: Any) -> Report:
    """Run a body after the input has been copied to shared memory."""
    memory = Memory()
    copy = COPY.format(threads=threads, words=given.nbytes // 4)
    text = (
        ".extern .shared .align 1024 .b8 smem[];\n"
        f".visible .entry k(.param .u64 in, .param .u64 out) {{{HEAD}{copy}{body}\n ret; }}"
    )
    places = [memory.allocate(given, "in"), memory.allocate(out, "out")]
    size = given.nbytes + 1024
    return launch(Module.parse(text), "k", 1, threads, places, memory, smem_bytes=size, **how)


def store(registers: list[str]) -> str:
    """Store each thread's registers one after the other."""
    lines = [f"mad.wide.u32 %rd9, %r0, {4 * len(registers)}, %rd1;"]
    lines += [f"st.global.u32 [%rd9+{4 * n}], {r};" for n, r in enumerate(registers)]
    return "\n".join(lines)


def numbers(shape: tuple[int, int], kind: str, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if TYPES[kind].kind in "iu":
        return rng.integers(0 if kind[0] == "u" else -9, 10, shape).astype(TYPES[kind])
    values = rng.standard_normal(shape).astype(TYPES["tf32" if kind == "tf32" else kind])
    return (values.view(np.uint32) & 0xFFFFE000).view(np.float32) if kind == "tf32" else values


def packed(values: Array) -> Array:
    """The last dimension as 32-bit words."""
    return np.ascontiguousarray(values).view(np.uint32)


def c_fragment(out: Array) -> Array:
    """The 16 x 8 result that four registers a lane hold."""
    result = np.zeros((16, 8), out.dtype)
    for lane in range(32):
        for i in range(4):
            result[lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2] = out[lane, i]
    return result


@pytest.mark.parametrize(
    ("shape", "kind", "to"),
    [("m16n8k16", "bf16", "f32"), ("m16n8k16", "f16", "f32"), ("m16n8k8", "tf32", "f32"),
     ("m16n8k8", "f16", "f32"), ("m16n8k4", "tf32", "f32"), ("m16n8k32", "s8", "s32"),
     ("m16n8k32", "e4m3", "f32")],
)  # fmt: skip
def test_mma_sync(shape: str, kind: str, to: str) -> None:
    """Fragments of each width; A's rows and B's columns are contiguous along k."""
    depth = int(shape.split("k")[1])
    a, b = numbers((16, depth), kind, 1), numbers((8, depth), kind, 2)
    each = 4 // a.itemsize
    a_words, b_words = packed(a), packed(b)
    given = np.zeros((32, 12), np.uint32)
    count = 4 * depth // (8 * each)
    for lane in range(32):
        g, q = divmod(lane, 4)
        for i in range(count):
            given[lane, i] = a_words[g + 8 * (i % 2), q + 4 * (i // 2)]
        for i in range(count // 2):
            given[lane, 4 + i] = b_words[g, q + 4 * i]
    c = np.arange(128).reshape(32, 4).astype(TYPES[to])
    given[:, 8:] = packed(c)
    loads = "".join(f"ld.global.u32 %d{n}, [%rd3+{4 * n}];" for n in range(12))
    listed = [", ".join(f"%d{n}" for n in span) for span in
              (range(count), range(4, 4 + count // 2), range(8, 12))]  # fmt: skip
    body = f"""mad.wide.u32 %rd3, %r0, 48, %rd0; {loads}
      mma.sync.aligned.{shape}.row.col.{to}.{kind}.{kind}.{to} {{%a0, %a1, %a2, %a3}},
        {{{listed[0]}}}, {{{listed[1]}}}, {{{listed[2]}}};{store(["%a0", "%a1", "%a2", "%a3"])}"""
    out = np.zeros((32, 4), TYPES[to])
    assert run(body, given, out).findings == ()
    exact = a.astype(np.float64) @ b.astype(np.float64).T + c_fragment(c)
    np.testing.assert_allclose(c_fragment(out), exact, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("turned", ["", ".trans"])
def test_ldmatrix_and_stmatrix(count: int, turned: str) -> None:
    """A lane gets two neighbours of its row; stmatrix puts back what ldmatrix took."""
    halves = np.arange(64 * count, dtype=np.uint16).reshape(count, 8, 8)
    registers = [f"%a{n}" for n in range(count)]
    listed = "{" + ", ".join(registers) + "}"
    body = f"""mad.lo.u32 %r6, %r0, 16, %r1; setp.ge.u32 %p1, %r0, {8 * count};
      @%p1 mov.u32 %r6, %r1;
      ldmatrix.sync.aligned.m8n8.x{count}{turned}.shared.b16 {listed}, [%r6];
      bar.warp.sync -1; add.u32 %r7, %r6, {128 * count};
      stmatrix.sync.aligned.m8n8.x{count}{turned}.shared.b16 [%r7], {listed};
      bar.warp.sync -1; {store(registers)} add.s64 %rd9, %rd1, {128 * count};
      mov.u32 %r8, 0; LOOP: mad.lo.u32 %r9, %r8, 32, %r0; mad.lo.u32 %r10, %r9, 4, %r1;
      ld.shared.u32 %r11, [%r10+{128 * count}]; mad.wide.u32 %rd10, %r9, 4, %rd9;
      st.global.u32 [%rd10], %r11; add.u32 %r8, %r8, 1; setp.lt.u32 %p2, %r8, {count};
      @%p2 bra LOOP;"""
    out = np.zeros(64 * count, np.uint32)
    assert run(body, halves, out).findings == ()
    held = halves.swapaxes(1, 2) if turned else halves
    for lane in range(32):
        for n in range(count):
            low, high = held[n, lane // 4, 2 * (lane % 4) :][:2]
            assert out[lane * count + n] == int(low) | int(high) << 16
    np.testing.assert_array_equal(out[32 * count :].view(np.uint16), halves.reshape(-1))


def swizzled(values: Array, swizzle: int) -> Array:
    """Bytes as a swizzle leaves them in shared memory that begins at a multiple of 1024."""
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    at = np.arange(flat.size)
    result = np.empty_like(flat)
    result[at ^ (at >> 3 & (0, 0x10, 0x30, 0x70)[swizzle])] = flat
    return result


def arranged(values: Array, swizzle: int, mn_major: bool) -> tuple[Array, int, int]:
    """A matrix (rows, k) as its layout has it, with leading and stride byte offsets."""
    rows, depth = values.shape
    line = (16 << swizzle) // values.itemsize
    if swizzle and not mn_major:  # each atom: 8 rows of one line
        wide = np.zeros((rows, line), values.dtype)
        wide[:, :depth] = values
        return swizzled(wide, swizzle), 16, 8 * (16 << swizzle)
    core = 16 // values.itemsize
    if not mn_major:
        cores = values.reshape(rows // 8, 8, depth // core, core).transpose(2, 0, 1, 3)
        return swizzled(cores, 0), rows * 16, 128
    turned = values.T
    if swizzle:
        parts = turned.reshape(depth, rows // line, line).transpose(1, 0, 2)
        return swizzled(parts, swizzle), depth * (16 << swizzle), 8 * (16 << swizzle)
    cores = turned.reshape(depth // 8, 8, rows // core, core).transpose(0, 2, 1, 3)
    return swizzled(cores, 0), rows // core * 128, 128


def encoded(at: int, lbo: int, sbo: int) -> str:
    return f"0x{(at >> 4) | (lbo >> 4) << 16 | (sbo >> 4) << 32:016x}"


WGMMA = [
    *(("bf16", "f32", n, s, t) for n, s, t in
      ((64, 3, (0, 0)), (64, 3, (1, 1)), (128, 2, (0, 1)), (64, 1, (1, 0)), (8, 0, (0, 0)),
       (64, 0, (1, 1)), (256, 3, (0, 0)))),
    ("f16", "f16", 32, 3, (0, 0)), ("f16", "f32", 64, 2, (1, 1)), ("tf32", "f32", 24, 3, (0, 0)),
    ("e4m3", "f32", 16, 2, (0, 0)), ("s8", "s32", 32, 1, (0, 0)),
]  # fmt: skip


@pytest.mark.parametrize("completion", ["late", "early"])
@pytest.mark.parametrize(("kind", "to", "n", "swizzle", "turned"), WGMMA)
def test_wgmma(
    kind: str, to: str, n: int, swizzle: int, turned: tuple[int, int], completion: str
) -> None:
    """Every swizzle, both majors, every width of element; D = A B, then D += A B."""
    width = TYPES[kind].itemsize
    depth = 32 // width
    a, b = numbers((64, depth), kind, 3), numbers((n, depth), kind, 4)
    (a_bytes, *a_steps), (b_bytes, *b_steps) = (
        arranged(v, swizzle, bool(t)) for v, t in zip((a, b), turned, strict=True)
    )
    b_at = -(-len(a_bytes) // 1024) * 1024
    given = np.zeros(b_at + len(b_bytes), np.uint8)
    given[: len(a_bytes)], given[b_at:] = a_bytes, b_bytes
    count = n // (4 if to == "f16" else 2)
    registers = [f"%d{i}" for i in range(count)]
    flags = ", 1, 1" if to != "s32" else ""
    flags += f", {turned[0]}, {turned[1]}" if width == 2 else ""
    mode = {0: 0, 1: 3, 2: 2, 3: 1}[swizzle]
    body = f"""shr.u32 %r6, %r1, 4; cvt.u64.u32 %rd3, %r6;
      add.s64 %rd4, %rd3, {encoded(0, *a_steps)}; add.s64 %rd5, %rd3, {encoded(b_at, *b_steps)};
      or.b64 %rd4, %rd4, {hex(mode << 62)}; or.b64 %rd5, %rd5, {hex(mode << 62)};
      setp.ne.u32 %p1, 1, 0; setp.ne.u32 %p2, 0, 0; wgmma.fence.sync.aligned;
      wgmma.mma_async.sync.aligned.m64n{n}k{depth}.{to}.{kind}.{kind} {{{", ".join(registers)}}},
        %rd4, %rd5, %p2{flags};
      wgmma.mma_async.sync.aligned.m64n{n}k{depth}.{to}.{kind}.{kind} {{{", ".join(registers)}}},
        %rd4, %rd5, %p1{flags};
      wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;{store(registers)}"""
    out = np.zeros((128, n // 2), TYPES[to])
    report = run(body, given, out, threads=128, completion=completion)
    assert report.findings == ()
    got = np.zeros((64, n))
    for t in range(128):
        for i in range(n // 2):
            row = 16 * (t // 32) + t % 32 // 4 + 8 * (i // 2 % 2)
            got[row, 8 * (i // 4) + 2 * (t % 4) + i % 2] = out[t, i]
    exact = 2 * a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(got, exact, rtol=2e-3 if to == "f16" else 1e-6, atol=1e-2)


def test_wgmma_with_a_in_registers() -> None:
    """A as mma.sync has it, one warp to 16 rows."""
    a, b = numbers((64, 16), "bf16", 5), numbers((16, 16), "bf16", 6)
    b_bytes, lbo, sbo = arranged(b, 1, False)
    a_words = packed(a)
    given = np.concatenate([b_bytes.view(np.uint32), np.zeros(4 * 128, np.uint32)])
    for t in range(128):
        for i in range(4):
            row = 16 * (t // 32) + t % 32 // 4 + 8 * (i % 2)
            given[len(b_bytes) // 4 + 4 * t + i] = a_words[row, t % 4 + 4 * (i // 2)]
    loads = "".join(f"ld.global.u32 %a{i}, [%rd4+{len(b_bytes) + 4 * i}];" for i in range(4))
    body = f"""shr.u32 %r6, %r1, 4; cvt.u64.u32 %rd3, %r6;
      add.s64 %rd3, %rd3, {encoded(0, lbo, sbo)};
      or.b64 %rd3, %rd3, {hex(3 << 62)}; mad.wide.u32 %rd4, %r0, 16, %rd0; {loads}
      setp.ne.u32 %p1, 0, 0; wgmma.fence.sync.aligned;
      wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16
        {{%d0, %d1, %d2, %d3, %d4, %d5, %d6, %d7}},
        {{%a0, %a1, %a2, %a3}}, %rd3, %p1, 1, -1, 0;
      wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
      {store([f"%d{i}" for i in range(8)])}"""
    out = np.zeros((128, 8), np.float32)
    assert run(body, given, out, threads=128).findings == ()
    exact = -a.astype(np.float64) @ b.astype(np.float64).T
    for t in range(128):
        for i in range(8):
            row = 16 * (t // 32) + t % 32 // 4 + 8 * (i // 2 % 2)
            assert abs(out[t, i] - exact[row, 8 * (i // 4) + 2 * (t % 4) + i % 2]) < 1e-5
    early = body.replace("wgmma.wait_group.sync.aligned 0;", "mov.u32 %a0, 0;")
    assert run(early, given, out, threads=128).kinds == {"register"}


TENSOR = """
  setp.ge.u32 %p1, %r0, 32; @%p1 bra MADE;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+{slot}], 128;
  tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
  setp.ne.u32 %p2, %r0, 0; @%p2 bra MADE;
  mbarrier.init.shared::cta.b64 [%r1+{bar}], 1; fence.proxy.async.shared::cta;
MADE: bar.warp.sync -1; bar.sync 0; tcgen05.fence::after_thread_sync;
  ld.shared.u32 %r20, [%r1+{slot}]; shr.u32 %r21, %r0, 5; shl.b32 %r22, %r21, 21;
  add.u32 %r22, %r22, %r20;
{body}
  tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
  @%p1 ret;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 128;
"""


@pytest.mark.parametrize(
    ("shape", "registers"),
    [("32x32b.x8", 8), ("16x256b.x2", 8), ("16x128b.x4", 8), ("16x64b.x8", 8)],
)
def test_tensor_memory_keeps_what_is_stored(shape: str, registers: int) -> None:
    """tcgen05.st, then tcgen05.ld of the same shape; the plain shape has a lane to a thread."""
    names = [f"%d{i}" for i in range(registers)]
    listed = "{" + ", ".join(names) + "}"
    fill = "".join(f"mad.lo.u32 {n}, %r0, 100, {i};" for i, n in enumerate(names))
    clear = "".join(f"mov.u32 {n}, 0;" for n in names)
    body = f"""{fill} tcgen05.st.sync.aligned.{shape}.b32 [%r22], {listed};
      tcgen05.wait::st.sync.aligned; {clear}
      tcgen05.ld.sync.aligned.{shape}.b32 {listed}, [%r22]; tcgen05.wait::ld.sync.aligned;
      {store(names)}"""
    out = np.zeros((128, registers), np.uint32)
    text = TENSOR.format(slot=64, bar=72, body=body)
    assert run(text, np.zeros(4, np.uint32), out, threads=128).findings == ()
    np.testing.assert_array_equal(out, np.arange(128)[:, None] * 100 + np.arange(registers))
    hasty = text.replace("tcgen05.wait::st.sync.aligned;", "")
    assert "race" in run(hasty, np.zeros(4, np.uint32), out, threads=128).kinds
    head, fence, tail = text.rpartition("tcgen05.fence::after_thread_sync;")
    assert fence
    assert "proxy" in run(head + tail, np.zeros(4, np.uint32), out, threads=128).kinds


NARROW = {"e2m1": (2, 1), "e2m3": (2, 3), "e3m2": (3, 2)}


def narrow(rows: int, kind: str, seed: int) -> tuple[Array, Array]:
    """Numbers of 4 or 6 bits, 32 a row, and their bytes: each 16 of them packed into 16 bytes."""
    exponent, fraction = NARROW[kind]
    size, bias = 1 + exponent + fraction, 2 ** (exponent - 1) - 1
    codes = np.random.default_rng(seed).integers(0, 1 << size, (rows, 32))
    values, held = np.zeros((rows, 32)), np.zeros((rows, 32), np.uint8)
    for row in range(rows):
        for k, code in enumerate(codes[row].tolist()):
            e, f = code >> fraction & (1 << exponent) - 1, (code & (1 << fraction) - 1)
            number = f * 2.0 ** (1 - bias) if e == 0 else (f + (1 << fraction)) * 2.0 ** (e - bias)
            values[row, k] = (-1) ** (code >> size - 1) * number / (1 << fraction)
        for block in (0, 16):
            word = sum(int(c) << size * n for n, c in enumerate(codes[row, block : block + 16]))
            held[row, block : block + 16] = list(word.to_bytes(16, "little"))
    return values, held


@pytest.mark.parametrize(
    ("kind", "a_kind", "m", "n"),
    [("f16", "bf16", 128, 64), ("f16", "f16", 64, 32), ("tf32", "tf32", 128, 16),
     ("f8f6f4", "e5m2", 128, 48), ("i8", "s8", 128, 32), ("f8f6f4", "e2m1", 128, 32),
     ("f8f6f4", "e2m3", 64, 32), ("f8f6f4", "e3m2", 128, 16)],
)  # fmt: skip
def test_tcgen05_mma(kind: str, a_kind: str, m: int, n: int) -> None:
    """One product of each kind; with 64 rows each warp has 16 of them."""
    if a_kind in NARROW:
        (a, a_held), (b, b_held) = narrow(m, a_kind, 7), narrow(n, a_kind, 8)
    else:
        depth = 32 // TYPES[a_kind].itemsize
        a_held = a = numbers((m, depth), a_kind, 7)
        b_held = b = numbers((n, depth), a_kind, 8)
    (a_bytes, *a_steps), (b_bytes, *b_steps) = (arranged(v, 1, False) for v in (a_held, b_held))
    b_at = -(-len(a_bytes) // 1024) * 1024
    end = b_at + len(b_bytes)
    given = np.zeros(end, np.uint8)
    given[: len(a_bytes)], given[b_at:] = a_bytes, b_bytes
    code = {"bf16": 1, "tf32": 2, "e5m2": 1, "s8": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}.get(
        a_kind, 0
    )
    bits = (2 if kind == "i8" else 1) << 4 | code << 7 | code << 10 | n >> 3 << 17 | m >> 4 << 24
    mode = hex(6 << 61 | 1 << 46)
    names = [f"%d{i}" for i in range(n if m == 128 else n // 2)]
    parts = [names[i : i + 16] for i in range(0, len(names), 16)]
    loads = "".join(
        f"tcgen05.ld.sync.aligned.32x32b.x16.b32 {{{', '.join(p)}}}, [%r22+{16 * i}];"
        for i, p in enumerate(parts)
    )
    body = f"""@%p1 bra ISSUED; @%p2 bra ISSUED; shr.u32 %r6, %r1, 4; cvt.u64.u32 %rd3, %r6;
      add.s64 %rd4, %rd3, {encoded(0, *a_steps)}; add.s64 %rd5, %rd3, {encoded(b_at, *b_steps)};
      or.b64 %rd4, %rd4, {mode}; or.b64 %rd5, %rd5, {mode}; setp.ne.u32 %p3, 0, 0;
      mov.b32 %r24, {hex(bits)}; setp.eq.u32 %p4, 0, 0;
      tcgen05.mma.cta_group::1.kind::{kind} [%r20], %rd4, %rd5, %r24, %p3;
      tcgen05.mma.cta_group::1.kind::{kind} [%r20], %rd4, %rd5, %r24, %p4;
      tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+{end + 72}];
    ISSUED: bar.warp.sync -1;
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r1+{end + 72}], 0; @!%p5 bra WAIT;
      tcgen05.fence::after_thread_sync; {loads} tcgen05.wait::ld.sync.aligned; {store(names)}"""
    if m == 64:  # the other lanes of each warp hold nothing
        body = body.replace("32x32b.x16", "16x256b.x4")
    text = TENSOR.format(slot=end + 64, bar=end + 72, body=body)
    out = np.zeros((128, len(names)), np.int32 if kind == "i8" else np.float32)
    for completion in ("late", "early"):
        assert run(text, given, out, threads=128, completion=completion).findings == ()
        exact = 2 * a.astype(np.float64) @ b.astype(np.float64).T
        if m == 128:
            np.testing.assert_allclose(out, exact, rtol=1e-6, atol=1e-5)
            continue
        for t in range(128):
            for r in range(n // 2):
                row = 16 * (t // 32) + t % 32 // 4 + 8 * (r % 4 // 2)
                column = 8 * (r // 4) + 2 * (t % 4) + r % 2
                assert abs(out[t, r] - exact[row, column]) < 1e-4


SCALED = [
    ("mxf8f6f4", "", "e4m3", 1, (2, 3)), ("mxf8f6f4", ".scale_vec::1X", "e2m1", 1, (0, 1)),
    ("mxf4", ".block32", "e2m1", 2, (2, 0)), ("mxf4nvf4", ".scale_vec::2X", "e2m1", 2, (0, 2)),
    ("mxf4nvf4", ".scale_vec::4X", "e2m1", 4, (0, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "vector", "of", "count", "first"), SCALED)
def test_tcgen05_scaled(
    kind: str, vector: str, of: str, count: int, first: tuple[int, int]
) -> None:
    """Chunks of rows with their scales, which each warp stores to its quarter of the lanes."""
    n, rng = 40, np.random.default_rng(count)
    if of == "e4m3":
        a_held, b_held = (numbers((rows, 32), of, 7 + rows) for rows in (128, n))
        a, b = a_held.astype(np.float64), b_held.astype(np.float64)
    elif kind == "mxf8f6f4":
        (a, a_held), (b, b_held) = narrow(128, of, 7), narrow(n, of, 8)
    else:  # two in a byte
        sizes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        codes = [rng.integers(0, 16, (rows, 64), dtype=np.uint8) for rows in (128, n)]
        a, b = (np.where(c > 7, -1, 1) * sizes[c & 7] for c in codes)
        a_held, b_held = (c[:, ::2] | c[:, 1::2] << 4 for c in codes)
    low, high = (50, 70) if count == 4 else (125, 131)
    bits = [rng.integers(low, high, (rows, count)) for rows in (128, n)]
    scales = [(1 + c % 8 / 8) * 2.0 ** (c // 8 - 7) if count == 4 else 2.0 ** (c - 127)
              for c in bits]  # fmt: skip
    words = np.full((2, 4, 32, 4), 0x7F, np.uint8)
    for which, codes_of in enumerate(bits):
        for row, listed in enumerate(codes_of):
            at = first[which]
            words[which, row // 32, row % 32, at : at + count] = listed
    (a_bytes, *a_steps), (b_bytes, *b_steps) = (arranged(v, 1, False) for v in (a_held, b_held))
    b_at = -(-len(a_bytes) // 1024) * 1024
    end = -(-(b_at + len(b_bytes)) // 16) * 16
    given = np.zeros(end + words.size, np.uint8)
    given[: len(a_bytes)], given[b_at : b_at + len(b_bytes)] = a_bytes, b_bytes
    given[end:] = words.reshape(-1)
    code = 1 if kind != "mxf8f6f4" else {"e4m3": 0, "e2m1": 5}[of]
    described = first[1] << 4 | code << 7 | code << 10 | n >> 3 << 17 | 1 << 27 | first[0] << 29
    described |= (count < 4) << 23
    mode, names, last = hex(6 << 61 | 1 << 46), [f"%d{i}" for i in range(n)], given.size
    put = (
        "".join(f"ld.global.u32 %a{c}, [%rd6+{end + 128 * c}];" for c in range(8))
        + """tcgen05.st.sync.aligned.32x32b.x4.b32 [%r22+64], {%a0, %a1, %a2, %a3};
      tcgen05.st.sync.aligned.32x32b.x2.b32 [%r22+72], {%a4, %a5};"""
    )
    product = f"tcgen05.mma.cta_group::1.kind::{kind}.block_scale{vector}"
    product = f"{product} [%r20], %rd4, %rd5, %r24, [%r20+64], [%r20+72]"
    body = f"""and.b32 %r25, %r0, 31; mad.wide.u32 %rd6, %r25, 4, %rd0; {put}
      tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync; bar.sync 0;
      tcgen05.fence::after_thread_sync;
      @%p1 bra ISSUED; @%p2 bra ISSUED; shr.u32 %r6, %r1, 4; cvt.u64.u32 %rd3, %r6;
      add.s64 %rd4, %rd3, {encoded(0, *a_steps)}; add.s64 %rd5, %rd3, {encoded(b_at, *b_steps)};
      or.b64 %rd4, %rd4, {mode}; or.b64 %rd5, %rd5, {mode}; setp.ne.u32 %p3, 0, 0;
      mov.b32 %r24, {hex(described)}; setp.eq.u32 %p4, 0, 0;
      {product}, %p3; {product}, %p4;
      tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+{last + 72}];
    ISSUED: bar.warp.sync -1;
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r1+{last + 72}], 0; @!%p5 bra WAIT;
      tcgen05.fence::after_thread_sync;
      tcgen05.ld.sync.aligned.32x32b.x32.b32 {{{", ".join(names[:32])}}}, [%r22];
      tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{", ".join(names[32:])}}}, [%r22+32];
      tcgen05.wait::ld.sync.aligned; {store(names)}"""
    text = TENSOR.format(slot=last + 64, bar=last + 72, body=body)
    out = np.zeros((128, n), np.float32)
    for completion in ("late", "early"):
        assert run(text, given, out, threads=128, completion=completion).findings == ()
    wide = [np.repeat(s, v.shape[1] // count, 1) * v for s, v in zip(scales, (a, b), strict=True)]
    np.testing.assert_allclose(out, 2 * wide[0] @ wide[1].T, rtol=1e-6, atol=1e-5)
    for old, new, found in (
        (hex(described), hex(described ^ 1 << 23), "descriptor"),
        (hex(described), hex(described | 1 << 24), "descriptor"),
        (hex(described), hex(described | 3 << 29 if count > 1 else described ^ 4), "descriptor"),
        ("[%r20+72], %p3", "[%r20+80], %p3", "uninitialised"),
        ("tcgen05.wait::st.sync.aligned;", "", "race"),
        ("mad.wide.u32 %rd6, %r25", "mad.wide.u32 %rd6, %r0", "tensor memory"),
        ("[%r20+64], [", "[%r22+2097216], [", "tensor memory"),
    ):
        assert text.count(old) == 1 or old.startswith("[%r20+64]"), old
        assert found in run(text.replace(old, new), given, out, threads=128).kinds, (old, new)


@pytest.mark.parametrize("split", [0, 4, 9])
def test_two_halves_of_a_warp(split: int) -> None:
    """16x32bx2: lane t % 16, whose columns begin ``split`` later for the warp's upper half."""
    whole, few = ([f"%d{i}" for i in range(n)] for n in (16, 4))
    fill = "".join(f"mad.lo.u32 {n}, %r0, 100, {i};" for i, n in enumerate(whole))
    lists = ["{" + ", ".join(names) + "}" for names in (whole, few)]
    plain, halves = "tcgen05.{}.sync.aligned.32x32b.x16.b32", "tcgen05.{}.sync.aligned.16x32bx2.x4"
    put = f"{plain.format('st')} [%r22], {lists[0]}; tcgen05.wait::st.sync.aligned;"
    body = f"""{fill} {put} {halves.format("ld")}.b32 {lists[1]}, [%r22], {split};
      tcgen05.wait::ld.sync.aligned; {store(few)}"""
    lane, column = np.meshgrid(np.arange(128), np.arange(4), indexing="ij")
    there = lane // 32 * 32 + lane % 16, column + split * (lane % 32 >= 16)
    out = np.zeros((128, 4), np.uint32)
    text = TENSOR.format(slot=64, bar=72, body=body)
    assert run(text, np.zeros(4, np.uint32), out, threads=128).findings == ()
    np.testing.assert_array_equal(out, there[0] * 100 + there[1])
    if split == 0:
        return  # both halves would store to the same cells
    body = f"""{fill} {put} {"".join(f"mad.lo.u32 {n}, %r0, 7, {i};" for i, n in enumerate(few))}
      {halves.format("st")}.b32 [%r22], {split}, {lists[1]}; tcgen05.wait::st.sync.aligned;
      {plain.format("ld")} {lists[0]}, [%r22]; tcgen05.wait::ld.sync.aligned; {store(whole)}"""
    wanted = np.arange(128)[:, None] * 100 + np.arange(16)
    wanted[there] = lane * 7 + column
    out = np.zeros((128, 16), np.uint32)
    text = TENSOR.format(slot=64, bar=72, body=body)
    assert run(text, np.zeros(4, np.uint32), out, threads=128).findings == ()
    np.testing.assert_array_equal(out, wanted)


def test_tcgen05_cp() -> None:
    """Shared memory to tensor memory: 128 rows of 32 bytes."""
    values = np.arange(128 * 8, dtype=np.uint32).reshape(128, 8)
    given, lbo, sbo = arranged(values, 0, False)
    names = [f"%d{i}" for i in range(8)]
    body = f"""@%p1 bra ISSUED; @%p2 bra ISSUED; shr.u32 %r6, %r1, 4; cvt.u64.u32 %rd3, %r6;
      add.s64 %rd4, %rd3, {encoded(0, lbo, sbo)}; or.b64 %rd4, %rd4, {hex(1 << 46)};
      tcgen05.cp.cta_group::1.128x256b [%r20], %rd4;
      tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+{4096 + 72}];
    ISSUED: bar.warp.sync -1;
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r1+{4096 + 72}], 0; @!%p5 bra WAIT;
      tcgen05.fence::after_thread_sync;
      tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{", ".join(names)}}}, [%r22];
      tcgen05.wait::ld.sync.aligned; {store(names)}"""
    text = TENSOR.format(slot=4096 + 64, bar=4096 + 72, body=body)
    out = np.zeros((128, 8), np.uint32)
    assert run(text, given, out, threads=128).findings == ()
    np.testing.assert_array_equal(out, values)
