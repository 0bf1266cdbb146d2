"""What only a GPU can tell: that the kernels run, are right, and fail as they should."""

from __future__ import annotations

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.host_overhead import Run, captured, host_seconds
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.launch import Kernel, device_arch, gpu, load
from tinygpu.codegen.run.measure import Options, measure, validate
from tinygpu.codegen.run.provenance import clock, device_and_driver
from tinygpu.codegen.run.timing import time_interleaved
from tinygpu.codegen.run.worker import Worker
from tinygpu.errors import LaunchError
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.store import Store
from tinygpu.term.machine import Value
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.schedule import Schedule

pytestmark = pytest.mark.gpu

HANGING = """
import sys
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.launch import device_arch, gpu, load
from tinygpu.codegen.run.worker import serve

BODY = {
    "hang": "$again: bra $again;",
    "fault": "mov.u64 %a, 16; st.global.u32 [%a], 1;",
    "fine": "",
}

def handle(request):
    if request["do"] in BODY:
        ptx = (".version 9.0\\n.target ARCH\\n.address_size 64\\n.visible .entry k() {\\n"
               ".reg .u64 %a;\\nBODY\\nret;\\n}\\n")
        arch = device_arch()
        code = assemble(ptx.replace("ARCH", arch).replace("BODY", BODY[request["do"]]), arch).bytes
        load(code, "k")((1,), (32,), ())
        gpu().cuda.Device().synchronize()
    return {"did": request["do"]}

serve(handle)
"""


def schedule_of(point: str = "vectorised", **changes: Value) -> Schedule:
    return Schedule.of(Simt(), {**LADDER[point], **changes})


def kernel_of(
    point: str = "vectorised", dtype: str = "f32", sizes: Any = None, **changes: Value
) -> Kernel:
    program = schedule_of(point, **changes).program(Simt(), matmul(dtype))
    return Kernel(program, sizes=sizes)


def problem_of(m: int, n: int, k: int, dtype: str = "f32") -> Problem:
    return Problem.of(matmul(dtype), m=m, n=n, k=k)


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    drawn = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return gpu().asarray(drawn)


def close(got: Any, a: Any, b: Any) -> bool:
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    bound = 4 * 2.0**-24 * math.sqrt(a.shape[1]) * (
        abs(a).astype(np.float64) @ abs(b).astype(np.float64)
    ) + 2.0**-22 * abs(wanted)  # fmt: skip
    return bool((abs(got - wanted) <= bound).all())


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.parametrize("point", LADDER)
@pytest.mark.parametrize("size", [(256, 256, 256), (384, 128, 64)])
def test_ladder(point: str, size: tuple[int, int, int]) -> None:
    """Every named point is right on shapes that divide evenly."""
    assert validate(kernel_of(point), problem_of(*size), seed=1) <= 1


@pytest.mark.parametrize("point", ["naive", "shared", "2-D registers", "vectorised", "multi-stage"])
@pytest.mark.parametrize("size", [(1, 4, 4), (100, 36, 12), (129, 132, 4), (257, 300, 516)])
def test_ragged(point: str, size: tuple[int, int, int]) -> None:
    """Guarded points are right on ragged shapes (multiples of 4: what their vectors need)."""
    assert validate(kernel_of(point), problem_of(*size), seed=2) <= 1


@pytest.mark.parametrize("size", [(1, 1, 1), (7, 5, 3), (33, 31, 65), (1, 511, 1), (130, 1, 129)])
@pytest.mark.parametrize("point", ["naive", "coalesced", "shared", "1-D registers"])
def test_odd(point: str, size: tuple[int, int, int]) -> None:
    """Points without vectors take any shape."""
    assert validate(kernel_of(point), problem_of(*size), seed=3) <= 1


CHANGES: tuple[dict[str, Value], ...] = (
    {"split_k": 4, "combine": "red"},
    {"accumulator": "f64"},
    {"accumulator": "f32+f64"},
    {"addressing": "i64"},
    {"raster": 16},
    {"edges": "exact"},
    {"pipeline": "cp.async", "stages": 3, "a_layout": "mk", "vector_shared": 4},
    {"pipeline": "cp.async", "stages": 4, "a_layout": "mk", "swizzle_a": 1, "tile_k": 16},
)


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_decisions(changes: dict[str, Value]) -> None:
    """Decisions that no ladder point takes give right kernels too."""
    schedule = Schedule.of(Simt(), {**LADDER["vectorised"], **changes})
    chosen = Simt().requires(matmul(), schedule.chosen())
    assert [r.name for r in chosen if not r.holds] == []
    spills = changes.get("accumulator") == "f32+f64"  # right, and against the law of registers
    kernel = Kernel(schedule.program(Simt(), matmul()), unchecked=spills)
    assert validate(kernel, problem_of(256, 384, 512), seed=4) <= 1


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("point", ["shared", "vectorised", "multi-stage"])
def test_16_bit(dtype: str, point: str) -> None:
    """16-bit inputs with fp32 sums are right, ragged too."""
    kernel = kernel_of(point, dtype)
    assert validate(kernel, problem_of(136, 264, 72, dtype), seed=5) <= 1


def test_specialised() -> None:
    """A kernel with its sizes in the code is right for them, and refuses others."""
    kernel = kernel_of(specialised=1, sizes={"m": 100, "n": 128, "k": 64})
    assert validate(kernel, problem_of(100, 128, 64), seed=6) <= 1
    with pytest.raises(LaunchError, match="specialised for"):
        validate(kernel, problem_of(200, 128, 64), seed=6)


def test_large_offsets() -> None:
    """Row pointers pass 2^31 bytes."""
    kernel, k = kernel_of("vectorised"), 8
    cupy = gpu()
    b = normal(k, 40_000)
    a = normal(20_000, k, seed=1)
    c = kernel(a, b)
    rows = [0, 9_999, 19_999]
    assert close(c[rows], a[rows], b)
    del c
    cupy.get_default_memory_pool().free_all_blocks()


def test_views() -> None:
    """Row-major parts of larger arrays need no copy, and nothing beside the output is written."""
    kernel, cupy = kernel_of("vectorised"), gpu()
    a, b = normal(300, 400)[16:216, 32:160], normal(512, 300, seed=1)[64:192, 4:136]
    board = cupy.full((220, 200), 7.0, np.float32)
    out = board[10:210, 8:140]
    assert kernel(a, b, out=out) is out
    assert close(out, a, b)
    board[10:210, 8:140] = 7.0
    assert bool((board == 7.0).all())


def test_zeroed_view() -> None:
    """A kernel that adds into its output clears it first, also where it has gaps."""
    kernel, cupy = kernel_of(split_k=4, combine="red"), gpu()
    a, b = normal(128, 256), normal(256, 128, seed=1)
    board = cupy.full((128, 256), np.nan, np.float32)
    for _ in range(2):
        kernel(a, b, out=board[:, :128])
        assert close(board[:, :128], a, b)
    assert bool(cupy.isnan(board[:, 128:]).all())
    dense = cupy.full((128, 128), np.nan, np.float32)
    assert close(kernel(a, b, out=dense), a, b)


def test_torch(torch: Any) -> None:
    """Tensors give a tensor, on PyTorch's stream, in its types."""
    a = torch.randn(192, 128, device="cuda")
    b = torch.randn(128, 256, device="cuda")
    c = kernel_of()(a, b)
    assert type(c) is torch.Tensor
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-4, atol=1e-3)
    low = kernel_of("shared", "bf16")(a.bfloat16(), b.bfloat16())
    assert low.dtype == torch.bfloat16
    wanted = a.bfloat16().double() @ b.bfloat16().double()
    torch.testing.assert_close(low.double(), wanted, rtol=1e-2, atol=1e-2)
    part = kernel_of()(a[:64, :64], b[:64, 64:192])
    wanted = a[:64, :64].double() @ b[:64, 64:192].double()
    torch.testing.assert_close(part.double(), wanted, rtol=1e-4, atol=1e-3)


def test_streams(torch: Any) -> None:
    """A launch follows what its stream did before: the current one, or the one that is given."""
    kernel, cupy = kernel_of(), gpu()
    side = torch.cuda.Stream()
    a = torch.zeros(256, 256, device="cuda")
    b = torch.eye(256, device="cuda")
    kernel(a, b)  # a device loads it at the first call, and that waits for what runs
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        a.fill_(3.0)
        c = kernel(a, b)
        done = torch.cuda.Event()
        done.record(side)
    assert not done.query()  # it returned before the kernel ran
    side.synchronize()
    assert bool((c == 3.0).all())
    stream = cupy.cuda.Stream(non_blocking=True)
    x, y = normal(256, 256), cupy.eye(256, dtype=np.float32)
    cupy.cuda.Device().synchronize()
    for given in (stream, stream.ptr):
        z = kernel(x, y, stream=given)
        stream.synchronize()
        assert bool((z == x).all())
    with stream:
        z = kernel(x, y)
    stream.synchronize()
    assert bool((z == x).all())


def test_wrong_arguments(torch: Any) -> None:
    """What a kernel cannot take is refused with the law and the way out, and nothing runs."""
    kernel, cupy = kernel_of(), gpu()
    a, b = normal(128, 128), normal(128, 128, seed=1)
    cases: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((a,), {}, "got 1 arrays, takes 2: a, b"),
        ((a.get(), b), {}, "a: .* is not on a GPU"),
        ((a, b[:64]), {}, "axis k is 128"),
        ((a.astype(np.float64), b), {}, "a: dtype f64, the kernel takes f32"),
        ((a.T, b), {}, "a: stride 128 in dimension 1"),
        ((a[:, 1:65], b[:64]), {}, "a: address .* not a multiple of 16 B"),
        ((a[:, :66], b[:66]), {}, "vector: a moves 4 elements at once, but k is 66"),
        ((a, b), {"out": a}, "out: shares memory with a"),
        ((a, b), {"out": cupy.empty((64, 128), np.float32)}, "axis m is 128"),
        ((a, b), {"alpha": 1.0}, "scalars alpha; it takes none"),
        ((a, b), {"stream": "s"}, "stream: 's'"),
        ((a[0], b), {}, "needs 2 dimensions|does not follow"),
        ((a[:0], b), {}, "size m: 0"),
        ((torch.zeros(4, 4), torch.zeros(4, 4)), {}, "move it with"),
    ]
    for arrays, options, message in cases:
        with pytest.raises(LaunchError, match=message):
            kernel(*arrays, **options)
    assert close(kernel(a, b), a, b)


def test_too_much_shared_memory() -> None:
    """A tile that the device cannot hold is refused when it is loaded."""
    code = assemble(kernel_of().ptx, device_arch()).bytes
    with pytest.raises(LaunchError, match="lower stages or the tile"):
        load(code, "simt", smem_bytes=10**6)
    with pytest.raises(LaunchError, match="does not load"):
        load(b"no cubin", "simt")


def test_launch_overhead() -> None:
    """A call of known arrays costs the host at most 10 us, a prepared launch at most 4 us."""
    kernel, cupy = kernel_of("naive"), gpu()
    a, b = normal(32, 32), normal(32, 32, seed=1)
    out = kernel(a, b)
    launch, drain = kernel.prepare(a, b, out=out), cupy.cuda.Device().synchronize
    assert host_seconds(lambda: kernel(a, b, out=out), drain) <= 10e-6
    assert host_seconds(launch, drain) <= 4e-6


@pytest.mark.parametrize("changes", [{}, {"split_k": 4, "combine": "red"}], ids=["st", "red"])
@pytest.mark.parametrize("library", ["CuPy", "PyTorch"])
@pytest.mark.parametrize("prepared", [False, True], ids=["call", "prepared"])
def test_captured(torch: Any, library: str, changes: dict[str, Any], *, prepared: bool) -> None:
    """Captured before any eager launch, it reads and writes the arrays anew at each replay."""
    kernel, cupy = kernel_of(**changes), gpu()
    arrays = (normal(128, 256), normal(256, 128), normal(128, 128))
    held = tuple(torch.from_dlpack(x) if library == "PyTorch" else x for x in arrays)
    launch = kernel.prepare(*held[:2], out=held[2])
    runs: tuple[Run, Run] = (lambda: kernel(*held[:2], out=held[2]), launch)
    replay = captured(library, runs[prepared])
    for seed in range(1, 4):
        arrays[0][...] = normal(128, 256, seed=seed)
        arrays[1][...] = normal(256, 128, seed=seed + 10)
        arrays[2].fill(np.nan)
        cupy.cuda.Device().synchronize()
        replay()
        cupy.cuda.Device().synchronize()
        assert close(arrays[2], *arrays[:2])


def test_prepared() -> None:
    """A prepared launch keeps its arrays' memory, and goes to each stream that it is given."""
    kernel, cupy = kernel_of(), gpu()
    a, b, out = normal(128, 128), normal(128, 128, seed=1), cupy.empty((128, 128), np.float32)
    launch = kernel.prepare(a, b, out=out)
    copies, stream = (a.copy(), b.copy()), cupy.cuda.Stream(non_blocking=True)
    del a, b
    other = [normal(128, 128, seed=seed) for seed in range(2, 6)]  # would take freed memory
    for given in (None, stream, stream.ptr):
        out.fill(np.nan)
        cupy.cuda.Device().synchronize()
        launch(given)
        (stream if given else cupy.cuda.get_current_stream()).synchronize()
        assert close(out, *copies)
    with stream:
        launch()
    stream.synchronize()
    assert close(out, *copies)
    assert len(other) == 4


def test_a_new_thread(torch: Any) -> None:
    """A thread that has asked nothing of the device launches too."""
    kernel = kernel_of()
    a, b = normal(128, 128), normal(128, 128, seed=1)
    out = gpu().empty((128, 128), np.float32)
    launch = kernel.prepare(a, b, out=out)
    given = tuple(torch.from_dlpack(x) for x in (a, b, out))
    runs: tuple[Run, ...] = (launch, lambda: kernel(*given[:2], out=given[2]))
    for run in runs:
        out.fill(np.nan)
        gpu().cuda.Device().synchronize()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(run).result()
        gpu().cuda.Device().synchronize()
        assert close(out, a, b)


def test_other_arrays_at_the_same_place() -> None:
    """Memory that was freed and taken again, with another shape: what is kept does not mislead."""
    kernel, cupy = kernel_of("shared"), gpu()
    memory = [cupy.empty(128 * 128, np.float32) for _ in range(3)]
    for m, n, k in ((128, 128, 128), (64, 128, 32), (128, 64, 96), (128, 128, 128)):
        shapes = ((m, k), (k, n), (m, n))
        a, b, out = (x[: s[0] * s[1]].reshape(s) for x, s in zip(memory, shapes, strict=True))
        a[...], b[...] = normal(m, k, seed=m + k), normal(k, n, seed=n)
        out.fill(np.nan)
        assert close(kernel(a, b, out=out), a, b)


def test_timing_orders_and_adds() -> None:
    """Twice the launches take twice the time; the clock is read while the GPU works."""
    kernel, problem = kernel_of(), problem_of(1024, 1024, 1024)
    a, b = normal(1024, 1024), normal(1024, 1024, seed=1)
    launch = kernel.prepare(a, b, out=gpu().empty((1024, 1024), np.float32))

    def once(i: int) -> None:
        launch()

    def twice(i: int) -> None:
        once(i)
        once(i)

    timings = time_interleaved({"once": once, "twice": twice}, rounds=5)
    assert 1.8 < timings["twice"].seconds / timings["once"].seconds < 2.2
    assert problem.operation.flops(problem.sizes) / timings["once"].seconds > 1e12
    assert timings["once"].clock_mhz > 500
    assert clock().sm_mhz > 100
    assert device_and_driver()[0] != "none"


def test_watchdog(tmp_path: Path) -> None:
    """A kernel that never ends is killed, one that faults is told; the next worker is fine."""
    script = tmp_path / "hanging.py"
    script.write_text(HANGING)
    with Worker((sys.executable, str(script))) as worker:
        assert worker.ask({"do": "fine"}, 20.0) == {"did": "fine"}
        assert worker.ask({"do": "hang"}, 3.0) == {"failed": "it hangs: no answer in 3 s"}
        assert worker.ask({"do": "fine"}, 20.0) == {"did": "fine"}
        assert "ILLEGAL_ADDRESS" in worker.ask({"do": "fault"}, 20.0)["failed"].upper().replace(
            "ILLEGALADDRESS", "ILLEGAL_ADDRESS"
        )
        assert worker.ask({"do": "fine"}, 20.0) == {"did": "fine"}


def test_measure(tmp_path: Path, torch: Any) -> None:
    """Schedules to validated times beside a peer, once; then from the store."""
    problem = problem_of(1024, 1024, 1024)
    schedules = [schedule_of(point) for point in ("coalesced", "shared", "vectorised")]
    peers = ("benchmarks.peers:torch_matmul",)
    with Store(tmp_path / "store.db") as store:
        found = measure(
            schedules, Simt(), problem, store=store, peers=peers, options=Options(rounds=3)
        )
        assert [m.reason for m in found] == [""] * 4
        seconds = [m.seconds or math.inf for m in found]
        assert seconds[0] > seconds[2]
        assert 2 * 1024**3 / min(seconds) < 70e12  # no fp32 peak is exceeded
        assert all(m.error <= 1 and m.clock_mhz > 500 for m in found)
        again = measure(schedules, Simt(), problem, store=store, peers=peers)
    assert again == found
