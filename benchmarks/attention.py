"""Attention beside its peers: ``python -m benchmarks.attention``.

    o = softmax(q k^T / sqrt(d) + mask) v    for b batches, h kv heads of g query heads each

The named points of the machine ``attention`` stand beside cuDNN and FlashAttention-2 (PyTorch's
SDPA), FlashAttention-3 (the wheel ``fa3-fwd``; for one query its function of decoding, which may
split keys) and the fastest of 12 configurations of Triton: round robin in new orders under one load
without a pause, in CUDA graphs.  Inputs are normal, in bf16, dense [b, heads, rows, d], the same
arrays for all, and rotate through as many sets as exceed twice the L2.  In the groups "paged" keys
and values lie in pages, [pages, keys, heads, d] in a random order, and FlashAttention-3 alone is
beside, with the same table; the group's number is a page's keys.  Of e4m3 v is [b, kv heads,
d, keys], and FlashAttention-3, which gets a copy with rows of d, is the one peer.  Each candidate
is right before it is timed, and the outputs of its last round are checked, in float64 at ``_ROWS``
queries of ``_HEADS`` heads; all of them have to be numbers.

An error is what ``reference`` allows at most 1 of.  FLOP are those of visible pairs, 4 d each.  The
causal mask is aligned at the bottom right: where m and n differ, cuDNN has no such mask here.

A row is the fastest point; ``points`` has the seconds of all, or why there are none.  ``ratio`` is
the time of the fastest peer over ours.  Peers that are not there are null, with a reason.  A case
runs in a process of its own under a watchdog: a kernel that hangs costs its case alone.

    --parts ...   some cases; --missing: those without a row; --out: the folder of the results
    --machines .. whose named points, as attention ampere_attention; then in a file of both names
    --peers       peers alone: no point is measured
    --search S    in place of the named points what the command line finds with a budget of S
                  seconds, and of that what the model had first: ``attention_searched.json``

>>> len(CASES), visible(2, 5, causal=True), visible(5, 2, causal=True)
(66, 9, 3)
"""

from __future__ import annotations

import argparse
import base64
import importlib
import importlib.metadata
import json
import math
import pickle
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import FOLDER, load_rows, write_results
from benchmarks.triton_attention import CONFIGURATIONS, Configuration
from benchmarks.triton_attention import attention as triton_attention
from tinygpu.codegen.run.provenance import provenance
from tinygpu.codegen.run.worker import Worker, serve
from tinygpu.devices.device import load_device
from tinygpu.errors import LaunchError, TinyGpuError
from tinygpu.isa.memory import DTYPES
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES
from tinygpu.meaning.tolerance import ulp
from tinygpu.search.time.cost import cost
from tinygpu.term.operation import Problem
from tinygpu.term.program import Program
from tinygpu.term.schedule import Schedule

__all__ = ["CASES", "FIELDS", "Case", "Data", "compare", "drawn", "fa3", "main", "own", "points",
           "problem_of", "reference", "row_of", "sdpa", "searched", "summary", "visible",
           "words_of"]  # fmt: skip

FIELDS = (
    *("b", "h", "g", "d", "causal", "flops", "tflops", "ratio", "points", "decisions"),
    *("peer_reason", "peer_error", "fa3_seconds", "fa3_error", "fa3_reason"),
    *("fa2_seconds", "fa2_error", "fa2_reason"),
    *("triton", "triton_seconds", "triton_reason"),
    *("clock_mhz", "peer_clock_mhz", "capped", "spread"),
)
"""The fields of a row beside the usual ones, of which ``k`` is d."""
FOUND = "found"
DEVICE = "h200"
MACHINE = "attention"
LIMIT_SECONDS = 300.0
_ROWS, _HEADS = 96, 3
_ROUNDS, _COARSE_ROUNDS, _WARM_SECONDS, _BURST_SECONDS = 25, 3, 1.0, 0.02
_MOST_SETS = 64
_SHORT = 2.0**-13  # published: DeepSeek-V3, section 3.3 (fp8 wgmma on Hopper)

Array = Any
"""A tensor of PyTorch; tests give NumPy's."""


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes: b batches, h kv heads, g query heads of each, m queries, n keys, d; keys of a page."""

    group: str
    b: int
    h: int
    g: int
    m: int
    n: int
    d: int
    causal: bool
    dtype: str = "bf16"
    page: int = 0

    @property
    def part(self) -> str:
        """Its name on the command line and in the results."""
        name = f"b{self.b}_h{self.h}x{self.g}_{self.m}x{self.n}_d{self.d}"
        name += f"_page{self.page}" if self.page else ""
        return name + "_causal" * self.causal + f"_{self.dtype}" * (self.dtype != "bf16")

    @property
    def flops(self) -> int:
        """Of both products, at visible pairs alone."""
        pairs = visible(self.m, self.n, causal=self.causal)
        return 4 * self.b * self.h * self.g * self.d * pairs

    @property
    def bytes(self) -> int:
        """Of q, k, v and o; o has 16 bits."""
        each, rows = DTYPES[self.dtype].bytes, self.b * self.h * self.d
        return rows * ((2 + each) * self.g * self.m + 2 * each * self.n)


def visible(m: int, n: int, *, causal: bool) -> int:
    """Return how many pairs of a query and a key the mask shows."""
    if not causal:
        return m * n
    return sum(min(n, max(0, n - m + i + 1)) for i in range(m))


def _cases() -> Iterator[Case]:
    lengths = (512, 1024, 2048, 4096, 8192, 16384)
    for causal in (False, True):
        for m in lengths:  # 16 heads of 32k tokens in all
            yield Case("causal" if causal else "full", 32768 // m, 16, 1, m, m, 128, causal)
    for causal in (False, True):
        for m in lengths:
            yield Case("d 64", 32768 // m, 32, 1, m, m, 64, causal)
    for causal in (False, True):
        for m in (2048, 4096, 8192, 16384):  # llama: 64 query heads on 8
            yield Case("llama", 1, 8, 8, m, m, 128, causal)
    for m, n, causal in (
        (1000, 1000, False), (1000, 1000, True), (4000, 4100, False), (4000, 4100, True),
        (77, 5000, True),
    ):  # fmt: skip
        yield Case("ragged", 4, 4, 4, m, n, 128, causal)
    for b in (1, 8, 64):  # one query, 64 heads on 8
        for n in (2048, 8192, 65536):
            yield Case("decode", b, 8, 8, 1, n, 128, causal=False)
    for page in (64, 256):
        for b in (1, 8, 64):
            for n in (2048, 8192, 65536):
                if b < 64 or n < 65536:  # sets that fit a GPU
                    yield Case(f"paged {page}", b, 8, 8, 1, n, 128, causal=False, page=page)
    for causal in (False, True):
        for m in (4096, 8192):
            yield Case("fp8", 32768 // m, 16, 1, m, m, 128, causal, "e4m3")


CASES: tuple[Case, ...] = tuple(_cases())
"""Every case, the marks first."""


def problem_of(one: Case) -> Problem:
    """Return the problem of a case."""
    operation = importlib.import_module("tinygpu.term.operation").attention(
        one.dtype, mask="causal" if one.causal else "none", pages=one.page
    )
    sizes = {"l": one.b, "h": one.h, "g": one.g, "m": one.m, "n": one.n, "d": one.d, "e": one.d}
    return Problem.of(operation, **sizes)


def points(problem: Problem, machines: Sequence[str] = (MACHINE,)) -> dict[str, Program]:
    """Return the terms of machines' named points that are legal for a problem.

    Names of another machine than ``attention`` begin with its own.  Raises LaunchError if none is
    legal.
    """
    found, refused = dict[str, Program](), ""
    for of in machines:
        machine, module = MACHINES[of], importlib.import_module(f"tinygpu.machines.{of}")
        for point, values in module.STARTS.items():
            name = point if of == MACHINE else f"{of} {point}"
            schedule = Schedule.of(machine, dict(values))
            broken = check_schedule(schedule, machine, problem, load_device(DEVICE))
            if broken:
                refused = f"{name}: {broken[0]}"
            else:
                found[name] = schedule.program(machine, problem.operation)
    if not found:
        raise LaunchError(f"attention at {dict(problem.sizes)}: no named point is legal; {refused}")
    return found


def words_of(one: Case) -> tuple[str, ...]:
    """Return a case as words of the command line.

    >>> " ".join(words_of(CASES[0]))
    'attention -b 64 --heads 16 --kv-heads 16 -m 512 -n 512 -d 128'
    """
    sizes = {"-b": one.b, "--heads": one.h * one.g, "--kv-heads": one.h}
    sizes |= {"-m": one.m, "-n": one.n, "-d": one.d}
    words = [word for name, size in sizes.items() for word in (name, str(size))]
    words += ["--pages", str(one.page)] if one.page else []
    words += ["--causal"] * one.causal + ["--dtype", one.dtype] * (one.dtype != "bf16")
    return ("attention", *words)


def searched(one: Case, seconds: float) -> dict[str, Schedule]:
    """Return what ``tinygpu search --measure`` finds, and what the model had first.

    Nothing that an earlier search measured is known.  Raises LaunchError for an error of it.
    """
    with TemporaryDirectory() as folder:
        words = (*words_of(one), "--measure", "--budget", f"{seconds:g}", "--out", folder)
        run = subprocess.run(
            (sys.executable, "-m", "tinygpu", "search", *words),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if run.returncode:
            raise LaunchError(f"{one.part}: {run.stderr.strip().splitlines()[-1]}")
        tree = json.loads((Path(folder) / "search.json").read_text(encoding="utf-8"))
    found = {FOUND: tree["best"][0]}
    if tree["model_first"]:
        found["model's first"] = tree["best"][tree["model_first"] - 1]
    return {
        name: Schedule(row["machine"], tuple(row["decisions"].items()))
        for name, row in found.items()
    }


@dataclass(frozen=True, slots=True)
class Data:
    """A set of arrays: q and out [b, heads, m, d], k and v [b, kv heads, n, d].

    With a ``table`` [b, blocks] k and v are [pages, kv heads, keys of a page, d].
    Of e4m3 v is [b, kv heads, d, n].
    """

    q: Array
    k: Array
    v: Array
    out: Array
    table: Array | None = None

    def rows(self, of: Array, b: int, head: int) -> Array:
        """Return all keys, or values, of a sequence and a kv head: [n, d]."""
        if self.table is None:
            return of[b, head]
        return of[self.table[b].long(), head].flatten(0, 1)


Enqueue = Callable[[], Array | None]
"""It enqueues one run, which writes the set's output, or returns one of its own."""
Candidate = Callable[[Data], Enqueue]


def reference(
    q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], shown: NDArray[np.int64],
    dtype: str = "bf16",
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """Return the output in float64 and what error is allowed, of queries that see ``shown`` keys.

    Each query [rows, d] sees its first keys of k, v [n, d].  Allowed is 4 times what roundings do:
    of p to bf16 (independent: the norm of p v), of scores of d and sums of n terms in fp32; and
    1 ulp of the output.  Of e4m3 p is rounded to that, and sums of products have 13 bits, with
    errors that are independent, too.
    """
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    (_, d), n = q.shape, len(k)
    seen = np.arange(n) < shown[:, None]
    s = np.where(seen, q @ k.T / math.sqrt(d), -np.inf)
    p = np.exp(s - s.max(axis=1, keepdims=True, initial=-1e300))
    p /= np.maximum(p.sum(axis=1, keepdims=True), 1e-300)
    wanted = p @ v
    u, single = DTYPES[dtype].roundoff, DTYPES["f32"].roundoff
    if dtype == "e4m3":
        norm = np.sqrt(q**2 @ (k**2).T / d).max(axis=1, keepdims=True)
        u = u + _SHORT * (math.sqrt(n) + math.sqrt(d) * norm)
    largest = (np.abs(q) @ np.abs(k).T / math.sqrt(d)).max(axis=1, keepdims=True)
    rounded = u * np.sqrt(p**2 @ v**2)
    summed = single * (math.sqrt(d) * largest + math.sqrt(n) + 8) * (p @ np.abs(v))
    return wanted, 4 * (rounded + summed) + ulp(wanted, "bf16")


class _Checked:
    """A set's sampled queries with their reference; it says how far an output is off."""

    def __init__(self, one: Case, data: Data, seed: int) -> None:
        random = np.random.default_rng(seed)
        heads = one.h * one.g
        edges = [r for r in (0, 63, 64, 127, 128, one.m // 2, one.m - 1) if r < one.m]
        self._rows = np.unique([*edges, *random.integers(one.m, size=_ROWS)])
        taken = random.choice(one.b * heads, min(_HEADS, one.b * heads), replace=False)
        self._heads = [divmod(int(i), heads) for i in taken]
        last = one.n - one.m + self._rows + 1 if one.causal else np.full_like(self._rows, one.n)
        shown = np.clip(last, 0, one.n)
        self._wanted = [
            reference(
                _host(data.q[b, head])[self._rows],
                _host(data.rows(data.k, b, head // one.g)),
                _by_rows(one, _host(data.rows(data.v, b, head // one.g))),
                shown,
                one.dtype,
            )
            for b, head in self._heads
        ]

    def error(self, output: Array) -> float:
        """Return the worst error over what is allowed; infinite if something is no number."""
        if bool((output != output).any()):
            return math.inf
        worst = 0.0
        for (b, head), (wanted, allowed) in zip(self._heads, self._wanted, strict=True):
            off = np.abs(_host(output[b, head])[self._rows] - wanted) / allowed
            worst = max(worst, float(off.max()))
        return worst


def _by_rows(one: Case, v: Array) -> Array:
    """Return values [.., n, d], as a view."""
    return v.swapaxes(-1, -2) if one.dtype == "e4m3" else v


def _host(x: Array) -> NDArray[np.float64]:
    if isinstance(x, np.ndarray):
        return x.astype(np.float64)
    found: NDArray[np.float64] = x.double().cpu().numpy()
    return found


class _Run:
    """A candidate on a set."""

    def __init__(self, candidate: Candidate, data: Data) -> None:
        self._enqueue, self._data = candidate(data), data
        self._own: Array | None = None

    def __call__(self) -> None:
        self._own = self._enqueue()  # which stays alive for its replays

    def output(self) -> Array:
        return self._data.out if self._own is None else self._own

    def poison(self) -> None:
        """Make the output what no kernel writes."""
        self.output()[...] = math.nan


def compare(
    one: Case,
    candidates: Mapping[str, Candidate],
    sets: Sequence[Data],
    time: Callable[..., Mapping[str, Any]],
    wait: Callable[[], None],
) -> dict[str, Any]:
    """Check candidates, time those that are right; the fastest of Triton stands for all of them.

    ``time`` is ``time_interleaved``; ``wait`` waits for the device.  Returns ``timings`` by name
    and ``failures``, a reason for each candidate that has none.
    """
    checked = {i: _Checked(one, sets[i], i) for i in sorted({0, len(sets) - 1})}
    failures: dict[str, str] = {}
    runs: dict[str, list[_Run]] = {}
    errors: dict[str, float] = {}
    for name, candidate in candidates.items():
        try:
            made = [_Run(candidate, data) for data in sets]
            made[0].poison()
            wait()
            made[0]()
            wait()
        except LaunchError:
            raise
        except Exception as error:  # a library may refuse in any way
            failures[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            continue
        errors[name] = checked[0].error(made[0].output())
        if errors[name] <= 1:
            runs[name] = made
        else:
            failures[name] = _wrong(errors[name])

    @contextmanager
    def around(name: str) -> Iterator[None]:
        for run in runs[name]:
            run.poison()
        wait()
        yield
        found = (checked[i].error(runs[name][i].output()) for i in checked)
        errors[name] = max(errors[name], *found)

    def timed(names: Sequence[str], rounds: int) -> dict[str, Any]:
        found = time(
            {name: partial(_rotate, runs[name]) for name in names},
            rounds=rounds,
            burst_seconds=_BURST_SECONDS,
            warm_seconds=_WARM_SECONDS,
            least_launches=len(sets),
            around=around,
            failures=failures,
        )
        for name in found:
            if errors[name] > 1:
                failures[name] = _wrong(errors[name])
        return {name: t for name, t in found.items() if errors[name] <= 1}

    triton = [name for name in runs if name.startswith("triton ")]
    others = [name for name in runs if name not in triton]
    coarse = timed(triton, _COARSE_ROUNDS) if triton else {}
    best = sorted(coarse, key=lambda name: float(coarse[name].seconds))[:1]
    timings = timed([*others, *best], _ROUNDS)
    return {
        "timings": {name: {**asdict(t), "error": errors[name]} for name, t in timings.items()},
        "failures": failures,
    }


def _rotate(runs: Sequence[_Run], number: int) -> None:
    runs[number % len(runs)]()


def _wrong(error: float) -> str:
    return f"it is wrong: its worst error is {error:.3g} times what rounding allows"


def sdpa(backend: str, one: Case, data: Data) -> Enqueue:
    """PyTorch's SDPA with one backend alone."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if one.page:
        raise NotImplementedError("SDPA has no pages")
    if one.causal and one.m != one.n:
        raise NotImplementedError("SDPA aligns its causal mask at the top left")
    more = {"enable_gqa": True} if one.g > 1 else {}
    attend = torch.nn.functional.scaled_dot_product_attention

    def run() -> Array:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return attend(data.q, data.k, data.v, is_causal=one.causal, **more)

    return run


def fa3(one: Case, data: Data) -> Enqueue:
    """FlashAttention-3 of the wheel ``fa3-fwd``; with one query it chooses how keys are split."""
    interface = importlib.import_module("fa3_fwd_interface")
    attend = interface.flash_attn_with_kvcache if one.m == 1 else interface.flash_attn_func
    values = _by_rows(one, data.v).contiguous() if one.dtype == "e4m3" else data.v
    q, k, v = (x.transpose(1, 2) for x in (data.q, data.k, values))
    if data.table is not None:
        lengths = data.table.new_full((one.b,), one.n)
        attend = partial(attend, page_table=data.table, cache_seqlens=lengths)

    def run() -> Array:
        found = attend(q, k, v, causal=one.causal)
        return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)

    return run


def _triton(name: str, one: Case, data: Data) -> Enqueue:
    if one.page:
        raise NotImplementedError("the tutorial's kernel has no pages")
    return triton_attention(
        Configuration.of(name), data.q, data.k, data.v, data.out, causal=one.causal
    )


def own(kernel: Any, one: Case, data: Data) -> Enqueue:
    """Prepare the launch of a term's kernel."""
    import torch

    grouped = (one.b, one.h, one.g, one.m, one.d)
    q, out = data.q.view(grouped), data.out.view(grouped)
    scalars = {"scale": 1 / math.sqrt(one.d)}
    table = () if data.table is None else (data.table,)
    launch = kernel.prepare(q, data.k, data.v, *table, out=out, **scalars)
    return lambda: launch(torch.cuda.current_stream().cuda_stream)


def peers_of(one: Case) -> dict[str, Candidate]:
    """Return the peers by name."""
    if one.dtype == "e4m3":
        return {"fa3": partial(fa3, one)}
    found: dict[str, Candidate] = {
        "cudnn": partial(sdpa, "CUDNN_ATTENTION", one),
        "fa2": partial(sdpa, "FLASH_ATTENTION", one),
        "fa3": partial(fa3, one),
    }
    return found | {f"triton {name}": partial(_triton, name, one) for name in CONFIGURATIONS}


def drawn(one: Case) -> list[Data]:
    """Draw as many sets as exceed twice the L2."""
    import torch

    random = torch.Generator("cuda")
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    sets = min(_MOST_SETS, 2 + 2 * l2_bytes // one.bytes)
    shapes = [(one.b, one.h * one.g, one.m, one.d), *[(one.b, one.h, one.n, one.d)] * 2]
    blocks = one.b * one.n // one.page if one.page else 0
    if one.page:
        shapes[1:] = [(blocks, one.page, one.h, one.d)] * 2
    kind = torch.float8_e4m3fn if one.dtype == "e4m3" else torch.bfloat16

    def draw(shape: tuple[int, ...]) -> Array:
        wide = torch.randn(shape, generator=random, device="cuda", dtype=torch.float32)
        return wide.to(kind)

    found = []
    for seed in range(sets):
        random.manual_seed(seed)
        q, k, v = map(draw, shapes)
        v = v.transpose(2, 3).contiguous() if one.dtype == "e4m3" else v
        out = torch.empty_like(q, dtype=torch.bfloat16)
        if not one.page:
            found.append(Data(q, k, v, out))
            continue
        table = torch.randperm(blocks, generator=random, device="cuda").int().view(one.b, -1)
        found.append(Data(q, k.transpose(1, 2), v.transpose(1, 2), out, table))
    return found


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """Measure a case in a worker."""
    import torch

    from tinygpu.codegen.run.launch import Kernel, gpu
    from tinygpu.codegen.run.timing import time_interleaved

    if request["do"] == "hello":
        gpu().zeros(1)
        torch.zeros(1, device="cuda")
        return {}
    one = Case(**request["case"])
    candidates: dict[str, Candidate] = {}
    failures: dict[str, str] = {}
    for name, program in pickle.loads(base64.b64decode(request["programs"])).items():
        try:
            sizes = problem_of(one).sizes
            candidates[f"point {name}"] = partial(own, Kernel(program, sizes=sizes), one)
        except TinyGpuError as error:
            failures[f"point {name}"] = str(error)
    candidates |= peers_of(one)
    found = compare(one, candidates, drawn(one), time_interleaved, torch.cuda.synchronize)
    return {**found, "failures": {**failures, **found["failures"]}}


def row_of(
    one: Case,
    answer: Mapping[str, Any],
    programs: Mapping[str, Program],
    schedules: Mapping[str, Schedule],
) -> dict[str, Any]:
    """Return the row of what a worker measured; ``schedules`` are those that a search found.

    Raises LaunchError if it measured nothing.
    """
    timings, failures = answer.get("timings", {}), answer.get("failures", {})
    if not timings:
        reasons = "; ".join(f"{n}: {why}" for n, why in failures.items())
        raise LaunchError(f"{one.part}: nothing was timed: {answer.get('failed', reasons)}")
    ours = {name: timings.get(f"point {name}") for name in programs}
    ran = [FOUND] if ours.get(FOUND) else [name for name, timed in ours.items() if timed]
    best = min(ran, key=lambda name: ours[name]["seconds"], default="")
    mine = ours.get(best) or {}
    cudnn, fa2, fa3 = (timings.get(name, {}) for name in ("cudnn", "fa2", "fa3"))
    triton = next((name for name in timings if name.startswith("triton ")), "")
    theirs = [t["seconds"] for name, t in timings.items() if not name.startswith("point ")]
    seconds = mine.get("seconds")
    predicted = None
    if best:
        rates = load_device(DEVICE)
        predicted = float(cost(programs[best], problem_of(one).sizes, rates).seconds)
    return {
        "group": one.group, "case": one.part, "m": one.m, "n": one.n, "k": one.d,
        "dtype": one.dtype,
        "schedule": {"point": best}, "predicted_seconds": predicted, "seconds": seconds,
        "peer": "cudnn", "peer_seconds": cudnn.get("seconds"), "error": mine.get("error"),
        "b": one.b, "h": one.h, "g": one.g, "d": one.d, "causal": one.causal,
        "flops": one.flops,
        "tflops": one.flops / seconds * 1e-12 if seconds else None,
        "ratio": min(theirs) / seconds if seconds and theirs else None,
        "points": {n: t["seconds"] if t else failures.get(f"point {n}") for n, t in ours.items()},
        "decisions": {
            n: {"machine": s.machine, **dict(s.decisions)} for n, s in schedules.items()
        },
        "peer_reason": failures.get("cudnn", ""), "peer_error": cudnn.get("error"),
        "fa3_seconds": fa3.get("seconds"), "fa3_error": fa3.get("error"),
        "fa3_reason": failures.get("fa3", ""),
        "fa2_seconds": fa2.get("seconds"), "fa2_error": fa2.get("error"),
        "fa2_reason": failures.get("fa2", ""),
        "triton": triton.removeprefix("triton "),
        "triton_seconds": timings[triton]["seconds"] if triton else None,
        "triton_reason": "" if triton else failures.get(f"triton {CONFIGURATIONS[0]}", ""),
        "clock_mhz": mine.get("clock_mhz"), "peer_clock_mhz": cudnn.get("clock_mhz"),
        "capped": any(t["capped"] for t in timings.values()), "spread": mine.get("spread"),
    }  # fmt: skip


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return, by group, the geometric mean and the worst of a peer's time over ours."""
    found: dict[str, Any] = {}
    for row in (r for r in rows if r["seconds"]):
        theirs = {"cudnn": row["peer_seconds"], "fa3": row["fa3_seconds"]}
        theirs |= {"fa2": row.get("fa2_seconds"), "triton": row["triton_seconds"]}
        known = {name: t for name, t in theirs.items() if t}
        if known:
            known["best"] = min(known.values())
        of = found.setdefault(row["group"], {})
        for name, seconds in known.items():
            of.setdefault(name, {})[row["case"]] = seconds / row["seconds"]
    return {
        group: {
            name: {
                "cases": len(ratios),
                "geometric mean": round(statistics.geometric_mean(ratios.values()), 4),
                "worst": round(min(ratios.values()), 4),
                "worst case": min(ratios, key=lambda case: ratios[case]),
            }
            for name, ratios in of.items()
        }
        for group, of in found.items()
    }


def _text(row: Mapping[str, Any]) -> str:
    def rate(seconds: float | None) -> str:
        return f"{row['flops'] / seconds * 1e-12:.0f}" if seconds else "none"

    line = f"{row['group']} {row['case']}: {rate(row['seconds'])} TFLOP/s"
    line += f" ({row['schedule']['point'] or 'no point'}), cuDNN {rate(row['peer_seconds'])}"
    line += f", FA2 {rate(row['fa2_seconds'])}"
    line += f", FA3 {rate(row['fa3_seconds'])}, Triton {rate(row['triton_seconds'])}"
    line += f", {row['ratio']:.3f} of the best" if row["ratio"] else ""
    all_points = ", ".join(
        f"{name} {rate(t) if isinstance(t, float) else t}" for name, t in row["points"].items()
    )
    why = ("peer_reason", "fa2_reason", "fa3_reason", "triton_reason")
    return "; ".join((line, *(row[f] for f in why if row[f]), all_points))


def _record(command: str) -> dict[str, Any]:
    """Return the provenance of a run, with the versions of the peers."""
    found = provenance(command)
    for package in ("torch", "triton", "fa3-fwd", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the cases; write ``attention.json`` after each."""
    names = [one.part for one in CASES]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--parts", nargs="+", choices=names, metavar="PART", default=names)
    parser.add_argument("--missing", action="store_true", help="only parts that have no row yet")
    parser.add_argument("--peers", action="store_true", help="peers alone")
    parser.add_argument("--machines", nargs="+", choices=MACHINES, default=[MACHINE])
    parser.add_argument("--search", type=float, metavar="S", help="what a search finds in so long")
    given = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    command = " ".join(("python -m benchmarks.attention", *words))
    table = "attention_searched" if given.search else "_and_".join(given.machines)
    chosen = [one for one in CASES if one.part in given.parts]
    failed: list[str] = []
    record: dict[str, Any] = {}
    try:
        if given.missing:
            there = {row["case"] for row in load_rows(table, given.out)}
            chosen = [one for one in chosen if one.part not in there]
        with Worker((sys.executable, "-m", "benchmarks.attention", "--serve")) as worker:
            for one in chosen:
                try:
                    of, schedules = problem_of(one), dict[str, Schedule]()
                    if given.search:
                        schedules = searched(one, given.search)
                        programs = {
                            name: found.program(MACHINES[found.machine], of.operation)
                            for name, found in schedules.items()
                        }
                    else:
                        programs = {} if given.peers else points(of, given.machines)
                    packed = base64.b64encode(pickle.dumps(programs)).decode()
                    request = {"do": "case", "case": asdict(one), "programs": packed}
                    row = row_of(one, worker.ask(request, LIMIT_SECONDS), programs, schedules)
                except LaunchError as error:
                    failed.append(str(error))
                    sys.stdout.write(f"{error}\n")
                    continue
                record = _record(command)  # now: the clock is that of a busy GPU
                old = {f: row[f] for f in ("group", "case")}
                write_results(table, [row], record, given.out, instead_of=old, fields=FIELDS)
                sys.stdout.write(f"{_text(row)}\n")
                sys.stdout.flush()
        if record:
            told = summary(load_rows(table, given.out))
            write_results(table, [], record, given.out, fields=FIELDS, beside={"summary": told})
    except TinyGpuError as error:
        sys.exit(str(error))
    if failed:
        sys.exit(f"{len(failed)} of {len(chosen)} parts failed; the first: {failed[0]}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve(_answer)
    else:
        main()
