"""Products of the fifth generation: tcgen05.mma, cp and commit, of one CTA or of a pair.

A thread's operations are performed in order, which the ISA promises of a product after products or
copies, but not of a copy: one that overwrites what earlier products read has to wait for them like
any other thread.  ``commit`` lets barriers know when those before it are done.  In a pair the even
CTA's thread issues; each CTA has half of A's rows, of B's rows and of D.

Source: PTX ISA 9.0, sections 9.7.16.9 (mma), 9.7.16.10 (cp) and 9.7.16.12 (commit).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tinygpu.codegen.emulator.barriers import arrive, at_barrier
from tinygpu.codegen.emulator.clocks import ORDER
from tinygpu.codegen.emulator.decoder import Action, Builder, Decoder, each_thread
from tinygpu.codegen.emulator.descriptors import NARROW, Operand, elements
from tinygpu.codegen.emulator.group import WARP, Group
from tinygpu.codegen.emulator.memory import SHARED
from tinygpu.codegen.emulator.moves import space_of
from tinygpu.codegen.emulator.parser import Instruction
from tinygpu.codegen.emulator.report import Array
from tinygpu.codegen.emulator.run import Run
from tinygpu.codegen.emulator.spaces import granules, place
from tinygpu.codegen.emulator.state import COLUMNS
from tinygpu.codegen.emulator.tensor_memory import access, tensor_memory
from tinygpu.codegen.emulator.values import TYPES, products

__all__ = ["TABLE"]

_KINDS: Mapping[str, dict[int, str]] = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"},
    "i8": {0: "u8", 1: "s8"},
}
_A_COLUMNS = 8  # spec: of A in tensor memory, whose elements of 32 B are packed
_RESULTS = {0: "f16", 1: "f32", 2: "s32"}


@dataclass(frozen=True, slots=True)
class _Shape:
    """What an instruction descriptor says."""

    m: int
    n: int
    result: str
    a: str
    b: str
    signs: tuple[int, int]
    turned: tuple[bool, bool]

    @property
    def depth(self) -> int:
        return 32 if self.a in NARROW else 32 // TYPES[self.a].itemsize


def _shape(run: Run, kind: str, bits: int, *, pair: bool, from_tensor: bool) -> _Shape | None:
    names = _KINDS[kind]
    a, b, result = names.get(bits >> 7 & 7), names.get(bits >> 10 & 7), _RESULTS.get(bits >> 4 & 3)
    n, m = (bits >> 17 & 63) << 3, (bits >> 24 & 31) << 4
    allowed = (128, 256) if pair else (64, 128)
    least = 16 if pair or m == 128 else 8
    if a is None or b is None or result is None or bits & 7:
        run.find("descriptor", f"{bits:#x}: these types of kind {kind} are not run")
        return None
    if m not in allowed or n % least or not least <= n <= 256:
        run.find("descriptor", f"{bits:#x}: {m} x {n} is no shape of this instruction")
        return None
    turned = bool(bits >> 15 & 1), bool(bits >> 16 & 1)
    if (a in NARROW and (turned[0] or from_tensor)) or (b in NARROW and turned[1]):
        run.find("descriptor", f"{bits:#x}: 4 and 6 bits are run from shared memory, K-major")
        return None
    signs = (-1 if bits >> 13 & 1 else 1, -1 if bits >> 14 & 1 else 1)
    return _Shape(m, n, result, a, b, signs, turned)


def _queue(run: Run, thread: int) -> tuple[tuple[str, int], int]:
    """Return a thread's queue, and its channel."""
    return ("tcgen05", thread), run.channel("tcgen05 operations", thread, thread)


def _ctas(run: Run, thread: int, pair: bool) -> list[int]:
    """Return the CTAs that take part, the even one first."""
    cta = thread // run.threads_per_cta
    if not pair:
        return [cta]
    rank = cta % run.cluster
    if rank % 2 or run.cluster % 2:
        run.find("tensor memory", "an operation of a pair that the even CTA does not issue")
    even = cta - rank % 2
    return [even, min(even + 1, run.ctas - 1)]


def _places(shape: _Shape, ctas: int, lane: int) -> list[tuple[Array, Array]]:
    """Return for each CTA lane and column of its results: (rows, columns) of the whole D."""
    m, n = np.arange(shape.m)[:, None], np.arange(shape.n)[None]
    if ctas == 1 and shape.m == 128:
        return [(m + 0 * n, n + 0 * m)]
    if ctas == 1:
        return [(m % 16 + 32 * (m // 16) + lane + 0 * n, n + 0 * m)]
    half = shape.m // 2
    rows = np.arange(half)[:, None]
    if shape.m == 256:
        return [(rows + 0 * n, n + 0 * rows)] * 2
    return [(rows + 64 * (n >= shape.n // 2), n % (shape.n // 2) + 0 * rows)] * 2


def _mma(d: Decoder, i: Instruction) -> Action:
    kind = next(p.split("::")[1] for p in i.parts if p.startswith("kind::"))
    pair = "cta_group::2" in i.parts
    to = d.address(i.operands[0])
    from_tensor = i.operands[1].startswith("[")
    a_at = d.address(i.operands[1]) if from_tensor else d.source(i.operands[1], "u64")
    b_at, bits = d.source(i.operands[2], "u64"), d.source(i.operands[3], "u32")
    rest = [o for o in i.operands[4:] if not o.startswith("{")]
    if len(rest) != 1 or len(rest) != len(i.operands) - 4:
        raise d.error("masks and scales of the input are not run")
    accumulates = d.source(rest[0], "pred")
    d.touch(8)

    def mma(run: Run, group: Group) -> None:
        if (np.diff(group.threads // WARP) == 0).any():
            run.find("divergence", "one thread issues, not several of a warp")
        given = each_thread(run, group, bits, to, a_at, b_at, accumulates)
        for thread, described, target, a, b, adds in given:
            shape = _shape(run, kind, described, pair=pair, from_tensor=from_tensor)
            if shape is not None:
                _issue(run, thread, shape, (target, a, b), bool(adds), pair, from_tensor)

    return mma


def _issue(
    run: Run, thread: int, shape: _Shape, at: tuple[int, int, int], adds: bool, pair: bool,
    from_tensor: bool,
) -> None:  # fmt: skip
    target, a, b = at
    ctas = _ctas(run, thread, pair)
    key, channel = _queue(run, thread)
    rows = run.rows(Group(np.array([thread])))
    half = len(ctas)
    lane, column = target >> 16, target & 0xFFFF
    if lane and (shape.m != 64 or lane != 16):
        run.find("tensor memory", f"results begin at lane {lane}")
        return
    operands, held = [], []
    for cta in ctas:
        parts = []
        if not from_tensor:
            parts.append(Operand(a, shape.a, shape.m // half, shape.depth, shape.turned[0], True))
        parts.append(Operand(b, shape.b, shape.n // half, shape.depth, shape.turned[1], True))
        found = [p.addresses(run, cta) for p in parts]
        good = [f for f in found if f is not None]
        if len(good) < len(found):
            return
        step = run.tick()
        cells = np.unique(granules(run, np.concatenate([g.reshape(-1) for g in good]), 1))
        conflict = run.clocks.read(cells, rows, step, proxy=True, agent=channel)
        run.conflict(conflict, "multiplies")
        operands.append(good)
    places = _places(shape, half, lane)
    for cta, (lanes, columns) in zip(ctas, places, strict=True):
        quarters = np.unique(lanes // 32)
        span = (column, int(columns.max()) + 1)
        if adds:
            access(run, cta, quarters, span, rows, channel, writes=False)
        if from_tensor:
            access(run, cta, quarters, (a & 0xFFFF, _A_COLUMNS), rows, channel, writes=False)
        held.append(access(run, cta, quarters, span, rows, channel, writes=True))
    run.state.tensor_last[thread] = held[-1]
    taken = (a & 0xFFFF) + _A_COLUMNS if from_tensor else 0
    if max(column + span[1], taken) > COLUMNS:
        return  # which access has reported

    def perform() -> None:
        lefts = [
            _from_tensor(run, cta, a, shape, half) if from_tensor
            else elements(run, good[0], shape.a)
            for cta, good in zip(ctas, operands, strict=True)
        ]  # fmt: skip
        rights = [elements(run, good[-1], shape.b) for good in operands]
        left, right = np.concatenate(lefts), np.concatenate(rights)
        product = products(left * shape.signs[0], right * shape.signs[1])
        for n, (cta, (lanes, columns)) in enumerate(zip(ctas, places, strict=True)):
            part = product[n * shape.m // half : (n + 1) * shape.m // half]
            _accumulate(run, cta, (lanes, column + columns), part, shape.result, adds)

    run.issue(perform, key)


def _from_tensor(run: Run, cta: int, address: int, shape: _Shape, half: int) -> Array:
    """Return A's rows of one CTA: one a lane, packed in columns of 32 bits."""
    column = address & 0xFFFF
    rows = shape.m // half
    lanes = np.arange(rows) if rows != 64 else np.arange(64) % 16 + 32 * (np.arange(64) // 16)
    held = tensor_memory(run, cta).cells[lanes, column : column + _A_COLUMNS]
    words = np.ascontiguousarray(held)
    values: Array = words.view(TYPES[shape.a]).astype(np.float64)
    return values


def _accumulate(
    run: Run, cta: int, at: tuple[Array, Array], product: Array, result: str, adds: bool
) -> None:
    cells = tensor_memory(run, cta).cells
    lanes, columns = at
    held = cells[lanes, columns]
    if result == "f16":
        old = held.astype(np.uint16).view(np.float16).astype(np.float64)
        total = product + old if adds else product
        cells[lanes, columns] = total.astype(np.float16).view(np.uint16)
        return
    dtype = TYPES[result]
    old = held.view(dtype).astype(np.float64)
    total = product + old if adds else product
    cells[lanes, columns] = np.ascontiguousarray(total.astype(dtype)).view(np.uint32)


_COPIES = {"128x256b": (128, 8), "128x128b": (128, 4), "4x256b": (4, 8), "32x128b": (32, 4)}


def _cp(d: Decoder, i: Instruction) -> Action:
    shape = next(p for p in i.parts if p in _COPIES)
    rows_of, words = _COPIES[shape]
    pair = "cta_group::2" in i.parts
    to, of = d.address(i.operands[0]), d.source(i.operands[1], "u64")
    d.touch(8)

    def copy(run: Run, group: Group) -> None:
        for thread, target, given in each_thread(run, group, to, of):
            key, channel = _queue(run, thread)
            rows = run.rows(Group(np.array([thread])))
            column = target & 0xFFFF
            for cta in _ctas(run, thread, pair):
                at = Operand(given, "b32", rows_of, words, False, True).addresses(run, cta)
                if at is None:
                    continue
                step, cells = run.tick(), np.unique(granules(run, at.reshape(-1), 1))
                conflict = run.clocks.read(cells, rows, step, proxy=True, agent=channel)
                run.conflict(conflict, "copies")
                quarters = np.arange(1 if rows_of == 4 else 4)
                step = access(
                    run, cta, quarters, (column, words), rows, channel, writes=True, own=False
                )
                run.state.tensor_last[thread] = step
                if column + words <= COLUMNS:  # else access has reported it
                    run.issue(_copied(run, cta, at, column), key)

    return copy


def _copied(run: Run, cta: int, at: Array, column: int) -> Callable[[], None]:
    def perform() -> None:
        words = run.shared.view(np.uint32)[at // 4]
        cells = tensor_memory(run, cta).cells
        if len(words) == 32:
            words = np.tile(words, (4, 1))
        cells[: len(words), column : column + words.shape[1]] = words

    return perform


def _commit(d: Decoder, i: Instruction) -> Action:
    multicast = "multicast::cluster" in i.parts
    at = d.address(i.operands[0])
    mask = d.source(i.operands[1], "u16") if multicast else None
    generic = SHARED if space_of(d, i) == "generic" else 0
    d.touch(8)

    def commit(run: Run, group: Group) -> None:
        for thread, address, chosen in each_thread(run, group, at, mask):
            run.tick()
            key, channel = _queue(run, thread)
            cta, offset = place(run, thread, address - generic)
            ctas = [cta]
            if mask is not None:
                ctas = [cta - cta % run.cluster + r for r in range(run.cluster) if chosen >> r & 1]
            one = Group(np.array([thread]))
            clock = run.clocks.snapshot(*run.members(one), -1)  # what they built on
            clock[ORDER, channel] = run.state.tensor_last.get(thread, -1)
            for cta in ctas:
                flat = cta * run.shared_bytes + offset
                barrier = at_barrier(run, flat, one, "commits to", proxy=True)
                if barrier is not None:
                    run.remote(cta, thread, channel, int(clock[ORDER, channel]))
                    run.issue(functools.partial(arrive, run, barrier, 1, clock), key)

    return commit


TABLE: Mapping[str, Builder] = {
    "tcgen05.mma": _mma,
    "tcgen05.cp": _cp,
    "tcgen05.commit": _commit,
}
"""This family's builders by entry."""
